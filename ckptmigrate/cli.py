"""The command line: one function a verb. Prints, and turns errors into one readable message and an exit code.

Exit codes: 0 done, nothing pending, equal, a dry run without problems; 1 (verify, epochs, doctor) different, broken, a symptom; 2 wrong usage;
3 refused or failed, and a dry run with problems; 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import ckptmigrate

from . import batch, chains, convert, registry, report, store
from .errors import CkptError, UsageError
from .files import Disk
from .files.sink import Sink
from .format import GatherOptions, ReadOptions, WriteOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DONE, DIFFERENT, USAGE, REFUSED, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 128 + signal.SIGINT, 128 + signal.SIGTERM
LONG_WORK = 256 * 1000 * 1000  # bytes; below this a bar would flash by

app = typer.Typer(
    name="ckptmigrate",
    help="Reads old checkpoints, upgrades them and writes current ones. Never runs code from a file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

PathArgument = Annotated[Path, typer.Argument(help="a checkpoint file or folder", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="machine-readable output")]
Dequantize = Annotated[bool, typer.Option("--dequantize", help="turn quantised tensors into F32")]
Densify = Annotated[bool, typer.Option("--densify", help="turn sparse tensors into dense ones")]
InertCalls = Annotated[
    bool, typer.Option("--inert-calls", help="leave out calls that nobody knows instead of refusing the file")
]
Section = Annotated[
    list[str] | None, typer.Option("--section", metavar="NAME=PATH", help="where a section lies: model=path.to.it")
]
Part = Annotated[
    list[str] | None,
    typer.Option("--part", metavar="NAME=FILE", help="a model, optimizer or scheduler that lies in a file of its own"),
]
Schema = Annotated[
    Path | None,
    typer.Option("--schema", metavar="FILE", help="names for a record without them: JSON, or a file of the same model"),
]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", metavar="KIND", help="of what kind it is, where its record does not tell")
]


def _version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"ckptmigrate {ckptmigrate.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=lambda value: _version(asked=value), is_eager=True)
    ] = False,
) -> None:
    """Read, upgrade and write checkpoints."""


@app.command()
def inspect(
    path: PathArgument,
    *,
    digests: Annotated[bool, typer.Option("--digests", help="SHA-256 of every tensor's elements")] = False,
    part: Part = None,
    section: Section = None,
    scheduler: Scheduler = None,
    dequantize: Dequantize = False,
    densify: Densify = False,
    inert_calls: InertCalls = False,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Show what is in a checkpoint: format, layout, versions, sections, tensors, what is left out."""
    with _refusing(as_json=as_json):
        found = ckptmigrate.inspect(
            path,
            digests=digests,
            read=_read_options(schema, dequantize=dequantize, densify=densify, inert_calls=inert_calls),
            gather=GatherOptions(
                parts=dict(_pairs("--part", part)),
                sections=dict(_pairs("--section", section)),
                scheduler=scheduler,
            ),
        )
        _show(found, report.inspection_lines(found), as_json=as_json)


