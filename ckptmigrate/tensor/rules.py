"""Rules of Made promises: how elements come from the elements of inputs, and what is there without any input.

    Cast Dequantise DequantiseChannels Conjugate Negate Normalise     elementwise: arrays in, an array out
    Fill Array                                                         given: no input, views of their own

A rule knows arrays and dtypes, no promises. It is a frozen value that refuses, when it is made, what it could not do.
Numbers come out as torch's own ``.to()``, ``.dequantize()``, ``.resolve_conj()`` give them, compared bit for bit with torch
2.13 (NaNs stay NaNs; which of them is the processor's choice).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from ckptmigrate.dtypes import BF16, F16, F32, F64, DType
from ckptmigrate.errors import TensorError

from .strides import boxes

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]

COMPONENTS = {"C32": F16, "BC32": BF16, "C64": F32, "C128": F64}
"""What a complex number is two of."""


class Elementwise(Protocol):
    """A rule by which output element i comes from element i of each input; the output has the inputs' one shape."""

    @property
    def dtype(self) -> DType:
        """The element type."""

    @property
    def elementwise(self) -> Literal[True]:
        """What tells the two kinds of rule apart."""

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the output of flat arrays, equally long."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Elements of ``source`` as ``dtype``, as torch's ``.to()`` gives them.

    Floats round to nearest even, from f64 to two bytes and less by way of f32 (as torch does); integers wrap. F8_E4M3 saturates,
    F8_E8M0 takes the magnitude. A float without a place among the integers is refused as it is drawn: C++ leaves the outcome
    open, and torch's depends on the processor. Complex numbers become complex numbers only.
    """

    source: DType
    dtype: DType
    elementwise: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        """TensorError where no number can cross."""
        for dtype in (self.source, self.dtype):
            if dtype.kind in {"raw", "quantised"}:
                hint = "dequantise it first" if dtype.kind == "quantised" else None
                raise TensorError(
                    f"no cast from {self.source} to {self.dtype}: {dtype} holds no plain numbers",
                    dtype=dtype.name,
                    hint=hint,
                )
        if self.source.kind == "complex" and self.dtype.kind != "complex":
            raise TensorError(
                f"no cast from {self.source} to {self.dtype}: the imaginary parts would be lost", dtype=self.source.name
            )

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the one array with other elements."""
        import numpy as np  # noqa: PLC0415 - numbers are needed only when they are drawn

        (array,) = arrays
        with np.errstate(all="ignore"):  # overflow to infinity is what a cast does
            if self.dtype.kind != "complex":
                return _real(array, self.source, self.dtype)
            part = COMPONENTS[self.dtype.name]
            if self.source.kind == "complex":
                mine = COMPONENTS[self.source.name]
                pairs = _real(array.view(mine.numpy_dtype()), mine, part)
            else:
                pairs = np.zeros(2 * len(array), part.numpy_dtype())
                pairs[::2] = _real(array, self.source, part)
            return pairs.view(self.dtype.numpy_dtype())


def _real(array: np.ndarray[Any, Any], source: DType, target: DType) -> np.ndarray[Any, Any]:
    """Cast real numbers; each step is the one that torch takes."""
    import numpy as np  # noqa: PLC0415 - same

    wanted = target.numpy_dtype()
    if source.kind == "bool":
        array = array.view("u1") != 0
    elif source.kind == "float" and source.itemsize <= 2:
        array = array.astype(np.float32)  # exact; ml_dtypes casts to few others
    if target.kind == "bool":
        truth: np.ndarray[Any, Any] = array != 0
        return truth
    if target.kind in {"int", "uint"} and source.kind == "float":
        _check_places(array, target)
    if target.kind == "float" and target.itemsize <= 2:
        array = array.astype(np.float32)
        if target.name == "F8_E4M3":
            array = np.clip(array, -448, 448)  # its largest number; it has no infinity
        if target.name == "F8_E8M0":
            return _powers(array).view(wanted)
    return array.astype(wanted)


def _check_places(array: np.ndarray[Any, Any], target: DType) -> None:
    import numpy as np  # noqa: PLC0415 - same

    bits = 8 * target.itemsize
    low, past = (0.0, 2.0**bits) if target.kind == "uint" else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    whole = np.trunc(array)
    good = (whole >= low) & (whole < past)
    if not good.all():
        raise TensorError(f"{array[np.argmin(good)]} has no place in {target}", dtype=target.name)


