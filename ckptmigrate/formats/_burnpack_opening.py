"""What today's Burn (0.22.1) says, word for word, when it opens a file as a burnpack: the checks of burn-pack in burn-pack's order.

    folder, size, magic, version, length of the table, table (CBOR), each tensor's bytes in the order of names, size of the file

It reads no tensor, and asks none of our own checks: what Burn takes in silence passes here. Every text was seen in a run of the real
thing, and tests compare it with the real thing over all files there are. Sources: burn-pack/src/{base,reader}.rs; formats/burn.md 7.2, 8.2.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CkptError, CorruptError, TensorError
from ckptmigrate.wire.cbor import MAP, SIMPLE, TEXT, Reader

from ._burn_dtypes import PLAIN, QUANTISED, VARIANTS, spelled
from ._burnpack_table import ALIGNMENT, HEADER, MAGIC, METADATA_MAX, VERSION, WORD_ITEMS

if TYPE_CHECKING:
    from ckptmigrate.files import Source

SHORT = "I/O error: failed to fill whole buffer"
DECODING = "Metadata deserialization error"
ONE = 0xA1  # the head of a map of one
UNTOLD = ": …"  # words of a CBOR reader that nobody here knows
_NO_TEXT = re.compile(r"at byte (\d+) is no UTF-8")
_SCALARS = ("Int", "UInt", "Float", "Bool")
_ESCAPES = {"\t": r"\t", "\n": r"\n", "\r": r"\r", "\0": r"\0", '"': r"\"", "\\": r"\\"}


def opening(source: Source) -> str | None:
    """Give what today's Burn says when it opens a file as a burnpack; None where it opens it."""
    if source.is_folder():
        return "I/O error: Is a directory (os error 21)"
    size = source.size
    if size < HEADER:
        return SHORT
    head = source.read(0, HEADER)
    length = int.from_bytes(head[6:10], "little")
    if head[:4] != MAGIC:
        return "Invalid magic number"
    if int.from_bytes(head[4:6], "little") > VERSION:
        return "Unsupported version"
    if length > METADATA_MAX:
        most = f"exceeds maximum allowed size of {METADATA_MAX} bytes (potential DoS attack)"
        return f"Validation error: Metadata size {length} {most}"
    if HEADER + length > size:
        return SHORT
    return _table(Reader(source.read(HEADER, length), "the table", HEADER), HEADER + length, size)


def _table(reader: Reader, plain: int, size: int) -> str | None:
    """Give what today's Burn says of a table; what it takes in silence (a key twice) is left to our reader."""
    tensors: dict[str, tuple[Any, list[int], tuple[int, int]]] = {}
    try:
        said = _maps(reader, tensors)
    except CkptError as error:
        place = _NO_TEXT.search(error.message)
        unread = f"{DECODING}: Syntax({int(place[1]) - HEADER})" if place is not None else DECODING + UNTOLD
        return None if "twice" in error.message else unread
    return f"{DECODING}{said}" if said is not None else _places(tensors, plain, size)


def _maps(reader: Reader, tensors: dict[str, tuple[Any, list[int], tuple[int, int]]]) -> str | None:
    """Take the tensors of a table; give what serde says of the first item that it does not take."""
    parts = set()
    for key in reader.pairs(fields=True):
        parts.add(key)
        if key == "tensors":
            for name in reader.pairs():
                entry = {k: _member(reader, k) for k in reader.pairs(fields=True)}
                absent = next((field for field in ("dtype", "shape", "data_offsets") if field not in entry), None)
                if absent is not None:
                    return _semantic(f"missing field `{absent}`")
                if (said := _dtype(entry["dtype"])) is not None:
                    return said
                tensors[name] = entry["dtype"], entry["shape"], _pair(entry["data_offsets"])
        elif key == "metadata":
            for _ in reader.pairs():
                reader.text()
        elif key == "scalars":
            for _ in reader.pairs():
                if (said := _scalar(reader)) is not None:
                    return said
        else:
            reader.skip()
    return None if "tensors" in parts else _semantic("missing field `tensors`")


def _semantic(text: str) -> str:
    """Give serde's words within ciborium's, which Rust spells with its escapes."""
    return f': Semantic(None, "{"".join(map(_escaped, text))}")'


def _escaped(letter: str) -> str:
    plain = letter.isprintable() and letter not in _ESCAPES
    return letter if plain else _ESCAPES.get(letter, f"\\u{{{ord(letter):x}}}")


def _pair(offsets: list[int]) -> tuple[int, int]:
    if len(offsets) != 2:
        raise CorruptError(f"{len(offsets)} offsets, expected 2")
    return offsets[0], offsets[1]


def _places(tensors: dict[str, tuple[Any, list[int], tuple[int, int]]], plain: int, size: int) -> str | None:
    """Give what burn-pack says of the bytes of tensors, in the order of their names, then of the size of the file."""
    start, extent = -(-plain // ALIGNMENT) * ALIGNMENT, 0
    for name, (word, shape, (begin, end)) in sorted(tensors.items(), key=lambda item: item[0].encode()):
        if end < begin:
            where = f"end {start + end} < start {start + begin}"
            return f"Validation error: Tensor '{name}' has corrupted offset data: {where}"
        if QUANTISED not in word:
            kind = spelled(word)
            if (needed := kind.needs(tuple(shape))) != end - begin:
                said = f"declares {end - begin} bytes but its shape {shape} and dtype {kind.text} need {needed}"
                return f"Validation error: tensor '{name}' {said}"
        extent = max(extent, end)
    needed = start + extent
    if tensors and size < needed:
        return f"Validation error: File truncated: expected at least {needed} bytes, got {size} bytes"
    return None


def _member(reader: Reader, key: str) -> Any:
    if key == "dtype":
        return reader.value(WORD_ITEMS)
    if key in {"shape", "data_offsets"}:
        return [reader.uint() for _ in range(reader.array())]
    if key == "param_id":
        if reader.kind() != SIMPLE:
            return reader.uint()
        if reader.simple() is not None:
            raise CorruptError("an id that is no integer")
        return None
    reader.skip()
    return None


def _dtype(word: Any) -> str | None:
    """Give what serde says of a word for an element type. After the bare "Bool" it takes the next key, shape, for the variant."""
    if word == "Bool":
        return _semantic("unknown variant `shape`, expected one of `Native`, `U8`, `U32`")
    if isinstance(word, str) and word not in PLAIN:
        known = ", ".join(f"`{each}`" for each in VARIANTS)
        return _semantic(f"unknown variant `{word}`, expected one of {known}")
    if isinstance(word, dict) and QUANTISED in word:
        return None
    try:
        spelled(word)
    except TensorError:
        return UNTOLD
    return None


def _scalar(reader: Reader) -> str | None:
    kind = reader.kind()
    known = ", ".join(f"`{each}`" for each in _SCALARS)
    if kind == TEXT:
        return _semantic(f"unknown variant `{reader.text()}`, expected one of {known}")
    if kind != MAP:
        return UNTOLD
    if reader.data[reader.at] != ONE:
        return _semantic("invalid type: map, expected enum")
    for variant in reader.pairs(fields=True):
        if variant not in _SCALARS:
            return _semantic(f"unknown variant `{variant}`, expected one of {known}")
        if variant in {"Int", "UInt"}:
            reader.integer()
        else:
            reader.skip()
    return None
