"""Strided looks into a file: their geometry, what drawing them costs, and the drawing itself.

A look is a shape and a stride in bytes for each of its axes. A window of it, elements [start, stop) in row-major order, is cut
into boxes; each box is read in the order of the file, dense stretches with one call, and laid out in memory by one strided copy:

    file    ..aaaa......bbbb......cccc......dddd..        stretches, gaps of up to a page read and thrown away
    memory  aaaa bbbb cccc dddd  ->  abcd abcd abcd abcd   at most STRETCH bytes at a time

Line by line a transpose runs at 3 MB/s, in windows of 32 MiB at hundreds: ``best_window`` finds how much to ask for at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from ckptmigrate.limits import KiB, MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

Shape = tuple[int, ...]
Dims = list[tuple[int, int]]  # (length, stride in bytes)

PAGE = 4 * KiB  # a gap up to here costs no more than the call that would spare it: the kernel reads whole pages
STRETCH = MiB  # bytes read before they are laid out: stays in the processor's second cache
SKEW = 64  # bytes between stretches in memory: without them, stretches of 2^n bytes fall into one set of the cache
WINDOWS = (
    MiB,
    4 * MiB,
    16 * MiB,
    32 * MiB,
)  # bytes that may be asked for at once; the last is the price of a transpose
CALL = 3e-6  # seconds that one pread costs through Python (measured: 2 to 4 µs)
BYTE = 5e-10  # seconds a byte costs on its way from the page cache into place (measured: 1 to 3 GB/s)


def row_major(shape: Shape, itemsize: int) -> tuple[int, ...]:
    """Give the strides of elements that lie one after the other."""
    strides, step = [0] * len(shape), itemsize
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def collapse(shape: Shape, strides: tuple[int, ...]) -> Dims:
    """Give the fewest axes that describe the same elements in the same order: none of length 1, none that continues the next."""
    dims: Dims = []
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if dims and s == dims[-1][0] * dims[-1][1]:
            dims[-1] = (n * dims[-1][0], dims[-1][1])
        else:
            dims.append((n, s))
    return dims[::-1]


def reshaped(shape: Shape, strides: tuple[int, ...], new: Shape) -> tuple[int, ...] | None:
    """Give the strides of the same elements in another shape, or None where no strides can say it."""
    result = [0] * len(new)
    if 0 in new:
        return tuple(result)
    at = 0
    for length, stride in collapse(shape, strides):
        left = length
        while left > 1:
            while new[at] == 1:
                at += 1
            if left % new[at]:
                return None
            left //= new[at]
            result[at] = stride * left
            at += 1
    return tuple(result)


def whole_lines(limit: int, shape: Shape) -> int:
    """Give the largest number of elements up to ``limit`` that is made of whole lines, planes, …; at least 1."""
    line = 1
    for n in reversed(shape):
        if line * n > limit:
            return max(1, limit // line) * line
        line *= max(1, n)
    return line


def boxes(shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    """Cut elements [start, stop) into boxes, each a corner and a shape; in order, they are those elements one after the other."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    line = prod(shape[1:])
    first, head = divmod(start, line)
    last, tail = divmod(stop, line)
    if first == last:
        for corner, box in boxes(shape[1:], head, tail):
            yield (first, *corner), (1, *box)
        return
    if head:
        for corner, box in boxes(shape[1:], head, line):
            yield (first, *corner), (1, *box)
        first += 1
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    for corner, box in boxes(shape[1:], 0, tail):
        yield (last, *corner), (1, *box)


def source_order(dims: Dims) -> Dims:
    """Give the axes that move through the file, largest steps first."""
    return sorted(((n, s) for n, s in dims if s and n > 1), key=lambda dim: -dim[1])


def stretches(dims: Dims, cell: int) -> tuple[int, int]:
    """Give how many stretches the axes (in source order) make, and the bytes of each; gaps up to a page belong to it."""
    count, size = 1, cell
    for n, s in reversed(dims):
        if count == 1 and s - size <= PAGE:
            size += (n - 1) * s
        else:
            count *= n
    return count, size


@dataclass(frozen=True, slots=True)
class Window:
    """How much is best drawn at once, and what drawing everything so costs."""

    elements: int
    seconds: float  # per byte drawn
    read: float  # bytes read per byte drawn


