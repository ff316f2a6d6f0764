"""Between paths and checkpoints: detect, read, gather; scatter, lay out, write, and compare what was written with the plan.

path ── detect ── read ── gather ──► Checkpoint ── scatter ── lay_out ──► Blueprint ── write ──► file
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate import registry, values
from ckptmigrate.errors import (
    AmbiguousError,
    CheckpointError,
    CorruptError,
    ForeignCallError,
    TensorError,
    UnknownFormatError,
    reading,
)
from ckptmigrate.files import Disk, Late
from ckptmigrate.format import Blueprint, GatherOptions, Match, Parts, ReadOptions, WriteOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import NOTHING, Inert, Known, spell

from .detection import detect, misnamed
from .gather import gather
from .scatter import Scattered, fits_one_file, scatter
from .selection import is_bare_model, section_names, select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.files import Source
    from ckptmigrate.files.out import Out
    from ckptmigrate.files.sink import Sink
    from ckptmigrate.format import Layout
    from ckptmigrate.tensor import Promise

__all__ = [
    "compare_parts",
    "detect",
    "fits_one_file",
    "gather",
    "is_bare_model",
    "is_current",
    "is_folder",
    "lay_out",
    "open_checkpoint",
    "read",
    "scatter",
    "section_names",
    "select",
    "write",
]

FOLDER, CURRENT = "folder", "current"  # facts of an origin
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
            checkpoint = _open(held.open(path), read_options, gather_options)
    except BaseException:
        if disk is None:
            held.close()
        raise
    checkpoint.disk = held
    return checkpoint


def _open(source: Source, read_options: ReadOptions, options: GatherOptions) -> Checkpoint:
    wanted = registry.layout(options.layout) if options.layout else None
    layout = _folder_layout(source, wanted) if source.is_folder() else None
    if layout is not None:
        return _open_folder(source, layout, read_options, options)
    match = detect(source)
    parts = read(source, read_options, match)
    checkpoint = gather({"": parts}, options, container=match.format.name, layout=wanted)
    checkpoint.origin.facts[CURRENT] = match.current
    if source.is_folder():
        checkpoint.origin.facts[FOLDER] = True
    elif note := misnamed(match, source.name):
        checkpoint.ledger.notes.append(note)
    return checkpoint


def _folder_layout(source: Source, wanted: Layout | None) -> Layout | None:
    """Give the layout of files that claims a folder: with most of its ``recognised_by`` there."""
    names = set(source.children())
    layouts = [wanted] if wanted is not None else list(registry.layouts())
    claims = [layout for layout in layouts if layout.files and names.issuperset(layout.recognised_by)]
    most = max((len(layout.recognised_by) for layout in claims), default=0)
    best = [layout for layout in claims if len(layout.recognised_by) == most]
    if len(best) > 1:
        listed = sorted(layout.name for layout in best)
        raise AmbiguousError(
            f"layouts {' and '.join(listed)} claim the folder", candidates=listed, hint=f"--layout {listed[0]}"
        )
    return best[0] if best else None


def _open_folder(source: Source, layout: Layout, read_options: ReadOptions, options: GatherOptions) -> Checkpoint:
    """Read the files of a layout, each through its own format; of several for one section the one in a current format counts."""
    parts: dict[str, Parts] = {}
    chosen: dict[str, tuple[str, Match]] = {}
    skipped: list[str] = []
    for name in source.children():
        child = source.child(name)
        try:
            match = None if child.is_folder() else detect(child)
        except UnknownFormatError:
            match = None
        if match is None:
            skipped.append(name)
            continue
        stem = name.partition(".")[0]
        if stem not in chosen or (match.current and not chosen[stem][1].current):
            chosen[stem] = (name, match)
        else:
            skipped.append(name)
    for name, match in chosen.values():
        parts[name] = read(source.child(name), read_options, match)
    model = chosen.get(layout.files.get("model", ""), next(iter(chosen.values()), None))
    if model is None:
        raise CheckpointError(f"no file of layout {layout.name} is there")
    checkpoint = gather(parts, options, container=model[1].format.name, layout=layout)
    checkpoint.origin.facts |= {FOLDER: True, CURRENT: all(match.current for _, match in chosen.values())}
    if skipped:
        checkpoint.ledger.notes.append(f"not read, as no part of the checkpoint: {', '.join(skipped)}")
    return checkpoint


def is_folder(checkpoint: Checkpoint) -> bool:
    """Say whether a checkpoint came from a folder."""
    return bool(checkpoint.origin.facts.get(FOLDER))


def is_current(checkpoint: Checkpoint) -> bool:
    """Say whether today's framework opens the file as it is; its chains are another question."""
    return bool(checkpoint.origin.facts.get(CURRENT))


def read(source: Source, options: ReadOptions, match: Match | None = None) -> Parts:
    """Give what one file says, through its own format, refused where a value in it is wrong or a call is unknown.

    TensorError names the key path of a value that is no tensor and should be; ForeignCallError lists all calls that nobody knows,
    with path and name, unless ``options.inert_calls``.
    """
    with reading(source.name):
        parts = (match or detect(source)).format.read(source, options)
        if parts.tree is not NOTHING:
            _refuse(parts.tree, options)
    return parts


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


