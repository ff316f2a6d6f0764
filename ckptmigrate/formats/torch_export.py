"""Exported programs (``torch.export.save``, ``.pt2``): recognised, and refused by name until their weights are read.

    P/archive_format ("pt2")  P/models/NAME.json  P/data/weights/…      torch 2.8 and later
    serialized_exported_program.json  serialized_state_dict.pt          torch 2.1 to 2.7, at the top level

Sources: torch/export/pt2_archive/_package.py and torch/export/__init__.py of torch 2.1 to 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.errors import UnsupportedFormatError
from ckptmigrate.format import Format, Match

from ._torch_archives import archive_of

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.format import Parts, ReadOptions

_REFUSED = "an exported program (torch.export, .pt2), which holds a graph beside the weights; export a state dict with torch: torch.save(torch.export.load(path).state_dict, out)"


def sniff(source: Source) -> Match | None:
    """Claim exported programs, to refuse them by name."""
    found = archive_of(source)
    return Match(FORMAT, refuse=_REFUSED) if found is not None and found.kind == "export" else None


def read(source: Source, options: ReadOptions) -> Parts:  # noqa: ARG001 - the signature of a format
    """Refuse the file by name."""
    raise UnsupportedFormatError(_REFUSED, path=source.name)


FORMAT = Format(
    "torch_export",
    family="torch",
    sniff=sniff,
    read=read,
    suffixes=(".pt2",),
    about="torch.export.save: recognised, refused by name",
)
