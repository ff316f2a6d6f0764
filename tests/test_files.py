"""Sources, ranges, decoded streams and scratch: exact, bounded, and unmoved by what files claim."""

from __future__ import annotations

import gzip
import os
import random
import socket
import tracemalloc
import zlib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate.errors import (
    ChangedError,
    CkptError,
    CorruptError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from ckptmigrate.files import Disk, Member, Source, inflate
from ckptmigrate.files.descriptors import POOL
from ckptmigrate.limits import GiB, KiB, MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptmigrate.files.inflate import Codec


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Disk(scratch) as disk:
        yield disk


@pytest.fixture
def ten(tmp_path: Path, disk: Disk) -> Source:
    path = tmp_path / "ten"
    path.write_bytes(b"0123456789")
    return disk.open(path)


def deflated(data: bytes) -> bytes:
    machine = zlib.compressobj(6, zlib.DEFLATED, -15)
    return machine.compress(data) + machine.flush()


def content(nbytes: int, seed: int = 0) -> bytes:
    """Bytes that compress a little, and differ everywhere."""
    made = random.Random(seed)
    return b"".join(made.randbytes(3) + b"\0\0\0\0\0" for _ in range(-(-nbytes // 8)))[:nbytes]


def open_bytes(disk: Disk, folder: Path, data: bytes, name: str = "data") -> Source:
    path = folder / name
    path.write_bytes(data)
    return disk.open(path)


def scratch_size(disk: Disk) -> int:
    """Bytes that the scratch file takes, 0 before there is one."""
    return os.fstat(disk.scratch.descriptor()).st_blocks * 512 if disk.scratch._file else 0


# ── local files ──


def test_a_read_gives_exactly_what_was_asked(ten: Source) -> None:
    assert ten.read(3, 4) == b"3456"
    assert ten.read(0, 10) == b"0123456789"
    assert ten.read(10, 0) == b""
    assert ten.size == 10


def test_a_read_past_the_end_names_the_file_and_both_numbers(ten: Source) -> None:
    with pytest.raises(TruncatedError) as caught:
        ten.read(8, 3)

    assert caught.value.path == ten.name
    assert caught.value.data == {"needed": 11, "present": 10}
    assert "11" in str(caught.value)
    assert "10" in str(caught.value)


def test_a_huge_claim_is_refused_before_memory_is_taken(ten: Source) -> None:
    with pytest.raises(TruncatedError):
        ten.read(0, 1 << 60)
    with pytest.raises(TruncatedError):
        ten.range(0, 1 << 60)
    with pytest.raises(TruncatedError):
        ten.range(0, 10).file.pread(0, 1 << 60)


def test_negative_offsets_and_lengths_are_corrupt(ten: Source) -> None:
    for offset, nbytes in ((-1, 2), (2, -1)):
        with pytest.raises(CorruptError):
            ten.read(offset, nbytes)
        with pytest.raises(CorruptError):
            ten.range(0, 10).part(offset, nbytes)


def test_a_part_of_a_range_stays_inside_it(ten: Source) -> None:
    half = ten.range(0, 5)

    assert half.part(1, 4).read(0, 4) == b"1234"
    with pytest.raises(TruncatedError):
        half.part(1, 5)
    with pytest.raises(TruncatedError):
        half.read(4, 2)


def test_nested_parts_resolve_to_the_file_underneath(ten: Source) -> None:
    inner = ten.part(2, 6, "outer").part(1, 4, "inner")

    assert inner.name == f"{ten.name}!outer!inner"
    assert inner.read(0, 4) == b"3456"
    assert inner.range(1, 2) == ten.range(4, 2)
    with pytest.raises(TruncatedError):
        inner.read(0, 5)


def test_a_member_is_placed_in_the_file_and_is_no_part_of_equality(ten: Source) -> None:
    window = ten.part(2, 6, "archive")
    member = Member("data/0", 1, 4, 0xABCD)

    found = window.range(2, 2, member)

    assert found.member == Member("data/0", 3, 4, 0xABCD)
    assert found == ten.range(4, 2)
    assert window.part(1, 4, "data/0", member).range(0, 2).member == Member("data/0", 3, 4, 0xABCD)


def test_the_same_path_opened_twice_gives_equal_ranges(disk: Disk, ten: Source) -> None:
    assert disk.open(ten.name).range(1, 2) == ten.range(1, 2)
    assert disk.open(Path(ten.name)).range(1, 2) == ten.range(1, 2)


def test_two_files_of_equal_bytes_are_two_places(disk: Disk, tmp_path: Path) -> None:
    one, other = open_bytes(disk, tmp_path, b"same", "one"), open_bytes(disk, tmp_path, b"same", "other")

    assert one.range(0, 4) != other.range(0, 4)
    assert one.identity != other.identity


def test_more_files_than_the_pool_holds_are_read_with_few_descriptors(disk: Disk, tmp_path: Path) -> None:
    sources = [open_bytes(disk, tmp_path, b"%d" % i, f"shard-{i}") for i in range(3 * POOL)]

    for _ in range(2):
        for i, source in enumerate(sources):
            assert source.read(0, source.size) == b"%d" % i
    descriptors = [str(entry.resolve()) for entry in Path("/proc/self/fd").iterdir()]
    mine = sum("shard-" in name for name in descriptors)
    assert mine <= POOL


def test_a_descriptor_that_is_held_outlives_its_place_in_the_pool(disk: Disk, tmp_path: Path) -> None:
    first = open_bytes(disk, tmp_path, b"first", "first")
    descriptor, base = first.range(0, 5).file.descriptor()

    for i in range(2 * POOL):
        open_bytes(disk, tmp_path, b"x", f"other-{i}").read(0, 1)

    assert os.pread(descriptor, 5, base) == b"first"


@pytest.mark.parametrize("change", ["rewritten", "replaced", "removed", "truncated"])
def test_a_file_that_changed_is_named(disk: Disk, tmp_path: Path, change: str) -> None:
    source = open_bytes(disk, tmp_path, b"before", "file")
    path = tmp_path / "file"
    assert disk.changed() == []

    if change == "rewritten":
        path.write_bytes(b"longer than before")
    elif change == "replaced":
        (tmp_path / "new").write_bytes(b"before")
        (tmp_path / "new").replace(path)
    elif change == "removed":
        path.unlink()
    else:
        os.truncate(path, 3)

    assert disk.changed() == [source.name]


def test_a_file_that_was_replaced_is_not_opened_again(disk: Disk, tmp_path: Path) -> None:
    source = open_bytes(disk, tmp_path, b"before", "file")
    for i in range(POOL):
        open_bytes(disk, tmp_path, b"x", f"other-{i}")
    (tmp_path / "new").write_bytes(b"before")
    (tmp_path / "new").replace(tmp_path / "file")

    with pytest.raises(ChangedError, match="changed"):
        source.read(0, 6)


def test_a_file_cut_while_it_is_open_is_a_change_and_no_short_read(disk: Disk, tmp_path: Path) -> None:
    source = open_bytes(disk, tmp_path, b"before", "file")
    os.truncate(tmp_path / "file", 3)

    with pytest.raises(ChangedError):
        source.read(0, 6)


def test_what_is_no_file_and_no_folder_is_refused_without_waiting(disk: Disk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))

        for name, kind in (("fifo", "FIFO"), ("/dev/null", "device")):
            with pytest.raises(UnsupportedFormatError, match=kind):
                disk.open(tmp_path / name)
        with pytest.raises(CkptError):
            disk.open(tmp_path / "socket")


def test_a_missing_file_and_an_impossible_name_are_errors_of_the_tree(disk: Disk, tmp_path: Path) -> None:
    with pytest.raises(CkptError, match="no such file"):
        disk.open(tmp_path / "absent")
    with pytest.raises(CkptError, match="cannot be opened"):
        disk.open("nul\0inside")
    with pytest.raises(CkptError, match="cannot be opened"):
        disk.open(tmp_path / ("x" * 300))


def test_nothing_is_read_after_closing(tmp_path: Path) -> None:
    with Disk() as disk:
        source = open_bytes(disk, tmp_path, b"data")

    with pytest.raises(CkptError, match="was left"):
        source.read(0, 4)
    with pytest.raises(CkptError, match="was left"):
        open_bytes(disk, tmp_path, b"data", "other")


# ── folders ──


def test_a_folder_lists_its_names_sorted_and_none_of_our_leftovers(disk: Disk, tmp_path: Path) -> None:
    names = [
        "b",
        "a",
        ".a.ckptmigrate-0123abcd",
        "a.ckptmigrate-backup",
        "a.1.ckptmigrate-backup",
        "a.ckptmigrate.json",
    ]
    folder = tmp_path / "run"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"x")

    assert disk.open(folder).children() == ["a", "a.ckptmigrate.json", "b"]
    assert disk.open(folder).is_folder()
    assert disk.open(folder).size == 0
    assert disk.open(folder).child("a").read(0, 1) == b"x"


@pytest.mark.parametrize("name", ["", ".", "..", "../secret", "/etc/passwd", "a/b", "a\\b", "a\0b"])
def test_a_child_is_one_plain_name(disk: Disk, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "run").mkdir()

    with pytest.raises(CorruptError, match="plain name"):
        disk.open(tmp_path / "run").child(name)


def test_a_symlink_is_followed_within_its_folder_and_refused_out_of_it(disk: Disk, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "real").write_bytes(b"here")
    (tmp_path / "run-secret").write_bytes(b"there")
    (folder / "inside").symlink_to("real")
    (folder / "outside").symlink_to("../run-secret")

    assert disk.open(folder).child("inside").read(0, 4) == b"here"
    with pytest.raises(CorruptError, match="link out of its folder"):
        disk.open(folder).child("outside")


def test_a_folder_has_no_bytes_and_a_file_no_children(disk: Disk, tmp_path: Path, ten: Source) -> None:
    folder = disk.open(tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: folder.read(0, 1),
        lambda: folder.range(0, 1),
        lambda: folder.part(0, 1, "x"),
        lambda: folder.decoded("gzip", None, MiB),
    ]
    for call in calls:
        with pytest.raises(UnsupportedFormatError, match="folder"):
            call()
    assert ten.children() == []
    assert not ten.is_folder()
    with pytest.raises(CkptError):
        ten.child("x")


# ── decoded streams ──


DATA = content(3 * MiB)
PACKED = gzip.compress(DATA[:300_000], 1)


@pytest.fixture(params=["deflate", "gzip", "gzip of three members"])
def stream(request: pytest.FixtureRequest, disk: Disk, tmp_path: Path) -> Source:
    if request.param == "deflate":
        return open_bytes(disk, tmp_path, deflated(DATA)).decoded("deflate", len(DATA), GiB, zlib.crc32(DATA))
    cuts = [0, len(DATA)] if request.param == "gzip" else [0, 5, MiB, len(DATA)]
    encoded = b"".join(gzip.compress(DATA[a:b], 1) for a, b in pairwise(cuts))
    return open_bytes(disk, tmp_path, encoded).decoded("gzip", None, GiB)


def test_forward_reads_stream_and_touch_no_scratch(disk: Disk, stream: Source) -> None:
    step = 100_001
    found = [stream.read(offset, min(step, len(DATA) - offset)) for offset in range(0, len(DATA), step)]

    assert b"".join(found) == DATA
    assert scratch_size(disk) == 0


def test_sniffing_and_looking_back_a_little_touch_no_scratch(disk: Disk, stream: Source) -> None:
    assert stream.read(0, 8) == DATA[:8]
    assert stream.read(0, 64 * KiB) == DATA[: 64 * KiB]
    assert stream.read(0, 4) == DATA[:4]
    assert stream.read(MiB, MiB) == DATA[MiB : 2 * MiB]
    assert stream.read(2 * MiB - 100, 200) == DATA[2 * MiB - 100 : 2 * MiB + 100]
    assert scratch_size(disk) == 0


def test_a_backward_read_spills_once(disk: Disk, stream: Source) -> None:
    stream.read(2 * MiB, 10)

    assert stream.read(MiB, 10) == DATA[MiB : MiB + 10]
    assert len(DATA) <= scratch_size(disk) < len(DATA) + MiB
    assert stream.read(len(DATA) - 5, 5) == DATA[-5:]
    assert stream.read(70_000, MiB) == DATA[70_000 : 70_000 + MiB]
    assert scratch_size(disk) < len(DATA) + MiB


def test_a_range_of_a_stream_is_drawn_from_scratch(disk: Disk, stream: Source) -> None:
    drawn = stream.range(MiB, 1000)

    assert scratch_size(disk) == 0
    assert drawn.read(10, 100) == DATA[MiB + 10 : MiB + 110]
    descriptor, base = drawn.file.descriptor()
    assert os.pread(descriptor, 100, base + drawn.offset) == DATA[MiB : MiB + 100]
    assert drawn.file.size == len(DATA)


def test_the_size_of_a_stream_is_known_or_found(stream: Source) -> None:
    assert stream.size == len(DATA)
    with pytest.raises(TruncatedError):
        stream.range(len(DATA) - 1, 2)


def test_a_part_of_a_stream_streams_too(disk: Disk, stream: Source) -> None:
    part = stream.part(MiB, MiB, "member")

    assert part.read(0, 1000) == DATA[MiB : MiB + 1000]
    assert part.read(MiB - 1000, 1000) == DATA[2 * MiB - 1000 : 2 * MiB]
    assert scratch_size(disk) == 0
    with pytest.raises(TruncatedError):
        part.read(MiB - 1, 2)


def test_a_stream_of_unknown_size_gives_up_to_n(disk: Disk, tmp_path: Path) -> None:
    stream = open_bytes(disk, tmp_path, gzip.compress(b"short")).decoded("gzip", None, GiB)

    assert stream.read(0, 100) == b"short"
    assert stream.read(3, 100) == b"rt"
    assert stream.read(5, 100) == b""
    assert stream.read(99, 100) == b""
    assert stream.size == 5
    assert scratch_size(disk) == 0 or stream.read(0, 100) == b"short"


def test_a_range_past_the_end_of_a_stream_of_unknown_size_is_truncated(disk: Disk, tmp_path: Path) -> None:
    stream = open_bytes(disk, tmp_path, gzip.compress(DATA, 1)).decoded("gzip", None, GiB)

    assert stream.range(MiB, len(DATA) - MiB).nbytes == len(DATA) - MiB
    with pytest.raises(TruncatedError) as caught:
        stream.range(MiB, len(DATA))
    assert caught.value.data == {"needed": MiB + len(DATA), "present": len(DATA)}


def test_a_disk_that_keeps_decodes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    decode = inflate.Encoded.chunks

    def counted(encoded: inflate.Encoded) -> Iterator[bytes]:
        passes.append(1)
        return decode(encoded)

    monkeypatch.setattr(inflate.Encoded, "chunks", counted)
    with Disk(tmp_path, keep=True) as disk:
        stream = open_bytes(disk, tmp_path, gzip.compress(DATA, 1)).decoded("gzip", None, GiB)

        assert stream.read(MiB, 100) == DATA[MiB : MiB + 100]
        assert stream.read(2 * MiB, 100) == DATA[2 * MiB : 2 * MiB + 100]
        assert stream.range(0, len(DATA)).read(0, len(DATA)) == DATA
    assert len(passes) == 1


@pytest.mark.parametrize("claimed", [len(DATA) - 1, len(DATA) + 1])
def test_a_wrong_size_is_corrupt_and_both_numbers_are_named(disk: Disk, tmp_path: Path, claimed: int) -> None:
    stream = open_bytes(disk, tmp_path, deflated(DATA)).decoded("deflate", claimed, GiB)

    with pytest.raises(CorruptError, match=f"{claimed:,}"):
        stream.read(0, claimed)
    with pytest.raises(CorruptError, match=f"{claimed:,}"):
        stream.range(0, 10).read(0, 10)


def test_a_wrong_crc_is_corrupt_and_both_are_named(disk: Disk, tmp_path: Path) -> None:
    stream = open_bytes(disk, tmp_path, deflated(DATA)).decoded("deflate", len(DATA), GiB, 0x00C0FFEE)

    with pytest.raises(CorruptError, match="00c0ffee"):
        stream.read(0, len(DATA))
    with pytest.raises(CorruptError, match=f"{zlib.crc32(DATA):08x}"):
        stream.read(0, len(DATA))


def test_a_claim_beyond_the_limit_or_beyond_deflate_is_refused_at_once(disk: Disk, tmp_path: Path) -> None:
    source = open_bytes(disk, tmp_path, deflated(b"x"))

    with pytest.raises(LimitError) as caught:
        source.decoded("deflate", 2 * MiB, MiB)
    assert caught.value.data == {"limit": MiB, "claimed": 2 * MiB}
    with pytest.raises(LimitError, match="1032"):
        source.decoded("deflate", GiB, 64 * GiB)


def test_a_bomb_stops_at_the_limit_in_little_memory(disk: Disk, tmp_path: Path) -> None:
    machine = zlib.compressobj(1, zlib.DEFLATED, 31)
    bomb = b"".join([*(machine.compress(bytes(MiB)) for _ in range(128)), machine.flush()])
    stream = open_bytes(disk, tmp_path, bomb).decoded("gzip", None, 32 * MiB)

    tracemalloc.start()
    with pytest.raises(LimitError, match="33,554,432"):
        stream.range(0, 1).read(0, 1)
    with pytest.raises(LimitError):
        stream.read(100 * MiB, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 8 * MiB
    assert scratch_size(disk) <= 33 * MiB


def test_a_file_of_a_million_empty_members_is_refused(disk: Disk, tmp_path: Path) -> None:
    stream = open_bytes(disk, tmp_path, gzip.compress(b"") * 200_000).decoded("gzip", None, GiB)

    with pytest.raises(CorruptError, match="members"):
        stream.read(0, 1)


@given(cut=st.integers(0, 400), flipped=st.integers(0, 8 * 400 - 1))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("codec", ["deflate", "gzip"])
def test_a_damaged_stream_is_refused_or_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, codec: Codec, cut: int, flipped: int
) -> None:
    data = content(1000)
    encoded = deflated(data) if codec == "deflate" else gzip.compress(data, mtime=0)
    damaged = bytearray(encoded)
    damaged[flipped // 8 % len(encoded)] ^= 1 << flipped % 8
    for broken in (encoded[: min(cut, len(encoded) - 1)], bytes(damaged)):
        with Disk() as disk:
            source = open_bytes(disk, tmp_path_factory.getbasetemp(), broken)
            size, crc = (1000, zlib.crc32(data)) if codec == "deflate" else (None, None)
            try:
                found = source.decoded(codec, size, MiB, crc).read(0, 2000 if size is None else 1000)
            except (CorruptError, TruncatedError):
                continue
        assert found == (b"" if not broken else data)


def test_bytes_after_the_end_are_corrupt_and_zeros_after_gzip_are_not(disk: Disk, tmp_path: Path) -> None:
    after = open_bytes(disk, tmp_path, deflated(b"data") + b"x", "deflate").decoded("deflate", 4, MiB)
    garbage = open_bytes(disk, tmp_path, gzip.compress(b"data") + b"garbage", "garbage").decoded("gzip", None, MiB)
    zeros = open_bytes(disk, tmp_path, gzip.compress(b"data") + bytes(100_000), "zeros").decoded("gzip", None, MiB)

    for source in (after, garbage):
        with pytest.raises(CorruptError):
            source.read(0, 5) if source is garbage else source.read(0, 4)
    assert zeros.read(0, 100) == b"data"


@given(st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 200_000)), max_size=12), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_reads_in_any_order_give_what_gzip_gives(
    tmp_path_factory: pytest.TempPathFactory, reads: list[tuple[int, int]], known: bool, keep: bool
) -> None:
    data = DATA[:300_000]
    with Disk(keep=keep) as disk:
        source = open_bytes(disk, tmp_path_factory.getbasetemp(), PACKED, "reads")
        stream = source.decoded("gzip", len(data) if known else None, MiB)
        for offset, nbytes in reads:
            n = min(nbytes, len(data) - offset) if known else nbytes
            assert stream.read(offset, n) == data[offset : offset + n]


def test_a_stream_within_a_stream_decodes(disk: Disk, tmp_path: Path) -> None:
    outer = open_bytes(disk, tmp_path, gzip.compress(gzip.compress(DATA, 1), 1)).decoded("gzip", None, GiB)
    inner = outer.decoded("gzip", None, GiB)

    assert inner.read(0, 100) == DATA[:100]
    assert inner.range(MiB, 100).read(0, 100) == DATA[MiB : MiB + 100]


# ── scratch ──


def test_a_spilled_file_is_filled_once_on_first_read(disk: Disk) -> None:
    calls = []

    def fill(write: Callable[[memoryview | bytes], None]) -> None:
        calls.append(1)
        for i in range(1000):
            write(i.to_bytes(4, "little"))
        write(memoryview(b"\1\0\2\0").cast("H"))

    spilled = disk.spill("numbers", 4004, fill)
    assert spilled.size == 4004
    assert calls == []

    assert spilled.pread(4 * 500, 4) == (500).to_bytes(4, "little")
    assert spilled.pread(4000, 4) == b"\1\0\2\0"
    assert calls == [1]


@pytest.mark.parametrize("nbytes", [3, 5])
def test_a_spilled_file_of_another_length_is_corrupt(disk: Disk, nbytes: int) -> None:
    spilled = disk.spill("numbers", nbytes, lambda write: write(b"1234"))

    with pytest.raises(CorruptError, match=str(nbytes)):
        spilled.pread(0, 1)


def test_spilled_files_of_unknown_length_lie_side_by_side(disk: Disk) -> None:
    inner = disk.spill("inner", None, lambda write: write(b"inner" * 1000))

    def fill(write: Callable[[memoryview | bytes], None]) -> None:
        write(inner.pread(0, 5))
        write(b"outer" * 1000)

    outer = disk.spill("outer", None, fill)
    third = disk.spill("third", 3, lambda write: write(b"abc"))

    assert outer.size == 5005
    assert third.pread(0, 3) == b"abc"
    assert outer.pread(0, 10) == b"innerouter"
    assert inner.pread(4990, 10) == b"innerinner"
    with pytest.raises(TruncatedError):
        outer.pread(5000, 6)


def test_the_scratch_file_has_no_name(disk: Disk, tmp_path: Path) -> None:
    disk.spill("numbers", 4, lambda write: write(b"1234")).pread(0, 4)

    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_scratch_folder_that_is_not_there_is_said_when_it_is_needed(tmp_path: Path) -> None:
    with Disk(tmp_path / "absent") as disk, pytest.raises(CkptError, match="scratch") as caught:
        disk.spill("numbers", 4, lambda write: write(b"1234")).pread(0, 4)

    assert caught.value.hints
