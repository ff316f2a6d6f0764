"""Plain pickles (``pickle.dump``, joblib, Detectron's ``.pkl``): recognised, and refused by name until they are read.

    80 02..05 │ opcodes … │ "."          protocols 2 to 5
    opcodes … │ "."                      protocols 0 and 1: no header, so the last byte is looked at too

A pickle whose first value is torch's magic number is a file of ``torch.save`` and none of these.
Source: CPython's pickletools.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.errors import UnsupportedFormatError
from ckptmigrate.format import Format, Match
from ckptmigrate.wire.opcodes import scan
from ckptmigrate.wire.pickles import first_int

from ._torch_stream import MAGIC

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.format import Parts, ReadOptions

_REFUSED = (
    "a plain pickle, not written by torch.save; it may hold code that runs when it is loaded: "
    "open it where it came from and save a state dict with torch.save"
)
_OPENING = frozenset(
    {"MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "GLOBAL", "INT", "LONG", "FLOAT", "STRING", "UNICODE"}
)
_OPCODES = 4  # so many of a headless pickle are enough to tell it from text


def sniff(source: Source) -> Match | None:
    """Claim pickles that are no torch stream, to refuse them by name."""
    if source.is_folder():
        return None
    head = source.read(0, min(source.size, 512))
    names = [name for name, _ in scan(head)]
    if len(names) < 2 or first_int(head) == MAGIC:
        return None
    headed = names[0] == "PROTO" and 2 <= head[1] <= 5
    if not headed:
        told = names[0] in _OPENING and (len(names) >= _OPCODES or names[-1] == "STOP")
        if not told or source.read(source.size - 1, 1) != b".":
            return None
    return Match(FORMAT, refuse=_REFUSED)


def read(source: Source, options: ReadOptions) -> Parts:  # noqa: ARG001 - the signature of a format
    """Refuse the file by name."""
    raise UnsupportedFormatError(_REFUSED, path=source.name)


FORMAT = Format(
    "plain_pickle", sniff=sniff, read=read, suffixes=(".pkl",), about="pickle.dump: recognised, refused by name"
)
