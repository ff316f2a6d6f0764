"""What a torch pickle's value becomes once it is whole: storages become tensors, module objects their state dicts.

    an inert object whose state has         the state dict at the same key, in torch's order:
      _parameters   name -> Tensor | None     prefix + name, role parameter
      _buffers      name -> Tensor | None     prefix + name, role buffer, but for _non_persistent_buffers_set
      _modules      name -> object | None     the same of each child, prefix + name + "."

Everything else in a module's state is configuration, hooks, or tensors that occur again (``_flat_weights`` of an LSTM), and goes.
A call that nobody makes does not go unseen with it: it is given back with its key path.
Sources: Module._save_to_state_dict in torch/nn/modules/module.py, torch/nn/parallel, of torch 1.0 to 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError, LimitError
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known, Ordered, spell

from ._torch_storages import Storage, fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptmigrate.limits import Limits
    from ckptmigrate.values import Path, Tree

_WRAPPERS = ("torch.nn.parallel.data_parallel.DataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")
HARMLESS = frozenset({"torch.nn.backends.thnn._get_thnn_function_backend"})  # the one call in every module of torch 1.0


@dataclass(slots=True)
class Settled:
    """The finished tree; ``modules``: class paths by key path; ``dropped``: calls in what modules held beside tensors."""

    tree: Tree
    modules: dict[str, str] = field(default_factory=dict)
    dropped: list[tuple[str, Inert]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def settle(tree: Tree, attributes: dict[int, tuple[Tensor, list[str]]], limits: Limits) -> Settled:
    """Give the tree with tensors for storages and state dicts for modules; lists and dictionaries are changed in place.

    ``attributes``: tensors by identity whose Python attributes are left out, to be reported by key path.
    """
    settler = _Settler(limits, attributes)
    settled = Settled(settler.run(tree))
    settled.modules, settled.dropped, settled.warnings = settler.modules, settler.dropped, settler.warnings
    return settled


@dataclass(slots=True)
class _Settler:
    limits: Limits
    attributes: dict[int, tuple[Tensor, list[str]]]
    modules: dict[str, str] = field(default_factory=dict)
    dropped: list[tuple[str, Inert]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    done: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by identity: a node and what it became
    flat: dict[int, list[tuple[str, Any]]] = field(default_factory=dict)  # by identity of a module: its items
    names: int = 0

    def run(self, root: Any) -> Any:
        """Give what the root becomes. Without recursion: nesting is limited to what Python's own stack could not follow."""
        holder = [root]
        stack: list[tuple[Any, Path, Iterator[tuple[Any, Any]]]] = [(holder, (), iter([(None, root)]))]
        while stack:
            node, path, rest = stack[-1]
            for step, child in rest:
                place = path if node is holder else (*path, step)
                if self._enters(child, place):
                    stack.append((child, place, iter(_below(child))))
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
        self.done[id(node)] = (node, node)  # what refers to itself stays itself
        if kind is not Inert or not is_module(node):
            return True
        self.done[id(node)] = (node, self._state_dict(node, path))
        return False

    def _settled(self, node: Any) -> Any:
        return node.tensor() if type(node) is Storage else self.done.get(id(node), (node, node))[1]

    def _close(self, node: Any) -> None:
        """Put into a container what its items became."""
        if isinstance(node, dict):
            for key, value in node.items():
                _check_key(key)
                node[key] = self._settled(value)
        elif isinstance(node, list):
            node[:] = map(self._settled, node)
        elif isinstance(node, tuple):
            items = tuple(map(self._settled, node))
            if any(new is not old for new, old in zip(items, node, strict=True)):
                self.done[id(node)] = (node, items)
        else:
            node.args = self._settled(node.args)
            if isinstance(node, Inert):
                node.state = self._settled(node.state)

    def _report(self, tensor: Tensor, path: Path) -> None:
        _, names = self.attributes.pop(id(tensor), (None, []))
        if names:
            listed = ", ".join(names[:20])
            self.warnings.append(f"{spell(path)}: attribute{'s' * (len(names) > 1)} {listed:.200} left out")

    def _state_dict(self, module: Inert, path: Path) -> Any:
        where = spell(path)
        inner = _unwrapped(module)
        found = Ordered()
        for name, value in self._items(inner, where, {id(inner)}):
            if name in found and found[name] is not value:
                return fault(module.path, f"a module with two entries named {name!r}")
            found[name] = value
            self._report_part(value, path, name)
        self.warnings.append(
            f"{where or 'the file'}: module {module.path} read as its state dict; a loader that expects the object must change"
        )
        self._note_classes(inner, where)
        self._look_at_rest(module, where)
        return found

    def _report_part(self, value: Any, path: Path, name: str) -> None:
        if isinstance(value, Tensor):
            self._report(value, (*path, name))

    def _items(self, module: Inert, where: str, above: set[int]) -> list[tuple[str, Any]]:
        """Give the names and tensors of a module and all below it; a module that holds itself is a fault under its name."""
        if id(module) in self.flat:
            return self.flat[id(module)]
        state = state_of(module)
        items: list[tuple[str, Any]] = []
        left_out = _members(state.get("_non_persistent_buffers_set"))
        for key, role in (("_parameters", "parameter"), ("_buffers", "buffer")):
            for name, value in _pairs(state.get(key)):
                if value is None or (role == "buffer" and name in left_out):
                    continue
                items.append((name, self._leaf(value, role)))
        for name, child in _pairs(state.get("_modules")):
            if child is None:
                continue
            if not isinstance(child, Inert) or id(child) in above or not is_module(child):
                items.append((name, fault(module.path, f"a child {name!r} that is no module, or holds itself")))
                continue
            above.add(id(child))
            items += [(f"{name}.{below}", value) for below, value in self._items(child, where, above)]
            above.discard(id(child))
        self.names += len(items)
        if self.names > 8 * self.limits.tensors:  # shared modules may double at every level
            raise LimitError(
                f"module {module.path} at {where!r} has more than {self.limits.tensors} names",
                limit="tensors", claimed=self.names,
            )  # fmt: skip
        self.flat[id(module)] = items
        return items

    def _leaf(self, value: Any, role: Any) -> Any:
        if not isinstance(value, Tensor):
            return value if isinstance(value, Inert) else fault("torch.nn.Module", f"a {role} that is no tensor")
        return value if value.role == role else self._moved(value, replace(value, role=role))

    def _moved(self, old: Tensor, new: Tensor) -> Tensor:
        if id(old) in self.attributes:
            self.attributes[id(new)] = (new, self.attributes[id(old)][1])
        return new

    def _note_classes(self, module: Inert, where: str) -> None:
        pending = [(module, where)]
        seen: set[int] = set()
        while pending:
            node, path = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            self.modules[path] = node.path
            children = [
                (child, f"{path}/{name}" if path else name)
                for name, child in _pairs(state_of(node).get("_modules"))
                if isinstance(child, Inert)
            ]
            pending += reversed(children)

    def _look_at_rest(self, module: Inert, where: str) -> None:
        seen: set[int] = set()
        for path, node in every_container(module):
            if isinstance(node, Inert) and node.kind == "call" and node.path not in HARMLESS and id(node) not in seen:
                seen.add(id(node))
                self.dropped.append((f"{where}/{path}".strip("/"), node))


