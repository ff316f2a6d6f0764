"""Several checkpoints in one call: the epochs of a run, one after the other, in this process.

    run ── for each epoch: complete? ── convert.migrate ──► scratch folder ── config and logs copied ── renamed to OUT

An epoch without its model or optimizer, or with one that cannot be read, is refused as a set and reported; the others go on. A new
OUT is whole or absent. Into one that is there (``force``), and in place, each epoch by itself is whole or absent. OUT mirrors the
source folder: what is no record is copied, old records are not.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import convert, registry, runs, store
from .errors import ChainError, CheckpointError, CkptError, FormatError, PlanError, TensorError, UsageError
from .files import Disk
from .files.sink import Sink
from .store.selection import is_wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .checkpoint import Fate
    from .files import Source
    from .runs import Epoch, Run

DEEP = 8  # folders within a run's folder
PIECE = 1 << 20  # bytes of a log that are held at once
PROGRESS = "progress"
_WHOLE = ("model", "optimizers")  # what an epoch is refused without; a scheduler may have no state, hence no file
_ITEM = (
    FormatError,
    CheckpointError,
    TensorError,
    ChainError,
)  # what is wrong with one epoch, not with the call or the disk


@dataclass(frozen=True, slots=True)
class RunReport:
    """What became of a run: a report for each epoch that was converted, the error of each that was refused, the files copied.

    What a report of one checkpoint is asked most, one of a run answers too: for all its epochs together.
    """

    source: str
    target: str
    reports: Mapping[int, convert.Report]
    refused: Mapping[int, CkptError]
    copied: tuple[str, ...] = ()
    not_copied: tuple[str, ...] = ()

    @property
    def written(self) -> bool:
        """Whether anything was written: False for a dry run and where nothing was pending."""
        return any(report.written for report in self.reports.values())

    @property
    def verified(self) -> bool:
        """Whether all that was written was verified."""
        return self.written and all(report.verified for report in self.reports.values() if report.written)

    @property
    def files(self) -> dict[str, int]:
        """The bytes of each file of each epoch that was converted."""
        return {name: size for report in self.reports.values() for name, size in report.files.items()}

    @property
    def fates(self) -> tuple[Fate, ...]:
        """What became of every leaf of the files, epoch by epoch."""
        return tuple(fate for report in self.reports.values() for fate in report.fates)

    @property
    def added(self) -> tuple[tuple[str, str], ...]:
        """What comes from nothing in the source, each as item and what made it."""
        return tuple(each for report in self.reports.values() for each in report.added)

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """What was left out, each as path and reason."""
        return tuple(each for report in self.reports.values() for each in report.left_out)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of each epoch."""
        return tuple(f"epoch {number}: {text}" for number, report in self.reports.items() for text in report.notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is to be heeded of each epoch, those that were refused first."""
        refused = [f"epoch {number}: refused: {error.message}" for number, error in self.refused.items()]
        told = [f"epoch {number}: {text}" for number, report in self.reports.items() for text in report.warnings]
        return (*refused, *told)

    def as_dict(self) -> dict[str, Any]:
        """Give the report as JSON can hold it."""
        return {
            "source": self.source,
            "target": self.target,
            "epochs": [{"epoch": number, **report.as_dict()} for number, report in self.reports.items()],
            "refused": [
                {"epoch": number, "message": error.message, "path": error.path, "hints": error.hints}
                for number, error in self.refused.items()
            ],
            "copied": list(self.copied),
            "not_copied": list(self.not_copied),
        }


def migrate(
    path: str | Path,
    out: str | Path | None,
    options: convert.Options,
    progress: convert.Progress | None = None,
) -> convert.Report | RunReport:
    """Convert the checkpoint at ``path``, with what lies around it where it is an epoch of a run; all epochs where none is said."""
    options = convert.with_like(options)  # once, whatever number of epochs there is
    run = None if _is_file(out) else runs.at(path, options.read, options.gather.epoch)
    if run is None or not run.epochs or not _takes_several(run, out, options):
        return convert.migrate(path, out, options, progress)
    if len(run.epochs) > 1:
        return migrate_run(run, out, options, progress)
    if out is None:
        return convert.migrate(path, out, _of(options, run.epochs[0]), progress)
    done = migrate_run(run, out, options, progress)
    (report,) = done.reports.values()
    around = [("copied", done.copied), ("not copied, as a record or unreadable", done.not_copied)]
    return replace(report, notes=(*report.notes, *(f"{what}: {', '.join(names)}" for what, names in around if names)))


def _is_file(out: str | Path | None) -> bool:
    return out is not None and any(str(out).lower().endswith(f.suffixes) for f in registry.formats() if f.suffixes)


def _takes_several(run: Run, out: str | Path | None, options: convert.Options) -> bool:
    """Say whether the target names its files by epoch, as a dry run of one tells; what it refuses is told for each of them."""
    probe = replace(_of(options, run.newest or run.epochs[-1]), dry_run=True)
    try:
        return runs.knows_epochs(convert.migrate(run.path, out, probe).layout)
    except _ITEM:
        return True


def _of(options: convert.Options, epoch: Epoch) -> convert.Options:
    """Give the options of one epoch. Its number is taken along whatever sections are, because its files are named after it."""
    only = (*options.gather.only, PROGRESS) if options.gather.only else ()
    return replace(options, gather=replace(options.gather, epoch=epoch.number, only=only))


def migrate_run(
    run: Run, out: str | Path | None, options: convert.Options, progress: convert.Progress | None = None
) -> RunReport:
    """Convert every epoch of a run that can be; PlanError with all reasons, and nothing under ``out``, where none can."""
    if PROGRESS in options.gather.drop:
        raise UsageError(f"--drop {PROGRESS}: the files of a run are named by it", hint="--epoch N takes one epoch")
    if options.gather.steps is not None and len(run.epochs) > 1:
        raise UsageError(
            f"--steps {options.gather.steps}: each epoch of a run has a count of its own",
            hint="--epoch N takes one epoch",
        )
    reports: dict[int, convert.Report] = {}
    refused: dict[int, CkptError] = {}
    with Disk() as disk, _place(disk, run, out, options) as (base, sink):
        for epoch in run.epochs:
            try:
                _check(epoch, run, options)
                one = replace(_of(options, epoch), force=options.force or sink is not None)
                report = _settled(epoch, run, options) or convert.migrate(run.path, base, one, progress)
                reports[epoch.number] = replace(report, target=str(out if out is not None else run.path))
            except _ITEM as error:
                refused[epoch.number] = error
        if not reports:
            raise _none(refused, run)
        copied, left = list[str](), list[str]()
        if out is not None:
            wanted = _beside(disk.open(run.path))
            for name, source in wanted:
                (left if source is None else copied).append(name)
            if not options.dry_run:
                _copy(wanted, sink, out, options)
        if sink is not None:
            sink.publish()
    target = str(out if out is not None else run.path)
    return RunReport(run.path, target, reports, refused, tuple(copied), tuple(left))


def _settled(epoch: Epoch, run: Run, options: convert.Options) -> convert.Report | None:
    """Give the report of an epoch for which in place nothing is to be done; None for any other."""
    if not (options.in_place and epoch.current) or options.changes or options.gather.epoch_means is not None:
        return None
    report = convert.migrate(run.path, None, replace(_of(options, epoch), dry_run=True))
    return None if report.steps else report


def _none(refused: Mapping[int, CkptError], run: Run) -> CkptError:
    """Give the refusal of every epoch as one, with each remedy once."""
    if len(refused) == 1:
        return next(iter(refused.values()))
    error = PlanError([f"epoch {number}: {each.message}" for number, each in refused.items()], path=run.path)
    for hint in dict.fromkeys(hint for each in refused.values() for hint in each.hints):
        error.add_note(hint)
    return error


def _check(epoch: Epoch, run: Run, options: convert.Options) -> None:
    """Refuse an epoch of which a section that is wanted, and that a resume cannot do without, is not there or cannot be read."""
    wanted = [section for section in _WHOLE if is_wanted(section, options.gather.only, options.gather.drop)]
    lost = [f"has no {section}" for section in epoch.missing if section in wanted]
    lost += [f"{file.name}: {file.problem}" for file in epoch.files if file.problem and file.kind in wanted]
    if lost:
        raise CheckpointError("; ".join(lost), path=run.path, hint=_what_there_is(epoch, wanted))


def _what_there_is(epoch: Epoch, wanted: Sequence[str]) -> str | None:
    """Give the option that takes what can be read of an epoch; None where that is nothing of what is wanted."""
    there = {file.kind for file in epoch.files if not file.problem}
    left = [section for section in wanted if section in there]
    return f"--sections {','.join(left)} takes what there is" if left else None


@contextmanager
def _place(
    disk: Disk, run: Run, out: str | Path | None, options: convert.Options
) -> Iterator[tuple[str | Path | None, Sink | None]]:
    """Give where epochs are written: scratch beside a new OUT, published as a whole, or the folder that is there."""
    disk.open(run.path)
    if out is None or options.dry_run:
        yield out, None
        return
    if disk.reads(out):
        raise UsageError("OUT is the run itself", hint="--in-place writes beside the files that are there")
    if options.force and _is_there(out):
        yield out, None
        return
    with Sink(out, folder=True, verify=options.verify, force=options.force) as sink:
        yield sink.path, sink


def _is_there(out: str | Path) -> bool:
    with Disk() as disk:
        try:
            return disk.open(out).is_folder()
        except CkptError:
            return False


def _beside(source: Source) -> list[tuple[str, Source | None]]:
    """Give the files of a run's folder that are no record, at any depth; None for one that is left: a record, what cannot be opened."""
    records = runs.records(source)
    found: list[tuple[str, Source | None]] = []
    stack: list[tuple[str, Source]] = [("", source)]
    while stack:
        at, place = stack.pop()
        for name in place.children():
            full = f"{at}{name}"
            if full in records:
                continue
            try:
                below = place.child(name)
                if below.is_folder():
                    if full.count("/") < DEEP:
                        stack.append((f"{full}/", below))
                    continue
            except CkptError:
                found.append((full, None))
                continue
            found.append((full, None if _is_record(below) else below))
    return sorted(found, key=lambda item: item[0])


def _is_record(source: Source) -> bool:
    try:
        return bool(store.detect(source))
    except FormatError as error:
        return "format" in error.data  # recognised, and refused by name


def _copy(
    wanted: list[tuple[str, Source | None]], sink: Sink | None, out: str | Path, options: convert.Options
) -> None:
    """Copy files as they are, into the scratch of a new folder or into the folder that is there."""
    if sink is not None:
        _fill(wanted, sink)
        return
    if any(source is not None for _, source in wanted):
        with Sink(out, folder=True, verify=options.verify, force=True) as own:
            _fill(wanted, own)
            own.publish()


def _fill(wanted: list[tuple[str, Source | None]], sink: Sink) -> None:
    for name, source in wanted:
        if source is None:
            continue
        made = sink.open(name)
        for start in range(0, source.size, PIECE):
            made.write(source.read(start, min(PIECE, source.size - start)))
        made.close()
