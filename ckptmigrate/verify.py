"""Digests of tensors, and what differs between two checkpoints."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .tensor import Tensor, windows
from .values import difference, spell, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .checkpoint import Checkpoint


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


def tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Give every tensor of a checkpoint under the ledger's name of its item; optimizer entries by name where they have one."""
    for name, tensor in checkpoint.model.items():
        yield f"model/{name}", tensor
    for twin, members in checkpoint.twins.items():
        for name, tensor in members.items():
            yield f"twins/{twin}/{name}", tensor
    for item, tree in _trees(checkpoint):
        for path, node in walk(tree):
            if isinstance(node, Tensor):
                yield (f"{item}/{spell(path)}" if path else item), node


def compare(left: Checkpoint, right: Checkpoint) -> list[Difference]:
    """Give what differs: items on one side, dtypes, shapes, elements, and values that are no tensors; [] when all is equal.

    Names of formats and layouts, and the order of names, are no differences.
    """
    ours, theirs = dict(tensors(left)), dict(tensors(right))
    found = [Difference(item, "only on the left") for item in ours if item not in theirs]
    found += [Difference(item, "only on the right") for item in theirs if item not in ours]
    for item in ours.keys() & theirs.keys():
        what = _difference(ours[item], theirs[item])
        if what:
            found.append(Difference(item, what))
    found += _differences_of_values(left, right)
    return sorted(found, key=lambda d: d.item)


def _difference(left: Tensor, right: Tensor) -> str | None:
    if left.dtype != right.dtype:
        return f"dtype {left.dtype} and {right.dtype}"
    if left.shape != right.shape:
        return f"shape {list(left.shape)} and {list(right.shape)}"
    if left.promise == right.promise:
        return None
    return None if digest(left) == digest(right) else "other values"


def _trees(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    for number, optimizer in enumerate(checkpoint.optimizers):
        for position, param in enumerate(optimizer.params):
            for name, slot in (param.slots or {}).items():
                yield f"optimizers/{number}/{param.name or position}/{name}", slot.value
        yield f"optimizers/{number}/groups", optimizer.groups
        yield f"optimizers/{number}/shared", optimizer.shared
    for number, scheduler in enumerate(checkpoint.schedulers):
        yield f"schedulers/{number}", scheduler
    for name, value in checkpoint.values.items():
        yield f"values/{name}", value
    progress = checkpoint.progress
    yield "progress", {"epoch": progress.epoch, "counts": progress.counts, "step": progress.step, "best": progress.best}


def _differences_of_values(left: Checkpoint, right: Checkpoint) -> list[Difference]:
    ours, theirs = dict(_trees(left)), dict(_trees(right))
    found = []
    for item in ours.keys() | theirs.keys():
        if item not in ours or item not in theirs:
            side, tree = ("left", ours[item]) if item in ours else ("right", theirs[item])
            if not _holds_tensors(tree):
                found.append(Difference(item, f"only on the {side}"))
            continue
        what = difference(_without_tensors(ours[item]), _without_tensors(theirs[item]))
        if what:
            found.append(Difference(item, what))
    return found


def _holds_tensors(tree: Any) -> bool:
    return any(isinstance(node, Tensor) for _, node in walk(tree))


def _without_tensors(tree: Any) -> Any:
    """Put a placeholder where tensors are compared by their elements."""
    if isinstance(tree, Tensor):
        return "tensor"
    if isinstance(tree, dict):
        return {key: _without_tensors(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_without_tensors(value) for value in tree)
    return tree
