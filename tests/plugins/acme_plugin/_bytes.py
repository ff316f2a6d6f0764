"""MAGIC, 8 bytes length, JSON {"notes", "metadata", "tensors": {name: [dtype, shape, offset, nbytes, id] | [kind, value]}}, elements."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import BY_NAME
from ckptmigrate.format import Blueprint, Parts
from ckptmigrate.tensor import Tensor, View
from ckptmigrate.values import Scalar

if TYPE_CHECKING:
    from ckptmigrate.files import Source

ROOM = 4096  # bytes that the header has


def read(source: Source, magic: bytes) -> Parts:
    size = int.from_bytes(source.read(len(magic), 8), "little")
    said = json.loads(source.read(len(magic) + 8, size))
    tensors: dict[str, Tensor | Scalar] = {}
    for name, entry in said["tensors"].items():
        if len(entry) == 2:
            tensors[name] = Scalar(entry[0], entry[1])
        else:
            dtype, shape, offset, nbytes, identity = entry
            view = View.rows(source.range(ROOM + offset, nbytes), BY_NAME[dtype], tuple(shape))
            tensors[name] = Tensor(view, None, identity)
    return Parts("acme", tensors=tensors, notes=said["notes"], facts={"fields": said.get("fields", {})})


def lay_out(parts: Parts, name: str, magic: bytes, fields: Any = None) -> Blueprint:
    entries: dict[str, Any] = {}
    pieces: list[Any] = []
    laid: dict[Any, int] = {}
    end = 0
    for key, value in (parts.tensors or {}).items():
        if isinstance(value, Scalar):
            entries[key] = [value.kind, value.value]
            continue
        promise = value.promise
        identity = None if value.id is None else str(value.id)
        if promise not in laid:
            laid[promise] = end
            pieces.append((ROOM + end, promise))
            end += promise.nbytes
        entries[key] = [promise.dtype.name, list(promise.shape), laid[promise], promise.nbytes, identity]
    header = json.dumps({"notes": parts.notes, "tensors": entries, "fields": fields or {}}).encode()
    head = magic + len(header).to_bytes(8, "little") + header
    assert len(head) <= ROOM
    return Blueprint({name: [(0, head.ljust(ROOM, b"\0")), *pieces]}, {name: ROOM + end})
