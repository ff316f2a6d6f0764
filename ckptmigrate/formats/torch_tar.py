"""Tar checkpoints of torch 0.1.x: recognised, and refused by name until they are read.

    512-byte header, "ustar" at 257 │ member │ …        members sys_info, pickle, tensors, storages in any order,
                                                         each perhaps behind a PAX header, perhaps named ./pickle

A file called ``.pth.tar`` is almost never one; content decides.
Sources: torch/serialization.py of torch 0.1.x and its reader in 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.errors import UnsupportedFormatError
from ckptmigrate.format import Format, Match

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.format import Parts, ReadOptions

_REFUSED = "a tar checkpoint of torch 0.1.x, which is not read yet; open it with torch.load and save it again"
_BLOCK = 512
_LOOKED = 64  # headers: the four members, their PAX headers, and some that a tool may have added
_MEMBERS = {"pickle", "storages"}  # Burn's own tests write files without tensors


def sniff(source: Source) -> Match | None:
    """Claim tar files with the members of torch 0.1.x, to refuse them by name."""
    if source.is_folder() or source.size < 2 * _BLOCK or source.read(257, 5) != b"ustar":
        return None
    return Match(FORMAT, refuse=_REFUSED) if _names(source) >= _MEMBERS else None


def read(source: Source, options: ReadOptions) -> Parts:  # noqa: ARG001 - the signature of a format
    """Refuse the file by name."""
    raise UnsupportedFormatError(_REFUSED, path=source.name)


def _names(source: Source) -> set[str]:
    names: set[str] = set()
    at = 0
    for _ in range(_LOOKED):
        if at + _BLOCK > source.size:
            break
        header = source.read(at, _BLOCK)
        if header[257:262] != b"ustar":
            break
        names.add(header[:100].split(b"\0", 1)[0].decode("latin-1").removeprefix("./"))
        digits = header[124:136].strip(b" \0")
        if not digits.isdigit() or digits.strip(b"01234567"):
            break
        at += _BLOCK + -(-int(digits, 8) // _BLOCK) * _BLOCK
    return names


FORMAT = Format(
    "torch_tar",
    family="torch",
    sniff=sniff,
    read=read,
    suffixes=(".tar",),
    about="torch 0.1.x: recognised, refused by name",
)