def _powers(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give the exponents of F8_E8M0: rounded to the nearer power of two, a tie upwards but for subnormals; 255 is NaN."""
    import numpy as np  # noqa: PLC0415 - same

    bits = array.view(np.uint32)
    exponent = (bits >> 23) & 0xFF
    half, rest = (bits >> 22) & 1 == 1, bits & 0x3FFFFF != 0
    up = half & (rest | (exponent > 0))
    return np.where(exponent == 0xFF, 0xFF, exponent + up).astype("u1")


@dataclass(frozen=True, slots=True)
class Dequantise:
    """F32 numbers from quantised ones: (q - zero_point) * scale, per tensor; the difference in integers, as torch takes it."""

    scale: float
    zero_point: int
    dtype: ClassVar[DType] = F32
    elementwise: ClassVar[Literal[True]] = True

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the numbers of the one array."""
        import numpy as np  # noqa: PLC0415 - same

        with np.errstate(all="ignore"):
            return (arrays[0].astype(np.int64) - self.zero_point).astype(np.float32) * np.float32(self.scale)


@dataclass(frozen=True, slots=True)
class DequantiseChannels:
    """F32 numbers from quantised ones with a scale and a zero point (integer or float) for each; the product in F64, as torch's."""

    dtype: ClassVar[DType] = F32
    elementwise: ClassVar[Literal[True]] = True

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the numbers of the arrays q, scale, zero point."""
        import numpy as np  # noqa: PLC0415 - same

        values, scale, zero_point = arrays
        with np.errstate(all="ignore"):
            moved = values.astype(np.float32) - zero_point.astype(np.float32)
            return (moved.astype(np.float64) * scale.astype(np.float64)).astype(np.float32)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Conjugate:
    """Complex numbers with the sign of the imaginary part turned: what torch's lazy conj bit means."""

    dtype: DType
    elementwise: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        """TensorError for what is not complex."""
        if self.dtype.kind != "complex":
            raise TensorError(f"{self.dtype} has no conjugate, expected a complex dtype", dtype=self.dtype.name)

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the conjugates of the one array."""
        size = self.dtype.itemsize // 2
        words = arrays[0].view(f"u{size}").copy()
        words[1::2] ^= 1 << (8 * size - 1)
        return words.view(self.dtype.numpy_dtype())


@dataclass(frozen=True, slots=True)
class Negate:
    """Numbers with the sign turned: what torch's lazy neg bit means."""

    dtype: DType
    elementwise: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        """TensorError for what has no sign of its own."""
        if self.dtype.kind in {"bool", "raw", "quantised"} or self.dtype.name == "F8_E8M0" or "FNUZ" in self.dtype.name:
            raise TensorError(f"{self.dtype} has no negation", dtype=self.dtype.name)

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the negated numbers of the one array."""
        import numpy as np  # noqa: PLC0415 - same

        if self.dtype.kind in {"int", "uint"}:
            negative: np.ndarray[Any, Any] = np.negative(arrays[0])
            return negative
        size = COMPONENTS.get(self.dtype.name, self.dtype).itemsize
        return (arrays[0].view(f"u{size}") ^ (1 << (8 * size - 1))).astype(f"u{size}").view(self.dtype.numpy_dtype())


@dataclass(frozen=True, slots=True)
class Normalise:
    """Booleans as 0 and 1: hand-made files hold other bytes.

    For targets whose readers refuse such bytes. torch 2.13, numpy and safetensors keep them, and take all but 0 for True in every
    operation (``tests/test_torch_room.py`` asks them), so files for those carry them as they are: a plain range stays one.
    """

    dtype: DType
    elementwise: ClassVar[Literal[True]] = True

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the truth of the one array's bytes."""
        return arrays[0].view("u1") != 0  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """One element, little-endian, over and over; costs nothing whatever its shape. Every one is another: two fills are not tied."""

    element: bytes
    dtype: DType
    shape: Shape

    def read(self, start: int, stop: int) -> memoryview:
        """Give the bytes of elements [start, stop)."""
        return memoryview(self.element * (stop - start))

    def transpose(self, axes: tuple[int, ...]) -> Fill:
        """Give the same with its axes in another order."""
        return self.expand(tuple(self.shape[axis] for axis in axes))

    def reshape(self, shape: Shape) -> Fill:
        """Give as many elements in another shape."""
        return self.expand(shape)

    def slice(self, axis: int, start: int, stop: int) -> Fill:
        """Give ``stop - start`` elements along an axis."""
        return self.expand((*self.shape[:axis], stop - start, *self.shape[axis + 1 :]))

    def expand(self, shape: Shape) -> Fill:
        """Give more elements."""
        return Fill(self.element, self.dtype, shape)


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """Numbers that are in memory already, little-endian with any strides; two are equal when they are one look at one memory."""

    values: np.ndarray[Any, Any]
    dtype: DType

    @classmethod
    def of(cls, raw: bytes | bytearray | memoryview, dtype: DType, shape: Shape) -> Array:
        """Take row-major, little-endian bytes."""
        import numpy as np  # noqa: PLC0415 - same

        return cls(np.frombuffer(raw, dtype.numpy_dtype()).reshape(shape), dtype)

    @property
    def shape(self) -> Shape:
        """The array's shape, in units."""
        return tuple(self.values.shape)

    def _key(self) -> tuple[object, ...]:
        strides = tuple(s if n > 1 else 0 for n, s in zip(self.values.shape, self.values.strides, strict=True))
        return (self.values.__array_interface__["data"][0], self.shape, strides, self.dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def read(self, start: int, stop: int) -> memoryview:
        """Give the bytes of elements [start, stop), copied."""
        import numpy as np  # noqa: PLC0415 - same

        out = np.empty(stop - start, self.values.dtype)
        at = 0
        for corner, box in boxes(self.shape, start, stop):
            count = prod(box)
            where = tuple(slice(c, c + n) for c, n in zip(corner, box, strict=True))
            out[at : at + count].reshape(box)[...] = self.values[where]
            at += count
        return out.view("u1").data

    def transpose(self, axes: tuple[int, ...]) -> Array:
        """Give a look at the same memory."""
        return Array(self.values.transpose(axes), self.dtype)

    def reshape(self, shape: Shape) -> Array:
        """Give a look at the same memory where strides can say it, else a copy."""
        return Array(self.values.reshape(shape), self.dtype)

    def slice(self, axis: int, start: int, stop: int) -> Array:
        """Give a look at the same memory."""
        return Array(self.values[(slice(None),) * axis + (slice(start, stop),)], self.dtype)

    def expand(self, shape: Shape) -> Array:
        """Give a look at the same memory in which axes of length 1 are repeated."""
        import numpy as np  # noqa: PLC0415 - same

        return Array(np.broadcast_to(self.values, shape), self.dtype)
