"""A step with marks, all of whose operations are optional."""

from __future__ import annotations

from ckptmigrate import Migrator, Present, Rename

MIGRATOR = Migrator("acme.blind", "1.5", operations=[Rename("b", "c", optional=True)], marks=[Present("b")])
