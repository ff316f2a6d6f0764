"""Acme's record of today."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.format import Blueprint, Format, Match, Parts, ReadOptions, WriteOptions

from . import _bytes

if TYPE_CHECKING:
    from ckptmigrate.files import Source

MAGIC = b"ACME2\0"


def sniff(source: Source) -> Match | None:
    claims = not source.is_folder() and source.size > _bytes.ROOM - 1 and source.read(0, len(MAGIC)) == MAGIC
    return Match(FORMAT) if claims else None


def read(source: Source, _options: ReadOptions) -> Parts:
    return _bytes.read(source, MAGIC)


def lay_out(parts: Parts, _options: WriteOptions, name: str) -> Blueprint:
    return _bytes.lay_out(parts, name, MAGIC)


FORMAT = Format(
    "acme_record",
    sniff,
    read,
    lay_out,
    family="acme",
    standard="acme_epoch",
    suffixes=(".acme",),
    current=True,
)
