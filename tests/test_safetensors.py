"""safetensors: what the reference library writes is read as it is, and all else is refused."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmigrate.dtypes import BY_NAME, F32, U8, DType
from ckptmigrate.errors import CkptError, CorruptError, LimitError, TensorError, TruncatedError, UnsupportedFormatError
from ckptmigrate.files import Disk
from ckptmigrate.format import ReadOptions
from ckptmigrate.formats.safetensors import read, sniff
from ckptmigrate.limits import Limits
from ckptmigrate.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


from .safetensors_desk import DESERIALIZE, TORCH_DTYPES, Desk, elements, entry, file, names, same_promise


@pytest.fixture(name="desk")
def _desk(tmp_path: Path) -> Iterator[Desk]:
    with Disk() as disk:
        yield Desk(tmp_path, disk)


# --- reading what the library wrote


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_every_dtype_that_the_library_writes_is_read_with_shape_and_bytes(desk: Desk, dtype: DType) -> None:
    raw = torch.arange(12 * dtype.itemsize, dtype=torch.uint8) % 2
    assert dtype.torch is not None
    saved = safetensors.torch.save({"w": raw.view(getattr(torch, dtype.torch)).reshape(3, 4)})

    found = desk.read(saved)

    assert found.tensors is not None
    tensor = found.tensors["w"]
    assert isinstance(tensor, Tensor)
    assert (tensor.promise.dtype, tensor.promise.shape) == (dtype, (3, 4))
    assert elements(tensor) == raw.numpy().tobytes()


@pytest.mark.parametrize(
    ("spelling", "shape", "nbytes", "units"),
    [
        ("F4", [2, 4], 4, (2, 2)),
        ("F4", [3, 2], 3, (3, 1)),
        ("F6_E2M3", [2, 4], 6, (2, 1)),
        ("F6_E3M2", [8], 6, (2,)),
        ("F4", [0], 0, (0,)),
    ],
)
def test_packed_dtypes_are_read_in_units(
    desk: Desk, spelling: str, shape: list[int], nbytes: int, units: tuple[int, ...]
) -> None:
    found = desk.read(file({"w": entry(0, nbytes, spelling, shape)}, bytes(range(nbytes))))

    assert found.tensors is not None
    assert isinstance(found.tensors["w"], Tensor)
    assert found.tensors["w"].promise.shape == units
    assert elements(found.tensors["w"]) == bytes(range(nbytes))


def test_names_come_in_header_order_whatever_the_order_of_the_data(desk: Desk) -> None:
    found = desk.read(file({"b": entry(1, 2), "a": entry(0, 1)}, b"xy"))

    assert names(found) == ["b", "a"]
    assert found.tensors is not None
    assert elements(found.tensors["b"]) == b"y"


def test_format_pt_says_that_the_family_is_torch_and_other_texts_are_metadata(desk: Desk) -> None:
    saved = safetensors.torch.save({"w": torch.zeros(1)}, {"format": "pt", "author": "me"})

    found = desk.read(saved)

    assert (found.family, found.facts["metadata"]) == ("torch", {"author": "me"})


@pytest.mark.parametrize("kind", ["tf", "flax", "np", "mlx"])
def test_another_format_text_gives_no_family(desk: Desk, kind: str) -> None:
    found = desk.read(safetensors.torch.save({"w": torch.zeros(1)}, {"format": kind}))

    assert (found.family, found.facts["metadata"]) == (None, {"format": kind})


def test_ties_that_save_model_recorded_come_back_as_names_with_one_promise(desk: Desk) -> None:
    class Tied(torch.nn.Module):  # type: ignore[misc]  # torch's annotations are skipped
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(4, 3)
            self.head = torch.nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

    path = desk.folder / "tied.safetensors"
    safetensors.torch.save_model(Tied(), str(path))
    found = read(desk.disk.open(path), ReadOptions())

    assert names(found) == ["embed.weight", "head.weight"]
    assert same_promise(found, "embed.weight", "head.weight")
    assert found.facts["metadata"] == {}


def test_e09_an_empty_tensor_has_equal_offsets(desk: Desk) -> None:
    found = desk.read(file({"scaled_fp8": entry(0, 0, "F8_E4M3", [0]), "a": entry(0, 4, "F32", [1])}, bytes(4)))

    assert found.tensors is not None
    scaled = found.tensors["scaled_fp8"]
    assert isinstance(scaled, Tensor)
    assert (scaled.promise.dtype.name, scaled.promise.shape) == ("F8_E4M3", (0,))


def test_e05_a_file_with_metadata_alone_has_no_tensors(desk: Desk) -> None:
    found = desk.read(file({"__metadata__": {"key": "value"}}))

    assert (found.tensors, found.facts["metadata"]) == ({}, {"key": "value"})


def test_a_header_whose_length_is_no_multiple_of_eight_is_read(desk: Desk) -> None:
    data = file('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} ', np.float32(7).tobytes())

    found = desk.read(data)

    assert (len(data) - 4) % 8
    assert found.tensors is not None
    assert elements(found.tensors["a"]) == np.float32(7).tobytes()


# --- recognising


def test_d09_content_decides_and_not_the_name(desk: Desk) -> None:
    text = json.dumps({"w": entry(0, 1)}).encode().ljust(0x2A80)
    data = len(text).to_bytes(8, "little") + text + b"x"

    assert data[:2] == b"\x80\x2a"
    assert sniff(desk.source(data, "ip_adapter.bin")) is not None


OTHERS = [
    b"version https://git-lfs.github.com/spec/v1\n",
    b"<!DOCTYPE html><html>",
    b"PK\x03\x04" + bytes(60),
    bytes(100),
    b"",
]


@pytest.mark.parametrize("data", [*OTHERS, b'{"aaaa":{"b": 1}}', b"\x80\x02}q\x00.", b"hello"])
def test_what_is_no_safetensors_is_not_claimed(desk: Desk, data: bytes) -> None:
    assert sniff(desk.source(data, "m.bin")) is None


@pytest.mark.parametrize("data", OTHERS)
def test_the_suffix_alone_is_no_proof(desk: Desk, data: bytes) -> None:
    assert sniff(desk.source(data)) is None


def test_a_folder_is_not_claimed(desk: Desk) -> None:
    (desk.folder / "x.safetensors").mkdir()

    assert sniff(desk.disk.open(desk.folder / "x.safetensors")) is None


# --- refusing

REFUSED: list[tuple[str, bytes, type[CkptError], str]] = [
    ("e03", file('{"a":' + json.dumps(entry(0, 4)) + ',"a":' + json.dumps(entry(4, 8)) + "}", bytes(8)), CorruptError, 'duplicate key "a"'),
    ("e03 metadata", file('{"__metadata__":{"k":"1","k":"2"}}'), CorruptError, 'duplicate key "k"'),
    ("e03 entry", file('{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"), CorruptError, 'duplicate key "dtype"'),
    ("e05", file('{},"__metadata__":{"key":"value"}}'), CorruptError, "header is not valid JSON, column 3"),
    ("e07 data", file({"a": entry(0, 16, "F32", [4])}, bytes(9)), TruncatedError, 'truncated: needs 16 data bytes, has 9; "a"'),
    ("e07 header", file({"a": entry(0, 16, "F32", [4])})[:30], TruncatedError, "truncated: header of 62 bytes, file has 22"),
    ("e07 stub", b"hello", TruncatedError, "shorter than 8 bytes, the length of the header alone; 5 bytes in all"),
    ("e07 length alone", bytes([59, 0, 0, 0, 0, 0, 0, 0]), TruncatedError, "truncated: header of 59 bytes, file has 0"),
    ("e09", file({"a": entry(0, 0, "F32", [1])}), CorruptError, "needs 4 bytes, range holds 0"),
    ("huge header", b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", LimitError, "header claims 9223372036854775807 bytes"),
    ("hole", file({"a": entry(0, 1), "b": entry(2, 3)}, b"xyz"), CorruptError, '"b" begins at 2, "a" ends at 1: 1 bytes of no tensor'),
    ("hole first", file({"a": entry(1, 2)}, b"xy"), CorruptError, '"a" begins at 1'),
    ("overlap", file({"a": entry(0, 2), "b": entry(1, 3)}, b"xyz"), CorruptError, '"b" begins at 1, overlaps "a"'),
    ("same bytes twice", file({"a": entry(0, 2), "b": entry(0, 2)}, b"xy"), CorruptError, "overlaps"),
    ("empty inside another", file({"a": entry(0, 2), "b": entry(1, 1)}, b"xy"), CorruptError, "overlaps"),
    ("trailing", file({"a": entry(0, 1)}, b"xy"), CorruptError, "data section has 2 bytes, tensors end at 1"),
    ("backwards", file({"a": entry(1, 0, shape=[1])}, b"x"), CorruptError, "begins at 1, after its end at 0"),
    ("negative", file({"a": entry(0, 1, shape=[-1])}, b"x"), CorruptError, "shape [-1]"),
    ("float shape", file({"a": entry(0, 1, shape=[1.0])}, b"x"), CorruptError, "shape [1.0]"),
    ("true shape", file({"a": entry(0, 1, shape=[True])}, b"x"), CorruptError, "shape [true]"),
    ("huge shape", file({"a": entry(0, 1, shape=[1 << 62, 1 << 62])}, b"x"), CorruptError, "product is beyond 2**63 - 1"),
    ("huge and empty", file({"a": entry(0, 0, shape=[1 << 62, 4, 0])}), CorruptError, "product is beyond 2**63 - 1"),
    ("beyond int64", file({"a": entry(0, 0, shape=[0, 1 << 64])}), CorruptError, "2**63 - 1"),
    ("three offsets", file({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, b"x"), CorruptError, "two whole numbers"),
    ("no shape", file({"a": {"dtype": "U8", "data_offsets": [0, 1]}}, b"x"), CorruptError, 'tensor "a" has no shape'),
    ("entry is text", file({"a": "U8"}), CorruptError, 'tensor "a" is text'),
    ("header is a list", b"\x02" + bytes(7) + b"[]", CorruptError, "header is an array"),
    ("metadata is text", file({"__metadata__": "x"}), CorruptError, "expected an object of texts"),
    ("metadata number", file({"__metadata__": {"k": 1}}), CorruptError, 'holds a number under "k"'),
    ("nan", file('{"__metadata__":{"k":NaN}}'), CorruptError, "NaN"),
    ("no utf-8", b"\x02" + bytes(7) + b"{\xff", CorruptError, "header is no UTF-8 at byte 9"),
    ("unknown dtype", file({"a": entry(0, 1, "F128")}, b"x"), TensorError, 'tensor "a" has dtype "F128"'),
    ("dtype no text", file({"a": entry(0, 1, ["U8"])}, b"x"), TensorError, 'tensor "a" has dtype ["U8"]'),
    ("half a unit", file({"a": entry(0, 3, "F4", [2, 3])}, b"xyz"), TensorError, "multiple of 2"),
    ("no unit", file({"a": entry(0, 1, "F4", [])}, b"x"), TensorError, "multiple of 2"),
    ("stamp no json", file({"__metadata__": {"ckptmigrate": "{"}}), CorruptError, '"ckptmigrate" is not valid JSON'),
    ("stamp no object", file({"__metadata__": {"ckptmigrate": "[]"}}), CorruptError, "expected an object"),
    ("newer stamp", file({"__metadata__": {"ckptmigrate": '{"ckptmigrate":2}'}}), UnsupportedFormatError, 'version 2 of "__metadata__" "ckptmigrate", this release reads 1'),
    ("ties no positions", file({"__metadata__": {"ckptmigrate": '{"ties":[1]}'}}), CorruptError, "ties"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "error", "says"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_damaged_file_is_refused_with_what_is_wrong(
    desk: Desk, data: bytes, error: type[CkptError], says: str
) -> None:
    source = desk.source(data)

    with pytest.raises(error) as caught:
        read(source, ReadOptions())

    assert says in caught.value.message
    assert caught.value.path == source.name


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(header=10), "header claims"),
        (Limits(tensors=1), "names 2 tensors or more, limit is 1"),
        (Limits(dimensions=1), "has 2 dimensions, limit is 1"),
        (Limits(name=3), "longer than 3 bytes"),
    ],
)
def test_each_limit_is_checked(desk: Desk, limits: Limits, says: str) -> None:
    data = file({"long name": entry(0, 1, shape=[1, 1]), "b": entry(1, 2)}, b"xy")

    with pytest.raises(LimitError, match=says):
        desk.read(data, limits=limits)


def test_nesting_is_refused_and_not_followed(desk: Desk) -> None:
    with pytest.raises(LimitError):
        desk.read(file('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"))


def test_every_shorter_file_is_refused(desk: Desk) -> None:
    data = safetensors.torch.save({"a": torch.ones(3), "b": torch.zeros(2, 0)}, {"k": "v"})
    for length in range(1, len(data)):
        source = desk.source(data[:length])

        assert sniff(source) is not None

        with pytest.raises(TruncatedError):
            read(source, ReadOptions())


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_the_library_reads_the_same(desk: Desk, at: int, bit: int) -> None:
    data = bytearray(safetensors.torch.save({"a": torch.ones(3), "b": torch.arange(4)}, {"k": "v"}))
    data[at % len(data)] ^= 1 << bit
    try:
        found = desk.read(bytes(data))
    except CkptError:
        return
    theirs = {name: value.numpy() for name, value in safetensors.torch.load(bytes(data)).items()}

    assert found.tensors is not None
    assert set(names(found)) == set(theirs)
    assert all(elements(tensor) == theirs[name].tobytes() for name, tensor in found.tensors.items())


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Draw a file that is nearly right."""
    header: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {},
                {"__metadata__": None},
                {"__metadata__": {"a": "w0"}},
                {"__metadata__": {"a": 1}},
                {"__metadata__": []},
            ]
        )
    )
    header, end = dict(header), 0
    for number in range(draw(st.integers(0, 3))):
        dtype = draw(st.sampled_from([F32, U8, BY_NAME["BOOL"], BY_NAME["C64"], BY_NAME["F8_E8M0"]]))
        shape = draw(st.lists(st.sampled_from([0, 1, 2, 5]), max_size=3))
        size = int(np.prod(shape)) * dtype.itemsize
        header[f"w{number}"] = entry(end, end + size, dtype.name, shape)
        end += size
    tensors = [header[name] for name in header if name != "__metadata__"]
    if draw(st.booleans()) and tensors:
        broken = draw(st.sampled_from(tensors))
        key = draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        odd = st.integers(-1, 9) | st.sampled_from([1.0, True, None, "2", 1 << 64])
        values: Any = st.sampled_from(["F64", "x", None, 3]) if key == "dtype" else st.lists(odd, max_size=3)
        broken[key] = draw(values)
    text = json.dumps(header).encode() + draw(st.sampled_from([b"", b"   ", b"\n", b"\0", b"}"]))
    return len(text).to_bytes(8, "little") + text + bytes(max(0, end + draw(st.sampled_from([0, 0, 0, 1, -1]))))