@lru_cache(1024)  # asked again for every window that is drawn
def best_window(shape: Shape, strides: tuple[int, ...], itemsize: int, cell: int) -> Window:
    """Choose a window of a look that is not empty; ``cell`` is an element's bytes with its marker.

    The smallest wins unless a larger one saves a fifth: memory is dearer than a few calls.
    """
    dims = collapse(shape, strides)
    lengths = tuple(n for n, _ in dims)
    best: Window | None = None
    for budget in WINDOWS:
        elements = whole_lines(max(1, budget // itemsize), lengths)
        box, left = [], elements
        for n, s in reversed(dims):
            box.append((min(n, left), s))
            left = max(1, left // n)
        count, size = stretches(source_order(box), cell)
        calls = count * max(1, size // STRETCH)
        drawn = elements * itemsize
        window = Window(elements, (calls * CALL + count * size * BYTE) / drawn, count * size / drawn)
        if best is None or window.seconds < 0.8 * best.seconds:
            best = window
    assert best is not None
    return best


def interleave(
    shape: Shape,
    axis: int,
    parts: Sequence[tuple[int, Callable[[int, int], memoryview]]],
    itemsize: int,
    start: int,
    stop: int,
) -> memoryview:
    """Give the bytes of elements [start, stop) of parts side by side along an axis: each part's length there, and its read.

    Every part is asked for one block of whole lines, and for what is left of the broken lines at either end.
    """
    inner = prod(shape[axis + 1 :])
    pieces = list(boxes((prod(shape[:axis]), shape[axis] * inner), start, stop))
    asked = []  # per piece and part: read, from, to, where it stands in the piece's lines
    for (first, left), (count, width) in pieces:
        begins = 0
        for length, read in parts:
            line = length * inner
            low, high = max(left, begins), min(left + width, begins + line)
            if low < high:
                at = first * line + low - begins
                asked.append(((count, width), read, at, at + (count - 1) * line + high - low, low - left, high - left))
            begins += line
    if len(asked) == 1:
        return asked[0][1](asked[0][2], asked[0][3])
    import numpy as np  # noqa: PLC0415 - interleaving needs it; one part alone never comes here

    out = np.empty((stop - start) * itemsize, "u1")
    at = 0
    for (count, width), read, begin, end, low, high in asked:
        rows = out[at : at + count * width * itemsize].reshape(count, width * itemsize)
        rows[:, low * itemsize : high * itemsize] = np.frombuffer(read(begin, end), "u1").reshape(count, -1)
        if high == width:
            at += count * width * itemsize
    return out.data


class Gather:
    """Draws boxes of one look.

    ``read_into(offset, buffer)`` reads the file; an element of ``dtype`` stands behind ``lead`` bytes of marker, which
    ``check(offset of the first element, strides, markers)`` gets to see.
    """

    def __init__(
        self,
        read_into: Callable[[int, memoryview], None],
        dtype: np.dtype[Any],
        lead: int,
        check: Callable[[int, tuple[int, ...], np.ndarray[Any, Any]], None] | None,
    ) -> None:
        import numpy as np  # noqa: PLC0415 - strided copies need it; plain ranges never come here

        self.numpy = np
        self.read_into = read_into
        self.dtype = dtype
        self.lead = lead
        self.cell = dtype.itemsize + lead
        self.check = check
        self.scratch: Any = None

    def box(self, out: np.ndarray[Any, Any], strides: tuple[int, ...], offset: int) -> None:
        """Fill ``out``, whose axes have these strides in the file and whose first element lies at ``offset``."""
        order = sorted((axis for axis, s in enumerate(strides) if s), key=lambda axis: -strides[axis])
        still = [axis for axis, s in enumerate(strides) if not s]
        corner: tuple[Any, ...] = (*(0,) * len(still), ...)
        first = out.transpose(*still, *order)[corner]
        self._part([(out.shape[axis], strides[axis]) for axis in order], first, offset)
        for axis in still:  # a repeated axis is read once and copied in memory
            one = out.swapaxes(0, axis)
            one[1:] = one[:1]

    def _part(self, dims: Dims, out: np.ndarray[Any, Any], offset: int) -> None:
        """Split the outermost axis until a part fits the scratch buffer, then fetch it."""
        if not dims:
            self._fetch(dims, out, offset)
            return
        (n, s), rest = dims[0], dims[1:]
        count, size = stretches(rest, self.cell)
        inner = count * (size + SKEW)
        if inner > STRETCH and rest:
            for index in range(n):
                self._part(rest, out[index], offset + index * s)
            return
        dense = count == 1 and s - size <= PAGE
        step = max(1, (STRETCH - size) // s + 1 if dense else STRETCH // inner)
        for index in range(0, n, step):
            part = out[index : index + step]
            self._fetch([(len(part), s), *rest], part, offset + index * s)

    def _fetch(self, dims: Dims, out: np.ndarray[Any, Any], offset: int) -> None:
        """Read the stretches of one part side by side, and copy them to their places."""
        count, size = stretches(dims, self.cell)
        loops, left = 0, count
        while left > 1:
            left //= dims[loops][0]
            loops += 1
        pitch = size + SKEW if count > 1 else size
        if self.scratch is None or len(self.scratch) < count * pitch:
            self.scratch = self.numpy.empty(count * pitch, "u1")
        buffer = memoryview(self.scratch)
        offsets = [offset - self.lead]
        for n, s in dims[:loops]:
            offsets = [base + index * s for base in offsets for index in range(n)]
        for index, at in enumerate(offsets):
            self.read_into(at, buffer[index * pitch : index * pitch + size])
        shape = tuple(n for n, _ in dims)
        steps = (*row_major(shape[:loops], pitch), *(s for _, s in dims[loops:]))
        if self.check is not None:
            self.check(offset, tuple(s for _, s in dims), self.numpy.ndarray(shape, "u1", buffer, 0, steps))
        out[...] = self.numpy.ndarray(shape, self.dtype, buffer, self.lead, steps)
