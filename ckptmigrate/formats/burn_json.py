r"""JSON records (`.json`, `.json.gz`) of Burn 0.7 to 0.21: `PrettyJsonFileRecorder`, `JsonGzFileRecorder`.

    {"metadata": {"float": "f32", …}, "item": TREE, "_b": null}         the tree: see _burn_record; `_b` since 0.12

pretty with two spaces, or compact in a gzip stream. The same shapes as in MessagePack, with bytes as arrays of 0 to 255, f16 as bit
patterns, floats as the shortest decimal that gives them back, and NaN and infinities as null, which Burn itself cannot read again: they
are read as NaN, and said. Numbers are decoded when they are drawn. Source: serde_json 1.0, src/ser.rs; burn-core/src/record/file.rs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptmigrate.errors import CorruptError, reading
from ckptmigrate.format import Format, Match, Parts, ReadOptions
from ckptmigrate.wire.json_stream import load

from ._burn_record import record
from ._burn_symptoms import recorded
from ._gzip import head, opened

if TYPE_CHECKING:
    from ckptmigrate.files import Source

HEAD = 1024  # bytes in which the five texts of the metadata stand
_BEGINS = re.compile(rb'\s*\{\s*"metadata"\s*:\s*\{\s*"(?:float|int|format|version|settings)"\s*:\s*"')


def sniff(source: Source) -> Match | None:
    """Claim an object whose first name is "metadata", with a text of a recorder in it, plain or in gzip."""
    return Match(FORMAT) if _BEGINS.match(head(source, HEAD)) else None


def read(source: Source, options: ReadOptions) -> Parts:
    """Give the tensors and numbers of a record in the file's order; errors as those of the other recorders."""
    with reading(source.name):
        cursor = opened(source, options.limits)
        parts = record(load(cursor, options.limits), options)
        if cursor.look(1):
            raise CorruptError(f"text follows the record, which ends at {cursor.at:,}")
        return parts


FORMAT = Format(
    "burn_json", family="burn", suffixes=(".json", ".json.gz"), sniff=sniff, read=read, diagnose=recorded,
    about="JSON records of Burn 0.7 to 0.21",
)  # fmt: skip
