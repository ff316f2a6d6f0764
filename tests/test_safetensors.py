"""safetensors: what the reference library writes is read as it is, what is written the library opens, all else is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmigrate.dtypes import BITS8, BY_NAME, BY_SAFETENSORS, C128, F4, F32, QINT8, U8, DType
from ckptmigrate.errors import CkptError, CorruptError, LimitError, TensorError, TruncatedError, UnsupportedFormatError
from ckptmigrate.files import Disk, Late
from ckptmigrate.format import Parts, ReadOptions, WriteOptions
from ckptmigrate.formats._safetensors_writer import lay_out
from ckptmigrate.formats.safetensors import read, sniff
from ckptmigrate.limits import Limits
from ckptmigrate.tensor import Quantisation, Tensor, View
from ckptmigrate.values import Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ckptmigrate.files import Source
    from ckptmigrate.format import Blueprint

DESERIALIZE: Any = safetensors.deserialize
DEFAULT, BARE, DUPLICATE = WriteOptions(), WriteOptions(bare=True), WriteOptions(ties="duplicate")


class Desk:
    """A folder, the disk that reads it, and the short ways that these tests need."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder, self.disk, self.count = folder, disk, 0

    def source(self, data: bytes, name: str = "m.safetensors") -> Source:
        self.count += 1
        path = self.folder / str(self.count) / name
        path.parent.mkdir()
        path.write_bytes(data)
        return self.disk.open(path)

    def read(self, data: bytes, **options: Any) -> Parts:
        return read(self.source(data), ReadOptions(**options))

    def tensor(self, array: Any, dtype: DType | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        data = np.asarray(array, order="C")
        kind = dtype or BY_NAME[{"float32": "F32", "float64": "F64", "uint8": "U8", "int64": "I64"}[data.dtype.name]]
        place = self.source(data.tobytes() or b"-", "data").range(0, data.nbytes)
        return Tensor(View.rows(place, kind, data.shape if shape is None else shape))

    def write(self, tensors: Mapping[str, Tensor | Scalar], options: WriteOptions = DEFAULT, **parts: Any) -> bytes:
        blueprint = lay_out(Parts(tensors=dict(tensors), **parts), options, "m.safetensors")

        assert blueprint.problems == []

        return draw(blueprint)


@pytest.fixture(name="desk")
def _desk(tmp_path: Path) -> Iterator[Desk]:
    with Disk() as disk:
        yield Desk(tmp_path, disk)


def draw(blueprint: Blueprint) -> bytes:
    """Draw a blueprint of one file into memory."""
    ((name, pieces),) = blueprint.files.items()
    data, crcs = bytearray(), list[int]()
    for offset, piece in pieces:
        data += bytes(offset - len(data))

        assert offset == len(data)

        if isinstance(piece, bytes):
            data += piece
        else:
            data += piece.make(crcs) if isinstance(piece, Late) else piece.read(0, piece.numel)

    assert len(data) == blueprint.sizes[name]

    return bytes(data)


def elements(tensor: Tensor | Scalar) -> bytes:
    assert isinstance(tensor, Tensor)

    return bytes(tensor.promise.read(0, tensor.promise.numel))


def file(header: Any, data: bytes = b"") -> bytes:
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, dtype: Any = "U8", shape: Any = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def header_of(data: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def names(parts: Parts) -> list[str]:
    assert parts.tensors is not None

    return list(parts.tensors)


def same_promise(parts: Parts, one: str, two: str) -> bool:
    assert parts.tensors is not None

    left, right = parts.tensors[one], parts.tensors[two]
    return isinstance(left, Tensor) and isinstance(right, Tensor) and left.promise == right.promise


# --- reading what the library wrote

TORCH_DTYPES = [d for d in BY_SAFETENSORS.values() if d.torch and d is not F4]


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
    ("newer stamp", file({"__metadata__": {"ckptmigrate": '{"ckptmigrate":2}'}}), UnsupportedFormatError, "has version 2, this release reads 1"),
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
        (Limits(tensors=1), "names 2 tensors, limit is 1"),
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


# --- writing


def test_the_library_opens_what_is_written_with_the_same_names_dtypes_shapes_and_bytes(desk: Desk) -> None:
    arrays: dict[str, Any] = {
        "é/ü": np.arange(6, dtype=np.float32).reshape(2, 3),
        "u": np.array([7], np.uint8),
        "d": np.array(2.5),
        "0": np.zeros((2, 0), np.float32),
    }
    written = desk.write({name: desk.tensor(array) for name, array in arrays.items()}, family="torch")
    path = desk.folder / "out.safetensors"
    path.write_bytes(written)
    with safetensors.safe_open(path, "np") as opened:
        theirs = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - safe_open is no mapping
        metadata = opened.metadata()

    assert metadata == {"format": "pt"}
    assert set(theirs) == set(arrays)
    for name, array in arrays.items():
        assert (theirs[name].dtype, theirs[name].shape) == (array.dtype, array.shape)
        assert theirs[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [*TORCH_DTYPES, F4], ids=str)
def test_the_library_opens_every_dtype_that_torch_has(desk: Desk, dtype: DType) -> None:
    raw = np.arange(12 * dtype.itemsize, dtype=np.uint8) % 2
    path = desk.folder / "out.safetensors"
    path.write_bytes(desk.write({"w": desk.tensor(raw, dtype, (3, 4))}))
    assert dtype.torch is not None
    with safetensors.safe_open(path, "pt") as opened:
        theirs = opened.get_tensor("w")

    assert (theirs.dtype, theirs.shape) == (getattr(torch, dtype.torch), (3, 4))
    assert theirs.view(torch.uint8).numpy().tobytes() == raw.tobytes()


@pytest.mark.parametrize("dtype", list(BY_SAFETENSORS.values()), ids=str)
def test_every_dtype_of_the_format_comes_back(desk: Desk, dtype: DType) -> None:
    raw = np.arange(12 * dtype.itemsize, dtype=np.uint8) % 2
    found = desk.read(desk.write({"w": desk.tensor(raw, dtype, (3, 4))}))

    assert found.tensors is not None
    assert isinstance(found.tensors["w"], Tensor)
    assert (found.tensors["w"].promise.dtype, found.tensors["w"].promise.shape) == (dtype, (3, 4))
    assert elements(found.tensors["w"]) == raw.tobytes()


def test_order_is_the_source_s_in_header_and_data(desk: Desk) -> None:
    written = desk.write({"b": desk.tensor(np.array([1], np.uint8)), "a": desk.tensor(np.array([2.0]))})

    assert list(header_of(written)) == ["b", "a"]
    assert header_of(written)["a"]["data_offsets"] == [1, 9]
    assert safetensors.torch.load(written)["a"].item() == 2.0


def test_the_data_begins_on_a_multiple_of_eight(desk: Desk) -> None:
    for length in range(1, 10):
        written = desk.write({"n" * length: desk.tensor(np.array([1], np.uint8))})

        assert (len(written) - 1) % 8 == 0


def test_e11_a_transposed_view_is_written_row_major(desk: Desk) -> None:
    data = desk.source(np.arange(6, dtype=np.float32).tobytes(), "data")
    view = View(data.range(0, 24), F32, (3, 2), (4, 12))
    written = safetensors.numpy.load(desk.write({"t": Tensor(view)}))

    assert written["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_same_parts_give_the_same_bytes(desk: Desk) -> None:
    tensors = {"a": desk.tensor(np.arange(5.0)), "b": desk.tensor(np.arange(3, dtype=np.uint8))}

    assert desk.write(tensors, notes={"versions": {"x": "1"}}) == desk.write(tensors, notes={"versions": {"x": "1"}})


def test_a_bare_file_of_one_tensor_is_byte_for_byte_the_library_s(desk: Desk) -> None:
    ours = desk.write({"w": desk.tensor(np.arange(4, dtype=np.float32))}, BARE, family="torch", notes={"versions": {}})

    assert ours == safetensors.torch.save({"w": torch.arange(4.0)}, {"format": "pt"})


def test_format_pt_is_written_for_torch_only(desk: Desk) -> None:
    tensors = {"w": desk.tensor(np.arange(4.0))}

    assert "__metadata__" not in header_of(desk.write(tensors, family="burn"))
    assert header_of(desk.write(tensors, family="torch"))["__metadata__"] == {"format": "pt"}


# --- ties


def tied(desk: Desk) -> dict[str, Tensor]:
    shared = desk.tensor(np.arange(6.0).reshape(2, 3))
    return {"emb.weight": shared, "head.weight": Tensor(shared.promise), "last": desk.tensor(np.arange(2.0))}


def test_e01_a_tied_name_is_written_once_and_recorded_as_save_model_does(desk: Desk) -> None:
    written = desk.write(tied(desk))

    assert header_of(written)["__metadata__"]["head.weight"] == "emb.weight"
    assert set(safetensors.torch.load(written)) == {"emb.weight", "last"}


def test_e01_load_model_of_the_library_takes_the_tied_file(desk: Desk) -> None:
    model = torch.nn.ModuleDict(
        {"emb": torch.nn.Linear(3, 2, bias=False), "head": torch.nn.Linear(3, 2, bias=False)}
    ).double()
    model["head"].weight = model["emb"].weight
    path = desk.folder / "tied.safetensors"
    tensors = tied(desk)
    del tensors["last"]
    path.write_bytes(desk.write(tensors, family="torch"))

    assert safetensors.torch.load_model(model, path) == (set(), [])
    assert model["head"].weight.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_tied_names_come_back_in_their_order_and_notes_as_they_were(desk: Desk) -> None:
    found = desk.read(desk.write(tied(desk), notes={"versions": {"x": "1"}}, facts={"metadata": {"k": "v"}}))

    assert names(found) == ["emb.weight", "head.weight", "last"]
    assert same_promise(found, "emb.weight", "head.weight")
    assert (found.notes, found.facts["metadata"]) == ({"versions": {"x": "1"}}, {"k": "v"})


@pytest.mark.parametrize("options", [BARE, DUPLICATE])
def test_ties_are_duplicated_when_asked_and_in_a_bare_file(desk: Desk, options: WriteOptions) -> None:
    written = safetensors.torch.load(desk.write(tied(desk), options))

    assert torch.equal(written["emb.weight"], written["head.weight"])
    assert len(written) == 3


def test_disjoint_and_overlapping_views_of_one_range_are_no_ties(desk: Desk) -> None:
    place = desk.source(np.arange(6, dtype=np.uint8).tobytes(), "data").range(0, 6)
    views = {
        "a": Tensor(View(place, U8, (3,), (1,), 0)),
        "b": Tensor(View(place, U8, (3,), (1,), 3)),
        "c": Tensor(View(place, U8, (4,), (1,), 1)),
    }
    written = safetensors.torch.load(desk.write(views))

    assert {name: value.tolist() for name, value in written.items()} == {
        "a": [0, 1, 2],
        "b": [3, 4, 5],
        "c": [1, 2, 3, 4],
    }


def test_empty_tensors_are_never_tied(desk: Desk) -> None:
    empty = desk.tensor(np.zeros((0, 2), np.float32))
    written = desk.write({"a": empty, "b": empty})

    assert header_of(written) == {name: entry(0, 0, "F32", [0, 2]) for name in ("a", "b")}


@pytest.mark.parametrize("key", ["head.weight", "ckptmigrate", "format"])
def test_a_tied_name_that_the_metadata_needs_is_a_problem(desk: Desk, key: str) -> None:
    shared = desk.tensor(np.arange(2.0))
    parts = Parts(family="torch", tensors={"a": shared, key: shared}, facts={"metadata": {"head.weight": "x"}})

    (problem,) = lay_out(parts, WriteOptions(), "m").problems
    assert f'"{key}" is tied to "a"' in problem
    assert lay_out(parts, DUPLICATE, "m").problems == []


def test_text_that_names_a_tensor_by_chance_comes_back_as_text(desk: Desk) -> None:
    found = desk.read(desk.write(tied(desk), facts={"metadata": {"best": "last"}}))

    assert names(found) == ["emb.weight", "head.weight", "last"]
    assert found.facts["metadata"] == {"best": "last"}


def test_ties_of_a_file_that_another_tool_cut_down_stay_in_order(desk: Desk) -> None:
    header = {
        "__metadata__": {"t": "a", "u": "a", "ckptmigrate": '{"ties":{"t":900,"u":1,"gone":0}}'},
        "a": entry(0, 1), "b": entry(1, 2),
    }  # fmt: skip

    assert names(desk.read(file(header, b"xy"))) == ["a", "u", "b", "t"]


NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda name: name not in {"__metadata__", "ckptmigrate", "format"}
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    layout=st.lists(st.tuples(NAME, st.integers(0, 3)), unique_by=lambda pair: pair[0], max_size=8),
    metadata=st.dictionaries(NAME, NAME, max_size=3),
)
def test_names_order_ties_metadata_and_notes_survive(
    desk: Desk, layout: list[tuple[str, int]], metadata: dict[str, str]
) -> None:
    pool = [desk.tensor(np.arange(size, dtype=np.uint8)) for size in range(4)]
    tensors: dict[str, Tensor | Scalar] = {name: pool[which] for name, which in layout}
    metadata = {key: value for key, value in metadata.items() if key not in tensors}
    written = desk.write(tensors, family="torch", notes={"a": [1]}, facts={"metadata": metadata})
    found = desk.read(written)

    assert names(found) == list(tensors)
    assert found.tensors is not None
    assert [elements(tensor) for tensor in found.tensors.values()] == [elements(tensor) for tensor in tensors.values()]
    assert (found.family, found.facts["metadata"], found.notes) == ("torch", metadata, {"a": [1]})
    assert set(safetensors.torch.load(written)) <= set(tensors)


# --- problems


@pytest.mark.parametrize(
    ("dtype", "says"),
    [(C128, "is C128 (complex128), which safetensors cannot hold"), (BITS8, "is BITS8"), (QINT8, "--dequantize")],
    ids=str,
)
def test_e13_a_dtype_without_a_spelling_is_a_problem_that_names_tensor_and_dtype(
    desk: Desk, dtype: DType, says: str
) -> None:
    tensor = desk.tensor(np.zeros(dtype.itemsize, np.uint8), dtype, (1,))

    (problem,) = lay_out(Parts(tensors={"freqs": tensor}), WriteOptions(), "m").problems
    assert 'tensor "freqs"' in problem
    assert says in problem


def test_all_problems_are_told_at_once(desk: Desk) -> None:
    one = desk.tensor(np.zeros(1, np.uint8))
    parts = Parts(
        tensors={
            "step": Scalar("int", 3),
            "__metadata__": one,
            "\ud800": one,
            "q": Tensor(one.promise, quant=Quantisation("per_tensor", 1.0, 0)),
            "f": desk.tensor(np.zeros(1, np.uint8), F4, ()),
        },
        facts={"metadata": {"n": 1}},
    )

    assert len(lay_out(parts, WriteOptions(), "m").problems) == 6


def test_a_tree_is_a_problem() -> None:
    (problem,) = lay_out(Parts(tree={"a": 1}), DEFAULT, "m").problems

    assert problem == "dict of 1 is a tree, and safetensors holds tensors by name"


def test_a_bare_file_leaves_out_text_that_a_reader_would_take_for_a_tie(desk: Desk) -> None:
    parts = Parts(tensors={"w": desk.tensor(np.arange(2.0))}, facts={"metadata": {"best": "w", "k": "v"}})
    blueprint = lay_out(parts, BARE, "m")

    assert [path for path, _ in blueprint.left_out] == ["metadata/best"]
    assert header_of(draw(blueprint))["__metadata__"] == {"k": "v"}


@pytest.mark.parametrize("options", [DEFAULT, BARE])
def test_a_caller_s_metadata_never_overwrites_the_stamp(desk: Desk, options: WriteOptions) -> None:
    parts = Parts(tensors={}, facts={"metadata": {"ckptmigrate": "forged"}}, notes={"versions": {"x": "1"}})
    blueprint = lay_out(parts, options, "m")
    metadata = header_of(draw(blueprint)).get("__metadata__", {})

    assert metadata.get("ckptmigrate") == (None if options.bare else '{"versions":{"x":"1"}}')
    assert [path for path, _ in blueprint.left_out] == ["metadata/ckptmigrate"]
