"""Trees of values: their nodes, paths and comparison, and their one lossless encoding as strict JSON plus tensors.

nodes, walk, get, put, spell     _tree.py
same, difference                 _same.py
prune, fold                      _prune.py
encode, decode                   _codec.py: the encoding, drawn
dumps, loads                     _json.py: the text of JSON
"""

from __future__ import annotations

from .codec import decode, encode
from .prune_tree import fold, prune
from .same_tree import difference, same
from .strict_json import dumps, loads
from .tree import NOTHING, Inert, Known, Nothing, Ordered, Path, Scalar, Tree, brief, get, put, reason, spell, walk

__all__ = [
    "NOTHING",
    "Inert",
    "Known",
    "Nothing",
    "Ordered",
    "Path",
    "Scalar",
    "Tree",
    "brief",
    "decode",
    "difference",
    "dumps",
    "encode",
    "fold",
    "get",
    "loads",
    "prune",
    "put",
    "reason",
    "same",
    "spell",
    "walk",
]
