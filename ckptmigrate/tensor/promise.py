"""Promises: what every one answers, and the two that are made of others, Joined and Made.

    View    a strided look into a range of a file: every tensor that a file holds (view.py)
    Joined  parts side by side along an axis: concatenations, shards
    Made    a rule over inputs: casts, fills, arrays in memory

All three are frozen, hashable values with the same face, closed under transpose, reshape and slice. What a view cannot be taken
of (a rule that is not elementwise, a reshape that no strides can say) is drawn into the Disk's scratch, once, when first read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ckptmigrate.errors import TensorError
from ckptmigrate.files import Range

from .rules import Array, Elementwise, Fill
from .strides import WINDOWS, interleave, whole_lines
from .view import (
    Shape,
    View,
    check_axes,
    check_shape,
    check_slice,
    check_window,
    neighbours,
    spill,
    write_pieces,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from ckptmigrate.dtypes import DType

    from .view import Put

PIECE = 1 << 18  # elements that a rule makes at once: its temporaries stay in the processor's cache


class PromiseFace(Protocol):
    """What every promise answers; elements are counted in row-major order of ``shape``, in units of ``dtype``."""

    @property
    def dtype(self) -> DType:
        """The element type."""

    @property
    def shape(self) -> Shape:
        """The lengths of the axes, in units of ``dtype``."""

    @property
    def numel(self) -> int:
        """Elements in all."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, row-major."""

    @property
    def window(self) -> int:
        """Elements best read at once; whole lines where it can be, at least 1."""

    def sources(self) -> Iterator[Range]:
        """Give the ranges that reading draws from."""

    def plain(self) -> Range | None:
        """Give the range that holds exactly these bytes, row-major and little-endian, or None."""

    def read(self, start: int, stop: int) -> memoryview:
        """Give elements [start, stop), row-major and little-endian, as bytes; TensorError for others."""

    def transpose(self, axes: tuple[int, ...]) -> Promise:
        """Give axis ``axes[i]`` as axis i; TensorError where they are not all axes."""

    def reshape(self, shape: Shape) -> Promise:
        """Give as many elements in another shape; TensorError where the number differs."""

    def slice(self, axis: int, start: int, stop: int) -> Promise:
        """Give positions [start, stop) of an axis; TensorError where they are outside."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Parts side by side along an axis: equal dtypes, equal shapes but there, else TensorError. ``joined`` gives the simplest."""

    parts: tuple[Promise, ...]
    axis: int
    dtype: DType = field(init=False, compare=False, repr=False)
    shape: Shape = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check that the parts fit, and lay parts of parts flat."""
        flat: list[Promise] = []
        for part in self.parts:
            flat.extend(part.parts if isinstance(part, Joined) and part.axis == self.axis else (part,))
        if not flat:
            raise TensorError("nothing to join, expected one part or more")
        dtype, shape, axis = flat[0].dtype, flat[0].shape, self.axis
        if not 0 <= axis < len(shape):
            raise TensorError(f"axis {axis} to join along, expected one of the {len(shape)} axes of {list(shape)}")
        for index, part in enumerate(flat):
            if part.dtype != dtype:
                raise TensorError(
                    f"part {index} to join is {part.dtype}, expected {dtype} as part 0", dtype=part.dtype.name
                )
            fits = len(part.shape) == len(shape)
            if not fits or part.shape[:axis] != shape[:axis] or part.shape[axis + 1 :] != shape[axis + 1 :]:
                raise TensorError(
                    f"part {index} to join along axis {axis} has the shape {list(part.shape)}, expected that of part 0, {list(shape)}"
                )
        object.__setattr__(self, "parts", tuple(flat))
        object.__setattr__(self, "dtype", dtype)
        length = sum(part.shape[axis] for part in flat)
        object.__setattr__(self, "shape", (*shape[:axis], length, *shape[axis + 1 :]))

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
        """Elements best read at once: as many whole lines as the part that wants most of them, within the largest window."""
        most = max(1, WINDOWS[-1] // self.itemsize)
        inner = prod(self.shape[self.axis + 1 :])
        if prod(self.shape[: self.axis]) <= 1:
            wanted = max(part.window for part in self.parts)
            return max(1, min(wanted, most) // inner) * inner if 0 < inner <= most else min(wanted, most)
        lines = max(part.window // max(1, part.shape[self.axis] * inner) for part in self.parts)
        return whole_lines(max(1, min(max(1, lines) * self.shape[self.axis] * inner, most)), self.shape)

    def sources(self) -> Iterator[Range]:
        """Give the ranges of all parts."""
        for part in self.parts:
            yield from part.sources()

    def plain(self) -> Range | None:
        """Give the range of parts that lie one after the other in one file, where they are whole lines."""
        if len(self.parts) == 1:
            return self.parts[0].plain()
        if prod(self.shape[: self.axis]) != 1:
            return None
        whole: Range | None = None
        for part in self.parts:
            if not part.numel:
                continue
            plain = part.plain()
            if plain is None:
                return None
            if whole is None:
                whole = plain
            elif plain.file is whole.file and plain.offset == whole.offset + whole.nbytes:
                member = whole.member if whole.member == plain.member else None
                whole = Range(whole.file, whole.offset, whole.nbytes + plain.nbytes, member)
            else:
                return None
        return whole

    def read(self, start: int, stop: int) -> memoryview:
        """Give the bytes of elements [start, stop): of each part one block of whole lines, and what is left of broken ones."""
        check_window(self, start, stop)
        parts = [(part.shape[self.axis], part.read) for part in self.parts]
        return interleave(self.shape, self.axis, parts, self.itemsize, start, stop)

    def transpose(self, axes: tuple[int, ...]) -> Promise:
        """Give axis ``axes[i]`` as axis i."""
        check_axes(self, axes)
        return joined([part.transpose(axes) for part in self.parts], axes.index(self.axis))

    def reshape(self, shape: Shape) -> Promise:
        """Give as many elements in another shape: part by part where the joint survives, else through scratch."""
        check_shape(self, shape)
        outer = prod(self.shape[: self.axis])
        lines = [prod(part.shape[self.axis :]) for part in self.parts]
        for axis in range(len(shape)):
            inner = prod(shape[axis + 1 :])
            if self.numel and prod(shape[:axis]) == outer and all(line % inner == 0 for line in lines):
                cut = [(*shape[:axis], line // inner, *shape[axis + 1 :]) for line in lines]
                return joined([part.reshape(s) for part, s in zip(self.parts, cut, strict=True)], axis)
        return spilled(self).reshape(shape)

    def slice(self, axis: int, start: int, stop: int) -> Promise:
        """Give positions [start, stop) of an axis; parts outside are dropped."""
        check_slice(self, axis, start, stop)
        if axis != self.axis:
            return joined([part.slice(axis, start, stop) for part in self.parts], self.axis)
        kept: list[Promise] = []
        begins = 0
        for part in self.parts:
            ends = begins + part.shape[axis]
            if max(start, begins) < min(stop, ends):
                kept.append(part.slice(axis, max(start, begins) - begins, min(stop, ends) - begins))
            begins = ends
        return joined(kept or [self.parts[0].slice(axis, 0, 0)], axis)


class Whole(Protocol):
    """A rule that may look at all of its inputs; it is drawn whole and once, into scratch, as ``pieces`` in row-major order."""

    @property
    def dtype(self) -> DType:
        """The element type."""

    @property
    def shape(self) -> Shape:
        """The lengths of the axes, in units of ``dtype``."""

    @property
    def elementwise(self) -> Literal[False]:
        """What tells the two kinds of rule apart."""

    def pieces(self, inputs: tuple[Promise, ...]) -> Iterator[np.ndarray[Any, Any]]:
        """Give the whole output, in row-major pieces of any length."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a rule makes of its inputs: Fill and Array take none, elementwise rules inputs of one shape, others any."""

    inputs: tuple[Promise, ...]
    rule: Rule

    def __post_init__(self) -> None:
        """TensorError where the inputs of an elementwise rule have different shapes."""
        shapes = {promise.shape for promise in self.inputs}
        if self.elementwise() is not None and len(shapes) != 1:
            raise TensorError(
                f"{type(self.rule).__name__} of shapes {sorted(map(list, shapes))}, expected inputs of one shape"
            )

    def elementwise(self) -> Elementwise | None:
        """Give the rule, where a look at the output is the same look at the inputs."""
        return None if isinstance(self.rule, Fill | Array) or not self.rule.elementwise else self.rule

    @property
    def dtype(self) -> DType:
        """The rule's dtype."""
        return self.rule.dtype

    @property
    def shape(self) -> Shape:
        """The inputs' shape, or the rule's own."""
        if isinstance(self.rule, Fill | Array) or not self.rule.elementwise:
            return self.rule.shape
        return self.inputs[0].shape

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
        """Elements best read at once: what the inputs want, as far as neither they nor the output pass the largest window."""
        if isinstance(self.rule, Fill | Array):
            return whole_lines(max(1, WINDOWS[0] // self.itemsize), self.shape)
        if not self.rule.elementwise:
            return spilled(self).window
        widest = max(self.itemsize, *(promise.itemsize for promise in self.inputs), 1)
        wanted = max(promise.window for promise in self.inputs)
        most = WINDOWS[-1] // widest
        return wanted if wanted <= most else whole_lines(most, self.shape)

    def sources(self) -> Iterator[Range]:
        """Give the ranges of all inputs, and what lies in scratch on the way."""
        if isinstance(self.rule, Fill | Array) or self.rule.elementwise or not self._drawn_from():
            yield from self._drawn_from()
        else:
            yield from spilled(self).sources()

    def _drawn_from(self) -> tuple[Range, ...]:
        return tuple(source for promise in self.inputs for source in promise.sources())

    def plain(self) -> Range | None:
        """Give None: no range holds what is made."""
        return None

    def read(self, start: int, stop: int) -> memoryview:
        """Give the bytes of elements [start, stop)."""
        check_window(self, start, stop)
        if isinstance(self.rule, Fill | Array):
            return self.rule.read(start, stop)
        if not self.rule.elementwise:
            return spilled(self).read(start, stop)
        import numpy as np  # noqa: PLC0415 - rules work on arrays

        arrays = [np.frombuffer(promise.read(start, stop), promise.dtype.numpy_dtype()) for promise in self.inputs]
        out = np.empty(stop - start, self.dtype.numpy_dtype())
        for at in range(0, len(out), PIECE):
            out[at : at + PIECE] = self.rule.apply([array[at : at + PIECE] for array in arrays])
        return out.view("u1").data

    def transpose(self, axes: tuple[int, ...]) -> Promise:
        """Give axis ``axes[i]`` as axis i."""
        check_axes(self, axes)
        return self._over(lambda promise: promise.transpose(axes))

    def reshape(self, shape: Shape) -> Promise:
        """Give as many elements in another shape."""
        check_shape(self, shape)
        return self._over(lambda promise: promise.reshape(shape))

    def slice(self, axis: int, start: int, stop: int) -> Promise:
        """Give positions [start, stop) of an axis."""
        check_slice(self, axis, start, stop)
        return self._over(lambda promise: promise.slice(axis, start, stop))

    def _over(self, look: Callable[[Any], Any]) -> Promise:
        """Pass a look on to the rule that has it itself, to the inputs, or to what was drawn into scratch."""
        if isinstance(self.rule, Fill | Array):
            return Made((), look(self.rule))
        if self.rule.elementwise:
            return Made(tuple(look(promise) for promise in self.inputs), self.rule)
        return look(spilled(self))  # type: ignore[no-any-return]


Promise = View | Joined | Made
Rule = Elementwise | Whole | Fill | Array


def windows(promise: Promise) -> Iterator[memoryview]:
    """Draw the elements front to back, in the windows the promise asks for."""
    step = promise.window
    for start in range(0, promise.numel, step):
        yield promise.read(start, min(start + step, promise.numel))


def joined(parts: Sequence[Promise], axis: int) -> Promise:
    """Join parts along an axis into the simplest promise: without empty parts, neighbouring views of one place as one view."""
    whole = Joined(tuple(parts), axis)
    kept: list[Promise] = []
    for part in whole.parts:
        if not part.shape[axis]:
            continue
        last = kept[-1] if kept else None
        merged = neighbours(last, part, axis) if isinstance(last, View) and isinstance(part, View) else None
        if merged is None:
            kept.append(part)
        else:
            kept[-1] = merged
    if len(kept) <= 1:
        return kept[0] if kept else whole.parts[0]
    return Joined(tuple(kept), axis)


def spilled(promise: Promise) -> View | Made:
    """Give the same elements in row-major order: in scratch, or in memory what came from no file."""
    sources = promise._drawn_from() if isinstance(promise, Made) else tuple(promise.sources())  # noqa: SLF001 - one room
    if not promise.numel or not sources:
        raw = b"".join(bytes(piece) for piece in _drawn(promise))
        return Made((), Array.of(raw, promise.dtype, promise.shape))

    def write(put: Put) -> None:
        for piece in _drawn(promise):
            write_pieces(piece, put)

    return View.rows(spill(sources, promise, promise.nbytes, write), promise.dtype, promise.shape)


def _drawn(promise: Promise) -> Iterator[memoryview]:
    """Draw the elements front to back, from a rule that is not elementwise too."""
    if isinstance(promise, Made) and not isinstance(promise.rule, Fill | Array) and not promise.rule.elementwise:
        for piece in promise.rule.pieces(promise.inputs):
            yield piece.reshape(-1).view("u1").data
        return
    yield from windows(promise)
