"""Tensors: a promise of bytes and what the file says of it, and the ways to make one.

``cast``, ``joined``, ``fill``, ``array`` and the others give the simplest promise that will do; nothing is drawn.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from ckptmigrate.dtypes import BOOL, BY_NUMPY, DType
from ckptmigrate.errors import TensorError

from .promise import Joined, Made, Promise, PromiseFace, Rule, joined, spilled, windows
from .rules import COMPONENTS, Array, Cast, Conjugate, Dequantise, DequantiseChannels, Fill, Negate, Normalise
from .view import Shape, View, check_expansion

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Joined", "Made", "Promise", "PromiseFace", "Quantisation", "Rule", "Shape", "Tensor", "View", "array", "cast",
    "check_expansion", "conjugate", "dequantise", "expand", "fill", "joined", "negate", "normalise", "windows",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What turns a quantised tensor's integers into numbers: value = scale * (q - zero_point), per tensor or along an axis."""

    scheme: str
    scale: Any  # float, or a Tensor of one value per channel
    zero_point: Any
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A promise and what the file says of it: parameter or buffer, and the id that optimizer state refers to it by."""

    promise: Promise
    role: Literal["parameter", "buffer"] | None = None
    id: int | str | None = None  # text as the file has it, until gather asks FAMILY.identify
    quant: Quantisation | None = None

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.promise.dtype

    @property
    def shape(self) -> Shape:
        """The lengths of the axes, in units of the dtype."""
        return self.promise.shape

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, row-major."""
        return self.promise.nbytes

    def with_promise(self, promise: Promise) -> Tensor:
        """Give the same tensor with other bytes."""
        return replace(self, promise=promise)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Draw the tensor into a new row-major, little-endian array; raw bytes (``V``) where numpy has no such numbers."""
        import numpy as np  # noqa: PLC0415 - an array is asked for

        out = np.empty(self.promise.numel, self.dtype.numpy_dtype())
        raw = out.view("u1")
        at = 0
        for piece in windows(self.promise):
            raw[at : (at := at + len(piece))] = np.frombuffer(piece, "u1")
        return out.reshape(self.shape)

    def torch(self, device: str = "cpu") -> Any:
        """Draw the tensor into a new torch.Tensor; PluginError without torch."""
        # By name, when it is asked for: that room is the only one that imports torch, and stands after this one.
        room = importlib.import_module("ckptmigrate.torch")  # house: the one way to it
        return room.tensor(self, device)


def cast(promise: Promise, dtype: DType) -> Promise:
    """Give the promise with its elements as ``dtype``, as torch casts; itself where it is that already."""
    return promise if promise.dtype == dtype else Made((promise,), Cast(promise.dtype, dtype))


def conjugate(promise: Promise) -> Promise:
    """Resolve torch's lazy conj bit."""
    return Made((promise,), Conjugate(promise.dtype))


def negate(promise: Promise) -> Promise:
    """Resolve torch's lazy neg bit."""
    return Made((promise,), Negate(promise.dtype))


def normalise(promise: Promise) -> Promise:
    """Give booleans as bytes 0 and 1, for a target that needs it; anything else as it is."""
    return Made((promise,), Normalise(BOOL)) if promise.dtype == BOOL else promise


def fill(value: complex | bytes, dtype: DType, shape: Shape) -> Promise:
    """Give a tensor of one value (or one element's little-endian bytes) without any file; TensorError where it does not fit."""
    if isinstance(value, bytes):
        element = value
    else:
        import numpy as np  # noqa: PLC0415 - a number becomes bytes

        part = COMPONENTS.get(dtype.name)
        try:
            numbers = [value] if part is None else [value.real, value.imag]
            element = np.array(numbers, (part or dtype).numpy_dtype()).tobytes()
        except (OverflowError, TypeError, ValueError) as error:
            raise TensorError(f"{value!r} is no {dtype}: {error}", dtype=dtype.name) from error
    if len(element) != dtype.itemsize:
        raise TensorError(
            f"{len(element)} bytes to fill with, expected the {dtype.itemsize} of one {dtype}", dtype=dtype.name
        )
    return Made((), Fill(element, dtype, tuple(shape)))


def array(values: np.ndarray[Any, Any] | bytes, dtype: DType | None = None, shape: Shape | None = None) -> Promise:
    """Give a tensor that is in memory: an array as it is (no copy), or row-major little-endian bytes of a dtype and shape.

    ``dtype`` says what an array's bytes mean where numpy cannot (QINT8, C32). TensorError for arrays of no known dtype.
    """
    import numpy as np  # noqa: PLC0415 - an array is given

    if isinstance(values, bytes | bytearray | memoryview):
        if dtype is None or shape is None or len(values) != prod(shape) * dtype.itemsize:
            raise TensorError(f"{len(values)} bytes in memory do not make a {dtype} tensor of shape {shape}")
        return Made((), Array.of(values, dtype, shape))
    known = dtype or BY_NUMPY.get(values.dtype.name)
    if known is None or known.itemsize != values.dtype.itemsize:
        raise TensorError(f"an array of {values.dtype} is no tensor of {dtype or 'a known dtype'}")
    if values.dtype.byteorder == ">" or (values.dtype.byteorder == "=" and np.little_endian is False):
        values = values.astype(values.dtype.newbyteorder("<"))
    return Made((), Array(values.view(known.numpy_dtype()) if values.dtype != known.numpy_dtype() else values, known))


def expand(promise: Promise, shape: Shape) -> Promise:
    """Repeat axes of length 1 up to ``shape``; read once, whatever the length."""
    if len(promise.shape) != len(shape) or any(a not in {1, b} for a, b in zip(promise.shape, shape, strict=True)):
        raise TensorError(f"the shape {list(promise.shape)} cannot be repeated to {list(shape)}")
    if promise.shape == shape:
        return promise
    if isinstance(promise, Made) and isinstance(promise.rule, Fill | Array):
        return Made((), promise.rule.expand(shape))
    if isinstance(promise, Made) and (rule := promise.elementwise()) is not None:
        return Made(tuple(expand(one, shape) for one in promise.inputs), rule)
    if isinstance(promise, View):
        return View(
            promise.range, promise.dtype, shape, promise.strides, promise.offset, promise.big_endian, promise.marker
        )
    return expand(spilled(promise), shape)


def dequantise(promise: Promise, quant: Quantisation) -> Promise:
    """Give F32 numbers as torch's ``.dequantize()`` gives them; TensorError for types that pack several values in a byte."""
    dtype = promise.dtype
    if dtype.kind != "quantised" or dtype.packed > 1:
        raise TensorError(f"{dtype} cannot be dequantised, expected QUINT8, QINT8 or QINT32", dtype=dtype.name)
    if quant.axis is None:
        return Made((promise,), Dequantise(float(quant.scale), int(quant.zero_point)))
    if not 0 <= quant.axis < len(promise.shape):
        raise TensorError(
            f"a scale for each position of axis {quant.axis} of {list(promise.shape)}, expected one of its axes"
        )
    channels = promise.shape[quant.axis]
    one = tuple(channels if axis == quant.axis else 1 for axis in range(len(promise.shape)))
    inputs: list[Promise] = [promise]
    for what, given in (("scales", quant.scale), ("zero points", quant.zero_point)):
        line: Promise = given.promise if isinstance(given, Tensor) else given
        if line.numel != channels:
            raise TensorError(f"{line.numel:,} {what}, expected one for each of the {channels:,} channels")
        inputs.append(expand(line.reshape(one), promise.shape))
    return Made(tuple(inputs), DequantiseChannels())
