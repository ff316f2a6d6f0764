"""A migrator proposed from two checkpoints: what is proven of them, what is assumed, what only a person can say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptmigrate.migrator import Migrator

from .composing import Added, Spec, compose
from .evidence import Holding, holdings, unread
from .marking import MarkSpec, mark
from .matching import by_content
from .pairing import by_name
from .proving import Proof, prove
from .remains import Choice, Remains, some
from .ties import tied

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckptmigrate.checkpoint import Checkpoint

    from .derivation import Derivation


@dataclass(frozen=True, slots=True)
class Proposal:
    """Operations and marks as they will be written; what may be one of several, and what only a person can say."""

    operations: tuple[Spec, ...] = ()
    marks: tuple[MarkSpec, ...] = ()
    choices: tuple[Choice, ...] = ()
    open: tuple[str, ...] = ()
    proof: Proof = field(default_factory=Proof)

    def migrator(self, chain: str, version: str) -> Migrator:
        """Give the migrator that the file will declare."""
        return Migrator(chain, version, [s.made() for s in self.operations], [s.made() for s in self.marks])


def propose(old: Checkpoint, new: Checkpoint, *, contents: bool = True) -> Proposal:
    """Give the operations that make the new checkpoint's model of the old one's, proven where elements prove them.

    ``contents``: whether equal elements could mean anything; not so where one of the two was made a moment ago, and then nothing
    is drawn.
    """
    if contents:
        sides = holdings(old.model, {t.dtype for t in new.model.values()}), holdings(new.model)
        found, unsaid = by_content(*sides)
    else:
        sides = unread(old.model), unread(new.model)
        found, unsaid = [], {}
    proven, ties, spare = tied(found, *sides)
    differ = _differ(*sides, found)
    second = {name for names in ties for name in names[1:]}
    paired = by_name(
        {name: tensor for name, tensor in old.model.items() if name not in spare},
        {name: tensor for name, tensor in new.model.items() if name not in second},
        proven,
        differ,
    )
    theirs = {name: holding for holding in sides[1] for name in holding.names}
    remains = Remains(old, new, paired, unsaid, theirs, differ, contents=contents)
    added = [*remains.added, *(Added(name, tied=names[0]) for names in ties for name in names[1:])]
    digests = {h.tensor.promise: h.own.digest for side in sides for h in side} if contents else None
    tried: list[tuple[list[Spec], Proof]] = []
    for renumber, first in ((True, False), (True, True), (False, False), (False, True)):
        dropped = {**spare, **remains.dropped}
        specs = compose(
            paired.derivations, dropped, added, old.model, new.model, renames_first=first, renumber=renumber
        )
        tried.append((specs, prove(specs, paired.derivations, old, new, digests)))
        if not tried[-1][1].problems:
            break
    specs, proof = min(tried, key=lambda one: len(one[1].problems))
    told = mark(specs, old, new)
    questions = [*proof.problems, *remains.open]
    if proof.by.get("content") and proof.differing:
        questions.append(f"{some(proof.differing)}: there by name, and with other elements in the new one")
    if told is None and specs:
        questions.append("no name, shape or dtype tells the old one from the new one: --from says where it stands")
    marks = () if told is None else (told,)
    return Proposal(tuple(specs), marks, tuple(remains.choices), tuple(questions), proof)


def _differ(old: Sequence[Holding], new: Sequence[Holding], found: Sequence[Derivation]) -> Callable[[str, str], bool]:
    """Give what says that two tensors are surely not one: their elements could have shown it, and are others."""
    evident = [holding for holding in new if holding.evident]
    telling = 2 * sum(len(each.targets) for each in found) >= len(evident) > 0
    mine = {name: holding for holding in old for name in holding.names}
    theirs = {name: holding for holding in new for name in holding.names}

    def differ(source: str, target: str) -> bool:
        one, other = mine[source], theirs[target]
        if not (telling and one.evident and other.evident):
            return False
        trace = one.as_dtype(other.own.dtype)
        return trace is not None and trace.digest != other.own.digest

    return differ
