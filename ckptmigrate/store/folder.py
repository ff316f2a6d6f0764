"""Which layout claims a folder, and which file of it is which section.

    files={"model": "checkpoint/model-{epoch}", "optimizers": "checkpoint/optim-{epoch}", "twins": "checkpoint/{twin}-{epoch}"}

A pattern stands for a name without its suffix, which is the format's: content decides, and of several files of one section the one
in a current format counts. "{epoch}" is a number, "{twin}" a name; a further optimizer or scheduler has "-1", "-2", … behind it.
The folder that is named may be the one above "checkpoint", or "checkpoint" itself. Of several epochs the caller takes one.

Twins, and the tensors of values, of which a framework's own checkpointer knows nothing, lie beside the model as "{twin}-{epoch}" and
"state-{epoch}", where our record in one of its files says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptmigrate import registry
from ckptmigrate.errors import AmbiguousError, CheckpointError, UnknownFormatError

from .detection import detect
from .selection import untaken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptmigrate.files import Source
    from ckptmigrate.format import Layout, Match

_HOLES = {"epoch": r"(?P<epoch>\d{1,18})", "twin": r"(?P<twin>[^/]+?)"}
VALUES = "values"  # what a layout's table calls the file of the tensors of all values
_SEVERAL = ("optimizers", "schedulers")
_SUFFIX = r"(?:\.[A-Za-z0-9_.]+)?"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file that a layout knows: its name below the folder, its section, the epoch in its name."""

    name: str
    section: str
    epoch: int | None


@dataclass(slots=True)
class Chosen:
    """The files of one checkpoint, each with the format that claims it, and the names of those that are no part of it."""

    files: dict[str, str] = field(default_factory=dict)  # name -> section
    matches: dict[str, Match] = field(default_factory=dict)
    epoch: int | None = None
    others: list[str] = field(default_factory=list)
    untaken: dict[str, str] = field(default_factory=dict)  # name -> section, of what nobody wants: not even looked at


def patterns(layout: Layout) -> dict[str, str]:
    """Give the layout's table of files, with those for twins and for the tensors of values where it has none."""
    if "model" not in layout.files:
        return dict(layout.files)
    folder, slash, _ = layout.files["model"].rpartition("/")
    epoch = "-{epoch}" if "{epoch}" in layout.files["model"] else ""
    beside = {"twins": f"{folder}{slash}{{twin}}{epoch}", VALUES: f"{folder}{slash}state{epoch}"}
    return {**layout.files, **{section: text for section, text in beside.items() if section not in layout.files}}


def claims(source: Source, wanted: Layout | None) -> Layout | None:
    """Give the layout of files that claims a folder: of the family that wrote them, with most of its ``recognised_by`` there.

    Plugins are asked last.
    """
    if wanted is not None:
        return wanted if wanted.files else None
    for layouts in (registry.layouts(), registry.plugin_layouts().loaded.values()):
        found = [layout for layout in layouts if layout.files and layout.recognised_by and _claimed(source, layout)]
        most = max((len(layout.recognised_by) for layout in found), default=0)
        best = sorted(layout.name for layout in found if len(layout.recognised_by) == most)
        if len(best) > 1:
            raise AmbiguousError(
                f"layouts {' and '.join(best)} claim the folder", candidates=best, hint=f"--layout {best[0]}"
            )
        if best:
            return next(layout for layout in found if layout.name == best[0])
    return None


def _claimed(source: Source, layout: Layout) -> bool:
    for strip, names in _views(source, layout):
        known = [[n for n in names if _pattern(strip(p)).fullmatch(n)] for p in layout.recognised_by]
        if all(known):
            match = next((m for n in known[0] if (m := _match(child(source, n))) is not None), None)
            return match is None or layout.family in {None, match.format.family} or match.format.family is None
    return False


def _views(source: Source, layout: Layout) -> Iterable[tuple[Any, list[str]]]:
    """Give how patterns are read and the names they are compared with: whole, then as seen from within their folder."""
    folders = list(dict.fromkeys(p.rpartition("/")[0] for p in (*layout.files.values(), *layout.recognised_by)))
    names = source.children()
    below = [f"{f}/{n}" for f in folders if f for n in _listed(source, f, names)]
    yield str, [*names, *below]
    if any(folders):
        yield _last, names


def _last(pattern: str) -> str:
    return pattern.rpartition("/")[2]


def _listed(source: Source, folder: str, names: Sequence[str]) -> list[str]:
    first, _, rest = folder.partition("/")
    if first not in names or not (child := source.child(first)).is_folder():
        return []
    return _listed(child, rest, child.children()) if rest else child.children()


def child(source: Source, name: str) -> Source:
    """Give a file below a folder by its name from there: "checkpoint/model-3.bin"."""
    for piece in name.split("/"):
        source = source.child(piece)
    return source


