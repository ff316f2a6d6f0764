"""The door to the disk, on the way in: files by path, windows of them, decoded streams, and scratch.

    Disk ── open(path) ──► Source ── range(offset, n) ──► Range ── (a promise) ──► out.Out.put
                           │ part, child, decoded          │ file: File
                           └ read(offset, n)               └ member: the container member it lies in, with its CRC

A Source is what a reader reads, a Range what a promise keeps. Parts of parts resolve to the one File underneath, so ranges
that reach the same bytes by different ways are equal. On the way out the door is ``sink``.
"""

from __future__ import annotations

import os
import shutil
import stat
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import ChangedError, CkptError, CorruptError, LimitError, TruncatedError, UnsupportedFormatError
from ckptmigrate.limits import LIMITS

from .descriptors import Descriptor, Pool, identity_now, identity_of, open_regular
from .inflate import Codec, Encoded, Stream
from .scratch import Region, Scratch, fill_buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

LEFTOVER = ".ckptmigrate-"  # within the names of scratch and backups; a listing never shows them


class File(ABC):
    """Something that holds bytes at offsets; equal only to itself, so that two Ranges are equal when they are one place."""

    name: str
    disk: Disk | None = None  # whose scratch holds what must be drawn before a view of it can be taken

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
        _check_inside(self.name, "bytes", offset, nbytes, self.size)
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

    def part(self, offset: int, nbytes: int) -> Range:
        """Give the range of ``nbytes`` bytes that starts ``offset`` bytes into this one; TruncatedError if it does not lie inside."""
        _check_inside(
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


class Disk:
    """All files that one checkpoint reads, pooled, and its unlinked scratch. A context manager; closing it ends all reads.

    ``scratch``: the folder for spilled bytes (default TMPDIR).
    ``keep``: a decoded stream goes to scratch in the pass that reads it for names, because its bytes will be drawn later.
    """

    def __init__(self, scratch: Path | str | None = None, *, keep: bool = False) -> None:
        self.keep = keep
        self.scratch = Scratch(scratch)
        self.pool = Pool()
        self.spilled: dict[object, File] = {}  # what was spilled -> where, so that equal promises share one spill
        self._sources: dict[str, Source] = {}
        self._files: list[_Local] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, path: Path | str) -> Source:
        """Open a file or folder; the same path gives the same Source, hence equal ranges. CkptError if there is none."""
        name = os.fspath(path)
        if name not in self._sources:
            self._sources[name] = self._open(name)
        return self._sources[name]

    def _open(self, name: str) -> Source:
        try:
            found = Path(name).stat()
            if stat.S_ISDIR(found.st_mode):
                return _Folder(self, name, found)
            local = _Local(self, name)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            message = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be opened: {_reason(error)}"
            raise CkptError(message, path=name) from error
        self._files.append(local)
        return _Window(self, local, 0, local.size, name=name)

    def spill(
        self, name: str, nbytes: int | None, fill: Callable[[Callable[[memoryview | bytes], None]], None]
    ) -> File:
        """Give a File of ``nbytes`` bytes that exists only when first read: ``fill(write)`` is then called once.

        CorruptError, when it is read, if ``fill`` wrote another number of bytes.
        """
        return _Scratched(self, Region(self.scratch, name, nbytes, LIMITS.inflated, fill))

    def free_scratch(self) -> int:
        """Give the bytes that the scratch may still take."""
        return shutil.disk_usage(self.scratch.folder).free

    def changed(self) -> list[str]:
        """Name the sources whose identity is no longer what it was when they were opened."""
        return [local.name for local in self._files if local.identity != identity_now(local.name)]

    def close(self) -> None:
        """Close every descriptor and give the scratch back; reads fail from here on."""
        self.pool.close()
        self.scratch.close()


class _Local(File):
    """A regular file, by path; its identity is that of the moment when it was first opened."""

    def __init__(self, disk: Disk, name: str) -> None:
        self.name, self.disk = name, disk
        self._pool = disk.pool
        self.identity: tuple[int, ...] | None = None
        found = os.fstat(self._opened())
        self.identity, self._size = identity_of(found), found.st_size

    def _opened(self) -> Descriptor:
        return self._pool.get(self, self.name, self._open)

    def _open(self) -> Descriptor:
        try:
            opened = open_regular(self.name)
        except FileNotFoundError as error:
            if self.identity is None:
                raise
            raise ChangedError("is gone since it was first read", path=self.name) from error
        if self.identity not in {None, identity_of(os.fstat(opened))}:
            raise self._changed()
        return opened

    def _changed(self) -> ChangedError:
        return ChangedError("changed while it was read", path=self.name, hint="read it again when nobody writes to it")

    @property
    def size(self) -> int:
        return self._size

    def descriptor(self) -> tuple[int, int]:
        return self._opened(), 0

    def pread_into(self, offset: int, buffer: memoryview) -> None:
        _check_inside(self.name, "bytes", offset, buffer.nbytes, self._size)
        if not fill_buffer(self._opened(), offset, buffer):
            raise self._changed()  # it held these bytes when it was opened


class _Scratched(File):
    """Bytes that lie in the scratch file once they are drawn; of a stream, readers may have them before."""

    def __init__(self, disk: Disk, region: Region, stream: Stream | None = None) -> None:
        self.name, self.disk, self.stream = region.name, disk, stream
        self._region = region

    @property
    def size(self) -> int:
        return self._region.size if self.stream is None else self.stream.size

    @property
    def awaited(self) -> int:
        return 0 if self._region.drawn else self.size

    def descriptor(self) -> tuple[int, int]:
        return self._region.descriptor()

    def pread_into(self, offset: int, buffer: memoryview) -> None:
        _check_inside(self.name, "bytes", offset, buffer.nbytes, self.size)
        self._region.read_into(offset, buffer)


