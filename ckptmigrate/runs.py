"""Runs: the folders that hold the checkpoints of one training run, epoch by epoch, and which of them are whole.

    folder tree ── a layout of files with {epoch} claims a folder ──► Run ── its epochs ──► Epoch ── its files ──► File

An epoch is whole when each section that its layout has a file for is there, can be read, and all of them open as one checkpoint;
nothing is drawn. Which files there are, and which of several counts, is the store's business (``store.folder``), so that what is
called whole here is what a conversion takes. Scratch and backups are in no listing, hence never found.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import registry, store
from .errors import CheckpointError, CkptError, FormatError
from .files import Disk
from .format import GatherOptions, ReadOptions
from .store import folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .files import Source
    from .format import Layout

DEEP = 8  # folders within folders; runs lie two or three below what people name
LOOKED_AT = 1000  # files of a folder without a run that are looked at, to say what it is instead
_MODEL = "model"
_NEEDED = (_MODEL, "optimizers", "schedulers")  # what a resume takes, as far as the layout has a file for it
_FIRST = {"finished": 1, "next": 1, "last": 0}  # the number of the first epoch, by what numbers count


@dataclass(frozen=True, slots=True)
class File:
    """One file of an epoch, named from the run's folder; ``problem`` says why it cannot be read."""

    name: str
    section: str
    format: str | None
    current: bool
    problem: str | None

    @property
    def kind(self) -> str:
        """The section without its number or name."""
        return self.section.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch. ``missing``: sections without a file; ``problems``: why files that can be read make no checkpoint together."""

    number: int
    files: tuple[File, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()  # of this number, and no part of it: an older format's file of the same section

    @property
    def whole(self) -> bool:
        """Whether a run can be resumed from it."""
        return not (self.missing or self.problems or any(file.problem for file in self.files))

    @property
    def current(self) -> bool:
        """Whether today's framework opens all its files as they are."""
        return all(file.current for file in self.files)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its epochs by number, and the numbers that are not there, as pairs of first and last."""

    path: str
    layout: str
    epochs: tuple[Epoch, ...]
    gaps: tuple[tuple[int, int], ...]

    @property
    def newest(self) -> Epoch | None:
        """The newest epoch that can be resumed."""
        return next((epoch for epoch in reversed(self.epochs) if epoch.whole), None)

    def as_dict(self) -> dict[str, Any]:
        """Give the run as JSON can hold it."""
        return {
            "path": self.path,
            "layout": self.layout,
            "epochs": [_as_dict(epoch) for epoch in self.epochs],
            "gaps": [list(gap) for gap in self.gaps],
            "resumable": None if self.newest is None else self.newest.number,
        }


def _as_dict(epoch: Epoch) -> dict[str, Any]:
    return {
        "epoch": epoch.number,
        "whole": epoch.whole,
        "current": epoch.current,
        "files": [
            {
                "section": file.section,
                "name": file.name,
                "format": file.format,
                "current": file.current,
                "problem": file.problem,
            }
            for file in epoch.files
        ],
        "missing": list(epoch.missing),
        "problems": list(epoch.problems),
        "warnings": list(epoch.warnings),
        "beside": list(epoch.beside),
    }


def find(path: str | Path) -> list[Run]:
    """Give the runs at and below a folder, in the order of their names. CheckpointError says what it is where there is none."""
    with Disk() as disk:
        source = disk.open(path)
        if not source.is_folder():
            raise CheckpointError(
                "a file, and a run is a folder", path=str(path), hint="inspect shows what is in one checkpoint"
            )
        found = list(_walk(source, DEEP))
        if not found:
            raise _no_run(source)
        return [_run(below, layout, ReadOptions()) for below, layout in found]


def at(path: str | Path, read: ReadOptions, epoch: int | None = None) -> Run | None:
    """Give the run that a path itself is, with one epoch or all; None for what is none.

    For a conversion, which opens the files itself: none is read here, only told by its content.
    """
    with Disk() as disk:
        source = disk.open(path)
        layout = _layout(source) if source.is_folder() else None
        return None if layout is None else _run(source, layout, read, only=epoch, opened=False)


def records(source: Source) -> set[str]:
    """Give the names of all files of epochs in a run's folder, whatever is in them."""
    layout = _layout(source)
    return set() if layout is None else {entry.name for entry in _entries(source, layout)}


def knows_epochs(layout: str | None) -> bool:
    """Say whether the files of a layout are named by epoch, so that several lie in one folder."""
    own = any(known.name == layout and _has_epochs(known) for known in registry.layouts())
    return own or any(known.name == layout for known in _with_epochs())


def _has_epochs(layout: Layout) -> bool:
    return any("{epoch}" in pattern for pattern in layout.files.values())


def _walk(source: Source, deep: int) -> Iterator[tuple[Source, Layout]]:
    """Give the folders that are runs, each with its layout; what lies below a run belongs to it."""
    layout = _layout(source)
    if layout is not None:
        yield source, layout
        return
    for name in source.children() if deep else ():
        try:
            below = source.child(name)
        except CkptError:  # a link out of the tree, a pipe, what may not be opened: no run that could be read
            continue
        if below.is_folder():
            yield from _walk(below, deep - 1)


def _with_epochs() -> list[Layout]:
    layouts = (*registry.layouts(), *registry.plugin_layouts().loaded.values())
    return [layout for layout in layouts if _has_epochs(layout)]


