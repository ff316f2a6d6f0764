"""``ckptmigrate verify``."""

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
def verify(
    a: Annotated[Path, typer.Argument(metavar="A", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", show_default=False)],
    *,
    reading: Reading,
    as_json: Json = False,
) -> None:
    """Say whether two checkpoints hold the same tensors and values, whatever their formats: 0 equal, 1 different or broken."""
    with refusing(as_json=as_json, code=DIFFERENT):
        found = ckptmigrate.verify(a, b, read=reading.options())
        shown = {"equal": not found, "differences": [{"item": d.item, "what": d.what} for d in found]}
        show(shown, report.difference_lines(found) if found else iter(["equal"]), as_json=as_json)
        if found:
            raise typer.Exit(DIFFERENT)