def _below(node: Any) -> Iterable[tuple[Any, Any]]:
    """Give the items of a container with the steps that lead to them."""
    if isinstance(node, dict):
        attributes = [(("@", "attributes"), node.attributes)] if isinstance(node, Ordered) else []
        return [*attributes, *node.items()]
    if isinstance(node, (list, tuple)):
        return enumerate(node)
    if isinstance(node, Known):
        return [(("@", "args"), node.args)]
    return [(("@", "args"), node.args), (("@", "state"), node.state), (("@", "items"), node.items)]


def _check_key(key: Any) -> None:
    if type(key) is Storage or (type(key) is tuple and any(type(part) is Storage for part in key)):
        raise CorruptError("a storage is a dictionary's key, where nothing could look into it")


def is_module(node: Inert) -> bool:
    """Say whether an inert node is a module object: its state tells, whatever its class."""
    state = state_of(node)
    return node.kind == "object" and all(
        isinstance(state.get(key), dict) for key in ("_parameters", "_buffers", "_modules")
    )


def state_of(node: Inert) -> dict[Any, Any]:
    """Give the attributes of an inert object; {} where it has none."""
    state = node.state[0] if type(node.state) is tuple and len(node.state) == 2 else node.state
    return state if isinstance(state, dict) else {}


def _unwrapped(module: Inert) -> Inert:
    """Take the level of DataParallel off, which is no part of the model."""
    for _ in range(len(_WRAPPERS)):  # one in the other at most
        child = state_of(module)["_modules"].get("module") if module.path in _WRAPPERS else None
        if not isinstance(child, Inert) or not is_module(child):
            break
        module = child
    return module


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((str(key), item) for key, item in value.items()) if isinstance(value, dict) else ()


def _members(value: Any) -> set[Any]:
    """Give the names in a set, as the machine keeps one."""
    items = value.args[0] if isinstance(value, Known) and value.args else ()
    return {item for item in items if type(item) is str} if isinstance(items, (list, tuple, dict)) else set()


def every_container(node: Any) -> Iterator[tuple[str, Any]]:
    """Give each container of a tree once, with one of its key paths: shared ones are many (hooks refer to the module)."""
    pending: list[tuple[str, Any]] = [("", node)]
    seen: set[int] = set()
    while pending:
        path, node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield path, node
        if isinstance(node, dict):
            below = [*node.items(), *((key, key) for key in node if isinstance(key, (Inert, tuple)))]
        elif isinstance(node, (list, tuple)):
            below = list(enumerate(node))
        elif isinstance(node, Known):
            below = list(enumerate(node.args or ()))
        elif isinstance(node, Inert):
            below = [("@args", node.args), ("@state", node.state), ("@items", node.items)]
        else:
            continue
        pending += [
            (f"{path}/{spell((step,))}".strip("/"), part)
            for step, part in below
            if isinstance(part, (dict, list, tuple, Known, Inert))
        ]
