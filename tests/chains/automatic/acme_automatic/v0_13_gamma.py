"""Call gamma weight. Since 0.13."""

from __future__ import annotations

from ckptmigrate import Migrator, Present, Rename

MIGRATOR = Migrator(
    "acme.automatic", "0.13", operations=[Rename(r"(.*)\.gamma", r"\1.weight")], marks=[Present(r".*\.gamma")]
)
