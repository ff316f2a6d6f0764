"""The fields of a Lightning checkpoint that are not the model's, as today's Trainer looks for them."""

from ckptmigrate import Chain

CHAIN = Chain(
    "lightning",
    family="torch",
    about="loops and callbacks of earlier releases of Lightning, as its own migrations leave them",
)
