"""Decode deflate and gzip streams in constant memory, believing none of their claims.

raw deflate     one stream, nothing after it                             a compressed member of a zip
gzip            1f 8b … stream, CRC-32, size; any number of members,     a file by itself
                then zeros at most (RFC 1952, section 2.2)
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ckptmigrate.errors import CkptError, CorruptError, LimitError, TruncatedError
from ckptmigrate.limits import KiB, MiB

from .scratch import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .scratch import Scratch

Codec = Literal["deflate", "gzip"]

TAKEN = (
    32 * KiB
)  # bytes fed at once; zlib copies what follows a gzip member, so larger pieces make many small members slow
GIVEN = 256 * KiB  # bytes of one decoded chunk
HEAD = 64 * KiB  # decoded bytes kept from the start, so that sniffing a stream does not spill it
TAIL = 256 * KiB  # decoded bytes kept behind the position, so that a reader may look back at the end of its last window
SLACK = 64 * KiB  # output that any input may give whatever the ratio: zlib works ahead of what it was fed
SPARE_MEMBERS, MEMBER = (
    4096,
    512,
)  # a gzip file of more members than one every 512 bytes only costs time; blocked gzip has one in 20 KiB


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded stream and what its container claims of it; ``read(offset, n)`` gives its bytes, ``name`` is for messages."""

    name: str
    codec: Codec
    read: Callable[[int, int], bytes]
    nbytes: int
    size: int | None
    limit: int
    ratio: int
    crc: int | None = None

    def check(self) -> None:
        """Refuse a claimed size that is over the limit, or that no deflate stream of this length can reach."""
        if self.size is not None:
            self._bound(self.size, self.nbytes, "claims to decode to")

    def _bound(self, size: int, taken: int, verb: str) -> None:
        if size > self.limit:
            raise LimitError(
                f"{verb} {size:,} bytes, the limit is {self.limit:,}", path=self.name, limit=self.limit, claimed=size
            )
        most = self.ratio * taken + SLACK
        if size > most:
            message = f"{verb} {size:,} bytes from {taken:,}, more than {self.ratio} times as many"
            raise LimitError(message, path=self.name, limit=most, claimed=size)

    def chunks(self) -> Iterator[bytes]:
        """Give the decoded bytes, at most 256 KiB at a time; the last piece comes only when size and CRC were right."""
        held = b""
        produced = checksum = 0
        for chunk, taken in self._decode():
            produced += len(chunk)
            if self.size is not None and produced > self.size:
                raise CorruptError(f"decodes to more than the {self.size:,} bytes that were claimed", path=self.name)
            self._bound(produced, taken, "decodes to")
            if self.crc is not None:
                checksum = zlib.crc32(chunk, checksum)
            if held:
                yield held
            held = chunk
        if self.size is not None and produced != self.size:
            raise CorruptError(f"decodes to {produced:,} bytes, {self.size:,} were claimed", path=self.name)
        if self.crc is not None and checksum != self.crc:
            raise CorruptError(f"CRC-32 is {checksum:08x}, stored is {self.crc:08x}", path=self.name)
        if held:
            yield held

    def _decode(self) -> Iterator[tuple[bytes, int]]:
        """Give each chunk and how many bytes were taken for all so far."""
        gzip = self.codec == "gzip"
        wbits = zlib.MAX_WBITS | 16 if gzip else -zlib.MAX_WBITS
        machine = zlib.decompressobj(wbits)
        taken, members, pending = 0, 1, b""
        while True:
            if not pending and taken < self.nbytes:
                pending = self.read(taken, min(TAKEN, self.nbytes - taken))
                taken += len(pending)
            if machine.eof:
                pending = pending.lstrip(b"\0") if gzip else pending
                if not pending:
                    if taken == self.nbytes:
                        return
                    continue
                members += 1
                if not gzip or members > SPARE_MEMBERS + taken // MEMBER:
                    what = (
                        f"{members:,} members in {taken:,} bytes"
                        if gzip
                        else "bytes after the end of the deflate stream"
                    )
                    raise CorruptError(f"{what}, at {taken - len(pending):,} of {self.nbytes:,}", path=self.name)
                machine = zlib.decompressobj(wbits)
            try:
                chunk = machine.decompress(pending, GIVEN)
            except zlib.error as error:
                where = f"before {taken:,} of its {self.nbytes:,} bytes"
                raise CorruptError(f"no valid {self.codec} stream {where}: {error}", path=self.name) from error
            at_end = not chunk and taken == self.nbytes and not machine.eof and not machine.unconsumed_tail
            if at_end:
                message = f"the {self.codec} stream does not end within its {self.nbytes:,} bytes"
                raise TruncatedError(message, path=self.name, needed=self.nbytes + 1, present=self.nbytes)
            pending = machine.unused_data if machine.eof else machine.unconsumed_tail
            if chunk:
                yield chunk, taken


