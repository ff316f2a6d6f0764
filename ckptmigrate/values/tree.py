"""The nodes of a tree of values, their paths, and one walk over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ckptmigrate.errors import LimitError, SectionError
from ckptmigrate.limits import LIMITS, Limits
from ckptmigrate.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that a file stores with a kind of its own (a burnpack scalar, an optimizer's step in a record)."""

    kind: Literal["uint", "int", "float", "bool"]
    value: int | float | bool


@dataclass(slots=True, eq=False)
class Inert:
    """Something of a class or function that nobody imports; equal only to itself, so it can be a dictionary key.

    ``object``: an instance (class ``path``, ``args``, ``state``, ``items``: appended list items or set pairs, in file order).
    ``name``: the bare global itself. ``call``: a call nobody makes. ``fault``: what should be a value and is wrong,
    ``args[0]`` says how (a storage that does not fit, a tensor without data), ``args[1:]`` are hints.
    """

    kind: Literal["object", "name", "call", "fault"]
    path: str  # "module.qualified.Name"
    args: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Known:
    """A listed call or name that has no plain spelling, written back as that call; ``args`` None is the bare name.

    path is canonical: "torch.Size", "torch.device", "torch.float16" (args None), "builtins.set", "builtins.frozenset",
    "builtins.complex", "builtins.bytearray", "collections.Counter", "collections.deque", "collections.defaultdict"
    (its factory kept as a name, never called), "datetime.datetime", "builtins.slice", "builtins.range", …
    Hashable by identity; ``values.same`` compares by content.
    """

    path: str
    args: tuple[Any, ...] | None = None


