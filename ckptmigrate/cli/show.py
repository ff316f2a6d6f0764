"""What every verb does with a result and with an error: lines or JSON, one readable message, an exit code, a bar."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from ckptmigrate import report
from ckptmigrate.errors import CkptError, UsageError
from ckptmigrate.files.sink import Sink

from .app import INTERRUPTED, REFUSED, USAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

LONG_WORK = 256 * 1000 * 1000  # bytes; below this a bar would flash by


def show(data: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result, as one JSON document or as lines."""
    if as_json:
        typer.echo(json.dumps(data, allow_nan=False))
        return
    for line in lines:
        typer.echo(report.printable(line))


@contextmanager
def refusing(*, as_json: bool, code: int = REFUSED) -> Iterator[None]:
    """Turn an error of the tree into its message and exit code; nothing else is caught, so that a bug shows itself."""
    try:
        yield
    except CkptError as error:
        if as_json:
            typer.echo(json.dumps(report.error_dict(error)))
        for line in report.error_lines(error):
            typer.echo(report.printable(line), err=True)
        raise typer.Exit(USAGE if isinstance(error, UsageError) else code) from None
    except KeyboardInterrupt:
        typer.echo("ckptmigrate: interrupted; nothing half-written is left", err=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def reporting(path: Path | None, out: Path | None, *, force: bool) -> Iterator[Callable[[Any], None]]:
    """Give what writes the report into its file, whole or not at all; a file that cannot be made is refused before any work."""
    if path is None:
        yield lambda _: None
        return
    if out is not None and path.resolve() == out.resolve():
        raise UsageError(f"--report {path}: that is OUT")
    with Sink(path, folder=False, force=force) as sink:

        def write(data: Any) -> None:
            sink.open().write(json.dumps(data, indent=1, allow_nan=False).encode() + b"\n")
            sink.publish()

        yield write


@contextmanager
def progress() -> Iterator[Callable[[int, int], None] | None]:
    """Give a bar with rate and time left, when a terminal is there; it appears only when the work is long."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = None

    def advance(done: int, total: int) -> None:
        nonlocal task
        if total < LONG_WORK:
            return
        if task is None:
            bar.start()
            task = bar.add_task("", total=total)
        bar.update(task, completed=done)

    try:
        yield advance
    finally:
        if task is not None:
            bar.stop()
