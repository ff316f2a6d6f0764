"""A zip of torch.save however it was packed: read all the same, or refused by key, place and number."""

from __future__ import annotations

import bz2
import collections
import gzip
import io
import json
import random
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ckptmigrate.errors import (
    CkptError,
    CorruptError,
    ForeignCallError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from ckptmigrate.files import Disk
from ckptmigrate.format import Parts, ReadOptions
from ckptmigrate.formats import torch_zip
from ckptmigrate.limits import LIMITS
from ckptmigrate.store import detect
from ckptmigrate.tensor import Tensor, View
from ckptmigrate.values import spell, walk

from .torch_reading import faults, reader, rezipped, saved, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MUSEUM = Path(__file__).parent / "fixtures" / "torch"


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk() as opened:
        yield opened


@pytest.fixture
def read(disk: Disk, tmp_path: Path) -> Callable[..., Parts]:
    return reader(disk, tmp_path, torch_zip)


def test_an_expansion_beyond_the_limits_is_a_fault_with_both_sizes(read: Callable[..., Parts]) -> None:
    found = faults(read(saved({"w": torch.zeros(1).expand(1 << 40)})).tree)

    assert "expands the 4 bytes of storage '0' to 4398046511104" in found["w"]


def test_a_storage_of_another_length_is_a_fault_with_both_numbers(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.ones(6), "b": torch.ones(2)})

    assert (
        "storage '0' has 6 elements of F32, 24 bytes, but member 'archive/data/0' has 20"
        in (faults(read(rezipped(data, {"data/0": bytes(20)})).tree)["w"])
    )
    parts = read(rezipped(data, {"data/0": None}))
    assert "there is no member 'archive/data/0'" in faults(parts.tree)["w"]
    assert list(tensors(parts.tree)) == ["b"]


def test_a_tensor_that_leaves_its_storage_is_a_fault(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.ones(77)})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        pickle = archive.read("archive/data.pkl")
    assert pickle.count(b"KM") == 2  # BININT1 77: the storage's numel, then the tensor's size
    at = pickle.rindex(b"KM")

    assert (
        "reaches element 77, but storage '0' holds 77 of F32"
        in (faults(read(rezipped(data, {"data.pkl": pickle[:at] + b"KN" + pickle[at + 2 :]})).tree)["w"])
    )


@pytest.mark.parametrize("prefix", ["", "x/", "deep/er/", "a b/"])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_any_prefix_and_packing_gives_the_same(prefix: str, method: int, read: Callable[..., Parts]) -> None:
    base = torch.arange(200.0)
    parts = read(rezipped(saved({"a": base[10:20], "b": base}), {}, method, prefix))

    assert parts.tree["a"].numpy().tolist() == base[10:20].tolist()
    assert parts.facts["prefix"] == prefix.rstrip("/")


@pytest.mark.parametrize(("word", "order"), [(b"big", ">"), (b"little", "<"), (None, "<")])
def test_either_byte_order_gives_the_values(word: bytes | None, order: str, read: Callable[..., Parts]) -> None:
    data = saved(
        {
            "f": torch.arange(5.0),
            "i": torch.arange(3),
            "c": torch.tensor([1 + 2j]),
            "u": torch.tensor([1, 513], dtype=torch.uint16),
        }
    )
    stored = {
        "data/0": np.arange(5).astype(f"{order}f4"), "data/1": np.arange(3).astype(f"{order}i8"),
        "data/2": np.array([1, 2]).astype(f"{order}f4"), "data/3": np.array([1, 513]).astype(f"{order}u2"),
    }  # fmt: skip
    tree = read(rezipped(data, {"byteorder": word, **{name: array.tobytes() for name, array in stored.items()}})).tree

    assert {name: tensor.numpy().tolist() for name, tensor in tree.items()} == {
        "f": [0, 1, 2, 3, 4], "i": [0, 1, 2], "c": [1 + 2j], "u": [1, 513],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"byteorder": b"middle"}, "byte order 'middle', expected 'little' or 'big'"),
        ({"version": b"99\n"}, "version '99', known are 1 to 10"),
        ({"version": b"three"}, "version 'three', known are 1 to 10"),
        ({"version": b"0"}, "version '0', known are 1 to 10"),
    ],
)
def test_unknown_records_are_refused_with_what_they_say(
    changed: dict[str, bytes | None], said: str, read: Callable[..., Parts]
) -> None:
    with pytest.raises(UnsupportedFormatError, match=said):
        read(rezipped(saved({"w": torch.ones(2)}), changed))