class _Window(Source):
    """All of a file, or a part of one, or a part of a part: always the file underneath, and where the window starts in it."""

    def __init__(
        self, disk: Disk, file: File, base: int, nbytes: int | None, *, name: str, member: Member | None = None
    ) -> None:
        self.name = name
        self._disk, self._file = disk, file
        self._stream = file.stream if isinstance(file, _Scratched) else None
        self._base, self._nbytes, self._member = base, nbytes, member  # nbytes None: all of a stream of unknown size

    @property
    def size(self) -> int:
        if self._nbytes is None:
            self._nbytes = self._file.size
        return self._nbytes

    @property
    def identity(self) -> tuple[object, ...]:
        if isinstance(self._file, _Local):
            return (*(self._file.identity or ()), self._base, self._nbytes)
        return (id(self._file), self._base, self._nbytes)

    def read(self, offset: int, nbytes: int) -> bytes:
        self._check(offset, nbytes)
        if self._stream is None:
            return self._file.pread(self._base + offset, nbytes)
        found = self._stream.read(self._base + offset, nbytes)
        if len(found) < nbytes and self._nbytes is not None:  # the window was cut before anybody knew the stream's size
            _check_inside(self.name, "bytes", offset, nbytes, offset + len(found))
        return found

    def range(self, offset: int, nbytes: int, member: Member | None = None) -> Range:
        self._check(offset, nbytes)
        if self._stream is not None:
            end = self._base + offset + nbytes
            _check_inside(self.name, "bytes", self._base + offset, nbytes, self._stream.reach(end))
        return Range(self._file, self._base + offset, nbytes, self._placed(member))

    def part(self, offset: int, nbytes: int, name: str, member: Member | None = None) -> Source:
        self._check(offset, nbytes)
        placed = self._placed(member)
        return _Window(self._disk, self._file, self._base + offset, nbytes, name=f"{self.name}!{name}", member=placed)

    def decoded(self, codec: Codec, size: int | None, limit: int, crc: int | None = None) -> Source:
        encoded = Encoded(self.name, codec, self.read, self.size, size, limit, LIMITS.ratio, crc)
        stream = Stream(encoded, self._disk.scratch, keep=self._disk.keep)
        return _Window(self._disk, _Scratched(self._disk, stream.region, stream), 0, size, name=self.name)

    def _placed(self, member: Member | None) -> Member | None:
        """Count the member's offset from the start of the file."""
        if member is None:
            return self._member
        return replace(member, offset=member.offset + self._base) if self._base else member

    def _check(self, offset: int, nbytes: int) -> None:
        """Refuse what reaches out of the window; of a stream of unknown size only what has no sense at all."""
        _check_inside(self.name, "bytes", offset, nbytes, offset + nbytes if self._nbytes is None else self._nbytes)


class _Folder(Source):
    """A folder; symlinks within it are followed while they stay within it."""

    def __init__(self, disk: Disk, name: str, found: os.stat_result) -> None:
        self.name = name
        self._disk = disk
        self._identity = identity_of(found)

    @property
    def size(self) -> int:
        return 0

    @property
    def identity(self) -> tuple[object, ...]:
        return self._identity

    def is_folder(self) -> bool:
        return True

    def children(self) -> list[str]:
        names: list[str] = []
        try:
            with os.scandir(self.name) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if len(names) > LIMITS.files:
                        message = f"holds more than {LIMITS.files:,} files"
                        raise LimitError(message, path=self.name, limit=LIMITS.files, claimed=len(names))
        except OSError as error:
            raise CkptError(f"cannot be listed: {_reason(error)}", path=self.name) from error
        return sorted(name for name in names if LEFTOVER not in name)

    def child(self, name: str) -> Source:
        if name in {"", ".", ".."} or any(mark in name for mark in "/\\\0"):
            message = f"names {name!r}, which is not the plain name of a file in this folder"
            raise CorruptError(message, path=self.name, name=name)
        path = Path(self.name, name)
        if path.is_symlink() and not path.resolve().is_relative_to(Path(self.name).resolve()):
            hint = "copy what the link leads to into the folder (cp -L), or name that file"
            raise CorruptError(f"a link out of its folder, to {path.resolve()}", path=str(path), hint=hint)
        return self._disk.open(path)

    def read(self, *_: Any, **__: Any) -> bytes:
        raise self._no_file()

    def range(self, *_: Any, **__: Any) -> Range:
        raise self._no_file()

    def part(self, *_: Any, **__: Any) -> Source:
        raise self._no_file()

    def decoded(self, *_: Any, **__: Any) -> Source:
        raise self._no_file()

    def _no_file(self) -> UnsupportedFormatError:
        return UnsupportedFormatError("a folder, expected a file", path=self.name)


def _check_inside(name: str, what: str, offset: int, nbytes: int, size: int) -> None:
    if offset < 0 or nbytes < 0:
        raise CorruptError(f"{what} at {offset:,}, {nbytes:,} long: neither can be negative", path=name)
    if offset + nbytes > size:
        message = f"{what} {offset:,} to {offset + nbytes:,} of {size:,}"
        raise TruncatedError(message, path=name, needed=offset + nbytes, present=size)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
