"""Keep an optimizer's step where torch counts it since 1.12: in an F32 tensor of no dimension.

Adam and its kin, Adagrad, Adamax and ASGD had a Python int, NAdam and ASGD floats beside it. (Adadelta, RMSprop and Rprop followed in
2.4.) SparseAdam still has the int, in state of the same names; what tells it is that its groups have no weight decay, whatever
optimizers stand beside it.
Sources: torch/optim of 1.11.0, 1.12.0 and 2.13.0 (`__setstate__` of each does the same on load); formats/torch.md 11.2.
"""

from ckptmigrate import Cast, Dtype, Either, Migrator

KIN = [(slot, "group/weight_decay") for slot in ("exp_avg", "sum", "ax")]  # of Adam and Adamax, of Adagrad, of ASGD

MIGRATOR = Migrator(
    chain="torch",
    version="1.12",
    marks=[
        Either([Dtype("step", "int", on="slots", where=kin) for kin in KIN]),
    ],
    operations=[
        *(Cast("step", "F32", old="int", on="slots", where=kin, optional=True) for kin in KIN),
        Cast("mu_product", "F32", old="float", on="slots", optional=True),
        *(Cast(slot, "F32", old="float", on="slots", where="ax", optional=True) for slot in ("eta", "mu")),
    ],
)
