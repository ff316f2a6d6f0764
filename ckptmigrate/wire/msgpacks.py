"""MessagePack, walked in bounded memory: a tree of plain values in which payloads are ranges of the file.

    80-8f de df   map, 16- and 32-bit counts      a dict; keys are text, each once
    90-9f dc dd   array                           a list; one of numbers is ``Numbers`` (msgpack_numbers.py)
    a0-bf d9-db   text                            str
    c4-c6         bytes                           a Range of the file, not read
    c0 c2 c3      nil, false, true                None, False, True
    00-7f e0-ff ca-d3                             int, float

Refused: c1 and extensions (c7-c9, d4-d8), which no record has, keys that are no text or appear twice, text that is no UTF-8, and
any count or length that the file cannot hold. (The msgpack library gives no positions and builds every number: 250 million Python
floats for a gigabyte.) Source: the MessagePack specification, msgpack/spec.md.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CkptError, CorruptError, LimitError, TruncatedError
from ckptmigrate.values import NOTHING

from .cursor import NODES, add_keys
from .msgpack_numbers import CLASSES, WIDTHS, Numbers, measure, shared

if TYPE_CHECKING:
    from ckptmigrate.limits import Limits

    from .cursor import Cursor

BRIEF = 64  # items of an array of numbers that are given at once: shapes, a scheduler's tuple
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


def load(cursor: Cursor, limits: Limits) -> Any:
    """Give the value that begins at the cursor, and move behind it."""
    return _Walk(cursor, limits).run()


class _Walk:
    """One value, without recursion; ``open`` holds the containers around the place: each with what is still missing, and its key."""

    def __init__(self, cursor: Cursor, limits: Limits) -> None:
        self.cursor, self.limits = cursor, limits
        self.open: list[list[Any]] = []
        self.nodes, self.most = 0, min(NODES, limits.nodes)

    def run(self) -> Any:
        """Give the value; an error says at which key of it."""
        try:
            return self._whole()
        except CkptError as error:
            add_keys(error, ((held, key) for held, _, key in self.open))
            raise

    def _whole(self) -> Any:
        value = NOTHING
        while value is NOTHING or self.open:
            if self.open and isinstance(self.open[-1][0], dict) and self.open[-1][1]:
                self.open[-1][2] = self._key(self.open[-1][0])
            value = self._value()
            while value is not NOTHING and self.open:
                container, missing, key = self.open[-1]
                if isinstance(container, dict):
                    container[key] = value
                else:
                    container.append(value)
                self.open[-1][1] = missing - 1
                if missing > 1:
                    value = NOTHING
                    break
                value = self.open.pop()[0]
        return value

    def _value(self) -> Any:
        """Give the next value; NOTHING where it is a container whose items follow."""
        self.nodes += 1
        if self.nodes > self.most:
            raise LimitError(f"more than {self.most:,} values", limit=self.most)
        cursor = self.cursor
        at = cursor.at
        marker = cursor.take(1)[0]
        if WIDTHS[marker] == 1 and marker not in _CONSTANTS:
            return marker if marker < 0x80 else marker - 256
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker in _NUMBERS:
            return struct.unpack(_NUMBERS[marker], cursor.take(WIDTHS[marker] - 1))[0]
        if marker < 0x90 or marker in {0xDE, 0xDF}:
            return self._container({}, self._count(marker, marker & 15), 2)
        if marker < 0xA0 or marker in {0xDC, 0xDD}:
            return self._array(self._count(marker, marker & 15))
        if marker in {0xC4, 0xC5, 0xC6}:
            return cursor.leave(self._count(marker, 0))
        if marker < 0xC0 or marker in {0xD9, 0xDA, 0xDB}:
            return self._text(self._count(marker, marker & 31))
        raise CorruptError(f"the byte {marker:#04x} at {at:,} begins no value of a record", offset=at)

    def _count(self, marker: int, short: int) -> int:
        width = _LENGTHS.get(marker, 0)
        return int.from_bytes(self.cursor.take(width), "big") if width else short

    def _container(self, made: Any, count: int, least: int) -> Any:
        left = self.cursor.left()
        if left is not None and count * least > left:
            raise TruncatedError(
                f"a container of {count:,} items at {self.cursor.at:,}, and {left:,} bytes follow",
                needed=self.cursor.at + count * least, present=self.cursor.at + left,
            )  # fmt: skip
        if not count:
            return made
        if len(self.open) >= self.limits.nesting:
            raise LimitError(
                f"containers nested deeper than the {self.limits.nesting} levels allowed", limit=self.limits.nesting
            )
        self.open.append([made, count, None])
        return NOTHING

    def _array(self, count: int) -> Any:
        if not count:
            return []
        numbers = measure(self.cursor, count) if count > BRIEF else self._few(count)
        return self._container([], count, 1) if numbers is None else numbers

    def _few(self, count: int) -> Numbers | None:
        """Give a short array with its values; None, without moving, where one of them is no number."""
        start, values, classes = self.cursor.at, [], set[int]()
        for _ in range(count):
            marker = self.cursor.look(1)
            if not marker or not WIDTHS[marker[0]]:
                self.cursor.at = start
                return None
            classes.add(CLASSES[marker[0]])
            values.append(self._value())
        nbytes, self.cursor.at = self.cursor.at - start, start
        return Numbers(count, self.cursor.leave(nbytes), shared(frozenset(classes)), tuple(values))

    def _key(self, container: dict[str, Any]) -> str:
        at = self.cursor.at
        marker = self.cursor.take(1)[0]
        if not (0xA0 <= marker < 0xC0 or marker in {0xD9, 0xDA, 0xDB}):
            raise CorruptError(f"the byte {marker:#04x} at {at:,} stands where the name of a field should", offset=at)
        name = self._text(self._count(marker, marker & 31))
        if name in container:
            raise CorruptError(f'the name "{name[:60]}" stands twice in one map, again at {at:,}', name=name)
        return name

    def _text(self, nbytes: int) -> str:
        if nbytes > self.limits.name:
            raise LimitError(
                f"a text of {nbytes:,} bytes at {self.cursor.at:,}, the limit is {self.limits.name:,}",
                limit=self.limits.name, claimed=nbytes,
            )  # fmt: skip
        at = self.cursor.at
        try:
            return self.cursor.take(nbytes).decode()
        except UnicodeDecodeError as error:
            raise CorruptError(f"a text at {at:,} is no UTF-8", offset=at + error.start) from error
