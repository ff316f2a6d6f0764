"""Tensors and checkpoints as torch objects: the only room that imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import PluginError, TensorError
from .tensor import windows

if TYPE_CHECKING:
    from .tensor import Tensor


def tensor(source: Tensor, device: str = "cpu") -> Any:
    """Draw a tensor into a new torch.Tensor of the same dtype and shape on ``device``.

    Raises PluginError where torch is not installed, TensorError where torch has no such dtype.
    """
    torch = _torch()
    dtype = getattr(torch, source.dtype.torch or "", None)
    if dtype is None or not isinstance(dtype, torch.dtype):
        raise TensorError(f"torch {torch.__version__} has no dtype for {source.dtype}", dtype=source.dtype.name)
    raw = torch.empty(source.nbytes, dtype=torch.uint8)
    filled = 0
    view = memoryview(raw.numpy())
    for window in windows(source.promise):
        view[filled : filled + window.nbytes] = window.cast("B")
        filled += window.nbytes
    # A view of another dtype needs at least one byte; an empty tensor is made as it is.
    shaped = raw.view(dtype).reshape(source.shape) if source.nbytes else torch.empty(source.shape, dtype=dtype)
    return shaped.to(device)


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415 - an extra: only callers of this room need it
    except ImportError as error:
        raise PluginError("torch is not installed", hint="pip install 'ckptmigrate[torch]'") from error
    return torch
