"""Arrays of msgpack numbers: how many bytes they take, and their elements, by numpy and never one by one.

    00-7f e0-ff   the number itself    c2 c3  false, true       1 byte
    cc d0         u8, i8               cd d1  u16, i16          2 and 3 bytes, big-endian
    ce d2 ca      u32, i32, f32        cf d3 cb  u64, i64, f64  5 and 9 bytes

An array of floats has a stride of 5 or 9 bytes, so it is a look into the file whose markers are checked as they are drawn. Integers
have the width that they need. They are read in runs of one marker. Where these are short (a half-precision moment with a zero here and
there) a window is cut into lanes that are walked side by side, each entered from a guess a little before it, which soon falls into
step with the items; a lane counts where the one before it leaves exactly where it was entered, so nothing is guessed in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ckptmigrate.dtypes import F32, F64, U8
from ckptmigrate.errors import CorruptError, TensorError, TruncatedError
from ckptmigrate.limits import KiB
from ckptmigrate.tensor import Made, View, cast
from ckptmigrate.tensor.strides import row_major

from .number_runs import runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from ckptmigrate.dtypes import DType
    from ckptmigrate.files import Range
    from ckptmigrate.tensor import Promise, Shape

    from .cursor import Cursor

Use: TypeAlias = Literal["value", "bits"]
"""What an array's numbers are to a tensor: its elements, or their bit patterns."""

WIDTHS = bytes(
    {0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}.get(
        marker, 1 if marker < 0x80 or marker >= 0xE0 else 0
    )
    for marker in range(256)
)
"""Bytes of the item that a marker begins; 0 for what is no number."""

FIXED, TRUTH = 0, 0xC2  # classes of one-byte items; every other number's class is its marker
CLASSES = bytes(FIXED if WIDTHS[m] == 1 and m not in {0xC2, 0xC3} else TRUTH if m == 0xC3 else m for m in range(256))
STORED = {
    0xCA: "f4", 0xCB: "f8", 0xCC: "u1", 0xCD: "u2", 0xCE: "u4", 0xCF: "u8", 0xD0: "i1", 0xD1: "i2", 0xD2: "i4", 0xD3: "i8",
}  # fmt: skip
FLOATS = {0xCA: (5, F32), 0xCB: (9, F64)}

WINDOW = (
    256 * KiB
)  # bytes of numbers looked at together: stays in the processor's second cache with what is made of them
SHORT = 64  # numbers of one marker for which a step of its own pays
LONG = 1024  # numbers of one marker that pay for a step over a short run before them
LANE, WARM, FEW = 128, 24, 64  # bytes of a lane, bytes before it from which it is entered, lanes that pay
BLOCK = 8 * KiB  # bytes whose starts are found by doubling


@cache
def shared(classes: frozenset[int]) -> frozenset[int]:
    """Give one and the same set for equal ones: most arrays of a file have the same."""
    return classes


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of numbers in a file, not read. ``classes`` are the kinds of items that it has; ``values`` only of a short one."""

    count: int
    range: Range
    classes: frozenset[int]
    values: tuple[float | bool, ...] | None = None
    lossy = False

    @property
    def kind(self) -> Literal["float", "int", "bool", "null"]:
        """What they are: floats if one of them is."""
        if TRUTH in self.classes:
            return "bool"
        return "float" if self.classes & FLOATS.keys() else "int"

    @property
    def signed(self) -> bool:
        """Whether one of them is written as a negative integer."""
        if self.values is not None:
            return any(value < 0 for value in self.values)
        return not self.classes.isdisjoint({0xD0, 0xD1, 0xD2, 0xD3, -1})

    def promise(self, dtype: DType, shape: Shape, use: Use = "value") -> Promise:
        """Give the tensor of that many elements; the caller has compared the counts."""
        if use == "value" and dtype.kind == "float" and len(self.classes) == 1:
            (marker,) = self.classes
            width, stored = FLOATS.get(marker, (0, F32))
            if width:
                look = View(self.range, stored, shape, row_major(shape, width), 1, big_endian=True, marker=marker)
                return cast(look, dtype)
        return Made((View.rows(self.range, U8, (self.range.nbytes,)),), Unpacked(dtype, shape, use))


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The elements of an array of msgpack numbers, from its bytes."""

    dtype: DType
    shape: Shape
    use: Use

    @property
    def elementwise(self) -> Literal[False]:
        """A number may lie anywhere."""
        return False

    def pieces(self, inputs: tuple[Promise, ...]) -> Iterator[np.ndarray[Any, Any]]:
        """Give all elements in order; CorruptError for a number that the dtype does not hold, or another count."""
        (packed,) = inputs
        gone = "numbers of an array are not where they were when it was measured"
        for raw, starts, count in runs(packed, prod(self.shape), _groups, WINDOW, gone):
            yield self._elements(raw, starts, count)

    def _elements(
        self, raw: np.ndarray[Any, Any], starts: slice | np.ndarray[Any, Any], count: int
    ) -> np.ndarray[Any, Any]:
        import numpy as np  # noqa: PLC0415 - same

        out = np.empty(count, self.dtype.numpy_dtype() if self.use == "value" else f"<u{self.dtype.itemsize}")
        if isinstance(starts, slice):
            self._place(_values(raw, starts, CLASSES[raw[starts.start]]), out, slice(None))
            return out
        classes = np.frombuffer(CLASSES, "u1").take(raw.take(starts, mode="clip"), mode="clip")
        for kind in np.flatnonzero(np.bincount(classes, minlength=256)):
            where = np.flatnonzero(classes == kind)
            self._place(_values(raw, starts[where], int(kind)), out, where)
        return out

    def _place(self, values: np.ndarray[Any, Any], out: np.ndarray[Any, Any], where: Any) -> None:
        import numpy as np  # noqa: PLC0415 - same

        fits = {"b": "b", "i": "iu", "u": "iu", "f": "fiu"}[out.dtype.kind if out.dtype.kind in "biuf" else "f"]
        if values.dtype.kind not in fits:
            raise TensorError(f"a number of {values.dtype} in an array of {self.dtype}", dtype=self.dtype.name)
        if out.dtype.kind in "iu" and not np.can_cast(values.dtype, out.dtype):
            bounds = np.iinfo(out.dtype)
            for extreme in (int(values.min()), int(values.max())):
                if not bounds.min <= extreme <= bounds.max:
                    what = f"no {self.dtype}" if self.use == "value" else f"no bit pattern of {self.dtype}"
                    raise CorruptError(f"the number {extreme} is {what}")
        with np.errstate(over="ignore"):  # an f64 beyond f32 becomes infinite, as in any cast
            out[where] = values


