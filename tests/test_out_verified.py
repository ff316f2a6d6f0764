"""Verification: what was written is compared as it is written, and the checksums of the sources with their bytes."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from ckptmigrate.dtypes import I32, U8
from ckptmigrate.errors import ChangedError, CorruptError, VerificationError
from ckptmigrate.files import Disk, Late, Member, Source
from ckptmigrate.files.sink import Sink
from ckptmigrate.limits import MiB
from ckptmigrate.tensor import View, cast, joined, negate
from ckptmigrate.tensor import view as view_module

from .draws import DATA, KINDS, Bytes, convert, flip_after, listing, make_target, open_data, promise

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptmigrate.files.out import Out
    from ckptmigrate.tensor.promise import Promise


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    with open_data(tmp_path) as source:
        yield source


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_target(tmp_path)


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


@pytest.mark.parametrize(("kind", "call"), [("copied", "copy_file_range"), ("streamed", "pwrite")])
def test_a_failure_is_told_by_the_next_put_and_not_only_at_the_end(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch, kind: str, call: str
) -> None:
    def endlessly(out: Out) -> None:
        while True:
            out.put(promise(source, kind))

    flip_after(monkeypatch, call, 5)
    with Sink(target, folder=False) as sink, pytest.raises(VerificationError):
        endlessly(sink.open())


def test_without_verification_nobody_reads_back(source: Source, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip_after(monkeypatch, "copy_file_range", 5)
    with Sink(target, folder=False, verify=False) as sink:
        sink.open().put(promise(source, "copied"))
        sink.publish()

    assert target.read_bytes() != DATA[3 : 3 + 4 * MiB]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unverified_output_still_bears_the_crcs_of_what_was_drawn(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whoever reads the file can find the byte that the disk changed."""
    offset, nbytes, _ = KINDS[kind]
    for call in ("copy_file_range", "pwrite"):
        flip_after(monkeypatch, call, 5)
    with Sink(target, folder=False, verify=False) as sink:
        out = sink.open(crc=True)
        out.put(promise(source, kind))
        crcs = list(out.crcs)
        sink.publish()

    assert crcs == [zlib.crc32(DATA[offset : offset + nbytes])]
    assert zlib.crc32(target.read_bytes()) != crcs[0]


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


def looks(source: Source, member: Member) -> dict[str, Promise]:
    """Promises that reach the bytes of a member through scratch, in blocks, or by a rule."""
    rows = View.rows(source.range(0, 5 * MiB, member), U8, (MiB, 5))
    turned = rows.transpose((1, 0))
    return {
        "turned": turned,
        "flat": turned.reshape((5 * MiB,)),
        "joined": joined([turned, turned.slice(1, 0, 100)], 1).reshape((5 * MiB + 500,)),
        "cast": cast(turned, I32).reshape((MiB, 5)),
        "negated": negate(turned.reshape((MiB, 5))),
    }


@pytest.mark.parametrize("name", ["turned", "flat", "joined", "cast", "negated"])
@pytest.mark.parametrize("drawn_before", [True, False])
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_member_drawn_through_scratch_is_checked_too(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch, name: str, drawn_before: bool, wrong: int
) -> None:
    monkeypatch.setattr(view_module, "WINDOWS", (MiB,))
    monkeypatch.setattr(view_module, "STAGE", 0.0)
    member = Member("data/7", 0, 5 * MiB, zlib.crc32(DATA[: 5 * MiB]) ^ wrong)
    promise = looks(source, member)[name]
    assert sum(r.file.awaited for r in promise.sources()) >= 5 * MiB
    if drawn_before:
        promise.read(0, 10)
    with Sink(target, folder=False) as sink:
        out = sink.open()
        if wrong:
            with pytest.raises(CorruptError, match="data/7"):
                out.put(promise)
        else:
            out.put(promise)
