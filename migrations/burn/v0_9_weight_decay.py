"""Drop the gradient that weight decay remembered.

Up to 0.8 weight decay was a penalty computed from the gradient of the step before, which SGD and Adam kept for it. Since 0.9 it
is computed from the weights, and an optimizer has nothing to keep. The first releases (0.3 to 0.6) write no version into their
files, so only the slot's name tells. Source: burn-core/src/optim/decay.rs of 0.8.0 and 0.9.0; formats/burn.md 5.2.
"""

from ckptmigrate import Drop, Migrator, Present

SLOT = r"weight_decay\.grad_last_step"

MIGRATOR = Migrator(
    chain="burn",
    version="0.9",
    marks=[Present(SLOT, on="slots")],
    operations=[
        Drop(
            SLOT,
            reason="since 0.9 weight decay is computed from the weights, not from the gradient of the step before:"
            " training goes on from the same state, and not along the same numbers",
            on="slots",
        ),
    ],
)
