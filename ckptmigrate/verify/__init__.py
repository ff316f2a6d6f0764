"""Comparison of tensors and checkpoints.

digest, fingerprint      elements.py: of one tensor
contents, renames        contents.py: which of many tensors are equal, and where they went
spread                   spread.py: how far two lie apart
paired, Names            items.py, following.py: two checkpoints item by item, under names that mean the same on both sides
compare                  comparison.py: whether they hold the same
diff                     differences.py: all that sets them apart; sayings.py: what of it is no tensor
"""

from __future__ import annotations

from .comparison import compare
from .contents import Content, Contents, contents, renames
from .differences import Change, Diff, Kind, Look, diff
from .elements import Fingerprint, Fingerprinting, digest, fingerprint
from .items import Difference
from .spread import Spread, spread

__all__ = [
    "Change",
    "Content",
    "Contents",
    "Diff",
    "Difference",
    "Fingerprint",
    "Fingerprinting",
    "Kind",
    "Look",
    "Spread",
    "compare",
    "contents",
    "diff",
    "digest",
    "fingerprint",
    "renames",
    "spread",
]
