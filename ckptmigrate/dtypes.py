"""Canonical dtypes: size, and how safetensors, torch, Burn and numpy spell them.

A dtype's name is safetensors' spelling where it has one, else torch's name in capitals. Types below a byte are held in
units: F4 comes two values a byte (torch calls that unit float4_e2m1fn_x2), F6 four values in three bytes. Shapes in this code
count units; ``spelled_shape`` gives the shape in values, whose last dimension is ``packed`` times as long.
Sources: formats' own dtype tables (safetensors/src/tensor.rs, torch/storage.py, burn-std/src/tensor/dtype.rs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["float", "int", "uint", "bool", "complex", "quantised", "raw"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type; ``itemsize`` is in bytes, ``swap`` the size of what a change of byte order reverses."""

    name: str
    itemsize: int
    kind: Kind
    torch: str | None = None
    safetensors: str | None = None
    burn: str | None = None
    numpy: str | None = None
    swap: int = 0
    packed: int = 1

    def __str__(self) -> str:
        """Give the name."""
        return self.name

    def spelled_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Give the shape in values for a shape in units."""
        return (*shape[:-1], shape[-1] * self.packed) if self.packed > 1 and shape else shape

    def numpy_dtype(self) -> np.dtype[Any]:
        """Give numpy's dtype of one unit, little-endian; a type that numbers cannot be made of gives raw bytes."""
        import numpy as np  # noqa: PLC0415 - numbers are needed only here, and the import costs 60 ms

        if self.numpy is None:
            return np.dtype(f"V{self.itemsize}")
        if hasattr(np, self.numpy):
            little: np.dtype[Any] = np.dtype(self.numpy).newbyteorder("<")
            return little
        import ml_dtypes  # noqa: PLC0415 - same

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.numpy))
        return extended


def _dtype(
    name: str, size: int, kind: Kind, torch: str | None, numpy: str | None = None, *, st: bool = True, burn: bool = False,
    swap: int | None = None, packed: int = 1,
) -> DType:  # fmt: skip
    return DType(
        name,
        size,
        kind,
        torch,
        name if st else None,
        name if burn else None,
        numpy,
        size if swap is None else swap,
        packed,
    )


F64 = _dtype("F64", 8, "float", "float64", "float64", burn=True)
F32 = _dtype("F32", 4, "float", "float32", "float32", burn=True)
F16 = _dtype("F16", 2, "float", "float16", "float16", burn=True)
BF16 = _dtype("BF16", 2, "float", "bfloat16", "bfloat16", burn=True)
I64 = _dtype("I64", 8, "int", "int64", "int64", burn=True)
I32 = _dtype("I32", 4, "int", "int32", "int32", burn=True)
I16 = _dtype("I16", 2, "int", "int16", "int16", burn=True)
I8 = _dtype("I8", 1, "int", "int8", "int8", burn=True)
U64 = _dtype("U64", 8, "uint", "uint64", "uint64", burn=True)
U32 = _dtype("U32", 4, "uint", "uint32", "uint32", burn=True)
U16 = _dtype("U16", 2, "uint", "uint16", "uint16", burn=True)
U8 = _dtype("U8", 1, "uint", "uint8", "uint8", burn=True)
BOOL = DType("BOOL", 1, "bool", "bool", "BOOL", "Bool", "bool", 1)
C64 = _dtype("C64", 8, "complex", "complex64", "complex64", swap=4)
C128 = _dtype("C128", 16, "complex", "complex128", "complex128", st=False, swap=8)
C32 = _dtype("C32", 4, "complex", "complex32", None, st=False, swap=2)
BC32 = _dtype("BC32", 4, "complex", "bcomplex32", None, st=False, swap=2)
F8_E4M3 = _dtype("F8_E4M3", 1, "float", "float8_e4m3fn", "float8_e4m3fn")
F8_E5M2 = _dtype("F8_E5M2", 1, "float", "float8_e5m2", "float8_e5m2")
F8_E4M3FNUZ = _dtype("F8_E4M3FNUZ", 1, "float", "float8_e4m3fnuz", "float8_e4m3fnuz")
F8_E5M2FNUZ = _dtype("F8_E5M2FNUZ", 1, "float", "float8_e5m2fnuz", "float8_e5m2fnuz")
F8_E8M0 = _dtype("F8_E8M0", 1, "float", "float8_e8m0fnu", "float8_e8m0fnu")
F4 = _dtype("F4", 1, "raw", "float4_e2m1fn_x2", None, packed=2)
F6_E2M3 = _dtype("F6_E2M3", 3, "raw", None, None, swap=1, packed=4)
F6_E3M2 = _dtype("F6_E3M2", 3, "raw", None, None, swap=1, packed=4)
QUINT8 = _dtype("QUINT8", 1, "quantised", "quint8", "uint8", st=False)
QINT8 = _dtype("QINT8", 1, "quantised", "qint8", "int8", st=False)
QINT32 = _dtype("QINT32", 4, "quantised", "qint32", "int32", st=False)
QUINT4X2 = _dtype("QUINT4X2", 1, "quantised", "quint4x2", None, st=False, packed=2)
QUINT2X4 = _dtype("QUINT2X4", 1, "quantised", "quint2x4", None, st=False, packed=4)
BITS8 = _dtype("BITS8", 1, "raw", "bits8", None, st=False)
BITS1X8 = _dtype("BITS1X8", 1, "raw", "bits1x8", None, st=False)
BITS2X4 = _dtype("BITS2X4", 1, "raw", "bits2x4", None, st=False)
BITS4X2 = _dtype("BITS4X2", 1, "raw", "bits4x2", None, st=False)
BITS16 = _dtype("BITS16", 2, "raw", "bits16", None, st=False)

DTYPES: tuple[DType, ...] = tuple(value for value in list(globals().values()) if isinstance(value, DType))
BY_NAME = {d.name: d for d in DTYPES}
BY_SAFETENSORS = {d.safetensors: d for d in DTYPES if d.safetensors}
BY_TORCH = {d.torch: d for d in DTYPES if d.torch}
BY_NUMPY = {d.numpy: d for d in reversed(DTYPES) if d.numpy and d.kind != "quantised"}
