"""What a torch pickle's value becomes once it is whole: storages become tensors, module objects their state dicts.

    Storage                      a tensor of one dimension
    Inert object, a module       Ordered, its state dict (`_torch_modules`)
    tuple that holds one         a new tuple; lists, dictionaries and nodes are changed in place

What refers to itself stays itself. Nothing here recurses: nesting is limited to what Python's own stack could not follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known, Ordered, spell

from ._torch_modules import below, is_module, read_module
from ._torch_storages import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptmigrate.limits import Limits
    from ckptmigrate.values import Path, Tree

    from ._torch_modules import Notes

_NAMED = 20  # names listed in one warning


@dataclass(slots=True)
class Settled:
    """The finished tree; ``modules``: class paths by key path; ``dropped``: calls in what modules held beside tensors."""

    tree: Tree
    modules: dict[str, str] = field(default_factory=dict)
    dropped: list[tuple[str, Inert]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def settle(tree: Tree, attributes: Notes, limits: Limits) -> Settled:
    """Give the tree with tensors for storages and state dicts for modules; lists and dictionaries are changed in place.

    ``attributes``: tensors by identity whose Python attributes are left out, to be reported by key path.
    """
    settler = _Settler(limits, attributes, Settled(None))
    settler.settled.tree = settler.run(tree)
    return settler.settled


@dataclass(slots=True)
class _Settler:
    limits: Limits
    attributes: Notes
    settled: Settled
    done: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by identity: a node and what it became

    def run(self, root: Any) -> Any:
        """Give what the root becomes."""
        holder = [root]
        stack: list[tuple[Any, Path, Iterator[tuple[Any, Any]]]] = [(holder, (), iter([(None, root)]))]
        while stack:
            node, path, rest = stack[-1]
            for step, child in rest:
                place = path if node is holder else (*path, step)
                if self._enters(child, place):
                    stack.append((child, place, iter(below(child))))
                    break
            else:
                stack.pop()
                self._close(node)
        return holder[0]

    def _enters(self, node: Any, path: Path) -> bool:
        """Settle what is settled by itself; True for a container whose own items come first."""
        kind = type(node)
        if kind is Tensor:
            self._report(node, path)
        if kind not in (dict, Ordered, list, tuple, Inert, Known) or id(node) in self.done:
            return False
        self.done[id(node)] = (node, node)
        if kind is not Inert or not is_module(node):
            return True
        self.done[id(node)] = (node, self._module(node, path))
        return False

    def _module(self, node: Inert, path: Path) -> Any:
        where = spell(path)
        found = read_module(node, where, self.attributes, self.limits)
        if isinstance(found.names, Ordered):
            for name, value in found.names.items():
                if isinstance(value, Tensor):
                    self._report(value, (*path, name))
        self.settled.warnings.append(
            f"{where or 'the file'}: module {node.path} read as its state dict; a loader that expects the object must change"
        )
        if found.beside:
            self.settled.warnings.append(f"left out, as in no state dict: {_listed(found.beside)}")
        self.settled.modules |= found.classes
        self.settled.dropped += found.calls
        return found.names

    def _settle(self, node: Any) -> Any:
        return node.tensor() if type(node) is Storage else self.done.get(id(node), (node, node))[1]

    def _close(self, node: Any) -> None:
        """Put into a container what its items became."""
        if isinstance(node, dict):
            for key, value in node.items():
                _check_key(key)
                node[key] = self._settle(value)
        elif isinstance(node, list):
            node[:] = map(self._settle, node)
        elif isinstance(node, tuple):
            items = tuple(map(self._settle, node))
            if any(new is not old for new, old in zip(items, node, strict=True)):
                self.done[id(node)] = (node, items)
        else:
            node.args = self._settle(node.args)
            if isinstance(node, Inert):
                node.state = self._settle(node.state)

    def _report(self, tensor: Tensor, path: Path) -> None:
        _, names = self.attributes.pop(id(tensor), (None, []))
        if names:
            self.settled.warnings.append(
                f"{spell(path) or 'the root'}: attribute{'s' * (len(names) > 1)} {_listed(names)} left out"
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name[:80] for name in names[:_NAMED]) + more


def _check_key(key: Any) -> None:
    if type(key) is Storage or (type(key) is tuple and any(type(part) is Storage for part in key)):
        raise CorruptError("a storage is a dictionary's key, where nothing could look into it")
