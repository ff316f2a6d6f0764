"""The weight norm of today's torch, which is a parametrization."""

from ckptmigrate import Chain

CHAIN = Chain(
    "torch.weight_norm",
    family="torch",
    about="weight_g and weight_v become parametrizations.weight.original0 and original1",
)
