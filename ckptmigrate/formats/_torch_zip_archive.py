r"""A zip archive as torch 2.13 lays it out: stored members, each aligned, true numbers in the directory only.

    a member   PK\3\4  version 0  flags 0x0808  method 0  time, date, CRC, sizes 0  name length  extra length
               name  [01 00 length, u64 …]  'F' 'B' length  "ZZZ…"  data  [PK\7\8 CRC size size]
    directory  PK\1\2 … one a member, with the true CRC, sizes, offset
               PK\6\6 zip64 end   PK\6\7 its locator   PK\5\6 end: all three always

The CRC is known once the data has been drawn, so it stands behind them, which flag 0x0008 says; 0x0800 is UTF-8. A member of no
bytes has no descriptor. "Z" fills the extra field up to the alignment, so that a reader may map a storage and use it in place.
Where a size or an offset reaches 2**32 - 1, the number goes into a zip64 extra field and both sizes of the descriptor take 8
bytes: torch computes offsets by exactly this rule, so it is a rule of the format.
Sources: caffe2/serialize/inline_container.cc, third_party/miniz of torch 2.13, and files it wrote.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ckptmigrate.files import Late

from ._zip_records import (
    CENTRAL,
    CENTRAL_RECORD,
    DESCRIPTOR,
    END,
    END64,
    END64_RECORD,
    END_RECORD,
    LOCAL,
    LOCAL_RECORD,
    LOCATOR64,
    LOCATOR64_RECORD,
    ONES16,
    ONES32,
    STREAMED,
    UTF8,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptmigrate.tensor import Promise

ALIGNMENT = 64  # bytes; torch's default, said in .storage_alignment

_MADE_BY, _NEEDED = 0x031E, 0x2D  # of the zip64 end record, as miniz has them; every other version field is 0


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the directory says of a member; ``drawn`` numbers the promise whose CRC is not known before it is drawn."""

    name: bytes
    header: int
    nbytes: int
    crc: int
    drawn: int | None

    @property
    def wide(self) -> bool:
        """Whether sizes stand in 8 bytes: by torch's rule the offset's size decides it too."""
        return self.nbytes >= ONES32 or self.header >= ONES32

    @property
    def flags(self) -> int:
        return UTF8 | STREAMED if self.nbytes else UTF8

    def zip64(self, packed: int) -> bytes:
        """Give the zip64 field: only the numbers that need it."""
        numbers = [self.nbytes, packed] if self.nbytes >= ONES32 else []
        numbers += [self.header] if self.header >= ONES32 else []
        return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""

    def local(self) -> bytes:
        """Give the local header, filled up so that the data starts on the alignment; torch leaves the packed size 0 here."""
        extra = self.zip64(0)
        fill = -(self.header + LOCAL_RECORD.size + len(self.name) + len(extra) + 4) % ALIGNMENT
        fixed = LOCAL_RECORD.pack(LOCAL, 0, self.flags, 0, 0, 0, 0, 0, 0, len(self.name), len(extra) + 4 + fill)
        return fixed + self.name + extra + struct.pack("<2sH", b"FB", fill) + b"Z" * fill

    def checksum(self, crcs: Sequence[int]) -> int:
        return self.crc if self.drawn is None else crcs[self.drawn]

    def descriptor(self, crcs: Sequence[int]) -> bytes:
        return struct.pack(
            "<4sIQQ" if self.wide else "<4sIII", DESCRIPTOR, self.checksum(crcs), self.nbytes, self.nbytes
        )

    def central(self, crcs: Sequence[int]) -> bytes:
        extra, size = self.zip64(self.nbytes), min(self.nbytes, ONES32)
        fixed = CENTRAL_RECORD.pack(
            CENTRAL, 0, 0, self.flags, 0, 0, 0, self.checksum(crcs), size, size,
            len(self.name), len(extra), 0, 0, 0, 0, min(self.header, ONES32),
        )  # fmt: skip
        return fixed + self.name + extra


def archive(members: Iterable[tuple[str, bytes | Promise]]) -> tuple[list[tuple[int, bytes | Promise | Late]], int]:
    """Give the pieces of an archive of these members, in this order, and its size in bytes."""
    pieces: list[tuple[int, bytes | Promise | Late]] = []
    entries: list[_Entry] = []
    at = drawn = 0
    for name, data in members:
        if isinstance(data, bytes):
            entry = _Entry(name.encode(), at, len(data), zlib.crc32(data), None)
        else:
            entry = _Entry(name.encode(), at, data.nbytes, 0, drawn)
            drawn += 1
        local = entry.local()
        pieces += [(at, local), (at + len(local), data)]
        at += len(local) + entry.nbytes
        if entry.nbytes:
            descriptor = Late(24 if entry.wide else 16, entry.descriptor)
            pieces.append((at, descriptor))
            at += descriptor.nbytes
        entries.append(entry)
    directory = sum(CENTRAL_RECORD.size + len(entry.name) + len(entry.zip64(entry.nbytes)) for entry in entries)
    tail = directory + END64_RECORD.size + LOCATOR64_RECORD.size + END_RECORD.size
    pieces.append((at, Late(tail, partial(_directory, entries, at, directory))))
    return pieces, at + tail


def extended(
    kept: Promise, directory: Sequence[bytes], name: str, data: bytes
) -> tuple[list[tuple[int, bytes | Promise | Late]], int]:
    """Give the pieces of an archive with one member more, and its size: what stands before its directory stays where it is."""
    entry = _Entry(name.encode(), kept.nbytes, len(data), zlib.crc32(data), None)
    member = entry.local() + data + (entry.descriptor(()) if data else b"")
    entries = [*directory, entry.central(())]
    tail = _ending(entries, kept.nbytes + len(member))
    return [(0, kept), (kept.nbytes, member + tail)], kept.nbytes + len(member) + len(tail)


def _directory(entries: list[_Entry], start: int, nbytes: int, crcs: Sequence[int]) -> bytes:
    """Give all that follows the members; ``start`` and ``nbytes`` are the directory's own."""
    made = _ending([entry.central(crcs) for entry in entries], start)
    assert len(made) == nbytes + END64_RECORD.size + LOCATOR64_RECORD.size + END_RECORD.size
    return made


def _ending(entries: Sequence[bytes], start: int) -> bytes:
    count, short, nbytes = len(entries), min(len(entries), ONES16), sum(map(len, entries))
    return b"".join([
        *entries,
        END64_RECORD.pack(END64, END64_RECORD.size - 12, _MADE_BY, _NEEDED, 0, 0, count, count, nbytes, start),
        LOCATOR64_RECORD.pack(LOCATOR64, 0, start + nbytes, 1),
        END_RECORD.pack(END, 0, 0, short, short, min(nbytes, ONES32), min(start, ONES32), 0),
    ])  # fmt: skip
