"""What two checkpoints hold, item by item under names that mean the same on both sides.

Optimizer entries are paired by name where both sides name all of theirs; else by key where the family's keys are ids, which mean the
same in every file of a model; else by position, as an index means nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known, Ordered, spell, walk
from ckptmigrate.values.tree import spell_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptmigrate.checkpoint import Checkpoint, Optimizer

Label = Callable[[str], str]
Identify = Callable[[int | str], int]
"""What gives the id that a key spells, one way or another (``Family.identify``)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One item that two checkpoints do not share: ``item`` as the ledger names it, ``what`` in words."""

    item: str
    what: str


@dataclass(frozen=True, slots=True)
class Items:
    """What one side holds: tensors and other values by item; ``entries``: the labels of each optimizer's parameters, in its order."""

    tensors: dict[str, Tensor]
    trees: dict[str, Any]
    entries: list[list[str]]


def paired(
    left: Checkpoint, right: Checkpoint, identify: Identify | None, label: Label = str, module: Label = str
) -> tuple[Items, Items, list[Difference]]:
    """Give the items of both sides, and what cannot be paired or is no item: numbers of optimizers and schedulers, kinds, owners.

    ``identify``: where keys of entries are ids. ``label`` and ``module`` give what the right calls a tensor or module of the left.
    Module versions that only one file can tell are no items, nor are schedulers without a partner.
    """
    found = _numbers("optimizers", len(left.optimizers), len(right.optimizers))
    found += _numbers("schedulers", len(left.schedulers), len(right.schedulers))
    ours, theirs = list[list[str]](), list[list[str]]()
    for number, (one, other) in enumerate(zip(left.optimizers, right.optimizers, strict=False)):
        found += _kinds(f"optimizers/{number}", one, other)
        labels = _by_name(one, other, label) or _by_id(one, other, identify, label)
        if labels is None:
            found += _owners(f"optimizers/{number}", one, other, label)
            labels = list(map(str, range(len(one.params)))), list(map(str, range(len(other.params))))
        ours.append(labels[0])
        theirs.append(labels[1])
    schedulers = min(len(left.schedulers), len(right.schedulers))
    modules = bool(left.modules and right.modules)
    return (
        _items(left, ours, schedulers, label, module if modules else None),
        _items(right, theirs, schedulers, str, str if modules else None),
        found,
    )


