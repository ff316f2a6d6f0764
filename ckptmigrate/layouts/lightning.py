"""PyTorch Lightning `.ckpt`, 1.0 and later: the keys of `Trainer.save_checkpoint`.

Names in `state_dict` begin with the attribute of the LightningModule that holds the network. `epoch` counts from 0 and is

    before 1.6    the epoch to go on with: `current_epoch + 1`
    since 1.6     `current_epoch`, which the hooks that save leave at the epoch that runs or has just ended; it grows after them, so
                  that a file saved between epochs (after `fit`) has the next one: there, `loops` says that as many epochs
                  were completed as begun (or none begun, in an older file that Lightning migrated)

`MixedPrecision` and its older names are the scaler. `loops`, `callbacks`
and a module's own keys stay among the values. Source: lightning/pytorch/trainer/connectors/checkpoint_connector.py,
core/saving.py, callbacks/model_checkpoint.py; formats/torch.md 9.6.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckptmigrate.format import Layout

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Counts

AS_IT_STANDS = (1, 6)  # the release since which `epoch` is saved without being incremented


def epoch_counts(tree: Any) -> Counts | None:
    """Say what `epoch` counts, by the release that wrote it and by how many epochs were begun and completed."""
    version = re.match(r"(\d{1,9})\.(\d{1,9})", str(tree["pytorch-lightning_version"]))
    if version is None:
        return None
    if (int(version[1]), int(version[2])) < AS_IT_STANDS:
        return "next"
    node = tree
    for key in ("loops", "fit_loop", "epoch_progress", "current"):
        node = node.get(key) if isinstance(node, dict) else None
    progress = node if isinstance(node, dict) else {}
    begun, completed = progress.get("ready"), progress.get("completed")
    migrated = begun == 0  # Lightning's own migration counts what was completed, and nothing that was begun
    between = begun is not None and completed == tree.get("epoch") and (begun == completed or migrated)
    return "next" if between else "last"


LAYOUT = Layout(
    "lightning",
    family="torch",
    recognised_by=("pytorch-lightning_version", "state_dict"),
    keys={
        "model": (("state_dict",),),
        "optimizers": (("optimizer_states",),),
        "schedulers": (("lr_schedulers",),),
        "progress.epoch": (("epoch",),),
        "progress.step": (("global_step",),),
        "values.scaler": (
            ("MixedPrecision",), ("MixedPrecisionPlugin",), ("NativeMixedPrecisionPlugin",), ("native_amp_scaling_state",),
            ("amp_scaling_state",),
        ),
        "values.config": (("hyper_parameters",), ("hparams",), ("module_arguments",)),
    },
    epoch_counts=epoch_counts,
    version_at={"lightning": "pytorch-lightning_version"},
    needed=("state_dict", "pytorch-lightning_version"),
    about="PyTorch Lightning's Trainer",
)  # fmt: skip
