"""Parameters in a binary record whose fields nobody told: ids with a tensor behind them that fits its shape.

They are told in the refusal of a file without a schema; and where another file of the same model is given instead of one, its names
are theirs, if the two agree one by one and nothing but the small bytes of constants, options and lengths lies between them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, cast

from ckptmigrate.dtypes import BY_NAME
from ckptmigrate.errors import CorruptError, FormatError
from ckptmigrate.files import Range
from ckptmigrate.files.source import check_inside
from ckptmigrate.limits import MiB
from ckptmigrate.tensor import Tensor
from ckptmigrate.wire import bincodes
from ckptmigrate.wire.cursor import Cursor

from . import _burn_schema

if TYPE_CHECKING:
    from ckptmigrate.dtypes import DType
    from ckptmigrate.files import Source
    from ckptmigrate.format import Parts

LOOKED = 16 * MiB  # bytes between tensors that are looked at: those of real records are a few to each
TENSORS = 100_000
_ID = re.compile(
    rb"\x24[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\x0d[0-9a-v]{13}|\x0a[0-9a-v]{10}"
)  # a UUID up to 0.13, base32 of 8 bytes since 0.15, of 6 bytes in 0.14
_LONGEST = 37  # bytes of an id with its length
_AXES = 8  # the most that a tensor of Burn has
_GAP = 4096  # bytes of constants between two parameters; those of real models are under 100
_WORD = re.compile(rb"[0-9A-Za-z_-]{4}")  # what constants never are, and an id that was overlooked always is


@dataclass(frozen=True, slots=True)
class Leaf:
    """One parameter that a file seems to hold: where its id begins, and what follows it."""

    offset: int
    id: str
    dtype: str
    shape: tuple[int, ...]
    end: int = field(repr=False, compare=False)
    payload: dict[str, Any] = field(repr=False, compare=False)  # as a named record has it


def item_like(cursor: Cursor, metadata: dict[str, str], like: Parts) -> dict[str, Any]:
    """Give the item of a model's record, named as ``like`` names the parameters of the same model.

    CorruptError where the two do not agree: another number of parameters, another shape, or more between them than there should be.
    """
    start = cursor.at
    found, _ = leaves(cursor, metadata, held=False)
    wanted = [(name, tensor) for name, tensor in (like.tensors or {}).items() if isinstance(tensor, Tensor)]
    hint = "a schema as JSON tells what lies in the file"
    if len(found) != len(wanted):
        raise CorruptError(
            f"seems to hold {len(found)} parameters, and the file that is to name them has {len(wanted)}", hint=hint
        )
    item: dict[str, Any] = {}
    for leaf, (name, tensor) in zip(found, wanted, strict=True):
        if leaf.shape != tuple(tensor.shape):
            raise CorruptError(
                f"{name} would be {list(leaf.shape)}, and is {list(tensor.shape)} in the file that is to name it",
                hint=hint,
            )
        _check_gap(cursor, start, leaf.offset, name, hint)
        start = leaf.end
        node = item
        *steps, last = name.split(".")
        for step in steps:
            node = node.setdefault(step, {})
        node[last] = {"id": leaf.id, "param": _again(cursor, leaf, metadata, tensor.dtype)}
    cursor.at = start
    _check_gap(cursor, start, start + len(cursor.look(_GAP)), "the end", hint)
    return item


def _check_gap(cursor: Cursor, start: int, end: int, name: str, hint: str) -> None:
    cursor.at = start
    between = cursor.look(end - start) if end - start < _GAP else b""
    if end - start >= _GAP or _WORD.search(between):
        raise CorruptError(
            f"{end - start:,} bytes before {name}, from {start:,}, are not those of constants only", hint=hint
        )


def _again(cursor: Cursor, leaf: Leaf, metadata: dict[str, str], dtype: DType) -> dict[str, Any]:
    """Give a leaf's payload as its dtype says it is held: in the first kind, small integers, halves and truth look alike."""
    if "value" not in leaf.payload:
        return leaf.payload
    kind = {"bool": "param_bool", "int": "param_int"}.get(dtype.kind, "param")
    cursor.at = leaf.offset + 1 + len(leaf.id)
    payload = _burn_schema.payloads(cursor, metadata).payload(kind)
    if cursor.at != leaf.end:
        raise CorruptError(f"the tensor at {leaf.offset:,} is none of {dtype}")
    return payload


