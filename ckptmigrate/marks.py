"""Marks: how an unstamped checkpoint that still needs a step is recognised. All marks of a step must hold.

Patterns match whole names. Nothing is drawn but tensors of one element.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from .checkpoint import items_of, named, slot_names
from .errors import UsageError
from .operations import check_patterns, matches, several, stands_beside
from .tensor import Tensor
from .values import Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .checkpoint import Checkpoint
    from .values import Tree

Where = Literal["model", "slots", "items"]
"""Whose names a mark asks: the model's, those of slots in any optimizer, or those of items (``schedulers/0/last_epoch``)."""


class Mark(Protocol):
    """What every mark answers."""

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Say whether the checkpoint bears it."""


@dataclass(frozen=True, slots=True)
class Present:
    """Some name of the model, of a slot in any optimizer, or of an item matches.

    ``without``: only those for which the name that this template expands to is not there; ``where``: only those for which it is.
    """

    pattern: str
    on: Where = "model"
    without: str | None = None
    where: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        _check(self.pattern, self.on, self.without)
        _check(self.pattern, self.on, self.where)

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Say whether a name matches."""
        return any(True for _ in found(checkpoint, self.pattern, self.on, self.where, self.without))


@dataclass(frozen=True, slots=True)
class Absent:
    """No name of the model, of a slot in any optimizer, or of an item matches."""

    pattern: str
    on: Where = "model"

    def __post_init__(self) -> None:
        _check(self.pattern, self.on)

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Say whether no name matches."""
        return not any(True for _ in found(checkpoint, self.pattern, self.on))


@dataclass(frozen=True, slots=True)
class Shape:
    """Some tensor that matches has this shape; ``"*"`` stands for any length of one dimension."""

    pattern: str
    shape: Sequence[int | str]
    on: Where = "model"

    def __post_init__(self) -> None:
        _check(self.pattern, self.on)

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Say whether a tensor of that name has that shape."""
        return any(
            isinstance(v, Tensor) and fits(v.promise.shape, self.shape)
            for v in found(checkpoint, self.pattern, self.on)
        )


@dataclass(frozen=True, slots=True)
class Dtype:
    """Some tensor that matches has this dtype (``"F32"``); a number that is no tensor is ``int``, ``uint``, ``float`` or ``bool``.

    ``where``: only those for which the name that this template (or each of several) expands to is there too; beside a slot stand
    the hyperparameters of its parameter's group as well: ``group/weight_decay``.
    """

    pattern: str
    dtype: str
    on: Where = "model"
    where: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        _check(self.pattern, self.on, self.where)

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Say whether a value of that name is of that dtype."""
        return any(_dtype(value) == self.dtype for value in found(checkpoint, self.pattern, self.on, self.where))


@dataclass(frozen=True, slots=True)
class Value:
    """The value at a path is this: ``Value("config/version", 2)``; with ``on``, a tensor of one element, or a slot's number."""

    path: str
    value: Any
    on: Literal["values", "model", "slots", "items"] = "values"

    def __post_init__(self) -> None:
        if self.on != "values":
            _check(self.path, self.on)

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Say whether that is the value there."""
        if self.on == "values":
            return bool(at(checkpoint.values, self.path) == self.value)
        return any(number(value) == self.value for value in found(checkpoint, self.path, self.on))


@dataclass(frozen=True, slots=True)
class Fact:
    r"""A reader noted this of one of the files: ``Fact("half", True)``, ``Fact("versions/acme", re.compile(r"1\.3(\..*)?"))``.

    The name is a path of keys; a compiled pattern stands for every text that it matches as a whole.
    """

    name: str
    value: Any

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Say whether it did."""
        name, _, path = self.name.partition("/")
        noted = [at(fact, path) if path else fact for fact in facts(checkpoint, name)]
        if isinstance(self.value, re.Pattern):
            return any(isinstance(text, str) and self.value.fullmatch(text) for text in noted)
        return self.value in noted


@dataclass(frozen=True, slots=True)
class Fields:
    """Some module that matches has exactly these fields, in a record that lists them."""

    pattern: str
    fields: Sequence[str]

    def __post_init__(self) -> None:
        check_patterns((self.pattern, None))

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Say whether a module of that path has just those fields."""
        expression = re.compile(self.pattern)
        return any(
            has_fields(checkpoint, path, self.fields) for path in checkpoint.modules if expression.fullmatch(path)
        )


@dataclass(frozen=True, slots=True)
class Untrained:
    """Some name of the model that matches was never trained although its neighbour was.

    An optimizer has state of the name that ``beside``, a template of the pattern's groups, expands to, and none has any of the
    name itself.
    """

    pattern: str
    beside: str

    def __post_init__(self) -> None:
        check_patterns((self.pattern, self.beside))

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Say whether there is one."""
        trained = with_state(checkpoint)
        found = matches((name for name in checkpoint.model if name not in trained), (self.pattern,))
        return any(match.expand(self.beside) in trained for _, _, match in found)


