"""The schema of a binary record: of our words or a file of the same model; one that does not fit is refused with its place."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ckptmigrate import store
from ckptmigrate.dtypes import F32
from ckptmigrate.errors import AmbiguousError, CorruptError, TruncatedError, UsageError
from ckptmigrate.files import Disk
from ckptmigrate.format import ReadOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Scalar

from .burn_bins import BURN_BIN, FILES, LINEAR, head, options_for, read, small, text

if TYPE_CHECKING:
    from ckptmigrate.format import Parts


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
