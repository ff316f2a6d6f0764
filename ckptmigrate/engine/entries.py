"""The entries of one optimizer on their way through an operation: which stand where.

A group that was in the model's order follows the model's; one that was not has an order of its own, which the model says nothing of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptmigrate.checkpoint import Param


@dataclass(slots=True)
class Entry:
    """A parameter's entry on its way, and the positions whose state it carries."""

    param: Param
    of: tuple[int, ...]


class Entries:
    """All of them, each at the position of one that there was. ``before``, ``after``: the names of the model, in order."""

    def __init__(self, params: Sequence[Param], before: Iterable[str], after: Iterable[str]) -> None:
        self.params = params
        self.position = {param.name: position for position, param in enumerate(params) if param.name is not None}
        self.out = [[Entry(param, (position,))] for position, param in enumerate(params)]
        self.named = Counter(param.name for param in params)  # the names that have an entry as it stands
        self.was = {name: rank for rank, name in enumerate(before)}
        self.rank = {name: rank for rank, name in enumerate(after)}

    def standing(self) -> list[Entry]:
        """Give them in order."""
        return [entry for entries in self.out for entry in entries]

    def set(self, position: int, entries: list[Entry]) -> None:
        """Let these entries stand where one stood."""
        self.named.subtract(entry.param.name for entry in self.out[position])
        self.named.update(entry.param.name for entry in entries)
        self.out[position] = entries

    def place(self, positions: Sequence[int], entries: Sequence[Entry]) -> None:
        """Put entries at the earliest of the positions that lie in their own group."""
        first: dict[int, int] = {}
        for position in positions:
            first.setdefault(self.params[position].group, position)
            self.set(position, [])
        for group, position in first.items():
            self.set(position, [entry for entry in entries if entry.param.group == group])

    def behind(self, entry: Entry, position: int, name: str) -> int:
        """Put an entry behind that of a name; give its position."""
        place = [e.param.name for e in self.out[position]].index(name) + 1
        self.set(position, [*self.out[position][:place], entry, *self.out[position][place:]])
        return position

    def stand(self, entry: Entry, position: int, name: str | None = None) -> int:
        """Put an entry where the model has it among those of its group; at a position, or behind a name, where the group has its own order."""
        line = [
            (self.rank[str(e.param.name)], p, str(e.param.name))
            for p, entries in enumerate(self.out)
            for e in entries
            if e.param.group == entry.param.group and e.param.name in self.rank
        ]
        earlier = [each for each in line if each[0] < self.rank[str(entry.param.name)]]
        if line == sorted(line) and earlier:
            return self.behind(entry, *earlier[-1][1:])
        if line == sorted(line) and line:
            position = line[0][1]
            self.set(position, [entry, *self.out[position]])
        elif name is not None:
            self.behind(entry, position, name)
        else:
            self.set(position, [*self.out[position], entry])
        return position

    def in_order(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[int]]:
        """Give entries that were moved as their targets stand, by group; a group that keeps its own order as it was, and which do."""
        found: list[Entry] = []
        kept: list[int] = []
        for group in dict.fromkeys(entry.param.group for entry in entries):
            own = [entry for entry in entries if entry.param.group == group]
            ranks = [self.was[self.params[p].name or ""] for p in sorted(e.of[0] for e in own)]
            if ranks != sorted(ranks):
                own.sort(key=lambda entry: entry.of)
                kept.append(group)
            found += own
        return found, kept

    def stand_as_the_model_has(self, rows: Sequence[tuple[str, ...]]) -> list[int]:
        """Put what became of sources that stand side by side, in the group as in the model, into the new model's order.

        Gives the groups that have the sources otherwise, and keep their own order.
        """
        kept: dict[int, None] = {}
        places: dict[int, int] = {}  # position -> place in its group
        lengths = Counter[int]()
        for position, param in enumerate(self.params) if rows else ():
            places[position] = lengths[param.group]
            lengths[param.group] += 1
        for row in rows:
            groups: dict[int, list[int]] = {}
            for name in row:
                if name in self.position:
                    groups.setdefault(self.params[self.position[name]].group, []).append(self.position[name])
            for group, positions in groups.items():
                start = places[positions[0]]
                if [places[position] for position in positions] != list(range(start, start + len(positions))):
                    kept[group] = None
                    continue
                entries = [entry for position in positions for entry in self.out[position]]
                entries.sort(key=lambda entry: self.rank.get(entry.param.name or "", -1))
                self.place(positions, entries)
        return list(kept)
