r"""Local headers of a zip, and what they tell of one that was cut before its directory.

A member counts as whole where its data and what stands behind them are in the file; `_zip_records` draws the records.

Source: APPNOTE 6.3.10, sections 4.3.7 and 4.3.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._zip_records import DESCRIPTOR, LOCAL, LOCAL_RECORD, STREAMED

if TYPE_CHECKING:
    from ckptmigrate.files import Source

_SCAN = 64 << 20  # bytes looked through to say how much of a cut file is whole: some 50 ms
_PIECE = 1 << 20


def whole_members(source: Source) -> tuple[int, bool]:
    """Count members whose end is in the file, by local headers and descriptors; True when the search stopped at its bound."""
    whole, at = 0, 0
    bound = min(source.size, _SCAN)
    while at + LOCAL_RECORD.size <= bound:
        signature, _, flags, _, _, _, _, packed, _, nlen, elen = LOCAL_RECORD.unpack(source.read(at, LOCAL_RECORD.size))
        if signature != LOCAL:
            return whole, False
        data = at + LOCAL_RECORD.size + nlen + elen
        if flags & STREAMED:
            stop = _descriptor_end(source, data, bound)
            if stop is None:
                return whole, bound < source.size
        else:
            stop = data + packed
            if stop > source.size:
                return whole, False
        whole, at = whole + 1, stop
    return whole, bound < source.size


def _descriptor_end(source: Source, data: int, bound: int) -> int | None:
    """Find the descriptor whose size is its distance from ``data``."""
    at = data
    while at + 16 <= bound:
        piece = source.read(at, min(_PIECE, bound - at))
        found = piece.find(DESCRIPTOR)
        while 0 <= found <= len(piece) - 16:
            packed = int.from_bytes(piece[found + 8 : found + 12], "little")
            if packed == at + found - data:
                return at + found + 16
            found = piece.find(DESCRIPTOR, found + 1)
        if len(piece) < _PIECE:
            return None
        at += _PIECE - 15
    return None
