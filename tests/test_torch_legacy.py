"""The pickle stream of torch 0.1.10 to 1.5 is read as torch reads it, and told for what it lacks."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import pickle
import random
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ckptmigrate.errors import CkptError, CorruptError, TruncatedError, UnsupportedFormatError
from ckptmigrate.files import Disk
from ckptmigrate.format import Parts, ReadOptions
from ckptmigrate.formats import torch_legacy
from ckptmigrate.values import Inert

from .torch_reading import faults, reader, saved, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MUSEUM = Path(__file__).parent / "fixtures" / "torch"
RELEASES = ("1.0.0-py27", "1.0.0-py36", "1.4.0-py38", "1.6.0-py38", "1.10.2-py38", "2.13.0-py311", "legacy-handmade")
CORPUS = Path(__file__).parent.parent.parent / "shared" / "corpus"
MAGIC = 0x1950A86A20F9469CFC6C


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk() as opened:
        yield opened


@pytest.fixture
def read(disk: Disk, tmp_path: Path) -> Callable[..., Parts]:
    return reader(disk, tmp_path, torch_legacy)


def exhibits() -> list[tuple[str, str]]:
    found = []
    for release in RELEASES:
        files = json.loads((MUSEUM / release / "expected.json").read_text())["files"]
        found += [(release, name) for name in files if (MUSEUM / release / name).is_file()]
    return [one for one in found if (MUSEUM / one[0] / one[1]).read_bytes()[:4] != b"PK\3\4"]


@pytest.mark.parametrize(("release", "name"), exhibits())
def test_a_file_of_the_museum_has_the_names_dtypes_shapes_and_elements_that_its_torch_wrote(
    release: str, name: str, disk: Disk
) -> None:
    source = disk.open(MUSEUM / release / name)
    told = json.loads((MUSEUM / release / "expected.json").read_text())["files"][name]
    if told.get("expect") == "must be rejected":
        try:
            assert faults(torch_legacy.read(source, ReadOptions()).tree)
        except CorruptError as error:
            assert "6" in error.message  # noqa: PT017 - either way of refusing will do
            assert "7" in error.message  # noqa: PT017 - same
        return
    parts = torch_legacy.read(source, ReadOptions())
    found = tensors(parts.tree)
    refused = {path for path in faults(parts.tree) if path in ("q", "qc", "s", "meta")}

    assert set(faults(parts.tree)) == refused
    for path, row in (told.get("tensors") or {}).items():
        if path.partition("#")[0] in refused:
            continue
        assert (found[path].dtype.torch, list(found[path].shape)) == (
            row["dtype"],
            row["shape"] or list(found[path].shape),
        )
        assert hashlib.sha256(found[path].numpy().tobytes()).hexdigest() == row["sha256"]


def test_protocol_0_which_keeps_no_storage_is_refused_with_the_reason(read: Callable[..., Parts]) -> None:
    with pytest.raises(CorruptError, match="pickle protocol 0 keeps nothing else of it"):
        read(saved({"w": torch.ones(2)}, pickle_protocol=0, legacy=True))


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_every_pickle_protocol_is_recognised_and_gives_the_same(protocol: int, read: Callable[..., Parts]) -> None:
    parts = read(saved({"w": torch.arange(3.0), "n": [1, "x"]}, pickle_protocol=protocol, legacy=True))

    assert parts.tree["w"].numpy().tolist() == [0, 1, 2]
    assert parts.tree["n"] == [1, "x"]


def test_every_look_into_a_storage_has_torchs_elements(read: Callable[..., Parts]) -> None:
    base = torch.arange(120.0).reshape(2, 3, 4, 5)
    looks = {
        "base": base, "transposed": base.transpose(1, 3), "slice": base[1:, :, 1:3, ::2], "expanded": base[0, 0, 0, :1].expand(7, 3),
        "scalar": base[1, 2, 3, 4], "empty": base[:0], "other": torch.arange(4), "bf16": torch.ones(3).bfloat16(),
        "u16": torch.tensor([7, 65535], dtype=torch.uint16),
    }  # fmt: skip
    tree = read(saved(looks, legacy=True)).tree

    for name, tensor in looks.items():
        assert tree[name].shape == tuple(tensor.shape)
        assert np.array_equal(tree[name].numpy().astype(float), tensor.double().numpy()), name
    assert tree["base"].promise != tree["slice"].promise


def test_tied_tensors_are_equal_promises(read: Callable[..., Parts]) -> None:
    base = torch.arange(6.0)
    tree = read(saved({"a": base, "b": base, "c": base[1:]}, legacy=True)).tree

    assert tree["a"].promise == tree["b"].promise != tree["c"].promise


def test_a_short_file_names_the_tensor_and_how_many_bytes_lack(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}, legacy=True)

    with pytest.raises(TruncatedError, match=r"truncated by 5 bytes: '[wb]' is short") as caught:
        read(data[:-5])
    assert (caught.value.data["needed"], caught.value.data["present"]) == (len(data), len(data) - 5)


@pytest.mark.parametrize(
    ("upto", "what"),
    [
        (b"_rebuild_tensor_v2", "the object pickle"),
        (b"little_endian", "the system information"),
        (b"\x80\x02M\xe9", "the protocol version"),
    ],
)
def test_a_cut_within_the_pickles_says_in_which(upto: bytes, what: str, read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.ones(2)}, legacy=True)

    with pytest.raises(TruncatedError, match=f"truncated in {what}"):
        read(data[: data.index(upto) + len(upto)])


def test_a_storage_count_that_differs_names_the_key_and_both(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.arange(6.0)}, legacy=True)
    changed = data[:-32] + struct.pack("<q", 7) + data[-24:] + bytes(4)

    with pytest.raises(CorruptError, match=r"storage '\d+' is declared with 6 elements and stored with 7"):
        read(changed)


def test_a_count_in_the_order_of_a_big_endian_machine_is_understood(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.arange(6.0)}, legacy=True)

    assert read(data[:-32] + struct.pack(">q", 6) + data[-24:]).tree["w"].numpy().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("after", [b"\0" * 7, b"stream"])
def test_bytes_after_the_last_storage_are_counted_and_not_read(after: bytes, read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.ones(2)}, legacy=True)
    after = data if after == b"stream" else after
    (warning,) = read(data + after).warnings

    assert warning.startswith(f"{len(after)} bytes after the last storage, at {len(data)}")
    assert ("another stream of torch.save" in warning) == (after == data)


def test_another_protocol_version_is_refused_with_its_number(read: Callable[..., Parts]) -> None:
    with pytest.raises(UnsupportedFormatError, match="protocol 1002, only 1001 is known"):
        read(pickle.dumps(MAGIC, 2) + pickle.dumps(1002, 2))


def test_a_gzipped_stream_is_decoded(read: Callable[..., Parts]) -> None:
    parts = read(gzip.compress(saved({"w": torch.arange(100.0), "b": torch.ones(3)}, legacy=True)))

    assert parts.tree["w"].numpy().tolist() == list(range(100))


def test_a_cut_gzip_is_refused(read: Callable[..., Parts]) -> None:
    with pytest.raises(CkptError):
        read(gzip.compress(saved({"w": torch.rand(100)}, legacy=True))[:-30])


def test_a_stream_under_bzip2_is_recognised_and_refused_by_name(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "a.pth").write_bytes(bz2.compress(saved({"w": torch.ones(2)}, legacy=True)))
    match = torch_legacy.sniff(disk.open(tmp_path / "a.pth"))

    assert match is not None
    assert "bzip2" in str(match.refuse)


def test_byte_strings_of_python_2_are_text_where_they_decode_and_bytes_where_not(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.arange(2.0)}, legacy=True)
    at = data.index(b"X\1\0\0\0w")
    end = data.index(b".\x80\2]", at)
    note = b"U\4noteT\3\0\0\0\xc5\xbc\xffsU\4nameT\2\0\0\0\xc5\xbcs"
    tree = read(data[:at] + b"U\1w" + data[at + 6 : end] + note + data[end:]).tree

    assert tree["w"].numpy().tolist() == [0, 1]
    assert tree["note"] == b"\xc5\xbc\xff"
    assert tree["name"] == "ż"


def _hostile(pickled: bytes) -> bytes:
    """Put another object pickle into a stream without storages."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    return b"".join(pickle.dumps(one, 2) for one in (MAGIC, 1001, system)) + pickled + pickle.dumps([], 2)


