"""A module that asks for another that nobody has."""

from __future__ import annotations

import acme_that_nobody_has  # type: ignore[import-not-found] # noqa: F401 - that is what is wrong with it
