"""Decoded streams: exact, bounded, and unmoved by what they claim."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate.errors import (
    CorruptError,
    LimitError,
    TruncatedError,
)
from ckptmigrate.files import Disk, Source, inflate
from ckptmigrate.limits import GiB, KiB, MiB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptmigrate.files.inflate import Codec


from .places import DATA, content, deflated, open_bytes, scratch_size


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Disk(scratch) as disk:
        yield disk


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
