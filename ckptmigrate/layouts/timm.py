"""timm (`pytorch-image-models`): `checkpoint-N.pth.tar`, `last.pth.tar`, `model_best.pth.tar` of `CheckpointSaver`.

`epoch` is the last one finished, counted from 0, where `version` is 2; a lower `version` was incremented before it was saved and
counts the next. (Still older files have no `version`; they look like many other loops, and nothing is said of their epoch.)
Source: timm/utils/checkpoint_saver.py, timm/models/_helpers.py (`resume_checkpoint`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.format import Layout

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Counts

LAST_FINISHED = 2  # the `version` since which `epoch` is saved as it is


def epoch_counts(tree: Any) -> Counts | None:
    """Say what `epoch` counts, by `version`."""
    version = tree["version"]
    if not isinstance(version, int):
        return None
    return "last" if version >= LAST_FINISHED else "next"


LAYOUT = Layout(
    "timm",
    family="torch",
    recognised_by=("version", "arch", "state_dict", "epoch"),
    keys={
        "model": (("state_dict",),),
        "twins.ema": (("state_dict_ema",),),
        "optimizers": (("optimizer",),),
        "progress.epoch": (("epoch",),),
        "progress.best": (("metric",),),
        "values.scaler": (("amp_scaler",),),
        "values.config": (("args",),),
    },
    epoch_counts=epoch_counts,
    needed=("state_dict",),
    about="timm's CheckpointSaver",
)
