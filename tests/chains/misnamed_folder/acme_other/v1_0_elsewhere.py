"""The folder is of another chain."""

from __future__ import annotations

from ckptmigrate import Migrator

MIGRATOR = Migrator("acme.folder", "1.0")
