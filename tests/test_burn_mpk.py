"""Named MessagePack records: every real one says what Burn held, and its bytes stay where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptmigrate.dtypes import BOOL, F16, F32, F64, I16, I32
from ckptmigrate.errors import TensorError
from ckptmigrate.formats.burn_mpk import FORMAT
from ckptmigrate.tensor import Tensor, View
from ckptmigrate.values import NOTHING, Scalar

from .burn_mpks import T, param, parsed
from .burn_records import FIXTURES, MUSEUM, check_model, check_state, ident, models, read, records, truth

SUFFIXES = (".mpk", ".mpk.gz")
MODELS = list(models(*SUFFIXES))
FLOATS = {"f32": F32, "f64": F64, "half::binary16::f16": F16}


# ---------------------------------------------------------------- the museum


@pytest.mark.parametrize(("path", "expected"), MODELS, ids=[ident(p) for p, _ in MODELS])
def test_a_model_says_what_burn_held(path: Path, expected: list[dict[str, Any]]) -> None:
    parts = read(FORMAT, path)

    check_model(parts, expected)
    assert parts.facts["versions"]["burn"].startswith(path.relative_to(FIXTURES).parts[0].rpartition(".")[0])
    assert ("half" in parts.facts) == parts.facts["envelope"]["float"].endswith("f16")


@pytest.mark.parametrize("path", records("optim", *SUFFIXES), ids=ident)
def test_an_optimizer_says_what_the_library_reads(path: Path) -> None:
    check_state(read(FORMAT, path), path, section="optimizers")


@pytest.mark.parametrize("path", records("scheduler", *SUFFIXES), ids=ident)
def test_a_scheduler_says_what_the_library_reads(path: Path) -> None:
    parts = read(FORMAT, path)

    check_state(parts, path, section="schedulers")
    assert (parts.tree is None) == ("constant" in path.name or "f64" in path.name or not parts.tensors)


QUANTISED = sorted(p for p in FIXTURES.glob("0.*/quant-*-full.mpk") if "dequantized" not in p.name)


@pytest.mark.parametrize("path", QUANTISED, ids=ident)
def test_quantised_tensors_are_dequantised_as_burn_does_and_else_refused(path: Path) -> None:
    case = truth(path.parent)["quant"][path.name.removeprefix("quant-").removesuffix("-full.mpk")]
    expected = case.get("dequantized") or case.get("values") or case["after"]

    check_model(read(FORMAT, path, dequantize=True), expected)
    with pytest.raises(TensorError, match=expected[0]["name"]) as caught:
        read(FORMAT, path)
    assert "--dequantize" in caught.value.hints[0]


def test_every_release_is_there_where_the_corpus_is() -> None:
    releases = {path.relative_to(FIXTURES).parts[0] for path, _ in MODELS}
    if FIXTURES is MUSEUM:
        pytest.skip("shared/fixtures is not beside this checkout")

    assert len(releases) == 12  # 0.7.0 to 0.21.0
    assert len(MODELS) > 300


# ---------------------------------------------------------------- both kinds of payload


def test_floats_are_looks_into_the_file_whatever_the_version_says() -> None:
    old = parsed({"w": param({"value": [1.5, -2.0], "shape": [2]})}, version="0.21.0").tensors
    new = parsed({"w": param(T(2))}, version="0.7.0").tensors
    assert old is not None
    assert new is not None
    first, second = old["w"], new["w"]

    assert isinstance(second, Tensor)
    assert isinstance(second.promise, View)
    assert second.promise.plain() is not None
    assert isinstance(first, Tensor)
    assert first.numpy().tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("values", "floats", "ints", "dtype", "expected"),
    [
        ([1.5, 2.0], "f32", "i32", F32, [1.5, 2.0]),
        ([1.5, 2.0], "f64", "i64", F64, [1.5, 2.0]),
        ([15360, 0, 48128], "half::binary16::f16", "i16", F16, [1.0, 0.0, -1.0]),
        ([7, -3], "half::binary16::f16", "i16", I16, [7, -3]),
        ([7, 3], "f32", "i32", I32, [7, 3]),
        ([7, 3], "f32", "f32", F32, [7.0, 3.0]),
        ([1, 2.5], "f32", "i32", F32, [1.0, 2.5]),
        ([True, False], "half::binary16::f16", "i16", BOOL, [True, False]),
    ],
)
def test_what_numbers_are_stands_in_them_and_in_the_metadata(
    values: list[Any], floats: str, ints: str, dtype: Any, expected: list[Any]
) -> None:
    parts = parsed({"w": param({"value": values, "shape": [len(values)]})}, float=floats, int=ints)
    tensor = (parts.tensors or {})["w"]

    assert isinstance(tensor, Tensor)
    assert tensor.dtype == dtype
    assert tensor.numpy().tolist() == expected


def test_small_patterns_of_half_precision_may_be_integers_and_that_is_said() -> None:
    parts = parsed({"counts": param({"value": [24, 35], "shape": [2]})}, float="half::binary16::f16", int="i16")

    assert "counts" in parts.warnings[0]
    assert "integer parameter" in parts.warnings[0]


@pytest.mark.parametrize(
    ("dtype", "data", "expected"),
    [
        ("Bool", b"\1\0", [True, False]),
        ({"Bool": "Native"}, b"\1\0", [True, False]),
        ({"Bool": "U8"}, b"\2\0", [True, False]),
        ({"Bool": "U32"}, b"\1\0\0\0\0\0\0\0", [True, False]),
        ("Flex32", np.array([0.5, 1.5], "f4").tobytes(), [0.5, 1.5]),
        ("BF16", b"\x80\x3f\x00\x40", [1.0, 2.0]),
        ("U8", b"\1\2", [1, 2]),
    ],
)
def test_dtypes_of_every_release(dtype: Any, data: bytes, expected: list[Any]) -> None:
    tensor = (parsed({"w": param({"bytes": data, "shape": [2], "dtype": dtype})}).tensors or {})["w"]

    assert isinstance(tensor, Tensor)
    assert tensor.numpy().tolist() == expected


@pytest.mark.parametrize("empty", [{"value": [], "shape": [0, 3]}, {"bytes": b"", "shape": [0, 3], "dtype": "F32"}])
def test_a_tensor_without_elements(empty: Any) -> None:
    tensor = (parsed({"w": param(empty)}).tensors or {})["w"]

    assert isinstance(tensor, Tensor)
    assert (tensor.dtype, tensor.shape) == (F32, (0, 3))


# ---------------------------------------------------------------- trees


def test_names_fields_and_constants() -> None:
    """CASES A11: nil is a constant, alone or in a list, and never a tensor."""
    item = {
        "conv": {"weight": param(T(2)), "bias": None, "stride": [None, None], "groups": None},
        "layers": [{"w": param(T(1))}, None, {"w": param(T(1))}],
        "pair": [param(T(1)), {"id": param(T(1)), "param": param(T(1))}],
        "norm": {"Batch": {"gamma": param(T(1))}},
        "tricky": {"value": param(T(1)), "shape": param(T(1))},
        "type": {"weight": param(T(1))},
    }
    parts = parsed(item)

    assert list(parts.tensors or {}) == [
        "conv.weight", "layers.0.w", "layers.2.w", "pair.0", "pair.1.id", "pair.1.param", "norm.Batch.gamma", "tricky.value",
        "tricky.shape", "r#type.weight",
    ]  # fmt: skip
    assert parts.facts["fields"]["conv"] == ["weight", "bias", "stride", "groups"]
    assert parts.facts["fields"][""] == ["conv", "layers", "pair", "norm", "tricky", "r#type"]
    assert parts.facts["fields"]["layers.2"] == ["w"]


def test_a_model_that_is_one_parameter_has_no_name() -> None:
    assert list(parsed(param(T(2))).tensors or {}) == [""]


def test_an_optimizer_is_told_by_its_entries() -> None:
    state = {"momentum": {"time": 5, "moment_1": T(2, 2), "moment_2": T(2, 2), "max_moment_2": None}}
    parts = parsed({"an id. of a user": {"V1": {"Rank2": state}}, "b": {"V1": {"Rank0": {"momentum": None}}}})

    assert parts.facts["section"] == "optimizers"
    assert list(parts.tensors or {}) == [
        "an id. of a user.__rank", "an id. of a user.momentum.time", "an id. of a user.momentum.moment_1",
        "an id. of a user.momentum.moment_2", "b.__rank",
    ]  # fmt: skip
    assert (parts.tensors or {})["an id. of a user.momentum.time"] == Scalar("uint", 5)
    assert (parts.tensors or {})["b.__rank"] == Scalar("uint", 0)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (None, {}),
        (3, {"": Scalar("uint", 3)}),
        (-1, {"": Scalar("int", -1)}),
        ((1 << 64) - 1, {"": Scalar("uint", (1 << 64) - 1)}),
        (0.5, {"": Scalar("float", 0.5)}),
        ([0.5, 0.25], {"0": Scalar("float", 0.5), "1": Scalar("float", 0.25)}),
        (
            {"schedulers": [{"Linear": 2}, {"Noam": 1}]},
            {"schedulers.0.Linear": Scalar("uint", 2), "schedulers.1.Noam": Scalar("uint", 1)},
        ),
    ],
)
def test_a_scheduler_is_its_numbers(item: Any, expected: dict[str, Scalar]) -> None:
    parts = parsed(item)

    assert parts.facts["section"] == "schedulers"
    assert parts.tensors == expected
    assert parts.tree is (None if item is None else NOTHING)


def test_an_empty_item_is_not_decided_here() -> None:
    assert "section" not in parsed({}).facts
