r"""safetensors (`.safetensors`): a JSON table of tensors, and their bytes.

    0        8 bytes   N, length of the header, little-endian; at most 100,000,000, the reference reader's own bound
    8        N bytes   header, UTF-8 JSON; its first byte is "{" (that is how the format is recognised), its end is filled
                       with spaces so that N is a multiple of 8 and the data begins on one (older files need not)
    8 + N    data      one tensor after the other, row-major, little-endian: no hole, no overlap, to the last byte of the file

    header   {"__metadata__": {text: text},                        optional
              NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}}

BEGIN and END count from 8 + N. A tensor of zero bytes has BEGIN = END. The exact cover lets no file hide bytes, and with it one
comparison of two numbers tells a file that was cut. F4 and F6 elements are packed, four and six bits each; `shape` counts
elements, this code counts units (see `dtypes`), so the last dimension must hold whole units.

The format knows no shared memory. A name tied to another is no entry of the table but text, as the reference library's
`save_model` writes it: `__metadata__[TIED] = KEPT`. `format: pt` says that names and axes are torch's.
What is ours is one JSON object under `__metadata__["ckptmigrate"]`. A number in it under the same key is its major version, as in
`training_state.json`; without one it is 1. `ties` says where the tied names stood among all names
(`{TIED: position}`). It is there when they were not the last ones, or when other text could be taken for a tie, and then tells
exactly which names are tied.

Tensors are written in the order of the source, not sorted by size as the reference writer does: order is meaning, and readers
need no alignment. Sources: safetensors/src/tensor.rs and bindings/python/py_src/safetensors/torch.py, release 0.8.0.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import BY_SAFETENSORS
from ckptmigrate.errors import CorruptError, LimitError, TensorError, TruncatedError, UnsupportedFormatError, reading
from ckptmigrate.format import Format, Match, Parts, ReadOptions
from ckptmigrate.tensor import Tensor, View
from ckptmigrate.values import loads

from ._safetensors_writer import KIND, KINDS, METADATA, PREFIX, STAMP, lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.dtypes import DType
    from ckptmigrate.files import Source
    from ckptmigrate.limits import Limits
    from ckptmigrate.values import Scalar

FAMILIES = {text: family for family, text in KINDS.items()}
LARGEST = (1 << 63) - 1  # of a dimension: torch and numpy count in int64
MAJOR = 1  # of our JSON object


def sniff(source: Source) -> Match | None:
    """Claim a file whose ninth byte opens a JSON object and whose first eight are a length; the suffix excuses a damaged length."""
    named = source.name.endswith(".safetensors")
    if source.is_folder() or not source.size:
        return None
    if source.size <= PREFIX:
        return Match(FORMAT) if named else None
    head = source.read(0, PREFIX + 1)
    length = int.from_bytes(head[:PREFIX], "little")
    # A length of 2**40 has zeros in bytes 5 to 7, which text never has: JSON with "{" at byte 8 is not taken for a header.
    return Match(FORMAT) if head[PREFIX:] == b"{" and (named or 2 <= length < 1 << 40) else None


def read(source: Source, options: ReadOptions) -> Parts:
    """Give the tensors in header order, tied names where they stood; ``facts["metadata"]`` is the file's text that is not ours.

    TruncatedError, CorruptError, LimitError or TensorError name the tensor and both numbers.
    """
    with reading(source.name):
        header, start = _header(source, options.limits)
        raw = header.pop(METADATA, None)
        if raw is None:  # the reference reader takes null for none
            raw = {}
        if not isinstance(raw, dict):
            raise CorruptError(f'"{METADATA}" is {_kind(raw)}, expected an object of texts')
        metadata = _texts(raw)
        entries = {name: _entry(name, entry, options.limits) for name, entry in header.items()}
        _check_cover(entries, source.size - start)
        tensors: dict[str, Tensor | Scalar] = {
            name: Tensor(View.rows(source.range(start + begin, end - begin), dtype, shape))
            for name, (dtype, shape, begin, end) in entries.items()
        }
        notes = _notes(metadata.pop(STAMP, None), options.limits)
        tensors = _tie(tensors, metadata, notes.pop("ties", None))
        family = FAMILIES.get(metadata.get(KIND, ""))
        if family:
            del metadata[KIND]
        return Parts(family=family, tensors=tensors, facts={"metadata": metadata}, notes=notes)


def _header(source: Source, limits: Limits) -> tuple[dict[str, Any], int]:
    """Give the header's object and the offset at which the data begins."""
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
    header = _parse(text, "header", limits)
    if not isinstance(header, dict):
        raise CorruptError(f"header is {_kind(header)}, expected an object")
    if len(header) > limits.tensors:
        raise LimitError(
            f"header names {len(header)} tensors, limit is {limits.tensors}", limit=limits.tensors, claimed=len(header)
        )
    return header, PREFIX + length