# ---------------------------------------------------------------- writing


def lay_out(scattered: Scattered, options: WriteOptions) -> Blueprint:
    """Give one blueprint for all files, each laid out by its own format; problems and what is left out are collected."""
    whole = Blueprint()
    for name, (chosen, parts) in scattered.items():
        if chosen.lay_out is None:
            whole.problems.append(f"{chosen.name} is read only")
            continue
        one = chosen.lay_out(parts, options, name)
        whole.files |= one.files
        whole.sizes |= one.sizes
        whole.last = one.last or whole.last
        whole.problems += one.problems
        whole.left_out += one.left_out
        whole.notes += one.notes
        for tensor_name, tensor in _tensors(parts):
            whole.names.setdefault(tensor.promise, []).append(tensor_name)
    return whole


def write(blueprint: Blueprint, sink: Sink, progress: Callable[[int, int], None] | None = None) -> None:
    """Draw a blueprint into a sink, file by file and piece by piece, each promise once for each place where it stands.

    ``progress(done, total)`` in bytes, after each piece. CorruptError of a damaged source names the tensors that lie in it.
    """
    total, done = sum(blueprint.sizes.values()), 0
    for name, pieces in blueprint.files.items():
        late = any(isinstance(piece, Late) for _, piece in pieces)
        out = sink.open(name if sink.folder else "", crc=late)
        before = done
        try:
            for offset, piece in pieces:
                out.pad(to=offset)
                if isinstance(piece, bytes):
                    out.write(piece)
                elif isinstance(piece, Late):
                    out.late(piece)
                else:
                    out.put(piece)
                if progress is not None:
                    progress(before + out.tell(), total)
            out.pad(to=blueprint.sizes[name])
            out.close()
        except CorruptError as error:
            raise _with_names(error, blueprint) from error
        done = before + blueprint.sizes[name]


def _with_names(error: CorruptError, blueprint: Blueprint) -> CorruptError:
    """Add the tensors that use a damaged member to the error that found it."""
    member = error.data.get("member")
    member = getattr(member, "name", member)
    users = [
        name
        for promise, names in blueprint.names.items()
        if member is not None and any(r.member is not None and r.member.name == member for r in promise.sources())
        for name in names
    ]
    if not users:
        return error
    more = f" and {len(users) - SHOWN} more" if len(users) > SHOWN else ""
    return CorruptError(
        f"{error.message}; used by {', '.join(users[:SHOWN])}{more}",
        path=error.path,
        **(error.data | {"tensors": users}),
    )


def compare_parts(planned: Parts, read: Parts, out: Out) -> list[str]:
    """Give what differs between the parts that were planned and those that the written file's own reader gives.

    Names, dtypes, shapes, notes, and that each name's bytes lie where ``out`` laid that name's promise: two equal tensors that
    were swapped, and a tie that came apart, are found without reading a byte of them.
    """
    found: list[str] = []
    wanted, present = dict(_tensors(planned)), dict(_tensors(read))
    found += [f"{name} is missing" for name in wanted if name not in present]
    found += [f"{name} was not planned" for name in present if name not in wanted]
    for name, tensor in wanted.items():
        if name in present:
            found += _compare(name, tensor.promise, present[name].promise, out.laid)
    if list(wanted) != list(present) and not found:
        found.append("the tensors stand in another order")
    said = values.loads(values.dumps(planned.notes))
    found += [f"the notes differ in {key!r}" for key, value in said.items() if read.notes.get(key) != value]
    return found


def _compare(name: str, planned: Promise, read: Promise, laid: Mapping[Any, list[tuple[int, int]]]) -> list[str]:
    if planned.dtype != read.dtype or tuple(planned.shape) != tuple(read.shape):
        return [f"{name} is {read.dtype} {list(read.shape)}, planned {planned.dtype} {list(planned.shape)}"]
    if not planned.nbytes:
        return []
    plain = read.plain()
    if plain is None:
        return [f"{name} does not lie in one piece"]
    if (plain.offset, plain.nbytes) not in laid.get(planned, []):
        return [
            f"{name} is read at {plain.offset} ({plain.nbytes} bytes), its bytes were laid at {laid.get(planned, [])}"
        ]
    return []


def _tensors(parts: Parts) -> Iterator[tuple[str, Tensor]]:
    """Give the tensors of parts by name or path; what a writer turns into plain containers does not count in a path."""
    for name, tensor in (parts.tensors or {}).items():
        if isinstance(tensor, Tensor):
            yield name, tensor
    stack: list[tuple[tuple[Any, ...], Any]] = [((), parts.tree)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, Tensor):
            yield spell(path) or "value", node
        elif isinstance(node, dict):
            stack.extend(((*path, key), value) for key, value in reversed(node.items()))
        elif isinstance(node, list | tuple):
            stack.extend(((*path, index), value) for index, value in reversed(list(enumerate(node))))
        elif isinstance(node, Known):
            stack.extend((path, value) for value in reversed(node.args or ()))