@app.command()
def migrate(
    path: PathArgument,
    out: Annotated[
        Path | None, typer.Argument(help="a file or folder that does not exist yet", show_default=False)
    ] = None,
    *,
    to: Annotated[str | None, typer.Option("--to", metavar="FORMAT", help="a format's or a family's name")] = None,
    layout: Annotated[str | None, typer.Option("--layout", metavar="keep|standard")] = None,
    chain: Annotated[
        list[str] | None, typer.Option("--chain", metavar="NAME[=VERSION]", help="apply a named chain")
    ] = None,
    said: Annotated[
        list[str] | None, typer.Option("--from", metavar="NAME=VERSION", help="where the checkpoint stands")
    ] = None,
    migrations: Annotated[
        list[Path] | None, typer.Option("--migrations", metavar="DIR", help="a folder of migrators")
    ] = None,
    part: Part = None,
    section: Section = None,
    sections: Annotated[
        list[str] | None, typer.Option("--sections", metavar="NAMES", help="take these sections only")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option("--drop", metavar="SECTION", help="leave a section out")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="PATTERN", help="take these tensors only")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="leave these tensors out")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="rename tensors; OLD is a pattern")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="f32|f16|bf16|keep", help="cast floating tensors of the model")
    ] = None,
    ints: Annotated[
        list[str] | None,
        typer.Option("--int", metavar="PATTERN", help="tensors of integers that were stored as floats"),
    ] = None,
    ties: Annotated[str, typer.Option("--ties", metavar="keep|duplicate")] = "keep",
    dequantize: Dequantize = False,
    densify: Densify = False,
    inert_calls: InertCalls = False,
    schema: Schema = None,
    scheduler: Scheduler = None,
    no_names: Annotated[
        bool, typer.Option("--no-names", help="do not assume that groups were given in model order")
    ] = False,
    params: Annotated[
        Path | None, typer.Option("--params", metavar="FILE", help="JSON: one list of names per optimizer group")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option("--epoch", help="take this one of a run, or number a source that has none")
    ] = None,
    epoch_means: Annotated[str | None, typer.Option("--epoch-means", metavar="finished|last|next")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check everything but the bytes; write nothing")] = False,
    in_place: Annotated[bool, typer.Option("--in-place", help="replace PATH, keeping a backup beside it")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace OUT if it exists")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="do not read back and compare")] = False,
    bare: Annotated[bool, typer.Option("--bare", help="no stamp: just what the framework itself would write")] = False,
    scratch: Annotated[
        Path | None, typer.Option("--scratch", metavar="DIR", help="where decoded bytes wait (default TMPDIR)")
    ] = None,
    report_file: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="write the report, as JSON, into a new file")
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert and upgrade PATH into OUT. The original is never touched; OUT is whole or absent."""
    with _refusing(as_json=as_json):
        own = _project()
        options = convert.Options(
            to=to,
            layout=_choice("--layout", layout, ("keep", "standard")),
            chains={name: version or None for name, version in _pairs("--chain", chain, optional=True)},
            said=dict(_pairs("--from", said)),
            migrations=(*own.migrations, *map(str, migrations or ())),
            projected=own.chains,
            rename=tuple(_pairs("--rename", rename)),
            only=tuple(only or ()),
            exclude=tuple(exclude or ()),
            dtype=_choice("--dtype", dtype, ("f32", "f16", "bf16", "keep")),
            ints=tuple(ints or ()),
            dry_run=dry_run,
            in_place=in_place,
            force=force,
            verify=not no_verify,
            scratch=None if scratch is None else str(scratch),
            read=_read_options(schema, dequantize=dequantize, densify=densify, inert_calls=inert_calls),
            gather=GatherOptions(
                parts=dict(_pairs("--part", part)),
                sections=dict(_pairs("--section", section)),  # read against the keys that are there
                only=tuple(name for names in sections or () for name in names.split(",")),
                drop=tuple(drop or ()),
                names=not no_names,
                params=None if params is None else _params(params),
                epoch=epoch,
                epoch_means=_choice("--epoch-means", epoch_means, ("finished", "last", "next")),
                scheduler=scheduler,
            ),
            write=WriteOptions(bare=bare, ties=_choice("--ties", ties, ("keep", "duplicate"))),
        )
        with _reporting(report_file, out, force=force) as write_report, _progress() as progress:
            done = batch.migrate(path, out, options, progress)
            write_report(done.as_dict())
        _show_migrated(done, as_json=as_json)


@app.command()
def verify(
    a: Annotated[Path, typer.Argument(metavar="A", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", show_default=False)],
    *,
    dequantize: Dequantize = False,
    densify: Densify = False,
    inert_calls: InertCalls = False,
    schema: Schema = None,
    as_json: Json = False,
) -> None:
    """Say whether two checkpoints hold the same tensors and values, whatever their formats: 0 equal, 1 different or broken."""
    with _refusing(as_json=as_json, code=DIFFERENT):
        read = _read_options(schema, dequantize=dequantize, densify=densify, inert_calls=inert_calls)
        found = ckptmigrate.verify(a, b, read=read)
        shown = {"equal": not found, "differences": [{"item": d.item, "what": d.what} for d in found]}
        _show(shown, report.difference_lines(found) if found else iter(["equal"]), as_json=as_json)
        if found:
            raise typer.Exit(DIFFERENT)


@app.command()
def epochs(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="a folder with runs", show_default=False)],
    *,
    as_json: Json = False,
) -> None:
    """List the epochs of the runs in a folder: which are whole, what is not there, the newest to resume from (1: a run has none)."""
    with _refusing(as_json=as_json, code=DIFFERENT):
        found = ckptmigrate.epochs(path)
        shown = {"path": str(path), "runs": [run.as_dict() for run in found]}
        _show(shown, report.run_lines(found), as_json=as_json)
        if any(run.newest is None for run in found):
            raise typer.Exit(DIFFERENT)


@app.command()
def doctor(path: PathArgument, *, as_json: Json = False) -> None:
    """Say what the framework would say of a file or run, or silently do wrong, why, and what mends it (1: there is a symptom)."""
    with _refusing(as_json=as_json, code=DIFFERENT):
        found = ckptmigrate.doctor(path)
        shown = {"path": str(path), "symptoms": [finding.as_dict() for finding in found]}
        _show(shown, report.finding_lines(found) if found else iter(["no symptom"]), as_json=as_json)
        if found:
            raise typer.Exit(DIFFERENT)


@app.command()
def formats(*, as_json: Json = False) -> None:
    """List the formats that are installed, what each does, and from where it comes."""
    _list("formats", as_json=as_json)


@app.command()
def layouts(*, as_json: Json = False) -> None:
    """List the layouts that are installed, and from where each comes."""
    _list("layouts", as_json=as_json)


def _list(kind: str, *, as_json: bool) -> None:
    with _refusing(as_json=as_json):
        rows = [row for row in registry.installed() if row.kind == kind]
        width = max((len(row.name) for row in rows), default=0)
        lines = (f"{row.name:{width}}  {row.error or row.about}  [{row.where}]" for row in rows)
        _show([dataclasses.asdict(row) for row in rows], lines, as_json=as_json)


def _show_migrated(done: convert.Report | batch.RunReport, *, as_json: bool) -> None:
    """Show what became of a checkpoint, or of the epochs of a run, of which those that were refused fail the call."""
    if isinstance(done, convert.Report):
        _show(done.as_dict(), report.report_lines(done), as_json=as_json)
        return
    _show(done.as_dict(), report.run_report_lines(done), as_json=as_json)
    if done.refused:
        raise typer.Exit(REFUSED)


def _show(data: Any, lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(data, allow_nan=False))
        return
    for line in lines:
        typer.echo(report.printable(line))


@contextmanager
def _refusing(*, as_json: bool, code: int = REFUSED) -> Iterator[None]:
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
def _reporting(path: Path | None, out: Path | None, *, force: bool) -> Iterator[Callable[[Any], None]]:
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
def _progress() -> Iterator[Callable[[int, int], None] | None]:
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


def _pairs(option: str, texts: list[str] | None, *, optional: bool = False) -> list[tuple[str, str]]:
    pairs = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not (equals or optional):
            raise UsageError(f"{option} {text}: expected NAME=VALUE")
        pairs.append((name, value))
    return pairs


def _choice(option: str, text: str | None, choices: tuple[str, ...]) -> Any:
    if text is not None and text not in choices:
        raise UsageError(f"{option} {text}: expected {' or '.join(choices)}")
    return text


def _read_options(schema: Path | None, *, dequantize: bool, densify: bool, inert_calls: bool) -> ReadOptions:
    options = ReadOptions(dequantize=dequantize, densify=densify, inert_calls=inert_calls)
    if schema is None:
        return options
    with Disk() as disk:
        return dataclasses.replace(options, schema=store.schema(disk.open(schema), options))


def _project() -> chains.Project:
    """Give the ``[tool.ckptmigrate]`` of the working directory; what lies beside a checkpoint is never asked."""
    path = Path("pyproject.toml")
    return chains.project(path) if path.is_file() else chains.Project()


def _params(path: Path) -> tuple[tuple[str, ...], ...]:
    with Disk() as disk:
        source = disk.open(path)
        try:
            names = json.loads(source.read(0, source.size))
        except ValueError as error:
            raise UsageError(f"--params {path}: not JSON: {error}") from None
    lists = isinstance(names, list) and all(isinstance(group, list) for group in names)
    if not lists or not all(isinstance(name, str) for group in names for name in group):
        raise UsageError(f"--params {path}: expected one list of names per group")
    return tuple(tuple(group) for group in names)


def main() -> NoReturn:
    """Run the command line."""

    def terminate(*_: object) -> NoReturn:
        raise SystemExit(TERMINATED)  # unwinds, so that the scratch is removed

    signal.signal(signal.SIGTERM, terminate)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    raise SystemExit(DONE)
