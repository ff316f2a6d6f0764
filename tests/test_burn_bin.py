"""Binary records of Burn: every real file by its schema to the last byte; none without; nothing hostile gets through."""

from __future__ import annotations

import gzip
import json
import math
import re
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckptmigrate import registry, store
from ckptmigrate.dtypes import F16, F32, I16
from ckptmigrate.errors import (
    AmbiguousError,
    CkptError,
    CorruptError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
    UsageError,
)
from ckptmigrate.files import Disk
from ckptmigrate.format import GatherOptions, ReadOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.testing import Memory, check_flips, check_reads_lazily, check_sniffs_own, check_truncation
from ckptmigrate.values import Scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptmigrate.format import Parts

BURN_BIN = registry.format("burn_bin")
MUSEUM = Path(__file__).parent / "fixtures" / "burn"
SHARED = Path(__file__).parent.parent.parent / "shared" / "fixtures" / "burn"
FIXTURES = SHARED if SHARED.is_dir() else MUSEUM  # all of them where they are at hand, else those that the museum has
RECORDER = "burn_core::record::file::BinFileRecorder<burn_core::record::settings::FullPrecisionSettings>"
LINEAR = {"struct": [["linear", {"struct": [["weight", "param"], ["bias", {"option": "param"}]]}]]}


def schema_of(path: Path) -> Path:
    """Give the schema that the maker of a fixture put beside it."""
    stem = re.sub(r"-(full|half|double)$", "", re.sub(r"\.bin(\.gz)?$", "", path.name))
    return (
        path.parent
        / f"schema-{'net' if stem.startswith('net') else 'quant' if stem.startswith('quant') else stem}.json"
    )


LINEAR_ALONE = {
    "struct": [["weight", "param"], ["bias", {"option": "param"}]]
}  # that of the file without a schema beside it
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


# ---------------------------------------------------------------- what a schema says


def test_case_a05_with_a_schema_is_one_tensor_and_no_bias() -> None:
    parts = read(small(), LINEAR)
    assert parts.tensors is not None
    ((name, tensor),) = parts.tensors.items()
    assert isinstance(tensor, Tensor)

    assert (name, tensor.dtype, tensor.shape, tensor.id) == ("linear.weight", F32, (2, 2), "aaaaaaaaaaaaa")
    assert tensor.numpy().tolist() == [[1.5, -2.0], [0.0, 3.25]]
    assert tensor.promise.plain() is not None
    assert parts.facts["fields"] == {"": ["linear"], "linear": ["weight", "bias"]}


def test_half_integers_are_told_from_halves_by_the_schema() -> None:
    """In the bytes an i16 is zigzag and an f16 a bit pattern, and nothing else tells them apart."""
    data = head("0.13.2", "half::binary16::f16", "i16") + text("a") + bytes([2, 3, 0xFB, 0x00, 0x3C, 1, 2])
    with Disk() as disk:
        floats, ints = (_drawn(disk, data, {"struct": [["w", kind]]}) for kind in ("param", "param_int"))

    assert floats == ("F16", [1.7881393432617188e-07, 1.0])
    assert ints == ("I16", [-2, 7680])


def _drawn(disk: Disk, data: bytes, schema: Any) -> tuple[str, list[float]]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.bin"
        path.write_bytes(data)
        (tensor,) = (BURN_BIN.read(disk.open(path), ReadOptions(schema=schema)).tensors or {}).values()
        assert isinstance(tensor, Tensor)
        return tensor.dtype.name, tensor.numpy().tolist()


@pytest.mark.parametrize(("version", "constant"), [("0.7.0", b""), ("0.8.0", b"\0"), ("0.21.0", b"\0")])
def test_a_constant_takes_a_byte_since_0_8(version: str, constant: bytes) -> None:
    parts = read(head(version) + constant + b"\x07", {"struct": [["k", "constant"], ["n", "u64"]]})

    assert parts.tensors == {"n": Scalar("uint", 7)}


def test_words_of_rust_get_their_prefix_back() -> None:
    schema = {"struct": [["type", {"struct": [["weight", "param"], ["bias", "constant"]]}]]}

    assert list(read(small(), schema).tensors or {}) == ["r#type.weight"]


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ("parameter", "its root"),
        ({"struct": [["a", {"vector": "param"}]]}, "at a"),
        ({"struct": [["a"]]}, "NAME, TYPE"),
        ({"struct": [["a", "param"], ["a", "param"]]}, "a twice"),
        ({"struct": [], "len": 3}, "its root"),
        ({"array": "param"}, "its root"),
        ({"array": "param", "len": -1}, "its root"),
        ({"array": "param", "len": True}, "its root"),
        ({"enum": []}, "its root"),
        ([[]], "its root"),
        (3, "its root"),
    ],
)
def test_a_schema_that_means_nothing_is_refused_with_its_place(schema: Any, place: str) -> None:
    with pytest.raises(UsageError, match=place):
        read(small(), schema)


