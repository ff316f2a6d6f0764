"""PyTorch Lightning `.ckpt`, 1.0 and later: the keys of `Trainer.save_checkpoint`.

Names in `state_dict` begin with the attribute of the LightningModule that holds the network. `epoch` is `current_epoch`, the
epoch that runs or has just ended, counted from 0. `MixedPrecision` and its older names are the scaler. `loops`, `callbacks`
and a module's own keys stay among the values. Source: lightning/pytorch/trainer/connectors/checkpoint_connector.py,
core/saving.py, callbacks/model_checkpoint.py; formats/torch.md 9.6.
"""

from __future__ import annotations

from ckptmigrate.format import Layout

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
    epoch_counts="last",
    version_at={"lightning": "pytorch-lightning_version"},
    needed=("state_dict", "pytorch-lightning_version"),
    about="PyTorch Lightning's Trainer",
)  # fmt: skip
