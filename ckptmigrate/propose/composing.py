"""From derivations to the operations of a migrator, in an order in which each finds the names it means.

    Drop                                    what is in the old one only
    Cast Reorder Reshape Transpose          in place, under old names
    Split Unstack Concat Stack              old names into new ones
    Reorder                                 in place, of what was joined
    Rename, Reindex                         old names into new ones
    Tie Add                                 what is in the new one only

Derivations that differ in nothing but names are one operation, so that their number does not grow with the layers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate import operations

from .derivation import spoken
from .generalise import Pair, rules
from .renumber import renumbered
from .spelling import covering, template

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ckptmigrate.operations import Operation

    from .derivation import By, Change, Derivation
    from .generalise import Rule

SLOTS = ("Cast", "Reorder", "Reshape", "Transpose", "Reshape")  # the order in which changes of one tensor stand
TAKE_APART = ("Split", "Unstack")


@dataclass(frozen=True, slots=True)
class Spec:
    """One operation as it will be written: its class and arguments; the names it takes, and what each derivation rests on."""

    operation: str
    positional: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...] = ()
    sources: tuple[str, ...] = ()
    rests: tuple[By, ...] = ()

    def made(self) -> Operation:
        """Give the operation itself."""
        made: Operation = getattr(operations, self.operation)(*self.positional, **dict(self.named))
        return made

    @property
    def patterns(self) -> tuple[str, ...]:
        """Give the patterns of the names that it takes."""
        first = self.positional[0]
        if isinstance(first, dict):
            return tuple(first)
        return (first,) if isinstance(first, str) else tuple(first)


@dataclass(frozen=True, slots=True)
class Added:
    """A name in the new checkpoint only: a second name of another, or one value throughout."""

    name: str
    tied: str | None = None
    near: str | None = None
    fill: Any = None
    shape: tuple[int, ...] | None = None  # None: that of its neighbour
    dtype: str | None = None
    role: str | None = None


def compose(
    derivations: Sequence[Derivation],
    dropped: Mapping[str, str],
    added: Sequence[Added],
    old: Collection[str],
    new: Collection[str],
    *,
    renames_first: bool = False,
    renumber: bool = True,
) -> list[Spec]:
    """Give the operations. ``dropped``: why each name is in the old checkpoint only; ``old``, ``new``: all names of each."""
    names = [name for name in old if name not in dropped]
    later = {each.name for each in added}
    kept = [name for name in new if name not in later]  # on the way down what was added is gone before anything else
    found = list(_drops(dropped, old))
    found += _in_place(derivations, names)
    joints = [d for d in derivations if d.joint is not None]
    plain = [Pair(d.sources, d.targets) for d in derivations if d.joint is None and d.sources != d.targets]
    by = {d.sources: d.by for d in derivations}
    if renames_first:
        moved = {pair.sources[0]: pair.targets[0] for pair in plain}
        found += _renames(plain, names, kept, by, renumber=renumber)
        names = [moved.get(name, name) for name in names]
    targets = [name for d in joints for name in d.targets]
    standing = {*names}
    for first in (True, False):  # what is made of what was made comes second
        found += _joints([d for d in joints if standing.issuperset(d.sources) == first], [*names, *targets])
    taken = {name for d in joints for name in d.sources}
    names = [name for name in (*names, *targets) if name not in taken]
    found += _grouped(((d.targets[0], each, d.by) for d in joints for each in d.after), names)
    if not renames_first:
        found += _renames(plain, names, kept, by, renumber=renumber)
    return found + list(_additions(added, new))


def _drops(dropped: Mapping[str, str], old: Collection[str]) -> Iterator[Spec]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in dropped.items():
        reasons[reason].append(name)
    for reason, names in reasons.items():
        yield Spec("Drop", (covering(names, old),), (("reason", reason),), tuple(names))


def _in_place(derivations: Iterable[Derivation], present: Collection[str]) -> Iterator[Spec]:
    """Give what is done to sources in their place: every change at its slot of the fixed order."""
    slots: list[list[tuple[str, Change, By]]] = [[] for _ in SLOTS]
    for derivation in derivations:
        for source, changes in zip(derivation.sources, derivation.before, strict=True):
            at = 0
            for each in changes:
                at = SLOTS.index(each.operation, at)
                slots[at].append((source, each, derivation.by))
    for slot in slots:
        yield from _grouped(slot, present)


def _grouped(changes: Iterable[tuple[str, Change, By]], present: Collection[str]) -> Iterator[Spec]:
    groups: dict[tuple[str, tuple[tuple[str, Any], ...]], list[tuple[str, By]]] = defaultdict(list)
    for name, each, by in changes:
        groups[each.operation, tuple(spoken(each).items())].append((name, by))
    for (operation, arguments), members in groups.items():
        names = tuple(name for name, _ in members)
        yield Spec(operation, (covering(names, present),), arguments, names, tuple(by for _, by in members))


def _renames(
    pairs: Sequence[Pair],
    present: Collection[str],
    wanted: Collection[str],
    by: Mapping[tuple[str, ...], By],
    *,
    renumber: bool,
) -> list[Spec]:
    """Give one rename for each rule, or one that says them all at once where one would meet the names that another gives.

    Then what numbers lists anew.
    """
    pairs, lists = renumbered(pairs, present) if renumber else (pairs, [])
    after = {pair.targets[0]: pair.sources[0] for each in lists for pair in each.pairs}
    wanted = [after.get(name, name) for name in wanted]
    then = [Spec("Reindex", (e.pattern,), (("map", e.numbers),), tuple(p.sources[0] for p in e.pairs)) for e in lists]
    return [*_renaming(pairs, present, wanted, by), *then]


def _renaming(
    pairs: Sequence[Pair], present: Collection[str], wanted: Collection[str], by: Mapping[tuple[str, ...], By]
) -> list[Spec]:
    found = rules(pairs, present, wanted)
    if _clash(found, present):
        mapping = {rule.sources[0]: rule.targets[0] for rule in found}
        back = {rule.back[0]: rule.back[1] for rule in found if rule.back is not None}
        named: tuple[tuple[str, Any], ...] = (("back", back),) if len(back) == len(found) else ()
        sources = tuple(pair.sources[0] for rule in found for pair in rule.pairs)
        return [Spec("Rename", (mapping,), named, sources, tuple(by[pair.sources] for pair in pairs))]
    specs = []
    for rule in found:
        alone = len(rule.pairs) == 1
        named = () if rule.back is None or alone else (("back", rule.back),)
        sources = tuple(pair.sources[0] for pair in rule.pairs)
        rests = tuple(by[pair.sources] for pair in rule.pairs)
        specs.append(Spec("Rename", (rule.sources[0], rule.targets[0]), named, sources, rests))
    return specs


def _clash(found: Sequence[Rule], present: Collection[str]) -> bool:
    """Say whether renames, one after the other, would meet names that they do not mean."""
    names = set(present)
    for rule in found:
        pattern = re.compile(rule.sources[0])
        sources = {pair.sources[0] for pair in rule.pairs}
        targets = {pair.targets[0] for pair in rule.pairs}
        if {name for name in names if pattern.fullmatch(name)} != sources or targets & (names - sources):
            return True
        names = (names - sources) | targets
    return False


# ── joints ──


def _joints(joints: Sequence[Derivation], present: Collection[str]) -> Iterator[Spec]:
    groups: dict[tuple[str, tuple[tuple[str, Any], ...], bool], list[tuple[Derivation, list[Pair]]]] = defaultdict(list)
    for derivation in joints:
        joint = derivation.joint
        assert joint is not None
        counted = _counted(derivation)
        pairs = counted or [Pair(derivation.sources, derivation.targets)]
        groups[joint.operation, tuple(spoken(joint).items()), counted is not None].append((derivation, pairs))
    for (operation, arguments, one), members in groups.items():
        of = {pair: derivation for derivation, pairs in members for pair in pairs}
        for rule in rules(list(of), present):
            said = {of[pair].targets: of[pair] for pair in rule.pairs}.values()
            sources = tuple(name for derivation in said for name in derivation.sources)
            first: Any = rule.sources[0] if one or operation in TAKE_APART else list(rule.sources)
            then: Any = rule.targets[0] if one or operation not in TAKE_APART else list(rule.targets)
            yield Spec(operation, (first, then), arguments, sources, tuple(d.by for d in said))


def _counted(derivation: Derivation) -> list[Pair] | None:
    """Give a stack as one pair a member, an unstack as one with ``{}``, where names count their members from 0."""
    joint = derivation.joint
    if joint is None or joint.operation not in {"Stack", "Unstack"}:
        return None
    many = derivation.sources if joint.operation == "Stack" else derivation.targets
    shapes = {template(name) for name in many}
    columns = list(zip(*(re.findall(r"[0-9]+", name) for name in many), strict=False))
    varying = [index for index, column in enumerate(columns) if len(set(column)) > 1]
    if len(shapes) != 1 or len(varying) != 1 or columns[varying[0]] != tuple(map(str, range(len(many)))):
        return None
    if joint.operation == "Stack":
        return [Pair((name,), derivation.targets) for name in many]
    pieces = re.split(r"([0-9]+)", many[0])
    pieces[2 * varying[0] + 1] = "{}"
    return [Pair(derivation.sources, ("".join(pieces),))]


# ── additions ──


def _additions(added: Sequence[Added], new: Collection[str]) -> Iterator[Spec]:
    """Give ties and constants, with one operation for those that differ in their module alone."""
    groups: dict[tuple[Any, ...], list[Added]] = defaultdict(list)
    for each in added:
        groups[each.tied is None, each.near is None, repr(each.fill), each.shape, each.dtype, each.role].append(each)
    for members in groups.values():
        like = members[0]
        if like.tied is None and like.near is None:
            yield from (Spec("Add", (each.name,), _filled(each)) for each in members)
            continue
        pairs = [Pair((str(each.tied or each.near),), (each.name,)) for each in members]
        for rule in rules(pairs, new):
            pattern, into = rule.sources[0], rule.targets[0]
            if like.tied is not None:
                yield Spec("Tie", (pattern, into), (("adds", True),))
            else:
                yield Spec("Add", (into,), (("near", pattern), *_filled(like)))


def _filled(added: Added) -> tuple[tuple[str, Any], ...]:
    said = {
        "fill": added.fill,
        "shape": None if added.shape is None else list(added.shape),
        "dtype": added.dtype,
        "role": added.role if added.role == "buffer" else None,
    }
    return tuple((name, value) for name, value in said.items() if value is not None)
