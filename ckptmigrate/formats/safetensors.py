r"""safetensors (`.safetensors`): a JSON table of tensors, and their bytes.

    0        8 bytes   N, length of the header, little-endian; at most 100,000,000, the reference reader's own bound
    8        N bytes   header, UTF-8 JSON; its first byte is "{" (that is how the format is recognised), its end is filled
                       with spaces so that N is a multiple of 8 and the data begins on one (older files need not)
    8 + N    data      one tensor after the other, row-major, little-endian: no hole, no overlap, to the last byte of the file

    header   {"__metadata__": {text: text},                        optional
              NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}}

BEGIN and END count from 8 + N. A tensor of zero bytes has BEGIN = END. The exact cover lets no file hide bytes, and with it one
comparison of two numbers tells a file that was cut. F4 and F6 elements are packed, four and six bits each; `shape` counts
elements, this code counts units (see `dtypes`), so the last dimension must hold whole units.

The format knows no shared memory. A name tied to another is no entry of the table but text, as the reference library's
`save_model` writes it: `__metadata__[TIED] = KEPT`. `format: pt` says that names and axes are torch's.
What is ours is one JSON object under `__metadata__["ckptmigrate"]`. A number in it under the same key is its major version, as in
`training_state.json`; without one it is 1. `ties` says where the tied names stood among all names
(`{TIED: position}`). It is there when they were not the last ones, or when other text could be taken for a tie, and then tells
exactly which names are tied.

Tensors are written in the order of the source, not sorted by size as the reference writer does: order is meaning, and readers
need no alignment. Sources: safetensors/src/tensor.rs and bindings/python/py_src/safetensors/torch.py, release 0.8.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError, reading
from ckptmigrate.format import Format, Match, Parts, ReadOptions
from ckptmigrate.notes import parsed
from ckptmigrate.tensor import Tensor, View

from ._safetensors_header import header, is_count
from ._safetensors_writer import KIND, KINDS, METADATA, PREFIX, STAMP, lay_out

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.limits import Limits
    from ckptmigrate.values import Scalar

SHARDED = "DCP_SHARDING_INFO"  # torch.distributed.checkpoint's safetensors flavour writes it into each shard
FAMILIES = {text: family for family, text in KINDS.items()}


def sniff(source: Source) -> Match | None:
    """Claim a file whose ninth byte opens a JSON object and whose first eight are a length; the suffix excuses a damaged length."""
    named = source.name.endswith(".safetensors")
    if source.is_folder() or not source.size:
        return None
    if source.size <= PREFIX:
        return Match(FORMAT) if named else None
    head = source.read(0, PREFIX + 1)
    length = int.from_bytes(head[:PREFIX], "little")
    # A length of 2**40 has zeros in bytes 5 to 7, which text never has: JSON with "{" at byte 8 is not taken for a header.
    return Match(FORMAT) if head[PREFIX:] == b"{" and (named or 2 <= length < 1 << 40) else None


def read(source: Source, options: ReadOptions) -> Parts:
    """Give the tensors in header order, tied names where they stood; ``facts["metadata"]`` is the file's text that is not ours.

    TruncatedError, CorruptError, LimitError or TensorError name the tensor and both numbers.
    """
    with reading(source.name):
        head = header(source, options.limits)
        metadata = head.metadata
        tensors: dict[str, Tensor | Scalar] = {
            name: Tensor(
                View.rows(source.range(head.start + entry.begin, entry.end - entry.begin), entry.dtype, entry.shape)
            )
            for name, entry in head.entries.items()
        }
        notes = _notes(metadata.pop(STAMP, None), options.limits)
        tensors = _tie(tensors, metadata, notes.pop("ties", None))
        family = FAMILIES.get(metadata.get(KIND, ""))
        if family:
            del metadata[KIND]
        warnings = (
            [f"{SHARDED} says that each tensor is a part of a whole: this file is one shard"]
            if SHARDED in metadata
            else []
        )
        return Parts(family, tensors=tensors, facts={"metadata": metadata}, notes=notes, warnings=warnings)


def _notes(text: str | None, limits: Limits) -> dict[str, Any]:
    """Give our own JSON object."""
    return {} if text is None else parsed(text, f'"{METADATA}" "{STAMP}"', limits)


def _tie(tensors: dict[str, Tensor | Scalar], metadata: dict[str, str], positions: Any) -> dict[str, Tensor | Scalar]:
    """Give the tensors with each tied name beside the one that was kept, and take the ties out of ``metadata``."""
    if positions is not None and not (isinstance(positions, dict) and all(is_count(at) for at in positions.values())):
        raise CorruptError(f'"{METADATA}" "{STAMP}" has ties that are no positions by name')
    ties = {
        name: kept
        for name, kept in metadata.items()
        if kept in tensors and name not in tensors and (name != KIND if positions is None else name in positions)
    }
    for name in ties:
        del metadata[name]
    if not ties:
        return tensors
    at = {name: place for name, place in (positions or {}).items() if name in ties}
    placed: dict[str, Tensor | Scalar] = {}
    waiting = iter(tensors.items())
    for alias in sorted(at, key=at.__getitem__):
        while len(placed) < at[alias] and (following := next(waiting, None)):
            placed[following[0]] = following[1]
        placed[alias] = tensors[ties[alias]]
    placed.update(waiting)
    placed.update((name, tensors[kept]) for name, kept in ties.items() if name not in at)
    return placed


FORMAT = Format(
    "safetensors",
    sniff=sniff,
    read=read,
    lay_out=lay_out,
    speaks="tensors",
    standard="ckptmigrate",
    suffixes=(".safetensors",),
    current=True,
    about="one file of tensors by name, the default target of torch files",
)
