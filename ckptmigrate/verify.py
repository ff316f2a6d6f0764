"""Digests of tensors, and what differs between two checkpoints."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_128_digest

from .tensor import Tensor, windows
from .values import Inert, Known, Ordered, difference, spell, walk
from .values.tree import spell_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .checkpoint import Checkpoint, Optimizer


@dataclass(frozen=True, slots=True)
class Difference:
    """One item that two checkpoints do not share: ``item`` as the ledger names it, ``what`` in words."""

    item: str
    what: str


def digest(tensor: Tensor) -> str:
    """Give the SHA-256 of the tensor's elements, row-major and little-endian, as 64 hex digits."""
    sha = hashlib.sha256()
    for window in windows(tensor.promise):
        sha.update(window)
    return sha.hexdigest()


def compare(left: Checkpoint, right: Checkpoint) -> list[Difference]:
    """Give what differs: items on one side, dtypes, shapes, elements, and values that are no tensors; [] when all is equal.

    Elements are compared bit by bit. No differences are: formats and layouts, the order of names and keys, ties, roles and ids, and
    what only one of the two files can say (module versions, an optimizer's kind, its parameters' names).
    """
    found = _numbers("optimizers", len(left.optimizers), len(right.optimizers))
    found += _numbers("schedulers", len(left.schedulers), len(right.schedulers))
    named = []
    for number, (ours, theirs) in enumerate(zip(left.optimizers, right.optimizers, strict=False)):
        named.append(_is_named(ours) and _is_named(theirs))
        found += _differences_of_optimizers(f"optimizers/{number}", ours, theirs, by_name=named[-1])
    schedulers = min(len(left.schedulers), len(right.schedulers))
    trees = [dict(_trees(side, named, schedulers)) for side in (left, right)]
    if left.modules and right.modules:
        for side, held in zip((left, right), trees, strict=True):
            held |= {f"modules/{name}": versions for name, versions in side.modules.items()}
    tensors = [dict(_tensors(side, items)) for side, items in zip((left, right), trees, strict=True)]
    for item, ours, theirs in _pairs(tensors[0], tensors[1], found):
        what = _difference(ours, theirs)
        if what:
            found.append(Difference(item, what))
    for held in trees:  # what is there on one side only has been told, tensor by tensor
        for item in [i for i, tree in held.items() if any(i not in other for other in trees) and _holds_tensors(tree)]:
            del held[item]
    for item, ours, theirs in _pairs(trees[0], trees[1], found):
        what = difference(_bare(ours), _bare(theirs))
        if what:
            found.append(Difference(item, what))
    return sorted(found, key=lambda d: d.item)


def _numbers(section: str, ours: int, theirs: int) -> list[Difference]:
    side = "left" if ours > theirs else "right"
    return [Difference(f"{section}/{n}", f"only on the {side}") for n in range(min(ours, theirs), max(ours, theirs))]


def _pairs(ours: dict[str, Any], theirs: dict[str, Any], found: list[Difference]) -> Iterator[tuple[str, Any, Any]]:
    """Give what both have; what only one has is a difference."""
    found += [Difference(item, "only on the left") for item in ours if item not in theirs]
    found += [Difference(item, "only on the right") for item in theirs if item not in ours]
    for item, mine in ours.items():
        if item in theirs:
            yield item, mine, theirs[item]


# ── tensors ──


def _tensors(checkpoint: Checkpoint, trees: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Give every tensor under the name of its item."""
    for name, tensor in checkpoint.model.items():
        yield f"model/{name}", tensor
    for twin, members in checkpoint.twins.items():
        for name, tensor in members.items():
            yield f"twins/{twin}/{name}", tensor
    for item, tree in trees.items():
        for path, node in walk(tree):
            if isinstance(node, Tensor):
                yield (f"{item}/{spell(path)}" if path else item), node


def _difference(left: Tensor, right: Tensor) -> str | None:
    if left.dtype != right.dtype:
        return f"dtype {left.dtype} and {right.dtype}"
    if left.shape != right.shape:
        return f"shape {list(left.shape)} and {list(right.shape)}"
    if not _same_quantisation(left, right):
        return "other quantisation"
    return None if _same_elements(left, right) else "other values"


def _same_elements(left: Tensor, right: Tensor) -> bool:
    """Compare window by window, up to the first that differs (xxh3: comparing the bytes takes thirty times as long)."""
    one, other = left.promise, right.promise
    if one == other:
        return True
    step = max(one.window, other.window)
    spans = ((start, min(start + step, one.numel)) for start in range(0, one.numel, step))
    return all(xxh3_128_digest(one.read(*span)) == xxh3_128_digest(other.read(*span)) for span in spans)


def _same_quantisation(left: Tensor, right: Tensor) -> bool:
    a, b = left.quant, right.quant
    if a is None or b is None:
        return a is b
    pairs = ((a.scale, b.scale), (a.zero_point, b.zero_point))
    return (a.scheme, a.axis) == (b.scheme, b.axis) and all(
        _difference(x, y) is None if isinstance(x, Tensor) and isinstance(y, Tensor) else difference(x, y) is None
        for x, y in pairs
    )


# ── optimizers ──


def _is_named(optimizer: Optimizer) -> bool:
    names = {param.name for param in optimizer.params}
    return None not in names and len(names) == len(optimizer.params)


def _differences_of_optimizers(item: str, left: Optimizer, right: Optimizer, *, by_name: bool) -> list[Difference]:
    """Compare what is no tree: the kind, and, position by position, whose entry it is, where both sides say."""
    found = []
    if left.kind and right.kind and left.kind != right.kind:
        found.append(Difference(item, f"an optimizer of kind {left.kind} and of kind {right.kind}"))
    if not by_name:
        for position, (ours, theirs) in enumerate(zip(left.params, right.params, strict=False)):
            if ours.name and theirs.name and ours.name != theirs.name:
                found.append(Difference(f"{item}/{position}", f"of {ours.name} and of {theirs.name}"))
    return found


# ── values ──


def _trees(checkpoint: Checkpoint, named: list[bool], schedulers: int) -> Iterator[tuple[str, Any]]:
    """Give every value under the name of its item; an optimizer's entries by name where both sides name all of theirs."""
    for number, (optimizer, by_name) in enumerate(zip(checkpoint.optimizers, named, strict=False)):
        for position, param in enumerate(optimizer.params):
            entry = f"optimizers/{number}/{param.name if by_name else position}"
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


def _bare(tree: Any) -> Any:
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
