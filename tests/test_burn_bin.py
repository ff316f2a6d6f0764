"""Binary records of Burn: every real file by its schema to the last byte, and none without."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckptmigrate import registry, store
from ckptmigrate.dtypes import F16, I16
from ckptmigrate.errors import UnsupportedFormatError
from ckptmigrate.files import Disk
from ckptmigrate.format import GatherOptions, ReadOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Scalar

from .burn_bins import BURN_BIN, FILES, IDS, LINEAR, options_for, small
from .burn_records import FIXTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptmigrate.format import Parts

LINEAR_ALONE = {
    "struct": [["weight", "param"], ["bias", {"option": "param"}]]
}  # that of the file without a schema beside it


# ---------------------------------------------------------------- real files


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_every_real_file_is_read_to_its_last_byte_with_the_values_that_burn_held(path: Path) -> None:
    with Disk() as disk:
        source = disk.open(path)
        match = BURN_BIN.sniff(source)
        assert match is not None
        parts = BURN_BIN.read(source, options_for(path))
        assert parts.facts["versions"]["burn"].startswith(path.parent.name)
        assert bool(parts.facts.get("half")) == ("-half" in path.name)
        tensors = {name: t for name, t in (parts.tensors or {}).items() if isinstance(t, Tensor)}
        if path.name.startswith(("optim", "scheduler")):
            named = json.loads(path.with_suffix(".json").read_text())
            assert told(parts) == dict(flat(named["item"], ""))
        else:
            check_model(path, tensors)


def test_a_file_of_the_patched_release_is_read_by_a_schema_of_ours() -> None:
    """0.14.1 is the core of most real 0.14 files; its maker left no schema."""
    path = FIXTURES / "0.14.0" / "core-0_14_1" / "linear-full.bin"
    if not path.exists():
        pytest.skip("the file is in shared/fixtures only")
    with Disk() as disk:
        parts = BURN_BIN.read(disk.open(path), ReadOptions(schema=LINEAR_ALONE))
        named = json.loads(path.with_suffix(".json").read_text())["item"]

        assert parts.facts["versions"] == {"burn": "0.14.1"}
        assert {n: t.id for n, t in (parts.tensors or {}).items() if isinstance(t, Tensor)} == {
            n: leaf["id"] for n, leaf in named.items() if isinstance(leaf, dict)
        }


def check_model(path: Path, tensors: dict[str, Tensor]) -> None:
    expected = json.loads((path.parent / "expected.json").read_text())
    section = path.name.partition("-")[0]
    wanted = expected[section]
    if section == "quant":
        case = wanted[re.sub(r"^quant-|-(full|half)\.bin$", "", path.name)]
        wanted = case.get("values") or case.get("after") or case["dequantized"]
    assert len(tensors) == len(wanted)
    for (name, tensor), want in zip(tensors.items(), wanted, strict=True):
        assert name.replace("r#", "") == want["name"].replace("r#", "")
        assert ("r#" in name) == (
            re.search(r"\btype\b", name) is not None
        )  # the one field of the fixtures that is a word of Rust
        assert tensor.id == want["id"]
        assert list(tensor.shape) == want.get("saved_shape", want["shape"])
        drawn = tensor.numpy().reshape(-1)
        if "bits" in want:
            assert drawn.view("<u4").tolist() == want["bits"]
        else:
            values = want.get("saved_values", want["values"])
            assert drawn.astype("f8").tolist() == np.array(values, drawn.dtype).astype("f8").tolist()
            assert (tensor.dtype == I16) == (want["kind"] == "int" and "-half" in path.name and tensor.dtype != F16)


def told(parts: Parts) -> dict[str, Any]:
    """Give tensors as numbers, and numbers as they are, by the names of the record; None for NaN, as JSON has it."""
    found: dict[str, Any] = {}
    for name, value in (parts.tensors or {}).items():
        if isinstance(value, Scalar):
            found[name] = value.value
        else:
            numbers = value.numpy().reshape(-1).tolist()
            found[name] = [list(value.shape), [None if math.isnan(number) else number for number in numbers]]
    return found


def flat(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Walk the item of a JSON record as the language of today's names has it."""
    below = f"{path}." if path else ""
    if isinstance(node, dict) and node.keys() == {"value", "shape"}:
        yield path, [node["shape"], [None if v is None else float(np.float32(v)) for v in node["value"]]]
    elif isinstance(node, dict) and node.keys() == {"bytes", "shape", "dtype"}:
        yield path, [node["shape"], np.frombuffer(bytes(node["bytes"]), "<f4").tolist()]
    elif isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, dict) and value.keys() == {"V1"}:
                ((rank, state),) = value["V1"].items()
                yield f"{key}.__rank", int(rank[4:])
                yield from flat(state, key)
            else:
                yield from flat(value, below + key)
    elif isinstance(node, list):
        if node and all(isinstance(item, dict) and "shape" in item for item in node):
            yield below + "len", len(node)
        for index, item in enumerate(node):
            yield from flat(item, below + str(index))
    elif node is not None:
        yield path, node


