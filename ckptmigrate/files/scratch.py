"""One unlinked file for bytes that cannot be read at random where they lie: decoded streams, re-encoded numbers.

It is gone when its last descriptor closes, also when the process is killed. A region of unknown length reserves addresses,
not blocks: what is never written is a hole.
"""

from __future__ import annotations

import os
import tempfile
from errno import EDQUOT, ENOSPC
from threading import Lock, RLock
from typing import TYPE_CHECKING, TypeAlias

from ckptmigrate.errors import CkptError, CorruptError, SpaceError, reading
from ckptmigrate.limits import KiB, MiB

from .descriptors import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Data: TypeAlias = "bytes | bytearray | memoryview"
Fill: TypeAlias = "Callable[[Callable[[memoryview | bytes], None]], None]"
"""What makes the bytes of a region: it is given ``write`` and calls it as often as it likes."""

LEFT = "cannot be read: its checkpoint was left"
PAGE = 4 * KiB  # regions start on pages, so that copies out of them do too
WRITTEN = 256 * KiB  # bytes of one write, as cp has it: ext4 takes 5 times as long to find memory for 1 MiB at once


class Scratch:
    """The unlinked file, made when the first region is reserved in ``folder`` (None: TMPDIR)."""

    def __init__(self, folder: Path | str | None) -> None:
        self._folder = folder
        self._opened: Descriptor | None = None
        self._closed = False
        self._end = 0
        self._lock = Lock()

    @property
    def folder(self) -> Path | str:
        """Where the file lies, or would lie."""
        return self._folder or tempfile.gettempdir()

    def reserve(self, nbytes: int) -> int:
        """Give the offset of a region that nothing else will be written to."""
        with self._lock:
            if self._opened is None:
                self._opened = self._make()
            start = self._end
            self._end = start + -(-nbytes // PAGE) * PAGE
            return start

    def _make(self) -> Descriptor:
        if self._closed:
            raise CkptError(LEFT)
        try:
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as made:
                return Descriptor(os.dup(made.fileno()))
        except OSError as error:
            raise self.unusable(error) from error

    def unusable(self, error: OSError) -> CkptError:
        """Give the error that says that the folder takes no scratch."""
        hint = "name a writable folder with --scratch, or in TMPDIR"
        return CkptError(f"no scratch file can be made here: {error.strerror}", path=str(self.folder), hint=hint)

    def shrink(self, start: int, reserved: int, used: int) -> None:
        """Hand back what a region did not use, when nothing lies behind it yet."""
        with self._lock:
            if self._end == start + -(-reserved // PAGE) * PAGE:
                self._end = start + -(-used // PAGE) * PAGE

    def descriptor(self) -> Descriptor:
        """Give the file's descriptor: the same until ``close``, and open for as long as it is held."""
        if self._opened is None:
            raise CkptError(LEFT)
        return self._opened

    def write(self, offset: int, data: Data) -> None:
        """Write all of ``data``; SpaceError where the disk is full."""
        view = memoryview(data).cast("B")
        while view:
            try:
                written = os.pwrite(self.descriptor(), view[:WRITTEN], offset)
            except OSError as error:
                if error.errno not in {ENOSPC, EDQUOT}:
                    raise
                folder = str(self.folder)
                raise SpaceError(
                    f"the disk is full: {len(view):,} more bytes of scratch are needed",
                    path=folder,
                    hint="name a folder on a larger disk with --scratch, or in TMPDIR",
                    needed=len(view),
                    free=0,
                ) from error
            view = view[written:]
            offset += written

    def close(self) -> None:
        """Give the space back."""
        self._closed, self._opened = True, None


class Region:
    """Bytes that lie in the scratch file once somebody has asked for them: ``fill`` is called once, then.

    ``nbytes`` None: nobody knows how many, but not more than ``room``.
    """

    def __init__(self, scratch: Scratch, name: str, nbytes: int | None, room: int, fill: Fill) -> None:
        self.name = name
        self._scratch, self._nbytes, self._fill = scratch, nbytes, fill
        self._room = room if nbytes is None else nbytes
        self._start: int | None = None
        self._lock = RLock()

    @property
    def drawn(self) -> bool:
        """Whether the bytes are there."""
        return self._start is not None

    @property
    def size(self) -> int:
        """Bytes in all; drawn to find out, where nobody knows."""
        if self._nbytes is None:
            self._draw()
        assert self._nbytes is not None
        return self._nbytes

    def descriptor(self) -> tuple[int, int]:
        """Give the scratch file's descriptor, open for as long as it is held, and where in it the region starts."""
        with reading(self.name):
            start = self._draw()
            return self._scratch.descriptor(), start

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from ``offset``, which the caller has checked."""
        descriptor, start = self.descriptor()
        if not fill_buffer(descriptor, start + offset, buffer):
            raise CkptError("the scratch file is shorter than what was written to it", path=self.name)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Give ``nbytes`` bytes from ``offset``, both checked by the caller."""
        buffer = bytearray(nbytes)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def _draw(self) -> int:
        with self._lock:
            if self._start is None:
                start = self._scratch.reserve(self._room)
                writer = _Writer(self._scratch, self.name, start, self._room)
                used = 0  # by a draw that fails
                try:
                    self._fill(writer.write)
                    total = writer.finish()
                    if self._nbytes is not None and total != self._nbytes:
                        raise CorruptError(f"decodes to {total:,} bytes, expected {self._nbytes:,}", path=self.name)
                    used = total
                finally:
                    self._scratch.shrink(start, self._room, used)
                self._nbytes, self._start = total, start
            return self._start


class _Writer:
    """Gathers what one ``fill`` writes, which may be a number at a time, into pieces of 1 MiB."""

    def __init__(self, scratch: Scratch, name: str, start: int, room: int) -> None:
        self._scratch, self._name, self._start, self._room = scratch, name, start, room
        self._total = 0
        self._held = bytearray()

    def write(self, data: memoryview | bytes) -> None:
        if isinstance(data, memoryview):
            data = data.cast("B")
        self._total += len(data)
        if self._total > self._room:
            raise CorruptError(f"decodes to more than the {self._room:,} bytes expected", path=self._name)
        self._held += data
        if len(self._held) >= MiB:
            self._flush()

    def _flush(self) -> None:
        self._scratch.write(self._start + self._total - len(self._held), self._held)
        self._held = bytearray()

    def finish(self) -> int:
        self._flush()
        return self._total


def fill_buffer(descriptor: int, offset: int, buffer: memoryview) -> bool:
    """Fill the buffer from the descriptor at ``offset``; False where the file ends before."""
    while buffer:
        count = os.preadv(descriptor, [buffer], offset)
        if count == len(buffer):
            return True
        if count == 0:
            return False
        buffer = buffer[count:]
        offset += count
    return True
