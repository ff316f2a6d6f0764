"""Named MessagePack records: every real one says what Burn held, its bytes stay where they are, and nothing hostile gets through."""

from __future__ import annotations

import gzip
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
import pytest

import ckptmigrate
from ckptmigrate.dtypes import BOOL, F16, F32, F64, I16, I32
from ckptmigrate.errors import CkptError, CorruptError, TensorError, TruncatedError
from ckptmigrate.files import Disk
from ckptmigrate.format import Parts, ReadOptions
from ckptmigrate.formats.burn_mpk import FORMAT
from ckptmigrate.tensor import Tensor, View, windows
from ckptmigrate.testing import Memory, check_flips, check_reads_lazily, check_sniffs_own, check_truncation
from ckptmigrate.values import NOTHING, Scalar

from .burn_records import FIXTURES, MUSEUM, check_model, check_state, ident, models, read, records, truth

if TYPE_CHECKING:
    from .conftest import Refuse

SUFFIXES = (".mpk", ".mpk.gz")
MODELS = list(models(*SUFFIXES))
FLOATS = {"f32": F32, "f64": F64, "half::binary16::f16": F16}


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


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (
            {"linear": {"weight": param({"value": [1.0, 2.0, 3.0], "shape": [2, 2]})}},
            r"linear\.weight: 3 numbers .* \[2, 2\] holds 4",
        ),
        ({"w": param({"value": [], "shape": [2]})}, "w: 0 numbers .* holds 2"),
        ({"w": param({"bytes": bytes(15), "shape": [2, 2], "dtype": "F32"})}, r"w: 15 bytes, .* needs 16"),
        ({"w": param({"bytes": bytes(4), "shape": [1], "dtype": "F99"})}, "w: dtype .*F99"),
        ({"w": param({"bytes": bytes(4), "shape": [-1], "dtype": "F32"})}, "w: its shape"),
        ({"w": param({"bytes": bytes(4), "shape": [1.5], "dtype": "F32"})}, "w: its shape"),
        ({"w": param({"bytes": bytes(4), "shape": [1 << 62, 1 << 62], "dtype": "F32"})}, "w: 4 bytes"),
        ({"w": param({"bytes": bytes(0), "shape": [1] * 100, "dtype": "F32"})}, "w: its shape"),
        ({"a.b": param(T(1)), "a": {"b": param(T(1))}}, 'the name "a.b"'),
        ({"w": "text"}, "w is str"),
        ("text", "the item is str"),
    ],
)
def test_a_tree_that_contradicts_itself_is_refused_by_name(item: Any, says: str) -> None:
    with pytest.raises(CkptError, match=says):
        parsed(item)


def test_an_array_of_numbers_with_another_among_them_is_found_when_drawn() -> None:
    values = [15360] * 200 + [-5]
    parts = parsed({"w": param({"value": [*values], "shape": [201]})}, float="f32", int="f32")
    tensor = (parts.tensors or {})["w"]

    assert isinstance(tensor, Tensor)
    assert tensor.numpy().tolist() == values


@pytest.mark.parametrize("metadata", [{}, {"float": "f32"}, {"float": "f128", "int": "i32", "version": "1"}, 3, None])
def test_an_envelope_without_its_texts_is_refused(metadata: Any) -> None:
    data = msgpack.packb({"metadata": metadata, "item": None})
    source = Memory(data)

    assert isinstance(metadata, dict) == (FORMAT.sniff(source) is not None)
    with pytest.raises(CorruptError):
        FORMAT.read(source, ReadOptions())


def test_bytes_behind_the_record_are_said() -> None:
    parts = FORMAT.read(Memory(record({"w": param(T(1))}) + b"tail"), ReadOptions())

    assert "follow" in parts.warnings[0]


@pytest.mark.parametrize("era", [{"value": list(np.arange(99.0)), "shape": [99]}, T(99)])
def test_a_record_that_is_cut_says_within_which_tensor(era: dict[str, Any]) -> None:
    data = record({"enc": [{"w": param(T(2)), "b": None}, {"w": param(era)}]})
    with pytest.raises(CkptError) as caught:
        FORMAT.read(Memory(data[:-60]), ReadOptions())

    assert re.match(r"item\.enc\.1\.w\.param\.(value|bytes): ", caught.value.message)
    assert len(re.findall(r"\d+", caught.value.message.partition(": ")[2])) >= 2


