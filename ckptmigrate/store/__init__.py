"""Between paths and checkpoints: detect, read, gather; scatter, lay out, write, and compare what was written with the plan.

path ── detect ── read ── gather ──► Checkpoint ── scatter ── lay_out ──► Blueprint ── write ──► file
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate import registry, values
from ckptmigrate.errors import CkptError, ForeignCallError, TensorError, reading
from ckptmigrate.files import Disk
from ckptmigrate.format import GatherOptions, Match, Parts, ReadOptions
from ckptmigrate.values import NOTHING, Inert, spell
from ckptmigrate.wire.collector import paused_collector

from . import companions, folder, record, stamps
from .companions import schema
from .detection import detect, misnamed
from .folder import child
from .gather import Added, gather
from .owners import NUMBERED
from .scatter import fits_one_file, scatter
from .selection import asked, is_bare_model, is_bare_state, is_wanted, section_names, select
from .writing import compare_parts, lay_out, write

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.files import Source
    from ckptmigrate.format import Layout

__all__ = [
    "asked",
    "child",
    "compare_parts",
    "detect",
    "fits_one_file",
    "gather",
    "is_bare_model",
    "is_bare_state",
    "is_current",
    "is_folder",
    "is_numbered",
    "lay_out",
    "open_checkpoint",
    "read",
    "scatter",
    "schema",
    "section_names",
    "select",
    "took_steps",
    "write",
]

FOLDER, CURRENT = "folder", "current"  # facts of an origin
STEPS = "steps"  # fact of a file: what a caller said an optimizer's step count is, where it was taken
SHOWN = 5  # names in a message


def open_checkpoint(
    path: str | Path,
    read_options: ReadOptions | None = None,
    gather_options: GatherOptions | None = None,
    disk: Disk | None = None,
) -> Checkpoint:
    """Give the checkpoint at a path: a file alone, with no look at its neighbours, or a folder that a format or layout claims.

    Names, dtypes and shapes are there; bytes stay in the file until they are drawn. The checkpoint owns ``disk`` and is its
    context manager.
    """
    read_options, gather_options = read_options or ReadOptions(), gather_options or GatherOptions()
    held = disk or Disk()
    try:
        with reading(str(path)):
            checkpoint = _open(held.open(path), held, read_options, gather_options)
    except BaseException:
        if disk is None:
            held.close()
        raise
    checkpoint.disk = held
    return checkpoint


def _open(source: Source, disk: Disk, read_options: ReadOptions, options: GatherOptions) -> Checkpoint:
    wanted = registry.layout(options.layout) if options.layout else None
    added = _added(disk, read_options, options)
    layout = folder.claims(source, wanted) if source.is_folder() else None
    if layout is not None:
        return _open_folder(source, layout, read_options, options, added)
    match = detect(source)
    parts = read(source, read_options, match)
    checkpoint = gather({"": parts}, options, container=match.format.name, layout=wanted, added=added)
    checkpoint.origin.facts[CURRENT] = match.current
    if source.is_folder():
        checkpoint.origin.facts[FOLDER] = True
    elif note := misnamed(match, source.name):
        checkpoint.ledger.notes.append(note)
    return checkpoint


def _added(disk: Disk, read_options: ReadOptions, options: GatherOptions) -> tuple[Added, ...]:
    """Read the further files that a caller names; one that is named for two sections is read once."""
    by_path: dict[str, Parts] = {}
    added: list[Added] = []
    for section, path in options.parts.items():
        with reading(path):
            if path not in by_path:
                by_path[path] = read(disk.open(path), read_options)
        added.append(
            (section.removesuffix("s") + "s" if section != "model" else section, _short(path, by_path), by_path[path])
        )
    return tuple(added)


def _short(path: str, paths: Iterable[str]) -> str:
    """Give the name of a file; its whole path where another has that name."""
    name = path.rpartition("/")[2]
    return name if sum(other.rpartition("/")[2] == name for other in paths) == 1 else path


def _open_folder(
    source: Source, layout: Layout, read_options: ReadOptions, options: GatherOptions, added: tuple[Added, ...]
) -> Checkpoint:
    """Read the files of a layout, each through its own format."""
    chosen = folder.choose(source, layout, options.epoch, options.only, options.drop)
    parts, lost = _read_files(source, layout, chosen, read_options, options)
    said = next((p.notes[record.RECORD] for p in parts.values() if record.RECORD in p.notes), None)
    folder.keep_recorded(chosen, said, record.twin_files(said or {}), layout)
    parts = {
        n: parts[n] if n in parts else read(child(source, n), read_options, chosen.matches[n]) for n in chosen.files
    }
    first = next(iter(chosen.files))
    beside, notes = companions.beside(source, chosen.files, read_options.limits)
    has_one = any(section.startswith(companions.SCHEDULERS) for section in chosen.files.values())
    told = companions.told(options, layout, beside) if has_one else options
    with companions.explaining(options, told, beside):
        checkpoint = gather(
            parts,
            told,
            container=chosen.matches[first].format.name,
            layout=layout,
            files=chosen.files,
            epoch=chosen.epoch,
            untaken=chosen.untaken,
            added=added,
        )
    checkpoint.origin.facts |= {FOLDER: True, CURRENT: all(match.current for match in chosen.matches.values())}
    checkpoint.companions = beside
    checkpoint.ledger.notes += notes
    checkpoint.ledger.warnings += lost
    nameless = any(param.name is None for optimizer in checkpoint.optimizers for param in optimizer.params)
    if nameless and "model" in layout.files and "model" not in chosen.files.values():
        checkpoint.ledger.warnings.append(
            "without the model the optimizer's parameters have no names, and stand in the order of its record"
        )
    if others := [name for name in chosen.others if name not in beside]:
        checkpoint.ledger.notes.append(f"not read, as no part of the checkpoint: {', '.join(others)}")
    return checkpoint


def _read_files(
    source: Source, layout: Layout, chosen: folder.Chosen, read_options: ReadOptions, options: GatherOptions
) -> tuple[dict[str, Parts], list[str]]:
    """Read the files that say by themselves what they are; give them, and warnings of those that are lost and not wanted.

    A model that nobody wants is read all the same, because it names the optimizer's parameters. Where the family has ids, the state
    has its own, and does without.
    """
    parts: dict[str, Parts] = {}
    lost: list[str] = []
    by_id = layout.family is not None and registry.family(layout.family).identify is not None
    for name, section in list(chosen.files.items()):
        if _late(section):
            continue
        try:
            parts[name] = read(child(source, name), read_options, chosen.matches[name])
        except CkptError as error:
            if not by_id or is_wanted(section, options.only, options.drop) or len(chosen.files) == 1:
                raise
            del chosen.files[name], chosen.matches[name]
            chosen.untaken[name] = section
            lost.append(f"{name} is not asked for, and cannot be read: {error.message}")
    return parts, lost


def _late(section: str) -> bool:
    """Say whether our record, in another file, tells what a file is."""
    return section.startswith("twins.") or section == folder.VALUES


def is_folder(checkpoint: Checkpoint) -> bool:
    """Say whether a checkpoint came from a folder."""
    return bool(checkpoint.origin.facts.get(FOLDER))


def is_current(checkpoint: Checkpoint) -> bool:
    """Say whether today's framework opens the file as it is; its chains are another question."""
    return bool(checkpoint.origin.facts.get(CURRENT))


