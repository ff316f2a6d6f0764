"""Output: the bytes that were promised, compared as they are written, and whole or absent under its name."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate.errors import ChangedError, CorruptError, ExistsError, OutputError, SpaceError, VerificationError
from ckptmigrate.files import Disk, Late, Member, Range, Source
from ckptmigrate.files.descriptors import POOL
from ckptmigrate.files.out import SMALL
from ckptmigrate.files.sink import Sink, free_space
from ckptmigrate.limits import KiB, MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ckptmigrate.files.out import Out


@dataclass(frozen=True)
class Bytes:
    """A promise of a range's bytes: as a plain range, or ``streamed`` in windows of so many elements."""

    range: Range
    itemsize: int = 1
    streamed: int | None = None

    @property
    def nbytes(self) -> int:
        return self.range.nbytes

    @property
    def window(self) -> int:
        return self.streamed or self.nbytes

    def sources(self) -> Iterator[Range]:
        yield self.range

    def plain(self) -> Range | None:
        return None if self.streamed else self.range

    def read(self, start: int, stop: int) -> memoryview:
        return memoryview(self.range.read(start * self.itemsize, (stop - start) * self.itemsize))


DATA = random.Random(1).randbytes(5 * MiB + 12_345)
KINDS = {
    "copied": (3, 4 * MiB, None),
    "small": (7, 1000, None),
    "streamed": (3, 3 * MiB, 700_001),
    "small, streamed": (5, 900, 100),
}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    path = tmp_path / "source" / "in.bin"
    path.parent.mkdir()
    path.write_bytes(DATA)
    with Disk() as disk:
        yield disk.open(path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "out.bin"


def promise(source: Source, kind: str, member: Member | None = None) -> Bytes:
    offset, nbytes, streamed = KINDS[kind]
    return Bytes(source.range(offset, nbytes, member), streamed=streamed)


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def convert(target: Path, *promises: Bytes) -> None:
    """Put the promises into one file and publish it."""
    with Sink(target, folder=False) as sink:
        out = sink.open()
        for each in promises:
            out.put(each)
        sink.publish()


def flip_after(monkeypatch: pytest.MonkeyPatch, call: str, at: int) -> None:
    """Make the disk lie: after ``call`` has written the byte at offset ``at``, that byte is another one."""
    real, pwrite = getattr(os, call), os.pwrite

    def lying(*args: Any) -> int:
        count = int(real(*args))
        descriptor, offset = (args[1], args[4]) if call == "copy_file_range" else (args[0], args[2])
        if offset <= at < offset + count:
            pwrite(descriptor, bytes([os.pread(descriptor, 1, at)[0] ^ 1]), at)
        return count

    monkeypatch.setattr(os, call, lying)


# ── what is written ──


@pytest.mark.parametrize("verify", [True, False])
def test_every_way_of_drawing_lays_exactly_the_promised_bytes(source: Source, target: Path, verify: bool) -> None:
    with Sink(target, folder=False, verify=verify) as sink:
        out = sink.open(crc=True)
        out.write(b"head")
        promises = [promise(source, kind) for kind in KINDS]
        for each in promises:
            out.pad(-(-out.tell() // 64) * 64)
            out.put(each)
        crcs = list(out.crcs)
        sink.publish()

    written = target.read_bytes()
    assert written[:4] == b"head"
    for each, crc in zip(promises, crcs, strict=True):
        ((offset, nbytes),) = out.laid[each]
        expected = each.range.read(0, each.nbytes)
        assert offset % 64 == 0
        assert written[offset : offset + nbytes] == expected
        assert crc == zlib.crc32(expected)


def test_a_promise_put_twice_is_noted_twice(source: Source, target: Path) -> None:
    with Sink(target, folder=False) as sink:
        out = sink.open()
        out.put(Bytes(source.range(0, 10)))
        out.put(Bytes(source.range(0, 10)))
        out.put(Bytes(source.range(0, 0)))

        assert out.laid == {Bytes(source.range(0, 10)): [(0, 10), (10, 10)], Bytes(source.range(0, 0)): [(20, 0)]}


Step = tuple[str, int, int]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["write", "pad", "plain", "stream", "late"]), st.integers(0, MiB), st.integers(0, 2 * MiB)
        ),
        max_size=15,
    ),
    verify=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_pieces_equals_their_concatenation(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], verify: bool
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "in").write_bytes(DATA)
    expected = bytearray()
    crcs: list[int] = []
    lates: list[tuple[int, int]] = []
    with Disk() as disk, Sink(folder / "out", folder=False, verify=verify) as sink:
        source, out = disk.open(folder / "in"), sink.open(crc=True)
        for kind, offset, nbytes in steps:
            data = DATA[offset : offset + nbytes]
            if kind == "write":
                out.write(data)
                expected += data
            elif kind == "pad":
                out.pad(out.tell() + nbytes // 64)
                expected += bytes(nbytes // 64)
            elif kind == "late":
                lates.append((len(expected), len(crcs)))
                out.late(
                    Late(
                        8,
                        lambda seen: (
                            len(seen).to_bytes(4, "little") + (seen[-1] if len(seen) else 0).to_bytes(4, "little")
                        ),
                    )
                )
                expected += bytes(8)
            else:
                out.put(Bytes(source.range(offset, len(data)), streamed=50_000 if kind == "stream" else None))
                expected += data
                crcs.append(zlib.crc32(data))
            assert out.tell() == len(expected)
        for at, seen in lates:
            expected[at : at + 8] = seen.to_bytes(4, "little") + (crcs[seen - 1] if seen else 0).to_bytes(4, "little")
        sink.publish()

    assert (folder / "out").read_bytes() == bytes(expected)


def test_late_bytes_see_the_crcs_of_what_came_before_them_only(source: Source, target: Path) -> None:
    seen: list[list[int]] = []

    def make(crcs: Sequence[int]) -> bytes:
        seen.append([*crcs, *crcs[1:], len(crcs)])
        return b"late"

    with Sink(target, folder=False) as sink:
        out = sink.open(crc=True)
        out.late(Late(4, make))
        out.put(promise(source, "copied"))
        out.put(promise(source, "small"))
        out.late(Late(4, make))
        out.put(promise(source, "streamed"))
        sink.publish()

    first, second = zlib.crc32(DATA[3 : 3 + 4 * MiB]), zlib.crc32(DATA[7:1007])
    assert seen == [[0], [first, second, second, 2]]
    assert target.read_bytes()[:4] == b"late"


def test_late_bytes_of_another_length_are_refused(target: Path) -> None:
    with Sink(target, folder=False) as sink:
        sink.open(crc=True).late(Late(4, lambda _: b"12345"))

        with pytest.raises(OutputError, match=r"4 bytes .* for 5"):
            sink.publish()


def test_crcs_are_there_only_for_who_asked(source: Source, target: Path) -> None:
    with Sink(target, folder=False) as sink:
        out = sink.open()
        out.put(promise(source, "small"))

        with pytest.raises(ValueError, match="crc=True"):
            _ = out.crcs


def test_padding_backwards_is_refused(target: Path) -> None:
    with Sink(target, folder=False) as sink:
        out = sink.open()
        out.write(b"12345")

        with pytest.raises(OutputError, match="1 bytes too many"):
            out.pad(4)


@pytest.mark.parametrize(("elements", "given"), [(100, 3), (100, 500)])
def test_a_promise_that_gives_another_length_is_refused(
    source: Source, target: Path, elements: int, given: int
) -> None:
    class Wrong(Bytes):
        def read(self, start: int, stop: int) -> memoryview:
            return memoryview(bytes(given))

    with Sink(target, folder=False) as sink, pytest.raises(OutputError, match=f"gave {given}"):
        sink.open().put(Wrong(source.range(0, elements * 4), itemsize=4, streamed=elements))


def test_thousands_of_small_promises_are_written_together(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    pwrite = os.pwrite

    def counted(descriptor: int, data: bytes, offset: int) -> int:
        calls.append(len(data))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", counted)
    with Sink(target, folder=False) as sink:
        out = sink.open(crc=True)
        for i in range(5000):
            out.put(Bytes(source.range(i * 1000, 1000)))
        crcs = out.crcs
        sink.publish()

    assert target.read_bytes() == DATA[:5_000_000]
    assert crcs == [zlib.crc32(DATA[i * 1000 : i * 1000 + 1000]) for i in range(5000)]
    assert len(calls) < 8


def test_memory_stays_constant_whatever_passes_through(source: Source, target: Path) -> None:
    with Sink(target, folder=False) as sink:
        out = sink.open(crc=True)
        tracemalloc.start()
        for _ in range(8):
            out.put(promise(source, "streamed"))
            out.put(promise(source, "copied"))
            out.write(bytes(MiB))
        sink.finish()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    assert peak < 8 * MiB


def test_plain_ranges_never_enter_the_process_unverified(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> int:
        raise AssertionError("bytes entered the process")

    source.read(0, 1)
    with Sink(target, folder=False, verify=False) as sink:
        out = sink.open()
        for call in ("preadv", "pread", "pwrite"):
            monkeypatch.setattr(os, call, forbidden)
        out.put(promise(source, "copied"))
        monkeypatch.undo()
        sink.publish()

    assert target.read_bytes() == DATA[3 : 3 + 4 * MiB]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, None])
@pytest.mark.parametrize("after", [0, 2])
def test_where_the_kernel_cannot_copy_the_bytes_are_read_and_written(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, after: int
) -> None:
    copy: Any = os.copy_file_range
    calls = []

    def unable(*args: Any) -> int:
        calls.append(1)
        if len(calls) <= after:
            return int(copy(*args[:2], 1000, *args[3:]))
        if code is None:
            return 0
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "copy_file_range", unable)
    with Sink(target, folder=False) as sink:
        out = sink.open(crc=True)
        out.put(promise(source, "copied"))
        out.put(promise(source, "copied"))
        crcs = list(out.crcs)
        sink.publish()

    assert target.read_bytes() == 2 * DATA[3 : 3 + 4 * MiB]
    assert crcs == [zlib.crc32(DATA[3 : 3 + 4 * MiB])] * 2
    assert len(calls) == after + 1


def test_without_copy_file_range_everything_works(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    monkeypatch.delattr(os, "posix_fadvise")
    with Sink(target, folder=False) as sink:
        sink.open().put(promise(source, "copied"))
        sink.publish()

    assert target.read_bytes() == DATA[3 : 3 + 4 * MiB]


def test_more_sources_than_the_pool_holds_are_copied_and_compared(tmp_path: Path, target: Path) -> None:
    count = POOL + 20
    for i in range(count):
        (tmp_path / f"shard-{i}").write_bytes(bytes([i]) * (SMALL + i))
    with Disk() as disk, Sink(target, folder=False) as sink:
        out = sink.open()
        for _ in range(2):
            for i in range(count):
                shard = disk.open(tmp_path / f"shard-{i}")
                out.put(Bytes(shard.range(0, shard.size)))
        sink.publish()

    assert target.read_bytes() == 2 * b"".join(bytes([i]) * (SMALL + i) for i in range(count))


def test_spilled_bytes_are_copied_from_scratch(target: Path) -> None:
    with Disk() as disk, Sink(target, folder=False) as sink:
        disk.spill("before", 100, lambda write: write(bytes(100))).pread(0, 1)
        spilled = disk.spill("numbers", len(DATA), lambda write: write(DATA))
        sink.open().put(Bytes(Range(spilled, 5, 2 * MiB)))
        sink.publish()

    assert target.read_bytes() == DATA[5 : 5 + 2 * MiB]


# ── sabotage ──


@pytest.mark.parametrize(
    ("kind", "call"),
    [("copied", "copy_file_range"), ("small", "pwrite"), ("streamed", "pwrite"), ("small, streamed", "pwrite")],
)
def test_a_byte_flipped_between_draw_and_read_back_is_caught(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch, kind: str, call: str
) -> None:
    at = KINDS[kind][1] - 100
    flip_after(monkeypatch, call, at)
    with pytest.raises(VerificationError) as caught:
        convert(target, promise(source, kind), promise(source, "small"))

    assert caught.value.path == str(target)
    assert caught.value.data["offset"] <= at < caught.value.data["offset"] + caught.value.data["nbytes"]
    assert listing(target.parent) == []


@pytest.mark.parametrize("at", [3, 12])
def test_a_byte_flipped_in_written_and_in_late_bytes_is_caught(
    target: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    flip_after(monkeypatch, "pwrite", at)
    with Sink(target, folder=False) as sink:
        out = sink.open(crc=True)
        out.write(b"0123456789")
        out.late(Late(4, lambda _: b"late"))

        with pytest.raises(VerificationError):
            sink.publish()


def test_a_failure_is_told_by_the_next_put_and_not_only_at_the_end(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endlessly(out: Out) -> None:
        while True:
            out.put(promise(source, "copied"))

    flip_after(monkeypatch, "copy_file_range", 5)
    with Sink(target, folder=False) as sink, pytest.raises(VerificationError):
        endlessly(sink.open())


def test_without_verification_nobody_reads_back(source: Source, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip_after(monkeypatch, "copy_file_range", 5)
    with Sink(target, folder=False, verify=False) as sink:
        sink.open().put(promise(source, "copied"))
        sink.publish()

    assert target.read_bytes() != DATA[3 : 3 + 4 * MiB]


def test_a_source_cut_before_it_is_copied_fails(source: Source, target: Path) -> None:
    source.read(0, 1)
    os.truncate(source.name, 2 * MiB)

    with pytest.raises((ChangedError, VerificationError)):
        convert(target, promise(source, "copied"))
    assert listing(target.parent) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_changed_during_the_run_is_named(tmp_path: Path, target: Path, kind: str) -> None:
    path = tmp_path / "changing"
    path.write_bytes(DATA)
    with Disk() as disk, Sink(target, folder=False) as sink:
        sink.open().put(promise(disk.open(path), kind))
        assert disk.changed() == []
        path.write_bytes(DATA[::-1])

        assert disk.changed() == [str(path)]


# ── CRCs of the sources ──


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", [True, False])
def test_a_member_that_is_not_what_its_container_says_is_corrupt(
    source: Source, target: Path, kind: str, whole: bool
) -> None:
    offset, nbytes, _ = KINDS[kind]
    offset, nbytes = (offset, nbytes) if whole else (offset - 1, nbytes + 10)
    crc = zlib.crc32(DATA[offset : offset + nbytes])
    member = Member("data/7", offset, nbytes, crc ^ 1)
    with pytest.raises(CorruptError) as caught:
        convert(target, promise(source, kind, member))

    assert caught.value.path == source.name
    assert caught.value.data["member"] == member
    assert f"{crc:08x}" in caught.value.message
    assert f"{crc ^ 1:08x}" in caught.value.message
    assert "data/7" in caught.value.message
    assert listing(target.parent) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_crc_a_crc_of_zero_and_an_unverified_run_pass(source: Source, target: Path, kind: str) -> None:
    offset, nbytes, _ = KINDS[kind]
    right = Member("right", offset, nbytes, zlib.crc32(DATA[offset : offset + nbytes]))
    zero, wrong = Member("zero", offset, nbytes, 0), Member("wrong", offset, nbytes, right.crc ^ 1 if right.crc else 1)
    for member, verify in ((right, True), (zero, True), (wrong, False)):
        with Sink(target, folder=False, verify=verify, force=True) as sink:
            sink.open().put(promise(source, kind, member))
            sink.publish()


def test_a_member_is_read_once_for_its_crc_however_often_it_is_drawn(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member("all", 0, source.size, zlib.crc32(DATA))
    reads = []
    file = type(source.range(0, 1).file)
    pread_into = file.pread_into

    def counted(self: Any, offset: int, buffer: memoryview) -> None:
        reads.append(len(buffer))
        pread_into(self, offset, buffer)

    monkeypatch.setattr(file, "pread_into", counted)
    with Sink(target, folder=False) as sink:
        out = sink.open()
        for i in range(50):
            out.put(Bytes(source.range(i * 1000, 1000, member)))
        sink.publish()

    assert sum(reads) == len(DATA) + 50_000


# ── publishing ──


def put(sink: Sink, source: Source, *names: str) -> list[Out]:
    outs = [sink.open(name) for name in names]
    for i, out in enumerate(outs):
        out.put(Bytes(source.range(i, 1000)))
    return outs


def test_leaving_without_publishing_leaves_nothing(source: Source, target: Path) -> None:
    for folder in (False, True):
        with Sink(target, folder=folder) as sink:
            put(sink, source, "a")
            sink.finish()
            assert sink.path.exists()
        assert list(target.parent.iterdir()) == []


def test_an_error_on_the_way_leaves_nothing(source: Source, target: Path) -> None:
    def interrupted() -> None:
        with Sink(target, folder=False) as sink:
            put(sink, source, "")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(target.parent.iterdir()) == []


def test_the_scratch_lies_beside_the_target_hidden_and_is_in_no_listing(source: Source, target: Path) -> None:
    with Sink(target, folder=False) as sink, Disk() as disk:
        put(sink, source, "")
        sink.finish()

        assert sink.path.parent == target.parent
        assert sink.path.name.startswith(".out.bin.ckptmigrate-")
        assert disk.open(target.parent).children() == []
        assert disk.open(sink.path).read(0, 1000) == DATA[:1000]


def test_a_name_as_long_as_names_may_be_still_works(source: Source, tmp_path: Path) -> None:
    target = tmp_path / ("x" * 255)
    with Sink(target, folder=False) as sink:
        put(sink, source, "")
        sink.publish()

    assert target.read_bytes() == DATA[:1000]


@pytest.mark.parametrize("folder", [True, False])
def test_what_exists_is_refused_before_any_work(source: Source, target: Path, folder: bool) -> None:
    target.mkdir() if folder else target.write_bytes(b"old")

    with pytest.raises(ExistsError) as caught:
        Sink(target, folder=folder)
    assert "--force" in caught.value.hints[0]
    assert len(list(target.parent.iterdir())) == 1


@pytest.mark.parametrize("folder", [True, False])
def test_what_appears_meanwhile_is_not_overwritten(source: Source, target: Path, folder: bool) -> None:
    with Sink(target, folder=folder) as sink:
        put(sink, source, "a")
        theirs = target / "theirs" if folder else target
        theirs.parent.mkdir(exist_ok=True)
        theirs.write_bytes(b"theirs")

        with pytest.raises(ExistsError):
            sink.publish()

    assert theirs.read_bytes() == b"theirs"
    assert len(listing(target.parent)) == 1


def test_a_file_that_appears_in_the_very_moment_is_not_overwritten(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sink(target, folder=False) as sink:
        put(sink, source, "")
        check = sink._check_target

        def then_appear() -> None:
            check()
            target.write_bytes(b"theirs")

        monkeypatch.setattr(sink, "_check_target", then_appear)
        with pytest.raises(ExistsError, match="meanwhile"):
            sink.publish()

    assert target.read_bytes() == b"theirs"
    assert listing(target.parent) == ["out.bin"]


def test_a_file_and_a_folder_do_not_replace_each_other(target: Path) -> None:
    target.mkdir()
    with pytest.raises(ExistsError, match="no file"):
        Sink(target, folder=False, force=True)
    target.rmdir()
    target.write_bytes(b"old")
    with pytest.raises(ExistsError, match="no folder"):
        Sink(target, folder=True, force=True)


@pytest.mark.parametrize("dangling", [True, False])
def test_a_symlink_is_never_replaced(target: Path, dangling: bool) -> None:
    if not dangling:
        (target.parent / "real").write_bytes(b"real")
    target.symlink_to("real")

    with pytest.raises(OutputError, match="symlink") as caught:
        Sink(target, folder=False, force=True)
    assert str(target.parent / "real") in caught.value.hints[0]


def test_a_missing_parent_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist") as caught:
        Sink(tmp_path / "a" / "b", folder=False)
    assert f"mkdir -p {tmp_path / 'a'}" in caught.value.hints[0]


def test_force_replaces_a_file_and_keeps_its_mode(source: Source, target: Path) -> None:
    target.write_bytes(b"old")
    target.chmod(0o640)
    with Sink(target, folder=False, force=True) as sink:
        put(sink, source, "")
        assert target.read_bytes() == b"old"
        assert sink.publish() is None

    assert target.read_bytes() == DATA[:1000]
    assert target.stat().st_mode & 0o777 == 0o640
    assert listing(target.parent) == ["out.bin"]


def test_a_new_file_has_the_mode_that_the_umask_gives(source: Source, target: Path) -> None:
    old = os.umask(0o027)
    try:
        with Sink(target, folder=False) as sink:
            put(sink, source, "")
            sink.publish()
    finally:
        os.umask(old)

    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("links", [True, False])
def test_backups_are_numbered_and_never_overwritten(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def unable(*_: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", unable)
    kept = []
    for i in range(3):
        target.write_bytes(b"old %d" % i)
        with Sink(target, folder=False, force=True) as sink:
            put(sink, source, "")
            kept.append(sink.publish(backup=True))

    assert [path and path.name for path in kept] == [f"out.bin{n}.ckptmigrate-backup" for n in ("", ".1", ".2")]
    assert [path and path.read_bytes() for path in kept] == [b"old 0", b"old 1", b"old 2"]
    assert target.read_bytes() == DATA[:1000]


def test_a_file_system_without_links_still_gets_the_file(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(os, "link", unable)
    with Sink(target, folder=False) as sink:
        put(sink, source, "")
        sink.publish()

    assert listing(target.parent) == ["out.bin"]


def test_a_new_folder_appears_whole(source: Source, target: Path) -> None:
    with Sink(target, folder=True) as sink:
        put(sink, source, "model", "checkpoint/optim", "state.json")
        assert set(sink.outs) == {"model", "checkpoint/optim", "state.json"}
        assert not target.exists()
        sink.publish(last="state.json")

    assert listing(target.parent) == ["out.bin/checkpoint/optim", "out.bin/model", "out.bin/state.json"]


@pytest.mark.parametrize("backup", [True, False])
def test_into_a_folder_that_is_there_files_go_and_others_stay(source: Source, target: Path, backup: bool) -> None:
    target.mkdir()
    for name in ("model", "state.json", "theirs"):
        (target / name).write_bytes(b"old")
    with Sink(target, folder=True, force=True) as sink:
        put(sink, source, "state.json", "model", "checkpoint/optim")
        sink.publish(last="state.json", backup=backup)

    extra = ["model.ckptmigrate-backup", "state.json.ckptmigrate-backup"] if backup else []
    assert listing(target) == sorted(["checkpoint/optim", "model", "state.json", "theirs", *extra])
    assert (target / "model").read_bytes() == DATA[1:1001]
    assert (target / "theirs").read_bytes() == b"old"
    assert all((target / name).read_bytes() == b"old" for name in extra)
    assert [path.name for path in target.parent.iterdir()] == ["out.bin"]


@pytest.mark.parametrize("name", ["", "..", "../x", "/x", "a//b", "a/../b", "a\0b"])
def test_a_file_within_a_folder_has_a_plain_name(target: Path, name: str) -> None:
    with Sink(target, folder=True) as sink, pytest.raises(OutputError, match="no name"):
        sink.open(name)


def test_one_file_is_opened_once(target: Path) -> None:
    with Sink(target, folder=False) as sink:
        sink.open("a")
        with pytest.raises(OutputError, match="twice"):
            sink.open("b")


@pytest.mark.parametrize(("call", "kind"), [("copy_file_range", "copied"), ("pwrite", "small"), ("fsync", "small")])
def test_a_full_disk_is_said_and_leaves_nothing(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch, call: str, kind: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(SpaceError) as caught:
        convert(target, promise(source, kind))

    assert caught.value.path == str(target)
    assert listing(target.parent) == []


def test_free_space_is_that_of_the_nearest_folder(tmp_path: Path) -> None:
    assert free_space(tmp_path / "not" / "there" / "yet") > 0
    assert abs(free_space(tmp_path) - os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize) < 4096 * MiB


# ── death at every file event ──

CRASH = """
import itertools, json, os, shutil, sys
from pathlib import Path
from ckptmigrate.files import Disk, Range
from ckptmigrate.files.sink import Sink

class Whole:
    itemsize = 1
    def __init__(self, range, streamed): self.range, self.streamed, self.nbytes, self.window = range, streamed, range.nbytes, 1 << 16
    def sources(self): yield self.range
    def plain(self): return None if self.streamed else self.range
    def read(self, start, stop): return memoryview(self.range.read(start, stop - start))

EVENTS = ["open", "copy_file_range", "pwrite", "fsync", "link", "rename", "replace", "unlink", "mkdir", "rmdir", "chmod", "close"]
base, folder, existing, backup = Path(sys.argv[1]), *(value == "1" for value in sys.argv[2:])
names = ["model", "optim", "state.json"] if folder else [""]
place = base / "run"

def convert():
    with Disk() as disk, Sink(place / "out", folder=folder, force=existing) as sink:
        for name in names:
            source = disk.open(base / "in")
            out = sink.open(name, crc=True)
            out.write(b"new ")
            out.put(Whole(source.range(0, source.size), streamed=False))
            out.put(Whole(source.range(0, source.size), streamed=True))
        sink.publish(last="state.json" if folder else None, backup=backup)

def die_at(count, seen):
    def armed(name, real):
        def call(*args, **options):
            count[0] -= 1
            if count[0] < 0:
                os.write(seen, name.encode())
                os._exit(9)
            return real(*args, **options)
        return call
    for name in EVENTS:
        setattr(os, name, armed(name, getattr(os, name)))

results = []
for number in itertools.count():
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if existing:
        for name in names:
            path = place / "out" / name if folder else place / "out"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"old")
    reading, seen = os.pipe()
    child = os.fork()
    if not child:
        die_at([number], seen)
        convert()
        os._exit(0)
    os.close(seen)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    event = os.read(reading, 100).decode()
    os.close(reading)
    files = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    whole = b"new " + 2 * (base / "in").read_bytes()
    say = lambda data: "old" if data == b"old" else "new" if data == whole else "torn"
    results.append([status, event, {name: say(data) for name, data in files.items()}])
    if status != 9:
        break
print(json.dumps(results))
"""


def deaths(tmp_path: Path, *, folder: bool, existing: bool, backup: bool) -> list[dict[str, str]]:
    """What stands after dying at each file event: name -> "old", "new" (whole) or "torn"; leftovers are taken out."""
    data = DATA[: SMALL + 10 * KiB]
    (tmp_path / "in").write_bytes(data)
    flags = [str(int(flag)) for flag in (folder, existing, backup)]
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path), *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "in").read_bytes() == data
    results = json.loads(done.stdout)
    assert results[-1][0] == 0
    assert len(results) > 12
    assert {"fsync", "copy_file_range", "pwrite"} <= {event for _, event, _ in results}
    return [
        {name: what for name, what in files.items() if not name.startswith(".out.ckptmigrate-")}
        for _, _, files in results
    ]


def test_death_at_any_event_leaves_no_new_file_or_the_whole(tmp_path: Path) -> None:
    states = deaths(tmp_path, folder=False, existing=False, backup=False)

    assert all(state in ({}, {"out": "new"}) for state in states)
    assert states[-1] == {"out": "new"}


def test_death_at_any_event_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    states = deaths(tmp_path, folder=False, existing=True, backup=False)

    assert all(state in ({"out": "old"}, {"out": "new"}) for state in states)
    assert states[-1] == {"out": "new"}


def test_death_at_any_event_in_place_leaves_the_old_file_under_one_of_its_names(tmp_path: Path) -> None:
    states = deaths(tmp_path, folder=False, existing=True, backup=True)
    kept = {"out.ckptmigrate-backup": "old"}

    assert all(state in ({"out": "old"}, {"out": "old", **kept}, {"out": "new", **kept}) for state in states)
    assert states[-1] == {"out": "new", **kept}


def test_death_at_any_event_leaves_no_new_folder_or_the_whole(tmp_path: Path) -> None:
    states = deaths(tmp_path, folder=True, existing=False, backup=False)
    whole = {f"out/{name}": "new" for name in ("model", "optim", "state.json")}

    assert all(state in ({}, whole) for state in states)
    assert states[-1] == whole


@pytest.mark.parametrize("backup", [True, False])
def test_death_between_the_renames_of_a_set_never_leaves_a_mixture_that_looks_whole(
    tmp_path: Path, backup: bool
) -> None:
    states = deaths(tmp_path, folder=True, existing=True, backup=backup)
    names = [f"out/{name}" for name in ("model", "optim", "state.json")]

    for state in states:
        assert "torn" not in state.values()
        if "out/state.json" in state:
            assert len({state.get(name) for name in names}) == 1
        if backup:
            assert all("old" in (state.get(name), state.get(f"{name}.ckptmigrate-backup")) for name in names)
    assert all(states[-1][name] == "new" for name in names)
    assert any("out/state.json" not in state for state in states)
