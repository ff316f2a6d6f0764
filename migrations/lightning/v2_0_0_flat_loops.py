"""Find the loops where 2.0 has them, after the batch, optimizer and dataloader loops were folded into their parents.

The state of apex goes, which 2.0 does not know any more.
Source: lightning/pytorch/utilities/migration/migration.py of 2.6; formats/torch.md 9.6.
"""

from copy import deepcopy
from typing import Any

from ckptmigrate import Apply, Drop, Migrator, Present

LOOPS = "values/extra/loops"
BATCH = "epoch_loop.batch_loop."
RENAMED = {
    f"{BATCH}optimizer_loop.": "epoch_loop.automatic_optimization.",
    f"{BATCH}manual_loop.": "epoch_loop.manual_optimization.",
    "epoch_loop.optimizer_loop.": "epoch_loop.automatic_optimization.",
    "epoch_loop.manual_loop.": "epoch_loop.manual_optimization.",
}


def flat(loops: dict[str, Any]) -> dict[str, Any]:
    """Give the loops as 2.0 nests them."""
    loops = deepcopy(loops)
    if "fit_loop" in loops:
        loops["fit_loop"] = _fit(loops["fit_loop"])
    for name in ("predict_loop", "validate_loop", "test_loop"):
        if name in loops:
            kept = {key: state for key, state in loops[name].items() if key != "dataloader_progress"}
            inner = {
                key.removeprefix("epoch_loop."): kept.pop(key) for key in list(kept) if key.startswith("epoch_loop.")
            }
            loops[name] = {**kept, **inner}
    return loops


def _fit(loop: dict[str, Any]) -> dict[str, Any]:
    own = loop.pop(f"{BATCH}state_dict", None)
    if own:  # of a batch loop that somebody wrote: nobody loads it, and it is not lost
        loop.setdefault("epoch_loop.state_dict", {})["old_batch_loop_state_dict"] = own
    moved: dict[str, Any] = {}
    for key, state in loop.items():
        old = next((prefix for prefix in RENAMED if key.startswith(prefix)), None)
        moved[key if old is None else RENAMED[old] + key.removeprefix(old)] = state
    moved.get("epoch_loop.automatic_optimization.optim_progress", {}).pop("optimizer_position", None)
    return moved


MIGRATOR = Migrator(
    chain="lightning",
    version="2.0.0",
    marks=[Present(rf"{LOOPS}/(?:fit_loop/epoch_loop\.batch_loop\..*|.*/dataloader_progress)", on="items")],
    operations=[
        Drop(
            "values/scaler",
            reason="apex, which Lightning does not know since 2.0",
            where="values/scaler/loss_scaler0",
            on="items",
            optional=True,
        ),
        Apply([LOOPS], [LOOPS], flat, wants="values", on="items", optional=True),
    ],
)
