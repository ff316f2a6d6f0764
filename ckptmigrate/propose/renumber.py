"""Lists that were numbered anew: 0, 2, 4 became 0, 1, 2, in every name below them. One operation says it for any length."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .generalise import Pair
from .spelling import NUMBER, escaped, template

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True, slots=True)
class Renumbering:
    """One list, or the like one in every layer: the pattern of what lies in it, old numbers to new ones, and the pairs it says."""

    pattern: str
    numbers: dict[int, int]
    pairs: tuple[Pair, ...]


def renumbered(pairs: Sequence[Pair], present: Collection[str]) -> tuple[list[Pair], list[Renumbering]]:
    """Give the renames that are left when numbers keep, and the renumberings that follow them."""
    shapes: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Pair]] = defaultdict(list)
    for pair in pairs:
        shapes[template(pair.sources[0]), template(pair.targets[0])].append(pair)
    lists: dict[str, dict[int, int]] = {}
    for members in shapes.values():
        found = _deciding(members)
        if found is not None:
            place, numbers = found
            head = _head(members[0].targets[0], place)
            known = lists.setdefault(head, {})
            if any(known.get(number, new) != new for number, new in numbers.items()):
                return list(pairs), []  # two lists of one name that were numbered in two ways
            known |= numbers
    left: list[Pair] = []
    said: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        head, between = _between(pair, lists)
        if between is None:
            left.append(pair)
            continue
        said[head].append(Pair((between,), pair.targets))
        if between != pair.sources[0]:
            left.append(Pair(pair.sources, (between,)))
    moved = {pair.sources[0]: pair.targets[0] for pair in left}
    names = {moved.get(name, name) for name in present}
    made = [Renumbering(rf"{head}(\d+)\b.*", lists[head], tuple(members)) for head, members in said.items()]
    if all(_says(each, names) for each in made):
        return left, made
    return list(pairs), []


def _deciding(pairs: Sequence[Pair]) -> tuple[int, dict[int, int]] | None:
    """Give the place of a target's number that another number of the source decides, and how; None where it is none, or two."""
    columns = [list(zip(*(NUMBER.findall(names[0]) for names in each), strict=True)) for each in zip(
        *((pair.sources, pair.targets) for pair in pairs), strict=True
    )]  # fmt: skip
    if len(columns) != 2:
        return None
    old, new = columns
    places = [place for place, column in enumerate(new) if len(set(column)) > 1 and column not in old]
    if len(places) != 1:
        return None
    (place,) = places
    for column in old:
        ways = set(zip(column, new[place], strict=True))
        if len(ways) == len(set(column)) == len(set(new[place])) and column not in new:
            return place, {int(before): int(after) for before, after in ways}
    return None


def _head(name: str, place: int) -> str:
    """Give a pattern of what stands before a number: other numbers are any."""
    pieces = NUMBER.split(name)[: 2 * place + 1]
    return "".join(r"\d+" if index % 2 else escaped(piece) for index, piece in enumerate(pieces))


def _between(pair: Pair, lists: dict[str, dict[int, int]]) -> tuple[str, str | None]:
    """Give the list that a target lies in, and the target with the number that it had in its source."""
    target = pair.targets[0]
    olds = set(NUMBER.findall(pair.sources[0]))
    for head, numbers in lists.items():
        found = re.match(rf"{head}(\d+)\b", target)
        if found is None:
            continue
        before = next((old for old, new in numbers.items() if new == int(found[1])), None)
        if before is not None and str(before) in olds:
            return head, f"{target[: found.start(1)]}{before}{target[found.end(1) :]}"
    return "", None


def _says(found: Renumbering, names: Collection[str]) -> bool:
    """Say whether the pattern and its numbers move just these names."""
    due = {pair.sources[0]: pair.targets[0] for pair in found.pairs}
    pattern = re.compile(found.pattern)
    for name in names:
        match = pattern.fullmatch(name)
        made = name
        if match is not None:
            number = found.numbers.get(int(match[1]), int(match[1]))
            made = f"{name[: match.start(1)]}{number}{name[match.end(1) :]}"
        if made != due.get(name, name):
            return False
    return all(name in names for name in due)
