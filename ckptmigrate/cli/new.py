"""``ckptmigrate new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptmigrate import propose, report

from .app import verb
from .options import Finding, Json, Migrations, Reading, project
from .show import refusing, show


@verb
def new(
    chain: Annotated[str, typer.Argument(metavar="CHAIN", help="acme.vit", show_default=False)],
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="what a checkpoint is after this step", show_default=False)
    ],
    *,
    old: Annotated[
        str | None, typer.Option("--from", metavar="OLD", help="a checkpoint before the step: propose the operations")
    ] = None,
    made: Annotated[
        str | None, typer.Option("--to", metavar="NEW", help="one after it, or module:callable that gives its model")
    ] = None,
    finding: Finding,
    reading: Reading,
    migrations: Migrations = None,
    force: Annotated[bool, typer.Option("--force", help="replace the file if it is there")] = False,
    as_json: Json = False,
) -> None:
    """Write the file of a migrator, to be filled in; with two checkpoints, propose its operations and say what proves them."""
    with refusing(as_json=as_json):
        own = project().migrations
        given = tuple(map(str, migrations or ()))
        into = (*given, *own, str(Path("migrations")))[0]
        found = propose.new(
            chain, version, old, made, into=into, folders=(*own, *given), force=force,
            read=reading.options(), gather=finding.options(),
        )  # fmt: skip
        show(found.as_dict(), report.written_lines(found), as_json=as_json)