class Stream:
    """The decoded bytes: read forward they stream; read backward or drawn they lie in ``region``, decoded once more.

    ``keep``: they go to scratch in the first pass already, because they will be drawn anyway.
    """

    def __init__(self, encoded: Encoded, scratch: Scratch, *, keep: bool) -> None:
        encoded.check()
        self._encoded, self._keep = encoded, keep
        self._total = encoded.size  # as claimed or found
        most = min(encoded.limit, encoded.ratio * encoded.nbytes + MiB)
        self.region = Region(scratch, encoded.name, encoded.size, most, self._fill)
        self._chunks: Iterator[bytes] | None = None  # None: not begun, ended or spilled
        self._position = 0  # bytes that the stream has given
        self._head, self._tail = bytearray(), bytearray()

    def _fill(self, write: Callable[[memoryview | bytes], None]) -> None:
        self._chunks = None
        self._tail.clear()
        for chunk in self._encoded.chunks():
            write(chunk)

    @property
    def size(self) -> int:
        """Bytes in all, as claimed; spilled to find out, where nothing is claimed."""
        if self._total is None:
            self._total = self.region.size
        return self._total

    def reach(self, end: int) -> int:
        """Give how many bytes there are, looking no further than ``end``."""
        if self._total is None:
            self._advance(end, end)
        return self._position if self._total is None else self._total

    def read(self, offset: int, nbytes: int) -> bytes:
        """Give up to ``nbytes`` bytes from ``offset``: from the stream while reads go forward, else from scratch."""
        end = offset + nbytes
        if not self.region.drawn:
            self._advance(offset, end)
            end = end if self._total is None else min(end, self._total)
            if end <= len(self._head):
                return bytes(self._head[offset:end])
            first = self._position - len(self._tail)
            if first <= offset and end <= self._position:
                found = bytes(self._tail[offset - first : max(end, offset) - first])
                del self._tail[: max(0, len(self._tail) - TAIL)]
                return found
        end = min(end, self.size)
        return self.region.read(offset, end - offset) if offset < end else b""

    def _advance(self, offset: int, end: int) -> None:
        """Let the stream run to ``end``, keeping what lies behind ``offset`` and a little before."""
        if self.region.drawn:
            return
        if self._keep and end > HEAD:
            self._total = self.region.size
            self.region.descriptor()
            return
        if self._chunks is None and self._position == 0:
            self._chunks = self._encoded.chunks()
        while self._position < end and self._chunks is not None:
            try:
                chunk = next(self._chunks, None)
            except CkptError:
                self._chunks, self._position = None, 0  # the next read meets the fault again, from the start
                self._head.clear()
                self._tail.clear()
                raise
            if chunk is None:
                self._chunks, self._total = None, self._position
                return
            self._head += chunk[: max(0, HEAD - len(self._head))]
            self._tail += chunk
            self._position += len(chunk)
            first = self._position - len(self._tail)
            del self._tail[: max(0, min(offset, self._position - TAIL) - first)]
