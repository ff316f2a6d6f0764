"""Tensors that are more than a look into a storage: lazy conjugates and negations, quantised, of another device.

    quantised   (scheme, scale, zero_point) for all, or (scheme, scales, zero_points, axis) for each slice along an axis

What no other format has words for is a fault, refused by name, unless the caller asked for numbers (``--dequantize``).
Sources: torch/_utils.py (``_rebuild_qtensor``), torch/_tensor.py of torch 1.2 to 2.13.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import F64, I64
from ckptmigrate.errors import CkptError
from ckptmigrate.tensor import Quantisation, Tensor, array, cast, conjugate, dequantise, negate

from ._torch_storages import fault

if TYPE_CHECKING:
    from ckptmigrate.dtypes import DType

_QUANTISED = "torch._utils._rebuild_qtensor"
_NUMBERS = ("F64", "F32", "I64", "I32")


def conjugated(tensor: Any, metadata: Any) -> Any:
    """Give what the bits ``conj`` and ``neg`` of the metadata mean, as torch resolves them when somebody looks."""
    if not isinstance(tensor, Tensor) or not isinstance(metadata, dict):
        return tensor
    try:
        promise = conjugate(tensor.promise) if metadata.get("conj") else tensor.promise
        return replace(tensor, promise=negate(promise) if metadata.get("neg") else promise)
    except CkptError as error:
        return fault("torch._utils._rebuild_tensor_v2", error.message)


def recast(tensor: Tensor, dtype: DType) -> Any:
    """Give the tensor as ``dtype``: arrays of other devices were saved as a type that numpy has."""
    try:
        return replace(tensor, promise=cast(tensor.promise, dtype))
    except CkptError as error:
        return fault("torch._utils._rebuild_device_tensor_from_numpy", error.message)


def dequantised(tensor: Any, parameters: Any, *, wanted: bool) -> Any:
    """Give the F32 numbers of a quantised tensor if ``wanted``, else the fault that names it quantised."""
    if not isinstance(tensor, Tensor):
        return tensor
    if not wanted:
        return fault(
            _QUANTISED, f"a quantised tensor ({tensor.dtype}), which is integers with a scale and a zero point",
            "--dequantize turns quantised tensors into F32",
        )  # fmt: skip
    quant = _quantisation(parameters)
    if quant is None:
        return fault(_QUANTISED, "a quantised tensor whose scale and zero point are no numbers")
    try:
        return replace(tensor, promise=dequantise(tensor.promise, quant))
    except CkptError as error:
        return fault(_QUANTISED, f"a quantised tensor: {error.message}")


def _quantisation(parameters: Any) -> Quantisation | None:
    if type(parameters) is not tuple or len(parameters) not in (3, 4):
        return None
    scheme = str(getattr(parameters[0], "path", "")).removeprefix("torch.")
    scale, zero_point = parameters[1:3]
    if len(parameters) == 3:
        numbers = type(scale) in (int, float) and type(zero_point) is int and zero_point.bit_length() < 63
        return Quantisation(scheme, scale, zero_point) if numbers else None
    scale, zero_point = (_line(one) for one in (scale, zero_point))
    tensors = all(isinstance(one, Tensor) and one.dtype.name in _NUMBERS for one in (scale, zero_point))
    return Quantisation(scheme, scale, zero_point, parameters[3]) if tensors and type(parameters[3]) is int else None


def _line(numbers: Any) -> Any:
    """Give the list of numbers that torch up to 1.4 wrote, one a channel, as the tensor that it wrote later."""
    if type(numbers) is not list or not numbers:
        return numbers
    if all(type(number) is int and number.bit_length() < 64 for number in numbers):
        return Tensor(array(struct.pack(f"<{len(numbers)}q", *numbers), I64, (len(numbers),)))
    if all(type(number) is float for number in numbers):
        return Tensor(array(struct.pack(f"<{len(numbers)}d", *numbers), F64, (len(numbers),)))
    return numbers
