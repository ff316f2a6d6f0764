"""One change inside a migrator: a frozen value that knows neither slots nor twins nor order.

    match(names)      which names it takes and which it gives, as groups
    tensors(sources)  what the targets of one group are, from its sources: the same function for weights, twins and slots
    inverse()         the operation that undoes it, or the reason why there is none

The engine walks the groups; everything that follows a parameter follows because of the engine.

    names.py      Rename Drop
    places.py     Move Order Reindex
    axes.py       Transpose Reorder Reshape
    blocks.py     Split Concat Stack Unstack
    elements.py   Add Cast
    ties.py       Tie Untie
    functions.py  Apply
    contract.py, patterns.py, reversal.py, spelling.py, subjects.py    what they share
"""

from __future__ import annotations

from .axes import Reorder, Reshape, Transpose
from .blocks import Concat, Split, Stack, Unstack
from .contract import Group, On, Operation, Reason, Traits
from .elements import Add, Cast
from .functions import Apply
from .names import Drop, Rename
from .patterns import (
    check_patterns,
    literal,
    many_to_many,
    many_to_one,
    matches,
    numeral,
    one_to_many,
    several,
    skipped,
    stands_beside,
)
from .places import Move, Order, Reindex
from .spelling import bind, declared, spelled
from .ties import Tie, Untie

__all__ = [
    "Add", "Apply", "Cast", "Concat", "Drop", "Group", "Move", "On", "Operation", "Order", "Reason", "Reindex", "Rename",
    "Reorder", "Reshape", "Split", "Stack", "Tie", "Traits", "Transpose", "Unstack", "Untie", "bind", "check_patterns", "declared",
    "literal", "many_to_many", "many_to_one", "matches", "numeral", "one_to_many", "several", "skipped", "spelled",
    "stands_beside",
]  # fmt: skip
