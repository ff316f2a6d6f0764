"""One of two steps that lead to 1.0."""

from __future__ import annotations

from ckptmigrate import Migrator

MIGRATOR = Migrator("acme.conflict", "1.0")
