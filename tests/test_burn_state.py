"""State files: trees without order, version or precision come out under today's names, with what Burn held."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptmigrate.dtypes import F16, F32, F64
from ckptmigrate.errors import CorruptError, LimitError
from ckptmigrate.format import Parts, ReadOptions
from ckptmigrate.formats.burn_state import FORMAT
from ckptmigrate.tensor import Tensor
from ckptmigrate.testing import Memory, check_flips, check_reads_lazily, check_sniffs_own, check_truncation
from ckptmigrate.values import Scalar

from .burn_records import FIXTURES, MUSEUM, check_model, ident, models, read, truth

RELEASES = ("0.3.0", "0.4.0", "0.6.0")
MODELS = [(p, e) for p, e in models(".json.gz") if p.relative_to(FIXTURES).parts[0] in RELEASES]
OPTIMIZERS = sorted(
    p
    for release in RELEASES
    for p in [*FIXTURES.glob(f"{release}/optim-*"), *FIXTURES.glob(f"{release}/*/checkpoint/optim-*")]
    if "model" not in p.name
)
SLOTS = {
    "momentum-": "momentum.velocity",
    "weight-decay-": "weight_decay.grad_last_step",
    "moment_1-": "momentum.moment_1",
    "moment_2-": "momentum.moment_2",
    "time-": "momentum.time",
}


def file(tree: Any) -> bytes:
    return gzip.compress(json.dumps(tree).encode())


def parsed(tree: Any) -> Parts:
    source = Memory(file(tree))
    assert FORMAT.sniff(source) is not None
    return FORMAT.read(source, ReadOptions())


def named(**values: Any) -> dict[str, Any]:
    return {"StateNamed": {"values": values}}


def data(*values: float) -> dict[str, Any]:
    return {"Data": {"value": list(values), "shape": [len(values)]}}


def param(node: Any, text: str = "an-id") -> dict[str, Any]:
    return named(data=node, id={"ParamId": {"value": text}})


def numpy(parts: Parts, name: str) -> np.ndarray[Any, Any]:
    tensor = (parts.tensors or {})[name]
    assert isinstance(tensor, Tensor)
    return tensor.numpy()


# ---------------------------------------------------------------- the museum


@pytest.mark.parametrize(("path", "expected"), MODELS, ids=[ident(p) for p, _ in MODELS])
def test_a_model_says_what_burn_held(path: Path, expected: list[dict[str, Any]]) -> None:
    parts = read(FORMAT, path)

    check_model(parts, expected, ordered=False)
    assert "versions" not in parts.facts


@pytest.mark.parametrize("path", OPTIMIZERS, ids=ident)
def test_an_optimizer_says_what_json_reads(path: Path) -> None:
    """The fixtures' models tell the ids; a state's own key tells the slot; what 0.4 and 0.5 left out is the others' time."""
    tree = json.loads(gzip.decompress(path.read_bytes()))
    tagged = "StateNamed" in tree
    flat = {k: v["Data"] if tagged else v for k, v in (tree["StateNamed"]["values"] if tagged else tree).items()}
    half = bool(flat) and all(isinstance(n, int) for d in flat.values() for n in d["value"])
    parts = read(FORMAT, path)
    tensors = dict(parts.tensors or {})
    counts = {v.value for n, v in tensors.items() if n.endswith(".momentum.time") and isinstance(v, Scalar)}

    assert parts.facts["section"] == "optimizers"
    assert parts.facts.get("half", False) == half
    assert len(counts) <= 1
    for key, payload in flat.items():
        prefix = next(p for p in SLOTS if key.startswith(p))
        text = key.removeprefix(prefix)
        value = tensors.pop(f"{text}.{SLOTS[prefix]}")
        values = np.array(payload["value"], "u2").view("f2") if half else np.array(payload["value"], "f4")
        if isinstance(value, Scalar):
            assert (value.kind, value.value) == ("uint", values[0])
            continue
        assert str(value.id) == text
        assert list(value.shape) == payload["shape"]
        assert (value.numpy().reshape(-1) == values).all()
        tensors.pop(f"{text}.__rank", None)
    left = {name.partition(".")[2] if "." in name else name for name in tensors}
    assert left <= {"momentum.time"}
    assert bool(left) == bool(parts.warnings and counts)


def test_all_optimizers_of_the_museum_belong_to_their_models() -> None:
    for folder in (FIXTURES / release for release in RELEASES):
        for name, one in truth(folder)["optim"].items():
            path = folder / f"optim-{name}.json.gz"
            if path.exists():
                ids = {str(t.id) for t in (read(FORMAT, path).tensors or {}).values() if isinstance(t, Tensor)}
                assert ids <= {e["id"] for e in one["model"]}


# ---------------------------------------------------------------- trees


def test_wrappers_add_no_name_and_lists_are_in_order() -> None:
    layers = named(**{f"mod-{i}": named(w=param(data(float(i)), f"id-{i}")) for i in (10, 2, 0)})
    parts = parsed(named(net=param(param(named(layers=param(layers)))), absent=param(named())))

    assert list(parts.tensors or {}) == ["net.layers.0.w", "net.layers.2.w", "net.layers.10.w"]
    assert [t.id for t in (parts.tensors or {}).values() if isinstance(t, Tensor)] == ["id-0", "id-2", "id-10"]


def test_modules_may_have_fields_of_these_names() -> None:
    awkward = named(data=param(named(w=param(data(1.5)))), id=param(data(2.5)))
    tricky = named(value=param(data(3.5)), shape=param(data(4.5)))
    parts = parsed(named(awkward=param(awkward), tricky=tricky))

    assert list(parts.tensors or {}) == ["awkward.data.w", "awkward.id", "tricky.shape", "tricky.value"]


