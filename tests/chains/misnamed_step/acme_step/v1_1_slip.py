"""The file says 1.1, the step 1.2."""

from __future__ import annotations

from ckptmigrate import Migrator

MIGRATOR = Migrator("acme.step", "1.2")
