"""``ckptmigrate formats`` and ``ckptmigrate layouts``: what is installed."""

from __future__ import annotations

import dataclasses

from ckptmigrate import registry

from .app import verb
from .options import Json
from .show import refusing, show


@verb
def formats(*, as_json: Json = False) -> None:
    """List the formats that are installed, what each does, and from where it comes."""
    _list("formats", as_json=as_json)


@verb
def layouts(*, as_json: Json = False) -> None:
    """List the layouts that are installed, and from where each comes."""
    _list("layouts", as_json=as_json)


def _list(kind: str, *, as_json: bool) -> None:
    with refusing(as_json=as_json):
        rows = [row for row in registry.installed() if row.kind == kind]
        width = max((len(row.name) for row in rows), default=0)
        lines = (f"{row.name:{width}}  {row.error or row.about}  [{row.where}]" for row in rows)
        show([dataclasses.asdict(row) for row in rows], lines, as_json=as_json)
