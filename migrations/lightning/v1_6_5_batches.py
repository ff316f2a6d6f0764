"""Count the batches that stepped: as many as there were steps, where a file of before 1.6.5 does not say.

Source: lightning/pytorch/utilities/migration/migration.py of 2.6; formats/torch.md 9.6.
"""

from typing import Any

from ckptmigrate import Apply, Migrator, Present

STATE, STEP = "values/extra/loops/fit_loop/epoch_loop.state_dict", "progress/step"


def counted(state: dict[str, Any], step: int) -> tuple[dict[str, Any], int]:
    """Give the loop's state with the count."""
    return {**state, "_batches_that_stepped": state.get("_batches_that_stepped", step)}, step


MIGRATOR = Migrator(
    chain="lightning",
    version="1.6.5",
    marks=[Present(STATE, on="items", without=f"{STATE}/_batches_that_stepped")],
    operations=[
        Apply(
            [rf"{STATE}".replace(".", r"\."), STEP], [STATE, STEP], counted, wants="values", on="items", optional=True
        ),
    ],
)
