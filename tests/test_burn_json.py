"""JSON records: every real one says what Burn held; numbers are decoded when they are drawn, strictly, and null among them is said."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.dtypes import BOOL, F16, F32, F64, I16, I64, U8, U64
from ckptmigrate.errors import CkptError, CorruptError, LimitError, TensorError
from ckptmigrate.files import Disk
from ckptmigrate.format import Parts, ReadOptions
from ckptmigrate.formats.burn_json import FORMAT
from ckptmigrate.limits import LIMITS
from ckptmigrate.tensor import Tensor
from ckptmigrate.testing import (
    Memory,
    check_flips,
    check_reads_lazily,
    check_refuses_others,
    check_sniffs_own,
    check_truncation,
)
from ckptmigrate.values import dumps
from ckptmigrate.wire.cursor import Cursor
from ckptmigrate.wire.json_stream import Numbers, load

from .burn_records import FIXTURES, MUSEUM, check_model, check_state, ident, models, read, records, truth

SUFFIXES = (".json", ".json.gz")
MODELS = [(p, e) for p, e in models(*SUFFIXES) if p.relative_to(FIXTURES).parts[0] not in {"0.3.0", "0.4.0", "0.6.0"}]
METADATA = {"float": "f32", "int": "i32", "format": "F", "version": "0.13.2", "settings": "FullPrecisionSettings"}


def record(item: Any, **metadata: str) -> bytes:
    return json.dumps({"metadata": METADATA | metadata, "item": item, "_b": None}).encode()


def parsed(item: Any, **metadata: str) -> Parts:
    return FORMAT.read(Memory(record(item, **metadata)), ReadOptions())


def walk(text: str | bytes) -> Any:
    data = text.encode() if isinstance(text, str) else text
    cursor = Cursor(Memory(data), len(data))
    value = load(cursor, LIMITS)
    assert cursor.at == len(data)
    return value


def plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: plain(below) for name, below in node.items()}
    if isinstance(node, list):
        return [plain(below) for below in node]
    return list(node.values or ()) if isinstance(node, Numbers) else node


def drawn(found: Numbers, dtype: Any, use: Any = "value") -> np.ndarray[Any, Any]:
    return Tensor(found.promise(dtype, (found.count,), use)).numpy()


# ---------------------------------------------------------------- the museum


@pytest.mark.parametrize(("path", "expected"), MODELS, ids=[ident(p) for p, _ in MODELS])
def test_a_model_says_what_burn_held(path: Path, expected: list[dict[str, Any]]) -> None:
    """Bytes of 0.14 and later keep the NaN and infinities of the odd ones, too."""
    check_model(read(FORMAT, path), expected)


@pytest.mark.parametrize("path", records("optim", *SUFFIXES), ids=ident)
def test_an_optimizer_says_what_the_library_reads(path: Path) -> None:
    check_state(read(FORMAT, path), path, section="optimizers")


@pytest.mark.parametrize("path", records("scheduler", *SUFFIXES), ids=ident)
def test_a_scheduler_says_what_the_library_reads(path: Path) -> None:
    check_state(read(FORMAT, path), path, section="schedulers")


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("0.*/quant-*-full.json")), ids=ident)
def test_quantised_tensors_are_dequantised_as_burn_does_and_else_refused(path: Path) -> None:
    case = truth(path.parent)["quant"][path.name.removeprefix("quant-").removesuffix("-full.json")]
    expected = case.get("dequantized") or case.get("values") or case["after"]

    check_model(read(FORMAT, path, dequantize=True), expected)
    with pytest.raises(TensorError, match=expected[0]["name"]):
        read(FORMAT, path)


# ---------------------------------------------------------------- text

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
TREES = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=60) | st.dictionaries(st.text(), below), max_leaves=30
)


@given(TREES, st.sampled_from([None, 2]))
def test_a_value_comes_back_as_it_was_written(value: Any, indent: int | None) -> None:
    assert plain(walk(json.dumps(value, indent=indent))) == value


def test_numbers_across_windows_are_those_of_python() -> None:
    values = np.random.default_rng(1).normal(size=30_000).astype("f4")
    text = "[\n  " + ",\n  ".join(map(str, values)) + "\n]"
    found = walk(text)

    assert found.count == len(values)
    assert found.values is None
    assert (drawn(found, F32) == values).all()


@pytest.mark.parametrize(
    ("text", "dtype", "use", "expected"),
    [
        ("[1e5, -2.5E-3]", F64, "value", [100000.0, -0.0025]),
        ("[1, null]", F32, "value", [1.0, None]),
        ("[15360, 48128]", F16, "bits", [1.0, -1.0]),
        ("[0, 255]", U8, "value", [0, 255]),
        ("[18446744073709551615]", U64, "value", [(1 << 64) - 1]),
        ("[-9223372036854775808]", I64, "value", [-(1 << 63)]),
        ("[true, false]", BOOL, "value", [True, False]),
    ],
)
def test_numbers_are_what_they_say(text: str, dtype: Any, use: Any, expected: list[Any]) -> None:
    values = drawn(walk(text), dtype, use).tolist()

    assert [None if v != v else v for v in values] == expected  # noqa: PLR0124 - NaN


@pytest.mark.parametrize(
    ("text", "dtype", "use"),
    [
        ("[256]", U8, "value"),
        ("[-1]", U8, "value"),
        ("[40000]", I16, "value"),
        ("[65536]", F16, "bits"),
        ("[1, true]", F32, "value"),
        ("[1" + "0" * 30 + "]", I64, "value"),
    ],
)
def test_a_number_that_the_dtype_does_not_hold_is_refused(text: str, dtype: Any, use: Any) -> None:
    with pytest.raises(CorruptError):
        drawn(walk(text), dtype, use)


@pytest.mark.parametrize(
    "fault", ["1,,2", "1 2", "1.", "--1", "01", "1e", "nul", ",1", "1,", "truefalse", "NaN", "Infinity", "0x10"]
)
@pytest.mark.parametrize("many", [0, 5000])
def test_what_is_no_number_is_refused_when_it_is_met(fault: str, many: int) -> None:
    text = f"[{'0.5,' * many}{fault}]"
    with pytest.raises(CkptError):
        drawn(walk(text), F64)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", CorruptError), ("{", CorruptError), ('{"a"}', CorruptError), ('{"a":1,}', CorruptError), ("[1,]", CorruptError), ('{"a":1 "b":2}', CorruptError),
        ('{"a":1,"a":2}', CorruptError), ("[[1],]", CorruptError), ('"\n"', CorruptError), ("nul", CorruptError), ("+1", CorruptError), ("{1:2}", CorruptError),
        ('{"a":[{}', CorruptError), ("[{},{}", CorruptError), ("[" * 600, LimitError), ('"' + "x" * 800_000 + '"', LimitError), ("[" + "1" * 5000 + "]", CkptError),
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(text: str, error: type[CkptError]) -> None:
    with pytest.raises(CkptError) as caught:
        walk(text)

    assert isinstance(caught.value, (error, EOFError))


@given(st.text(alphabet='{}[]",:0123456789.eE-+ \ntruefalsn\\', max_size=60))
def test_any_text_is_what_python_reads_or_refused(text: str) -> None:
    try:
        found = walk(text)
    except CkptError:
        return
    except AssertionError:
        return  # something follows
    assert dumps(plain(found)) == dumps(json.loads(text))


def test_null_is_read_as_nan_and_said() -> None:
    parts = parsed(
        {
            "w": {"id": "a", "param": {"value": [1.5, None], "shape": [2]}},
            "x": {"id": "b", "param": {"value": [None, None], "shape": [2]}},
        }
    )
    tensors = parts.tensors or {}
    first, second = tensors["w"], tensors["x"]

    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    assert np.isnan(first.numpy()).tolist() == [False, True]
    assert np.isnan(second.numpy()).all()
    assert "w, x" in parts.warnings[0]


def test_constants_are_no_tensors() -> None:
    parts = parsed(
        {
            "conv": {
                "stride": [None, None],
                "groups": None,
                "pair": [None, {"w": {"id": "a", "param": {"value": [1.0], "shape": [1]}}}],
            }
        }
    )

    assert list(parts.tensors or {}) == ["conv.pair.1.w"]
    assert parts.facts["fields"]["conv"] == ["stride", "groups", "pair"]


def test_another_number_of_items_is_refused_by_name() -> None:
    with pytest.raises(CorruptError, match=r"a\.w: 1 numbers .* holds 4"):
        parsed({"a": {"w": {"id": "a", "param": {"value": [1.0], "shape": [2, 2]}}}})


def test_text_behind_the_record_is_refused() -> None:
    with pytest.raises(CorruptError, match="follows"):
        FORMAT.read(Memory(record(None) + b"\n{}"), ReadOptions())


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[]",
        b'{"metadata": {"total_size": 1}, "weight_map": {}}',
        b'{"ckptmigrate": 1}',
        b'{"StateNamed":{"values":{}}}',
        b"",
    ],
)
def test_json_of_others_is_not_claimed(text: bytes) -> None:
    check_refuses_others(FORMAT, text)


def test_a_conversion_writes_what_the_text_says(tmp_path: Path) -> None:
    import safetensors.numpy

    import ckptmigrate

    values = np.random.default_rng(2).normal(size=50_000).astype("f4")
    path = tmp_path / "big.json.gz"
    path.write_bytes(
        gzip.compress(
            record(
                {"w": {"id": "83h0200000000", "param": {"value": [float(str(v)) for v in values], "shape": [50, 1000]}}}
            )
        )
    )
    ckptmigrate.migrate(path, tmp_path / "big.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "big.safetensors")

    assert (found["w"].reshape(-1) == values).all()


def test_reading_for_names_draws_nothing(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_bytes(record({"w": {"id": "a", "param": {"value": [0.5] * 100_000, "shape": [100_000]}}}))
    with Disk(tmp_path) as disk:
        parts = FORMAT.read(disk.open(path), ReadOptions())
        tensor = (parts.tensors or {})["w"]

        assert isinstance(tensor, Tensor)
        assert (tensor.dtype, tensor.shape) == (F32, (100_000,))
        assert sum(r.file.awaited for r in tensor.promise.sources()) == 400_000
        assert tensor.numpy().tolist() == [0.5] * 100_000


@pytest.mark.parametrize(
    "name", ["0.7.0/net-full.json", "0.11.1/net-double.json.gz", "0.21.0/net-full.json", "0.13.2/optim-adam-full.json"]
)
def test_the_contract(name: str) -> None:
    data = (MUSEUM / name).read_bytes()

    check_sniffs_own(FORMAT, data)
    check_reads_lazily(FORMAT, data)
    check_truncation(FORMAT, data[:6000] if not name.endswith(".gz") else data, clock=time.monotonic)
    check_flips(FORMAT, data, 300, clock=time.monotonic)


def test_a_record_that_is_cut_says_within_which_tensor() -> None:
    path = next(p for p in (MUSEUM / "0.13.2" / "zoo-full.json", MUSEUM / "0.21.0" / "net-full.json") if p.exists())
    data = path.read_bytes()
    begins = [at for name in ("value", "bytes") if (at := data.find(f'"{name}": ['.encode())) > 0]
    with pytest.raises(CkptError) as caught:
        FORMAT.read(Memory(data[: min(begins) + 40]), ReadOptions())

    assert caught.value.message.startswith("item.")
    assert ".param." in caught.value.message.partition(":")[0]