@pytest.mark.parametrize("path", [p for p in FILES if p.name == "net-full.bin"], ids=lambda p: str(p.parent.name))
def test_a_model_becomes_the_golden_file_byte_for_byte(path: Path) -> None:
    from ckptmigrate.format import WriteOptions
    from ckptmigrate.testing import written

    golden = path.parent / "golden" / "net.bpk"
    if not golden.exists():
        pytest.skip(f"the golden file of {path.parent.name} is in shared/fixtures only")
    with store.open_checkpoint(path, options_for(path)) as checkpoint:
        bare = WriteOptions(bare=True)
        target = registry.format("burnpack")
        ((name, (form, parts)),) = store.scatter(checkpoint, target, None, bare, name="net.bpk").items()
        assert form.lay_out is not None

        assert written(form.lay_out(parts, bare, name))[name] == golden.read_bytes()


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_without_a_schema_a_file_is_recognised_told_of_and_refused(path: Path) -> None:
    with Disk() as disk, pytest.raises(UnsupportedFormatError, match=re.escape(path.parent.name)) as caught:
        BURN_BIN.read(disk.open(path), ReadOptions())

    assert "--schema FILE" in " ".join(caught.value.hints)
    if path.name.startswith(("net", "zoo")):
        expected = json.loads((path.parent / "expected.json").read_text())[path.name.partition("-")[0]]
        found = [(leaf.id, list(leaf.shape)) for leaf in caught.value.data["leaves"]]
        assert found == [(want["id"], want.get("saved_shape", want["shape"])) for want in expected]


def test_the_file_of_case_a05_is_refused_with_what_it_holds(corpus: Callable[[str], Path]) -> None:
    path = corpus("tracel-ai+burn/mnist-0.19.0-f32.model.bin")
    with pytest.raises(UnsupportedFormatError) as caught:
        store.open_checkpoint(path)

    said = str(caught.value) + " ".join(caught.value.hints)
    for word in (
        "0.19.0",
        "FullPrecisionSettings",
        "f32",
        "no names",
        "26 parameters",
        "[64, 1, 3, 3]",
        "--schema FILE",
    ):
        assert word in said


def test_a_file_alone_is_one_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "linear.bin"
    path.write_bytes(small())
    with store.open_checkpoint(path, ReadOptions(schema=LINEAR), GatherOptions()) as checkpoint:
        assert list(checkpoint.model) == ["linear.weight"]
        assert checkpoint.model["linear.weight"].id == int.from_bytes(_base32("aaaaaaaaaaaaa"), "little")
        assert checkpoint.modules["linear"] == {"fields": ["weight", "bias"]}


def _base32(symbols: str) -> bytes:
    value = int("".join(f"{'0123456789abcdefghijklmnopqrstuv'.index(s):05b}" for s in symbols)[:64], 2)
    return value.to_bytes(8, "big")
