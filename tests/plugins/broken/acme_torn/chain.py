"""A chain whose file fails."""

from __future__ import annotations

raise RuntimeError("the moon is full")
