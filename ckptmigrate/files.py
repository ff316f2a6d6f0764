"""The only door to the disk: sources, byte ranges, in-kernel copies, scratch, publish.

    Disk ── open(path) ──► Source ── range(offset, n) ──► Range ── (a promise) ──► Out.put ──► Sink.publish
                           │ part, child, decoded          │ file: File
                           └ read(offset, n)               └ member: the container member it lies in, with its CRC
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

Codec = Literal["deflate", "gzip"]


class File(ABC):
    """Something that holds bytes at offsets; equal only to itself, so that two Ranges are equal when they are one place."""

    name: str

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes in all; for a decoded stream of unknown size this decodes it."""

    @abstractmethod
    def pread_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset``; TruncatedError names the file, what was needed and what is there."""

    @abstractmethod
    def descriptor(self) -> tuple[int, int]:
        """Give an open descriptor that holds the bytes, and the offset in it at which this file's byte 0 lies."""

    def pread(self, offset: int, nbytes: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Member:
    """A container's member: where its stored bytes lie, and what the container says of them."""

    name: str
    offset: int
    nbytes: int
    crc: int | None = None  # None: the container gives none (CRC 0 is none)


@dataclass(frozen=True, slots=True)
class Range:
    """A run of bytes in a file. ``member`` is where it lies in its container and no part of equality."""

    file: File
    offset: int
    nbytes: int
    member: Member | None = field(default=None, compare=False)

    def part(self, offset: int, nbytes: int) -> Range: ...  # checked to lie inside

    def read(self, offset: int, nbytes: int) -> bytes: ...


class Source(ABC):
    """Where a reader gets its bytes: a local file, a folder, a part of one, a decoded stream."""

    name: str  # what messages call it: the path, "path!member" for a part
    size: int  # bytes; 0 for a folder

    @property
    @abstractmethod
    def identity(self) -> tuple[object, ...]:
        """What changes when the bytes do: device, inode, size, mtime of a local file."""

    @abstractmethod
    def read(self, offset: int, nbytes: int) -> bytes:
        """Give exactly ``nbytes`` bytes or raise TruncatedError (a decoded stream of unknown size gives up to n)."""

    @abstractmethod
    def range(self, offset: int, nbytes: int, member: Member | None = None) -> Range: ...

    def part(self, offset: int, nbytes: int, name: str, member: Member | None = None) -> Source: ...

    def children(self) -> list[str]: ...  # names in a folder, sorted; [] for a file

    def child(self, name: str) -> Source: ...  # one path component: no separator, no "..", no absolute path

    def is_folder(self) -> bool: ...

    def decoded(self, codec: Codec, size: int | None, limit: int, crc: int | None = None) -> Source:
        """Give the decoded stream: lazy, forward reads stream, the first backward read (or range draw) spills to scratch."""
        raise NotImplementedError


class Drawable(Protocol):
    """What Out.put draws: a promise of tensor.py, seen from here."""

    @property
    def nbytes(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def window(self) -> int: ...
    def sources(self) -> Iterator[Range]: ...
    def plain(self) -> Range | None: ...
    def read(self, start: int, stop: int) -> memoryview: ...


class Disk:
    """All files that one checkpoint reads, pooled, and its unlinked scratch. A context manager; closing it ends all reads.

    ``scratch``: the folder for spilled bytes (default TMPDIR).
    """

    def __init__(self, scratch: Path | str | None = None) -> None: ...

    def open(self, path: Path | str) -> Source: ...

    def spill(self, name: str, nbytes: int | None, fill: Callable[[Callable[[memoryview | bytes], None]], None]) -> File:
        """Give a File of ``nbytes`` bytes that exists only when first read: ``fill(write)`` is then called once."""
        raise NotImplementedError

    def changed(self) -> list[str]:
        """Name the sources whose identity is no longer what it was when they were opened."""
        raise NotImplementedError

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Late:
    """Bytes of a known length that depend on the CRCs of what was drawn before them."""

    nbytes: int
    make: Callable[[Sequence[int]], bytes]  # crc32 of every promise of this file so far, in order of drawing


class Out(ABC):
    """One file being written, front to back. ``laid`` notes where each promise was put."""

    laid: dict[Drawable, list[tuple[int, int]]]  # promise -> (offset, nbytes), once per put
    crcs: list[int]

    def write(self, data: bytes) -> None: ...
    def put(self, promise: Drawable) -> int: ...  # crc32; copies plain ranges in the kernel, streams the rest, verifies
    def pad(self, to: int) -> None: ...  # zeros up to the absolute offset ``to``
    def tell(self) -> int: ...
