"""What two checkpoints say differently beside their tensors: values, order, ties, roles, ids, stamps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.values import Inert, Known, brief, difference, same, spell
from ckptmigrate.values.tree import children

from .items import Difference, alone, pairs, values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptmigrate.checkpoint import Checkpoint, Stamp

    from .items import Items, Label

LONG = 16  # numbers in a row that are one value: nobody reads 624 lines of a generator's state


def sayings(
    left: Checkpoint, right: Checkpoint, ours: Items, theirs: Items, label: Label, *, ordered: bool
) -> Iterator[Difference]:
    """Give them all. Of order, ties, roles and ids only what both sides have can differ.

    ``ordered``: the order of an optimizer's entries means something; where entries are found by id it does not.
    """
    mine, its = values(ours, theirs)
    yield from alone(mine, its)
    for item, one, other in pairs(mine, its):
        yield from _values(item, one, other)
    yield from _order("order/model", list(map(label, left.model)), list(right.model))
    for number, (one, other) in enumerate(zip(ours.entries, theirs.entries, strict=False) if ordered else ()):
        yield from _order(f"order/optimizers/{number}", one, other)
    common = {label(name): (name, label(name)) for name in left.model if label(name) in right.model}
    yield from _ties(left, right, common)
    yield from _roles_and_ids(left, right, common)
    yield from _stamps(left.stamp, right.stamp)


def _values(item: str, left: Any, right: Any) -> Iterator[Difference]:
    """Give every place where two trees differ, a run of numbers as one place."""
    told = False
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[tuple[Any, ...], Any, Any]] = [((), left, right)]
    while stack:
        path, one, other = stack.pop()
        if one is other or (id(one), id(other)) in seen:
            continue
        seen.add((id(one), id(other)))
        ours, theirs = dict(children(one)), dict(children(other))
        place = f"{item}/{spell(path)}" if path else item
        if not _alike(one, other) or not (ours and theirs) or _is_run(ours, theirs):
            if not same(one, other):
                told = True
                yield Difference(place, _run(ours, theirs) if _is_run(ours, theirs) else _both(one, other))
            continue
        for step in ours.keys() ^ theirs.keys():
            told = True
            side, node = ("A", ours[step]) if step in ours else ("B", theirs[step])
            yield Difference(f"{place}/{spell((step,))}", f"only in {side}: {_brief(node)}")
        stack.extend(((*path, step), node, theirs[step]) for step, node in reversed(ours.items()) if step in theirs)
    what = None if told else difference(left, right)
    if what is not None:  # keys that are equal and of other types: 1 and True
        yield Difference(item, what)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Known | Inert):
        return type(one) is type(other) and bool(one.path == other.path)
    return type(one) is type(other)


def _is_run(ours: dict[Any, Any], theirs: dict[Any, Any]) -> bool:
    long = len(ours) > LONG or len(theirs) > LONG
    return long and all(
        isinstance(step, int) and isinstance(node, int | float)
        for side in (ours, theirs)
        for step, node in side.items()
    )


def _run(ours: dict[Any, Any], theirs: dict[Any, Any]) -> str:
    if len(ours) != len(theirs):
        return f"{len(ours)} numbers in A, {len(theirs)} in B"
    apart = [step for step, node in ours.items() if not same(node, theirs.get(step))]
    if not apart:
        return f"{len(ours)} equal numbers, of other types around them"
    first = apart[0]
    return f"{len(apart)} of {len(ours)} numbers differ, first at {first}: {_both(ours[first], theirs.get(first))}"


def _both(one: Any, other: Any) -> str:
    said = (_brief(one), _brief(other))
    if said[0] == said[1]:
        said = (brief(one), brief(other))
    return f"{said[0]} in A, {said[1]} in B"


def _brief(node: Any) -> str:
    if isinstance(node, Known | Inert):
        return node.path
    return brief(node) if isinstance(node, dict | list | tuple) else brief(node).partition(" ")[2]


def _order(item: str, ours: list[str], theirs: list[str]) -> Iterator[Difference]:
    held, its = set(ours), set(theirs)
    one, other = [name for name in ours if name in its], [name for name in theirs if name in held]
    apart = [at for at, (mine, other_) in enumerate(zip(one, other, strict=False)) if mine != other_]
    if apart:
        at = apart[0]
        yield Difference(
            item, f"{len(apart)} of {len(one)} stand elsewhere, first {at}: {one[at]} in A, {other[at]} in B"
        )


def _ties(left: Checkpoint, right: Checkpoint, common: dict[str, tuple[str, str]]) -> Iterator[Difference]:
    sets: list[dict[frozenset[str], list[str]]] = []
    for side, checkpoint in enumerate((left, right)):
        tied: dict[Any, list[str]] = {}
        for label, names in common.items():
            tensor = checkpoint.model[names[side]]
            if tensor.nbytes:
                tied.setdefault(tensor.promise, []).append(label)
        sets.append({frozenset(labels): labels for labels in tied.values() if len(labels) > 1})
    ours, theirs = sets
    for held, others, sides in ((ours, theirs, "A, not in B"), (theirs, ours, "B, not in A")):
        for key, labels in held.items():
            if key not in others:
                yield Difference(f"ties/{labels[0]}", f"one tensor with {', '.join(labels[1:])} in {sides}")


def _roles_and_ids(left: Checkpoint, right: Checkpoint, common: dict[str, tuple[str, str]]) -> Iterator[Difference]:
    both = [(label, left.model[one], right.model[other]) for label, (one, other) in common.items()]
    for label, a, b in both:
        if a.role and b.role and a.role != b.role:
            yield Difference(f"roles/{label}", f"{a.role} in A, {b.role} in B")
    told = [(label, a.id, b.id) for label, a, b in both if a.id is not None and b.id is not None]
    apart = [each for each in told if each[1] != each[2]]
    if apart:
        label, mine, its = apart[0]
        yield Difference("ids", f"{len(apart)} of {len(told)} are others, first of {label}: {mine} in A, {its} in B")


def _stamps(left: Stamp, right: Stamp) -> Iterator[Difference]:
    for chain in dict.fromkeys((*left.versions, *right.versions)):
        ours, theirs = left.versions.get(chain, "none"), right.versions.get(chain, "none")
        if ours != theirs:
            yield Difference(f"stamp/{chain}", f"{ours} in A, {theirs} in B")
    if left.history != right.history:
        yield Difference("stamp/history", f"{len(left.history)} steps in A, {len(right.history)} in B")
