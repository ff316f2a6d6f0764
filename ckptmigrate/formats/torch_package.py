"""Packages (``torch.package.PackageExporter``): recognised, and refused by name.

    P/.data/extern_modules  P/.data/version  P/.data/KEY.storage  P/<package>/<resource>.pkl  P/<module>.py

A package is a program: which of its pickles is a model is known to its code only.
Source: torch/package/package_exporter.py of torch 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.errors import UnsupportedFormatError
from ckptmigrate.format import Format, Match

from ._torch_archives import archive_of

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.format import Parts, ReadOptions

_REFUSED = "a torch.package archive, which is a program with its code; load the model with torch.package.PackageImporter and save its state dict"


def sniff(source: Source) -> Match | None:
    """Claim packages, to refuse them by name."""
    found = archive_of(source)
    return Match(FORMAT, refuse=_REFUSED) if found is not None and found.kind == "package" else None


def read(source: Source, options: ReadOptions) -> Parts:  # noqa: ARG001 - the signature of a format
    """Refuse the file by name."""
    raise UnsupportedFormatError(_REFUSED, path=source.name)


FORMAT = Format(
    "torch_package", family="torch", sniff=sniff, read=read, about="torch.package: recognised, refused by name"
)
