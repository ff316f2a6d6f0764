"""Keep the head's weight by columns. Since 2.0."""

from __future__ import annotations

from ckptmigrate import Migrator, Present, Rename, Transpose

MIGRATOR = Migrator(
    chain="acme.net",
    version="2.0",
    marks=[Present(r"head\.weight")],
    operations=[Transpose(r"head\.weight"), Rename(r"head\.weight", "head.columns")],
)
