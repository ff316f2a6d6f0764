"""Leave out whether a scheduler talks: `verbose` is no field of any since 2.7. Releases that have it keep their own on load.

Source: torch/optim/lr_scheduler.py of 2.6.0 and 2.7.0; formats/torch.md 11.3.
"""

from ckptmigrate import Drop, Migrator, Present

VERBOSE = r"schedulers/\d+/(?:.*/)?verbose"

MIGRATOR = Migrator(
    chain="torch",
    version="2.7",
    marks=[Present(VERBOSE, on="items")],
    operations=[Drop(VERBOSE, reason="no scheduler has it since 2.7", on="items", needless=True)],
)
