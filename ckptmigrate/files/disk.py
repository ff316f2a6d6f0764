"""All files that one checkpoint reads, and the kinds of places there are: local files, scratch, windows of them, folders."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import replace
from errno import ENAMETOOLONG, ENOENT
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import ChangedError, CkptError, CorruptError, LimitError, UnsupportedFormatError
from ckptmigrate.limits import LIMITS

from .descriptors import Descriptor, Pool, identity_now, identity_of, open_regular
from .inflate import Codec, Encoded, Stream
from .scratch import Fill, Region, Scratch, fill_buffer
from .source import File, Member, Range, Source, check_inside

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

LEFTOVER = ".ckptmigrate-"  # within the names of scratch and backups; a listing never shows them
SIDECAR = (
    ".ckptmigrate.json"  # ends the name of the file that stamps another from beside it; no listing shows it either
)


class Disk:
    """All files that one checkpoint reads, pooled, and its unlinked scratch. A context manager; closing it ends all reads.

    ``scratch``: the folder for spilled bytes (default TMPDIR).
    ``keep``: a decoded stream goes to scratch in the pass that reads it for names, because its bytes will be drawn later.
    """

    def __init__(self, scratch: Path | str | None = None, *, keep: bool = False) -> None:
        self.keep = keep
        self.scratch = Scratch(scratch)
        self.pool = Pool()
        self._sources: dict[str, Source] = {}
        self._files: list[_Local] = []
        self._spilled: dict[object, File] = {}  # by key

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

    def open_if_there(self, name: str) -> Source | None:
        """Open a file or folder; None where there is none of that name."""
        try:
            return self.open(name)
        except CkptError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in {ENOENT, ENAMETOOLONG}:
                return None
            raise

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
        self, name: str, nbytes: int | None, fill: Fill, *, key: object = None, origins: Iterable[Range] = ()
    ) -> File:
        """Give a File of ``nbytes`` bytes that exists only when first read: ``fill(write)`` is then called once.

        CorruptError, when it is read, if ``fill`` wrote another number of bytes. ``origins``: what ``fill`` draws from. Equal keys
        give one File, so that ties stay ties.
        """
        found = self._spilled.get(key)
        if found is None:
            made = _Scratched(self, Region(self.scratch, name, nbytes, LIMITS.inflated, fill))
            made.origins = tuple(dict.fromkeys(origins))
            found = made if key is None else self._spilled.setdefault(key, made)
        return found

    def free_scratch(self) -> int:
        """Give the bytes that the scratch may still take; CkptError where its folder is not there."""
        try:
            return shutil.disk_usage(self.scratch.folder).free
        except OSError as error:
            raise self.scratch.unusable(error) from error

    def shares_space(self, folder: Path | str) -> bool:
        """Tell whether scratch and what is written in ``folder`` take their space from one disk."""
        return Path(self.scratch.folder).stat().st_dev == Path(folder).stat().st_dev

    def changed(self) -> list[str]:
        """Name the sources whose identity is no longer what it was when they were opened."""
        return [local.name for local in self._files if local.identity != identity_now(local.name)]

    def reads(self, path: Path | str) -> bool:
        """Tell whether a path, by whatever name, leads to a file or folder that was opened here."""
        found = identity_now(os.fspath(path))
        return found is not None and any(found[:2] == source.identity[:2] for source in self._sources.values())

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
        check_inside(self.name, "bytes", offset, buffer.nbytes, self._size)
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
        check_inside(self.name, "bytes", offset, buffer.nbytes, self.size)
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
            check_inside(self.name, "bytes", offset, nbytes, offset + len(found))
        return found

    def range(self, offset: int, nbytes: int, member: Member | None = None) -> Range:
        self._check(offset, nbytes)
        if self._stream is not None:
            end = self._base + offset + nbytes
            check_inside(self.name, "bytes", self._base + offset, nbytes, self._stream.reach(end))
        return Range(self._file, self._base + offset, nbytes, self._placed(member))

    def part(self, offset: int, nbytes: int, name: str, member: Member | None = None) -> Source:
        self._check(offset, nbytes)
        placed = self._placed(member)
        return _Window(self._disk, self._file, self._base + offset, nbytes, name=f"{self.name}!{name}", member=placed)

    def decoded(self, codec: Codec, size: int | None, limit: int, crc: int | None = None) -> Source:
        encoded = Encoded(self.name, codec, self.read, self.size, size, limit, LIMITS.ratio, crc)
        stream = Stream(encoded, self._disk.scratch, keep=self._disk.keep)
        return _Window(self._disk, _Scratched(self._disk, stream.region, stream), 0, size, name=self.name)

    def beside(self, suffix: str) -> Source | None:
        whole = isinstance(self._file, _Local) and self.name == self._file.name
        return self._disk.open_if_there(f"{self.name}{suffix}") if whole else None

    def _placed(self, member: Member | None) -> Member | None:
        """Count the member's offset from the start of the file."""
        if member is None:
            return self._member
        return replace(member, offset=member.offset + self._base) if self._base else member

    def _check(self, offset: int, nbytes: int) -> None:
        """Refuse what reaches out of the window; of a stream of unknown size only what has no sense at all."""
        check_inside(self.name, "bytes", offset, nbytes, offset + nbytes if self._nbytes is None else self._nbytes)


class _Folder(Source):
    """A folder. Links to files are followed wherever they lead: model hubs keep what a folder holds as links to a store beside it.

    A link is one plain name in a folder that the user named, and only reading goes through it; output never does (``sink``).
    Links to folders are followed only to within this folder, so that no walk leaves it or goes round.
    """

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
        return sorted(name for name in names if LEFTOVER not in name and not name.endswith(SIDECAR))

    def beside(self, suffix: str) -> Source | None:
        return self._disk.open_if_there(f"{self.name.rstrip('/')}{suffix}")

    def child(self, name: str) -> Source:
        if name in {"", ".", ".."} or any(mark in name for mark in "/\\\0"):
            message = f"names {name!r}, which is not the plain name of a file in this folder"
            raise CorruptError(message, path=self.name, name=name)
        path = Path(self.name, name)
        if path.is_symlink() and path.is_dir():
            real, here = path.resolve(), Path(self.name).resolve()
            if real == here or not real.is_relative_to(here):
                message = f"a link to the folder {real}, which does not lie within this one"
                raise CorruptError(message, path=str(path), hint="name that folder itself")
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


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def is_there(path: Path | str) -> bool:
    """Say whether a file or a folder that can be opened lies at a path."""
    with Disk() as disk:
        try:
            disk.open(path)
        except CkptError:
            return False
    return True
