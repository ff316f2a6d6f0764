r"""The directory of a zip file, read with bounds and believed only where its local headers agree.

    ┌ PK\3\\4 local header, name, extra │ data │ [PK\7\\8 descriptor] ┐ one a member
    ├ PK\1\\2 central header, name, extra ┤ one a member                      the directory
    ├ [PK\6\\6 zip64 end record] [PK\6\\7 its locator] ┤                   torch writes both always
    ├ PK\5\\6 end record, comment ┤ [bytes that belong to nobody]          accepted: torch accepts them too

torch leaves sizes and CRC of local headers 0 and writes them behind the data, so only the directory tells them; the local
header is needed for the place of the data. Python's ``zipfile`` takes the last of two members with one name and torch the first,
and torch's lookup ignores case: such pairs are refused, not chosen from.
Sources: APPNOTE 6.3.10; caffe2/serialize/inline_container.cc and third_party/miniz of torch 2.13.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptmigrate.errors import CkptError, CorruptError, LimitError, TruncatedError, UnsupportedFormatError
from ckptmigrate.files import Member

from ._zip_records import (
    CENTRAL,
    CENTRAL_RECORD,
    ENCRYPTED,
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
from ._zip_remains import whole_members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptmigrate.files import Range, Source
    from ckptmigrate.limits import Limits

_TAIL = 22 + 0xFFFF + 1  # an end record and the longest comment; what else may follow it has to fit as well
_STORED, _DEFLATED = 0, 8
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One member: ``packed`` bytes at ``offset`` of the file, which give ``size`` bytes. ``crc`` 0: the file gives none."""

    name: str
    deflated: bool
    crc: int
    packed: int
    size: int
    offset: int

    def source(self, archive: Source, limits: Limits) -> Source:
        """Give the member's bytes; those of a deflated one are decoded when read, and size and CRC checked then."""
        if not self.deflated:
            return archive.part(self.offset, self.size, self.name, self._member())
        packed = archive.part(self.offset, self.packed, self.name)
        return packed.decoded("deflate", self.size, limits.inflated, self.crc or None)

    def range(self, archive: Source, limits: Limits) -> Range:
        """Give the member's bytes as one range, which knows the member and its CRC if it is stored."""
        if not self.deflated:
            return archive.range(self.offset, self.size, self._member())
        return self.source(archive, limits).range(0, self.size)

    def text(self, archive: Source, limits: Limits) -> bytes:
        """Give all bytes of a small member, compared with its CRC; CorruptError names both."""
        if self.size > limits.text:
            raise LimitError(
                f"member {self.name!r} claims {self.size} bytes, at most {limits.text} are taken for such a record",
                path=archive.name, limit="text", claimed=self.size,
            )  # fmt: skip
        data = self.source(archive, limits).read(0, self.size)
        self._compare(zlib.crc32(data), archive)
        return data

    def verify(self, archive: Source) -> None:
        """Compare a stored member's bytes with its CRC, in pieces; a deflated one is compared as it is decoded."""
        if self.deflated or not self.crc:
            return
        crc = 0
        for at in range(0, self.size, _PIECE):
            crc = zlib.crc32(archive.read(self.offset + at, min(_PIECE, self.size - at)), crc)
        self._compare(crc, archive)

    def _member(self) -> Member:
        return Member(self.name, self.offset, self.size, self.crc or None)

    def _compare(self, crc: int, archive: Source) -> None:
        if self.crc and crc != self.crc:
            raise CorruptError(
                f"member {self.name!r} has CRC {crc:08x}, the directory says {self.crc:08x}",
                path=archive.name, member=self.name, stored=self.crc, computed=crc,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Directory:
    """The members by name, in the directory's order, folders left out; ``trailing`` bytes follow the zip."""

    members: dict[str, Entry]
    trailing: int = 0


@dataclass(frozen=True, slots=True)
class _Central:
    name: str
    raw: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    header: int


@dataclass(frozen=True, slots=True)
class _End:
    entries: int
    nbytes: int
    offset: int
    trailing: int


def is_zip(source: Source) -> bool:
    """Say whether a zip starts at byte 0, which is all that torch looks at."""
    return source.size >= 4 and source.read(0, 4) == LOCAL


def listing(source: Source, limits: Limits) -> list[str]:
    """Name the members as the directory has them, folders included; no local header is read.

    Raises TruncatedError without an end record, else what ``directory`` raises of the directory alone.
    """
    end = _find_end(source)
    return [central.name for central in _centrals(source, end, limits)]


def directory(source: Source, limits: Limits) -> Directory:
    """Give every member with the place of its data, after comparing directory, local headers and the file's size.

    Raises TruncatedError without an end record; CorruptError for members that overlap, lie outside, occur twice or contradict
    their local header; LimitError for claims beyond ``limits``; UnsupportedFormatError for encryption, methods other than
    stored and deflated, and several disks. Reads one local header a member: some 5 µs each.
    """
    end = _find_end(source)
    behind = source.size - end.trailing
    if end.trailing >= len(LOCAL) and source.read(behind, len(LOCAL)) == LOCAL:
        raise UnsupportedFormatError(
            f"several zip archives one after the other: the first ends at {behind} of {source.size} bytes, where the next starts",
            path=source.name, offset=behind,
            hint="a distributed checkpoint's .distcp file is such a row; its tensors are whole only with the .metadata beside it",
        )  # fmt: skip
    centrals = list(_centrals(source, end, limits))
    places: dict[str, int] = {}
    free, before = 0, "the start of the file"
    for central in sorted(centrals, key=lambda c: c.header):
        if central.header < free:
            raise CorruptError(
                f"member {central.name!r} starts at {central.header}, but {before} ends at {free}: they overlap",
                path=source.name, member=central.name, offset=central.header,
            )  # fmt: skip
        offset = _data_offset(source, central)
        free, before = offset + central.packed, f"member {central.name!r}"
        if free > end.offset:
            raise CorruptError(
                f"member {central.name!r} has {central.packed} bytes at {offset} and ends at {free}, "
                f"but the directory starts at {end.offset}",
                path=source.name, member=central.name, offset=offset,
            )  # fmt: skip
        places[central.name] = offset
    members = {
        c.name: Entry(c.name, c.method == _DEFLATED, c.crc, c.packed, c.size, places[c.name])
        for c in centrals
        if not c.name.endswith("/")
    }
    return Directory(members, end.trailing)


def raw_directory(source: Source, limits: Limits) -> tuple[int, list[tuple[str, bytes]]]:
    """Give the offset at which the directory starts, and its entries as they stand, by name; errors as ``listing``."""
    end = _find_end(source)
    names = [central.name for central in _centrals(source, end, limits)]
    data, found, at = source.read(end.offset, end.nbytes), list[bytes](), 0
    for _ in names:
        _, stop = _central(source, data, at, end.offset)
        found.append(data[at:stop])
        at = stop
    return end.offset, list(zip(names, found, strict=True))


def _find_end(source: Source) -> _End:
    start = max(0, source.size - _TAIL)
    tail = source.read(start, source.size - start)
    at = tail.rfind(END)
    problem: CkptError | None = None
    while (
        at >= 0
    ):  # a comment or trailing bytes may hold the signature by chance; the record that fits its directory is the one
        try:
            if at + END_RECORD.size <= len(tail):
                return _end_at(source, start + at, tail[at : at + END_RECORD.size])
        except CkptError as error:
            problem = problem or error
        at = tail.rfind(END, 0, at)
    if problem is not None:
        raise problem
    whole, bounded = whole_members(source)
    some = f"{whole} or more" if bounded else str(whole)
    raise TruncatedError(
        f"truncated zip: no end record in the last {len(tail)} of {source.size} bytes; "
        f"{some} {'entry is' if some == '1' else 'entries are'} complete",
        path=source.name, hint="copy or download the file again", needed=None, present=source.size, whole=whole,
    )  # fmt: skip


def _end_at(source: Source, at: int, record: bytes) -> _End:
    _, disk, first, here, entries, nbytes, offset, comment = END_RECORD.unpack(record)
    trailing = source.size - at - END_RECORD.size - comment
    stop = at
    if trailing < 0:
        raise TruncatedError(
            f"truncated zip: the comment of the end record at {at} has {comment} bytes, {comment + trailing} are there",
            path=source.name, needed=comment, present=comment + trailing,
        )  # fmt: skip
    if at >= LOCATOR64_RECORD.size and source.read(at - LOCATOR64_RECORD.size, 4) == LOCATOR64:
        _, at_disk, stop, disks = LOCATOR64_RECORD.unpack(
            source.read(at - LOCATOR64_RECORD.size, LOCATOR64_RECORD.size)
        )
        if at_disk or disks > 1:
            raise UnsupportedFormatError(f"a zip of {disks} disks, only single ones are read", path=source.name)
        if stop + END64_RECORD.size > at - LOCATOR64_RECORD.size or source.read(stop, 4) != END64:
            raise CorruptError(
                f"the zip64 locator at {at - LOCATOR64_RECORD.size} points to {stop}, where no zip64 end record is",
                path=source.name, offset=stop,
            )  # fmt: skip
        wide = END64_RECORD.unpack(source.read(stop, END64_RECORD.size))[4:]
        narrow = (disk, first, here, entries, nbytes, offset)
        for short, long, ones in zip(narrow, wide, (ONES16,) * 4 + (ONES32,) * 2, strict=True):
            if short not in (ones, long):
                raise CorruptError(f"end record and zip64 end record disagree: {short} and {long}", path=source.name)
        disk, first, here, entries, nbytes, offset = wide
    if disk or first or here != entries:
        raise UnsupportedFormatError(
            f"a zip of several disks (part {disk}), only single ones are read", path=source.name
        )
    if offset + nbytes != stop:
        raise CorruptError(
            f"the end record at {at} says that the directory has {nbytes} bytes at {offset}, it has to end at {stop}",
            path=source.name, offset=offset,
        )  # fmt: skip
    return _End(entries, nbytes, offset, trailing)


def _centrals(source: Source, end: _End, limits: Limits) -> Iterator[_Central]:
    for name, claimed, limit in (("index", end.nbytes, limits.index), ("tensors", end.entries, limits.tensors)):
        if claimed > limit:
            what = "bytes of directory" if name == "index" else "members"
            raise LimitError(
                f"claims {claimed} {what}, the limit is {limit}", path=source.name, limit=name, claimed=claimed
            )
    if end.entries * CENTRAL_RECORD.size > end.nbytes:
        raise CorruptError(f"{end.entries} members do not fit into a directory of {end.nbytes} bytes", path=source.name)
    data = source.read(end.offset, end.nbytes)
    at = 0
    seen: dict[str, str] = {}
    for _ in range(end.entries):
        central, at = _central(source, data, at, end.offset)
        _check(source, central, limits)
        folded = central.name.casefold()
        if folded in seen:
            twin = seen[folded]
            same = "twice" if twin == central.name else f"besides {twin!r}, which differs in case only"
            raise CorruptError(
                f"member {central.name!r} occurs {same}; readers disagree which one counts",
                path=source.name, member=central.name,
            )  # fmt: skip
        seen[folded] = central.name
        yield central
    if at != end.nbytes:
        raise CorruptError(f"{end.entries} members take {at} of the directory's {end.nbytes} bytes", path=source.name)


def _central(source: Source, data: bytes, at: int, base: int) -> tuple[_Central, int]:
    if data[at : at + 4] != CENTRAL or at + CENTRAL_RECORD.size > len(data):
        raise CorruptError(
            f"no directory entry at {base + at}, but more are claimed", path=source.name, offset=base + at
        )
    fields = CENTRAL_RECORD.unpack_from(data, at)
    _, _, _, flags, method, _, _, crc, packed, size, nlen, elen, clen, disk, _, attributes, header = fields
    begin, stop = at + CENTRAL_RECORD.size, at + CENTRAL_RECORD.size + nlen + elen + clen
    if stop > len(data):
        raise CorruptError(f"the directory entry at {base + at} is longer than the directory", path=source.name)
    raw, extra = data[begin : begin + nlen], data[begin + nlen : begin + nlen + elen]
    try:
        name = raw.decode("utf-8" if flags & UTF8 else "cp437")
    except UnicodeDecodeError as error:
        raise CorruptError(
            f"the name of the directory entry at {base + at} is no UTF-8: {raw!r}", path=source.name
        ) from error
    values = _widen(source, name, extra, [size, packed, header], disk)
    if attributes >> 28 == 0o12:
        raise CorruptError(f"member {name!r} is a symbolic link", path=source.name, member=name)
    return _Central(name, raw, flags, method, crc, values[1], values[0], values[2]), stop


def _widen(source: Source, name: str, extra: bytes, values: list[int], disk: int) -> list[int]:
    """Take the fields that are all ones from the zip64 extra field; the others are not in it."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            for index, value in enumerate(values):
                if value == ONES32:
                    if len(field) < 8:
                        raise CorruptError(
                            f"the zip64 field of member {name!r} ends early", path=source.name, member=name
                        )
                    values[index] = int.from_bytes(field[:8], "little")
                    field = field[8:]
            if disk == ONES16 and len(field) >= 4:
                disk = int.from_bytes(field[:4], "little")
            break
        at += 4 + length
    if disk:
        raise UnsupportedFormatError(
            f"member {name!r} lies on disk {disk}, only single ones are read", path=source.name
        )
    return values


_BAD_NAME = re.compile(r"^$|^/|^[A-Za-z]:|\\|\0|(^|/)\.\.(/|$)")


def _check(source: Source, central: _Central, limits: Limits) -> None:
    name = central.name
    if _BAD_NAME.search(name):
        raise CorruptError(f"member name {name!r} is no plain relative path", path=source.name, member=name)
    if central.flags & ENCRYPTED:
        raise UnsupportedFormatError(f"member {name!r} is encrypted", path=source.name, member=name)
    if central.method not in (_STORED, _DEFLATED):
        raise UnsupportedFormatError(
            f"member {name!r} is packed with method {central.method}; 0 (stored) and 8 (deflate) are read",
            path=source.name, member=name,
        )  # fmt: skip
    if (central.method == _STORED and central.packed != central.size) or (name.endswith("/") and central.size):
        raise CorruptError(
            f"member {name!r} has {central.packed} bytes in the file and claims {central.size}",
            path=source.name, member=name,
        )  # fmt: skip
    if central.method == _DEFLATED:
        for limit, most in (("ratio", limits.ratio * central.packed), ("inflated", limits.inflated)):
            if central.size > most:
                raise LimitError(
                    f"member {name!r} claims {central.size} bytes out of {central.packed}, at most {most} are taken ({limit})",
                    path=source.name, member=name, limit=limit, claimed=central.size,
                )  # fmt: skip


def _data_offset(source: Source, central: _Central) -> int:
    length = LOCAL_RECORD.size + len(central.raw)
    if central.header + length > source.size:
        raise CorruptError(
            f"member {central.name!r} starts at {central.header}, the file has {source.size} bytes",
            path=source.name, member=central.name, offset=central.header,
        )  # fmt: skip
    head = source.read(central.header, length)
    signature, _, flags, method, _, _, crc, packed, size, nlen, elen = LOCAL_RECORD.unpack_from(head)
    found: tuple[object, ...] = (signature, head[LOCAL_RECORD.size :], nlen, method, flags & ENCRYPTED)
    wanted: tuple[object, ...] = (LOCAL, central.raw, len(central.raw), central.method, 0)
    if found == wanted and not flags & STREAMED:  # else the numbers stand behind the data
        agree = crc == central.crc and packed in (ONES32, central.packed) and size in (ONES32, central.size)
        found, wanted = (
            (crc, packed, size),
            (crc, packed, size) if agree else (central.crc, central.packed, central.size),
        )
    if found != wanted:
        raise CorruptError(
            f"the local header of member {central.name!r} at {central.header} says {found!r}, the directory {wanted!r}",
            path=source.name, member=central.name, offset=central.header,
        )  # fmt: skip
    return central.header + length + int(elen)