@pytest.mark.parametrize("shape", [[0, 1 << 63], [0, 2, 1 << 62]])
def test_sizes_that_nothing_can_index_are_refused_even_beside_a_zero(desk: Desk, shape: list[int]) -> None:
    text = json.dumps({"w": entry(0, 0, "F32", shape)}).encode()
    with pytest.raises(CkptError, match="w"):
        desk.read(len(text).to_bytes(8, "little") + text)


@settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=headers())
def test_a_header_is_accepted_exactly_when_the_library_accepts_it(desk: Desk, data: bytes) -> None:
    try:
        theirs: Any = dict(DESERIALIZE(data))
    except safetensors.SafetensorError:
        with pytest.raises(CkptError):
            desk.read(data)
        return
    found = desk.read(data)

    assert found.tensors is not None
    assert set(theirs) == {name for name in found.tensors if name.startswith("w")}
    assert all(bytes(theirs[name]["data"]) == elements(found.tensors[name]) for name in theirs)


# --- headers near the limits


def test_a_header_of_too_many_names_is_counted_before_anything_is_kept(desk: Desk) -> None:
    header = {str(at): entry(0, 0) for at in range(20_000)}
    data = file(header)
    tracemalloc.start()
    with pytest.raises(LimitError, match="names 10001 tensors or more, limit is 10000") as refusal:
        desk.read(data, limits=Limits(tensors=10_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert refusal.value.data == {"limit": 10_000, "claimed": 10_001}
    assert peak < 3 * len(data) + 200_000  # the bytes, their text, and no name


def test_an_entry_longer_than_any_shape_makes_it_is_refused_before_it_is_read(desk: Desk) -> None:
    data = file('{"a":{"dtype":"U8","shape":[' + "1," * 500_000 + '1],"data_offsets":[0,1]}}', b"x")
    tracemalloc.start()
    with pytest.raises(LimitError, match=r"header: a JSON value of more than 4096 characters at character 5"):
        desk.read(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 3 * len(data) + 200_000


def test_more_texts_than_anybody_writes_are_refused(desk: Desk) -> None:
    texts = {str(at): "" for at in range(100_001)}

    with pytest.raises(LimitError, match="more than 100000 texts"):
        desk.read(file({"__metadata__": texts}))


@pytest.mark.parametrize("space", ["", " ", "\n\t\r  "])
def test_white_space_between_all_tokens_changes_nothing(desk: Desk, space: str) -> None:
    text = (
        "|{|'__metadata__'|:|{|'k'|:|'v'|}|,|'a'|:|{|'dtype'|:|'U8'|,|'shape'|:|[|1|]|,|'data_offsets'|:|[|0|,|1|]|}|}|"
    )
    parts = desk.read(file(text.lstrip("|").replace("|", space).replace("'", '"'), b"x"))

    assert parts.facts["metadata"] == {"k": "v"}
    assert names(parts) == ["a"]
