"""Keep the milestones of a MultiStepLR as torch does since 1.4: how often each epoch stands among them, not a list.

Source: torch/optim/lr_scheduler.py of 1.0.0 and 1.4.0; formats/torch.md 11.3.
"""

from collections import Counter

from ckptmigrate import Apply, Dtype, Known, Migrator

MILESTONES = r"(schedulers/\d+/(?:.*/)?milestones)"


def counted(milestones: list[int]) -> Known:
    """Give the call that torch.save writes for a Counter."""
    return Known("collections.Counter", (dict(Counter(milestones)),))


def listed(milestones: Known) -> list[int]:
    """Give the epochs in their order, each as often as it counts."""
    return sorted(Counter(*milestones.args or ()).elements())


MIGRATOR = Migrator(
    chain="torch",
    version="1.4",
    marks=[Dtype(MILESTONES, "list", on="items")],
    operations=[
        Apply(
            [MILESTONES], [r"\1"], counted, wants="values", on="items", optional=True,
            back=Apply([MILESTONES], [r"\1"], listed, wants="values", on="items", optional=True),
        ),
    ],
)  # fmt: skip
