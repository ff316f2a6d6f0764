"""How far the elements of two tensors of one shape lie apart, drawn side by side, once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate.tensor import Tensor, dequantise

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from ckptmigrate.dtypes import DType
    from ckptmigrate.tensor import Promise

PIECE = 1 << 15  # elements compared at once: in the second cache; 2^18 take twice as long
INTEGERS = {"int", "uint", "bool"}


@dataclass(frozen=True, slots=True)
class Spread:
    """Elements that differ, of how many, and the widest gap between two numbers: its place, and both.

    Of one dtype elements differ by their bits, so that a signed zero and another NaN count; of two by their numbers, every NaN
    the same. ``max_rel`` is relative to the larger of the two magnitudes. Both maxima leave out elements that are NaN on either
    side (0 where no other differs) and are None where a dtype has no numbers. ``nan_a``, ``nan_b``: elements that are NaN on that side alone.
    """

    differ: int
    elements: int
    max_abs: float | None = None
    max_rel: float | None = None
    at: tuple[int, ...] | None = None
    a: complex | None = None
    b: complex | None = None
    nan_a: int = 0
    nan_b: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Give the fields as JSON can hold them: what is not finite, and complex numbers, as text."""
        return {
            "differ": self.differ,
            "elements": self.elements,
            "max_abs": _plain(self.max_abs),
            "max_rel": _plain(self.max_rel),
            "at": None if self.at is None else list(self.at),
            "a": _plain(self.a),
            "b": _plain(self.b),
            "nan_a": self.nan_a,
            "nan_b": self.nan_b,
        }


def spread(left: Tensor, right: Tensor) -> Spread | None:
    """Give how far two tensors of one shape lie apart, quantised ones by the numbers they mean; None where no element differs."""
    import numpy as np  # noqa: PLC0415 - elements are compared

    one, other = _numbers(left), _numbers(right)
    comparable = all(p.dtype.numpy and p.dtype.kind not in {"raw", "quantised"} for p in (one, other))
    differ = nan_a = nan_b = 0
    max_abs = max_rel = 0.0 if comparable else None
    widest: tuple[int, Any, Any] | None = None
    for start, x, y in _pieces(one, other):
        if one.dtype == other.dtype:
            apart = np.flatnonzero(_bits_differ(x, y))
        elif comparable:
            apart = np.flatnonzero(_numbers_differ(_wide(x, one.dtype), _wide(y, other.dtype)))
        else:
            apart = np.arange(len(x))
        differ += len(apart)
        if not comparable or not len(apart):
            continue
        ours, theirs = x[apart], y[apart]
        a, b = _wide(ours, one.dtype), _wide(theirs, other.dtype)
        missing_a, missing_b = np.isnan(a), np.isnan(b)
        nan_a, nan_b = nan_a + int((missing_a & ~missing_b).sum()), nan_b + int((missing_b & ~missing_a).sum())
        gaps = _integer_gaps(ours, theirs) if one.dtype == other.dtype and one.dtype.kind in INTEGERS else _gaps(a, b)
        gaps[missing_a | missing_b] = -1.0
        place = int(np.argmax(gaps))
        if gaps[place] < 0:
            continue
        with np.errstate(all="ignore"):  # 0 of 0 and infinities are asked for before they are divided
            ratios = np.where(np.isfinite(gaps) & (gaps > 0), gaps / np.maximum(np.abs(a), np.abs(b)), gaps)
        max_rel = max(max_rel or 0.0, float(ratios.max()))
        if widest is None or gaps[place] > max_abs:
            max_abs, widest = (
                float(gaps[place]),
                (start + int(apart[place]), _number(ours[place]), _number(theirs[place])),
            )
    if not differ:
        return None
    if widest is None:
        return Spread(differ, one.numel, max_abs, max_rel, nan_a=nan_a, nan_b=nan_b)
    index = tuple(int(i) for i in np.unravel_index(widest[0], one.shape))
    return Spread(differ, one.numel, max_abs, max_rel, index, widest[1], widest[2], nan_a, nan_b)


def _numbers(tensor: Tensor) -> Promise:
    """Give what a quantised tensor's integers mean, where it has one scale, or one for each position of an axis."""
    quant, dtype = tensor.quant, tensor.dtype
    if quant is None or dtype.kind != "quantised" or dtype.packed > 1:
        return tensor.promise
    if quant.axis is None and any(isinstance(n, Tensor) for n in (quant.scale, quant.zero_point)):
        return tensor.promise
    return dequantise(tensor.promise, quant)


def _pieces(one: Promise, other: Promise) -> Iterator[tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Draw both side by side: where a piece starts, and its elements on both sides."""
    import numpy as np  # noqa: PLC0415 - elements are compared

    step = max(one.window, other.window)
    for start in range(0, one.numel, step):
        stop = min(start + step, one.numel)
        x, y = (np.frombuffer(p.read(start, stop), p.dtype.numpy_dtype()) for p in (one, other))
        for at in range(0, stop - start, PIECE):
            yield start + at, x[at : at + PIECE], y[at : at + PIECE]


def _bits_differ(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np  # noqa: PLC0415 - elements are compared

    size = x.dtype.itemsize
    if size in {1, 2, 4, 8}:
        x, y = x.view(f"u{size}").reshape(-1, 1), y.view(f"u{size}").reshape(-1, 1)
    else:
        x, y = x.view("u1").reshape(-1, size), y.view("u1").reshape(-1, size)
    apart: np.ndarray[Any, Any] = np.not_equal(x, y).any(axis=1)
    return apart


def _numbers_differ(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np  # noqa: PLC0415 - elements are compared

    apart: np.ndarray[Any, Any] = np.not_equal(a, b) & ~(np.isnan(a) & np.isnan(b))
    return apart


def _wide(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    import numpy as np  # noqa: PLC0415 - elements are compared

    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one, and says so
        return x.astype("c16" if dtype.kind == "complex" else "f8")


def _gaps(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give the distances of numbers: none between equal infinities."""
    import numpy as np  # noqa: PLC0415 - elements are compared

    with np.errstate(all="ignore"):
        return np.where(a == b, 0.0, np.abs(a - b))


def _integer_gaps(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give the distances of integers, exact before they are rounded: 2^53 and its neighbour are one float."""
    import numpy as np  # noqa: PLC0415 - elements are compared

    wide = "i8" if x.dtype.kind == "i" else "u8"
    low, high = np.minimum(x, y).astype(wide), np.maximum(x, y).astype(wide)
    between: np.ndarray[Any, Any] = high.astype("u8") - low.astype("u8")  # wraps to what lies between
    return between.astype("f8")


def _number(value: Any) -> complex:
    """Give an element as Python's own number."""
    if value.dtype.kind in "biuc":
        own: complex = value.item()
        return own
    return float(value)


def _plain(number: complex | None) -> float | str | None:
    if number is None or isinstance(number, int):
        return number
    return number if isinstance(number, float) and math.isfinite(number) else str(number)
