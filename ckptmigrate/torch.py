"""Tensors and checkpoints as torch objects: the only room that imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import PluginError, TensorError
from .tensor import windows

if TYPE_CHECKING:
    from .tensor import Tensor


def tensor(source: Tensor, device: str = "cpu") -> Any:
    """Draw a tensor into a new torch.Tensor of the same dtype and shape on ``device``.

    Raises PluginError where torch is not installed, TensorError where torch has no such dtype or cannot reach the device.
    Quantised tensors are refused: torch would take the integers without their scale.
    """
    torch = _torch()
    if source.dtype.kind == "quantised":
        message = f"a quantised tensor ({source.dtype}), which is more than its integers"
        raise TensorError(message, dtype=source.dtype.name, hint="read it with dequantize (--dequantize)")
    dtype = getattr(torch, source.dtype.torch or "", None)
    if not isinstance(dtype, torch.dtype):
        raise TensorError(f"torch {torch.__version__} has no dtype for {source.dtype}", dtype=source.dtype.name)
    made = torch.empty(source.shape, dtype=dtype)
    if source.nbytes:
        at, raw = 0, memoryview(made.reshape(-1).view(torch.uint8).numpy())
        for window in windows(source.promise):
            raw[at : (at := at + len(window))] = window
    try:
        return made.to(device)
    except (AssertionError, RuntimeError) as error:  # torch without CUDA asserts
        raise TensorError(f"torch cannot put it on device {device!r}: {error}") from error


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415 - an extra: only callers of this room need it
    except ImportError as error:
        raise PluginError("torch is not installed", hint="pip install 'ckptmigrate[torch]'") from error
    return torch