class Ordered(dict[Any, Any]):
    """A dict with attributes: an OrderedDict as torch pickles state dicts (attributes["_metadata"])."""

    __slots__ = ("attributes",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.attributes: dict[str, Any] = {}


class Nothing:
    """The absence of a tree, where None is a value (a constant scheduler's record)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING = Nothing()

Tree: TypeAlias = Any
"""None | bool | int | float | str | bytes | Scalar | Tensor | Known | Ordered | list | tuple | dict | Inert, nested."""

Path: TypeAlias = tuple[Any, ...]
"""Where a node stands in a tree: dict keys and list indices (and attribute names as ("@", name))."""

LEAVES = (type(None), bool, int, float, str, bytes)
ROOT = object()
"""The step that leads to the root of a tree: no step at all."""
_ABSENT = object()


def spell(path: Path) -> str:
    """Give a path as people read it: "optimizer/state/0/exp_avg"; an attribute as "@name"."""
    return "/".join(map(spell_step, path))


def spell_step(step: Any) -> str:
    """Give one step of a path as people read it."""
    if type(step) is str:
        return step
    if is_attribute(step):
        return f"@{step[1]}"
    if isinstance(step, Tensor):  # a parameter that is a key, in the state of an optimizer object
        return f"a tensor {step.promise.dtype} {list(step.promise.shape)}"
    text = step.path if isinstance(step, (Known, Inert)) else repr(step)
    return text if len(text) <= 80 else text[:77] + "..."


def is_attribute(step: Any) -> bool:
    """Tell whether a step of a path names an attribute, not a key."""
    return type(step) is tuple and len(step) == 2 and step[0] == "@" and type(step[1]) is str


def children(node: Any) -> Iterable[tuple[Any, Any]]:
    """Give the steps and nodes right below a node, attributes first."""
    if isinstance(node, dict):
        attributes = node.attributes if isinstance(node, Ordered) else {}
        return [*((("@", name), value) for name, value in attributes.items()), *node.items()]
    if isinstance(node, (list, tuple)):
        return enumerate(node)
    if isinstance(node, Known):
        return enumerate(node.args or ())
    if isinstance(node, Inert):
        return [(("@", "args"), node.args), (("@", "state"), node.state), (("@", "items"), node.items)]
    return ()


def walk(tree: Tree, limits: Limits = LIMITS) -> Iterator[tuple[Path, Any]]:
    """Yield every node with its path, parents first, in order; arguments, state and items of Known and Inert too.

    Inert nodes within keys are yielded under the key's path, before its value. A container that holds itself is yielded there
    and not entered again. LimitError after ``limits.nodes`` nodes, which a small file can ask for by sharing.
    """
    count = 0
    active: set[int] = set()
    stack: list[tuple[Path, int, bool, Iterator[tuple[Any, Any]]]] = [((), 0, False, iter([(ROOT, tree)]))]
    while stack:
        path, ident, within_key, rest = stack[-1]
        for step, node in rest:
            count += 1
            check_count(count, limits)
            place = path if step is ROOT or within_key else (*path, step)
            if not within_key or isinstance(node, Inert):
                yield place, node
            if id(node) in active or not isinstance(node, (dict, list, tuple, Known, Inert)):
                continue
            active.add(id(node))
            stack.append((place, id(node), within_key, iter(children(node))))
            if isinstance(node, dict):
                odd = [key for key in node if type(key) not in LEAVES]
                stack.extend(
                    (place if within_key else (*place, key), 0, True, iter([(ROOT, key)])) for key in reversed(odd)
                )
            break
        else:
            stack.pop()
            active.discard(ident)


def check_size(tree: Tree, limits: Limits = LIMITS) -> None:
    """Refuse a tree that ``walk`` would not come through, in the time that its distinct nodes take: sharing doubles for nothing."""
    sizes: dict[int, int] = {}  # nodes at and below a container, by its id
    stack: list[tuple[int, list[int], Iterator[Any]]] = [(0, [0], iter([tree]))]
    while stack:
        ident, total, rest = stack[-1]
        for node in rest:
            if not isinstance(node, (dict, list, tuple, Known, Inert)):
                total[0] += 1
            elif id(node) in sizes:
                total[0] += sizes[id(node)]
            else:
                sizes[id(node)] = 1  # while it is open: one that holds itself is not entered again
                stack.append((id(node), [1], (below for _, below in children(node))))
                break
        else:
            stack.pop()
            check_count(total[0], limits)
            sizes[ident] = total[0]
            if stack:
                stack[-1][1][0] += total[0]


def check_count(count: int, limits: Limits) -> None:
    """Refuse a tree of more nodes than ``limits`` allow."""
    if count > limits.nodes:
        msg = f"a tree of more than {limits.nodes} values, counting shared ones each time"
        raise LimitError(msg, limit=limits.nodes)


def get(tree: Tree, path: Path) -> Tree:
    """Give the node at a path; SectionError names the step that is not there and what is."""
    node = tree
    for depth, step in enumerate(path):
        below = _child(node, step)
        if below is _ABSENT:
            present = [spell_step(at) for at, _ in children(node)]
            msg = f"no {spell(path[: depth + 1])!r}: {brief(node)} has {', '.join(present[:20]) or 'nothing'}"
            raise SectionError(msg, present=present)
        node = below
    return node


def put(tree: Tree, path: Path, value: Tree) -> Tree:
    """Give the tree with ``value`` at ``path``: dicts and lists are changed in place, tuples rebuilt.

    What is missing or None on the way is made: a list where the next step is a number (filled up with None), else a dict.
    SectionError where the way leads through something that is no container.
    """
    chain: list[tuple[Any, Any]] = []
    node = tree
    for step in path:
        if node is None or node is NOTHING or node is _ABSENT:
            node = [] if type(step) is int else {}
        chain.append((node, step))
        node = _child(node, step)
    for container, step in reversed(chain):
        value = put_child(container, step, value)
    return value


def put_child(node: Any, step: Any, value: Any) -> Any:
    """Give the container with ``value`` right below it; a tuple is rebuilt, all others are changed."""
    if isinstance(node, Ordered) and is_attribute(step):
        node.attributes[step[1]] = value
    elif isinstance(node, dict):
        node[step] = value
    elif isinstance(node, list) and type(step) is int and step >= 0:
        node.extend([None] * (step + 1 - len(node)))
        node[step] = value
    elif isinstance(node, tuple) and type(step) is int and 0 <= step < len(node):
        return (*node[:step], value, *node[step + 1 :])
    else:
        msg = f"cannot put a value at {spell_step(step)!r} of {brief(node)}"
        raise SectionError(msg, present=[])
    return node


def _child(node: Any, step: Any) -> Any:
    if isinstance(node, Ordered) and is_attribute(step) and step[1] in node.attributes:
        return node.attributes[step[1]]
    if isinstance(node, dict):
        return node.get(step, _ABSENT)
    if isinstance(node, Inert) and is_attribute(step):
        return {"args": node.args, "state": node.state, "items": node.items}.get(step[1], _ABSENT)
    items = node.args if isinstance(node, Known) else node
    if isinstance(items, (list, tuple)) and type(step) is int and 0 <= step < len(items):
        return items[step]
    return _ABSENT


def brief(node: Any) -> str:
    """Say in a few words what a node is, for messages."""
    if isinstance(node, Tensor):
        return f"a tensor {node.promise.dtype} {list(node.promise.shape)} (role {node.role}, id {node.id!r})"
    if isinstance(node, (Known, Inert)):
        return f"{type(node).__name__} {node.path}"
    if isinstance(node, (dict, list, tuple)):
        return f"{type(node).__name__} of {len(node)}"
    text = repr(node)
    return f"{type(node).__name__} {text if len(text) <= 80 else text[:77] + '...'}"


def reason(node: Inert) -> str:
    """Say what an Inert node is, as reports and refusals call it."""
    match node.kind:
        case "object":
            return f"an object of class {node.path}"
        case "call":
            return f"a call of {node.path} that nobody makes"
        case "name":
            return f"the name {node.path}"
        case _:
            return str(node.args[0]) if node.args else f"a value of {node.path} that is wrong"
