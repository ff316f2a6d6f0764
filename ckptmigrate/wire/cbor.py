"""CBOR (RFC 8949), pulled item by item from bytes that are in memory, and written as Rust's ciborium writes it.

    head    major << 5 | n      n < 24: the argument itself; 24, 25, 26, 27: it follows in 1, 2, 4, 8 bytes, big-endian

    major   0 uint    1 -1 - uint    2 bytes    3 text    4 array    5 map    6 tag    7 f4 false, f5 true, f6 null; f9 fa fb: f16 f32 f64

A reader asks for what must stand next, so that nothing is built but what it asked for, and unknown values are stepped over. (A
library that gives a whole tree cannot be bounded: 100 MB of empty arrays are 6 GB of lists before anybody can count them.)
Refused: an item that ends behind the bytes, a count that the bytes left cannot hold, a key twice, deeper nesting than ciborium
takes, text that is no UTF-8, and lengths that are not given at the start, which no writer of ours or theirs uses.

ciborium writes every head as short as it can be, maps in the order given, and a float in the shortest of f16, f32, f64 that holds
the same bits. Sources: RFC 8949; ciborium-ll/src/hdr.rs, dec.rs, ciborium/src/de/mod.rs, release 0.2.2.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError, LimitError, TensorError
from ckptmigrate.values import brief

if TYPE_CHECKING:
    from collections.abc import Iterator

UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
KINDS = ("an integer", "an integer", "bytes", "text", "an array", "a map", "a tag", "a simple value or float")
NESTING = 128  # burn-pack's bound of ciborium's recursion
SKIPPED = 1_000_000  # values stepped over in one run; each takes a microsecond, and a byte of a file can be one
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}
_CONSTANTS = {20: False, 21: True, 22: None, 23: None}  # 23 is undefined, which serde takes for none
_LARGEST = (1 << 64) - 1


class Reader:
    """A place in a run of CBOR. ``at`` is the offset of the next item; messages count from ``base``."""

    def __init__(self, data: bytes, what: str = "CBOR", base: int = 0) -> None:
        self.data, self.what, self.base = data, what, base
        self.at = 0
        self._skipped = 0

    def kind(self) -> int:
        """Give the major type of the next item, which stays the next."""
        if self.at >= len(self.data):
            raise self._short(1)
        return self.data[self.at] >> 5

    def pairs(self, about: str = "a map", *, fields: bool = False) -> Iterator[str]:
        """Give the keys of the map that must stand here, each with the reader right before its value; CorruptError for a key twice.

        ``fields``: the map is a struct's or an enum's, for whose names ciborium takes bytes as well as text.
        """
        seen: set[str] = set()
        for _ in range(self._counted(MAP, about, 2)):
            at = self.at
            key = self._bytes() if fields and self.kind() == BYTES else self.text("a key")
            if key in seen:
                raise CorruptError(
                    f'{self.what} has the key "{key[:60]}" twice, again at byte {self.base + at}', name=key
                )
            seen.add(key)
            yield key

    def array(self, about: str = "an array", asked: int | None = None) -> int:
        """Give the length of the array that must stand here; its items follow.

        ``asked``: how many of them the caller takes, as serde does of a tuple: ciborium then takes what follows for the next item of
        whatever stands around the array, which need not hold what it claims.
        """
        count = self._expect(ARRAY, about)
        self._check_count(count if asked is None else min(count, asked), about)
        return count

    def text(self, about: str = "text") -> str:
        """Give the text that must stand here."""
        at, length = self.at, self._expect(TEXT, about)
        return self._decoded(self._take(length), about, at)

    def _decoded(self, raw: bytes, about: str, at: int) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise CorruptError(f"{self.what}: {about} at byte {self.base + at} is no UTF-8") from error

    def _bytes(self) -> str:
        return self._take(self._expect(BYTES, "bytes")).decode(errors="backslashreplace")

    def uint(self, about: str = "an integer") -> int:
        """Give the unsigned integer that must stand here."""
        return self._expect(UINT, about)

    def integer(self, about: str = "an integer") -> int:
        """Give the integer that must stand here."""
        return -1 - self._expect(NEGATIVE, about) if self.kind() == NEGATIVE else self._expect(UINT, about)

    def simple(self, about: str = "a number") -> float | bool | None:
        """Give the float, truth or null that must stand here."""
        at = self.at
        if self.kind() != SIMPLE:
            raise self._other(about, at)
        info = self._take(1)[0] & 31
        if info in _FLOATS:
            form = _FLOATS[info]
            number: float = struct.unpack(form, self._take(struct.calcsize(form)))[0]
            return number
        if info not in _CONSTANTS:
            raise CorruptError(f"{self.what}: {about} at byte {self.base + at} is the simple value {info}")
        return _CONSTANTS[info]

    def value(self, most: int, depth: int = NESTING) -> Any:
        """Give any value of up to ``most`` items: maps with keys of text, arrays, text, numbers, truths, null."""
        left = [most]
        return self._value(left, depth)

    def _value(self, left: list[int], depth: int) -> Any:
        left[0] -= 1
        if left[0] < 0 or depth <= 0:
            raise LimitError(f"{self.what}: a value at byte {self.base + self.at} of more items than are read")
        match self.kind():
            case 0 | 1:
                return self.integer()
            case 3:
                return self.text()
            case 4:
                return [self._value(left, depth - 1) for _ in range(self.array())]
            case 5:
                return {key: self._value(left, depth - 1) for key in self.pairs()}
            case 7:
                return self.simple()
            case other:
                raise self._other("a value", self.at, KINDS[other])

    def skip(self) -> None:
        """Step over the next value, whatever it is; LimitError where it nests deeper than ``NESTING``."""
        pending = [1]  # values still to come, level by level
        while pending:
            if not pending[-1]:
                pending.pop()
                continue
            pending[-1] -= 1
            self._skipped += 1
            if self._skipped > SKIPPED:
                raise LimitError(f"{self.what} has more than {SKIPPED} values that nobody asks for", limit=SKIPPED)
            at = self.at
            kind, count = self._head()
            if kind == BYTES:
                self._take(count)
            elif kind == TEXT:
                self._decoded(self._take(count), "text", at)  # ciborium looks at text that nobody asks for, too
            elif kind in {ARRAY, MAP, TAG}:
                below = 1 if kind == TAG else count * (1 + (kind == MAP))
                self._check_count(below, KINDS[kind])
                pending.append(below)
                if len(pending) > NESTING:
                    raise LimitError(f"{self.what} nests deeper than {NESTING}", limit=NESTING)

    def end(self) -> None:
        """Refuse bytes behind the last value."""
        if self.at != len(self.data):
            raise CorruptError(
                f"{self.what} ends at byte {self.base + self.at}, and claims to end at {self.base + len(self.data)}"
            )

    def _counted(self, kind: int, about: str, least: int) -> int:
        count = self._expect(kind, about)
        self._check_count(count * least, about)
        return count

    def _check_count(self, least: int, about: str) -> None:
        if least > len(self.data) - self.at:
            raise self._short(least, f"{about} with {least} items")

    def _expect(self, kind: int, about: str) -> int:
        at = self.at
        if self.kind() != kind:
            raise self._other(about, at)
        return self._head()[1]

    def _head(self) -> tuple[int, int]:
        at = self.at
        if at >= len(self.data):
            raise self._short(1)
        first = self.data[at]
        kind, info = first >> 5, first & 31
        if info < 24:
            self.at = at + 1
            return kind, info
        if info > 27:
            raise CorruptError(
                f"{self.what}: {KINDS[kind]} at byte {self.base + at} without a length at its start, which is not read"
            )
        end = at + 1 + (1 << (info - 24))
        if end > len(self.data):
            raise self._short(end - at)
        self.at = end
        return kind, int.from_bytes(self.data[at + 1 : end], "big")

    def _take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise self._short(count)
        taken = self.data[self.at : self.at + count]
        self.at += count
        return taken

    def _short(self, needed: int, about: str = "an item") -> CorruptError:
        left = len(self.data) - self.at
        return CorruptError(
            f"{self.what}: {about} at byte {self.base + self.at} needs {needed} bytes, {left} are left",
            needed=needed,
            present=left,
        )

    def _other(self, about: str, at: int, found: str | None = None) -> CorruptError:
        found = found or KINDS[self.data[at] >> 5]
        return CorruptError(f"{self.what}: {found} at byte {self.base + at}, expected {about}")


def loads(data: bytes, most: int = 1_000_000, what: str = "CBOR") -> Any:
    """Give the one value that the bytes are, of up to ``most`` items."""
    reader = Reader(data, what)
    value = reader.value(most)
    reader.end()
    return value


def dumps(value: Any) -> bytes:
    """Give the bytes that ciborium writes for a value: maps in their order. TensorError for what has no CBOR here."""
    out = bytearray()
    _write(value, out)
    return bytes(out)


def _write(value: Any, out: bytearray) -> None:
    if value is None:
        out.append(0xF6)
    elif isinstance(value, bool):
        out.append(0xF5 if value else 0xF4)
    elif isinstance(value, int):
        if not -_LARGEST - 1 <= value <= _LARGEST:
            raise TensorError(f"{brief(value)} does not fit into the 64 bits of an integer")
        out += head(UINT, value) if value >= 0 else head(NEGATIVE, -1 - value)
    elif isinstance(value, float):
        out += _float(value)
    elif isinstance(value, str):
        raw = encoded(value)
        out += head(TEXT, len(raw)) + raw
    elif isinstance(value, (list, tuple)):
        out += head(ARRAY, len(value))
        for item in value:
            _write(item, out)
    elif isinstance(value, dict):
        out += head(MAP, len(value))
        for key, item in value.items():
            _write(key, out)
            _write(item, out)
    else:
        raise TensorError(f"{brief(value)} has no place in CBOR")


def encoded(text: str) -> bytes:
    """Give a text's UTF-8; TensorError for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TensorError(f"{text!a:.80} is no Unicode text") from error


def head(kind: int, argument: int) -> bytes:
    """Give the shortest head of a major type and its argument."""
    if argument < 24:
        return bytes([kind << 5 | argument])
    for info, form in ((24, ">B"), (25, ">H"), (26, ">I")):
        if argument < 1 << (8 << (info - 24)):
            return bytes([kind << 5 | info]) + struct.pack(form, argument)
    return bytes([kind << 5 | 27]) + struct.pack(">Q", argument)


def _float(number: float) -> bytes:
    """Give the shortest float that comes back with the same bits, NaNs too."""
    exact = struct.pack(">d", number)
    for info, form in ((25, ">e"), (26, ">f")):
        try:
            short = struct.pack(form, number)
        except OverflowError:
            continue
        if struct.pack(">d", struct.unpack(form, short)[0]) == exact:
            return bytes([SIMPLE << 5 | info]) + short
    return b"\xfb" + exact
