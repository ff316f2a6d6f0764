"""Changes: the groups of an operation that can be applied to the names at hand, and where their targets stand.

Every group that cannot be applied is a problem, said once, and skipped: its sources stay, so that what follows can still be tried.

Targets take the place of their first source. Where the sources of one operation stand side by side in one module (the same name up
to the last dot) and one of them becomes several, what they give stands module by module, as a framework that walks its modules
declares it: names of one module together, modules of one module together, each where its first one would stand.

    qkv.weight qkv.bias             q.weight k.weight v.weight q.bias …   →   q.weight q.bias k.weight k.bias v.weight v.bias
    experts.w1 experts.w2           experts.0.w1 experts.1.w1 …           →   experts.0.w1 experts.0.w2 experts.1.w1 experts.1.w2
    layers.0.w layers.1.w           two modules: 0.a 0.b 1.a 1.b, as they come
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CkptError
from ckptmigrate.tensor import Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ckptmigrate.operations import Group, Operation

    Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Change:
    """A group that can be applied: its tensors before and after, and of which sources each target is made."""

    group: Group
    before: tuple[Any, ...]  # Tensors in the model; whatever lies there in slots and values
    after: tuple[Any, ...]
    origins: tuple[tuple[int, ...], ...]

    def outcomes(self) -> list[list[tuple[str, Any]]]:
        """Give for each source the targets that are made of it, with their names."""
        found: list[list[tuple[str, Any]]] = [[] for _ in self.before]
        for name, target, origin in zip(self.group.targets, self.after, self.origins, strict=True):
            for source in origin:
                found[source].append((name, target))
        return found

    @property
    def moved(self) -> bool:
        """Say whether every target is one source under another name or at another place, byte for byte."""
        return all(
            len(origin) == 1 and self.before[origin[0]].promise == target.promise
            for origin, target in zip(self.origins, self.after, strict=True)
        )

    def stays_without(self, lacking: Collection[str]) -> bool:
        """Say whether it is the same change for fewer names: every source becomes targets of its own, byte for byte."""
        if not self.moved:
            return False
        sources = {i for i, name in enumerate(self.group.sources) if name not in lacking}
        return sources <= {i for (i,) in self.origins}

    def among(self, names: Mapping[str, Any]) -> Change:
        """Give the same change for those of its sources that are among these names; see ``stays_without``."""
        sources = {i: at for at, i in enumerate(i for i, name in enumerate(self.group.sources) if name in names)}
        targets = [j for j, (i,) in enumerate(self.origins) if i in sources]
        before = tuple(names[self.group.sources[i]] for i in sources)
        group = replace(
            self.group,
            sources=tuple(self.group.sources[i] for i in sources),
            targets=tuple(self.group.targets[j] for j in targets),
        )
        origins = tuple((sources[self.origins[j][0]],) for j in targets)
        return Change(group, before, tuple(before[i] for (i,) in origins), origins)


def changes_of(operation: Operation, groups: Sequence[Group], names: Mapping[str, Any], say: Say) -> list[Change]:
    """Give the groups that can be applied; every one that cannot is a problem."""
    changes, taken = [], set[str]()
    for group in groups:
        if not (group.sources or group.targets or group.missing):
            continue  # names that are as they should be
        if group.missing and not (group.sources or group.targets):
            if not operation.optional:
                say(f"nothing matches {', '.join(map(repr, group.missing))}")
            continue
        whom = ", ".join(group.targets or group.sources)
        if "" in group.targets:
            say(f"{', '.join(group.sources)}: would have no name")
            continue
        if group.missing:
            say(f"{whom}: missing of its group: {', '.join(map(repr, group.missing))}")
            continue
        twice = [name for name in group.sources if name in taken]
        if twice:
            say(f"{whom}: {twice[0]} is in another group too")
            continue
        change = change_of(operation, group, names, say)
        if change is not None:
            taken.update(group.sources)
            changes.append(change)
    return without_collisions(changes, names, say)


def change_of(operation: Operation, group: Group, names: Mapping[str, Any], say: Say) -> Change | None:
    """Give the change that one group makes of these names, None and a problem where its shapes do not fit."""
    sources = tuple(names[name] for name in group.sources)
    beside = () if sources or group.near is None else (names[group.near],)
    try:
        targets = operation.tensors(sources or beside)
    except CkptError as error:
        say(f"{', '.join(group.sources) or ', '.join(group.targets)}: {error.message}")
        return None
    if len(targets) != len(group.targets):
        say(
            f"{', '.join(group.sources)}: gives {len(targets)} where {len(group.targets)} names stand: {', '.join(group.targets)}"
        )
        return None
    return Change(group, sources, targets, _origins(group, sources, targets))


def _origins(group: Group, sources: tuple[Any, ...], targets: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    """Tell of which sources each target is made: of that whose promise it is, where it is one (first under its own name), else of all."""
    given = [getattr(source, "promise", source) for source in sources]
    places = {name: i for i, name in enumerate(group.sources)}
    looks: dict[Any, int] = {}  # a group may hold a whole model, so that nobody looks for each target in all sources
    others: list[int] = []  # values, which may have no hash
    for i, promise in enumerate(given):
        if isinstance(promise, Promise):
            looks.setdefault(promise, i)
        else:
            others.append(i)
    found: list[tuple[int, ...]] = []
    for name, target in zip(group.targets, targets, strict=True):
        promise = getattr(target, "promise", target)
        own = places.get(name)
        if own is not None and given[own] == promise:
            found.append((own,))
        else:
            same = (
                looks.get(promise)
                if isinstance(promise, Promise)
                else next((i for i in others if given[i] == promise), None)
            )
            found.append(tuple(range(len(sources))) if same is None else (same,))
    return tuple(found)


def without_collisions(changes: Sequence[Change], names: Mapping[str, Any], say: Say) -> list[Change]:
    """Take out what would give one name twice; a change taken out leaves its sources standing, which others may then hit."""
    staying = names.keys() - {name for change in changes for name in change.group.sources}
    kept: dict[int, Change] = {}
    giver: dict[str, int] = {}  # target -> the number of the change that gives it
    lost: list[Change] = []
    for number, change in enumerate(changes):
        targets, whom = change.group.targets, _whom(change)
        hit = next((t for t in targets if t in staying or t in giver), None)
        twice = next((t for t in targets if targets.count(t) > 1), None) if len(set(targets)) < len(targets) else None
        if hit is None and twice is None:
            kept[number] = change
            giver.update(dict.fromkeys(targets, number))
            continue
        lost.append(change)
        if hit is None:
            say(f"{whom}: {twice} is named twice")
        elif hit in staying:
            say(f"{whom}: {hit} exists already")
        else:
            say(f"{_whom(changes[giver[hit]])} and {whom} would both become {hit}")
    while lost:
        for source in lost.pop().group.sources:
            hitting = giver.get(source)
            if hitting in kept:
                say(f"{_whom(kept[hitting])}: {source} exists already")
                lost.append(kept.pop(hitting))
    return list(kept.values())


def _whom(change: Change) -> str:
    return ", ".join(change.group.sources) or "the added tensor"


def side_by_side(before: Mapping[str, Any], changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """Give the sources that stand in a row in one module, row by row, where several targets are made of one of them."""
    fans: dict[str, bool] = {}
    for change in changes:
        if not change.group.stays:
            fans.update(zip(change.group.sources, (len(into) > 1 for into in change.outcomes()), strict=True))
    if not any(fans.values()):
        return []
    rows = itertools.groupby(before, lambda name: _module(name) if name in fans else None)
    found = (tuple(row) for module, row in rows if module is not None)
    return [row for row in found if len(row) > 1 and any(fans[name] for name in row)]


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _module_by_module(names: Iterable[str]) -> list[str]:
    """Put names of one module together, and modules of one module, each where its first one stands."""
    ranks: dict[str, int] = {}
    places: dict[str, tuple[int, ...]] = {}
    for name in names:
        modules = list(itertools.accumulate(name.split(".")[:-1], "{}.{}".format))
        modules.append(f"{_module(name)}.")  # what a module itself has stands together, beside the modules in it
        places[name] = tuple(ranks.setdefault(module, len(ranks)) for module in modules)
    return sorted(places, key=places.__getitem__)


def placed(
    before: Mapping[str, Any], changes: Sequence[Change], rows: Sequence[tuple[str, ...]] | None = None
) -> dict[str, Any]:
    """Give names in their order, targets where the rule of this file puts them; added ones after their neighbour, else last.

    ``rows``: the sources that stand side by side, where ``before`` has only some of the names that decide it.
    """
    place = {name: position for position, name in enumerate(before)}
    at_place: dict[int, dict[str, Any]] = {}
    added: dict[int, dict[str, Any]] = {}
    gone = set[str]()
    for change in changes:
        group = change.group
        gone.update(group.sources)
        targets = dict(zip(group.targets, change.after, strict=True))
        if not group.sources:
            added.setdefault(place.get(group.near or "", len(place)), {}).update(targets)
            continue
        first = min(place[name] for name in group.sources)
        for name, tensor in targets.items():
            at_place.setdefault(place.get(name, first) if group.stays else first, {})[name] = tensor
    for row in side_by_side(before, changes) if rows is None else rows:
        stands = sorted(place[name] for name in row if name in place)
        given: dict[str, Any] = {}
        for position in stands:
            given |= at_place.pop(position, {})
        if given:
            at_place[stands[0]] = {name: given[name] for name in _module_by_module(given)}
    after: dict[str, Any] = {}
    for name, tensor in before.items():
        if name not in gone:
            after[name] = tensor
        after |= at_place.get(place[name], {}) | added.get(place[name], {})
    return after | added.get(len(place), {})