def _layout(source: Source) -> Layout | None:
    """Give the layout that claims a folder, or whose further files are there though those it is recognised by are gone."""
    try:
        claimed = folder.claims(source, None)
    except FormatError:  # the first of them is recognised, and refused by name
        claimed = None
    if claimed is not None:
        return claimed if _has_epochs(claimed) else None
    return next((layout for layout in _with_epochs() if _remains(source, layout)), None)


def _remains(source: Source, layout: Layout) -> bool:
    families = set()
    for entry in _entries(source, layout):
        try:
            families.add(store.detect(store.child(source, entry.name)).format.family)
        except CkptError:
            continue
    return bool(families) and families <= {layout.family, None}


def _entries(source: Source, layout: Layout) -> list[folder.Entry]:
    """Give the files of epochs that the layout itself has a name for."""
    found, _ = folder.entries(source, layout)
    return [e for e in found if e.epoch is not None and e.section.partition(".")[0] in layout.files]


def _run(source: Source, layout: Layout, read: ReadOptions, *, only: int | None = None, opened: bool = True) -> Run:
    by_epoch: dict[int, list[folder.Entry]] = {}
    for entry in _entries(source, layout):
        by_epoch.setdefault(entry.epoch or 0, []).append(entry)
    numbers = sorted(by_epoch)
    epochs = [
        _epoch(source.name, layout, number, by_epoch[number], read, opened=opened)
        for number in numbers
        if only in {None, number}
    ]
    return Run(source.name, layout.name, tuple(epochs), tuple(_gaps(numbers, layout)) if numbers else ())


def _gaps(numbers: Sequence[int], layout: Layout) -> Iterator[tuple[int, int]]:
    counts = layout.epoch_counts
    expected = _FIRST.get(counts, numbers[0]) if isinstance(counts, str) else numbers[0]
    for number in numbers:
        if number > expected:
            yield expected, number - 1
        expected = number + 1


def _epoch(
    path: str, layout: Layout, number: int, entries: Sequence[folder.Entry], read: ReadOptions, *, opened: bool
) -> Epoch:
    """Open one epoch; where it does not open, each of its files by itself tells why."""
    with Disk() as disk:
        source = disk.open(path)
        names = _counting(source, layout, number, entries)
        refused, warnings = _opened(path, layout, number, read, disk) if opened else (None, ())
        files = tuple(
            _file(store.child(source, name), name, section, None if refused is None else read)
            for section, name in names.items()
        )
    kinds = {file.kind for file in files}
    missing = tuple(section for section in _NEEDED if section in layout.files and section not in kinds)
    blamed = _MODEL in missing or any(file.problem for file in files)
    return Epoch(
        number,
        files,
        missing,
        problems=() if refused is None or blamed else (refused.message,),
        warnings=warnings,
        beside=tuple(sorted({entry.name for entry in entries} - set(names.values()))),
    )


def _opened(
    path: str, layout: Layout, number: int, read: ReadOptions, disk: Disk
) -> tuple[CkptError | None, tuple[str, ...]]:
    """Give why an epoch does not open as one checkpoint, or what is to be said of it where it does."""
    try:
        options = GatherOptions(layout=layout.name, epoch=number)
        return None, tuple(store.open_checkpoint(path, read, options, disk).ledger.warnings)
    except CkptError as error:
        return error, ()


def _counting(source: Source, layout: Layout, number: int, entries: Sequence[folder.Entry]) -> dict[str, str]:
    """Give the file of each section: of several the one that a conversion takes; one that no format claims where it is alone."""
    try:
        taken = {section: name for name, section in folder.choose(source, layout, number).files.items()}
    except CkptError:
        taken = {}
    names: dict[str, str] = {}
    order = list(layout.files)
    for entry in sorted(entries, key=lambda entry: (order.index(entry.section.partition(".")[0]), entry.name)):
        names.setdefault(entry.section, taken.get(entry.section, entry.name))
    return names


def _file(source: Source, name: str, section: str, read: ReadOptions | None) -> File:
    match = None
    try:
        match = store.detect(source)
        parts = None if read is None else store.read(source, read, match)
        if parts is not None and section == _MODEL and parts.family:
            told = registry.family(parts.family).section(parts)  # any set of tensors would do as a model
            if told not in {None, _MODEL}:
                raise CheckpointError(f"is the record of {told}, not of a model")
    except CkptError as error:
        known = None if match is None else match.format.name
        return File(name, section, known, current=match is not None and match.current, problem=error.message)
    return File(name, section, match.format.name, current=match.current, problem=None)


def _no_run(source: Source) -> CheckpointError:
    """Say what a folder without a run is instead."""
    found: Counter[str] = Counter()
    for name in source.children()[:LOOKED_AT]:
        try:
            below = source.child(name)
            if not below.is_folder():
                found[store.detect(below).format.name] += 1
        except CkptError:
            continue
    if found:
        counted = ", ".join(f"{number} {name}" for name, number in sorted(found.items()))
        return CheckpointError(
            f"no run is there: its checkpoints ({counted}) are not named by epoch as a layout knows it",
            path=source.name,
            hint="a folder of such files is no run yet; inspect and migrate take each of them by itself",
        )
    folders = {p.rpartition("/")[0] for layout in _with_epochs() for p in layout.files.values()}
    empty = sorted(folders & set(source.children()))
    if empty:
        return CheckpointError(
            f"holds no epoch: nothing in {', '.join(empty)} is a file of one",
            path=source.name,
            hint="retention may have kept none",
        )
    return CheckpointError(
        "no run is there",
        path=source.name,
        hint="ckptmigrate layouts lists what is known; a run has the files of its epochs in it",
    )