def measure(cursor: Cursor, count: int) -> Numbers | None:
    """Give the array of ``count`` items that begins here and move behind it; None, without moving, if the first is no number.

    Floats are skipped by their width when the first window and the last marker agree; else every item is found, in windows.
    """
    marker = cursor.look(1)
    if not marker or not WIDTHS[marker[0]]:
        return None
    width, _ = FLOATS.get(marker[0], (0, None))
    if width and _alike(cursor, count, width, marker):
        return Numbers(count, cursor.leave(count * width), frozenset(marker))
    return _scan(cursor, count)


def _alike(cursor: Cursor, count: int, width: int, marker: bytes) -> bool:
    """Tell whether ``count`` items of one width are there, as far as the first and the last ones say."""
    left, start = cursor.left(), cursor.at
    if left is not None and count * width > left:
        return False
    head = cursor.look(min(count * width, WINDOW // 4))[::width]
    if head.count(marker) != len(head):
        return False
    cursor.at += (count - 1) * width
    last = cursor.look(1)
    cursor.at = start
    return last == marker


def _scan(cursor: Cursor, count: int) -> Numbers:
    """Find where every item begins, keeping nothing."""
    import numpy as np  # noqa: PLC0415 - long arrays only

    start, left = cursor.at, count
    seen = np.zeros(256, bool)
    while left:
        window = cursor.look(WINDOW)
        raw = np.frombuffer(window, "u1")
        end = 0
        for starts, found, end in _groups(raw, left):  # noqa: B007 - the last end is what follows
            seen[raw[starts.start if isinstance(starts, slice) else starts]] = True
            left -= found
        if not end:
            if len(window) >= max(WIDTHS) or (window and not WIDTHS[window[0]]):
                raise CorruptError(
                    f"the byte {window[0]:#04x} at {cursor.at:,} begins no number, and {left:,} of an array's {count:,} are missing",
                    offset=cursor.at,
                )  # fmt: skip
            raise TruncatedError(
                f"ends within an array of {count:,} numbers, {left:,} of which are missing",
                needed=cursor.at + left, present=cursor.at + len(window),
            )  # fmt: skip
        cursor.at += end
    nbytes = cursor.at - start
    cursor.at = start
    markers = {int(m) for m in np.flatnonzero(seen)}
    classes = {CLASSES[m] for m in markers} | ({-1} if any(m >= 0xE0 for m in markers) else set())
    return Numbers(count, cursor.leave(nbytes), frozenset(classes - {FIXED} or {FIXED}))


def _groups(raw: np.ndarray[Any, Any], left: int) -> Iterator[tuple[slice | np.ndarray[Any, Any], int, int]]:
    """Give the starts of up to ``left`` items that lie whole in ``raw``, how many they are, and the place behind the last one.

    A slice is of items with one marker. Ends early at what is no number, or cut.
    """
    at, end = 0, len(raw)
    steps: np.ndarray[Any, Any] | None = None
    doubling = False
    while left and at < end:
        width = WIDTHS[raw[at]]
        most = min(left, (end - at) // width) if width else 0
        if not most:
            return
        run = _run(raw, at, width, most)
        stop = at + run * width
        if run >= SHORT or run == most or _is_lone(raw, stop, left - run):
            yield slice(at, stop, width), run, stop
            at, left = stop, left - run
            continue
        steps = _steps(raw) if steps is None else steps
        count = 0 if doubling else (end - at) // LANE
        starts = _lanes(steps, at, count) if count >= FEW else _chain(steps, at)
        doubling = doubling or (count >= FEW and len(starts) < LANE)  # bytes that never fall into step
        starts = _whole(raw, starts)[:left]
        last = int(starts[-1])
        stop = last + WIDTHS[raw[last]]
        yield starts, len(starts), stop
        at, left = stop, left - len(starts)


def _is_lone(raw: np.ndarray[Any, Any], at: int, left: int) -> bool:
    """Tell whether what follows a short run is a long one: trained weights have a small number every ten thousand items."""
    width = WIDTHS[raw[at]] if at < len(raw) else 0
    most = min(left, LONG, (len(raw) - at) // width) if width else 0
    return most > 0 and _run(raw, at, width, most) == most


def _run(raw: np.ndarray[Any, Any], at: int, width: int, most: int) -> int:
    """Count the items of one marker that follow each other."""
    done, block, marker = 0, SHORT, raw[at]
    while done < most:
        size = min(block, most - done)
        same = raw[at + done * width : at + (done + size) * width : width] == marker
        if not same.all():
            return done + int(same.argmin())
        done, block = done + size, 16 * block
    return done


def _steps(raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give the width of the item that each byte would begin; 1 for what begins none."""
    import numpy as np  # noqa: PLC0415 - same

    return np.maximum(np.frombuffer(WIDTHS, "u1"), 1).take(raw, mode="clip")  # type: ignore[no-any-return] # three times as fast as an index


def _whole(raw: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give the starts up to the first that is no number's, or the last where its item is cut; the first is neither."""
    import numpy as np  # noqa: PLC0415 - same

    widths = np.frombuffer(WIDTHS, "u1").take(raw.take(starts, mode="clip"), mode="clip")
    good = len(starts) if widths.all() else int(widths.argmin())
    return starts[: good - (int(starts[good - 1]) + int(widths[good - 1]) > len(raw))]


def _lanes(steps: np.ndarray[Any, Any], at: int, count: int) -> np.ndarray[Any, Any]:
    """Give the starts in as many of the next ``count`` lanes as were entered where the one before leaves, at least one."""
    import numpy as np  # noqa: PLC0415 - same

    begins = np.arange(at, at + count * LANE, LANE)
    ends = begins + LANE
    place = begins - WARM
    place[0] = at
    while (behind := place < begins).any():
        place += steps.take(place, mode="clip") * behind
    entries, rows = place, []
    while (inside := place < ends).any():
        for _ in range(4):  # asking whether all are through costs as much as a step
            rows.append(place)
            place = place + steps.take(place, mode="clip") * inside
            inside = place < ends
    agree = entries[1:] == place[:-1]
    right = count if agree.all() else int(agree.argmin()) + 1
    found = np.array(rows)[:, :right].T
    return found[found < ends[:right, None]]


def _chain(steps: np.ndarray[Any, Any], at: int) -> np.ndarray[Any, Any]:
    """Give the starts in the next block by doubling: exact whatever the bytes, and ten times slower than lanes."""
    import numpy as np  # noqa: PLC0415 - same

    block = steps[at : at + BLOCK]
    size = len(block)
    jump = np.arange(size + 1, dtype=np.int32)
    jump[:size] = np.minimum(jump[:size] + block, size)
    starts = np.zeros(1, np.int32)
    while starts[-1] < size:
        starts = np.concatenate([starts, jump[starts]])
        jump = jump[jump]
    return starts[: np.searchsorted(starts, size)] + at


def _values(raw: np.ndarray[Any, Any], starts: slice | np.ndarray[Any, Any], kind: int) -> np.ndarray[Any, Any]:
    """Give the numbers of items of one class."""
    import numpy as np  # noqa: PLC0415 - same

    if kind == FIXED:
        return raw[starts].view("i1")
    if kind == TRUTH:
        return raw[starts] == 0xC3  # type: ignore[no-any-return]
    stored = np.dtype(STORED[kind])
    if isinstance(starts, slice):
        count = (starts.stop - starts.start) // starts.step
        return np.ndarray(count, stored.newbyteorder(">"), raw.data, starts.start + 1, (starts.step,))
    bits = np.dtype(f"u{stored.itemsize}")
    number = raw.take(starts + 1, mode="clip").astype(bits)
    for place in range(2, stored.itemsize + 1):
        number <<= bits.type(8)
        number |= raw.take(starts + place, mode="clip")
    return number.view(stored)
