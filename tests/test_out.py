"""One output file: the bytes that were promised, in constant memory, copied in the kernel where that can be."""

from __future__ import annotations

import errno
import os
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate.errors import OutputError
from ckptmigrate.files import Disk, Late, Range, Source
from ckptmigrate.files.descriptors import POOL
from ckptmigrate.files.out import SMALL
from ckptmigrate.files.sink import Sink
from ckptmigrate.limits import MiB

from .draws import DATA, KINDS, Bytes, make_target, open_data, promise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    with open_data(tmp_path) as source:
        yield source


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_target(tmp_path)


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
    assert len(calls) <= 20  # of 256 KiB


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
