"""Options that several verbs take, as bundles of fields, and the texts that are turned into what the Python face takes."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ckptmigrate import chains, convert, store
from ckptmigrate.errors import UsageError
from ckptmigrate.files import Disk
from ckptmigrate.format import GatherOptions, ReadOptions, WriteOptions

PathArgument = Annotated[Path, typer.Argument(help="a checkpoint file or folder", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="machine-readable output")]
Migrations = Annotated[list[Path] | None, typer.Option("--migrations", metavar="DIR", help="a folder of migrators")]
Like = Annotated[
    str | None, typer.Option("--like", metavar="FILE|module:callable", help="the model that the result must fit")
]


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read."""

    dequantize: Annotated[bool, typer.Option("--dequantize", help="turn quantised tensors into F32")] = False
    densify: Annotated[bool, typer.Option("--densify", help="turn sparse tensors into dense ones")] = False
    inert_calls: Annotated[
        bool, typer.Option("--inert-calls", help="leave out calls that nobody knows instead of refusing the file")
    ] = False
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema", metavar="FILE", help="names for a record without them: JSON, or a file of the same model"
        ),
    ] = None

    def options(self) -> ReadOptions:
        """Give them as the Python face takes them; the schema is read here."""
        options = ReadOptions(dequantize=self.dequantize, densify=self.densify, inert_calls=self.inert_calls)
        if self.schema is None:
            return options
        with Disk() as disk:
            return dataclasses.replace(options, schema=store.schema(disk.open(self.schema), options))


@dataclass(frozen=True, slots=True)
class Finding:
    """Where the sections of a checkpoint lie, and what a record of one does not tell."""

    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part", metavar="NAME=FILE", help="a model, optimizer or scheduler that lies in a file of its own"
        ),
    ] = None
    section: Annotated[
        list[str] | None,
        typer.Option("--section", metavar="NAME=PATH", help="where a section lies: model=path.to.it"),
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", metavar="KIND", help="of what kind it is, where its record does not tell"),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", help="how many an optimizer has made, where its record does not tell"),
    ] = None

    def options(self) -> GatherOptions:
        """Give them as the Python face takes them."""
        return GatherOptions(
            parts=dict(pairs("--part", self.part)),
            sections=dict(pairs("--section", self.section)),  # read against the keys that are there
            scheduler=self.scheduler,
            steps=self.steps,
        )


@dataclass(frozen=True, slots=True)
class Choosing:
    """What is taken of a checkpoint, and what its parameters and epochs are called."""

    sections: Annotated[
        list[str] | None, typer.Option("--sections", metavar="NAMES", help="take these sections only")
    ] = None
    drop: Annotated[list[str] | None, typer.Option("--drop", metavar="SECTION", help="leave a section out")] = None
    only: Annotated[list[str] | None, typer.Option("--only", metavar="PATTERN", help="take these tensors only")] = None
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="leave these tensors out")
    ] = None
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="rename tensors; OLD is a pattern")
    ] = None
    no_names: Annotated[
        bool, typer.Option("--no-names", help="do not assume that groups were given in model order")
    ] = False
    params: Annotated[
        Path | None, typer.Option("--params", metavar="FILE", help="JSON: one list of names per optimizer group")
    ] = None
    epoch: Annotated[
        int | None, typer.Option("--epoch", help="take this one of a run, or number a source that has none")
    ] = None
    epoch_means: Annotated[str | None, typer.Option("--epoch-means", metavar="finished|last|next")] = None

    def options(self, finding: Finding) -> GatherOptions:
        """Give them, with where things lie, as the Python face takes them."""
        return dataclasses.replace(
            finding.options(),
            only=tuple(name for names in self.sections or () for name in names.split(",")),
            drop=tuple(self.drop or ()),
            names=not self.no_names,
            params=None if self.params is None else _params(self.params),
            epoch=self.epoch,
            epoch_means=choice("--epoch-means", self.epoch_means, ("finished", "last", "next")),
        )


