"""What the tests of output draw: promises of a file's bytes in every way of drawing, and a disk that lies."""

from __future__ import annotations

import os
import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate.files import Disk, Member, Range, Source
from ckptmigrate.files.sink import Sink
from ckptmigrate.limits import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


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


@contextmanager
def open_data(folder: Path) -> Iterator[Source]:
    path = folder / "source" / "in.bin"
    path.parent.mkdir()
    path.write_bytes(DATA)
    with Disk() as disk:
        yield disk.open(path)


def make_target(folder: Path) -> Path:
    (folder / "out").mkdir()
    return folder / "out" / "out.bin"


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
