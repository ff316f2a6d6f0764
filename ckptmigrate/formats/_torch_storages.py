"""Storages and the strided looks into them: what every tensor of a torch pickle is made of.

    storage   ├──────────────┤                  numel elements of its class's dtype, as bytes of the file
    tensor         offset ─►├─┤─stride─►├─┤     element (i, j, …) lies at offset + i*stride[0] + j*stride[1] + …

Offsets and strides are in elements of the tensor's dtype. Everything is compared with the storage in Python's integers before a
promise is made of it; what does not fit becomes a node with its fault, which the walk over the finished tree names by key path.
Sources: torch/storage.py (``_dtype_to_storage_type_map``, ``_new_dtypes``), torch/_utils.py, torch/_tensor.py of torch 2.13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate import dtypes
from ckptmigrate.tensor import Tensor, View
from ckptmigrate.values import Inert, Known

if TYPE_CHECKING:
    from ckptmigrate.dtypes import DType
    from ckptmigrate.files import Range
    from ckptmigrate.limits import Limits

CLASSES: dict[str, DType] = {
    "Double": dtypes.F64, "Float": dtypes.F32, "Half": dtypes.F16, "BFloat16": dtypes.BF16,
    "Long": dtypes.I64, "Int": dtypes.I32, "Short": dtypes.I16, "Char": dtypes.I8, "Byte": dtypes.U8, "Bool": dtypes.BOOL,
    "ComplexDouble": dtypes.C128, "ComplexFloat": dtypes.C64,
    "QInt8": dtypes.QINT8, "QUInt8": dtypes.QUINT8, "QInt32": dtypes.QINT32, "QUInt4x2": dtypes.QUINT4X2, "QUInt2x4": dtypes.QUINT2X4,
    "Untyped": dtypes.U8, "_Untyped": dtypes.U8,
}  # fmt: skip
UNTYPED = ("Untyped", "_Untyped")  # counted in bytes

ALIASES = {
    "half": "float16", "float": "float32", "double": "float64", "short": "int16", "int": "int32", "long": "int64",
    "chalf": "complex32", "cfloat": "complex64", "cdouble": "complex128",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of elements in a file, as a persistent id names it; ``key`` is how the file calls it."""

    key: str
    range: Range
    dtype: DType
    numel: int
    big_endian: bool = False

    def tensor(self) -> Tensor:
        """Give all of it as a tensor with one dimension: what a storage is that was saved by itself."""
        return Tensor(View.rows(self.range, self.dtype, (self.numel,), big_endian=self.big_endian))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a persistent id says of a storage, before anybody has looked where its bytes lie; ``numel`` elements of ``dtype``."""

    path: str  # the class, for messages
    key: str
    dtype: DType
    location: str
    numel: int
    view: tuple[str, int, int] | None = None  # key, offset and numel of a part that is a storage of its own

    @property
    def nbytes(self) -> int:
        """Bytes that its elements take."""
        return self.numel * self.dtype.itemsize


def claim(pid: Any) -> Claim | Inert:
    """Read a persistent id ``("storage", class, key, location, numel[, view])``, or give the fault that it has.

    The preview zip of torch 1.4 has six items, the last None; Python 2 wrote byte strings, which the machine has decoded.
    """
    if type(pid) is not tuple or len(pid) not in (5, 6) or pid[0] != "storage":
        return fault("torch.storage", f"a persistent id that is no storage: {_short(pid)}")
    _, kind, key, location, numel = pid[:5]
    path = str(getattr(kind, "path", kind))
    name = path.rpartition(".")[2].removesuffix("Storage")
    if not path.startswith("torch.") or name not in CLASSES:
        return fault(path, f"storage {_short(key)} is of class {path}, which has no dtype of its own")
    if not isinstance(key, (str, int)) or not _is_size(numel):
        return fault(path, f"storage {_short(key)} claims {_short(numel)} elements")
    view = pid[5] if len(pid) == 6 else None
    if view is not None:
        if not (type(view) is tuple and len(view) == 3 and _is_size(view[1]) and _is_size(view[2])):
            return fault(path, f"storage {_short(key)} has no readable view: {_short(view)}")
        view = (str(view[0]), view[1], view[2])
    return Claim(path, str(key), CLASSES[name], str(location), numel, view)


def fault(path: str, message: str, *hints: str) -> Inert:
    """Give the node that stands where a value should be; the walk over the finished tree refuses it by key path."""
    return Inert("fault", path, (message, *hints))


def dtype_of(value: Any) -> DType | None:
    """Give the dtype that a bare name such as ``torch.uint16`` stands for; None for what is none, or cannot be held."""
    path = str(getattr(value, "path", ""))
    name = path.removeprefix("torch.")
    return dtypes.BY_TORCH.get(ALIASES.get(name, name)) if path.startswith("torch.") else None


def sizes(value: Any, limits: Limits) -> tuple[int, ...] | None:
    """Give a size or stride as integers, whether it is a tuple, a list or a ``torch.Size``; None for what is none of these."""
    if isinstance(value, Known) and value.path == "torch.Size" and value.args and len(value.args) == 1:
        value = value.args[0]
    if type(value) not in (tuple, list) or len(value) > limits.dimensions or not all(type(n) is int for n in value):
        return None
    return tuple(value)


def strided(
    storage: Any, offset: Any, size: Any, stride: Any, *, path: str, limits: Limits, dtype: DType | None = None
) -> Tensor | Inert:  # fmt: skip
    """Give the tensor that looks into ``storage``, or the node with the fault of one that cannot.

    ``dtype`` is the storage's unless given (the third rebuild function). Refused: negative numbers, elements outside the storage,
    and expansions (stride 0) beyond ``limits``.
    """
    if isinstance(storage, Inert) and storage.kind == "fault":
        return storage
    if not isinstance(storage, Storage):
        return fault(path, f"a tensor on what is no storage: {_short(storage)}")
    shape, steps = sizes(size, limits), sizes(stride, limits)
    if shape is None or steps is None or len(shape) != len(steps) or type(offset) is not int:
        return fault(
            path, f"size {_short(size)}, stride {_short(stride)} and offset {_short(offset)} describe no tensor"
        )
    if min((offset, *shape, *steps)) < 0:
        return fault(path, f"negative numbers in size {shape}, stride {steps} or offset {offset}")
    dtype = dtype or storage.dtype
    item, numel = dtype.itemsize, math.prod(shape)
    last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) if numel else -1
    held = storage.range.nbytes // item
    if last >= held:
        return fault(
            path, f"a tensor of size {shape}, stride {steps} at offset {offset} reaches element {last}, "
            f"but storage {storage.key!r} holds {held} of {dtype}",
        )  # fmt: skip
    nbytes = numel * item
    if nbytes > limits.small and nbytes > limits.expansion * storage.range.nbytes:
        return fault(
            path, f"a tensor of size {shape} expands the {storage.range.nbytes} bytes of storage {storage.key!r} to {nbytes}, "
            f"more than {limits.expansion} times",
        )  # fmt: skip
    if nbytes - storage.range.nbytes > limits.expanded:
        return fault(
            path, f"a tensor of size {shape} expands storage {storage.key!r} to {nbytes} bytes, "
            f"more than {limits.expanded} beyond what it holds",
        )  # fmt: skip
    if not numel:
        return Tensor(View.rows(storage.range.part(0, 0), dtype, shape, big_endian=storage.big_endian))
    return Tensor(
        View(storage.range, dtype, shape, tuple(step * item for step in steps), offset * item, storage.big_endian)
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _short(value: Any) -> str:
    """Spell a value of a hostile file so that a message stays a line."""
    if isinstance(value, (Inert, Known)):
        return value.path[:80]
    if isinstance(value, (str, bytes)):
        return repr(value[:80])
    if type(value) is int and value.bit_length() < 256:
        return str(value)
    if type(value) in (tuple, list) and len(value) <= 8 and all(type(item) is int for item in value):
        return f"({', '.join(map(_short, value))})"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (tuple, list)) else type(value).__name__
