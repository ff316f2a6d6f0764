"""Call the classifier a head. Since 1.0."""

from __future__ import annotations

from ckptmigrate import Migrator, Present, Rename

MIGRATOR = Migrator(
    chain="acme.net",
    version="1.0",
    marks=[Present(r"fc\..*")],
    operations=[Rename(r"fc\.(weight|bias)", r"head.\1", back=(r"head\.(weight|bias)", r"fc.\1"))],
)
