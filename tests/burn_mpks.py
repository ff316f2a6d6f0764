"""Named MessagePack records of Burn, made by hand."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from ckptmigrate.format import Parts, ReadOptions
from ckptmigrate.formats.burn_mpk import FORMAT
from ckptmigrate.testing import Memory


def record(item: Any, version: str = "0.13.2", **metadata: str) -> bytes:
    said = {
        "float": "f32",
        "int": "i32",
        "format": "F",
        "version": version,
        "settings": "FullPrecisionSettings",
    } | metadata
    packed: bytes = msgpack.packb({"metadata": said, "item": item, "_b": []})
    return packed


def parsed(item: Any, **metadata: str) -> Parts:
    return FORMAT.read(Memory(record(item, **metadata)), ReadOptions())


def param(payload: Any, ident: str = "u") -> dict[str, Any]:
    return {"id": ident, "param": payload}


def T(*shape: int) -> dict[str, Any]:
    return {"bytes": np.arange(np.prod(shape), dtype="f4").tobytes(), "shape": list(shape), "dtype": "F32"}