@dataclass(frozen=True, slots=True)
class Stepping:
    """Which steps are taken: chains, where they lie, where the checkpoint stands in them."""

    chain: Annotated[
        list[str] | None, typer.Option("--chain", metavar="NAME[=VERSION]", help="apply a named chain")
    ] = None
    said: Annotated[
        list[str] | None, typer.Option("--from", metavar="NAME=VERSION", help="where the checkpoint stands")
    ] = None
    numbers: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="a number that a step needs and the tensors do not carry"),
    ] = None
    migrations: Migrations = None

    def options(self) -> dict[str, Any]:
        """Give them as fields of ``convert.Options``, with what the project of the working directory says."""
        own = project()
        return {
            "numbers": {name: number(f"--set {name}", text) for name, text in pairs("--set", self.numbers)},
            "chains": {name: version or None for name, version in pairs("--chain", self.chain, optional=True)},
            "said": dict(pairs("--from", self.said)),
            "migrations": (*own.migrations, *map(str, self.migrations or ())),
            "projected": own.chains,
        }


@dataclass(frozen=True, slots=True)
class Converting:
    """Into what a checkpoint is made: format, layout, dtypes, ties, a stamp or none."""

    to: Annotated[str | None, typer.Option("--to", metavar="FORMAT", help="a format's or a family's name")] = None
    layout: Annotated[str | None, typer.Option("--layout", metavar="keep|standard")] = None
    like: Like = None
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="f32|f16|bf16|keep", help="cast floating tensors of the model")
    ] = None
    ints: Annotated[
        list[str] | None,
        typer.Option("--int", metavar="PATTERN", help="tensors of integers that were stored as floats"),
    ] = None
    ties: Annotated[str, typer.Option("--ties", metavar="keep|duplicate")] = "keep"
    bare: Annotated[bool, typer.Option("--bare", help="no stamp: just what the framework itself would write")] = False
    scratch: Annotated[
        Path | None, typer.Option("--scratch", metavar="DIR", help="where decoded bytes wait (default TMPDIR)")
    ] = None
    in_place: Annotated[bool, typer.Option("--in-place", help="replace PATH, keeping a backup beside it")] = False
    force: Annotated[bool, typer.Option("--force", help="replace OUT if it exists")] = False
    no_verify: Annotated[bool, typer.Option("--no-verify", help="do not read back and compare")] = False

    def options(
        self, reading: Reading, finding: Finding, choosing: Choosing, stepping: Stepping, *, dry_run: bool
    ) -> convert.Options:
        """Give all that a conversion takes."""
        return convert.Options(
            to=self.to,
            layout=choice("--layout", self.layout, ("keep", "standard")),
            rename=tuple(pairs("--rename", choosing.rename)),
            only=tuple(choosing.only or ()),
            exclude=tuple(choosing.exclude or ()),
            like=self.like,
            dtype=choice("--dtype", self.dtype, ("f32", "f16", "bf16", "keep")),
            ints=tuple(self.ints or ()),
            dry_run=dry_run,
            in_place=self.in_place,
            force=self.force,
            verify=not self.no_verify,
            scratch=None if self.scratch is None else str(self.scratch),
            read=reading.options(),
            gather=choosing.options(finding),
            write=WriteOptions(bare=self.bare, ties=choice("--ties", self.ties, ("keep", "duplicate"))),
            **stepping.options(),
        )


def pairs(option: str, texts: list[str] | None, *, optional: bool = False) -> list[tuple[str, str]]:
    """Give what stands before and after the first ``=`` of each text.

    UsageError where there is none and it is not ``optional``, and where two texts say two things of one name.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not (equals or optional):
            raise UsageError(f"{option} {text}: expected NAME=VALUE")
        if found.setdefault(name, value) != value:
            raise UsageError(f"{option} {name}: said twice, {found[name]!r} and {value!r}")
    return list(found.items())


def number(option: str, text: str) -> int | float:
    """Give the number that a text is, whole where it can be; UsageError for any other text, and for what is not finite."""
    for kind in (int, float):
        try:
            found = kind(text)
            if math.isfinite(found):
                return found
        except (ValueError, OverflowError):
            continue
    raise UsageError(f"{option}={text}: expected a number")


def choice(option: str, text: str | None, choices: tuple[str, ...]) -> Any:
    """Give the text, one of the choices or None; UsageError for any other."""
    if text is not None and text not in choices:
        raise UsageError(f"{option} {text}: expected {' or '.join(choices)}")
    return text


def project() -> chains.Project:
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
