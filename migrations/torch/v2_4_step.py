"""Keep the step of Adadelta, RMSprop and Rprop in an F32 tensor too, and no methods in the state of a scheduler.

OneCycleLR saved the method that it anneals with, CyclicLR the one that it scales with, up to 2.3: before 2.1 bound to the scheduler
itself, and with it to the optimizer and all its parameters. Since 2.4 the scheduler that is built anew knows them.
What is older builds its methods anew
as well, so that nothing is missed on the way down. Sources: torch/optim of 2.3.0 and 2.4.0, lr_scheduler.py of 1.10.2 and 2.4.0; formats/torch.md 11.2 and 11.4.
"""

from ckptmigrate import Cast, Drop, Dtype, Either, Migrator, Present

KIN = ("square_avg", "prev")  # of Adadelta and RMSprop, of Rprop
METHOD = r"schedulers/\d+/(?:.*/)?(?:anneal_func|scale_fn)"

MIGRATOR = Migrator(
    chain="torch",
    version="2.4",
    marks=[Either([*(Dtype("step", "int", on="slots", where=slot) for slot in KIN), Present(METHOD, on="items")])],
    operations=[
        *(Cast("step", "F32", old="int", on="slots", where=slot, optional=True) for slot in KIN),
        Drop(
            METHOD,
            reason="a method of the scheduler, which the scheduler itself knows since 2.4",
            on="items",
            optional=True,
            needless=True,
        ),
    ],
)
