"""From a path to a written checkpoint: the pipeline of DESIGN section 7, one function.

detect → read → gather → locate → plan → apply → scatter → lay out ─┬─ dry run ends here, with every problem
└─ write → reopen, compare → publish
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import casts, chains, engine, like, registry, space, store
from .dtypes import BY_NAME
from .errors import (
    ChangedError,
    CheckpointError,
    CkptError,
    PlanError,
    UsageError,
    VerificationError,
    reading,
)
from .files import Disk
from .files.sink import Sink
from .format import Blueprint, GatherOptions, ReadOptions, WriteOptions
from .operations import Drop, Rename
from .target import Target, choose

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .checkpoint import Checkpoint, Fate
    from .format import Caveat, Format, Parts
    from .operations import Operation
    from .tensor import Tensor

Progress = Callable[[int, int], None]
"""Told the bytes drawn so far, and the bytes in all."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may say of a conversion; every field is an option of ``ckptmigrate migrate`` (DESIGN section 9)."""

    to: str | None = None
    layout: Literal["keep", "standard"] | None = None
    chains: Mapping[str, str | None] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)  # what steps need and tensors do not carry
    migrations: tuple[str, ...] = ()
    projected: tuple[str, ...] = ()  # chains that the project's configuration names
    operations: tuple[Operation, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    like: Any = None  # the model that the result must fit: a path, "module:callable", a module, a mapping of names
    dtype: Literal["f32", "f16", "bf16", "keep"] | None = None
    ints: tuple[str, ...] = ()  # names of the model's tensors that hold integers and were stored as floats
    dry_run: bool = False
    in_place: bool = False
    force: bool = False
    verify: bool = True
    scratch: str | None = None
    read: ReadOptions = field(default_factory=ReadOptions)
    gather: GatherOptions = field(default_factory=GatherOptions)
    write: WriteOptions = field(default_factory=WriteOptions)

    @property
    def changes(self) -> bool:
        """Whether the call itself asks for another checkpoint than the file holds, whatever its chains say.

        An epoch, or what one counts, is asked of the checkpoint: choosing one that its files tell changes nothing.
        """
        cast_to = self.dtype not in {None, "keep"}
        chosen = (self.operations, self.rename, self.only, self.exclude, self.ints, self.gather.only, self.gather.drop)
        return (
            cast_to
            or any(chosen)
            or self.like is not None
            or self.gather.steps is not None
            or self.write != WriteOptions()
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What a conversion did, or would do: ``written`` False for a dry run and where nothing was pending."""

    source: str
    target: str | None
    format: str
    layout: str | None
    family: str
    written: bool
    verified: bool
    steps: tuple[str, ...]
    tensors: int
    nbytes: int
    files: Mapping[str, int]
    fates: tuple[Fate, ...]
    left_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    backup: str | None = None
    pending: bool = True  # False in place where the file is current already
    added: tuple[tuple[str, str], ...] = ()  # what comes from nothing in the source, and what made it

    def as_dict(self) -> dict[str, Any]:
        """Give the report as JSON can hold it."""
        return {
            "source": self.source,
            "target": self.target,
            "format": self.format,
            "layout": self.layout,
            "family": self.family,
            "written": self.written,
            "verified": self.verified,
            "steps": list(self.steps),
            "tensors": self.tensors,
            "nbytes": self.nbytes,
            "files": dict(self.files),
            "ledger": [
                {"source": f.source, "fate": f.what, "targets": list(f.targets), "reason": f.reason} for f in self.fates
            ],
            "added": [{"target": item, "reason": reason} for item, reason in self.added],
            "left_out": [{"path": path, "reason": reason} for path, reason in self.left_out],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "backup": self.backup,
            "pending": self.pending,
        }


def migrate(path: str | Path, out: str | Path | None, options: Options, progress: Progress | None = None) -> Report:
    """Convert and upgrade the checkpoint at ``path`` into ``out`` (None: in place); give what was done.

    Raises an error of the one tree and leaves nothing under ``out`` when anything is wrong; the source is never modified.
    """
    if options.in_place != (out is None):
        raise UsageError(
            "in place takes no OUT" if out is not None else "no OUT given", hint="name OUT, or say --in-place"
        )
    with Disk(options.scratch, keep=not options.dry_run) as disk, reading(str(path)):
        made = prepare(disk, path, out, options)
        if made.problems:
            raise PlanError(made.problems, path=str(path))
        report = report_of(made, str(path), options)
        if not made.nothing_pending:
            space.check(made.blueprint, made.target, disk)
        if options.dry_run or made.nothing_pending:
            return replace(report, warnings=(*(caveat.text for caveat in made.caveats), *report.warnings))
        settled = tuple(text for caveat in made.caveats if (text := caveat.settled()) is not None)
        report = replace(report, warnings=(*settled, *report.warnings))
        return write(disk, made, report, options, progress)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversion with everything done but the bytes: ``before`` are the model's tensors as they were read."""

    checkpoint: Checkpoint
    before: Mapping[str, Tensor]
    target: Target
    plan: chains.Plan
    problems: tuple[str, ...]
    scattered: Mapping[str, tuple[Format, Parts]]
    blueprint: Blueprint
    caveats: tuple[Caveat, ...] = ()
    nothing_pending: bool = False


def prepare(disk: Disk, path: str | Path, out: str | Path | None, options: Options) -> Prepared:
    """Open, plan, apply, scatter and lay out; give it with every problem. Raises what lets nothing be planned at all."""
    options = with_like(options)
    asked = store.asked(options.gather)
    checkpoint = store.open_checkpoint(path, options.read, asked, disk)
    if not (checkpoint.model or checkpoint.optimizers or checkpoint.schedulers):
        raise CheckpointError("holds no tensors")
    _check_call(checkpoint, options)
    if out is not None and disk.reads(out):
        raise UsageError("OUT is the checkpoint itself", hint="--in-place replaces it, and keeps a backup")
    offered = registry.family(checkpoint.family).caveats
    caveats = offered(checkpoint) if offered else []  # before a step takes away what they tell of
    before = dict(checkpoint.model)
    target = choose(checkpoint, Path(path), None if out is None else Path(out), options.to, options.layout)
    plan, problems = _upgrade(checkpoint, target, options)
    if asked != options.gather:
        store.select(checkpoint, options.gather.only, options.gather.drop)
        target = choose(checkpoint, Path(path), None if out is None else Path(out), options.to, options.layout)
    if options.gather.like is None:
        checkpoint.ledger.notes += like.unsaid(checkpoint, before)
    if not (checkpoint.model or checkpoint.optimizers or checkpoint.schedulers or problems):
        problems.append("nothing would be left of it")
    elif before and not checkpoint.model and not problems:
        problems.append("nothing would be left of the model")
    pending = plan.steps or not store.is_current(checkpoint) or options.changes or store.is_numbered(checkpoint)
    scattered, blueprint = lay_out(checkpoint, target, options.write, problems)
    return Prepared(
        checkpoint, before, target, plan, tuple(problems), scattered, blueprint, tuple(caveats),
        nothing_pending=options.in_place and not pending,
    )  # fmt: skip


def lay_out(
    checkpoint: Checkpoint, target: Target, options: WriteOptions, problems: list[str]
) -> tuple[Mapping[str, tuple[Format, Parts]], Blueprint]:
    """Give the parts of the target's files and their blueprint; what stands against it is added to ``problems``."""
    try:
        scattered = store.scatter(checkpoint, target.format, target.layout, options, target.name)
        blueprint = store.lay_out(scattered, options)
    except CkptError as error:
        if not problems:
            raise
        problems.append("; ".join([error.message, *error.hints]))  # what stands against the steps is told all the same
        return {}, Blueprint()
    problems += blueprint.problems
    if target.one_file:
        problems += store.fits_one_file(checkpoint, target.format, target.layout)
    problems += checkpoint.ledger.unexplained()
    return scattered, blueprint


def with_like(options: Options) -> Options:
    """Read the model that the result must fit; a Like that was read already stays as it is."""
    if options.like is None:
        return options
    wanted = like.load(options.like, options.read)
    return replace(options, like=wanted, gather=replace(options.gather, like=wanted))


def _check_call(checkpoint: Checkpoint, options: Options) -> None:
    """Refuse what the call says and what would mean nothing for this checkpoint, so that no slip passes in silence."""
    if options.in_place:
        for name, value in (("--to", options.to), ("--layout", options.layout != "keep" and options.layout)):
            if value:
                raise UsageError(f"{name} {value}: in place keeps format and layout", hint="name OUT")
    if options.gather.epoch_means is not None and checkpoint.progress.epoch is None:
        raise UsageError(
            f"--epoch-means {options.gather.epoch_means}: the checkpoint tells no epoch", hint="--epoch N numbers it"
        )
    chosen = options.gather.only or options.gather.drop
    if options.gather.scheduler is not None and not checkpoint.schedulers and not chosen:
        raise UsageError(
            f"--scheduler {options.gather.scheduler}: the checkpoint has no scheduler", hint="leave it out"
        )
    if options.gather.steps is not None and not store.took_steps(checkpoint) and not chosen:
        raise UsageError(
            f"--steps {options.gather.steps}: no optimizer of the checkpoint lacks its step count", hint="leave it out"
        )


def _upgrade(checkpoint: Checkpoint, target: Target, options: Options) -> tuple[chains.Plan, list[str]]:
    """Apply the pending steps, then what the call itself asks for; give the plan and its problems."""
    family = registry.family(checkpoint.family)
    catalog = chains.Catalog.find(options.migrations)
    ties = options.write.ties
    plan = chains.plan(
        checkpoint,
        catalog,
        named=options.chains,
        said=options.said,
        family=family,
        projected=options.projected,
        parameters=options.numbers,
        ties=ties,
    )
    problems = list(plan.problems)
    if not problems:
        problems += plan.apply(checkpoint, family)
    matchless = _matchless(checkpoint, options)
    operations = [
        *options.operations,
        *([Rename(dict(options.rename))] if options.rename else []),  # one value, so that two names can be swapped
        *_chosen(options),
    ]
    problems += matchless
    if not matchless:
        problems += casts.to_ints(checkpoint, options.ints)  # under the names that its patterns were looked for among
    if operations and not matchless:
        problems += engine.apply_operations(checkpoint, operations, family, origin="the command", ties=ties)
    if target.format.widens and options.dtype != "keep":
        casts.widen(checkpoint, model=options.dtype is None)
    if options.dtype not in {None, "keep"}:
        casts.cast_model(checkpoint, BY_NAME[str(options.dtype).upper()])
    if not problems:  # after what a record's precision asks for: the model has the last word
        problems += like.fit(checkpoint, family, options.gather, ties=ties, said=options.dtype)
    if target.format.widens and options.dtype is None and options.gather.like is None:
        casts.hint(checkpoint)
    return plan, problems


def _matchless(checkpoint: Checkpoint, options: Options) -> list[str]:
    """Give the patterns of the call that match no tensor of the model, by the option that said them."""
    said = [
        *(("--rename", old, f"{old}={new}") for old, new in options.rename),
        *(("--only", pattern, pattern) for pattern in options.only),
        *(("--exclude", pattern, pattern) for pattern in options.exclude),
        *(("--int", pattern, pattern) for pattern in options.ints),
    ]
    found = []
    for option, pattern, text in said:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise UsageError(
                f"{option} {text}: {error}", hint="a pattern is one of Python's re module and matches a whole name"
            ) from error
        if not any(map(compiled.fullmatch, checkpoint.model)):
            close = get_close_matches(pattern.replace("\\", ""), checkpoint.model, 3)
            hint = f"; close to it are {', '.join(close)}" if close else ""
            found.append(f"{option} {text} matches no tensor of the model{hint}")
    return found


def _chosen(options: Options) -> Sequence[Operation]:
    """Give the drops that ``--only`` and ``--exclude`` mean; patterns match whole names of the model."""
    drops: list[Operation] = [Drop(pattern, reason=f"--exclude {pattern}") for pattern in options.exclude]
    if options.only:
        kept = "|".join(f"(?:{pattern})" for pattern in options.only)
        drops.append(Drop(f"(?!(?:{kept})$).*", reason=f"not in --only {' '.join(options.only)}", optional=True))
    return drops


def report_of(made: Prepared, path: str, options: Options) -> Report:
    """Give the report of a conversion of which nothing is written yet."""
    checkpoint, target, plan, blueprint = made.checkpoint, made.target, made.plan, made.blueprint
    ledger = checkpoint.ledger
    return Report(
        source=path,
        target=str(target.path),
        format=target.format.name,
        layout=target.layout.name if target.layout else "keep",
        family=checkpoint.family,
        written=False,
        verified=False,
        steps=tuple(step.describe() for step in plan.steps),
        tensors=len(checkpoint.model),
        nbytes=sum(blueprint.sizes.values()),
        files=dict(blueprint.sizes),
        fates=tuple(ledger.rows()),
        left_out=(*((f.source, f.reason or "") for f in ledger.rows() if f.what == "left out"), *blueprint.left_out),
        notes=(*ledger.notes, *plan.notes, *plan.suggestions, *blueprint.notes),
        warnings=(*ledger.warnings, *plan.warnings, *(() if options.verify else ("not verified: --no-verify",))),
        pending=not made.nothing_pending,
        added=tuple(ledger.added.items()),
    )


def write(disk: Disk, made: Prepared, report: Report, options: Options, progress: Progress | None = None) -> Report:
    """Draw, compare, reopen, compare and publish; the report then says what was written."""
    scattered, blueprint, target = made.scattered, made.blueprint, made.target
    folder = not target.one_file
    force, original = options.force or options.in_place, (lambda _: False) if options.in_place else disk.reads
    with Sink(target.path, folder=folder, verify=options.verify, force=force, original=original) as sink:
        try:
            store.write(blueprint, sink, progress)
            sink.finish()
        except CkptError as error:  # a checksum that is wrong, say, because another process is writing the file anew
            _refuse_changed(disk, error)
            raise
        _compare(scattered, sink, folder=folder, ties=options.write.ties == "keep" and not options.write.bare)
        _refuse_changed(disk)
        backup = sink.publish(last=blueprint.last, backup=options.in_place)
    return replace(report, written=True, verified=options.verify, backup=None if backup is None else str(backup))


def _refuse_changed(disk: Disk, cause: CkptError | None = None) -> None:
    """Raise ChangedError where a source is no longer what it was when it was opened."""
    changed = disk.changed()
    if changed:
        also = f" ({', '.join(changed)})" if len(changed) > 1 else ""
        raise ChangedError(
            f"changed while it was read{also}", path=changed[0], hint="convert again when nobody writes to it"
        ) from cause


def _compare(scattered: Mapping[str, tuple[Format, Parts]], sink: Sink, *, folder: bool, ties: bool) -> None:
    """Reopen the scratch with each format's own reader and compare it with what was planned."""
    with Disk() as disk:
        root = disk.open(sink.path)
        for name, (chosen, planned) in scattered.items():
            source = store.child(root, name) if folder else root
            try:
                read = chosen.read(source, ReadOptions())
            except CkptError as error:
                raise VerificationError(f"what was written does not open again: {error.message}", path=name) from error
            found = store.compare_parts(planned, read, sink.outs[name if folder else ""], ties=ties)
            if found:
                raise VerificationError("; ".join(found[:5]), path=name, differences=found)
