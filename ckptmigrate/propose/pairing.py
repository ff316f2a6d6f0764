"""What equal elements leave open, told by names among equal shapes: an assumption, and marked as one.

In this order: what is proven of siblings holds for a constant bias too; a name that is there on both sides is that tensor; a prefix
that moved takes along what lies under it; then the likeness of names, whole families of numbered names at once. Two candidates that
are nearly as good are a choice that is left to a person.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from ckptmigrate.operations.patterns import numeral

from .derivation import Derivation, change
from .siblings import Siblings
from .spelling import NUMBER, template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ckptmigrate.tensor import Tensor

    from .derivation import By, Change

MOST = 64  # families of one shape that another is compared with
MARGIN = 0.08  # of likeness, between the best candidate and the next


@dataclass(slots=True)
class Paired:
    """What was derived, what may be one of several, and what is left on either side."""

    derivations: list[Derivation] = field(default_factory=list)
    choices: list[tuple[Derivation, ...]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def by_name(
    old: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    proven: Sequence[Derivation],
    differ: Callable[[str, str], bool],
) -> Paired:
    """Give all derivations, the proven ones first, and what stays open. ``differ``: whether two tensors are surely not one."""
    pairing = _Pairing(old, new, proven, differ)
    pairing.siblings()
    pairing.same_names()
    while pairing.moved_prefixes() or pairing.likeness():
        pairing.siblings()
    found = Paired(pairing.found, pairing.choices())
    open_names = {name for choice in found.choices for d in choice for name in (*d.sources, *d.targets)}
    found.dropped = [name for name in pairing.old if name not in open_names]
    found.added = [name for name in pairing.new if name not in open_names]
    return found


class _Pairing:
    """What is left on both sides, and what was found."""

    def __init__(
        self,
        old: Mapping[str, Tensor],
        new: Mapping[str, Tensor],
        proven: Sequence[Derivation],
        differ: Callable[[str, str], bool],
    ) -> None:
        taken = {name for derivation in proven for name in derivation.sources}
        made = {name for derivation in proven for name in derivation.targets}
        self.found = list(proven)
        self.old = {name: tensor for name, tensor in old.items() if name not in taken}
        self.new = {name: tensor for name, tensor in new.items() if name not in made}
        self.differ = differ

    def take(self, derivation: Derivation) -> None:
        """Note a derivation, unless a part of it is taken already."""
        self.found.append(derivation)
        for name in derivation.sources:
            del self.old[name]
        for name in derivation.targets:
            del self.new[name]

    def siblings(self) -> None:
        """Let what is known of one name hold for those beside it, and for those that differ from it in numbers."""
        known = Siblings(self.found)
        for name in list(self.old):
            if name in self.old:
                made = known.derive(name, self.old, self.new)
                if made is not None:
                    self.take(made)

    def same_names(self) -> None:
        """Take what is there under one name and shape on both sides."""
        for name in [n for n, t in self.old.items() if n in self.new and self.new[n].shape == t.shape]:
            self.take(self._named(name, name, "name"))

    def moved_prefixes(self) -> bool:
        """Follow prefixes that moved; say whether any name did."""
        known = moves(self.found)
        before = len(self.found)
        by: By = "pattern" if any(derivation.by == "content" for derivation in self.found) else "name"
        for name in list(self.old):
            target = moved(name, known)
            if target is not None and self._may_be(name, target):
                self.take(self._named(name, target, by))
        return len(self.found) > before

    def likeness(self) -> bool:
        """Take the families of names that are each other's clear best; say whether there were any."""
        before = len(self.found)
        for _, mine, best in list(self._best()):
            if best is not None:
                for source, target in zip(mine, best, strict=True):
                    self.take(self._named(source, target, "name"))
        return len(self.found) > before

    def choices(self) -> list[tuple[Derivation, ...]]:
        """Give what may be one of several, with every candidate of the likeness of the best."""
        return [
            tuple(self._named(s, t, "name") for theirs in candidates for s, t in zip(mine, theirs, strict=True))
            for candidates, mine, _ in self._best()
        ]

    def _may_be(self, source: str, target: str) -> bool:
        tensor = self.new.get(target)
        return tensor is not None and tensor.shape == self.old[source].shape and not self.differ(source, target)

    def _named(self, source: str, target: str, by: By) -> Derivation:
        old, new = self.old[source].dtype, self.new[target].dtype
        plain = {"float", "int", "uint"}
        casts: tuple[Change, ...] = ()
        if old != new and {old.kind, new.kind} <= plain:
            casts = (change("Cast", dtype=new.name, old=old.name),)
        return Derivation((source,), (target,), (casts,), by=by)

    def _best(self) -> Iterator[tuple[list[list[str]], list[str], list[str] | None]]:
        """Give for each family of names that is left its best candidates, and the one that is clearly so, if one is.

        What fits nothing as a whole family is looked at in smaller ones: of the first number alone, then name by name.
        """
        left = [dict.fromkeys(self.old), dict.fromkeys(self.new)]
        for numbers in (None, 1, 0):
            families = [_families(names, numbers) for names in left]
            scores = self._scores(*families)
            yield from _ranked(scores, *families)
            for side in (0, 1):
                for number in {pair[side] for pair in scores}:
                    for name in families[side][number]:
                        del left[side][name]

    def _scores(self, mine: list[list[str]], theirs: list[list[str]]) -> dict[tuple[int, int], float]:
        """Give how alike families of equal shapes are, where nothing speaks against it."""
        known = moves(self.found)
        shaped: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for number, names in enumerate(theirs):
            shaped[tuple(self.new[n].shape for n in names)].append(number)
        scores: dict[tuple[int, int], float] = {}
        for number, names in enumerate(mine):
            said = moved(names[0], known) or names[0]
            fitting = shaped.get(tuple(self.old[n].shape for n in names), [])
            for other in fitting[:MOST]:
                pairs = zip(names, theirs[other], strict=True)
                if not any(self.differ(source, target) for source, target in pairs):
                    scores[number, other] = _alike(said, theirs[other][0])
        return scores


