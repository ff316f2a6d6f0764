"""Operations on where names stand: Move in another section, Order among the others, Reindex in their list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ckptmigrate.errors import UsageError

from .contract import Group, On, Reason, Traits
from .patterns import check_patterns, check_place, matches, one_to_many, several
from .reversal import turned
from .spelling import declared, spelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.values import Tree


@dataclass(frozen=True, slots=True)
class Move:
    r"""Carry items from one section to another, the only operation that does: names are items of the whole checkpoint.

        Move(r"model/(.*)\.position_ids", r"values/extra/\1.position_ids")
        Move("values/extra/epoch", "progress/epoch")

    ``back``: pattern and template of the way down, where pattern and template do not tell them.
    """

    pattern: str
    into: str
    back: tuple[str, str] | None = None
    optional: bool = False
    on: ClassVar[On] = "items"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def __post_init__(self) -> None:
        check_patterns((self.pattern, self.into), *([self.back] if self.back else []))

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group an item."""
        return one_to_many(names, self.pattern, (self.into,))

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the source itself."""
        return sources

    def inverse(self) -> Move | Reason:
        """Turn pattern and template round, or take ``back``."""
        way = self.back or turned(self.pattern, self.into)
        if way is None:
            return Reason(f"{self.into!r} does not tell what {self.pattern!r} matched, and no back= does")
        return Move(*way, optional=self.optional)

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Order:
    r"""Put names into this order, at the places that they have among all others, which stay where they are.

        Order([r"embed\..*", r"layers\..*", r"head\..*"])

    Names of one pattern keep their order among themselves. ``back``: the patterns in the order of the way down.
    """

    patterns: Sequence[str]
    back: Sequence[str] = ()
    optional: bool = False
    on: ClassVar[On] = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def __post_init__(self) -> None:
        for name in ("patterns", "back"):
            object.__setattr__(self, name, several(getattr(self, name)))
        check_patterns(*((pattern, None) for pattern in (*self.patterns, *self.back)))
        if not self.patterns:
            raise UsageError("Order of nothing")

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group of all names, and one for each pattern that matches none."""
        found: dict[str, list[str]] = {pattern: [] for pattern in self.patterns}
        for name, pattern, _ in matches(names, self.patterns):
            found[pattern].append(name)
        listed = {name for members in found.values() for name in members}
        ordered = (name for members in found.values() for name in members)
        final = tuple(next(ordered) if name in listed else name for name in names)
        gaps = [Group((), (), missing=(pattern,)) for pattern, members in found.items() if not members]
        return [Group(final, final), *gaps] if listed else gaps

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the sources themselves."""
        return sources

    def inverse(self) -> Order | Reason:
        """Take ``back``."""
        if not self.back:
            return Reason("the order that the names had is not known, and no back= says it")
        return Order(self.back, self.patterns, optional=self.optional)

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Reindex:
    r"""Number the members of lists anew: the first is 0, the next 1, whatever gaps there were.

        Reindex(r"blocks\.(\d+)\..*")
        Reindex(r"(.*)\.blocks\.(?P<n>\d+)\..*", map={0: 0, 2: 1, 3: 2})

    The number is the group called ``n``, else the only one; what stands before it tells the lists apart. ``map``: old numbers to
    new ones, all others stay; with it there is a way back, without it there is none.
    """

    pattern: str
    map: Mapping[int, int] | None = None
    optional: bool = False
    on: On = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def __post_init__(self) -> None:
        check_patterns((self.pattern, None))
        check_place(self.on)
        compiled = re.compile(self.pattern)
        if "n" not in compiled.groupindex and compiled.groups != 1:
            raise UsageError(f"Reindex of {self.pattern!r}: which group is the number? call it (?P<n>\\d+)")
        if self.map is not None and len(set(self.map.values())) < len(self.map):
            raise UsageError(f"Reindex of {self.pattern!r}: two numbers become one in {dict(self.map)}")

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a name whose number the pattern finds."""
        found = []
        for name, _, match in matches(names, (self.pattern,)):
            start, end = match.span("n" if "n" in match.re.groupindex else 1)
            if name[start:end].isdecimal():
                found.append((name, start, end, int(name[start:end])))
        lists: dict[str, set[int]] = {}
        for name, start, _, number in found:
            lists.setdefault(name[:start], set()).add(number)
        dense = {prefix: {n: i for i, n in enumerate(sorted(numbers))} for prefix, numbers in lists.items()}
        groups = []
        for name, start, end, number in found:
            new = dense[name[:start]][number] if self.map is None else self.map.get(number, number)
            groups.append(Group((name,), (f"{name[:start]}{new}{name[end:]}",)))
        return groups or [Group((), (), missing=(self.pattern,))]

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the source itself."""
        return sources

    def inverse(self) -> Reindex | Reason:
        """Turn ``map`` round."""
        if self.map is None:
            return Reason("the numbers that were left out are not known, and no map= says them")
        return Reindex(self.pattern, {new: old for old, new in self.map.items()}, optional=self.optional, on=self.on)

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)
