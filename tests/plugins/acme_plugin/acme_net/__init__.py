"""Acme's own network, as its library delivers the chain: a package whose modules are the steps."""

from __future__ import annotations

from ckptmigrate import Chain

CHAIN = Chain("acme.net", family="acme", about="Acme's network")