def test_no_version_is_a_warning_and_lowers_what_torch_opens(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(rezipped(saved({"w": torch.ones(2)}), {"version": None}))
    match = torch_zip.sniff(disk.open(path))

    assert match is not None
    assert not match.current
    assert any("no version record" in text for text in torch_zip.read(disk.open(path), ReadOptions()).warnings)


def test_bytes_after_the_pickle_are_counted_and_not_read(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.ones(2)})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        pickle = archive.read("archive/data.pkl")
    parts = read(rezipped(data, {"data.pkl": pickle + b"cos\nsystem\n(S'true'\ntR."}))

    assert "23 bytes after the end of the pickle in archive/data.pkl: they are not read" in parts.warnings


def test_a_wrong_crc_of_the_pickle_is_refused(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.ones(2), "text": "hello"})

    with pytest.raises(CorruptError, match=r"'archive/data.pkl' has CRC"):
        read(data.replace(b"hello", b"hallo"))


def test_our_notes_come_back(read: Callable[..., Parts]) -> None:
    notes = {"stamp": {"versions": {"acme.vit": "2.0"}}, "modules": {"": {"version": 1}}}
    parts = read(rezipped(saved({"w": torch.ones(2)}), {".data/ckptmigrate.json": json.dumps(notes).encode()}))

    assert parts.notes == notes


@pytest.mark.parametrize("text", [b"[1]", b"{", b"\xff"])
def test_notes_that_are_no_object_are_refused(text: bytes, read: Callable[..., Parts]) -> None:
    with pytest.raises(CkptError):
        read(rezipped(saved({"w": torch.ones(2)}), {".data/ckptmigrate.json": text}))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_gives_the_same(protocol: int, read: Callable[..., Parts]) -> None:
    parts = read(saved(collections.OrderedDict(w=torch.arange(3.0), b={1, 2}), pickle_protocol=protocol))

    assert parts.tree["w"].numpy().tolist() == [0, 1, 2]
    assert parts.facts["protocol"] == protocol


def test_a_location_of_another_machine_is_not_looked_at(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.arange(3.0)})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        pickle = archive.read("archive/data.pkl").replace(b"X\3\0\0\0cpu", b"X\6\0\0\0cuda:7")

    assert read(rezipped(data, {"data.pkl": pickle})).tree["w"].numpy().tolist() == [0, 1, 2]


def with_pickle(pickle: bytes) -> bytes:
    return rezipped(saved({"w": torch.ones(2)}), {"data.pkl": pickle})


@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_values_nested_as_deep_as_the_limit_allows_are_read(kind: str, read: Callable[..., Parts]) -> None:
    pickle = (
        b"\x80\x02" + {"list": b"]", "tuple": b"", "dict": b"}X\1\0\0\0a"}[kind] * (LIMITS.nesting - 1)
        + b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\2tQ"
        + {"list": b"a", "tuple": b"\x85", "dict": b"s"}[kind] * (LIMITS.nesting - 1) + b"."
    )  # fmt: skip

    assert [tensor.shape for tensor in tensors(read(with_pickle(pickle)).tree).values()] == [(2,)]


def test_a_value_that_holds_itself_is_read(read: Callable[..., Parts]) -> None:
    ring: list[Any] = [torch.ones(2)]
    ring.append({"again": ring})
    tree = read(saved(ring)).tree

    assert tree[1]["again"] is tree


def test_a_call_that_the_tree_holds_is_left_to_the_walk_that_knows_its_path(read: Callable[..., Parts]) -> None:
    tree = read(with_pickle(b"\x80\x02}X\1\0\0\0acos\nsystem\nX\4\0\0\0true\x85Rs.")).tree

    assert (tree["a"].kind, tree["a"].path, tree["a"].args) == ("call", "os.system", ("true",))


