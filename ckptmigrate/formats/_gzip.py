"""Files that are plain or one gzip stream, told by their first two bytes and read alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.errors import FormatError
from ckptmigrate.limits import LIMITS
from ckptmigrate.wire.cursor import Cursor

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.limits import Limits

MAGIC = b"\x1f\x8b"


def packed(source: Source) -> bool:
    """Tell whether a file is a gzip stream."""
    return not source.is_folder() and source.read(0, min(2, source.size)) == MAGIC


def head(source: Source, nbytes: int) -> bytes:
    """Give up to ``nbytes`` bytes from the start, decoded; none of a folder, or of a stream that breaks before."""
    if source.is_folder():
        return b""
    try:
        return opened(source, LIMITS).look(nbytes)
    except FormatError:
        return b""


def within(source: Source, limits: Limits) -> Source:
    """Give the stream within a gzip file, and any other file as it is."""
    return source.decoded("gzip", None, limits.inflated) if packed(source) else source


def opened(source: Source, limits: Limits) -> Cursor:
    """Give the start of a file, decoded; a stream's end, and with it its checksum, is where nothing more comes."""
    stream = within(source, limits)
    return Cursor(stream, source.size if stream is source else None)
