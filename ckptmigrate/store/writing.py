"""Blueprints of scattered files: laid out by their formats, drawn into a sink, and compared with what their readers give again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate import values
from ckptmigrate.errors import CorruptError
from ckptmigrate.files import Late
from ckptmigrate.format import Blueprint
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Known, spell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ckptmigrate.files.out import Out
    from ckptmigrate.files.sink import Sink
    from ckptmigrate.format import Parts, WriteOptions
    from ckptmigrate.tensor import Promise

    from .scatter import Scattered

SHOWN = 5  # names in a message


def lay_out(scattered: Scattered, options: WriteOptions) -> Blueprint:
    """Give one blueprint for all files, each laid out by its own format; problems and what is left out are collected.

    Where no format says which file makes the set whole, it is the one that stands last.
    """
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
    if whole.last is None and len(scattered) > 1:
        whole.last = next(reversed(scattered))
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


def compare_parts(planned: Parts, read: Parts, out: Out, *, ties: bool = True) -> list[str]:
    """Give what differs between the parts that were planned and those that the written file's own reader gives.

    Names, dtypes, shapes, notes, and that each name's bytes lie where ``out`` laid that name's promise: two equal tensors that
    were swapped, and (``ties``: they are to be kept) a tie that came apart, are found without reading a byte of them.
    """
    found: list[str] = []
    wanted, present = dict(_tensors(planned)), dict(_tensors(read))
    found += [f"{name} is missing" for name in wanted if name not in present]
    found += [f"{name} was not planned" for name in present if name not in wanted]
    for name, tensor in wanted.items():
        if name in present:
            found += _compare(name, tensor.promise, present[name].promise, out.laid)
    if ties and not found:
        found += _apart(wanted, present)
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


def _apart(planned: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> list[str]:
    """Give the names that were tied, and are read from two places."""
    kept: dict[Promise, str] = {}
    pairs = [(kept.setdefault(t.promise, name), name) for name, t in planned.items() if t.nbytes]
    return [
        f"{name} was tied to {first}, and is read from a place of its own"
        for first, name in pairs
        if read[first].promise != read[name].promise
    ]


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
