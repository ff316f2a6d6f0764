"""``ckptmigrate epochs``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ckptmigrate
from ckptmigrate import report

from .app import DIFFERENT, verb
from .options import Json
from .show import refusing, show


@verb
def epochs(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="a folder with runs", show_default=False)],
    *,
    as_json: Json = False,
) -> None:
    """List the epochs of the runs in a folder: which are whole, what is not there, the newest to resume from (1: a run has none)."""
    with refusing(as_json=as_json, code=DIFFERENT):
        found = ckptmigrate.epochs(path)
        shown = {"path": str(path), "runs": [run.as_dict() for run in found]}
        show(shown, report.run_lines(found), as_json=as_json)
        if any(run.newest is None for run in found):
            raise typer.Exit(DIFFERENT)
