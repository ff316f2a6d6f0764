"""The header of a safetensors file, read one name after another and compared with the file.

    {"__metadata__": {text: text}, NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}, ...}

100,000,000 bytes are allowed, and may name millions of things: nothing is kept of a name before it is found in order, and a header
that could hold more names than are allowed is counted before anything is kept.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptmigrate.dtypes import BY_SAFETENSORS
from ckptmigrate.errors import CorruptError, LimitError, TensorError, TruncatedError
from ckptmigrate.notes import misread
from ckptmigrate.values import Members

from ._safetensors_writer import METADATA, PREFIX, TEXTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptmigrate.dtypes import DType
    from ckptmigrate.files import Source
    from ckptmigrate.limits import Limits

LARGEST = (1 << 63) - 1  # of a dimension: torch and numpy count in int64
_LONGEST = 4096  # characters of one entry: 64 dimensions of 19 digits, each on an indented line
_SHORTEST = 49  # characters of the shortest entry: "":{"dtype":"U8","shape":[],"data_offsets":[0,0]},


class Entry(NamedTuple):
    """What the header says of one tensor: shape in units, where its bytes lie behind the header."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """The whole header, in its order; the data begins at byte ``start`` of the file."""

    entries: dict[str, Entry]
    metadata: dict[str, str]
    start: int


def header(source: Source, limits: Limits) -> Header:
    """Give the header, each entry in itself and all together compared with the size of the data.

    TruncatedError, CorruptError, LimitError or TensorError name the tensor and both numbers.
    """
    text, start = _text(source, limits)
    if len(text) > _SHORTEST * limits.tensors:
        for count, _ in enumerate(_parts(text, limits), 1):
            _check_count(count - 1, limits)  # one of them may be the metadata
    entries: dict[str, Entry] = {}
    metadata: dict[str, str] | None = None
    for name, found in _parts(text, limits):
        if name in entries or (name == METADATA and metadata is not None):
            raise misread(CorruptError("", name=name), "header")
        if name != METADATA:
            entries[name] = _entry(name, found, limits)
            _check_count(len(entries), limits)
        elif not isinstance(found, dict | None):
            raise CorruptError(f'"{METADATA}" is {kind_of(found)}, expected an object of texts')
        else:
            metadata = found or {}  # the reference reader takes null for none
    _check_cover(entries, source.size - start)
    return Header(entries, metadata or {}, start)


def _text(source: Source, limits: Limits) -> tuple[str, int]:
    """Give the header's text and the offset at which the data begins."""
    if source.size < PREFIX:
        raise TruncatedError(
            f"truncated: shorter than 8 bytes, the length of the header alone; {source.size} bytes in all",
            needed=PREFIX, present=source.size,
        )  # fmt: skip
    length = int.from_bytes(source.read(0, PREFIX), "little")
    present = source.size - PREFIX
    if length > limits.header:
        raise LimitError(
            f"header claims {length} bytes, limit is {limits.header} (file has {present} bytes after the length)",
            limit=limits.header, claimed=length,
        )  # fmt: skip
    if length > present:
        raise TruncatedError(
            f"truncated: header of {length} bytes, file has {present} after the length", needed=length, present=present
        )
    try:
        text = source.read(PREFIX, length).decode()
    except UnicodeDecodeError as error:
        raise CorruptError(f"header is no UTF-8 at byte {PREFIX + error.start} of the file") from error
    return text, PREFIX + length


def _parts(text: str, limits: Limits) -> Iterator[tuple[str, Any]]:
    """Give each name with what stands under it, in order; under the metadata's own a dictionary of texts."""
    reader = Members(text, limits)
    with _of_header():
        if not reader.next_is("{"):
            raise CorruptError(f"header is {kind_of(reader.value(_LONGEST))}, expected an object")
        for name in reader.members():
            if name == METADATA and reader.next_is("{"):
                yield name, _texts(reader)
            else:
                yield name, reader.value(_LONGEST)
        reader.end()


@contextmanager
def _of_header() -> Iterator[None]:
    """Say of JSON's errors that it is the header which has them."""
    try:
        yield
    except LimitError as error:
        raise LimitError(f"header: {error.message}", **error.data) from error
    except CorruptError as error:
        raise (misread(error, "header") if {"offset", "name", "token"} & error.data.keys() else error) from error


