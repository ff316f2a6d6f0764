"""The account of a checkpoint: every leaf of its file, and the item that it became or the reason why it became none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate import values
from ckptmigrate.checkpoint import Checkpoint, Optimizer
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known, Ordered, spell

from . import sections
from .sections import Sections, StateDict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptmigrate.values import Path, Tree

_CONTAINERS = (dict, list, tuple)
_INSIDE = (("@", "args"), ("@", "state"), ("@", "items"))  # the steps that lead into an Inert node


def account(tree: Tree, found: Sections, checkpoint: Checkpoint) -> None:
    """Count every leaf of the tree, and say which item it is."""
    ledger = checkpoint.ledger
    by_place = {path: section for section, path in found.places.items()}
    names = {section: _item_names(section, value, checkpoint.modules) for section, value in found.values.items()}
    seen: set[int] = set()
    for path, leaf in _leaves(tree, seen):
        text = spelled = spell(path) or sections.LONE
        count = 1
        while text in ledger.sources:  # the keys 0 and "0" are spelled alike
            count += 1
            text = f"{spelled}~{count}"
        ledger.source(text)
        place = next((path[:n] for n in range(len(path) + 1) if path[:n] in by_place), None)
        section = None if place is None else by_place[place]
        inside = next((step for step in path if step in _INSIDE), None)
        if section is not None and place is not None:
            item = names[section](path[len(place) :], leaf)
        elif inside is None:
            item = f"values/extra/{text}"
        else:
            item = None
        if isinstance(leaf, Inert) and (section is None or not section.startswith(("model", "twins"))):
            ledger.left_out(text, _reason(leaf))
        elif item is not None:
            ledger.became(text, item)
        elif inside is not None:
            ledger.left_out(text, "inside an object or call that nobody makes")
        else:
            ledger.left_out(text, "no part of a state dict")


def _item_names(section: str, value: Any, modules: Mapping[str, Any]) -> Any:
    """Give the function that names the item of a leaf by its path below the section, or None where it is none."""
    kind, _, name = section.partition(".")
    if isinstance(value, StateDict):
        prefix = "model" if kind == "model" else f"twins/{name}"
        by_path = {path: full for full, path in value.paths.items()}

        def of_state_dict(path: Path, leaf: Any) -> str | None:
            if path[:1] == (("@", sections.METADATA),):
                return f"modules/{spell(path[1:])}" if kind == "model" or value.modules == modules else None
            found = next((by_path[path[:n]] for n in range(len(path) + 1) if path[:n] in by_path), None)
            if found is None:
                return None
            if isinstance(leaf, Tensor) and found in value.tensors:
                return f"{prefix}/{found}"
            return f"values/model/{found}" if kind == "model" else None

        return of_state_dict
    if isinstance(value, Optimizer):
        slots: dict[int, list[str]] = {}
        holder = Checkpoint("", optimizers=[value])
        for item, tensor in items_of(holder):
            slots.setdefault(id(tensor), []).append(item.replace("optimizers/0", f"optimizers/{name}", 1))

        def of_optimizer(_path: Path, leaf: Any) -> str:
            found = slots.get(id(leaf)) if isinstance(leaf, Tensor) else None
            return f"optimizers/{name}" if not found else found.pop(0) if len(found) > 1 else found[0]

        return of_optimizer
    root = section.replace(".", "/", 1)
    return lambda path, _leaf: f"{root}/{spell(path)}" if path else root


def _leaves(tree: Tree, seen: set[int]) -> Iterator[tuple[Path, Any]]:
    """Give the leaves of a tree: every node without nodes below it, and Inert nodes with the tensors inside them.

    A container that stands at several places counts where it stands first: sharing costs nothing in a file, and a walk of all
    paths would let a small file ask for any amount of time.
    """
    stack: list[tuple[Path, Any, bool]] = [((), tree, False)]
    while stack:
        path, node, inside = stack.pop()
        inert = isinstance(node, Inert)
        if inert or isinstance(node, Tensor) or not (inside or isinstance(node, (*_CONTAINERS, Known))):
            yield path, node
        if id(node) in seen or not (inert or isinstance(node, (*_CONTAINERS, Known))):
            continue
        seen.add(id(node))
        if isinstance(node, Known) and not node.args and not inside:
            yield path, node
        stack.extend(((*path, step), child, inside or inert) for step, child in reversed(list(_children(node))))


def _children(node: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(node, Ordered):
        yield from ((("@", name), value) for name, value in node.attributes.items())
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list | tuple):
        yield from enumerate(node)
    elif isinstance(node, Known):
        yield from enumerate(node.args or ())
    elif isinstance(node, Inert):
        yield from ((("@", "args"), node.args), (("@", "state"), node.state), (("@", "items"), node.items))


def _reason(node: Inert) -> str:
    if node.kind == "call" and node.path.rpartition(".")[2] == "getattr":
        return "a method reference, which is never resolved"
    return values.reason(node)


def account_encoded(checkpoint: Checkpoint, tensors: Mapping[str, Any], file: str) -> None:
    """Say of each tensor of a value file what it became; one that the record does not use is left out."""
    by_promise: dict[Any, list[str]] = {}
    for item, tensor in items_of(checkpoint):
        by_promise.setdefault(tensor.promise, []).append(item)
    for name, tensor in tensors.items():
        found = by_promise.get(tensor.promise) if isinstance(tensor, Tensor) else None
        if found:
            checkpoint.ledger.became(f"{file}/{name}", found.pop() if len(found) > 1 else found[0])
        else:
            checkpoint.ledger.left_out(f"{file}/{name}", "the record does not use it")


def items_of(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Give every tensor of optimizers, schedulers, values and progress with its item."""
    for number, optimizer in enumerate(checkpoint.optimizers):
        for position, param in enumerate(optimizer.params):
            for slot, value in (param.slots or {}).items():
                yield from _tensors_below(f"optimizers/{number}/{position}/{slot}", value.value)
        yield from _tensors_below(f"optimizers/{number}/groups", optimizer.groups)
        yield from _tensors_below(f"optimizers/{number}/shared", optimizer.shared)
    yield from _tensors_below("schedulers", checkpoint.schedulers)
    yield from _tensors_below("values", checkpoint.values)
    yield from _tensors_below("progress/best", checkpoint.progress.best)


def _tensors_below(item: str, tree: Tree) -> Iterator[tuple[str, Tensor]]:
    for path, node in values.walk(tree):
        if isinstance(node, Tensor):
            yield (f"{item}/{spell(path)}" if path else item), node
