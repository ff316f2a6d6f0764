"""Sparse tensors: refused by name, or written out with all their zeros where the caller asks for that (``--densify``).

    COO         (indices [dimensions, n], values [n, …], size[, is_coalesced])
    CSR, BSR    (crow_indices [rows + 1], col_indices [n], values [n, block…], size)
    CSC, BSC    (ccol_indices [columns + 1], row_indices [n], values [n, block…], size)

Batches of compressed matrices are refused in any case. The price of a dense copy: the sparse parts lie in memory while it is drawn,
its zeros do not.
Sources: torch/_utils.py (``_rebuild_sparse_tensor``), torch/_tensor.py of torch 1.4 to 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError
from ckptmigrate.limits import MiB
from ckptmigrate.tensor import Made, Tensor
from ckptmigrate.values import Inert

from ._torch_storages import fault, sizes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    import numpy as np

    from ckptmigrate.dtypes import DType
    from ckptmigrate.limits import Limits
    from ckptmigrate.tensor import Promise, Shape

_PATH = "torch._utils._rebuild_sparse_tensor"
_PIECE = 4 * MiB  # bytes of the dense copy made at once
_COMPRESSED = ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


def densified(kind: str, data: Any, *, wanted: bool, limits: Limits) -> Any:
    """Give the dense tensor of a sparse one of layout ``kind`` if ``wanted``, else the fault that names it sparse."""
    parts = data if type(data) is tuple else ()
    count = 2 if kind == "sparse_coo" else 3
    if kind != "sparse_coo" and kind not in _COMPRESSED:
        return fault(_PATH, f"a sparse tensor of layout {kind:.80}, which is not known")
    tensors = parts[:count]
    broken = next((part for part in tensors if isinstance(part, Inert) and part.kind == "fault"), None)
    if broken is not None:
        return broken
    if len(parts) <= count or not all(isinstance(part, Tensor) for part in tensors):
        return fault(_PATH, f"a sparse tensor ({kind}) without its indices and values")
    if not wanted:
        return fault(_PATH, f"a sparse tensor ({kind})", "--densify writes sparse tensors with all their zeros")
    values, shape = tensors[-1].promise, sizes(parts[count], limits)
    if (
        shape is None
        or min(shape, default=0) < 0
        or any(part.dtype.name not in ("I64", "I32") for part in tensors[:-1])
    ):
        return fault(_PATH, f"a sparse tensor ({kind}) whose size or indices are no integers")
    if values.dtype.numpy is None or values.dtype.kind == "quantised":
        return fault(_PATH, f"a sparse tensor ({kind}) of {values.dtype}, which cannot be added up")
    promises = tuple(part.promise for part in tensors)
    rule = _coo(promises, shape) if kind == "sparse_coo" else _rows(kind, promises, shape)
    if rule is None:
        spelled = " and ".join(str(promise.shape) for promise in promises)
        return fault(_PATH, f"a sparse tensor ({kind}) of size {shape} does not fit its parts of shapes {spelled}")
    nbytes, held = prod(shape) * rule.dtype.itemsize, sum(promise.nbytes for promise in promises)
    if nbytes > limits.small and (nbytes > limits.expansion * held or nbytes > limits.expanded):
        return fault(_PATH, f"a sparse tensor of size {shape} takes {nbytes} bytes with its zeros, and {held} without")
    return Tensor(Made(promises, rule))


@dataclass(frozen=True, slots=True)
class Dense:
    """A dense tensor from values at places; values at one place are added, as torch adds them.

    ``dimensions`` of COO indices; 0 for compressed rows (or ``columns``) of blocks.
    """

    dtype: DType
    shape: Shape
    dimensions: int
    block: Shape = (1, 1)
    columns: bool = False

    @property
    def elementwise(self) -> Literal[False]:
        """An element may come from any value."""
        return False

    def pieces(self, inputs: tuple[Promise, ...]) -> Iterator[np.ndarray[Any, Any]]:
        """Give all elements, row-major, some 4 MiB at a time; CorruptError for places outside the shape."""
        import numpy as np  # noqa: PLC0415 - numbers are needed only when they are drawn

        arrays = [Tensor(promise).numpy() for promise in inputs]
        places, values = self._coo(arrays) if self.dimensions else self._rows(arrays)
        order = np.argsort(places, kind="stable")  # values at one place keep their order: sums of floats depend on it
        places, values = places[order], values[order]
        rest = prod(values.shape[1:])
        add = np.logical_or if self.dtype.kind == "bool" else np.add
        total = prod(self.shape) // rest if rest else 0
        step = max(1, _PIECE // max(1, rest * self.dtype.itemsize))
        for start in range(0, total, step):
            stop = min(start + step, total)
            low, high = np.searchsorted(places, (start, stop))
            piece = np.zeros((stop - start, rest), values.dtype)
            add.at(piece, places[low:high] - start, values[low:high].reshape(high - low, rest))
            yield piece.reshape(-1)

    def _coo(self, arrays: list[np.ndarray[Any, Any]]) -> tuple[Any, Any]:
        import numpy as np  # noqa: PLC0415 - same

        indices, values = arrays
        places = np.zeros(indices.shape[1], np.int64)
        for axis, length in enumerate(self.shape[: self.dimensions]):
            _check_places(indices[axis], length, axis)
            places = places * length + indices[axis]
        return places, values

    def _rows(self, arrays: list[np.ndarray[Any, Any]]) -> tuple[Any, Any]:
        """Give the place of every single element: blocks are taken apart."""
        import numpy as np  # noqa: PLC0415 - same

        bounds, inner, values = arrays
        (height, width), (tall, wide) = self.shape, self.block
        lines, length = (width // wide, height // tall) if self.columns else (height // tall, width // wide)
        counts = np.diff(bounds)
        if len(bounds) != lines + 1 or bounds[0] != 0 or bounds[-1] != len(inner) or (counts < 0).any():
            raise CorruptError(
                f"the bounds of compressed sparse lines do not divide {len(inner)} values over {lines} lines"
            )
        _check_places(inner, length, 0 if self.columns else 1)
        outer = np.repeat(np.arange(lines, dtype=np.int64), counts)
        rows, columns = (inner, outer) if self.columns else (outer, inner)
        across = rows[:, None, None] * tall + np.arange(tall)[None, :, None]
        along = columns[:, None, None] * wide + np.arange(wide)[None, None, :]
        return (across * width + along).reshape(-1), values.reshape(-1)


def _coo(promises: tuple[Promise, ...], shape: Shape) -> Dense | None:
    indices, values = promises
    if len(indices.shape) != 2 or not 0 < indices.shape[0] <= len(shape):
        return None
    dimensions, count = indices.shape
    return Dense(values.dtype, shape, dimensions) if values.shape == (count, *shape[dimensions:]) else None


def _rows(kind: str, promises: tuple[Promise, ...], shape: Shape) -> Dense | None:
    bounds, places, values = promises
    block = values.shape[1:] or (1, 1)
    if len(shape) != 2 or len(block) != 2 or not all(block) or len(bounds.shape) != 1 or len(places.shape) != 1:
        return None
    if values.shape[:1] != places.shape or shape[0] % block[0] or shape[1] % block[1]:
        return None
    return Dense(values.dtype, shape, 0, block, kind in ("sparse_csc", "sparse_bsc"))


def _check_places(places: np.ndarray[Any, Any], length: int, axis: int) -> None:
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < length:
        raise CorruptError(
            f"sparse indices {places.min()} to {places.max()} along axis {axis}, which has {length} places"
        )
