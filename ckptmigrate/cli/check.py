"""``ckptmigrate check``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from ckptmigrate import checking, convert, report

from .app import DIFFERENT, verb
from .options import Finding, Json, Like, Reading, Stepping
from .show import refusing, show


@verb
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="checkpoint files or folders")],
    *,
    stepping: Stepping,
    finding: Finding,
    reading: Reading,
    like: Like = None,
    epoch: Annotated[int | None, typer.Option("--epoch", help="take this one of a run")] = None,
    as_json: Json = False,
) -> None:
    """Say whether checkpoints are current: 0 all are, 1 one is behind, unknown, broken or, with --like, does not fit; for CI."""
    with refusing(as_json=as_json):  # what is broken at PATH is a finding; what is raised is of the call
        gather = dataclasses.replace(finding.options(), epoch=epoch)
        options = convert.Options(read=reading.options(), gather=gather, like=like, **stepping.options())
        found = [one for path in paths for one in checking.check(path, options)]
        shown = {"current": all(one.current for one in found), "checkpoints": [one.as_dict() for one in found]}
        show(shown, report.standing_lines(found), as_json=as_json)
        if not shown["current"]:
            raise typer.Exit(DIFFERENT)
