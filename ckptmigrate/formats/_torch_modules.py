"""The state dict of a module object that was pickled whole, without its class.

    an inert object whose state has         gives, in torch's order:
      _parameters   name -> Tensor | None     prefix + name, role parameter
      _buffers      name -> Tensor | None     prefix + name, role buffer, but for _non_persistent_buffers_set
      _modules      name -> object | None     the same of each child, prefix + name + "."

Everything else in a module's state is configuration, hooks, or tensors that occur again (``_flat_weights`` of an LSTM), and goes.
Tensors that occur nowhere else and calls that nobody makes do not go unseen with it: both are given back with their key paths.
A quantised module packs its weights into a ScriptObject, or itself into a tuple, which only its code can unpack: a fault.
Sources: Module._save_to_state_dict in torch/nn/modules/module.py, torch/nn/parallel, torch/ao/nn/quantized, of torch 1.0 to 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import LimitError
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known, Ordered, spell

from ._torch_storages import Storage, fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptmigrate.limits import Limits

    Trail = tuple["Trail", Any] | None  # where a node stands: the trail of what holds it, and its step
    Notes = dict[int, tuple[Tensor, list[str]]]  # by identity: tensors that carried Python attributes, and their names

_WRAPPERS = ("torch.nn.parallel.data_parallel.DataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")
_PACKED = ("torch.ScriptObject", "torch._C.ScriptObject")
_SAVE = "save the model's state_dict() with torch instead"
_LONGEST = 200  # characters of a key path in a message


@dataclass(slots=True)
class ModuleState:
    """What one module object holds: the state dict, or the fault that it has; ``classes`` by key path.

    ``calls``: those in what lies beside the state dict. ``beside``: key paths of tensors that are in no state dict.
    """

    names: Ordered | Inert
    classes: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, Inert]] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)


def is_module(node: Inert) -> bool:
    """Say whether an inert node is a module object: its state tells, whatever its class."""
    state = _state(node)
    return node.kind == "object" and all(
        isinstance(state.get(key), dict) for key in ("_parameters", "_buffers", "_modules")
    )


def read_module(module: Inert, where: str, notes: Notes, limits: Limits) -> ModuleState:
    """Give the state dict of the module at key path ``where``, and what lies beside it.

    ``notes`` follow a tensor that gets its role. LimitError before anything is kept where modules within modules, shared at
    every level, would give more names than are allowed.
    """
    inner = _unwrapped(module)
    for _ in _named(inner, "", {id(inner)}, count(1), limits):
        pass
    found = Ordered()
    kept: set[Any] = set()
    for name, value, role in _named(inner, "", {id(inner)}, count(1), limits):
        if name in found:
            return ModuleState(fault(module.path, f"a module with two entries named {name!r}"))
        found[name] = _leaf(value, role, notes)
        kept |= {id(value), value.promise} if isinstance(value, Tensor) else {id(value)}
    state = ModuleState(found, dict(_classes(inner, where)))
    for trail, node in nodes(module):
        if isinstance(node, Inert) and node.kind == "call":
            state.calls.append((_place(where, trail), node))
        elif _is_data(node) and id(node) not in kept and not (isinstance(node, Tensor) and node.promise in kept):
            state.beside.append(_place(where, trail))
    return state


def nodes(root: Any) -> Iterator[tuple[Trail, Any]]:
    """Give each container, tensor and storage of a tree once, with one of its trails: shared ones have many (hooks hold the module)."""
    pending: list[tuple[Trail, Any]] = [(None, root)]
    seen: set[int] = set()
    while pending:
        trail, node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield trail, node
        pending += [
            ((trail, step), part)
            for step, part in (*below(node), *_keys(node))
            if isinstance(part, (dict, list, tuple, Known, Inert, Tensor, Storage))
        ]


def below(node: Any) -> Iterable[tuple[Any, Any]]:
    """Give what a node holds, with the steps that lead there; keys are no part of it."""
    if isinstance(node, dict):
        attributes = [(("@", "attributes"), node.attributes)] if isinstance(node, Ordered) else []
        return [*attributes, *node.items()]
    if isinstance(node, (list, tuple)):
        return enumerate(node)
    if isinstance(node, Known):
        return [(("@", "args"), node.args)]
    if isinstance(node, Inert):
        return [(("@", "args"), node.args), (("@", "state"), node.state), (("@", "items"), node.items)]
    return ()


def _keys(node: Any) -> list[tuple[Any, Any]]:
    return [(key, key) for key in node if isinstance(key, (Inert, Known, tuple))] if isinstance(node, dict) else []


def _place(where: str, trail: Trail) -> str:
    steps: list[Any] = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    return f"{where}/{spell(tuple(reversed(steps)))}".strip("/")[:_LONGEST]


def _is_data(node: Any) -> bool:
    return isinstance(node, (Tensor, Storage)) or (isinstance(node, Inert) and node.kind == "fault")


def _named(
    module: Inert, prefix: str, above: set[int], spent: Iterator[int], limits: Limits
) -> Iterator[tuple[str, Any, str]]:
    """Give name, value and role of a module's entries and of all below it; a module that holds itself is a fault under its name."""
    if next(spent) > limits.tensors:
        raise _too_many(module, limits)
    state = _state(module)
    left_out = _members(state.get("_non_persistent_buffers_set"))
    for key, role in (("_parameters", "parameter"), ("_buffers", "buffer")):
        for name, value in _pairs(state.get(key)):
            if value is not None and not (role == "buffer" and name in left_out):
                if next(spent) > limits.tensors:
                    raise _too_many(module, limits)
                yield prefix + name, value, role
    for name, value in _pairs(state):
        if isinstance(value, Inert) and value.path in _PACKED:
            yield (
                prefix + name,
                fault(module.path, f"weights that a module of class {module.path} has packed", _SAVE),
                "",
            )
    for name, child in _pairs(state.get("_modules")):
        if child is None:
            continue
        if not isinstance(child, Inert) or child.kind == "name":
            yield prefix + name, fault(module.path, f"a child {name!r} that is no module"), ""
        elif id(child) in above:
            yield prefix + name, fault(module.path, f"a child {name!r} that holds itself"), ""
        elif not is_module(child):
            why = f"a module of class {child.path}, whose state only its own code understands"
            yield prefix + name, child if child.kind in ("fault", "call") else fault(child.path, why, _SAVE), ""
        else:
            above.add(id(child))
            yield from _named(child, f"{prefix}{name}.", above, spent, limits)
            above.discard(id(child))


