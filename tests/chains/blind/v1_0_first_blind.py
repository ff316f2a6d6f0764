"""A step without marks, directly in its folder."""

from __future__ import annotations

from ckptmigrate import Migrator, Rename

MIGRATOR = Migrator("acme.blind", "1.0", operations=[Rename("a", "b", optional=True)])
