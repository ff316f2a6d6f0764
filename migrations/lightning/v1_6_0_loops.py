"""Tell the loops how far training went: since 1.6 they alone know it, not `global_step` and `epoch`.

A file of before 1.5 has no loops; it gets the fresh ones of 1.6.
Source: lightning/pytorch/utilities/migration/migration.py of 2.6; formats/torch.md 9.6.
"""

from copy import deepcopy
from typing import Any

from ckptmigrate import Add, Apply, Migrator, Present

LOOPS, STEP, EPOCH = "values/extra/loops", "progress/step", "progress/epoch"

READY = {"completed": 0, "ready": 0}
STARTED = {"completed": 0, "ready": 0, "started": 0}
PROCESSED = {"completed": 0, "processed": 0, "ready": 0, "started": 0}


def progress(counts: dict[str, int]) -> dict[str, Any]:
    """Give the counts of a loop that never ran."""
    return {"current": dict(counts), "total": dict(counts)}


FRESH: dict[str, Any] = {
    "epoch_loop.batch_loop.manual_loop.optim_step_progress": progress(READY),
    "epoch_loop.batch_loop.manual_loop.state_dict": {},
    "epoch_loop.batch_loop.optimizer_loop.optim_progress": {
        "optimizer": {"step": progress(READY), "zero_grad": progress(STARTED)},
        "optimizer_position": 0,
    },
    "epoch_loop.batch_loop.optimizer_loop.state_dict": {},
    "epoch_loop.batch_loop.state_dict": {},
    "epoch_loop.batch_progress": {**progress(PROCESSED), "is_last_batch": False},
    "epoch_loop.scheduler_progress": progress(READY),
    "epoch_loop.state_dict": {"_batches_that_stepped": 0},
    "epoch_loop.val_loop.dataloader_progress": progress(READY),
    "epoch_loop.val_loop.epoch_loop.batch_progress": {**progress(PROCESSED), "is_last_batch": False},
    "epoch_loop.val_loop.epoch_loop.state_dict": {},
    "epoch_loop.val_loop.state_dict": {},
    "epoch_progress": progress(PROCESSED),
    "state_dict": {},
}


def told(loops: dict[str, Any], step: int, epoch: int) -> tuple[dict[str, Any], int, int]:
    """Give the loops with the steps and epochs that were done."""
    loops = deepcopy(loops)
    fit = loops.setdefault("fit_loop", deepcopy(FRESH))
    fit["epoch_loop.batch_loop.optimizer_loop.optim_progress"]["optimizer"]["step"]["total"]["completed"] = step
    fit["epoch_loop.batch_loop.manual_loop.optim_step_progress"]["total"]["completed"] = step
    fit["epoch_progress"]["current"]["completed"] = epoch
    return loops, step, epoch


MIGRATOR = Migrator(
    chain="lightning",
    version="1.6.0",
    marks=[Present("values/extra/pytorch-lightning_version", on="items", without=LOOPS)],
    operations=[
        Add(LOOPS, fill={}, lacking=True, on="items", optional=True),
        Apply([LOOPS, STEP, EPOCH], [LOOPS, STEP, EPOCH], told, wants="values", on="items", optional=True),
    ],
)