def leaves(cursor: Cursor, metadata: dict[str, str], *, held: bool = True) -> tuple[list[Leaf], bool]:
    """Give the parameters from the cursor on, and whether all of the file was looked at.

    ``held``: of a stream only the start, which is kept in memory; else looking back puts all of it into scratch.
    """
    found: list[Leaf] = []
    budget = LOOKED
    try:
        if cursor.left() is None and held:
            cursor = _held(cursor)
        while budget > 0 and len(found) < TENSORS:
            window = cursor.look(bincodes.WINDOW)
            if not window:
                return found, True
            match = _ID.search(window)
            if match is None:
                step = len(window) - _LONGEST if len(window) == bincodes.WINDOW else len(window)
                cursor.at, budget = cursor.at + step, budget - step
                continue
            at = cursor.at + match.start()
            leaf, crossed = _leaf(cursor, at, match[0], metadata)
            budget -= match.start() + len(match[0]) + crossed
            if leaf is None:
                cursor.at = at + 1
            else:
                found.append(leaf)
    except FormatError:
        pass  # a stream that breaks: what was found before is told
    return found, False


def _leaf(cursor: Cursor, at: int, ident: bytes, metadata: dict[str, str]) -> tuple[Leaf | None, int]:
    """Give the parameter whose id begins at ``at``, and move behind it; None where something else follows the id.

    The number is what was crossed in vain: a file of nothing but ids must not cost its length for each.
    """
    walk, crossed = _burn_schema.payloads(cursor, metadata), 0
    for kind in ("param", "param_int", "param_bool"):
        cursor.at = at + len(ident)
        try:
            payload = walk.payload(kind)
            told = _fitting(payload, kind, metadata)
        except FormatError:
            told = None
        if told is not None:
            return Leaf(at, ident[1:].decode(), *told, cursor.at, payload), crossed
        crossed += cursor.at - at
    return None, crossed


class _Prefix:
    """The first bytes of a stream, in memory: looking back in the stream itself would decode all of it into scratch."""

    def __init__(self, source: Source) -> None:
        self.name, self.data, self.file = source.name, source.read(0, LOOKED), source.range(0, 0).file

    def read(self, offset: int, nbytes: int) -> bytes:
        return self.data[offset : offset + nbytes]

    def range(self, offset: int, nbytes: int) -> Range:
        check_inside(self.name, "bytes", offset, nbytes, len(self.data))
        return Range(self.file, offset, nbytes)


def _held(cursor: Cursor) -> Cursor:
    prefix = _Prefix(cursor.source)
    held = Cursor(cast("Source", prefix), len(prefix.data))
    held.at = cursor.at
    return held


def _fitting(payload: dict[str, Any], kind: str, metadata: dict[str, str]) -> tuple[str, tuple[int, ...]] | None:
    shape = payload["shape"].values
    if len(shape) > _AXES:
        return None
    if "value" in payload:
        name = {"param_int": metadata["int"], "param_bool": "bool"}.get(kind, metadata["float"])
        return (name, shape) if payload["value"].count == prod(shape) else None
    word = payload["dtype"]
    name = next(iter(word)) if isinstance(word, dict) else word
    dtype = BY_NAME.get({"Bool": "BOOL", "Flex32": "F32"}.get(name, name))
    fits = dtype is None or isinstance(word, dict) or payload["bytes"].nbytes == prod(shape) * dtype.itemsize
    return (name, shape) if fits else None
