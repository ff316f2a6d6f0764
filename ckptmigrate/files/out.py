"""One file being written, front to back: plain ranges copied in the kernel, the rest streamed, all of it compared.

put(promise) ─┬─ a plain range, large ──► copy_file_range, 1 MiB at a time ──► source and output read and hashed
              ├─ a plain range, small ──┐
              └─ anything else ─────────┴─► 1 MiB buffer, hashed ────────────► written, output read and hashed
                                            this thread                        the background thread
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import contextmanager
from errno import EDQUOT, EINVAL, ENOSPC, ENOSYS, ENOTSUP, EOPNOTSUPP, EXDEV
from functools import cache
from typing import TYPE_CHECKING, Protocol, overload

from isal.isal_zlib import crc32  # ten times as fast as zlib's, which would be half the cost of a verified copy
from xxhash import xxh3_128_digest

from ckptmigrate.errors import ChangedError, CkptError, CorruptError, OutputError, SpaceError, VerificationError
from ckptmigrate.limits import KiB, MiB

from .background import WINDOW
from .scratch import WRITTEN, fill_buffer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptmigrate.files import File, Late, Member, Range

    from .background import Background

SMALL = 64 * KiB  # below it two calls into the kernel and a job cost more than passing the bytes through the buffer
KEPT = 32 * MiB - 64 * KiB  # the largest block that glibc learns from is 32 MiB with its header
FLUSH = 8 * MiB  # written bytes after which the disk is set to work, so that the last fsync finds little left
NO_KERNEL_COPY = {EXDEV, EINVAL, ENOSYS, ENOTSUP, EOPNOTSUPP}  # another file system, or one that cannot


class Drawable(Protocol):
    """What ``put`` draws: a promise of tensor.py, seen from here. Hashable; equal promises give equal bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes in all."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    @property
    def window(self) -> int:
        """Elements that are best read at once."""

    def sources(self) -> Iterator[Range]:
        """Give every range it draws from."""

    def plain(self) -> Range | None:
        """Give the range that holds exactly these bytes, if there is one."""

    def read(self, start: int, stop: int) -> memoryview:
        """Give the bytes of elements [start, stop)."""


