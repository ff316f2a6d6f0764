"""The zip directory: what Python's zipfile and torch write is read, what contradicts itself is refused by name and number."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from ckptmigrate.errors import CkptError, CorruptError, LimitError, TruncatedError, UnsupportedFormatError
from ckptmigrate.files import Disk
from ckptmigrate.formats._zip import Directory, directory, is_zip, listing
from ckptmigrate.limits import LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptmigrate.files import Source


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk() as opened:
        yield opened


class Opener:
    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk, self.folder, self.count = disk, folder, 0

    def source(self, data: bytes) -> Source:
        self.count += 1
        path = self.folder / f"{self.count}.pt"
        path.write_bytes(data)
        return self.disk.open(path)

    def __call__(self, data: bytes, limits: Limits = LIMITS) -> Directory:
        return directory(self.source(data), limits)


@pytest.fixture
def read(disk: Disk, tmp_path: Path) -> Opener:
    return Opener(disk, tmp_path)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def saved(obj: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    return buffer.getvalue()


class Hand:
    """One member written by hand, with every number open to lies."""

    def __init__(self, name: bytes = b"P/a", data: bytes = b"abcd", **fields: int | bytes) -> None:
        self.name, self.data, self.fields = name, data, fields

    def build(self, **end: int) -> bytes:
        f = self.fields
        crc = zlib.crc32(self.data)
        n = len(self.data)
        flags, method = f.get("flags", 0x800), f.get("method", 0)
        local_name = f.get("local_name", self.name)
        local_extra, extra = f.get("local_extra", b""), f.get("extra", b"")
        assert isinstance(local_name, bytes)
        assert isinstance(local_extra, bytes)
        assert isinstance(extra, bytes)
        local = struct.pack(
            "<4sHHHHHIIIHH", b"PK\3\4", 20, f.get("local_flags", flags), f.get("local_method", method), 0, 0,
            f.get("local_crc", crc), f.get("local_packed", n), f.get("local_size", n), len(local_name), len(local_extra),
        )  # fmt: skip
        body = local + local_name + local_extra + self.data
        central = struct.pack(
            "<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, flags, method, 0, 0, f.get("crc", crc), f.get("packed", n),
            f.get("size", n), len(self.name), len(extra), 0, f.get("disk", 0), 0, f.get("attributes", 0), f.get("header", 0),
        )  # fmt: skip
        directory = (central + self.name + extra) * end.get("copies", 1)
        entries = end.get("entries", end.get("copies", 1))
        tail = struct.pack(
            "<4sHHHHIIH", b"PK\5\6", end.get("disk", 0), 0, entries, entries, end.get("nbytes", len(directory)),
            end.get("offset", len(body)), 0,
        )  # fmt: skip
        return body + directory + tail


def test_members_of_a_stored_zip_come_in_order_with_their_bytes(read: Opener) -> None:
    source = read.source(zipped({"P/b": b"bb", "P/a": b"", "P/c/d": b"cc" * 9}))
    found = directory(source, LIMITS)

    assert list(found.members) == ["P/b", "P/a", "P/c/d"]
    assert [entry.source(source, LIMITS).read(0, entry.size) for entry in found.members.values()] == [
        b"bb",
        b"",
        b"cc" * 9,
    ]


def test_what_torch_writes_is_found_where_zipfile_finds_it(read: Opener) -> None:
    data = saved({"w": torch.arange(600.0), "e": torch.zeros(0)})
    source = read.source(data)
    found = directory(source, LIMITS)

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        expected = {name: archive.read(name) for name in archive.namelist()}
    assert {name: entry.source(source, LIMITS).read(0, entry.size) for name, entry in found.members.items()} == expected


def test_a_stored_range_knows_its_member_and_crc(read: Opener) -> None:
    source = read.source(zipped({"P/a": b"xyz", "P/b": b"abc"}))
    entry = directory(source, LIMITS).members["P/b"]
    found = entry.range(source, LIMITS)

    assert found.member is not None
    assert (found.member.name, found.member.crc, found.member.nbytes) == ("P/b", zlib.crc32(b"abc"), 3)
    assert (found.member.offset, found.read(0, 3)) == (found.offset, b"abc")


def test_crc_zero_is_no_crc(read: Opener) -> None:
    source = read.source(Hand(crc=0, local_crc=0).build())
    entry = directory(source, LIMITS).members["P/a"]
    member = entry.range(source, LIMITS).member

    assert member is not None
    assert member.crc is None
    assert entry.text(source, LIMITS) == b"abcd"


def test_a_deflated_member_is_decoded_and_its_range_reads_the_decoded_bytes(read: Opener) -> None:
    data = bytes(range(256)) * 40
    source = read.source(zipped({"P/a": data}, zipfile.ZIP_DEFLATED))
    entry = directory(source, LIMITS).members["P/a"]

    assert entry.packed < entry.size == len(data)
    assert entry.source(source, LIMITS).read(0, len(data)) == data
    assert entry.range(source, LIMITS).read(100, 300) == data[100:400]


def test_folders_are_no_members(read: Opener) -> None:
    source = read.source(zipped({"P/": b"", "P/a": b"x"}))

    assert list(directory(source, LIMITS).members) == ["P/a"]
    assert listing(source, LIMITS) == ["P/", "P/a"]


def test_bytes_after_the_zip_are_accepted_and_counted(read: Opener) -> None:
    assert read(zipped({"P/a": b"x"}) + b"garbage" * 100).trailing == 700


def test_a_comment_that_holds_the_signature_of_an_end_record_misleads_nobody(read: Opener) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("P/a", b"x")
        archive.comment = b"PK\5\6" + bytes(30)

    assert list(read(buffer.getvalue()).members) == ["P/a"]


def test_a_nested_zip_in_the_last_member_misleads_nobody(read: Opener) -> None:
    inner = zipped({"Q/b": b"y"})

    assert list(read(zipped({"P/a": inner})).members) == ["P/a"]


@pytest.mark.parametrize("wide", ["size packed header", "size packed", "packed", "header", "size"])
def test_zip64_fields_on_small_entries_are_taken_from_the_extra_field_however_few_are_set(
    wide: str, read: Opener
) -> None:
    values = {"size": 4, "packed": 4, "header": 0}
    extra = b"".join(struct.pack("<Q", values[name]) for name in ("size", "packed", "header") if name in wide.split())
    hand = Hand(extra=struct.pack("<HH", 1, len(extra)) + extra)
    hand.fields |= dict.fromkeys(wide.split(), 0xFFFFFFFF)
    data = hand.build()
    entry = read(data).members["P/a"]

    assert (entry.size, entry.packed, entry.offset) == (4, 4, 33)


def test_an_extra_field_of_another_kind_may_stand_before_the_zip64_one(read: Opener) -> None:
    extra = struct.pack("<HHH", 0x5455, 2, 7) + struct.pack("<HHQ", 1, 8, 4)

    assert read(Hand(extra=extra, size=0xFFFFFFFF).build()).members["P/a"].size == 4


def test_a_zip64_field_that_ends_early_is_refused(read: Opener) -> None:
    with pytest.raises(CorruptError, match="zip64 field of member 'P/a' ends early"):
        read(Hand(extra=struct.pack("<HHI", 1, 4, 4), size=0xFFFFFFFF).build())


def test_a_zip64_end_record_that_disagrees_with_the_short_one_is_refused(read: Opener) -> None:
    data = bytearray(saved({"w": torch.ones(2)}))
    at = data.rfind(b"PK\5\6")
    struct.pack_into("<HH", data, at + 8, 3, 3)

    with pytest.raises(CorruptError, match="end record and zip64 end record disagree"):
        read(bytes(data))


@pytest.mark.parametrize(
    ("hand", "end", "error", "said"),
    [
        (Hand(b"P/../a"), {}, CorruptError, "no plain relative path"),
        (Hand(b"/a"), {}, CorruptError, "no plain relative path"),
        (Hand(b"C:a"), {}, CorruptError, "no plain relative path"),
        (Hand(b"P\\a"), {}, CorruptError, "no plain relative path"),
        (Hand(b"P/a\0b"), {}, CorruptError, "no plain relative path"),
        (Hand(b""), {}, CorruptError, "no plain relative path"),
        (Hand(b"P/\xff"), {}, CorruptError, "no UTF-8"),
        (Hand(b"P/a/"), {}, CorruptError, "4 bytes in the file and claims 4"),
        (Hand(flags=0x801), {}, UnsupportedFormatError, "'P/a' is encrypted"),
        (Hand(local_flags=0x801), {}, CorruptError, "local header of member 'P/a'"),
        (Hand(method=12), {}, UnsupportedFormatError, "method 12; 0 .stored. and 8 .deflate. are read"),
        (Hand(local_method=8), {}, CorruptError, "local header of member 'P/a'"),
        (Hand(local_name=b"P/b"), {}, CorruptError, "local header of member 'P/a' at 0.*P/b"),
        (Hand(local_size=5, local_packed=5), {}, CorruptError, "local header of member 'P/a'"),
        (Hand(local_crc=1), {}, CorruptError, "local header of member 'P/a'"),
        (Hand(size=5), {}, CorruptError, "4 bytes in the file and claims 5"),
        (Hand(size=50, packed=50), {}, CorruptError, "the directory .*50"),
        (Hand(size=50, packed=50, local_flags=8, local_size=0, local_packed=0), {}, CorruptError, "ends at 83, but the directory starts at 37"),
        (Hand(header=9999), {}, CorruptError, "starts at 9999, the file has"),
        (Hand(header=1), {}, CorruptError, "local header of member 'P/a' at 1"),
        (Hand(attributes=0o120777 << 16), {}, CorruptError, "'P/a' is a symbolic link"),
        (Hand(disk=3), {}, UnsupportedFormatError, "on disk 3"),
        (Hand(), {"disk": 1}, UnsupportedFormatError, "several disks"),
        (Hand(), {"copies": 2}, CorruptError, "'P/a' occurs twice"),
        (Hand(), {"entries": 2}, CorruptError, "2 members do not fit|no directory entry"),
        (Hand(), {"offset": 36}, CorruptError, "directory has 49 bytes at 36, it has to end at 86"),
        (Hand(method=8, size=1 << 20, local_method=8, local_size=1 << 20), {}, LimitError, "claims 1048576 bytes out of 4"),
    ],
)  # fmt: skip
def test_a_member_that_lies_is_refused_by_name_and_number(
    hand: Hand, end: dict[str, int], error: type[CkptError], said: str, read: Opener
) -> None:
    with pytest.raises(error, match=said) as caught:
        read(hand.build(**end))

    assert caught.value.path is not None


def test_names_that_differ_in_case_only_are_refused_with_both(read: Opener) -> None:
    with pytest.raises(CorruptError, match=r"'P/DATA\.pkl' occurs besides 'P/data\.pkl'"):
        read(zipped({"P/data.pkl": b"a", "P/DATA.pkl": b"b"}))


def test_members_that_overlap_are_refused_with_both_places(read: Opener) -> None:
    data = bytearray(zipped({"P/a": b"x" * 40, "P/b": b"y"}))
    second = data.find(b"PK\1\2", data.find(b"PK\1\2") + 4)
    inner = zipped({"P/b": b"y"})[:34]  # a whole member, hidden in the data of the first
    data[35 : 35 + len(inner)] = inner
    struct.pack_into("<I", data, second + 42, 35)

    with pytest.raises(CorruptError, match="'P/b' starts at 35, but member 'P/a' ends at 73: they overlap"):
        read(bytes(data))


def test_more_members_than_the_limit_are_refused_before_the_directory_is_read(read: Opener) -> None:
    with pytest.raises(LimitError, match="claims 3 members, the limit is 2"):
        read(zipped(dict.fromkeys(["P/a", "P/b", "P/c"], b"")), replace(LIMITS, tensors=2))


def test_a_longer_directory_than_the_limit_is_refused_before_it_is_read(read: Opener) -> None:
    with pytest.raises(LimitError, match="bytes of directory, the limit is 60"):
        read(zipped(dict.fromkeys(["P/a", "P/b"], b"")), replace(LIMITS, index=60))


def test_a_wrong_crc_of_a_small_member_names_both(read: Opener) -> None:
    source = read.source(Hand(crc=0x12345678, local_crc=0x12345678).build())
    entry = directory(source, LIMITS).members["P/a"]

    for check in (lambda: entry.text(source, LIMITS), lambda: entry.verify(source)):
        with pytest.raises(CorruptError, match=f"'P/a' has CRC {zlib.crc32(b'abcd'):08x}, the directory says 12345678"):
            check()


def test_a_deflated_member_that_decodes_to_another_size_is_refused_when_it_is_read(read: Opener) -> None:
    data = zipped({"P/a": b"x" * 500}, zipfile.ZIP_DEFLATED)
    for old, new in ((500, 400), (500, 600)):
        changed = data.replace(struct.pack("<I", old), struct.pack("<I", new))
        source = read.source(changed)
        with pytest.raises(CkptError):
            directory(source, LIMITS).members["P/a"].source(source, LIMITS).read(0, new)


@pytest.mark.parametrize(
    ("members", "cut", "whole"), [({"P/a": b"x" * 50, "P/b": b"y" * 50}, -60, "2"), ({"P/a": b"x" * 50}, 60, "0")]
)
def test_a_cut_zip_says_its_size_and_how_many_members_are_whole(
    members: dict[str, bytes], cut: int, whole: str, read: Opener
) -> None:
    data = zipped(members)[:cut]

    with pytest.raises(TruncatedError, match=f"truncated zip: no end record .* of {len(data)} bytes; {whole} entr"):
        read(data)


def test_a_cut_file_of_torch_counts_members_by_their_descriptors(read: Opener) -> None:
    data = saved({"w": torch.arange(64.0), "b": torch.ones(64)})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        second = archive.getinfo("archive/data/1").header_offset
        before = sum(info.header_offset < second for info in archive.infolist())

    with pytest.raises(TruncatedError, match=f"; {before} entries are complete"):
        read(data[: second + 50])


def test_every_cut_and_every_flipped_bit_of_the_structure_is_refused_or_changes_no_member(read: Opener) -> None:
    data = saved({"w": torch.arange(4.0)})
    source = read.source(data)
    expected = {name: e.source(source, LIMITS).read(0, e.size) for name, e in directory(source, LIMITS).members.items()}
    chance = random.Random(1)
    damaged = [data[:n] for n in range(0, len(data), 7)]
    for _ in range(300):
        flipped = bytearray(data)
        flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(flipped))
    for one in damaged:
        source = read.source(one)
        if not is_zip(source):
            continue
        try:
            members = directory(source, LIMITS).members
            for entry in members.values():
                entry.verify(source)
        except CkptError:
            continue
        assert {n: e.source(source, LIMITS).read(0, e.size) for n, e in members.items()} == expected