def test_a_storage_that_was_pickled_without_torch_save_is_read_by_the_same_reader(read: Callable[..., Parts]) -> None:
    plain = pickle.dumps({"w": torch.arange(6.0).reshape(2, 3), "t": torch.arange(6).reshape(2, 3).t()}, 4)
    tree = read(_hostile(plain)).tree

    assert tree["w"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tree["t"].numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_nested_stream_that_calls_something_is_refused_and_calls_nothing(
    read: Callable[..., Parts], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    inner = _hostile(
        b"\x80\2cbuiltins\nexec\nX" + struct.pack("<I", len(str(marker))) + str(marker).encode() + b"\x85R."
    )
    outer = pickle.dumps(inner, 4).removesuffix(b".")
    tree = read(
        _hostile(b"\x80\4ctorch.storage\n_load_from_bytes\n" + outer[2:].replace(b"\x94", b"") + b"\x85R.")
    ).tree

    assert isinstance(tree, Inert)
    assert tree.kind == "fault"
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "count", "first", "shape"),
    [
        ("richzhang+PerceptualSimilarity/lpips-v0.0-alex.pth", 5, "lin0.model.1.weight", (1, 64, 1, 1)),
        ("skorch-dev+skorch/skorch-net_cuda.pt", 6, "sequential.0.weight", None),
        ("tracel-ai+burn/simple_legacy.pt", 3, "weight", None),
        ("tracel-ai+burn/legacy_with_offsets.pt", 3, "tensor1", None),
    ],
)
def test_a_public_file_has_its_tensors(
    name: str, count: int, first: str, shape: tuple[int, ...] | None, disk: Disk
) -> None:
    if not (CORPUS / name).exists():
        pytest.skip("the corpus is not beside this checkout")
    found = tensors(torch_legacy.read(disk.open(CORPUS / name), ReadOptions()).tree)

    assert (len(found), next(iter(found))) == (count, first)
    assert shape is None or found[first].shape == shape
    expected = torch.load(CORPUS / name, map_location="cpu", weights_only=True)
    assert all(np.array_equal(tensor.numpy(), expected[path].numpy()) for path, tensor in found.items())


def test_every_cut_is_refused(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.arange(4.0), "b": torch.ones(2)}, legacy=True)
    start = data.index(b"\x80\2M")  # a shorter one is no torch file at all
    for cut in range(start, len(data)):
        with pytest.raises(TruncatedError):
            read(data[:cut])


def test_a_flipped_bit_never_ends_in_anything_but_an_error_of_the_tree(
    read: Callable[..., Parts], disk: Disk, tmp_path: Path
) -> None:
    data = saved({"w": torch.arange(4.0), "b": [1, torch.ones(2)], "m": torch.nn.Linear(1, 1)}, legacy=True)
    chance = random.Random(3)
    path = tmp_path / "flipped.pth"
    for _ in range(400):
        flipped = bytearray(data)
        flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        with Disk() as fresh:
            source = fresh.open(path)
            if torch_legacy.sniff(source) is None:
                continue
            try:
                for tensor in tensors(torch_legacy.read(source, ReadOptions()).tree).values():
                    tensor.numpy()
            except CkptError:
                continue
