"""What Acme's own checkpointer lays: one file a section and epoch, epochs counted from 1 as they finish."""

from __future__ import annotations

from ckptmigrate.format import Layout

LAYOUT = Layout(
    "acme_epoch",
    family="acme",
    recognised_by=("checkpoint/model-{epoch}",),
    files={
        "model": "checkpoint/model-{epoch}",
        "optimizers": "checkpoint/optim-{epoch}",
        "schedulers": "checkpoint/scheduler-{epoch}",
    },
    epoch_counts="finished",
    about="Acme's checkpointer",
)
