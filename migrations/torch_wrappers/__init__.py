"""Names as the model itself has them, whatever it was wrapped into when it was saved."""

from ckptmigrate import Chain

CHAIN = Chain(
    "torch.wrappers",
    family="torch",
    about="takes the prefixes of DataParallel, torch.compile, FSDP, checkpoint wrappers and Lightning strategies out of names",
)
