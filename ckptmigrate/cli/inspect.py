"""``ckptmigrate inspect``."""

from __future__ import annotations

from typing import Annotated

import typer

import ckptmigrate
from ckptmigrate import report

from .app import verb
from .options import Finding, Json, PathArgument, Reading
from .show import refusing, show


@verb
def inspect(
    path: PathArgument,
    *,
    digests: Annotated[bool, typer.Option("--digests", help="SHA-256 of every tensor's elements")] = False,
    finding: Finding,
    reading: Reading,
    as_json: Json = False,
) -> None:
    """Show what is in a checkpoint: format, layout, versions, sections, tensors, what is left out."""
    with refusing(as_json=as_json):
        found = ckptmigrate.inspect(path, digests=digests, read=reading.options(), gather=finding.options())
        show(found, report.inspection_lines(found), as_json=as_json)
