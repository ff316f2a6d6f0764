"""A weight without its weight norm, for a model that has none (inference)."""

from ckptmigrate import Chain

CHAIN = Chain(
    "torch.fold_weight_norm",
    family="torch",
    about="multiplies weight norms out: one weight for magnitude and direction",
)
