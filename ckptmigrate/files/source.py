"""What readers and promises see of the disk: files that hold bytes, ranges of them, and sources to read from.

A File is a place, equal only to itself; a Range is a run of bytes in one, and what a promise keeps; a Source is what a reader is
given: a file, a folder, a part of one, a decoded stream. The kinds there are stand in ``places``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ckptmigrate.errors import CkptError, CorruptError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .inflate import Codec
    from .scratch import Fill


class Spills(Protocol):
    """Who offers scratch: the Disk that a file was opened on."""

    def spill(
        self,
        name: str,
        nbytes: int | None,
        fill: Fill,
        *,
        key: object = None,
        origins: Iterable[Range] = (),
    ) -> File:
        """Give a File that exists only when first read; ``origins`` are what ``fill`` draws from, equal keys give one File."""


class File(ABC):
    """Something that holds bytes at offsets; equal only to itself, so that two Ranges are equal when they are one place."""

    name: str
    disk: Spills | None = None  # whose scratch holds what must be drawn before a view of it can be taken
    origins: tuple[
        Range, ...
    ] = ()  # what the first read draws from, down to the files on disk; () where nothing is drawn

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes in all; for a decoded stream of unknown size this decodes it."""

    @property
    def awaited(self) -> int:
        """Bytes that the first read will put into scratch; 0 where they lie on disk already."""
        return 0

    @abstractmethod
    def pread_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset``; TruncatedError names the file, what was needed and what is there."""

    @abstractmethod
    def descriptor(self) -> tuple[int, int]:
        """Give an open descriptor that holds the bytes, and the offset in it at which this file's byte 0 lies.

        The descriptor stays open for as long as this very object is held, also when the pool has forgotten it meanwhile.
        """

    def pread(self, offset: int, nbytes: int) -> bytes:
        """Give exactly ``nbytes`` bytes from ``offset``; TruncatedError as ``pread_into``, before memory is taken."""
        check_inside(self.name, "bytes", offset, nbytes, self.size)
        buffer = bytearray(nbytes)
        self.pread_into(offset, memoryview(buffer))
        return bytes(buffer)


@dataclass(frozen=True, slots=True)
class Member:
    """A container's member: where its stored bytes lie, and what the container says of them.

    ``offset`` counts from the start of the Source or File that the member is given to or found on.
    """

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

    def sources(self) -> Iterator[Range]:
        """Give this range, and those that its file is drawn from where it is scratch."""
        yield self
        yield from self.file.origins

    def part(self, offset: int, nbytes: int) -> Range:
        """Give the range of ``nbytes`` bytes that starts ``offset`` bytes into this one; TruncatedError if it does not lie inside."""
        check_inside(
            self.file.name, f"a part of the {self.nbytes:,} bytes at {self.offset:,}", offset, nbytes, self.nbytes
        )
        return Range(self.file, self.offset + offset, nbytes, self.member)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Give ``nbytes`` bytes from ``offset`` bytes into this range; TruncatedError if they do not lie inside."""
        part = self.part(offset, nbytes)
        return self.file.pread(part.offset, nbytes)


class Source(ABC):
    """Where a reader gets its bytes: a local file, a folder, a part of one, a decoded stream."""

    name: str  # what messages call it: the path, "path!member" for a part

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes; 0 for a folder; a decoded stream of unknown size is decoded to find it."""

    @property
    @abstractmethod
    def identity(self) -> tuple[object, ...]:
        """What changes when the bytes do: device, inode, size, mtime of a local file."""

    @abstractmethod
    def read(self, offset: int, nbytes: int) -> bytes:
        """Give exactly ``nbytes`` bytes or raise TruncatedError (a decoded stream of unknown size gives up to n)."""

    @abstractmethod
    def range(self, offset: int, nbytes: int, member: Member | None = None) -> Range:
        """Give the range, checked to lie inside; nothing is read, but a stream of unknown size is decoded up to its end."""

    @abstractmethod
    def part(self, offset: int, nbytes: int, name: str, member: Member | None = None) -> Source:
        """Give a window, named "path!name"; ``member`` holds for every range taken from it."""

    def children(self) -> list[str]:
        """Give the names in a folder, sorted, without our own scratch and backups; [] for a file."""
        return []

    def child(self, name: str) -> Source:
        """Open what a folder holds under ``name``, one path component; a file has none."""
        raise CkptError(f"a file, which holds nothing named {name!r}", path=self.name)

    def beside(self, suffix: str) -> Source | None:  # noqa: ARG002 - a part of a file, or one in memory, has no neighbour
        """Open the file whose name is this one's with a suffix; None where there is none."""
        return None

    def is_folder(self) -> bool:
        """Tell whether this is a folder."""
        return False

    @abstractmethod
    def decoded(self, codec: Codec, size: int | None, limit: int, crc: int | None = None) -> Source:
        """Give the decoded stream: lazy, forward reads stream, the first backward read (or range draw) spills to scratch.

        ``size`` and ``crc``: what the container claims, checked before the last byte is given. LimitError where size or output
        exceed ``limit`` or what deflate can reach.
        """


@dataclass(frozen=True, slots=True)
class Late:
    """Bytes of a known length that depend on the CRCs of what was drawn before them."""

    nbytes: int
    make: Callable[[Sequence[int]], bytes]  # crc32 of every promise of this file so far, in order of drawing


def check_inside(name: str, what: str, offset: int, nbytes: int, size: int) -> None:
    """Refuse bytes that do not lie in ``size``; TruncatedError gives what was needed and what is there."""
    if offset < 0 or nbytes < 0:
        raise CorruptError(f"{what} at {offset:,}, {nbytes:,} long: neither can be negative", path=name)
    if offset + nbytes > size:
        message = f"{what} {offset:,} to {offset + nbytes:,} of {size:,}"
        raise TruncatedError(message, path=name, needed=offset + nbytes, present=size)
