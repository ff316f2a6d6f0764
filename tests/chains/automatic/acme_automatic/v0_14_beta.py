"""Call beta bias. Since 0.14; needed only where there is one."""

from __future__ import annotations

from ckptmigrate import Migrator, Present, Rename

MIGRATOR = Migrator(
    "acme.automatic", "0.14", operations=[Rename(r"(.*)\.beta", r"\1.bias")], marks=[Present(r".*\.beta")]
)
