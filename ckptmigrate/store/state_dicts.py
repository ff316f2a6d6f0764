"""What a set of tensors looks like in a tree.

state dict       its keys are names, its values tensors; beside them at most numbers, text, `_extra_state`
nested           all leaves are tensors; names are their paths joined by "/"
tensor, list     "value"; "0", "1", …
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known, Ordered, Scalar

from .paths import members

if TYPE_CHECKING:
    from ckptmigrate.values import Path, Tree

FOLLOWS, NESTED, SHAPE, UNVERSIONED = "follows", "nested", "shape", "unversioned"
"""Facts of an origin, by section: behind which name each value that is no tensor stood; the tree and the paths of a nest; that a
set was one tensor or a list; twins that said nothing of their modules."""
EXTRA_STATE = "_extra_state"
METADATA = "_metadata"
LONE = "value"  # the name of a tensor that has none
DEEPEST = 64  # levels of a nest
_PLAIN = (bool, int, float, str, bytes, Scalar, Known, Inert, tuple, type(None))


@dataclass(slots=True)
class StateDict:
    """A set of tensors by name: ``paths`` says where each lies below its section, ``others`` what is no tensor, by name."""

    tensors: dict[str, Tensor]
    paths: dict[str, Path]
    others: dict[str, Tree] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    shape: str = "flat"  # "lone": one tensor, "list", "nested"


def state_dict(value: Tree) -> StateDict | None:
    """Give the state dict that a value is; None for anything else, a single tensor too."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return None
    tensors = {name: item for name, item in value.items() if isinstance(item, Tensor)}
    others = {name: item for name, item in value.items() if not isinstance(item, Tensor)}
    if not tensors or not all(name.endswith(EXTRA_STATE) or isinstance(item, _PLAIN) for name, item in others.items()):
        return None
    return StateDict(tensors, {name: (name,) for name in value}, others, modules_of(value))


def any_tensors(value: Tree) -> StateDict | None:
    """Give the tensors of a value of any form: a state dict, one tensor, a list of them, a nest of them."""
    if isinstance(value, Tensor):
        return StateDict({LONE: value}, {LONE: ()}, shape="lone")
    if isinstance(value, list | tuple) and value and all(isinstance(item, Tensor) for item in value):
        return StateDict(
            {str(i): t for i, t in enumerate(value)}, {str(i): (i,) for i in range(len(value))}, shape="list"
        )
    return state_dict(value) or nested(value)


def at_root(tree: Tree) -> StateDict | None:
    """Give a root that is a state dict, one tensor, or a list of tensors."""
    found = any_tensors(tree) if isinstance(tree, Tensor | list | tuple) else state_dict(tree)
    return None if found is None or found.shape == "nested" else found


def modules_of(value: Tree) -> dict[str, dict[str, Any]]:
    """Give what a state dict says of its modules: by path, where it is a dict by name at all."""
    metadata = value.attributes.get(METADATA) if isinstance(value, Ordered) else None
    if not isinstance(metadata, dict):
        return {}
    return {key: dict(entry) for key, entry in metadata.items() if isinstance(key, str) and isinstance(entry, dict)}


def nested(value: Tree) -> StateDict | None:
    """Give a nest whose leaves are all tensors, in its order; a name that two paths spell is None: nothing is guessed."""
    tensors: dict[str, Tensor] = {}
    paths: dict[str, Path] = {}
    stack: list[tuple[Path, Tree]] = [((), value)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, Tensor) and path:
            name = "/".join(str(key) for key in path)
            if name in tensors:
                return None
            tensors[name], paths[name] = node, path
        elif isinstance(node, dict | list | tuple) and len(path) < DEEPEST:
            stack.extend(((*path, key), item) for key, item in reversed(list(members(node))))
        else:
            return None
    return StateDict(tensors, paths, shape="nested") if tensors else None
