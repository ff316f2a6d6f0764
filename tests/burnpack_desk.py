"""What the tests of burnpacks share: the museum and the referee, the short ways to read, write and make files by hand."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cbor2
import numpy as np
import pytest

from ckptmigrate.format import Parts, ReadOptions, WriteOptions
from ckptmigrate.formats import burnpack
from ckptmigrate.formats._burnpack_table import ALIGNMENT, HEADER
from ckptmigrate.formats._burnpack_writer import lay_out as _lay_out
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.testing import Memory, written
from ckptmigrate.values import Scalar
from ckptmigrate.wire.cbor import loads

if TYPE_CHECKING:
    from ckptmigrate.format import Blueprint

OURS = Path(__file__).parent / "fixtures" / "burn"
SHARED = Path(__file__).parent.parent.parent / "shared"
REFEREE = SHARED / "tools" / "burn-referee"
MUSEUM = SHARED / "fixtures" / "burn" if (SHARED / "fixtures" / "burn").is_dir() else OURS
FILES = {str(path.relative_to(MUSEUM)): path for path in sorted(MUSEUM.rglob("*.bpk"))}
STUMPS = [name for name in FILES if "/broken-" in name]
GOLDEN = [name for name in FILES if "/golden/" in name]
OLD_QUANTISED = [name for name in FILES if "/quant-" in name and not name.startswith("0.22")]
WHOLE = [name for name in FILES if name not in STUMPS and name not in OLD_QUANTISED]
WORD: dict[str, Any] = {"value": "Q8S", "store": "Native", "mode": "Symmetric", "tensor": None, "block": None}
FORM, BARE = burnpack.FORMAT, WriteOptions(bare=True)


def referee(*words: str | Path) -> dict[str, Any]:
    """Ask real Burn: give what its program prints; skip where it is not at hand."""
    if not REFEREE.exists():
        pytest.skip("the referee is not beside this checkout: shared/tools/burn-referee")
    done = subprocess.run([REFEREE, *map(str, words)], capture_output=True, text=True, check=False, timeout=60)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def expected(release: str, name: str = "expected.json") -> dict[str, Any]:
    path = MUSEUM / release / name
    if not path.exists():
        pytest.skip(f"the museum is not beside this checkout: shared/fixtures/burn/{release}/{name}")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def read(data: bytes | Path, **options: Any) -> Parts:
    return burnpack.read(Memory(data if isinstance(data, bytes) else data.read_bytes()), ReadOptions(**options))


def tensors(parts: Parts) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in (parts.tensors or {}).items() if isinstance(tensor, Tensor)}


def scalars(parts: Parts) -> dict[str, Scalar]:
    return {name: scalar for name, scalar in (parts.tensors or {}).items() if isinstance(scalar, Scalar)}


def elements(tensor: Tensor) -> bytes:
    return bytes(tensor.promise.read(0, tensor.promise.numel))


def lay_out(members: dict[str, Any], options: WriteOptions = BARE, **parts: Any) -> Blueprint:
    return _lay_out(Parts(tensors=members, **parts), options, "m.bpk")


def write(parts: Parts, options: WriteOptions = BARE) -> bytes:
    return written(_lay_out(parts, options, "m.bpk"))["m.bpk"]


def table_of(data: bytes) -> dict[str, Any]:
    table: dict[str, Any] = loads(data[HEADER : HEADER + int.from_bytes(data[6:10], "little")], 10_000_000)
    return table


def file(table: Any, data: bytes = b"", *, aligned: bool = True) -> bytes:
    text = table if isinstance(table, bytes) else cbor2.dumps(table)
    head = b"NRUB\x01\x00" + len(text).to_bytes(4, "little") + text
    return head + bytes(-len(head) % ALIGNMENT if aligned else 0) + data


def entry(begin: int, end: int, dtype: Any = "U8", shape: Any = None, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end], **more}


def tensor(values: Any, ident: int | str | None = None, dtype: str = "f4") -> Tensor:
    return Tensor(array(np.asarray(values, dtype)), id=ident)


def without_ids(node: Any) -> Any:
    """Give what the referee printed without ids: running statistics get random ones at every load."""
    if isinstance(node, dict):
        return {key: without_ids(below) for key, below in node.items() if key not in {"id", "id_u64"}}
    return [without_ids(below) for below in node] if isinstance(node, list) else node
