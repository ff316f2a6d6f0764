"""What today's Burn (0.22.1) says, word for word, when it opens a file as a burnpack: the checks of burn-pack in burn-pack's order.

    folder, size, magic, version, length of the table, table (CBOR), each tensor's bytes in the order of names, size of the file

It reads no tensor, and asks none of our own checks: what Burn takes in silence passes here. Every text was seen in a run of the real
thing, and tests compare it with the real thing over all files there are. Sources: burn-pack/src/{base,reader}.rs; formats/burn.md 7.2, 8.2.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CkptError, CorruptError, TensorError
from ckptmigrate.wire.cbor import MAP, NEGATIVE, SIMPLE, TEXT, UINT, Reader

from ._burn_dtypes import PLAIN, QUANTISED, VARIANTS, spelled
from ._burn_quant import SCALES
from ._burnpack_table import ALIGNMENT, HEADER, MAGIC, METADATA_MAX, VERSION, WORD_ITEMS

if TYPE_CHECKING:
    from ckptmigrate.files import Source

SHORT = "I/O error: failed to fill whole buffer"
DECODING = "Metadata deserialization error"
ONE = 0xA1  # the head of a map of one
PAIR = 2  # offsets of a tensor
UNTOLD = ": …"  # words of a CBOR reader that nobody here knows
_NO_TEXT = re.compile(r"at byte (\d+) is no UTF-8")
_SCALARS = ("Int", "UInt", "Float", "Bool")
_SCHEME = {
    "value": ("Q8F", "E5M2", "E4M3", "Q4F", "E2M1", "Q2F", "Q8S", "Q4S", "Q2S"),
    "store": ("Native", "PackedNative", "PackedU32"),
    "mode": ("Symmetric", "Lookup"),
}  # what today's Burn must find under QFloat, in the order of its declaration
ALTERNATIVES = 2  # of so many variants serde says "a or b"
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
                entry: dict[str, Any] = {}
                for field in reader.pairs(fields=True):
                    entry[field] = _member(reader, field)
                    if field == "dtype" and (said := _dtype(entry[field])) is not None:
                        return said
                absent = next((field for field in ("dtype", "shape", "data_offsets") if field not in entry), None)
                if absent is not None:
                    return _semantic(f"missing field `{absent}`")
                tensors[name] = entry["dtype"], entry["shape"], entry["data_offsets"]
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
    if key == "shape":
        return [reader.uint() for _ in range(reader.array())]
    if key == "data_offsets":
        if (count := reader.array(asked=PAIR)) < PAIR:
            raise CorruptError(f"{count} offsets, expected {PAIR}")
        return reader.uint(), reader.uint()  # of a longer array Burn takes no more, and goes on behind them
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
        return _quantised(word[QUANTISED])
    try:
        spelled(word)
    except TensorError:
        return UNTOLD
    return None


def _quantised(word: Any) -> str | None:
    """Give what serde says of a quantisation: fields in the order of the file, then those that are missing; it skips all others."""
    if not isinstance(word, dict):
        return UNTOLD
    for name, value in word.items():
        if name in _SCHEME and (said := _variant(value, _SCHEME[name])) is not None:
            return said
        if name == "tensor" and not (value is None or value in SCALES):
            return UNTOLD
        if name == "block" and not (value is None or _is_block(value)):
            return UNTOLD
    missing = next((name for name in _SCHEME if name not in word), None)
    return None if missing is None else _semantic(f"missing field `{missing}`")


def _variant(value: Any, known: tuple[str, ...]) -> str | None:
    found = next(iter(value), None) if isinstance(value, dict) and len(value) == 1 else value
    if not isinstance(found, str):
        return UNTOLD
    listed = [f"`{each}`" for each in known]
    expected = " or ".join(listed) if len(known) == ALTERNATIVES else f"one of {', '.join(listed)}"
    return None if found in known else _semantic(f"unknown variant `{found}`, expected {expected}")


def _is_block(value: Any) -> bool:
    size = value.get("size") if isinstance(value, dict) else None
    if not isinstance(size, dict) or not isinstance(size.get("storage"), list) or value.get("dtype") not in SCALES:
        return False
    return all(type(length) is int and length >= 0 for length in (*size["storage"], size.get("len")))


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
        if (said := _value(reader, variant)) is not None:
            return said
    return None


def _value(reader: Reader, variant: str) -> str | None:
    """Give what ciborium says of a scalar's value that is none of its variant's."""
    at, kind = reader.at, reader.kind()
    if variant in {"Int", "UInt"}:
        if kind not in {UINT, NEGATIVE}:
            return UNTOLD
        value = reader.integer()
        if variant == "UInt":
            return None if value >= 0 else _semantic("unexpected negative integer")
        return None if -(1 << 63) <= value < 1 << 63 else _semantic("integer too large")
    found = reader.simple() if kind == SIMPLE else None
    if variant == "Float":
        return None if type(found) is float else UNTOLD
    return None if type(found) is bool else f': Semantic(Some({at}), "expected bool")'
