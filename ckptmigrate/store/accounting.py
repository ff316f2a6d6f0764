"""The account of a checkpoint: every leaf of its file, and the item that it became or the reason why it became none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate import values
from ckptmigrate.checkpoint import Optimizer
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known, Ordered, Scalar, spell
from ckptmigrate.values.tree import spell_step

from .state_dicts import LONE, METADATA, StateDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.values import Path, Tree

    from .sections import Sections

    Namer = Callable[[Path, Any], "str | None"]

_CONTAINERS = (dict, list, tuple)
_INSIDE = (("@", "args"), ("@", "state"), ("@", "items"))  # the steps that lead into an Inert node
_METADATA = ("@", METADATA)


def account(tree: Tree, found: Sections, checkpoint: Checkpoint) -> None:
    """Count every leaf of the tree, and say which item it is."""
    ledger = checkpoint.ledger
    by_place = {path: section for section, path in found.places.items()}
    namers = {section: _namer(section, value, checkpoint.modules) for section, value in found.values.items()}
    for path, leaf in _leaves(tree):
        text = spelled = spell(path) or LONE
        count = 1
        while text in ledger.sources:  # the keys 0 and "0" are spelled alike
            count += 1
            text = f"{spelled}~{count}"
        ledger.source(text)
        place = next((path[:n] for n in range(len(path) + 1) if path[:n] in by_place), None)
        section = None if place is None else by_place[place]
        inside = any(step in _INSIDE for step in path)
        if section is not None and place is not None:
            item = namers[section](path[len(place) :], leaf)
        else:
            item = None if inside else f"values/extra/{spelled}"
        if isinstance(leaf, Inert) and (section is None or not section.startswith(("model", "twins"))):
            ledger.left_out(text, _reason(leaf))
        elif inside:
            ledger.left_out(text, "inside an object or call that nobody makes")
        elif item is not None:
            ledger.became(text, item)
        else:
            ledger.left_out(text, "an attribute of a state dict that says nothing of its modules")


def account_tensors(tensors: Mapping[str, Tensor | Scalar], found: Sections, checkpoint: Checkpoint) -> None:
    """Count every tensor and number of a file that is one section, and say which item it is."""
    (section,) = found.values
    value = found.values[section]
    root = section.replace(".", "/", 1)
    if isinstance(value, StateDict):
        namer = _namer(section, value, checkpoint.modules)
        for name, tensor in tensors.items():
            checkpoint.ledger.became(name, str(namer((name,), tensor)))
        return
    below = [("", value)] if not isinstance(value, Optimizer) else _below(value)
    by_identity: dict[int, list[str]] = {}
    for prefix, tree in below:
        for path, node in values.walk(tree):
            if isinstance(node, Tensor | Scalar):
                by_identity.setdefault(id(node), []).append("/".join(filter(None, (root, prefix, spell(path)))))
    for name, tensor in tensors.items():
        items = by_identity.get(id(tensor))
        checkpoint.ledger.became(name, root if not items else items.pop(0) if len(items) > 1 else items[0])


def _namer(section: str, value: Any, modules: Mapping[str, Any]) -> Namer:
    """Give the function that names the item of a leaf by its path below the section; None where it is none."""
    if isinstance(value, StateDict):
        return _of_state_dict(section, value, modules)
    if isinstance(value, Optimizer):
        return _of_optimizer(section.replace(".", "/", 1), value)
    root = section.replace(".", "/", 1)
    return lambda path, _leaf: f"{root}/{spell(path)}" if path else root


def _of_state_dict(section: str, value: StateDict, modules: Mapping[str, Any]) -> Namer:
    prefix = section.replace(".", "/", 1)
    by_path = {path: full for full, path in value.paths.items()}
    versions = "modules" if section == "model" or value.modules == modules else f"values/{prefix}/@{METADATA}"

    def name(path: Path, leaf: Any) -> str | None:
        if path[:1] == (_METADATA,):
            return f"{versions}/{spell(path[1:])}" if path[1:2] and path[1] in value.modules else None
        depth = next((n for n in range(len(path) + 1) if path[:n] in by_path), None)
        if depth is None:
            return None
        found = by_path[path[:depth]]
        if isinstance(leaf, Tensor) and found in value.tensors:
            return f"{prefix}/{found}"
        return "/".join((f"values/{prefix}/{found}", *map(spell_step, path[depth:])))

    return name


def _of_optimizer(root: str, value: Optimizer) -> Namer:
    """Name the leaves of an optimizer by what they are in it: the family keeps slots and hyperparameters as they stand.

    A leaf is the slot that its path names (the key of an entry, then a slot), the field of a group, or one of what is shared, and
    the very same value; what is left (which parameters a group has, their names) is the optimizer's own.
    """
    entries = {param.key: (n, param.slots) for n, param in enumerate(value.params) if param.slots is not None}

    def holds(tree: Any, rest: Path, leaf: Any) -> bool:
        for step in rest:
            if isinstance(tree, dict):
                tree = tree.get(step)
            elif isinstance(tree, list | tuple | Known):
                items = (tree.args or ()) if isinstance(tree, Known) else tree
                tree = items[step] if isinstance(step, int) and step < len(items) else None
            else:
                return False
        return tree is leaf

    def name(path: Path, leaf: Any) -> str:
        for depth, step in enumerate(path[:-1]):
            below, rest = path[depth + 1], path[depth + 2 :]
            number, slots = entries.get(step, (0, None))
            if slots and below in slots and holds(slots[below].value, rest, leaf):
                return "/".join((f"{root}/{number}", *map(spell_step, path[depth + 1 :])))
            if isinstance(step, int) and 0 <= step < len(value.groups):
                group = value.groups[step]
                if below in group and holds(group[below], rest, leaf):
                    return "/".join((f"{root}/groups/{step}", *map(spell_step, path[depth + 1 :])))
        for depth, step in enumerate(path):
            if step in value.shared and holds(value.shared, path[depth:], leaf):
                return "/".join((f"{root}/shared", *map(spell_step, path[depth:])))
        return root

    return name


def _leaves(tree: Tree) -> Iterator[tuple[Path, Any]]:
    """Give the leaves of a tree: every node without nodes below it, and Inert nodes with the tensors inside them.

    A container that stands at several places counts where it stands first: sharing costs nothing in a file, and a walk of all
    paths would let a small file ask for any amount of time.
    """
    seen: set[int] = set()
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
    """Give the reason of an Inert node; what was looked up by name on an object is told from other objects."""
    if node.path.rpartition(".")[2] == "getattr" and node.args and isinstance(node.args[0], Inert):
        if ".lr_scheduler." in node.args[0].path:
            return (
                "method reference; torch >= 2.4 stores a name instead"  # house: what users of that framework look for
            )
        return f"a reference to {node.args[0].path}.{node.args[-1]}, which is never resolved"
    return values.reason(node)


def account_encoded(checkpoint: Checkpoint, tensors: Mapping[str, Any], file: str) -> None:
    """Say of each tensor of a value file what it became; one that the record does not use is left out."""
    by_promise: dict[Any, list[str]] = {}
    for item, leaf in items_of(checkpoint):
        if isinstance(leaf, Tensor):
            by_promise.setdefault(leaf.promise, []).append(item)
    for name, tensor in tensors.items():
        found = by_promise.get(tensor.promise) if isinstance(tensor, Tensor) else None
        if found:
            checkpoint.ledger.became(f"{file}/{name}", found.pop() if len(found) > 1 else found[0])
        else:
            checkpoint.ledger.left_out(f"{file}/{name}", "the record does not use it")


def account_recorded(checkpoint: Checkpoint, file: str) -> None:
    """Count what our record holds and no tensor or key of the file says: ``file`` is what the report calls it."""
    told = checkpoint.ledger.came_from()
    for item, leaf in items_of(checkpoint):
        if item not in told and not isinstance(leaf, Tensor):
            checkpoint.ledger.became(f"{file}/{item}", item)


def items_of(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    """Give every leaf of modules, optimizers, schedulers, values and progress with its item."""
    yield from _leaves_below("modules", checkpoint.modules)
    for number, optimizer in enumerate(checkpoint.optimizers):
        for prefix, tree in _below(optimizer):
            yield from _leaves_below(f"optimizers/{number}/{prefix}", tree)
    yield from _leaves_below("schedulers", checkpoint.schedulers)
    yield from _leaves_below("values", checkpoint.values)
    progress = checkpoint.progress
    named = {"epoch": progress.epoch, "step": progress.step, "best": progress.best}
    yield from _leaves_below("progress", {name: value for name, value in named.items() if value is not None})


def _below(optimizer: Optimizer) -> Iterator[tuple[str, Tree]]:
    """Give the parts of an optimizer, under what stands behind "optimizers/N/" in the names of their items."""
    for position, param in enumerate(optimizer.params):
        for slot, value in (param.slots or {}).items():
            yield f"{position}/{slot}", value.value
    for number, group in enumerate(optimizer.groups):
        yield f"groups/{number}", group
    yield "shared", optimizer.shared


def _leaves_below(item: str, tree: Tree) -> Iterator[tuple[str, Any]]:
    for path, node in _leaves(tree):
        if not any(step in _INSIDE for step in path):
            yield (f"{item}/{spell(path)}" if path else item), node
