"""What the tests of safetensors share: files made of parts and parts made of files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch

from ckptmigrate.dtypes import BY_NAME, BY_SAFETENSORS, F4, DType
from ckptmigrate.files import Disk, Late
from ckptmigrate.format import Parts, ReadOptions, WriteOptions
from ckptmigrate.formats._safetensors_writer import lay_out
from ckptmigrate.formats.safetensors import read
from ckptmigrate.tensor import Tensor, View

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ckptmigrate.files import Source
    from ckptmigrate.format import Blueprint
    from ckptmigrate.values import Scalar

TORCH_DTYPES = [d for d in BY_SAFETENSORS.values() if d.torch and d is not F4]
DESERIALIZE: Any = safetensors.deserialize
DEFAULT, BARE, DUPLICATE = WriteOptions(), WriteOptions(bare=True), WriteOptions(ties="duplicate")


class Desk:
    """A folder, the disk that reads it, and the short ways that these tests need."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder, self.disk, self.count = folder, disk, 0

    def source(self, data: bytes, name: str = "m.safetensors") -> Source:
        self.count += 1
        path = self.folder / str(self.count) / name
        path.parent.mkdir()
        path.write_bytes(data)
        return self.disk.open(path)

    def read(self, data: bytes, **options: Any) -> Parts:
        return read(self.source(data), ReadOptions(**options))

    def tensor(self, array: Any, dtype: DType | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        data = np.asarray(array, order="C")
        kind = dtype or BY_NAME[{"float32": "F32", "float64": "F64", "uint8": "U8", "int64": "I64"}[data.dtype.name]]
        place = self.source(data.tobytes() or b"-", "data").range(0, data.nbytes)
        return Tensor(View.rows(place, kind, data.shape if shape is None else shape))

    def write(self, tensors: Mapping[str, Tensor | Scalar], options: WriteOptions = DEFAULT, **parts: Any) -> bytes:
        blueprint = lay_out(Parts(tensors=dict(tensors), **parts), options, "m.safetensors")

        assert blueprint.problems == []

        return draw(blueprint)


def draw(blueprint: Blueprint) -> bytes:
    """Draw a blueprint of one file into memory."""
    ((name, pieces),) = blueprint.files.items()
    data, crcs = bytearray(), list[int]()
    for offset, piece in pieces:
        data += bytes(offset - len(data))

        assert offset == len(data)

        if isinstance(piece, bytes):
            data += piece
        else:
            data += piece.make(crcs) if isinstance(piece, Late) else piece.read(0, piece.numel)

    assert len(data) == blueprint.sizes[name]

    return bytes(data)


def elements(tensor: Tensor | Scalar) -> bytes:
    assert isinstance(tensor, Tensor)

    return bytes(tensor.promise.read(0, tensor.promise.numel))


def file(header: Any, data: bytes = b"") -> bytes:
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, dtype: Any = "U8", shape: Any = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def header_of(data: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def names(parts: Parts) -> list[str]:
    assert parts.tensors is not None

    return list(parts.tensors)


def same_promise(parts: Parts, one: str, two: str) -> bool:
    assert parts.tensors is not None

    left, right = parts.tensors[one], parts.tensors[two]
    return isinstance(left, Tensor) and isinstance(right, Tensor) and left.promise == right.promise