def is_numbered(checkpoint: Checkpoint) -> bool:
    """Say whether a caller gave it an epoch, or another meaning of its epoch, than its files tell."""
    return bool(checkpoint.origin.facts.get(NUMBERED))


def took_steps(checkpoint: Checkpoint) -> bool:
    """Say whether an optimizer took its step count from a caller, because its record tells none."""
    return any(isinstance(said, dict) and STEPS in said for said in checkpoint.origin.facts.values())


def read(source: Source, options: ReadOptions, match: Match | None = None) -> Parts:
    """Give what one file says, through its own format, refused where a value in it is wrong or a call is unknown.

    TensorError names the key path of a value that is no tensor and should be; ForeignCallError lists all calls that nobody knows,
    with path and name, unless ``options.inert_calls``.
    """
    with reading(source.name), paused_collector():
        parts = (match or detect(source)).format.read(source, options)
        if parts.tree is not NOTHING:
            values.check_size(parts.tree, options.limits)
            _refuse(parts.tree, options)
        return stamps.completed(parts, source, options.limits)


def _refuse(tree: Any, options: ReadOptions) -> None:
    faults: list[tuple[str, Inert]] = []
    calls: list[tuple[str, str]] = []
    seen: set[int] = set()
    for path, node in values.walk(tree, options.limits):
        if isinstance(node, Inert) and id(node) not in seen:
            seen.add(id(node))
            if node.kind == "fault":
                faults.append((spell(path) or "the root", node))
            elif node.kind == "call":
                calls.append((spell(path) or "the root", node.path))
    if faults:
        where, node = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        error = TensorError(f"{where}: {values.reason(node)}{more}", tensor=where, faults=[name for name, _ in faults])
        for hint in node.args[1:]:
            error.add_note(str(hint))
        raise error
    if calls and not options.inert_calls:
        listed = ", ".join(f"{path} ({name})" for path, name in calls[:SHOWN])
        more = f" and {len(calls) - SHOWN} more" if len(calls) > SHOWN else ""
        raise ForeignCallError(
            f"asks for calls that nobody here knows: {listed}{more}",
            calls=calls,
            hint="nothing was called; --inert-calls leaves these values out by name",
        )
