"""Tied names: one tensor, and every name of it is accounted for."""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .derivation import Derivation
    from .evidence import Holding


def tied(
    found: Sequence[Derivation], old: Sequence[Holding], new: Sequence[Holding]
) -> tuple[list[Derivation], list[tuple[str, ...]], dict[str, str]]:
    """Pair the names of tied tensors, equal ones first, then the likest.

    Give the derivations, one a name; for what has more names in the new checkpoint the name it has and those that are tied to it;
    and for names that have none there why they go.
    """
    mine = {holding.names[0]: holding.names for holding in old}
    theirs = {holding.names[0]: holding.names for holding in new}
    derivations: list[Derivation] = []
    ties: list[tuple[str, ...]] = []
    spare: dict[str, str] = {}
    for derivation in found:
        if len(derivation.sources) > 1 or len(derivation.targets) > 1:
            derivations.append(derivation)
            for name in derivation.sources:
                spare |= dict.fromkeys(mine.get(name, ())[1:], f"it is tied to {name}, which is taken")
            ties += [names for name in derivation.targets if len(names := theirs.get(name, ())) > 1]
            continue
        sources, targets = list(mine[derivation.sources[0]]), list(theirs[derivation.targets[0]])
        pairs = [(name, name) for name in sources if name in targets]
        while len(pairs) < min(len(sources), len(targets)):
            left = [s for s in sources if s not in {p[0] for p in pairs}]
            right = [t for t in targets if t not in {p[1] for p in pairs}]
            pairs.append(max(((s, t) for s in left for t in right), key=lambda pair: _alike(*pair)))
        derivations += [replace(derivation, sources=(s,), targets=(t,)) for s, t in pairs]
        kept = {source for source, _ in pairs}
        spare |= {name: f"it is tied to {pairs[0][0]}, which stays" for name in sources if name not in kept}
        more = tuple(name for name in targets if name not in {target for _, target in pairs})
        ties += [(pairs[0][1], *more)] if more else []
    return derivations, ties, spare


def _alike(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