@dataclass(frozen=True, slots=True)
class Either:
    """One of these marks holds at least, where a step is needed for more than one reason."""

    marks: Sequence[Mark]

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", tuple(self.marks))
        if not self.marks or not all(hasattr(mark, "holds") for mark in self.marks):
            raise UsageError(f"Either of {self.marks!r}: expected marks")

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Say whether one of them does."""
        return any(mark.holds(checkpoint) for mark in self.marks)


def _check(pattern: str, on: str, where: str | Sequence[str] | None = None) -> None:
    """Refuse, when the migrator is written, what could only fail in somebody's checkpoint."""
    check_patterns((pattern, None), *((pattern, template) for template in several(where or ())))
    if on not in get_args(Where):
        raise UsageError(f"on={on!r}: expected {', '.join(get_args(Where))}")


def found(
    checkpoint: Checkpoint,
    pattern: str,
    on: Where,
    where: str | Sequence[str] | None = None,
    without: str | None = None,
) -> Iterator[Tree]:
    """Give the values whose whole name matches: tensors of the model, slots of all optimizers, or items that are no tensors' own.

    ``where``, ``without``: templates of the pattern's groups; the names that they expand to must stand beside, or must not.
    """
    expression = re.compile(pattern)
    for members in _members(checkpoint, on):
        for name, value in members.items():
            match = expression.fullmatch(name)
            if match is None or not stands_beside(match, where, members):
                continue
            if without is None or match.expand(without) not in members:
                yield value


def _members(checkpoint: Checkpoint, on: Where) -> Iterator[Mapping[str, Tree]]:
    if on == "model":
        yield checkpoint.model
    elif on == "items":
        yield {name: value for _, name, value in named(items_of(checkpoint, whole=False))}
    else:
        for optimizer in checkpoint.optimizers:
            yield from (slot_names(optimizer, param) for param in optimizer.params)


def has_fields(checkpoint: Checkpoint, path: str, fields: Sequence[str]) -> bool:
    """Say whether the module at a path has exactly these fields, in a record that lists them."""
    entry = checkpoint.modules.get(path)
    return entry is not None and set(entry.get("fields", entry)) == set(fields)


def with_state(checkpoint: Checkpoint) -> set[str]:
    """Give the names of the parameters that some optimizer has state of."""
    params = (param for optimizer in checkpoint.optimizers for param in optimizer.params)
    return {param.name for param in params if param.name is not None and param.slots is not None}


def fits(shape: Sequence[int], pattern: Sequence[int | str]) -> bool:
    """Say whether a shape is of a pattern in which ``"*"`` is any length."""
    return len(shape) == len(pattern) and all(wanted in ("*", n) for n, wanted in zip(shape, pattern, strict=True))


def facts(checkpoint: Checkpoint, name: str) -> list[Any]:
    """Give what the readers noted under this name, of any file or section."""
    own = checkpoint.origin.facts
    nested = [value[name] for value in own.values() if isinstance(value, Mapping) and name in value]
    return ([own[name]] if name in own else []) + nested


def at(tree: Tree, path: str) -> Tree:
    """Give the node of a tree at a path of keys and indices joined by ``/``; None where there is none."""
    for key in path.split("/"):
        if isinstance(tree, Mapping):
            tree = tree.get(key, tree.get(int(key)) if key.isdecimal() else None)
        elif isinstance(tree, list | tuple) and key.isdecimal() and int(key) < len(tree):
            tree = tree[int(key)]
        else:
            return None
    return tree.value if isinstance(tree, Scalar) else tree


def number(value: Tree) -> Any:
    """Give the number that a value holds: plain, with a kind of its own, or a tensor of one element (drawn); else None."""
    if isinstance(value, Scalar):
        return value.value
    if not isinstance(value, Tensor):
        return value if isinstance(value, bool | int | float) else None
    if value.promise.numel != 1:
        return None
    import numpy as np  # noqa: PLC0415 - numbers are needed only here

    return np.frombuffer(value.promise.read(0, 1), value.promise.dtype.numpy_dtype())[0].item()


def _dtype(value: Tree) -> str:
    if isinstance(value, Tensor):
        return value.promise.dtype.name
    return value.kind if isinstance(value, Scalar) else type(value).__name__
