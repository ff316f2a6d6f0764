"""Sources and ranges of files and folders: exact, bounded, and named when they change."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ckptmigrate.errors import (
    ChangedError,
    CkptError,
    CorruptError,
    TruncatedError,
    UnsupportedFormatError,
)
from ckptmigrate.files import Disk, Member, Source
from ckptmigrate.files.descriptors import POOL
from ckptmigrate.limits import MiB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


from .places import open_bytes


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

    assert disk.open(folder).children() == ["a", "b"]
    assert disk.open(folder).is_folder()
    assert disk.open(folder).size == 0
    assert disk.open(folder).child("a").read(0, 1) == b"x"


@pytest.mark.parametrize("name", ["", ".", "..", "../secret", "/etc/passwd", "a/b", "a\\b", "a\0b"])
def test_a_child_is_one_plain_name(disk: Disk, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "run").mkdir()

    with pytest.raises(CorruptError, match="plain name"):
        disk.open(tmp_path / "run").child(name)


def test_a_link_to_a_file_is_followed_wherever_it_leads(disk: Disk, tmp_path: Path) -> None:
    """Model hubs keep a snapshot as links to a store of blobs beside it."""
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "0a1b", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "d1e2").write_bytes(b"there")
    (snapshot / "real").write_bytes(b"here")
    (snapshot / "model.safetensors").symlink_to("../../blobs/d1e2")
    (snapshot / "inside").symlink_to("real")

    folder = disk.open(snapshot)

    assert folder.child("inside").read(0, 4) == b"here"
    assert folder.child("model.safetensors").read(0, 5) == b"there"
    assert folder.children() == ["inside", "model.safetensors", "real"]
    assert disk.changed() == []
    (blobs / "d1e2").write_bytes(b"other")
    os.utime(blobs / "d1e2", ns=(1, 1))
    assert disk.changed() == [str(snapshot / "model.safetensors")]


def test_a_link_to_a_folder_is_followed_within_its_folder_only(disk: Disk, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "step-3").mkdir(parents=True)
    (run / "step-3" / "x").write_bytes(b"here")
    (tmp_path / "run-other").mkdir()
    for name, target in (("last", "step-3"), ("self", "."), ("up", ".."), ("beside", "../run-other"), ("root", "/")):
        (run / name).symlink_to(target)

    assert disk.open(run).child("last").child("x").read(0, 4) == b"here"
    for name in ("self", "up", "beside", "root"):
        with pytest.raises(CorruptError, match="a link to the folder"):
            disk.open(run).child(name)


def test_a_link_that_leads_nowhere_or_round_is_an_error_of_the_tree(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to("absent")
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    (tmp_path / "device").symlink_to("/dev/zero")

    for name, message in (("nowhere", "no such file"), ("one", "cannot be opened"), ("device", "device")):
        with pytest.raises(CkptError, match=message):
            disk.open(tmp_path).child(name)


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
