r"""Binary records (`.bin`, `.bin.gz`) of Burn 0.7 to 0.21: `BinFileRecorder`, `BinGzFileRecorder`, `BinBytesRecorder`.

    03 "f32"             metadata: float, int, format, version, settings, each a text behind its length
    …  item              values in the order of their declaration, without names or types: bincode 2, see wire/bincodes
                         (`_b` of 0.12 takes no byte): the file ends with the item's last one

        param     id, tensor             tensor, 0.7 to 0.13    count, elements, axes, lengths
        constant  nothing in 0.7, 00 since      since 0.14      bytes, axes, lengths, index of the dtype (its list grew at 0.16 and 0.17)

or a gzip stream of that, told by its bytes. Names and types come from a schema, whose language is _burn_schema's; a wrong one
meets a byte that fits nothing, or ends before the file does. Without one a file is recognised and refused: whoever guesses the fields
reads other values without noticing. What the refusal tells is found by looking for ids with a tensor behind them that fits its shape.
Sources: burn-core/src/record/{file,memory,recorder}.rs 0.7.0 to 0.21.0; formats/burn.md 1.4 and 4.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import AmbiguousError, CorruptError, FormatError, UnsupportedFormatError, reading
from ckptmigrate.format import Format, Match, Parts, ReadOptions
from ckptmigrate.limits import KiB
from ckptmigrate.wire import bincodes

from . import _burn_schema
from ._burn_bin_leaves import item_like, leaves
from ._burn_record import METADATA, record
from ._burn_symptoms import recorded
from ._gzip import head, opened

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.wire.cursor import Cursor

_HEAD = 512  # bytes; two type names and the recorder's take some 150
_TEXT = 1 * KiB  # bytes of one text of the metadata
_SHOWN = 8  # tensors in a message
_BEGINS = re.compile(
    rb"(?:\x03f(?:32|64)|\x13half::binary16::f16|\x12half::bfloat::bf16)(?:\x03[if](?:16|32|64))"
    rb"(?:[\x16-\xfa]|\xfb..)burn_core::record::",
    re.DOTALL,
)


def sniff(source: Source) -> Match | None:
    """Claim what begins with the names of two element types and of a recorder of Burn, plain or in gzip."""
    return Match(FORMAT) if _BEGINS.match(head(source, _HEAD)) else None


def read(source: Source, options: ReadOptions) -> Parts:
    """Give the tensors and numbers of a record in the file's order, named by ``options.schema``.

    A list of schemas is read by the one that fits, so that one file of them serves for a run. Parts of another file of the same model
    name its parameters instead. UnsupportedFormatError without a schema: it tells what the file says of itself and which tensors it
    seems to hold. Others name the place in the schema and the offset.
    """
    with reading(source.name):
        cursor = opened(source, options.limits)
        metadata = _metadata(cursor)
        if options.schema is None:
            raise _nameless(cursor, metadata)
        if isinstance(options.schema, Parts):
            parts = record(
                {"metadata": metadata, "item": item_like(cursor, metadata, options.schema)}, options, typed=True
            )
            parts.facts |= {key: value for key, value in options.schema.facts.items() if key == "fields"}
            return parts
        schemas = options.schema if isinstance(options.schema, list) else [options.schema]
        return record({"metadata": metadata, "item": _fitting(source, schemas, metadata, options)}, options, typed=True)


def _metadata(cursor: Cursor) -> dict[str, str]:
    if not _BEGINS.match(cursor.look(_HEAD)):
        raise CorruptError(
            "does not begin as a binary record does, with the names of its element types and of its recorder"
        )
    return {name: bincodes.text(cursor, _TEXT) for name in METADATA}


def _fitting(source: Source, schemas: list[Any], metadata: dict[str, str], options: ReadOptions) -> Any:
    """Give the item by the one schema that ends with the file. AmbiguousError names two that do, CorruptError what each meets."""
    version = _burn_schema.version_of(metadata["version"])
    types = [_burn_schema.schema(schema, version) for schema in schemas]
    items: dict[int, Any] = {}
    met: list[FormatError] = []
    for index, of in enumerate(types):
        cursor = opened(source, options.limits)
        try:
            _metadata(cursor)
            item = _burn_schema.item(cursor, of, metadata, options.limits)
            if cursor.look(1):
                raise _longer(cursor)
            items[index] = item
        except FormatError as error:
            met.append(error)
    if len(items) > 1:
        which = " and ".join(str(index) for index in items)
        raise AmbiguousError(f"schemas {which} of the list fit alike", candidates=sorted(items))
    if not items and len(met) == 1:
        raise met[0]
    if not items:
        found = "; ".join(f"{index}: {error.message}" for index, error in enumerate(met)) or "it is empty"
        raise CorruptError(f"none of the schemas fits: {found}", hint=met[0].hints[0] if met else None)
    return next(iter(items.values()))


def _longer(cursor: Cursor) -> CorruptError:
    left = cursor.left()
    rest = "bytes follow" if left is None else f"{left:,} bytes follow"
    return CorruptError(
        f"the schema ends at byte {cursor.at:,}, and {rest}",
        offset=cursor.at,
        hint="the schema is of another model, or of another release of Burn",
    )


def _nameless(cursor: Cursor, metadata: dict[str, str]) -> UnsupportedFormatError:
    """Give the refusal of a file without a schema, with all that the file tells."""
    start = cursor.at
    found, whole = leaves(cursor, metadata)
    shown = ", ".join(f"{leaf.dtype} {list(leaf.shape)}" for leaf in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    seems = (
        f"it seems to hold {len(found)} parameters ({shown}{more})" if found else "no parameter was recognised in it"
    )
    if not whole:
        seems += ", as far as was looked"
    data: dict[str, Any] = {"metadata": metadata, "leaves": found, "offset": start}
    error = UnsupportedFormatError(
        f"a binary record of Burn {metadata['version']} ({metadata['settings']}: {metadata['float']} and {metadata['int']}),"
        f" which holds no names and no types: {seems}",
        **data,
    )
    error.add_note(
        "--schema FILE supplies the fields of its modules, as JSON, in the order of their declaration; for a model, a .mpk, .json or"
        " .bpk of the same model does too"
    )
    return error


FORMAT = Format(
    "burn_bin", family="burn", suffixes=(".bin", ".bin.gz"), sniff=sniff, read=read, diagnose=recorded,
    about="binary records of Burn 0.7 to 0.21, with a schema",
)  # fmt: skip
