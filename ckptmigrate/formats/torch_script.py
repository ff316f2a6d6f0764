"""TorchScript (``torch.jit.save``): recognised, and refused by name until its weights are read.

    P/data.pkl  P/data/KEY  P/code/__torch__/….py  P/constants.pkl  P/constants/KEY  P/version     torch 1.4 and later
    P/model.json  P/tensors/N  P/code/P.py  P/version                                              torch 1.0 to 1.3
    <4 bytes> "PTMF"                                                                               mobile, a flatbuffer

data.pkl alone would read like a checkpoint's: what tells them apart is constants.pkl.
Sources: torch/csrc/jit/serialization/export.cpp, torch/csrc/jit/serialization/mobile_bytecode.fbs; files of torch 1.0, 1.4, 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.errors import UnsupportedFormatError
from ckptmigrate.format import Format, Match

from ._torch_archives import archive_of

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.format import Parts, ReadOptions

_ARCHIVE = "a TorchScript archive, which holds code beside the weights; export a state dict with torch: torch.save(torch.jit.load(path).state_dict(), out)"
_MOBILE = (
    "a TorchScript model for mobile (flatbuffer); it holds code and no checkpoint; take the model that it was made from"
)


def sniff(source: Source) -> Match | None:
    """Claim TorchScript archives and mobile flatbuffers, to refuse them by name."""
    text = _found(source)
    return Match(FORMAT, refuse=text) if text else None


def read(source: Source, options: ReadOptions) -> Parts:  # noqa: ARG001 - the signature of a format
    """Refuse the file by name."""
    raise UnsupportedFormatError(_found(source) or "no TorchScript", path=source.name)


def _found(source: Source) -> str | None:
    if source.size >= 8 and source.read(0, 8)[4:] == b"PTMF":
        return _MOBILE
    found = archive_of(source)
    return _ARCHIVE if found is not None and found.kind == "script" else None


FORMAT = Format(
    "torch_script", family="torch", sniff=sniff, read=read, about="torch.jit.save: recognised, refused by name"
)
