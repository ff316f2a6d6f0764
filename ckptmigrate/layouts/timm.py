"""timm (`pytorch-image-models`): `checkpoint-N.pth.tar`, `last.pth.tar`, `model_best.pth.tar` of `CheckpointSaver`.

`epoch` is the last one finished, counted from 0, where `version` is 2; files before that have no `version` and count the next.
Source: timm/utils/checkpoint_saver.py, timm/models/_helpers.py.
"""

from __future__ import annotations

from ckptmigrate.format import Layout

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
    epoch_counts="last",
    needed=("state_dict",),
    about="timm's CheckpointSaver",
)
