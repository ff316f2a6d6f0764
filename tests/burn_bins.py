"""Binary records of Burn: real ones with their schemas, and small ones made by hand."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptmigrate import registry
from ckptmigrate.format import ReadOptions
from ckptmigrate.testing import Memory

from .burn_records import FIXTURES

if TYPE_CHECKING:
    from ckptmigrate.format import Parts

BURN_BIN = registry.format("burn_bin")
RECORDER = "burn_core::record::file::BinFileRecorder<burn_core::record::settings::FullPrecisionSettings>"
LINEAR = {"struct": [["linear", {"struct": [["weight", "param"], ["bias", {"option": "param"}]]}]]}


def schema_of(path: Path) -> Path:
    """Give the schema that the maker of a fixture put beside it."""
    stem = re.sub(r"-(full|half|double)$", "", re.sub(r"\.bin(\.gz)?$", "", path.name))
    return (
        path.parent
        / f"schema-{'net' if stem.startswith('net') else 'quant' if stem.startswith('quant') else stem}.json"
    )


FILES = [p for p in sorted(FIXTURES.glob("*/*.bin*")) if schema_of(p).exists()]
IDS = [f"{p.parent.name}/{p.name}" for p in FILES]


def options_for(path: Path) -> ReadOptions:
    return ReadOptions(schema=json.loads(schema_of(path).read_text()), dequantize=True)


def text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


def head(version: str = "0.19.0", floats: str = "f32", ints: str = "i32") -> bytes:
    return b"".join(map(text, (floats, ints, RECORDER, version, "FullPrecisionSettings")))


def small(dtype: int = 1) -> bytes:
    """The small copy of case A05: one linear module without bias."""
    weight = struct.pack("<4f", 1.5, -2.0, 0.0, 3.25)
    return head() + text("aaaaaaaaaaaaa") + bytes([16]) + weight + bytes([2, 2, 2, dtype, 0])


def read(data: bytes, schema: Any) -> Parts:
    return BURN_BIN.read(Memory(data), ReadOptions(schema=schema))
