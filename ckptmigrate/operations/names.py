"""Operations on names alone: Rename gives them a new spelling, Drop takes them out."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ckptmigrate.errors import UsageError

from .contract import Group, On, Reason, Traits
from .patterns import beside, check_looks, check_patterns, check_place, literal, matches
from .spelling import declared, spelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.values import Tree


@dataclass(frozen=True, slots=True)
class Rename:
    r"""Give names a new spelling: a regular expression over the whole name, and a template for what it becomes.

        Rename(r"features\.(\d+)\.(.*)", r"stem.\1.\2", back=(r"stem\.(\d+)\.(.*)", r"features.\1.\2"))
        Rename({r"a\.(.*)": r"b.\1", r"b\.(.*)": r"a.\1"})          # at once, so a swap works

    Of several patterns the first that matches a name counts. A literal one (no group, no class, every dot escaped) has its
    inverse in itself; any other needs ``back``: one pair, or as many as there are patterns.

    ``fields``: take only names below a module that has exactly these, in a record that lists them; the pattern's first group
    is the module's path, with its last dot or without. ``where``: take only names for which the name that this template expands
    to is there too (one template, or one a pattern). ``repeated``: go on while a pattern still matches and the name gets shorter,
    for prefixes that nest. ``of``: the names that all have it as a rule; where only some do, the report warns how many do not.
    """

    pattern: str | Mapping[str, str]
    into: str | None = None
    back: tuple[str, str] | Mapping[str, str] | None = None
    optional: bool = False
    on: On = "model"
    fields: Sequence[str] | None = None
    where: str | Mapping[str, str] | None = None
    repeated: bool = False
    of: str | None = None
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def __post_init__(self) -> None:
        if isinstance(self.pattern, str) == (self.into is None):
            raise UsageError("Rename takes a pattern and what it becomes, or one mapping of them")
        check_patterns(*self.pairs.items(), *self.ways_back.items(), *self.beside.items())
        check_patterns(*([] if self.of is None else [(self.of, None)]))
        check_place(self.on)
        if self.fields is not None:
            check_looks(self.on, *((pattern, r"\1") for pattern in self.pairs))

    @property
    def pairs(self) -> dict[str, str]:
        """Give what each pattern becomes."""
        return {self.pattern: self.into or ""} if isinstance(self.pattern, str) else dict(self.pattern)

    @property
    def ways_back(self) -> dict[str, str]:
        """Give what ``back`` says each pattern becomes on the way down."""
        return dict([self.back]) if isinstance(self.back, tuple) else dict(self.back or {})

    @property
    def beside(self) -> dict[str, str]:
        """Give what ``where`` says must be there too, by pattern."""
        return beside(self.where, self.pairs)

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a name, one for each pattern that matches none, and one of the names that should match and do not."""
        groups, used, conditions = [], set(), self.beside
        for name, pattern, found in matches(names, self.pairs):
            if pattern in conditions and found.expand(conditions[pattern]) not in names:
                continue
            used.add(pattern)
            module = None if self.fields is None else ((found[1] or "").removesuffix("."), tuple(self.fields))
            groups.append(Group((name,), (self._target(found, pattern),), fields=module))
        taken = {name for group in groups for name in group.sources}
        without = (
            tuple(name for name, _, _ in matches(names, (self.of,)) if name not in taken) if self.of and taken else ()
        )
        gaps = [Group((), (), missing=(pattern,)) for pattern in self.pairs if pattern not in used]
        return [*groups, *gaps, *([Group((), (), without=without)] if without else [])]

    def _target(self, found: re.Match[str], pattern: str) -> str:
        target = found.expand(self.pairs[pattern])
        while self.repeated and (again := next(matches((target,), self.pairs), None)) is not None:
            shorter = again[2].expand(self.pairs[again[1]])
            if len(shorter) >= len(target):
                break
            target = shorter
        return target

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the source itself."""
        return sources

    def inverse(self) -> Rename | Reason:
        """Turn literal renames round, or take ``back``."""
        pairs = self.ways_back
        if not pairs:
            for pattern, into in self.pairs.items():
                old, new = literal(pattern), literal(into, template=True)
                if old is None or new is None:
                    return Reason(f"{pattern!r} is a regular expression, and no back= says what its names were")
                pairs[re.escape(new)] = old.replace("\\", r"\\")
            if len(pairs) < len(self.pairs):
                return Reason("several patterns become one name")
        if len(pairs) > 1:
            return Rename(pairs, optional=self.optional, on=self.on)
        ((pattern, into),) = pairs.items()
        return Rename(pattern, into, optional=self.optional, on=self.on)

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Drop:
    """Take names out, and say why: the reason stands in the ledger of every checkpoint that loses one.

    ``beside``: take only what was never trained although its neighbour was: an optimizer has state of the name that this template
    expands to, and none has any of the name itself. ``where``: take only names for which the name that this template expands to is
    there too. ``needless``: what is older does without it too, so that the way down has nothing to bring back.
    """

    pattern: str
    reason: str
    optional: bool = False
    on: On = "model"
    beside: str | None = None
    where: str | None = None
    needless: bool = False
    traits: ClassVar[Traits] = Traits()

    def __post_init__(self) -> None:
        check_patterns((self.pattern, self.beside), (self.pattern, self.where))
        check_place(self.on)
        if self.beside is not None:
            check_looks(self.on, (self.pattern, self.beside))
        if not self.reason.strip():
            raise UsageError(f"Drop of {self.pattern!r} does not say why")

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group without targets a name."""
        groups = [
            Group((name,), (), reason=self.reason, beside=None if self.beside is None else found.expand(self.beside))
            for name, _, found in matches(names, (self.pattern,))
            if self.where is None or found.expand(self.where) in names
        ]
        return groups or [Group((), (), missing=(self.pattern,))]

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:  # noqa: ARG002 - the face
        """Give nothing."""
        return ()

    def inverse(self) -> Drop | Reason:
        """Say that what is gone cannot come back, or need not."""
        return replace(self, optional=True) if self.needless else Reason(f"what was dropped is gone ({self.reason})")

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)
