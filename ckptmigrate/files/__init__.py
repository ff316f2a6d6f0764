"""The door to the disk, on the way in: files by path, windows of them, decoded streams, and scratch.

    Disk ── open(path) ──► Source ── range(offset, n) ──► Range ── (a promise) ──► out.Out.put
                           │ part, child, decoded          │ file: File
                           └ read(offset, n)               └ member: the container member it lies in, with its CRC

A Source is what a reader reads, a Range what a promise keeps. Parts of parts resolve to the one File underneath, so ranges
that reach the same bytes by different ways are equal. On the way out the door is ``sink``.
"""

from __future__ import annotations

from .disk import LEFTOVER, SIDECAR, Disk, is_there
from .source import File, Late, Member, Range, Source

__all__ = ["LEFTOVER", "SIDECAR", "Disk", "File", "Late", "Member", "Range", "Source", "is_there"]
