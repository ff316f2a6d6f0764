"""View: a strided look into a range of a file, the promise that every tensor of a file is.

A view that windows would have to read many times over (a tall thin matrix, transposed) is drawn into the Disk's scratch when it
is first read: in the order of the file, in blocks that are row-major in themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ckptmigrate.errors import CorruptError, LimitError, TensorError
from ckptmigrate.files import Range
from ckptmigrate.limits import LIMITS, KiB, Limits, MiB

from .strides import (
    BYTE,
    WINDOWS,
    Gather,
    Window,
    best_window,
    boxes,
    collapse,
    interleave,
    reshaped,
    row_major,
    whole_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from ckptmigrate.dtypes import DType
    from ckptmigrate.files.source import Spills

Shape: TypeAlias = tuple[int, ...]
Put: TypeAlias = "Callable[[memoryview | bytes], None]"

CHUNK = 16 * MiB  # bytes of a view that go to scratch as one block: half of the largest window
STAGE = 6 * BYTE  # seconds a byte may cost before scratch is cheaper: twice its three passes
TINY = 16 * KiB  # bytes of a look up to which one read and one copy are all: a hundred thousand of them take seconds
AGAIN = 1.05  # times that the bytes of a source may be read: the law of this house


@dataclass(frozen=True, slots=True)
class View:
    """A strided look into a range; ``strides`` and ``offset`` in bytes.

    Equal looks are equal values: the range is cut to what is looked at, strides that move nothing are 0. CorruptError where
    the look leaves its range or steps backwards; nothing is read. ``marker`` is the byte that must stand before each element
    (msgpack's float markers), checked as they are drawn.
    """

    range: Range
    dtype: DType
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0
    big_endian: bool = False
    marker: int | None = None

    @classmethod
    def rows(cls, range: Range, dtype: DType, shape: Shape, *, big_endian: bool = False) -> View:  # noqa: A002 - the field's name
        """Look at elements that lie one after the other from the start of the range."""
        return cls(range, dtype, shape, row_major(shape, dtype.itemsize), big_endian=big_endian)

    def __post_init__(self) -> None:
        """Check the claim in Python's own integers, then normalise."""
        shape, strides, offset, file = tuple(self.shape), tuple(self.strides), self.offset, self.range.file.name
        if len(shape) != len(strides):
            raise CorruptError(f"a tensor has {len(shape)} sizes and {len(strides)} strides", path=file)
        if len(shape) > LIMITS.dimensions:
            raise LimitError(
                f"a tensor has {len(shape):,} axes, expected up to {LIMITS.dimensions}",
                path=file, limit=LIMITS.dimensions, claimed=len(shape),
            )  # fmt: skip
        for what, numbers in (("size", shape), ("stride", strides), ("offset", (offset,))):
            for number in numbers:
                if not isinstance(number, int) or number < 0:
                    raise CorruptError(f"a tensor has the {what} {number!r}, expected an integer from 0", path=file)
        if 0 in shape:
            end, lead, strides = 0, 0, (0,) * len(shape)
            object.__setattr__(self, "marker", None)
            object.__setattr__(self, "range", Range(self.range.file, self.range.offset, 0, self.range.member))
        else:
            lead = 0 if self.marker is None else 1
            end = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + self.dtype.itemsize
            if offset < lead or end > self.range.nbytes:
                raise CorruptError(
                    f"a tensor of {self.dtype} {list(shape)} with strides {list(strides)} needs bytes {offset - lead:,} to {end:,}"
                    f" of a range of {self.range.nbytes:,} bytes at {self.range.offset:,}",
                    path=file, needed=end, present=self.range.nbytes,
                )  # fmt: skip
            strides = tuple(s if n > 1 else 0 for n, s in zip(shape, strides, strict=True))
            object.__setattr__(self, "range", self.range.part(offset - lead, end - offset + lead))
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "strides", strides)
        object.__setattr__(self, "offset", lead)
        object.__setattr__(self, "big_endian", bool(self.big_endian and self.dtype.swap > 1 and 0 not in shape))

    @property
    def numel(self) -> int:
        """Elements in all."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, row-major."""
        return self.numel * self.itemsize

    @property
    def window(self) -> int:
        """Elements best read at once: 1 MiB of what lies in order, up to 32 MiB of what does not."""
        if self.nbytes <= WINDOWS[0]:
            return max(1, self.numel)
        if self._is_staged():
            return whole_lines(WINDOWS[-1] // self.itemsize, self.shape)
        return self._window().elements

    def _window(self) -> Window:
        if 0 in self.shape:
            return Window(1, 0, 0)
        return best_window(self.shape, self.strides, self.itemsize, self.itemsize + self.offset)

    def _is_staged(self) -> bool:
        """Whether the elements go through scratch: they would be slow from here, or read more than once."""
        if self.nbytes <= WINDOWS[-1] or 0 in self.strides or self.range.file.disk is None:
            return False
        window = self._window()
        return window.seconds > STAGE or window.read * self.nbytes > AGAIN * self.range.nbytes

    def _staged(self) -> Range:
        """Give the place in scratch where the elements lie in blocks, once one of them is read."""
        return spill((self.range,), ("blocks", self), self.nbytes, partial(_write_blocks, self))

    def sources(self) -> Iterator[Range]:
        """Give the range, and what lies in scratch on the way."""
        yield from self._staged().sources() if self._is_staged() else self.range.sources()

    def plain(self) -> Range | None:
        """Give the range, where it holds exactly these bytes in order."""
        if self.big_endian or self.marker is not None:
            return None
        in_order = 0 in self.shape or collapse(self.shape, self.strides) in ([], [(self.numel, self.itemsize)])
        return self.range if in_order else None

    def read(self, start: int, stop: int) -> memoryview:
        """Give the bytes of elements [start, stop); CorruptError where a marker is not there."""
        check_window(self, start, stop)
        if start == stop:
            return memoryview(b"")
        if self.plain() is not None:
            part = self.range.part(start * self.itemsize, (stop - start) * self.itemsize)
            buffer = memoryview(bytearray(part.nbytes))
            part.file.pread_into(part.offset, buffer)
            return buffer
        if self._is_staged():
            return _read_blocks(self, self._staged(), start, stop)
        return self.draw(start, stop)

    def draw(self, start: int, stop: int) -> memoryview:
        """Give the bytes of elements [start, stop) straight from where they lie."""
        import numpy as np  # noqa: PLC0415 - strided copies need it; plain ranges never come here

        if self.marker is None and stop - start == self.numel and max(self.nbytes, self.range.nbytes) <= TINY:
            return self._draw_tiny()
        dims = collapse(self.shape, self.strides)
        lengths, steps = tuple(n for n, _ in dims), tuple(s for _, s in dims)
        raw = np.dtype(self._raw)
        out = np.empty(stop - start, raw)
        swapped = self.big_endian and self.dtype.swap == self.itemsize  # in the one pass that lays them out
        stored = raw.newbyteorder(">") if swapped else raw
        gather = Gather(self.range.file.pread_into, stored, self.offset, None if self.marker is None else self._check)
        at = 0
        for corner, box in boxes(lengths, start, stop):
            count = prod(box)
            place = self.range.offset + self.offset + sum(c * s for c, s in zip(corner, steps, strict=True))
            gather.box(out[at : at + count].reshape(box), steps, place)
            at += count
        if self.big_endian and not swapped:
            out.view(f"u{self.dtype.swap}").byteswap(inplace=True)
        return out.view("u1").data

    @property
    def _raw(self) -> str:
        return f"<u{self.itemsize}" if self.itemsize in {1, 2, 4, 8} else f"V{self.itemsize}"

    def _draw_tiny(self) -> memoryview:
        """Give all elements of a look that costs less to read with its gaps than to cut into boxes."""
        import numpy as np  # noqa: PLC0415 - same

        held = self.range.file.pread(self.range.offset, self.range.nbytes)
        out = np.array(np.ndarray(self.shape, self._raw, held, 0, self.strides), order="C").reshape(-1)
        if self.big_endian:
            out.view(f"u{self.dtype.swap}").byteswap(inplace=True)
        return out.view("u1").data

    def _check(self, offset: int, strides: tuple[int, ...], markers: np.ndarray[Any, Any]) -> None:
        import numpy as np  # noqa: PLC0415 - same

        wrong = markers.copy() != self.marker  # a comparison in steps takes twice as long as both
        if wrong.any():
            first = tuple(int(i) for i in np.argwhere(wrong)[0])
            at = offset - 1 + sum(i * s for i, s in zip(first, strides, strict=True))
            found = int(markers[first])
            raise CorruptError(
                f"the byte {found:#04x} at {at:,} stands before an element, expected {self.marker:#04x}",
                path=self.range.file.name, offset=at,
            )  # fmt: skip

    def _look(self, shape: Shape, strides: tuple[int, ...], skip: int = 0) -> View:
        return View(self.range, self.dtype, shape, strides, self.offset + skip, self.big_endian, self.marker)

    def transpose(self, axes: tuple[int, ...]) -> View:
        """Give axis ``axes[i]`` as axis i."""
        check_axes(self, axes)
        return self._look(tuple(self.shape[axis] for axis in axes), tuple(self.strides[axis] for axis in axes))

    def reshape(self, shape: Shape) -> View:
        """Give as many elements in another shape; through scratch where no strides can say it."""
        check_shape(self, shape)
        strides = reshaped(self.shape, self.strides, shape)
        return self._look(shape, strides) if strides is not None else self._spilled().reshape(shape)

    def slice(self, axis: int, start: int, stop: int) -> View:
        """Give positions [start, stop) of an axis."""
        check_slice(self, axis, start, stop)
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return self._look(shape, self.strides, start * self.strides[axis] if stop > start else 0)

    def _spilled(self) -> View:
        """Give the same elements in row-major order, in scratch."""

        def write(put: Put) -> None:
            window = self.window
            for start in range(0, self.numel, window):
                write_pieces(self.read(start, min(start + window, self.numel)), put)

        return View.rows(spill(tuple(self.sources()), self, self.nbytes, write), self.dtype, self.shape)


def neighbours(left: View, right: View, axis: int) -> View | None:
    """Give the one view that two views side by side make, if they do."""
    if not (left.numel and right.numel):
        return None
    a, b = left.range, right.range
    if a.file is not b.file or (left.big_endian, left.marker) != (right.big_endian, right.marker):
        return None
    apart = b.offset - a.offset
    lengths = (left.shape[axis], right.shape[axis])
    if apart <= 0 or apart % lengths[0]:
        return None
    step = apart // lengths[0]
    for view, length in ((left, lengths[0]), (right, lengths[1])):
        if length > 1 and view.strides[axis] != step:
            return None
    others = [view.strides[:axis] + view.strides[axis + 1 :] for view in (left, right)]
    if others[0] != others[1]:
        return None
    member = a.member if a.member == b.member else None
    end = max(a.offset + a.nbytes, b.offset + b.nbytes)
    shape = (*left.shape[:axis], sum(lengths), *left.shape[axis + 1 :])
    strides = (*left.strides[:axis], step, *left.strides[axis + 1 :])
    span = Range(a.file, a.offset, end - a.offset, member)
    return View(span, left.dtype, shape, strides, left.offset, left.big_endian, left.marker)


def check_expansion(view: View, limits: Limits = LIMITS, path: str | None = None, storage: int | None = None) -> None:
    """Refuse a view of a small storage that claims to be huge (strides of 0, overlaps); LimitError gives both numbers.

    ``storage``: bytes of the storage it looks into, where they are more than those it looks at.
    """
    held = max(view.range.nbytes, storage or 0)
    if view.nbytes <= max(held, limits.small):
        return
    for limit, allowed in (("expansion", held * limits.expansion), ("expanded", held + limits.expanded)):
        if view.nbytes > allowed:
            raise LimitError(
                f"a tensor of {view.nbytes:,} bytes looks at a storage of {held:,} bytes, expected up to {allowed:,} ({limit})",
                path=path or view.range.file.name, limit=allowed, claimed=view.nbytes,
            )  # fmt: skip


def spill(sources: tuple[Range, ...], key: object, nbytes: int, write: Callable[[Put], None]) -> Range:
    """Reserve scratch for what is drawn from ``sources`` when it is first read; the same key gives the same place.

    TensorError where their files belong to no Disk with scratch.
    """
    disk: Spills | None = next((source.file.disk for source in sources if source.file.disk is not None), None)
    if disk is None:
        raise TensorError(
            "a tensor must be drawn before a view of it can be taken, and its files belong to no Disk with scratch"
        )
    origins = (below for source in sources for below in source.sources())
    return Range(disk.spill(sources[0].file.name, nbytes, write, key=key, origins=origins), 0, nbytes)


def write_pieces(window: memoryview, put: Put) -> None:
    """Hand a window on in pieces of 1 MiB: whoever writes may keep what it is given for a moment."""
    for at in range(0, len(window), MiB):
        put(window[at : at + MiB])


def _leaves(view: View) -> tuple[int, list[View]] | None:
    """Cut a view along the axis that takes the largest steps in the file: that axis and the parts, or None if it is one block."""
    if view.nbytes <= CHUNK:
        return None
    axis = max(range(len(view.shape)), key=lambda axis: view.strides[axis])
    length = view.shape[axis]
    step = max(1, CHUNK * length // view.nbytes)
    return axis, [view.slice(axis, at, min(at + step, length)) for at in range(0, length, step)]


def _write_blocks(view: View, put: Put) -> None:
    """Write a view block by block in the order of the file, each block row-major: the source is read once."""
    leaves = _leaves(view)
    if leaves is None:
        write_pieces(view.draw(0, view.numel), put)
        return
    for leaf in leaves[1]:
        _write_blocks(leaf, put)


def _read_blocks(view: View, place: Range, start: int, stop: int) -> memoryview:
    """Give elements [start, stop) of what ``_write_blocks`` wrote."""
    leaves = _leaves(view)
    if leaves is None:
        return View.rows(place, view.dtype, view.shape).read(start, stop)
    parts, at = [], 0
    for leaf in leaves[1]:
        lies = place.part(at, leaf.nbytes)
        parts.append((leaf.shape[leaves[0]], partial(_read_blocks, leaf, lies)))
        at += leaf.nbytes
    return interleave(view.shape, leaves[0], parts, view.itemsize, start, stop)


class Shaped(Protocol):
    """What the checks need of a promise."""

    @property
    def shape(self) -> Shape:
        """The lengths of the axes."""

    @property
    def numel(self) -> int:
        """Elements in all."""


def check_window(promise: Shaped, start: int, stop: int) -> None:
    """TensorError unless [start, stop) are elements of the promise."""
    if not 0 <= start <= stop <= promise.numel:
        raise TensorError(f"elements {start:,} to {stop:,} of a tensor of {promise.numel:,}")


def check_axes(promise: Shaped, axes: tuple[int, ...]) -> None:
    """TensorError unless every axis is named once."""
    if sorted(axes) != list(range(len(promise.shape))):
        raise TensorError(f"axes {list(axes)} do not reorder the {len(promise.shape)} axes of {list(promise.shape)}")


def check_shape(promise: Shaped, shape: Shape) -> None:
    """TensorError unless the shape holds as many elements."""
    if any(n < 0 for n in shape) or prod(shape) != promise.numel:
        raise TensorError(
            f"the {promise.numel:,} elements of {list(promise.shape)} do not make the shape {list(shape)}"
        )


def check_slice(promise: Shaped, axis: int, start: int, stop: int) -> None:
    """TensorError unless [start, stop) are positions of the axis."""
    if not 0 <= axis < len(promise.shape):
        raise TensorError(f"axis {axis} of a tensor with {len(promise.shape)} axes")
    if not 0 <= start <= stop <= promise.shape[axis]:
        raise TensorError(f"positions {start:,} to {stop:,} of axis {axis} with {promise.shape[axis]:,}")
