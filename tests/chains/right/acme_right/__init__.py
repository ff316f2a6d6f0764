"""A chain of two steps with marks, and a module that both share."""

from __future__ import annotations

from ckptmigrate import Chain

CHAIN = Chain("acme.right", about="what a chain looks like")
