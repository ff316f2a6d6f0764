"""Trees of values: their nodes, paths and comparison, and their one lossless encoding as strict JSON plus tensors.

nodes, walk, get, put, spell     tree.py
same, difference                 same_tree.py
prune, fold                      prune_tree.py
encode, decode                   codec.py: the encoding, drawn
dumps, loads, Members            strict_json.py: the text of JSON
"""

from __future__ import annotations

from .codec import decode, encode
from .prune_tree import fold, prune
from .same_tree import difference, same
from .strict_json import Members, dumps, loads
from .tree import (
    NOTHING,
    Inert,
    Known,
    Nothing,
    Ordered,
    Path,
    Scalar,
    Tree,
    brief,
    check_size,
    get,
    put,
    reason,
    spell,
    walk,
)

__all__ = [
    "NOTHING",
    "Inert",
    "Known",
    "Members",
    "Nothing",
    "Ordered",
    "Path",
    "Scalar",
    "Tree",
    "brief",
    "check_size",
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