def _ranked(
    scores: Mapping[tuple[int, int], float], old: Sequence[list[str]], new: Sequence[list[str]]
) -> Iterator[tuple[list[list[str]], list[str], list[str] | None]]:
    """Give for each family the candidates that are nearly as good as the best, and that one if no rival comes near, on either side."""
    mine: dict[int, list[tuple[float, int]]] = defaultdict(list)
    theirs: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for (m, t), score in scores.items():
        mine[m].append((score, t))
        theirs[t].append((score, m))
    for m, own in mine.items():
        score, best = max(own)
        rivals = [s for s, t in own if t != best] + [s for s, other in theirs[best] if other != m]
        clear = all(score - rival > MARGIN for rival in rivals)
        candidates = [new[t] for s, t in sorted(own, reverse=True) if score - s <= MARGIN]
        yield candidates, old[m], new[best] if clear else None


def _families(names: Iterable[str], numbers: int | None) -> list[list[str]]:
    """Give names that are alike but for their first ``numbers`` (None: all) numbers, in the order of their numbers."""
    families: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name in names:
        stay = () if numbers is None else tuple(NUMBER.findall(name)[numbers:])
        families.setdefault((template(name), stay), []).append(name)
    return [sorted(members, key=numeral) for members in families.values()]


def _alike(old: str, new: str) -> float:
    """Give how alike two names are, from 0 to 1: half by words, half by letters; numbers do not count."""
    one, other = (" ".join(re.split(r"[\W\d_]+", name)).strip() for name in (old, new))
    words = SequenceMatcher(None, one.split(), other.split(), autojunk=False).ratio()
    return (words + SequenceMatcher(None, one, other, autojunk=False).ratio()) / 2


def moves(derivations: Iterable[Derivation]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Give what became of prefixes: those that all names under them agree on."""
    votes: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for derivation in derivations:
        if len(derivation.sources) == len(derivation.targets) == 1:
            old, new = derivation.sources[0].split("."), derivation.targets[0].split(".")
            tail = 0
            while tail < min(len(old), len(new)) and old[-1 - tail] == new[-1 - tail]:
                tail += 1
                votes[tuple(old[: len(old) - tail])].add(tuple(new[: len(new) - tail]))
            for index, text in enumerate(old[:-1]):
                if text.isdecimal() and text in new:
                    votes[tuple(old[: index + 1])].add(tuple(new[: new.index(text) + 1]))
                    break
    return {old: next(iter(new)) for old, new in votes.items() if len(new) == 1}


def moved(name: str, moves: Mapping[tuple[str, ...], tuple[str, ...]]) -> str | None:
    """Give where the longest prefix that moved takes a name."""
    segments = name.split(".")
    for length in range(len(segments) - 1, -1, -1):
        prefix = tuple(segments[:length])
        if prefix in moves:
            return ".".join((*moves[prefix], *segments[length:]))
    return None
