"""What the tests of Burn's records share: where real files are, what Burn held when it wrote them, and a slow reader that knows nothing of ours."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from ckptmigrate.files import Disk
from ckptmigrate.format import Format, Parts, ReadOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

MUSEUM = Path(__file__).parent / "fixtures" / "burn"
SHARED = Path(__file__).parent.parent.parent / "shared" / "fixtures" / "burn"
FIXTURES = SHARED if SHARED.is_dir() else MUSEUM  # all of them where they are at hand, else those that the museum has

NUMPY = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "U8": "u1"}
MODELS = ("net", "zoo", "odd")


def truth(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return found


def models(*suffixes: str) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Give every file of a model with what Burn held: static ones, those of the optimizers, those of each epoch."""
    for folder in sorted(p.parent for p in FIXTURES.glob("0.*/expected.json")):
        said = truth(folder)
        wanted = [
            (f"{what}{end}", said[what])
            for what in MODELS
            for end in ("", "-full", "-half", "-double", "-f16", "-f64", "-bytes-full")
            if what in said
        ]
        wanted += [(f"optim-{name}-model", one["model"]) for name, one in said.get("optim", {}).items()]
        wanted += [
            (f"{run}/checkpoint/model-{epoch['epoch']}", epoch["model"])
            for run, one in said.get("runs", {}).items()
            for epoch in one["epochs"]
        ]
        for stem, expected in wanted:
            for suffix in suffixes:
                path = folder / f"{stem}{suffix}"
                if path.exists():
                    yield path, expected


def records(kind: str, *suffixes: str) -> list[Path]:
    """Give every file of an optimizer ("optim") or scheduler, of the recorders' era."""
    found = [
        *FIXTURES.glob(f"0.*/{kind}-*"),
        *FIXTURES.glob(f"0.*/*/checkpoint/{kind}-*"),
    ]
    named = [p for p in found if p.name.endswith(suffixes) and "model" not in p.name]
    return sorted(p for p in named if p.relative_to(FIXTURES).parts[0] not in {"0.3.0", "0.4.0", "0.6.0"})


def ident(path: Path) -> str:
    return str(path.relative_to(FIXTURES))


def read(form: Format, path: Path, **options: Any) -> Parts:
    """Read a file; its bytes lie on a disk that lives as long as the parts."""
    disk = Disk()
    source = disk.open(path)
    match = form.sniff(source)
    assert match is not None, f"{form.name} does not claim {path.name}"
    parts = form.read(source, ReadOptions(**options))
    parts.facts["disk"] = disk
    return parts


def check_model(parts: Parts, expected: list[dict[str, Any]], *, ordered: bool = True) -> None:
    """Check names, order, ids, dtypes, shapes and values against what Burn held; half files hold what f16 has of it."""
    tensors = parts.tensors or {}
    names, wanted = [bare(name) for name in tensors], [bare(e["name"]) for e in expected]
    assert (names if ordered else sorted(names)) == (wanted if ordered else sorted(wanted))
    assert parts.facts["section"] == "model"
    half = parts.facts.get("half", False)
    for e in expected:
        tensor = next(t for name, t in tensors.items() if bare(name) == bare(e["name"]))
        assert isinstance(tensor, Tensor)
        assert str(tensor.id) == e["id"]
        assert list(tensor.shape) == e.get("saved_shape", e["shape"])
        values = tensor.numpy().reshape(-1)
        kind = e.get("kind", "float")
        ambiguous = half and kind == "int" and min(e["values"]) >= 0 and tensor.dtype.name == "F16"
        if ambiguous:
            assert values.view("i2").tolist() == e["values"]
            continue
        held = np.array(e.get("saved_values", e["values"]) if "bits" not in e else np.array(e["bits"], "u4").view("f4"))
        if half and kind == "float":
            with np.errstate(over="ignore"):
                held = held.astype("f2")
        assert values.dtype.kind == ("b" if kind == "bool" else values.dtype.kind)
        assert np.array_equal(values.astype("f8"), held.astype("f8"), equal_nan=True), e["name"]


def bare(name: str) -> str:
    return name.replace("r#", "")


def unpacked(path: Path) -> Any:
    """Read a record with the library of its encoding."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data) if ".json" in path.name else msgpack.unpackb(data)


def is_payload(node: Any) -> bool:
    return isinstance(node, dict) and set(node) in ({"value", "shape"}, {"bytes", "shape", "dtype"})


def numbers(payload: dict[str, Any], floats: str) -> np.ndarray[Any, Any]:
    if "bytes" in payload:
        return np.frombuffer(bytes(payload["bytes"]), NUMPY[payload["dtype"]]).astype("f8")
    values = [float("nan") if v is None else v for v in payload["value"]]
    if floats.endswith("f16"):
        return np.array(values, "u2").view("f2").astype("f8")
    return (
        np.array(values, floats.replace("f", "f")).astype("f8")
        if floats == "f64"
        else np.array(values, "f4").astype("f8")
    )


def leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if is_payload(node):
        yield path, node
    elif isinstance(node, dict):
        for name, below in node.items():
            yield from leaves(below, f"{path}.{name}" if path else name)
    elif isinstance(node, list):
        if all(map(is_payload, node)):
            yield f"{path}.len", len(node)
        for index, below in enumerate(node):
            yield from leaves(below, f"{path}.{index}" if path else str(index))
    elif node is not None:
        yield path, node


def optimizer_leaves(item: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, entry in item.items():
        if isinstance(entry, dict) and set(entry) == {"V1"}:
            ((rank, state),) = entry["V1"].items()
            yield f"{name}.__rank", int(rank.removeprefix("Rank"))
            yield from leaves(state, name)
        else:
            yield from leaves(entry, name)


def check_state(parts: Parts, path: Path, *, section: str) -> None:
    """Check an optimizer's or scheduler's record against the slow reader: names in order, numbers, shapes, elements."""
    record = unpacked(path)
    item = record["item"]
    expected = dict(optimizer_leaves(item) if section == "optimizers" and isinstance(item, dict) else leaves(item, ""))
    tensors = parts.tensors or {}

    assert list(tensors) == list(expected)
    assert parts.facts.get("section", section) == section
    for name, value in tensors.items():
        want = expected[name]
        if isinstance(value, Scalar):
            assert (value.value, type(value.value)) == (want, type(want))
            continue
        assert list(value.shape) == want["shape"]
        assert value.id is None or name.startswith(f"{value.id}.")
        drawn = value.numpy().reshape(-1).astype("f8")
        assert np.array_equal(drawn, numbers(want, record["metadata"]["float"]), equal_nan=True), name
