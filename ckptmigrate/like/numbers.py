"""Names that lost a number: a writer that left the position in a tuple out of the names below it.

    wanted   pair.0.weight [2, 1]   pair.0.bias [1]   pair.1.gamma [2]
    present  pair.weight   [2, 1]   pair.bias   [1]   pair.gamma   [2]     one to one: certain

Two wanted names that differ in the number only are told apart by their shapes, or not at all: where two readings are left, both
are named, and nothing is renamed.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptmigrate.tensor import Shape

NUMBERS = 6  # in one name; a name with more has more ways to lose some than anybody could check


def lost(present: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Give what names that nobody wants are called with their numbers, and the readings of those that have several.

    ``present`` are the names that are not wanted, ``wanted`` those that are not present.
    """
    readings: dict[str, list[str]] = defaultdict(list)
    claims: dict[str, list[str]] = defaultdict(list)
    for name, shape in wanted.items():
        for short in _without(name):
            if present.get(short) == shape:
                readings[short].append(name)
                claims[name].append(short)
    moves = {short: names[0] for short, names in readings.items() if len(names) == 1 == len(claims[names[0]])}
    return moves, {short: names for short, names in readings.items() if short not in moves}


def _without(name: str) -> Iterator[str]:
    """Give the names that are left of one when some of its numbers are."""
    parts = name.split(".")
    places = [place for place, part in enumerate(parts) if part.isdecimal()][:NUMBERS]
    for count in range(1, len(places) + 1):
        for gone in combinations(places, count):
            yield ".".join(part for place, part in enumerate(parts) if place not in gone)