class Out:
    """One file being written, front to back. ``laid`` notes where each promise was put: (offset, nbytes), once per put.

    What is compared with what: a window copied in the kernel, read again from its source, with the output; a window that passed
    through this process, as it was drawn, with the output. A difference is a VerificationError, a member whose CRC is not what
    its container says a CorruptError (data: ``member``); both are raised by a later call, at the latest by ``close``.
    CRCs are of what was drawn, so that a reader finds what the disk made of it. Without ``verify`` nothing written is read again
    and no member checked; sources are read a second time for the CRCs of what the kernel copied, if ``crc`` asks for them.
    """

    laid: dict[Drawable, list[tuple[int, int]]]

    def __init__(
        self, path: Path, *, name: str, background: Background, checked: set[object], verify: bool, crc: bool
    ) -> None:
        self.path, self.name = path, name  # where it lies now, and what messages call it
        self.laid = {}
        self._background = background
        self._checked = checked  # members whose CRC was compared, or will be
        self._verify, self._crc = verify, crc
        self._crcs: list[int] = []
        self._lates: list[tuple[int, Late, int]] = []
        self._kernel = hasattr(os, "copy_file_range")
        _keep_freed()
        self._held = memoryview(bytearray(WINDOW))  # bytes not yet written: the first _count of these, to lie at _end
        self._count = self._end = 0
        self._asleep = 0  # where the bytes start that the disk was not yet set to write
        with writing(name):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)

    def tell(self) -> int:
        """Give the offset at which the next byte will lie."""
        return self._end + self._count

    def write(self, data: bytes) -> None:
        """Write ``data`` as it is."""
        self._append(memoryview(data).cast("B"))

    def pad(self, to: int) -> None:
        """Write zeros up to the absolute offset ``to``."""
        gap = to - self.tell()
        if gap < 0:
            raise OutputError(f"{-gap:,} bytes too many: the next piece starts at {to:,}", path=self.name)
        self._zeros(gap)

    def late(self, late: Late) -> None:
        """Leave room for ``late``; it is made and written by ``close``, when every CRC before it is known."""
        self._lates.append((self.tell(), late, len(self._crcs)))
        self._zeros(late.nbytes)

    @property
    def crcs(self) -> list[int]:
        """The CRC-32 of every promise put so far, in order; waits until they are known. For an Out opened with ``crc=True``."""
        if not self._crc:
            raise ValueError("this file was opened without crc=True")
        self._background.settle()
        return self._crcs

    def put(self, promise: Drawable) -> None:
        """Draw the promise and lay it at ``tell()``."""
        self._background.check()
        nbytes = promise.nbytes
        self.laid.setdefault(promise, []).append((self.tell(), nbytes))
        self._crcs.append(0)
        if not nbytes:
            return
        plain = promise.plain()
        whole = self._check_sources(promise, plain) if self._verify else None
        if plain is None:
            self._stream(promise, nbytes)
        elif plain.nbytes != nbytes:
            raise OutputError(f"a promise of {nbytes:,} bytes names a range of {plain.nbytes:,}", path=self.name)
        elif nbytes < SMALL or not self._kernel:
            self._draw(plain, crc=self._crc or whole is not None)
            if whole is not None:
                self._check_crc(whole, plain.file, self._crcs[-1])
        else:
            self._copy(plain, whole)

    def close(self) -> None:
        """Write what is held and what came late, wait for the comparison, and have the disk hold it all."""
        if self._descriptor < 0:
            return
        self._flush()
        self._background.settle()
        for offset, late, count in self._lates:
            self._write_late(offset, late, count)
        with writing(self.name):
            os.fsync(self._descriptor)
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor, whatever is missing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # ── drawing ──

    def _stream(self, promise: Drawable, nbytes: int) -> None:
        size, step = promise.itemsize, max(1, promise.window)
        count = nbytes // size
        for start in range(0, count, step):
            stop = min(count, start + step)
            drawn = promise.read(start, stop).cast("B")
            if len(drawn) != (stop - start) * size:
                message = f"a promise gave {len(drawn):,} bytes for its elements {start:,} to {stop:,}, expected {(stop - start) * size:,}"
                raise OutputError(message, path=self.name)
            if self._crc:
                self._crcs[-1] = crc32(drawn, self._crcs[-1])
            self._append(drawn)

    def _draw(self, plain: Range, *, crc: bool) -> None:
        """Read a range into the buffer, a piece at a time."""
        done = 0
        while done < plain.nbytes:
            if self._count == WINDOW:
                self._flush()
            piece = self._held[self._count : self._count + min(WINDOW - self._count, plain.nbytes - done)]
            plain.file.pread_into(plain.offset + done, piece)
            if crc:
                self._crcs[-1] = crc32(piece, self._crcs[-1])
            self._count += len(piece)
            done += len(piece)

    def _copy(self, plain: Range, whole: Member | None) -> None:
        """Copy a range in the kernel; where that cannot be done, draw the rest."""
        self._flush()
        source, base = plain.file.descriptor()
        base += plain.offset
        index = len(self._crcs) - 1 if self._crc or whole is not None else None
        done = 0
        while done < plain.nbytes:
            copied = self._copy_window(source, base + done, min(WINDOW, plain.nbytes - done))
            if not copied:  # not here, or the source ends: reading it will tell
                self._kernel = False
                self._background.settle()  # the CRC goes on from where the thread leaves it
                self._draw(plain.part(done, plain.nbytes - done), crc=index is not None)
                break
            if self._verify or index is not None:
                self._background.do(self._compare_copied, source, base + done, self._end, copied, index)
            self._advance(copied)
            done += copied
        if whole is not None:
            self._background.do(self._check_copied, whole, plain.file, len(self._crcs) - 1)

    def _copy_window(self, source: int, offset: int, nbytes: int) -> int:
        with writing(self.name):
            try:
                return os.copy_file_range(source, self._descriptor, nbytes, offset, self._end)
            except OSError as error:
                if error.errno in NO_KERNEL_COPY:
                    return 0
                raise

    # ── writing ──

    def _zeros(self, nbytes: int) -> None:
        while nbytes:
            piece = memoryview(bytes(min(nbytes, WINDOW)))
            self._append(piece)
            nbytes -= len(piece)

    def _append(self, data: memoryview) -> None:
        while data:
            if self._count == WINDOW:
                self._flush()
            piece = data[: WINDOW - self._count]
            self._held[self._count : self._count + len(piece)] = piece
            self._count += len(piece)
            data = data[len(piece) :]

    def _flush(self) -> None:
        if not self._count:
            return
        data, count = self._held[: self._count], self._count
        digest = xxh3_128_digest(data) if self._verify else None
        self._held = self._background.hand(self._held, self._write_drawn, data, self._end, digest)
        self._count = 0
        self._advance(count)

    def _write_drawn(self, buffer: memoryview, data: memoryview, offset: int, digest: bytes | None) -> None:
        self._write_at(offset, data)
        if digest is not None:
            self._compare_written(buffer, offset, len(data), digest)

    def _write_at(self, offset: int, data: memoryview) -> None:
        with writing(self.name, len(data)):
            while data:
                count = os.pwrite(self._descriptor, data[:WRITTEN], offset)
                data = data[count:]
                offset += count

    def _advance(self, nbytes: int) -> None:
        self._end += nbytes
        if self._end - self._asleep >= FLUSH:
            self._background.do(self._wake_disk, self._asleep, self._end - self._asleep)
            self._asleep = self._end

    def _wake_disk(self, _buffer: memoryview, offset: int, nbytes: int) -> None:
        """Start writing pages back: Linux does so on this advice and does not wait; dirty pages stay where they are."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def _write_late(self, offset: int, late: Late, count: int) -> None:
        data = late.make(_First(self._crcs, count))
        if len(data) != late.nbytes:
            raise OutputError(f"{late.nbytes:,} bytes were left free at {offset:,} for {len(data):,}", path=self.name)
        self._write_at(offset, memoryview(data))
        if self._verify:
            found = bytearray(len(data))
            fill_buffer(self._descriptor, offset, memoryview(found))
            if found != data:
                raise self._difference(offset, len(data))

    # ── comparing ──

    def _compare_copied(
        self, buffer: memoryview, source: int, start: int, offset: int, nbytes: int, index: int | None
    ) -> None:
        """Read a window of the source again, take it into a CRC, and compare the output with it."""
        given = buffer[:nbytes]
        if not fill_buffer(source, start, given):
            raise ChangedError("a source became shorter while it was copied", path=self.name)
        if index is not None:
            self._crcs[index] = crc32(given, self._crcs[index])
        if self._verify:
            self._compare_written(buffer, offset, nbytes, xxh3_128_digest(given))

    def _compare_written(self, buffer: memoryview, offset: int, nbytes: int, digest: bytes) -> None:
        """Read a window of the output, and compare it with the digest of what it was made from."""
        written = buffer[:nbytes]
        if not fill_buffer(self._descriptor, offset, written) or xxh3_128_digest(written) != digest:
            raise self._difference(offset, nbytes)

    def _difference(self, offset: int, nbytes: int) -> VerificationError:
        message = f"bytes {offset:,} to {offset + nbytes:,} are not what was read from the source"
        hint = "something on this machine changes bytes: test its memory and its disk before converting again"
        return VerificationError(message, path=self.name, hint=hint, offset=offset, nbytes=nbytes)

    def _check_sources(self, promise: Drawable, plain: Range | None) -> Member | None:
        """Compare the CRC of each member drawn from for the first time; give the one whose CRC the copy itself will yield."""
        whole = None
        for source in promise.sources():
            member = source.member
            if member is None or not member.crc:
                continue
            key = (source.file, member.offset, member.nbytes)
            if key in self._checked:
                continue
            self._checked.add(key)
            if plain is not None and (plain.file, plain.offset, plain.nbytes) == key:
                whole = member
            else:
                self._read_member(source.file, member)
        return whole

    def _read_member(self, file: File, member: Member) -> None:
        buffer = memoryview(bytearray(min(WINDOW, member.nbytes)))
        crc = 0
        for start in range(0, member.nbytes, WINDOW):
            piece = buffer[: min(WINDOW, member.nbytes - start)]
            file.pread_into(member.offset + start, piece)
            crc = crc32(piece, crc)
        self._check_crc(member, file, crc)

    def _check_copied(self, _buffer: memoryview, member: Member, file: File, index: int) -> None:
        self._check_crc(member, file, self._crcs[index])

    def _check_crc(self, member: Member, file: File, crc: int) -> None:
        if crc != member.crc:
            message = f"member {member.name!r}: CRC-32 is {crc:08x}, stored is {member.crc:08x}"
            raise CorruptError(message, path=file.name, member=member, hint="copy or download the file again")


class _First(Sequence[int]):
    """The first ``count`` of the CRCs, not copied: a directory of a hundred thousand members asks a hundred thousand times."""

    def __init__(self, crcs: list[int], count: int) -> None:
        self._crcs, self._places = crcs, range(count)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        places = self._places[index]
        return self._crcs[places] if isinstance(places, int) else [self._crcs[place] for place in places]


@cache  # glibc asks for it once
def _keep_freed() -> None:
    """Free one large block, from which glibc learns to keep what is freed, up to twice as much.

    Without it every window of 1 MiB is given back to the kernel and faulted in again, page by page: half the time of a draw.
    """
    bytes(KEPT)  # zeros that nobody touches: no memory is taken


@contextmanager
def writing(name: str, nbytes: int = 0) -> Iterator[None]:
    """Turn an OSError into an OutputError that names the output; a full disk into a SpaceError."""
    try:
        yield
    except CkptError:  # some of ours are OSErrors too
        raise
    except OSError as error:
        if error.errno in {ENOSPC, EDQUOT}:
            hint = "free some space, or write to another disk"
            raise SpaceError("the disk is full", path=name, hint=hint, needed=nbytes, free=0) from error
        raise OutputError(f"cannot be written: {error.strerror or error}", path=name) from error