def _parse(text: str, what: str, limits: Limits) -> Any:
    """Give a JSON text's value; an error says which text, and where in it."""
    try:
        return loads(text, limits)
    except CorruptError as error:
        message = f"{what} is not valid JSON: {error.message}"
        if "name" in error.data:
            message = f'{what} has the duplicate key "{error.data["name"]}"'
        elif "offset" in error.data:
            message = f"{what} is not valid JSON, column {error.data['offset'] + 1}: {error.message}"
        raise CorruptError(message, **error.data) from error


def _texts(raw: dict[str, Any]) -> dict[str, str]:
    for key, value in raw.items():
        if not isinstance(value, str):
            raise CorruptError(f'"{METADATA}" holds {_kind(value)} under "{key}", expected text')
    return raw


def _entry(name: str, entry: Any, limits: Limits) -> tuple[DType, tuple[int, ...], int, int]:
    """Give dtype, shape in units, begin and end of one entry, checked against each other."""
    if len(name.encode(errors="surrogatepass")) > limits.name:
        raise LimitError(
            f'name "{name[:40]}…" is longer than {limits.name} bytes', limit=limits.name, claimed=len(name)
        )
    if not isinstance(entry, dict):
        raise CorruptError(f'tensor "{name}" is {_kind(entry)}, expected an object')
    if missing := [key for key in ("dtype", "shape", "data_offsets") if key not in entry]:
        raise CorruptError(f'tensor "{name}" has no {" and no ".join(missing)}')
    spelling, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = BY_SAFETENSORS.get(spelling) if isinstance(spelling, str) else None
    if dtype is None:
        raise TensorError(
            f'tensor "{name}" has dtype {json.dumps(spelling)[:60]}, known are {", ".join(BY_SAFETENSORS)}',
            tensor=name, dtype=spelling,
        )  # fmt: skip
    if not isinstance(shape, list) or not all(_is_count(size) for size in shape):
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
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(offset) for offset in offsets):
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
    return dtype, tuple(shape), begin, end


def _check_cover(entries: Mapping[str, tuple[DType, tuple[int, ...], int, int]], present: int) -> None:
    """Refuse holes, overlaps, and a data section that is shorter or longer than the ranges."""
    ranges = sorted((begin, end, name) for name, (_, _, begin, end) in entries.items())
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


def _notes(text: str | None, limits: Limits) -> dict[str, Any]:
    """Give our own JSON object."""
    if text is None:
        return {}
    notes = _parse(text, f'"{METADATA}" "{STAMP}"', limits)
    if not isinstance(notes, dict):
        raise CorruptError(f'"{METADATA}" "{STAMP}" is {_kind(notes)}, expected an object')
    major = notes.get(STAMP, MAJOR)
    if major != MAJOR:
        raise UnsupportedFormatError(
            f'"{METADATA}" "{STAMP}" has version {json.dumps(major)[:20]}, this release reads {MAJOR}',
            hint="install a newer ckptmigrate",
        )
    return notes


def _tie(tensors: dict[str, Tensor | Scalar], metadata: dict[str, str], positions: Any) -> dict[str, Tensor | Scalar]:
    """Give the tensors with each tied name beside the one that was kept, and take the ties out of ``metadata``."""
    if positions is not None and not (isinstance(positions, dict) and all(_is_count(at) for at in positions.values())):
        raise CorruptError(f'"{METADATA}" "{STAMP}" has ties that are no positions by name')
    ties = {
        name: kept
        for name, kept in metadata.items()
        if kept in tensors and name not in tensors and (name != KIND if positions is None else name in positions)
    }
    for name in ties:
        del metadata[name]
    if not ties:
        return tensors
    at = {name: place for name, place in (positions or {}).items() if name in ties}
    placed: dict[str, Tensor | Scalar] = {}
    waiting = iter(tensors.items())
    for alias in sorted(at, key=at.__getitem__):
        while len(placed) < at[alias] and (following := next(waiting, None)):
            placed[following[0]] = following[1]
        placed[alias] = tensors[ties[alias]]
    placed.update(waiting)
    placed.update((name, tensors[kept]) for name, kept in ties.items() if name not in at)
    return placed


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _kind(value: Any) -> str:
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


FORMAT = Format(
    "safetensors",
    sniff=sniff,
    read=read,
    lay_out=lay_out,
    speaks="tensors",
    standard="ckptmigrate",
    suffixes=(".safetensors",),
    current=True,
    about="one file of tensors by name, the default target of torch files",
)