def _pattern(text: str, section: str = "") -> re.Pattern[str]:
    pieces = re.split(r"\{(\w+)\}", text)
    body = "".join(_HOLES.get(piece, "") if n % 2 else re.escape(piece) for n, piece in enumerate(pieces))
    several = r"(?:-(?P<number>[1-9]\d{0,3}))?" if section in _SEVERAL else ""
    return re.compile(body + several + _SUFFIX)


def entries(source: Source, layout: Layout) -> tuple[list[Entry], list[str]]:
    """Give the files that a layout knows, and the names of all others."""
    ordered = sorted(
        patterns(layout).items(), key=lambda item: "{twin}" in item[1]
    )  # a plain name is meant before any twin's
    for strip, names in _views(source, layout):
        known = [(section, _pattern(strip(text), section)) for section, text in ordered]
        found = [entry for name in names if (entry := _entry(name, known)) is not None]
        if found:
            taken = {entry.name for entry in found}
            return found, [name for name in names if name not in taken]
    return [], source.children()


def _entry(name: str, known: Sequence[tuple[str, re.Pattern[str]]]) -> Entry | None:
    for section, pattern in known:
        match = pattern.fullmatch(name)
        if match is not None:
            holes = match.groupdict()
            epoch = int(holes["epoch"]) if holes.get("epoch") else None
            if section in _SEVERAL:
                return Entry(name, f"{section}.{int(holes.get('number') or 0)}", epoch)
            return Entry(name, f"twins.{holes['twin']}" if "twin" in holes else section, epoch)
    return None


def choose(
    source: Source, layout: Layout, epoch: int | None, only: tuple[str, ...] = (), drop: tuple[str, ...] = ()
) -> Chosen:
    """Give the files of one checkpoint. AmbiguousError lists the epochs, where there are several and none was said.

    Optimizers and schedulers that are not in ``only``, or are in ``drop``, are not looked at: a damaged one harms nobody who does
    without it.
    """
    found, others = entries(source, layout)
    epochs = sorted({entry.epoch for entry in found if entry.epoch is not None})
    if len(epochs) > 1 and epoch is None:
        raise AmbiguousError(
            f"holds epochs {', '.join(map(str, epochs))}",
            candidates=epochs,
            hint=f"--epoch {epochs[-1]} takes the last one",
        )
    if epochs and epoch is not None and epoch not in epochs:
        raise CheckpointError(f"has no epoch {epoch}; it has: {', '.join(map(str, epochs))}", candidates=epochs)
    chosen = Chosen(epoch=epoch if epochs and epoch is not None else epochs[0] if epochs else None)
    found = [entry for entry in found if entry.epoch in {None, chosen.epoch}]
    unwanted = untaken(only, drop)
    chosen.untaken = {entry.name: entry.section for entry in found if entry.section.partition(".")[0] in unwanted}
    by_section: dict[str, str] = {}
    for entry in found:
        if entry.name in chosen.untaken:
            continue
        match = _match(child(source, entry.name))
        before = by_section.get(entry.section)
        if match is None or (before is not None and not (match.current and not chosen.matches[before].current)):
            others.append(entry.name)
            continue
        if before is not None:
            del chosen.files[before], chosen.matches[before]
            others.append(before)
        by_section[entry.section] = entry.name
        chosen.files[entry.name], chosen.matches[entry.name] = entry.section, match
    if not chosen.files:
        raise CheckpointError(f"no file of layout {layout.name} is there")
    chosen.files = dict(sorted(chosen.files.items(), key=lambda item: _rank(item[1], patterns(layout))))
    chosen.others = [name for name in others if not _is_folder(source, name)]
    return chosen


def _rank(section: str, files: Mapping[str, str]) -> tuple[int, int, str]:
    kind, _, name = section.partition(".")
    order = list(files)
    at = order.index(section) if section in files else order.index(kind)
    return at, int(name) if kind in _SEVERAL else 0, name


def keep_recorded(chosen: Chosen, said: Mapping[str, Any] | None, stems: Mapping[str, str], layout: Layout) -> None:
    """Take for twins, and for the tensors of values, only what our record says are; without one, what the layout itself knows."""
    for name, section in list(chosen.files.items()):
        kind = section.partition(".")[0]
        if kind == "twins":
            twin = next((twin for twin, stem in stems.items() if _is_of(name, stem)), None)
            known = twin is not None if said is not None else kind in layout.files
            chosen.files[name] = section if twin is None else f"twins.{twin}"
        else:
            known = section != VALUES or said is not None
        if not known:
            del chosen.files[name], chosen.matches[name]
            chosen.others.append(name)


def _is_of(name: str, stem: str) -> bool:
    """Say whether a file has this stem, also where the folder itself was named."""
    return any(name == each or name.startswith(f"{each}.") for each in (stem, _last(stem)))


def _match(source: Source) -> Match | None:
    try:
        return None if source.is_folder() else detect(source)
    except UnknownFormatError:
        return None


def _is_folder(source: Source, name: str) -> bool:
    return "/" not in name and source.child(name).is_folder()
