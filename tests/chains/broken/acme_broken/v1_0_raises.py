"""A step that does not even load."""

from __future__ import annotations

raise RuntimeError("the moon is full")
