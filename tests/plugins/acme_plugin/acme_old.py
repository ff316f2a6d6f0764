"""Acme's record of yesterday: the same under another magic number, read only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.format import Format, Match, Parts, ReadOptions

from . import _bytes

if TYPE_CHECKING:
    from ckptmigrate.files import Source

MAGIC = b"ACME1\0"


def sniff(source: Source) -> Match | None:
    claims = not source.is_folder() and source.size > _bytes.ROOM - 1 and source.read(0, len(MAGIC)) == MAGIC
    return Match(FORMAT) if claims else None


def read(source: Source, _options: ReadOptions) -> Parts:
    return _bytes.read(source, MAGIC)


FORMAT = Format("acme_old", sniff, read, family="acme", suffixes=(".old", ".old.gz"))