def test_a_gzip_stream_that_is_cut_or_damaged_is_refused(tmp_path: Path) -> None:
    data = gzip.compress(
        record({"w": param({"value": list(np.random.default_rng(1).random(50_000)), "shape": [50_000]})})
    )
    for name, damaged in {"cut": data[:-9], "crc": data[:-8] + bytes(8)}.items():
        path = tmp_path / f"{name}.mpk.gz"
        path.write_bytes(damaged)
        with Disk() as disk, pytest.raises(CkptError) as caught:
            FORMAT.read(disk.open(path), ReadOptions())

        assert caught.value.path == str(path)


def test_a_bomb_is_refused_in_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "bomb.mpk.gz"
    head = record({"w": param({"value": [], "shape": [1]})})
    start = head.index(b"\xa5value\x90") + 6
    with gzip.open(path, "wb", 9) as file:
        file.write(head[:start] + b"\xdd\xff\xff\xff\xff")
        for _ in range(200):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    begun = time.monotonic()
    with Disk(tmp_path) as disk, pytest.raises(TruncatedError):
        FORMAT.read(disk.open(path), ReadOptions())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert time.monotonic() - begun < 20
    assert peak < 20 << 20


EXAMPLES = [
    "0.13.2/net-half.mpk",
    "0.21.0/net-full.mpk",
    "0.7.0/net-half.mpk.gz",
    "0.14.0/quant-affine-full.mpk",
    "0.21.0/optim-lbfgs-half.mpk",
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_contract(name: str) -> None:
    data = (MUSEUM / name).read_bytes()
    options = ReadOptions(dequantize=True)

    check_sniffs_own(FORMAT, data)
    check_reads_lazily(FORMAT, data, options)
    check_truncation(FORMAT, data, options=options, clock=time.monotonic)
    check_flips(FORMAT, data, 600, options, time.monotonic)
    if name.endswith(".gz"):
        check_truncation(FORMAT, gzip.decompress(data), options=options, clock=time.monotonic)


# ---------------------------------------------------------------- public cases, end to end


def migrated(path: Path, out: Path, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    import safetensors.numpy

    ckptmigrate.migrate(path, out, **options)
    found: dict[str, np.ndarray[Any, Any]] = safetensors.numpy.load_file(out)
    return found


def test_case_a01_a_record_that_lacks_a_field_without_tensors(tmp_path: Path) -> None:
    linear = {"weight": param(T(2, 3), "aaaaaaaaaaaaa"), "bias": None}
    path = tmp_path / "a01.mpk"
    path.write_bytes(
        record(
            {"pwff": {"linear_inner": linear, "linear_outer": {**linear, "weight": param(T(2, 3), "bbbbbbbbbbbbb")}}},
            "0.20.1",
        )
    )
    found = migrated(path, tmp_path / "a01.safetensors")

    assert sorted(found) == ["pwff.linear_inner.weight", "pwff.linear_outer.weight"]
    assert found["pwff.linear_inner.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(("floats", "dtype"), [("f32", "float32"), ("f64", "float64")])
def test_case_a03_the_layout_whose_reader_was_removed(tmp_path: Path, floats: str, dtype: str) -> None:
    path = tmp_path / "a03.mpk"
    payload = {"value": [1.5, -2.0, 0.0, 3.25], "shape": [2, 2]}
    path.write_bytes(record({"linear": {"weight": param(payload), "bias": None}}, "0.12.1", float=floats))
    found = migrated(path, tmp_path / "a03.safetensors")

    assert {name: (str(a.dtype), a.tolist()) for name, a in found.items()} == {
        "linear.weight": (dtype, [[1.5, -2.0], [0.0, 3.25]])
    }


def test_case_a03_another_number_of_items_is_refused(tmp_path: Path, refuse: Refuse) -> None:
    path = tmp_path / "a03-short.mpk"
    path.write_bytes(record({"linear": {"weight": param({"value": [1.5, -2.0, 0.0], "shape": [2, 2]})}}, "0.12.1"))

    refuse(path, r"linear\.weight", "3", "4", out="a03.safetensors")


def test_case_a11_constants_are_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a11.mpk"
    path.write_bytes(
        record(
            {"conv": {"weight": param(T(2), "aaaaaaaaaaaaa"), "bias": None, "stride": [None, None], "groups": None}},
            "0.16.1",
        )
    )

    assert list(migrated(path, tmp_path / "a11.safetensors")) == ["conv.weight"]


@pytest.mark.parametrize(
    ("item", "says"),
    [(b"\x90", "values"), (b"\x91\x01", "values"), (b"\x81\xa2ab\x80", "values"), (b"\x92" * 3000, "nested")],
)
def test_a_small_file_of_many_containers_is_refused(tmp_path: Path, item: bytes, says: str) -> None:
    path = tmp_path / "many.mpk.gz"
    head = record(None)
    path.write_bytes(
        gzip.compress(
            head[: head.index(b"\xa4item") + 5] + b"\xdd\x00\xff\xff\xff" + item * 1_100_000
            if len(item) < 10
            else head[:-5] + item,
            1,
        )
    )
    begun = time.monotonic()
    with Disk(tmp_path) as disk, pytest.raises(CkptError, match=says):
        FORMAT.read(disk.open(path), ReadOptions())

    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("floats", ["f32", "half::binary16::f16"])
def test_memory_does_not_grow_with_the_tensor(tmp_path: Path, floats: str, packed: bool) -> None:
    import tracemalloc

    peaks = []
    for count in (1_000_000, 8_000_000):
        item = np.zeros((count, 5 if floats == "f32" else 3), "u1")
        item[:, 0] = 0xCA if floats == "f32" else 0xCD
        item[:, 1] = 0x3C
        shell = record({"w": param({"value": [], "shape": [count]})}, float=floats)
        at = shell.index(b"\xa5value\x90") + 6
        data = shell[:at] + b"\xdd" + count.to_bytes(4, "big") + item.tobytes() + shell[at + 1 :]
        path = tmp_path / f"{count}.mpk"
        path.write_bytes(gzip.compress(data, 1) if packed else data)
        del data, item
        tracemalloc.start()
        with Disk(tmp_path) as disk:
            tensor = (FORMAT.read(disk.open(path), ReadOptions()).tensors or {})["w"]
            assert isinstance(tensor, Tensor)
            assert sum(len(piece) for piece in windows(tensor.promise)) == tensor.nbytes
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] < peaks[0] + (4 << 20)
    assert peaks[1] < 40 << 20


def a07(folder: Path, *moment: int) -> Path:
    state = {"momentum": {"time": 5, "moment_1": T(*moment), "moment_2": T(*moment)}}
    bias = {"momentum": {"time": 5, "moment_1": T(2), "moment_2": T(2)}}
    files = {
        "model-9": {"linear": {"weight": param(T(2, 2), "aaaaaaaaaaaaa"), "bias": param(T(2), "bbbbbbbbbbbbb")}},
        "optim-9": {"bbbbbbbbbbbbb": {"V1": {"Rank1": bias}}, "aaaaaaaaaaaaa": {"V1": {"Rank2": state}}},
        "scheduler-9": None,
    }
    (folder / "checkpoint").mkdir(parents=True)
    for name, item in files.items():
        (folder / "checkpoint" / f"{name}.mpk").write_bytes(record(item, "0.16.1"))
    return folder


def test_case_a07_optimizer_state_is_joined_to_names_by_id(tmp_path: Path) -> None:
    with ckptmigrate.open(a07(tmp_path / "run", 2, 2)) as checkpoint:
        (optimizer,) = checkpoint.optimizers
        state = {p.name: p.slots for p in optimizer.params}
        weight = state["linear.weight"]

        assert weight is not None
        assert weight["momentum.time"].value == Scalar("uint", 5)
        assert weight["momentum.moment_1"].value.numpy().tolist() == [[0, 1], [2, 3]]
        assert list(state) == ["linear.bias", "linear.weight"]