def _texts(reader: Members) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in reader.members():
        if key in found:
            raise CorruptError("", name=key)
        if not reader.next_is('"'):
            kind = kind_of(reader.value(_LONGEST))
            raise CorruptError(f'"{METADATA}" holds {kind} under "{key}", expected text')
        found[key] = reader.text()
        if len(found) > TEXTS:
            raise LimitError(f"more than {TEXTS} texts", limit=TEXTS, claimed=len(found))
    return found


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.tensors:
        raise LimitError(
            f"header names {count} tensors or more, limit is {limits.tensors}", limit=limits.tensors, claimed=count
        )


def _entry(name: str, entry: Any, limits: Limits) -> Entry:
    """Give dtype, shape in units, begin and end of one entry, checked against each other."""
    if len(name.encode(errors="surrogatepass")) > limits.name:
        raise LimitError(
            f'name "{name[:40]}…" is longer than {limits.name} bytes', limit=limits.name, claimed=len(name)
        )
    if not isinstance(entry, dict):
        raise CorruptError(f'tensor "{name}" is {kind_of(entry)}, expected an object')
    if missing := [key for key in ("dtype", "shape", "data_offsets") if key not in entry]:
        raise CorruptError(f'tensor "{name}" has no {" and no ".join(missing)}')
    spelling, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = BY_SAFETENSORS.get(spelling) if isinstance(spelling, str) else None
    if dtype is None:
        raise TensorError(
            f'tensor "{name}" has dtype {json.dumps(spelling)[:60]}, known are {", ".join(BY_SAFETENSORS)}',
            tensor=name, dtype=spelling,
        )  # fmt: skip
    if not isinstance(shape, list) or not all(is_count(size) for size in shape):
        raise CorruptError(
            f'tensor "{name}" has shape {json.dumps(shape)[:60]}, expected whole numbers from 0 to 2**63 - 1'
        )
    if prod(max(size, 1) for size in shape) > LARGEST:  # also beside a 0: nothing else opens such a shape
        raise CorruptError(
            f'tensor "{name}" has shape {json.dumps(shape)[:60]}, sizes whose product is beyond 2**63 - 1'
        )
    if len(shape) > limits.dimensions:
        raise LimitError(
            f'tensor "{name}" has {len(shape)} dimensions, limit is {limits.dimensions}',
            limit=limits.dimensions, claimed=len(shape),
        )  # fmt: skip
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(is_count(offset) for offset in offsets):
        raise CorruptError(f'tensor "{name}" has data_offsets {json.dumps(offsets)[:60]}, expected two whole numbers')
    begin, end = offsets
    if begin > end:
        raise CorruptError(f'tensor "{name}" begins at {begin}, after its end at {end}')
    if dtype.packed > 1:
        if not shape or shape[-1] % dtype.packed:
            raise TensorError(
                f'tensor "{name}" of {dtype} has shape {shape}, its last dimension must be a multiple of {dtype.packed}',
                tensor=name, dtype=dtype.name,
            )  # fmt: skip
        shape = [*shape[:-1], shape[-1] // dtype.packed]
    needed = prod(shape) * dtype.itemsize
    if needed != end - begin:
        raise CorruptError(f'tensor "{name}" needs {needed} bytes, range holds {end - begin}')
    return Entry(dtype, tuple(shape), begin, end)


def _check_cover(entries: Mapping[str, Entry], present: int) -> None:
    """Refuse holes, overlaps, and a data section that is shorter or longer than the ranges."""
    ranges = sorted((entry.begin, entry.end, name) for name, entry in entries.items())
    covered, before = 0, "the header"
    for begin, end, name in ranges:
        if begin > covered:
            raise CorruptError(
                f'tensor "{name}" begins at {begin}, {before} ends at {covered}: {begin - covered} bytes of no tensor'
            )
        if begin < covered:
            raise CorruptError(f'tensor "{name}" begins at {begin}, overlaps {before}, which ends at {covered}')
        covered, before = end, f'"{name}"'
    if covered > present:
        name, begin, end = next((name, begin, end) for begin, end, name in ranges if end > present)
        raise TruncatedError(
            f'truncated: needs {covered} data bytes, has {present}; "{name}" at {begin} to {end} is the first tensor cut',
            needed=covered, present=present, tensor=name,
        )  # fmt: skip
    if covered < present:
        raise CorruptError(f"data section has {present} bytes, tensors end at {covered}")


def is_count(value: Any) -> bool:
    """Say whether a JSON value is a whole number from 0 that counts something."""
    return type(value) is int and 0 <= value <= LARGEST


def kind_of(value: Any) -> str:
    """Name a JSON value's kind in words."""
    kinds = {
        dict: "an object",
        list: "an array",
        str: "text",
        int: "a number",
        float: "a number",
        bool: "true or false",
    }
    return kinds.get(type(value), "null")
