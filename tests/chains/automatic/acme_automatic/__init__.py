"""A chain that applies unasked where its marks match."""

from __future__ import annotations

from ckptmigrate import Chain

CHAIN = Chain("acme.automatic", automatic=True)