def test_a_schema_of_another_model_is_refused_with_the_place_where_it_stops_to_fit() -> None:
    with pytest.raises(CorruptError, match=r"the schema ends at byte \d+, and 1 bytes follow"):
        read(small(), {"struct": [["weight", "param"]]})
    with pytest.raises(TruncatedError, match=r"linear\.gamma: ends at byte"):
        read(
            small(),
            {
                "struct": [
                    ["linear", {"struct": [["weight", "param"], ["bias", {"option": "param"}], ["gamma", "param"]]}]
                ]
            },
        )
    with pytest.raises(CorruptError, match="variant 13"):
        read(small(), {"enum": [["A", "param"], ["B", "param"]]})


def test_a_byte_behind_the_record_is_refused_in_gzip_too() -> None:
    with pytest.raises(CorruptError, match="bytes follow"):
        read(gzip.compress(small() + b"\0"), LINEAR)


# ---------------------------------------------------------------- several schemas, or another file of the model

SIBLINGS = [
    (p, p.parent / (re.sub(r"\.bin(\.gz)?$", "", p.name) + ".mpk")) for p in FILES if p.name.startswith(("net", "zoo"))
]
SIBLINGS = [(p, other) for p, other in SIBLINGS if other.exists()]


@pytest.mark.parametrize(("path", "other"), SIBLINGS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_named_record_of_the_same_model_does_for_a_schema(path: Path, other: Path) -> None:
    with Disk() as disk:
        like = store.read(disk.open(other), ReadOptions())
        named = BURN_BIN.read(disk.open(path), ReadOptions(schema=like))
        known = BURN_BIN.read(disk.open(path), options_for(path))

        assert list(named.tensors or {}) == list(known.tensors or {})
        assert named.facts == known.facts
        for name, tensor in (known.tensors or {}).items():
            other_tensor = (named.tensors or {})[name]
            assert isinstance(tensor, Tensor)
            assert isinstance(other_tensor, Tensor)
            if name != "counts" or "-half" not in path.name:  # there the named record does not tell i16 from f16
                assert (other_tensor.id, other_tensor.numpy().tobytes()) == (tensor.id, tensor.numpy().tobytes())


def like(**shapes: tuple[int, ...]) -> Parts:
    from ckptmigrate.format import Parts
    from ckptmigrate.tensor import fill

    return Parts(
        family="burn", tensors={name.replace("_", "."): Tensor(fill(0, F32, shape)) for name, shape in shapes.items()}
    )


@pytest.mark.parametrize(
    ("other", "data", "mention"),
    [
        (like(linear_weight=(2, 3)), small(), r"linear\.weight would be \[2, 2\], and is \[2, 3\]"),
        (like(), small(), "1 parameters, and the file that is to name them has 0"),
        (like(a=(2, 2), b=(2, 2)), small(), "1 parameters"),
        (like(a=(2, 2)), small() + b"free text id" + bytes(9), "before the end"),
        (like(a=(2, 2)), small() + bytes(5000), "before the end"),
        (like(a=(2, 2)), head() + b"\x0cfree text id" + small()[len(head()) :], "before a"),
    ],
)
def test_another_model_names_nothing(other: Parts, data: bytes, mention: str) -> None:
    with pytest.raises(CorruptError, match=mention):
        read(data, other)


def test_of_several_schemas_the_one_that_fits_is_taken() -> None:
    assert list(read(small(), ["u64", {"map": "tensor"}, LINEAR]).tensors or {}) == ["linear.weight"]
    assert read(head("0.19.0") + b"\x07", ["f64", LINEAR, "u64"]).tensors == {"": Scalar("uint", 7)}
    with pytest.raises(AmbiguousError, match="0 and 2"):
        read(head() + b"\x00", ["u64", LINEAR, "constant"])
    with pytest.raises(CorruptError, match=r"none of the schemas fits: 0: .*; 1: "):
        read(small(), ["u64", "f64"])
    with pytest.raises(CorruptError, match="it is empty"):
        read(small(), [])


# ---------------------------------------------------------------- hostile input

EXAMPLES = {"small": (small(), LINEAR)}
for _release, _name in (("0.7.0", "net-full.bin"), ("0.13.2", "net-half.bin.gz"), ("0.21.0", "optim-adam-full.bin")):
    _path = MUSEUM / _release / _name
    _data = _path.read_bytes()
    EXAMPLES[f"{_release}-{_name.removesuffix('.gz')}"] = (
        gzip.decompress(_data) if _name.endswith(".gz") else _data,
        json.loads(schema_of(_path).read_text()),
    )
EXAMPLES["gzip"] = (gzip.compress(small(), mtime=0), LINEAR)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_contract_of_formats_is_kept(name: str) -> None:
    data, schema = EXAMPLES[name]
    check_sniffs_own(BURN_BIN, data)
    check_reads_lazily(BURN_BIN, data, ReadOptions(schema=schema))
    check_truncation(BURN_BIN, data, options=ReadOptions(schema=schema), clock=time.monotonic)
    check_flips(BURN_BIN, data, options=ReadOptions(schema=schema), clock=time.monotonic)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_refusal_without_a_schema_meets_no_other_exception(name: str) -> None:
    data, _ = EXAMPLES[name]
    for cut in range(0, len(data), max(1, len(data) // 200)):
        for hostile in (data[:cut], data[:cut] + bytes([data[cut] ^ 0xFF]) + data[cut + 1 :]):
            source = Memory(hostile)
            if BURN_BIN.sniff(source) is not None:
                with pytest.raises(CkptError):
                    BURN_BIN.read(source, ReadOptions())


HUGE = b"\xfd" + b"\xff" * 8


@pytest.mark.parametrize(
    ("rest", "schema"),
    [
        (HUGE, {"vec": "param"}),
        (HUGE, {"vec": "constant"}),
        (HUGE, {"vec": {"struct": [["k", "constant"]]}}),
        (HUGE, {"map": "constant"}),
        (HUGE, "param"),
        (HUGE, "tensor"),
        (b"\x04" + bytes(4) + HUGE, "tensor"),
        (b"\x04" + bytes(4) + b"\x02" + HUGE + b"\x01\x01", "tensor"),
        (b"\x04" + bytes(4) + b"\x08" + HUGE * 8 + b"\x01", "tensor"),
        (b"\x04" + bytes(4) + b"\x01\x01\x0f", "tensor"),
        (b"\x04" + bytes(4) + b"\x01\x01\x63", "tensor"),
        (b"\x02", "bool"),
        (b"\x01\xff", "str"),
        (b"\x01\x01a\x00\x01a\x00", {"map": "constant"}),
        (b"\x02\x01a\x00\x01a\x00", {"map": "constant"}),
        (b"\x01", "constant"),
        (b"", "f64"),
    ],
)
def test_claims_are_checked_before_memory_is_taken(rest: bytes, schema: Any) -> None:
    start = time.monotonic()
    with pytest.raises(CkptError):
        read(head("0.20.1") + rest, schema)

    assert time.monotonic() - start < 2


@pytest.mark.parametrize("of", ["unit", {"struct": []}, {"array": "unit", "len": 1_000_000}, {"tuple": []}])
def test_any_number_of_nothing_costs_nothing(of: Any) -> None:
    start = time.monotonic()
    read(head("0.20.1") + HUGE, {"vec": of})

    assert time.monotonic() - start < 1


def test_a_bomb_of_constants_is_refused_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "bomb.bin.gz"
    path.write_bytes(gzip.compress(head("0.20.1") + b"\xfc\xff\xff\xff\x7f" + bytes(50_000_000), 9))
    start = time.monotonic()
    with Disk() as disk, pytest.raises(CkptError):
        BURN_BIN.read(disk.open(path), ReadOptions(schema={"vec": {"struct": [["k", "constant"]]}}))
    with Disk() as disk, pytest.raises(CkptError):
        BURN_BIN.read(disk.open(path), ReadOptions(schema={"vec": "constant"}))
    with Disk() as disk, pytest.raises(UnsupportedFormatError):
        BURN_BIN.read(disk.open(path), ReadOptions())

    assert time.monotonic() - start < 5


def test_a_file_of_nothing_but_ids_is_refused_in_seconds(tmp_path: Path) -> None:
    """Each id claims a list of halves that goes on to the end, which must not be crossed once for each."""
    path = tmp_path / "ids.bin"
    entry = text("aaaaaaaaaaaaa") + b"\xfc\x00\x00\x01\x00"
    path.write_bytes(head("0.13.2", "half::binary16::f16", "i16") + entry * 200_000)
    start = time.monotonic()
    with Disk() as disk, pytest.raises(UnsupportedFormatError):
        BURN_BIN.read(disk.open(path), ReadOptions())

    assert time.monotonic() - start < 5


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    schema: Any = "param"
    for _ in range(100_000):
        schema = {"option": schema}
    with pytest.raises(LimitError):
        read(small(), schema)


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
