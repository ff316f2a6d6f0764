"""How names of the new checkpoint are made of names of the old one, before it is said in patterns.

sources ── before, each in place ──► joint: Split, Concat, Stack, Unstack or none ──► after, in place ──► targets
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ckptmigrate import operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptmigrate.operations import Operation

By = Literal["content", "pattern", "name"]
"""What a derivation rests on: equal elements; what is proven of its siblings; the likeness of its names."""


@dataclass(frozen=True, slots=True)
class Change:
    """One operation without its names: its class, and its other arguments."""

    operation: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __getitem__(self, name: str) -> Any:
        return dict(self.arguments)[name]


@dataclass(frozen=True, slots=True)
class Derivation:
    """Targets, what they are made of, and how. ``before``: what is done to each source in its place."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    before: tuple[tuple[Change, ...], ...] = ((),)
    joint: Change | None = None
    after: tuple[Change, ...] = ()
    by: By = "content"

    @property
    def plain(self) -> bool:
        """Say whether it is one tensor as it was, under its old name or another."""
        return not (any(self.before) or self.joint or self.after)


def change(operation: str, **arguments: Any) -> Change:
    """Give a change; lists become tuples, so that it can be compared and hashed."""
    return Change(operation, tuple((name, _frozen(value)) for name, value in arguments.items()))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def arranged(old: tuple[int, ...], new: tuple[int, ...], order: Sequence[int]) -> tuple[Change, ...]:
    """Give the changes from one shape to another. ``order``: for each axis of ``new`` longer than 1, which one of ``old`` it is."""
    longer = [axis for axis, length in enumerate(old) if length > 1]
    if list(order) == longer:
        return () if old == new else (reshape(old, new),)
    if len(old) == len(new):
        wanted = iter(order)
        ones = iter(axis for axis, length in enumerate(old) if length == 1)
        axes = [next(wanted) if length > 1 else next(ones) for length in new]
        return (change("Transpose", axes=axes),)
    bare = tuple(old[axis] for axis in longer)
    turned = tuple(old[axis] for axis in order)
    changes = [change("Transpose", axes=[longer.index(axis) for axis in order])]
    if bare != old:
        changes.insert(0, reshape(old, bare))
    if turned != new:
        changes.append(reshape(turned, new))
    return tuple(changes)


def reshape(old: tuple[int, ...], new: tuple[int, ...]) -> Change:
    """Give the reshape from one shape to another."""
    return change("Reshape", old=old, shape=new)


def spoken(given: Change) -> dict[str, Any]:
    """Give the arguments as an author would write them: without defaults, lengths only where they matter."""
    said = dict(given.arguments)
    sizes = said.pop("sizes", None)
    equal = sizes is not None and len(set(sizes)) == 1
    if given.operation == "Reshape":
        said = _reshaping(said["old"], said["shape"])
    elif given.operation == "Reorder" and "fold" in said:
        said["fold"] = (-1, *said["fold"][1:])  # of a wider layer there are more heads
    elif given.operation == "Concat":
        said |= {"shares": (1,) * len(sizes)} if equal else {"sizes": sizes}
    elif given.operation == "Split" and not equal:
        said["sizes"] = sizes
    defaults = {"axis": 0, "axes": (1, 0)}
    if given.operation == "Reorder":
        defaults.pop("axes")
    return {name: value for name, value in said.items() if value != defaults.get(name, ...)}


def _reshaping(old: tuple[int, ...], new: tuple[int, ...]) -> dict[str, Any]:
    """Give a reshape that takes or gives axes of length 1 for any lengths; any other for just these."""
    longer = [axis for axis, length in enumerate(old) if length > 1]
    if [old[axis] for axis in longer] != [length for length in new if length > 1]:
        return {"shape": new, "old": old}
    axes = iter(longer)
    shape: list[int | str] = []
    for place, length in enumerate(new):
        axis = next(axes) if length > 1 else None
        shape.append(1 if axis is None else "*" if axis == place else f"*{axis}")
    return {"shape": tuple(shape), "old": tuple("*" if length > 1 else 1 for length in old)}


def operation(given: Change, sources: int = 1, targets: int = 1) -> Operation:
    """Give the operation for any names, to see what becomes of tensors."""
    names = [f"{number}" for number in range(max(sources, targets))]
    first: tuple[Any, ...] = (".*",)
    if given.operation in {"Split", "Unstack"}:
        first = (".*", names[:targets])
    elif given.operation in {"Concat", "Stack"}:
        first = (names[:sources], "made")
    made: Operation = getattr(operations, given.operation)(*first, **spoken(given))
    return made