def test_a_call_that_the_pickle_throws_away_again_is_refused_by_name(read: Callable[..., Parts]) -> None:
    hidden = with_pickle(b"\x80\x02cos\nsystem\nX\4\0\0\0true\x85R0}.")

    with pytest.raises(ForeignCallError, match=r"os\.system") as caught:
        read(hidden)
    assert [path for _, path in caught.value.data["calls"]] == ["os.system"]
    assert any("os.system" in text for text in read(hidden, inert_calls=True).warnings)


def test_a_pickle_over_the_limit_is_refused_before_it_is_read(read: Callable[..., Parts]) -> None:
    with pytest.raises(LimitError, match="the limit of a pickle is 100"):
        read(saved({"w": torch.ones(2)}), limits=replace(LIMITS, pickle=100))


def test_a_cut_zip_is_claimed_and_refused_as_truncated(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.ones(200)})
    for cut in (len(data) - 40, len(data) // 2, 10):
        with pytest.raises(TruncatedError, match="truncated zip: no end record"):
            read(data[:cut])


def test_a_zip_of_something_else_is_not_claimed(disk: Disk, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.ones(3))

    assert torch_zip.sniff(disk.open(tmp_path / "a.npz")) is None


def content(parts: Parts) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for path, node in walk(parts.tree):
        if isinstance(node, Tensor):
            member = node.promise.range.member if isinstance(node.promise, View) else None
            assert member is None or member.crc is not None or not member.nbytes
            rows.append((spell(path), (node.dtype.name, node.shape)))
        elif not isinstance(node, (dict, list, tuple)):
            rows.append((spell(path), repr(node)))
    return rows


def test_every_cut_and_flipped_bit_is_refused_or_gives_the_same_names_and_values(disk: Disk, tmp_path: Path) -> None:
    data = saved(collections.OrderedDict(w=torch.arange(4.0), b=torch.ones(2).half(), e=[3, "x"]))
    path = tmp_path / "a.pt"
    path.write_bytes(data)
    expected = content(torch_zip.read(disk.open(path), ReadOptions()))
    chance = random.Random(2)
    damaged = [data[:n] for n in range(4, len(data), 5)]
    for _ in range(400):
        flipped = bytearray(data)
        flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(flipped))
    for index, one in enumerate(damaged):
        other = tmp_path / f"{index}.pt"
        other.write_bytes(one)
        with Disk() as fresh:
            source = fresh.open(other)
            if torch_zip.sniff(source) is None:
                continue
            try:
                parts = torch_zip.read(source, ReadOptions())
            except CkptError:
                continue
            if not parts.notes and not faults(parts.tree):
                assert content(parts) == expected
        other.unlink()


@pytest.mark.parametrize(("pack", "tool"), [(gzip.compress, "gunzip"), (bz2.compress, "bunzip2")])
def test_a_zip_that_was_compressed_once_more_is_refused_by_name(
    pack: Callable[[bytes], bytes], tool: str, disk: Disk, tmp_path: Path
) -> None:
    path = tmp_path / "m.pt.gz"
    path.write_bytes(pack(saved({"w": torch.ones(2)})))
    match = torch_zip.sniff(disk.open(path))

    assert match is not None
    assert f"decompress it first ({tool})" in str(match.refuse)


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_elements_of_untyped_storages_are_turned_round_in_a_big_endian_file(read: Callable[..., Parts]) -> None:
    state = {"u": torch.tensor([1, 2]).to(torch.uint16), "h": torch.ones(2, dtype=torch.complex32)}
    turned = {"data/0": bytes([0, 1, 0, 2]), "data/1": bytes([0x3C, 0, 0, 0] * 2)}
    tree = read(rezipped(saved(state), {"byteorder": b"big", **turned})).tree

    assert tree["u"].numpy().tolist() == [1, 2]
    assert bytes(tree["h"].promise.read(0, 2)) == bytes([0, 0x3C, 0, 0] * 2)


def test_the_directory_is_read_once_for_all_formats_that_ask(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(saved({"w": torch.ones(100_000)}))
    source, reads = disk.open(path), list[tuple[int, int]]()
    read = type(source).read

    def watched(self: Any, *at: int) -> bytes:
        reads.append((at[0], at[1]))
        return read(self, *at)

    monkeypatch.setattr(type(source), "read", watched)
    detect(source)
    ends = [at for at in reads if at[0] + at[1] == source.size and at[1] > 1]  # plain pickles look at the last byte

    assert len(ends) == 1
