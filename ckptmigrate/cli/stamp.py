"""``ckptmigrate stamp``."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ckptmigrate import convert, report, stamping

from .app import verb
from .options import Finding, Json, Migrations, PathArgument, Reading, pairs, project
from .show import refusing, show


@verb
def stamp(
    path: PathArgument,
    versions: Annotated[
        list[str], typer.Argument(metavar="NAME=VERSION...", help="a chain, and where PATH stands in it")
    ],
    *,
    finding: Finding,
    reading: Reading,
    beside: Annotated[
        bool, typer.Option("--beside", help="leave PATH as it is, and write the stamp into a file beside it")
    ] = False,
    epoch: Annotated[int | None, typer.Option("--epoch", help="of a run, this one")] = None,
    migrations: Migrations = None,
    as_json: Json = False,
) -> None:
    """Say once where a checkpoint stands: inside it, with a backup, or in PATH.ckptmigrate.json where it cannot carry a stamp."""
    with refusing(as_json=as_json):
        options = convert.Options(
            migrations=(*project().migrations, *map(str, migrations or ())),
            read=reading.options(),
            gather=dataclasses.replace(finding.options(), epoch=epoch),
        )
        found = stamping.stamp(path, dict(pairs("NAME=VERSION", versions)), options, beside=beside)
        show(found.as_dict(), report.stamped_lines(found), as_json=as_json)
