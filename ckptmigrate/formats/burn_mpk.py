"""Named MessagePack records (`.mpk`, `.mpk.gz`) of Burn 0.7 to 0.21: `NamedMpkFileRecorder`, `NamedMpkGzFileRecorder`.

    82 | 83              map of 2 (0.7 to 0.11) or 3 (since 0.12)
    a8 "metadata"        map of 5 texts: float, int, format, version, settings
    a4 "item"            the tree, see _burn_record
    a2 "_b" 90           an empty array, since 0.12: the last byte of the file

or a gzip stream of that (default up to 0.11), told by its bytes. Structs are maps in the order in which their fields are declared.
f32 is `ca` and f64 `cb` with 4 and 8 bytes, never shortened; f16 is its bit pattern as an integer, as short as it can be; bytes are
`c4`-`c6`. So f32 and f64 lists, and bytes, stay where they are; lists of integers are decoded once, when they are drawn.
Bytes behind the record are ignored, as Burn does, and said. Sources: rmp-serde 1.1.1 to 1.3.1, rmp-serde/src/encode.rs; burn-core/src/record.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptmigrate.errors import CorruptError, reading
from ckptmigrate.format import Format, Match, Parts, ReadOptions
from ckptmigrate.wire.msgpacks import load

from ._burn_record import record
from ._burn_symptoms import recorded
from ._gzip import head, opened

if TYPE_CHECKING:
    from ckptmigrate.files import Source

_BEGINS = re.compile(rb"[\x82\x83]\xa8metadata[\x80-\x8f]")


def sniff(source: Source) -> Match | None:
    """Claim what begins with a map whose first name is "metadata", plain or in gzip."""
    return Match(FORMAT) if _BEGINS.match(head(source, 16)) else None


def read(source: Source, options: ReadOptions) -> Parts:
    """Give the tensors and numbers of a record in the file's order.

    CorruptError and TruncatedError name the tensor, where it is one's, and both numbers; LimitError.
    """
    with reading(source.name):
        cursor = opened(source, options.limits)
        if not _BEGINS.match(cursor.look(16)):
            raise CorruptError("does not begin as a record does, with a map whose first name is metadata")
        parts = record(load(cursor, options.limits), options)
        if cursor.look(1):
            parts.warnings.append(f"bytes follow the record, which ends at {cursor.at:,}: they are not read")
        return parts


FORMAT = Format(
    "burn_mpk", family="burn", suffixes=(".mpk", ".mpk.gz"), sniff=sniff, read=read, diagnose=recorded,
    about="named MessagePack records of Burn 0.7 to 0.21",
)  # fmt: skip
