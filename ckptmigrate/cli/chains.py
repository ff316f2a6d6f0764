"""``ckptmigrate chains``."""

from __future__ import annotations

import dataclasses

from ckptmigrate import chains as rooms
from ckptmigrate import report

from .app import verb
from .options import Json, Migrations, project
from .show import refusing, show


@verb
def chains(*, migrations: Migrations = None, as_json: Json = False) -> None:
    """List the chains that are found: their versions, from where each comes, which apply unasked, and why one does not load."""
    with refusing(as_json=as_json):
        found = rooms.installed([*project().migrations, *(migrations or ())])
        show([dataclasses.asdict(row) for row in found], report.chain_lines(found), as_json=as_json)
