"""A step of another chain beside the broken one."""

from __future__ import annotations

from ckptmigrate import Migrator, Present, Rename

MIGRATOR = Migrator("acme.whole", "1.0", operations=[Rename("old", "new")], marks=[Present("old")])
