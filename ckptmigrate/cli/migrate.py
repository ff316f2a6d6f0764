"""``ckptmigrate migrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptmigrate import batch, convert, report

from .app import REFUSED, verb
from .options import Choosing, Converting, Finding, Json, PathArgument, Reading, Stepping
from .show import progress, refusing, reporting, show


@verb
def migrate(
    path: PathArgument,
    out: Annotated[
        Path | None, typer.Argument(help="a file or folder that does not exist yet", show_default=False)
    ] = None,
    *,
    stepping: Stepping,
    finding: Finding,
    choosing: Choosing,
    converting: Converting,
    reading: Reading,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check everything but the bytes; write nothing")] = False,
    report_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="write the report, as JSON, into a new file")
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert and upgrade PATH into OUT. The original is never touched; OUT is whole or absent."""
    with refusing(as_json=as_json):
        options = converting.options(reading, finding, choosing, stepping, dry_run=dry_run)
        with reporting(report_file, out, force=converting.force) as write_report, progress() as advance:
            done = batch.migrate(path, out, options, advance)
            write_report(done.as_dict())
        if isinstance(done, convert.Report):
            show(done.as_dict(), report.report_lines(done), as_json=as_json)
            return
        show(done.as_dict(), report.run_report_lines(done), as_json=as_json)
        if done.refused:
            raise typer.Exit(REFUSED)
