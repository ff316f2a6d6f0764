"""``ckptmigrate plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptmigrate import planning, report

from .app import REFUSED, verb
from .options import Choosing, Converting, Finding, Json, PathArgument, Reading, Stepping
from .show import refusing, show


@verb
def plan(
    path: PathArgument,
    out: Annotated[
        Path | None, typer.Argument(help="what migrate would be given; its suffix tells the format", show_default=False)
    ] = None,
    *,
    stepping: Stepping,
    finding: Finding,
    choosing: Choosing,
    converting: Converting,
    reading: Reading,
    as_json: Json = False,
) -> None:
    """Show what migrate would do: steps, names before and after, bytes, memory, all problems (3: it could not). Writes nothing."""
    with refusing(as_json=as_json):
        options = converting.options(reading, finding, choosing, stepping, dry_run=True)
        found = planning.forecast(path, out, options)
        shown = [one.as_dict() for one in found]
        lines = (line for one in found for line in report.forecast_lines(one))
        show(shown[0] if len(shown) == 1 else {"source": str(path), "epochs": shown}, lines, as_json=as_json)
        if any(one.problems for one in found):
            raise typer.Exit(REFUSED)
