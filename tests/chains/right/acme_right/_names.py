"""Not a step: its name begins with an underscore."""

from __future__ import annotations

HEAD = "head"
