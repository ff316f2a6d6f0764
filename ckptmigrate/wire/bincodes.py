"""bincode 2 in its standard configuration: little-endian, integers as short as they go, no names and no types.

    00-fa            an unsigned integer, a length or the index of a variant, up to 250
    fb fc fd         u16, u32, u64 behind it
    the same         i16 to i64, zigzag: 0 -1 1 -2 are 0 1 2 3
    4, 8 bytes       f32, f64
    length, items    text, bytes, lists, maps
    nothing around   structures, tuples, arrays; 00 or 01 before an option and as truth

Only the shortest form is ever written, so a longer one is a sign of another place, and refused. Lists of integers are crossed and drawn
by numpy, in runs of one width; where these are short, every byte of a block is taken for a start, and the places that the first one
leads to are doubled until they leave the block.
Source: bincode 2.0.0-rc.3 and 2.0.1, src/varint and src/features/serde.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ckptmigrate.dtypes import BOOL, F32, F64, U8, DType
from ckptmigrate.errors import CorruptError, LimitError, TensorError
from ckptmigrate.limits import KiB
from ckptmigrate.tensor import Made, View, cast

from .number_runs import runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from ckptmigrate.files import Range
    from ckptmigrate.tensor import Promise, Shape

    from .cursor import Cursor

Encoding: TypeAlias = Literal["f32", "f64", "bool", "unsigned", "zigzag"]

WIDE = {0xFB: 2, 0xFC: 4, 0xFD: 8}  # bytes behind the first; fe (u128) and ff are in no record
SHORTEST = {2: 0xFB, 4: 1 << 16, 8: 1 << 32}  # the least number that needs as many bytes
WIDTHS = bytes(1 if first < 0xFB else 1 + WIDE.get(first, -1) for first in range(256))
"""Bytes of the integer that a byte begins; 0 for what begins none."""

FLOATS = {"f32": F32, "f64": F64}
WINDOW = 256 * KiB  # bytes of integers looked at together
BLOCK = 8 * KiB  # bytes whose starts are found by doubling
SHORT = 48  # integers of one width for which a step of its own pays


def uint(cursor: Cursor) -> int:
    """Give the next unsigned integer."""
    at = cursor.at
    first = cursor.take(1)[0]
    if first < 0xFB:
        return first
    width = WIDE.get(first)
    if width is None:
        raise CorruptError(f"the byte {first:#04x} at {at:,} begins no integer", offset=at)
    value = int.from_bytes(cursor.take(width), "little")
    if value < SHORTEST[width]:
        raise CorruptError(f"the integer {value} at {at:,} takes {width + 1} bytes, more than it needs", offset=at)
    return value


def sint(cursor: Cursor) -> int:
    """Give the next signed integer."""
    value = uint(cursor)
    return value >> 1 ^ -(value & 1)


def real(cursor: Cursor, encoding: Literal["f32", "f64"]) -> float:
    """Give the next float."""
    width = FLOATS[encoding].itemsize
    found: float = struct.unpack("<f" if width == 4 else "<d", cursor.take(width))[0]
    return found


def truth(cursor: Cursor) -> bool:
    """Give the next byte as a truth, or as what says that an option is there."""
    at = cursor.at
    byte = cursor.take(1)[0]
    if byte > 1:
        raise CorruptError(f"the byte {byte:#04x} at {at:,}, expected 0 or 1", offset=at)
    return byte == 1


def text(cursor: Cursor, most: int) -> str:
    """Give the next text; LimitError above ``most`` bytes."""
    at = cursor.at
    length = uint(cursor)
    if length > most:
        raise LimitError(f"a text of {length:,} bytes at {at:,}, the limit is {most:,}", limit=most, claimed=length)
    try:
        return cursor.take(length).decode()
    except UnicodeDecodeError as error:
        raise CorruptError(f"a text at {at:,} is no UTF-8", offset=at) from error


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of one encoding that follow each other, not read; ``values`` only of those that were read anyway."""

    count: int
    range: Range
    encoding: Encoding
    values: tuple[int, ...] | None = None
    lossy = False

    @property
    def kind(self) -> Literal["float", "int", "bool"]:
        """What they are."""
        return "bool" if self.encoding == "bool" else "float" if self.encoding in FLOATS else "int"

    @property
    def signed(self) -> bool:
        """Whether they are integers that may be negative; the bytes do not tell, a schema does."""
        return self.encoding == "zigzag"

    def promise(self, dtype: DType, shape: Shape, use: Literal["value", "bits", "bytes"] = "value") -> Promise:
        """Give the tensor of that many elements: their values, or with "bits" the patterns of its elements."""
        plain = BOOL if self.encoding == "bool" else FLOATS.get(self.encoding)
        if plain is not None and use == "value":
            return cast(View.rows(self.range, plain, shape), dtype)
        if plain is not None or use == "bytes":
            raise TensorError(f"numbers of encoding {self.encoding} are no {use} of {dtype}", dtype=dtype.name)
        return Made((View.rows(self.range, U8, (self.range.nbytes,)),), Unpacked(dtype, tuple(shape), use, self.signed))


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The elements of integers that follow each other, from their bytes."""

    dtype: DType
    shape: Shape
    use: Literal["value", "bits"]
    zigzag: bool

    @property
    def elementwise(self) -> Literal[False]:
        """An integer may lie anywhere."""
        return False

    def pieces(self, inputs: tuple[Promise, ...]) -> Iterator[np.ndarray[Any, Any]]:
        """Give all elements in order; CorruptError for an integer that the dtype does not hold, or another count."""
        (packed,) = inputs
        gone = "integers of a list are not where they were when it was crossed"
        for raw, starts, count in runs(packed, prod(self.shape), _groups, WINDOW, gone):
            yield self._elements(raw, starts, count)

    def _elements(
        self, raw: np.ndarray[Any, Any], starts: slice | np.ndarray[Any, Any], count: int
    ) -> np.ndarray[Any, Any]:
        import numpy as np  # noqa: PLC0415 - same

        values = _values(raw, starts, count)
        if self.zigzag:
            values = (values >> np.uint64(1)).view("i8") ^ -(values & np.uint64(1)).view("i8")
        wanted = np.dtype(f"<u{self.dtype.itemsize}") if self.use == "bits" else self.dtype.numpy_dtype()
        if wanted.kind in "iu":
            bounds = np.iinfo(wanted)
            for extreme in (int(values.min()), int(values.max())):
                if not bounds.min <= extreme <= bounds.max:
                    what = f"a bit pattern of {self.dtype}" if self.use == "bits" else str(self.dtype)
                    raise CorruptError(f"the integer {extreme} is not {what}")
        return values.astype(wanted)


def measure(cursor: Cursor, count: int, encoding: Encoding) -> Numbers:
    """Give the ``count`` numbers that begin here and move behind them; integers are crossed window by window, and so is truth."""
    floats = FLOATS.get(encoding)
    least = count * (floats.itemsize if floats is not None else 1)
    follows = cursor.left()
    if follows is not None and least > follows:
        raise cursor.short(least)
    if floats is not None:
        return Numbers(count, cursor.leave(least), encoding)
    start, left = cursor.at, count
    while left:
        left -= _cross_truth(cursor, left) if encoding == "bool" else _cross(cursor, left)
    nbytes = cursor.at - start
    cursor.at = start
    return Numbers(count, cursor.leave(nbytes), encoding)


def _cross(cursor: Cursor, left: int) -> int:
    """Move behind the integers that lie whole in the next window, and give how many they are."""
    import numpy as np  # noqa: PLC0415 - long lists only

    raw = np.frombuffer(cursor.look(WINDOW), "u1")
    found = end = 0
    for _, count, end in _groups(raw, left):  # noqa: B007 - the last end is where the next window begins
        found += count
    if not found:
        if len(raw) and not WIDTHS[raw[0]]:
            at = cursor.at
            raise CorruptError(f"the byte {int(raw[0]):#04x} at {at:,} begins no integer", offset=at)
        raise cursor.short(max(left, len(raw) + 1))
    cursor.at += end
    return found


def _cross_truth(cursor: Cursor, left: int) -> int:
    window = cursor.look(min(left, WINDOW))
    wrong = window.translate(None, b"\0\1")
    if wrong:
        at = cursor.at + window.index(wrong[0])
        raise CorruptError(f"the byte {wrong[0]:#04x} at {at:,}, expected 0 or 1", offset=at)
    if not window:
        raise cursor.short(left)
    cursor.at += len(window)
    return len(window)


def _groups(raw: np.ndarray[Any, Any], left: int) -> Iterator[tuple[slice | np.ndarray[Any, Any], int, int]]:
    """Give the starts of up to ``left`` integers that lie whole in ``raw``, how many they are, and the place behind the last one.

    Runs of one width are slices. Ends early at what begins no integer, or is cut.
    """
    at = 0
    while left and at < len(raw):
        width = WIDTHS[raw[at]]
        most = min(left, (len(raw) - at) // width) if width else 0
        if not most:
            return
        run = _run(raw, at, width, most)
        if run >= SHORT or run == most:
            stop = at + run * width
            yield slice(at, stop, width), run, stop
            at, left = stop, left - run
            continue
        starts = _chain(raw, at)[:left]
        last = int(starts[-1])
        stop = last + WIDTHS[raw[last]]
        yield starts, len(starts), stop
        at, left = stop, left - len(starts)


def _run(raw: np.ndarray[Any, Any], at: int, width: int, most: int) -> int:
    """Count the integers of one width that follow each other."""
    import numpy as np  # noqa: PLC0415 - long lists only

    widths, done, block = np.frombuffer(WIDTHS, "u1"), 0, SHORT
    while done < most:
        size = min(block, most - done)
        same = widths[raw[at + done * width : at + (done + size) * width : width]] == width
        if not same.all():
            return done + int(same.argmin())
        done, block = done + size, 16 * block
    return done


def _chain(raw: np.ndarray[Any, Any], at: int) -> np.ndarray[Any, Any]:
    """Give the starts of the integers in the next block, the first of which lies whole in ``raw``; none that is cut or begins none."""
    import numpy as np  # noqa: PLC0415 - same

    block = np.frombuffer(WIDTHS, "u1")[raw[at : at + BLOCK]]
    size = len(block)
    jump = np.arange(size + 1, dtype=np.int32)
    jump[:size] = np.where(block, np.minimum(jump[:size] + block, size), size)
    starts = np.zeros(1, np.int32)
    while starts[-1] < size:
        starts = np.concatenate([starts, jump[starts]])
        jump = jump[jump]
    starts = starts[: np.searchsorted(starts, size)]
    last = int(starts[-1])
    if not block[last] or at + last + int(block[last]) > len(raw):
        starts = starts[:-1]
    return starts + at


def _values(raw: np.ndarray[Any, Any], starts: slice | np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Give the integers that begin at ``starts`` as u64; CorruptError where one is longer than it needs to be."""
    import numpy as np  # noqa: PLC0415 - same

    if isinstance(starts, slice):
        width = starts.step - 1
        if not width:
            narrow: np.ndarray[Any, Any] = raw[starts].astype("<u8")
            return narrow
        packed = raw[starts.start : starts.stop].reshape(count, width + 1)[:, 1:]
        return _wide(packed, width).astype(np.uint64)
    first = raw[starts]
    out: np.ndarray[Any, Any] = first.astype("<u8")
    for mark, width in WIDE.items():
        where = np.flatnonzero(first == mark)
        if len(where):
            out[where] = _wide(raw[starts[where][:, None] + np.arange(1, width + 1)], width)
    return out


def _wide(packed: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    import numpy as np  # noqa: PLC0415 - same

    found: np.ndarray[Any, Any] = np.ascontiguousarray(packed).view(f"<u{width}").reshape(-1)
    if int(found.min()) < SHORTEST[width]:
        raise CorruptError(f"the integer {int(found.min())} of a list takes {width + 1} bytes, more than it needs")
    return found