def test_the_untagged_tree_of_0_3() -> None:
    tricky = {
        "data": {
            "shape": {"data": {"shape": [1], "value": [0.5]}, "id": "b"},
            "value": {"data": {"shape": [1], "value": [1.5]}, "id": "c"},
        },
        "id": "a",
    }
    parts = parsed({"tricky": tricky})

    assert numpy(parts, "tricky.shape").tolist() == [0.5]
    assert numpy(parts, "tricky.value").tolist() == [1.5]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((0.1, 1.0), F32),
        ((16777216.0, 1234567900.0, 1e-45, 3.4028235e38), F32),
        ((0.1, 0.12345678901), F64),
        ((0.30000000000000004,), F64),
        ((15360, 0), F16),
    ],
)
def test_what_the_numbers_are_stands_in_them(values: tuple[float, ...], dtype: Any) -> None:
    parts = parsed(named(w=param(data(*values)), other=param(data(*(type(values[0])(0),)))))
    found = (parts.tensors or {})["w"]

    assert isinstance(found, Tensor)
    assert found.dtype == dtype
    assert (parts.tensors or {})["other"].dtype == dtype  # type: ignore[union-attr] # a tensor
    assert parts.facts.get("half", False) == (dtype == F16)


@pytest.mark.parametrize(("value", "dtype"), [(0.10000000149011612, F32), (0.1, F64)])
def test_0_3_writes_every_float_as_an_f64(value: float, dtype: Any) -> None:
    parts = parsed({"w": {"data": {"shape": [1], "value": [value]}, "id": "a"}})
    found = (parts.tensors or {})["w"]

    assert isinstance(found, Tensor)
    assert found.dtype == dtype


def test_a_missing_time_is_that_of_the_others() -> None:
    slots = {
        "moment_1-a": data(1.5),
        "moment_2-a": data(1.5),
        "time-a": data(3.0),
        "moment_1--b_": data(1.5),
        "moment_2--b_": data(0.5),
    }
    parts = parsed(named(**slots))

    assert (parts.tensors or {})["-b_.momentum.time"] == Scalar("uint", 3)
    assert (parts.tensors or {})["-b_.__rank"] == Scalar("uint", 1)
    assert "1 of 2 parameters have no step count" in parts.warnings[0]


def test_a_time_that_nobody_has_is_not_made_up() -> None:
    parts = parsed(named(**{"moment_1-a": data(1.5), "moment_2-a": data(1.5)}))

    assert "a.momentum.time" not in (parts.tensors or {})
    assert "no other has one" in parts.warnings[0]


def test_a_time_in_half_precision_is_a_bit_pattern() -> None:
    parts = parsed(named(**{"moment_1-a": data(15360), "moment_2-a": data(0), "time-a": data(16896)}))

    assert (parts.tensors or {})["a.momentum.time"] == Scalar("uint", 3)


@pytest.mark.parametrize("tree", [{}, named()])
def test_an_optimizer_without_state_is_one(tree: Any) -> None:
    parts = parsed(tree)

    assert parts.tensors == {}
    assert parts.facts["section"] == "optimizers"


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (named(a=named(w=param({"Data": {"value": [1.0], "shape": [3]}}))), r"a\.w: 1 numbers .* holds 3"),
        (named(w={"Other": 1}), '"w" is dict'),
        (named(w=data(1.0)), "w: a tensor without"),
        (named(w={"ParamId": {"value": "x"}}), "w: an id without"),
        (named(w=param({"ParamId": {"value": "x"}})), "w: an id without"),
        (named(**{"time-a": data(1.0, 2.0), "moment_1-a": data(1.0)}), "a.momentum.time"),
        (named(**{"moment_1-a": data(1.0, 2.0), "moment_2-a": data(1.0), "time-a": data(1.0)}), "2 shapes"),
        (named(a={"Data": {"value": 3, "shape": [1]}}), '"a" is dict'),
    ],
)
def test_a_tree_that_contradicts_itself_is_refused(tree: Any, says: str) -> None:
    with pytest.raises(CorruptError, match=says):
        parsed(tree)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"a": 1}', b'{"metadata": {"float": "f32"}}', b'{"shape": [1]', b"\x82\xa8metadata", b"PK\3\4"],
)
def test_others_are_not_claimed(content: bytes) -> None:
    assert FORMAT.sniff(Memory(content)) is None
    assert FORMAT.sniff(Memory(gzip.compress(content))) is None or content.startswith(b'{"shape"')


def test_deep_trees_end() -> None:
    assert parsed(json.loads('{"a":' * 300 + "{}" + "}" * 300)).tensors == {}
    with pytest.raises(LimitError, match="512"):
        FORMAT.read(Memory(gzip.compress(b'{"a":' * 600)), ReadOptions())


@pytest.mark.parametrize(
    "name",
    ["0.3.0/net-f16.json.gz", "0.4.0/optim-adam.json.gz", "0.6.0/optim-adam-wd.json.gz", "0.3.0/optim-sgd.json.gz"],
)
def test_the_contract(name: str) -> None:
    content = (MUSEUM / name).read_bytes()

    check_sniffs_own(FORMAT, content)
    check_reads_lazily(FORMAT, content)
    check_truncation(FORMAT, content, clock=time.monotonic)
    check_flips(FORMAT, content, 300, clock=time.monotonic)
    check_flips(FORMAT, gzip.decompress(content), 300, clock=time.monotonic)
