"""What becomes of a parameter's slots when its bytes are made anew: the same function, or the same number, or a refusal.

Whether a slot follows is decided by its name in the family's table; where the table does not know it, by shape, and only where
the shape leaves no doubt (a slot of one element beside a parameter of one could be either).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ckptmigrate.checkpoint import Slot
from ckptmigrate.errors import OptimizerError
from ckptmigrate.format import FACTORED, FLAT, FOLLOWS, SCALAR
from ckptmigrate.marks import number
from ckptmigrate.operations.ties import Copied
from ckptmigrate.tensor import Made, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptmigrate.checkpoint import Param
    from ckptmigrate.format import Family
    from ckptmigrate.operations import Operation
    from ckptmigrate.values import Tree

    from .changes import Change


def slots_of(
    change: Change, params: Sequence[Param], family: Family, operation: Operation
) -> list[dict[str, Slot] | None]:
    """Give the slots of every target from the state of the sources, whose entries are ``params``; None is no state.

    OptimizerError or TensorError names the slot that cannot follow.
    """
    return _Slots(family, operation, change).made(params)


class _Slots:
    """What one change makes of the slots of its sources."""

    def __init__(self, family: Family, operation: Operation, change: Change) -> None:
        self.family, self.operation, self.change = family, operation, change

    def made(self, params: Sequence[Param]) -> list[dict[str, Slot] | None]:
        """Give one dict a target."""
        count = len(self.change.after)
        if params[0].slots is None:
            return [None] * count
        names = list(params[0].slots)
        for param in params:
            if set(param.slots or {}) != set(names):
                odd = sorted(set(param.slots or {}) ^ set(names))
                raise OptimizerError(f"{params[0].name} and {param.name} do not have the same state: {', '.join(odd)}")
        made: list[dict[str, Slot] | None] = [{} for _ in range(count)]
        for name in names:
            values = self._values(name, [(param.slots or {})[name].value for param in params])
            if values is None:  # without one of its slots the state is no state
                return [None] * count
            for slots, value in zip(made, values, strict=True):
                assert slots is not None
                slots[name] = Slot(value)
        return made

    def _values(self, name: str, values: list[Tree]) -> list[Tree] | None:
        count = len(self.change.after)
        if all(value is None for value in values):
            return [None] * count
        kind = self._kind(name, values)
        if kind == "scalar":
            if any(not _equal(values[0], value) for value in values[1:]):
                raise OptimizerError(f"{name} is not the same in all: {', '.join(map(_shown, values))}")
            return [values[0], *(_own(values[0]) for _ in range(count - 1))]
        policy = self.operation.traits.slots
        if policy == "drop":
            return None
        if policy == "refuse":
            raise OptimizerError(f"{name} has the parameter's axes, and the operation does not say what becomes of it")
        if kind in {"factored", "unknown"}:
            if policy == "keep" and len(values) == count and self._stays_in_shape():
                return values
            raise OptimizerError(
                f"{name}, {_shown(values[0])}, sums over an axis of its parameter, {_shown(self.change.before[0])}, and cannot follow"
                if kind == "factored"
                else f"nothing tells whether {name}, {_shown(values[0])}, has the axes of its parameter"
            )
        for value, tensor in zip(values, self.change.before, strict=True):
            if not isinstance(value, Tensor) or value.promise.shape != tensor.promise.shape:
                raise OptimizerError(
                    f"{name} is {_shown(value)}, and its parameter has the shape {list(tensor.promise.shape)}"
                )
        targets = tuple(values) if policy == "keep" and len(values) == count else self.operation.tensors(tuple(values))
        for value, tensor in zip(targets, self.change.after, strict=True):
            if value.promise.shape != tensor.promise.shape:
                raise OptimizerError(
                    f"{name} becomes {list(value.promise.shape)}, and its parameter {list(tensor.promise.shape)}"
                )
            if kind == "flat" and len(tensor.promise.shape) > 1:
                raise OptimizerError(
                    f"{name} stands only where a parameter has one axis or none, and it becomes {list(tensor.promise.shape)}"
                )
        return [replace(value, id=None) if value.id is not None else value for value in targets]

    def _stays_in_shape(self) -> bool:
        pairs = zip(self.change.before, self.change.after, strict=True)
        return all(before.promise.shape == after.promise.shape for before, after in pairs)

    def _kind(self, name: str, values: list[Tree]) -> Literal["follows", "flat", "factored", "scalar", "unknown"]:
        """Tell whether a slot follows: by the family's table, by shape where it does not know the name and the shape tells."""
        listed = self.family.slots.get(name)
        if listed == SCALAR or (
            listed not in {FOLLOWS, FLAT, FACTORED} and not any(isinstance(v, Tensor) for v in values)
        ):
            return "scalar"
        told: dict[str | None, Literal["follows", "flat", "factored"]] = {
            FOLLOWS: "follows",
            FLAT: "flat",
            FACTORED: "factored",
        }
        if listed in told:
            return told[listed]
        if listed is None:
            pairs = list(zip(values, self.change.before, strict=True))
            if all(isinstance(v, Tensor) and v.promise.numel == 1 and t.promise.numel > 1 for v, t in pairs):
                return "scalar"
            if all(
                isinstance(v, Tensor) and v.promise.numel > 1 and v.promise.shape == t.promise.shape for v, t in pairs
            ):
                return "follows"
        return "unknown"


def _own(value: Tree) -> Tree:
    """Give a number's bytes again, at a place of their own: a framework counts in the tensor that it is given, once for each that shares it."""
    if not isinstance(value, Tensor):
        return value
    return value.with_promise(Made((value.promise,), Copied(value.dtype)))


def _equal(a: Tree, b: Tree) -> bool:
    """Say whether two scalars are the same; tensors of one element are drawn and compared by their bytes."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        p, q = a.promise, b.promise
        if p == q:
            return True
        alike = p.dtype == q.dtype and p.shape == q.shape and p.numel == 1
        return alike and bytes(p.read(0, 1)) == bytes(q.read(0, 1))
    return type(a) is type(b) and bool(a == b)


def _shown(value: Tree) -> str:
    if isinstance(value, Tensor):
        found = number(value)
        return f"{value.promise.dtype} {list(value.promise.shape)}" if found is None else str(found)
    return str(number(value)) if number(value) is not None else f"a {type(value).__name__}"