def _too_many(module: Inert, limits: Limits) -> LimitError:
    return LimitError(
        f"a module of class {module.path} has more than {limits.tensors} names and modules, shared ones counted each time",
        limit=limits.tensors, claimed=limits.tensors + 1,
    )  # fmt: skip


def _leaf(value: Any, role: Any, notes: Notes) -> Any:
    if not isinstance(value, Tensor):
        if isinstance(value, Inert) and value.kind in ("fault", "call"):
            return value
        what = f"of class {value.path}" if isinstance(value, Inert) else f"that is a {type(value).__name__}"
        return fault("torch.nn.Module", f"a {role} {what} and no tensor")
    if value.role == role:
        return value
    made = replace(value, role=role)
    if id(value) in notes:
        notes[id(made)] = (made, notes[id(value)][1])
    return made


def _classes(module: Inert, where: str) -> Iterator[tuple[str, str]]:
    """Give the class of a module and of each below it by key path; of one that stands in several places the first path."""
    pending = [(module, where)]
    seen: set[int] = set()
    while pending:
        node, path = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield path, node.path
        children = [
            (child, f"{path}/{name}" if path else name)
            for name, child in _pairs(_state(node).get("_modules"))
            if isinstance(child, Inert)
        ]
        pending += reversed(children)


def _state(node: Inert) -> dict[Any, Any]:
    """Give the attributes of an inert object; {} where it has none."""
    state = node.state[0] if type(node.state) is tuple and len(node.state) == 2 else node.state
    return state if isinstance(state, dict) else {}


def _unwrapped(module: Inert) -> Inert:
    """Take the level of DataParallel off, which is no part of the model."""
    for _ in range(len(_WRAPPERS)):  # one in the other at most
        child = _state(module)["_modules"].get("module") if module.path in _WRAPPERS else None
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
