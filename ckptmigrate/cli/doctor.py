"""``ckptmigrate doctor``."""

from __future__ import annotations

import typer

import ckptmigrate
from ckptmigrate import report

from .app import DIFFERENT, verb
from .options import Json, PathArgument
from .show import refusing, show


@verb
def doctor(path: PathArgument, *, as_json: Json = False) -> None:
    """Say what the framework would say of a file or run, or silently do wrong, why, and what mends it (1: there is a symptom)."""
    with refusing(as_json=as_json, code=DIFFERENT):
        found = ckptmigrate.doctor(path)
        shown = {"path": str(path), "symptoms": [finding.as_dict() for finding in found]}
        show(shown, report.finding_lines(found) if found else iter(["no symptom"]), as_json=as_json)
        if found:
            raise typer.Exit(DIFFERENT)
