"""``ckptmigrate diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ckptmigrate
from ckptmigrate import report

from .app import DIFFERENT, verb
from .options import Json, Reading
from .show import refusing, show


@verb
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", show_default=False)],
    *,
    reading: Reading,
    as_json: Json = False,
) -> None:
    """Show all that sets two checkpoints apart, renames that their contents prove included: 0 equal, 1 different or broken."""
    with refusing(as_json=as_json, code=DIFFERENT):
        found = ckptmigrate.diff(a, b, read=reading.options())
        shown = {"paths": {"a": str(a), "b": str(b)}, **found.as_dict()}
        show(shown, report.diff_lines(found, str(a), str(b)), as_json=as_json)
        if not found.equal:
            raise typer.Exit(DIFFERENT)
