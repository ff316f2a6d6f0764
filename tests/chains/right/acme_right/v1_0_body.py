"""Call the trunk a body. Since 1.0."""

from __future__ import annotations

from ckptmigrate import Migrator, Present, Rename

MIGRATOR = Migrator(
    chain="acme.right",
    version="1.0",
    marks=[Present(r"trunk\..*")],
    operations=[Rename(r"trunk\.(.*)", r"body.\1", back=(r"body\.(.*)", r"trunk.\1"))],
)
