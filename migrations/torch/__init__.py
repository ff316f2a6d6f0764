"""What today's torch expects of the optimizers and schedulers of its earlier releases."""

from ckptmigrate import Chain

CHAIN = Chain(
    "torch", family="torch", automatic=True, about="optimizer and scheduler fields of earlier releases of torch"
)