def pairs(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Give what both sides have, item by item."""
    yield from ((item, mine, theirs[item]) for item, mine in ours.items() if item in theirs)


def alone(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Difference]:
    """Give what only one side has."""
    yield from (Difference(item, "only in A") for item in ours if item not in theirs)
    yield from (Difference(item, "only in B") for item in theirs if item not in ours)


def values(ours: Items, theirs: Items) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the values of both sides without their tensors, which are items of their own: comparable by content.

    What is there on one side only and holds tensors is left out: it is told tensor by tensor.
    """
    held = (ours.trees, theirs.trees)
    return tuple(  # type: ignore[return-value] # two sides
        {
            item: bare(tree)
            for item, tree in side.items()
            if all(item in other for other in held) or not _holds_tensors(tree)
        }
        for side in held
    )


def _numbers(section: str, ours: int, theirs: int) -> list[Difference]:
    side = "A" if ours > theirs else "B"
    return [Difference(f"{section}/{n}", f"only in {side}") for n in range(min(ours, theirs), max(ours, theirs))]


# ── optimizers ──


def _by_name(left: Optimizer, right: Optimizer, label: Label) -> tuple[list[str], list[str]] | None:
    ours, theirs = ([param.name for param in optimizer.params if param.name] for optimizer in (left, right))
    for names, optimizer in ((ours, left), (theirs, right)):
        if len(set(names)) < len(optimizer.params):
            return None
    return list(map(label, ours)), theirs


def _by_id(
    left: Optimizer, right: Optimizer, identify: Identify | None, label: Label
) -> tuple[list[str], list[str]] | None:
    """Label entries by their ids, or by the name that one side has for an id; None where the ids pair nothing."""
    if identify is None:
        return None
    sides = [
        {identify(p.key): p.name for p in optimizer.params if isinstance(p.key, int | str)}
        for optimizer in (left, right)
    ]
    ours, theirs = sides
    if ours.keys().isdisjoint(theirs) or len(ours) < len(left.params) or len(theirs) < len(right.params):
        return None
    names = {key: label(name) for key, name in ours.items() if name}
    names |= {key: name for key, name in theirs.items() if name}
    if len(set(names.values())) < len(names):
        names = {}
    return [names.get(key, str(key)) for key in ours], [names.get(key, str(key)) for key in theirs]


def _kinds(item: str, left: Optimizer, right: Optimizer) -> list[Difference]:
    if left.kind and right.kind and left.kind != right.kind:
        return [Difference(item, f"an optimizer of kind {left.kind} and of kind {right.kind}")]
    return []


def _owners(item: str, left: Optimizer, right: Optimizer, label: Label) -> list[Difference]:
    """Say, position by position, whose entry it is, where both sides tell."""
    return [
        Difference(f"{item}/{position}", f"of {ours.name} and of {theirs.name}")
        for position, (ours, theirs) in enumerate(zip(left.params, right.params, strict=False))
        if ours.name and theirs.name and label(ours.name) != theirs.name
    ]


# ── items ──


def _items(
    checkpoint: Checkpoint, entries: list[list[str]], schedulers: int, label: Label, module: Label | None
) -> Items:
    trees = dict(_trees(checkpoint, entries, schedulers))
    if module is not None:
        trees |= {f"modules/{module(name)}": versions for name, versions in checkpoint.modules.items()}
    return Items(dict(_tensors(checkpoint, trees, label)), trees, entries)


def _tensors(checkpoint: Checkpoint, trees: dict[str, Any], label: Label) -> Iterator[tuple[str, Tensor]]:
    """Give every tensor under the name of its item."""
    for name, tensor in checkpoint.model.items():
        yield f"model/{label(name)}", tensor
    for twin, members in checkpoint.twins.items():
        for name, tensor in members.items():
            yield f"twins/{twin}/{label(name)}", tensor
    for item, tree in trees.items():
        for path, node in walk(tree):
            if isinstance(node, Tensor):
                yield (f"{item}/{spell(path)}" if path else item), node


def _trees(checkpoint: Checkpoint, entries: list[list[str]], schedulers: int) -> Iterator[tuple[str, Any]]:
    """Give every value under the name of its item."""
    for number, labels in enumerate(entries):
        optimizer = checkpoint.optimizers[number]
        for called, param in zip(labels, optimizer.params, strict=True):
            entry = f"optimizers/{number}/{called}"
            yield entry, {"group": param.group}
            for name, slot in (param.slots or {}).items():
                yield f"{entry}/{name}", slot.value
        yield f"optimizers/{number}/groups", optimizer.groups
        yield f"optimizers/{number}/shared", optimizer.shared
    for number, scheduler in enumerate(checkpoint.schedulers[:schedulers]):
        yield f"schedulers/{number}", scheduler
    for name, value in checkpoint.values.items():
        yield f"values/{name}", value
    progress = checkpoint.progress
    yield "progress", {"epoch": progress.epoch, "counts": progress.counts, "step": progress.step, "best": progress.best}


def _holds_tensors(tree: Any) -> bool:
    return any(isinstance(node, Tensor) for _, node in walk(tree))


_PLACE = Known("a tensor")


def bare(tree: Any) -> Any:
    """Copy a tree with its keys sorted and a placeholder for each tensor: those are compared by their elements.

    Shared and circular nodes stay so. No recursion: a file may nest as deep as it likes.
    """
    copies: dict[int, Any] = {}
    left: list[tuple[Any, Any]] = []

    def copy(node: Any) -> Any:
        if isinstance(node, Tensor):
            return _PLACE
        if not isinstance(node, dict | list | tuple | Known | Inert):
            return node
        made = copies.get(id(node))
        if made is None:
            made = copies[id(node)] = _shell(node)
            left.append((node, made))
        return made

    root = copy(tree)
    while left:
        node, made = left.pop()
        if isinstance(node, dict):
            made.update((key, copy(node[key])) for key in sorted(node, key=lambda k: (type(k).__name__, spell_step(k))))
            if isinstance(node, Ordered) and node.attributes:
                made.attributes.update((name, copy(value)) for name, value in sorted(node.attributes.items()))
        elif isinstance(node, list):
            made.extend(map(copy, node))
        elif isinstance(node, Inert):
            made.args, made.state, made.items = copy(node.args), copy(node.state), copy(node.items)
        else:
            args = node if isinstance(node, tuple) else node.args
            made.args = None if args is None else tuple(map(copy, args))
    return root


def _shell(node: Any) -> Any:
    """Give an empty copy of a container; a tuple's is a call of ``tuple``, which can be filled when its items are there."""
    if isinstance(node, dict):
        return Ordered() if isinstance(node, Ordered) and node.attributes else {}
    if isinstance(node, list):
        return []
    if isinstance(node, Inert):
        return Inert(node.kind, node.path)
    return Known("builtins.tuple" if isinstance(node, tuple) else node.path)
