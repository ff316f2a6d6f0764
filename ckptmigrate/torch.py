"""Tensors and checkpoints as torch objects: the only room that imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .dtypes import BY_TORCH
from .errors import PluginError, TensorError
from .files import File, Range
from .tensor import Tensor, View, array, windows

if TYPE_CHECKING:
    from .files.source import Spills
    from .tensor import Promise


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


def promise(given: Any) -> Promise:
    """Give a torch.Tensor, wherever it lies, as a tensor in memory; TensorError where it is sparse, quantised or of no known dtype."""
    torch = _torch()
    dtype = BY_TORCH.get(str(given.dtype).removeprefix("torch."))
    if dtype is None or dtype.kind == "quantised" or given.layout is not torch.strided:
        raise TensorError(f"a tensor of torch with {given.dtype} and {given.layout}, expected plain numbers in rows")
    rows = given.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return array(bytes(rows.reshape(-1).view(torch.uint8).numpy()), dtype, tuple(given.shape))


class Held(File):
    """The bytes of a storage of torch, on whatever device: read where they are drawn, and never before."""

    def __init__(self, storage: Any, disk: Spills) -> None:
        self.name, self.disk, self.storage = f"a tensor in memory ({storage.device})", disk, storage

    @property
    def size(self) -> int:
        """Bytes in all."""
        return int(self.storage.nbytes())

    def pread_into(self, offset: int, buffer: memoryview) -> None:
        """Copy from the device; TensorError where a tensor has no data (meta)."""
        torch = _torch()
        if self.storage.device.type == "meta":
            raise TensorError("a tensor without data (device meta), whose elements are needed")
        whole = torch.empty(0, dtype=torch.uint8, device=self.storage.device).set_(self.storage)
        buffer[:] = memoryview(whole[offset : offset + buffer.nbytes].cpu().numpy())

    def descriptor(self) -> tuple[int, int]:
        """Refuse: no file holds it."""
        raise TensorError(f"{self.name}: no file holds it")


class Holder:
    """Takes tensors of torch as looks at their own memory, and gives looks back as tensors: shared where one can say it.

    A look that is what it was is the very tensor that was taken; another look of one storage is a view of it, on its device; what
    must be computed is drawn, and put on the device of what it is made of.
    """

    def __init__(self, disk: Spills) -> None:
        self._disk = disk
        self._files: dict[int, Held] = {}
        self._taken: dict[Promise, Any] = {}
        self._device: Any = "cpu"

    def take(self, given: Any) -> Tensor | None:
        """Give a tensor of torch as ours; None where its numbers do not lie in a storage of their own (sparse, quantised, sharded)."""
        torch = _torch()
        dtype = BY_TORCH.get(str(given.dtype).removeprefix("torch."))
        if dtype is None or dtype.kind == "quantised" or given.layout is not torch.strided or not _plain(given):
            return None
        look = given.detach().resolve_conj().resolve_neg()
        storage = look.untyped_storage()
        file = self._files.setdefault(storage._cdata, Held(storage, self._disk))  # noqa: SLF001 - its identity, on every device
        strides = tuple(step * dtype.itemsize for step in look.stride())
        offset = look.storage_offset() * dtype.itemsize
        made = View(Range(file, 0, file.size), dtype, tuple(look.shape), strides, offset)
        if not self._taken:
            self._device = given.device
        self._taken.setdefault(made, given)
        return Tensor(made)

    def give(self, source: Tensor) -> Any:
        """Give one of ours as a tensor of torch; TensorError where torch has no such dtype."""
        if source.promise in self._taken:
            return self._taken[source.promise]
        made = self._look(source)
        if made is not None:
            return made
        files = [each.file for each in source.promise.sources() if isinstance(each.file, Held)]
        return tensor(source, files[0].storage.device if files else self._device)

    def _look(self, source: Tensor) -> Any:
        """Give a view of the memory that was taken; None where none says it."""
        torch, view = _torch(), source.promise
        if not isinstance(view, View) or not isinstance(view.range.file, Held) or view.big_endian:
            return None
        item = view.itemsize
        begin = view.range.offset + view.offset
        if begin % item or any(step % item for step in view.strides):
            return None
        steps = tuple(step // item for step in view.strides)
        empty = torch.empty(0, dtype=getattr(torch, str(view.dtype.torch)), device=view.range.file.storage.device)
        return empty.set_(view.range.file.storage, begin // item, tuple(view.shape), steps)


def _plain(given: Any) -> bool:
    """Say whether a tensor is what it says: no subclass that holds others (DTensor, …)."""
    return bool(type(given).__torch_dispatch__ is _torch().Tensor.__torch_dispatch__)


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415 - an extra: only callers of this room need it
    except ImportError as error:
        raise PluginError("torch is not installed", hint="pip install 'ckptmigrate[torch]'") from error
    return torch
