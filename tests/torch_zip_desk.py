"""What the tests of the torch zip writer share: trees written to a folder, and torch that loads them."""

from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING, Any

import torch

from ckptmigrate.dtypes import BY_TORCH, DType
from ckptmigrate.files import Disk, Late
from ckptmigrate.format import Parts, WriteOptions
from ckptmigrate.formats._torch_zip_writer import lay_out
from ckptmigrate.tensor import Tensor, View

if TYPE_CHECKING:
    from pathlib import Path

    from ckptmigrate.files import Source
    from ckptmigrate.format import Blueprint

DEFAULT, DUPLICATE = WriteOptions(), WriteOptions(ties="duplicate")
WRITABLE = [dtype for dtype in BY_TORCH.values() if dtype.kind != "quantised" and hasattr(torch, dtype.torch or "")]


class Desk:
    """A folder, the disk that reads it, and the short ways that these tests need."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder, self.disk, self.count = folder, disk, 0

    def source(self, data: bytes) -> Source:
        self.count += 1
        path = self.folder / f"{self.count}.data"
        path.write_bytes(data)
        return self.disk.open(path)

    def tensor(self, value: torch.Tensor, dtype: DType | None = None) -> Tensor:
        kind = dtype or BY_TORCH[str(value.dtype).removeprefix("torch.")]
        raw = bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) if value.numel() else b""
        return Tensor(View.rows(self.source(raw or b"-").range(0, len(raw)), kind, tuple(value.shape)))

    def write(self, tree: Any, options: WriteOptions = DEFAULT, notes: dict[str, Any] | None = None) -> Path:
        blueprint = lay_out(Parts(tree=tree, notes=notes or {}), options, "m.pt")

        assert blueprint.problems == []
        assert blueprint.left_out == []

        path = self.folder / "out.pt"
        path.write_bytes(draw(blueprint))
        return path

    def load(self, tree: Any, options: WriteOptions = DEFAULT) -> Any:
        return torch.load(self.write(tree, options), weights_only=True)


def draw(blueprint: Blueprint) -> bytes:
    ((name, pieces),) = blueprint.files.items()
    data, crcs = bytearray(), list[int]()
    for offset, piece in pieces:
        assert offset == len(data)

        if isinstance(piece, bytes):
            data += piece
        elif isinstance(piece, Late):
            made = piece.make(crcs)

            assert len(made) == piece.nbytes

            data += made
        else:
            drawn = piece.read(0, piece.numel)
            crcs.append(zlib.crc32(drawn))
            data += drawn

    assert len(data) == blueprint.sizes[name]

    return bytes(data)


def saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        same = left.dtype == right.dtype and left.shape == right.shape and left.stride() == right.stride()
        return bool(same and left.untyped_storage().tolist() == right.untyped_storage().tolist())
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right) or (left != left and right != right)  # noqa: PLR0124 - nan
