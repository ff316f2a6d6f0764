"""Files that somebody compressed as a whole: what lies at the head of the stream within.

    1F 8B     gzip       decoded as it is read; what needs the end of the file is refused by name
    42 5A 68  bzip2      refused by name: one block has up to 900 kB and decodes as a whole

Users wrote them with ``gzip.open``; torch itself reads a gzip object that it is handed, and nothing else.
"""

from __future__ import annotations

import bz2
from typing import TYPE_CHECKING, NamedTuple

from ckptmigrate.limits import LIMITS

from ._gzip import packed, within

if TYPE_CHECKING:
    from ckptmigrate.files import Source

BZIP2 = b"BZh"
_HEAD = 64  # bytes; the magic number of a torch stream at any protocol, with a frame around it, takes some 30
_BLOCK = 1 << 20


class Compressed(NamedTuple):
    """How a file is compressed, the tool that undoes it, and the first bytes within."""

    codec: str
    tool: str
    head: bytes


def compressed(source: Source) -> Compressed | None:
    """Give what a compressed file holds; None for any other, and for one whose head does not decode."""
    if source.is_folder():
        return None
    magic = source.read(0, min(source.size, 3))
    if packed(source):
        try:
            return Compressed("gzip", "gunzip", within(source, LIMITS).read(0, _HEAD))
        except ValueError:  # CorruptError and LimitError are: not gzip after all
            return None
    if magic == BZIP2:
        try:
            head = bz2.BZ2Decompressor().decompress(source.read(0, min(source.size, _BLOCK)), _HEAD)
        except OSError:
            return None
        return Compressed("bzip2", "bunzip2", head)
    return None
