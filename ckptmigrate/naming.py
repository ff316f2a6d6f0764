"""Which entry of an optimizer belongs to which parameter of the model.

An optimizer of torch's kind knows its parameters by position only. They are named where that is certain: by the file (names or
ids in it), by a caller's list, or by order::

    entries   a  b  c  d  e       the model's parameters, in its order; shapes S T S S T
    group 0   S  T  S             from the left: a b c, from the right: a b d: `a` and `b` are certain
    group 1   S  T                now from the left: c e, from the right: d e: `e` is certain

Parameters whose shape no entry has are orphaned first. Then each group is laid along the entries from the left and from the
right; each laying takes the nearest entry that fits and lies behind the one before, so the two give the first and the last
entry that a parameter can be in *any* laying, and where they agree the name is certain. It is taken from the other groups, which
may make more names certain, until nothing changes. An optimizer is named whole or not at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .errors import OptimizerError
from .format import FACTORED, FLAT, FOLLOWS
from .tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .checkpoint import Optimizer, Param
    from .tensor import Shape

ASSUMES = "assumes that each group was given in model order"
NAMELESS = (
    "its parameters have no names: steps that only rename pass, all others refuse; --params FILE (a list of names per group)"
    " or --like FILE names them"
)
SHOWN = 5  # names in a message; the rest is counted


@dataclass(frozen=True, slots=True)
class Named:
    """What order tells: the index of each parameter's entry by group and position, None where it is not certain.

    ``orphans`` are (group, position) of parameters whose shape no entry has; they have no part in the rest.
    """

    entries: tuple[tuple[int | None, ...], ...]
    orphans: tuple[tuple[int, int], ...]

    @property
    def whole(self) -> bool:
        """Whether every parameter that is no orphan has its entry."""
        lost = set(self.orphans)
        return all(e is not None or (g, i) in lost for g, group in enumerate(self.entries) for i, e in enumerate(group))


def by_order(shapes: Sequence[Shape], groups: Sequence[Sequence[Shape | None]]) -> Named:
    """Lay groups of parameters along a model's entries; ``shapes`` are the entries', None in a group fits any shape."""
    places = _Places(shapes)
    orphans = [
        (g, i) for g, group in enumerate(groups) for i, s in enumerate(group) if s is not None and s not in places.free
    ]
    lost = set(orphans)
    found: list[dict[int, int]] = [{} for _ in groups]
    live = [[(i, s) for i, s in enumerate(group) if (g, i) not in lost] for g, group in enumerate(groups)]
    pending = set(range(len(groups)))
    while pending:
        number = min(pending)
        pending.discard(number)
        certain = _certain(live[number], found[number], places)
        if certain is None:  # the group fits nowhere behind what others took: no name of this optimizer is certain
            return Named(tuple((None,) * len(group) for group in groups), tuple(orphans))
        taken = {places.take(entry) for index, entry in certain.items() if index not in found[number]}
        found[number].update(certain)
        pending.update(
            g
            for g, group in enumerate(live)
            if g != number and taken and any(s is None or s in taken for _, s in group)
        )
    return Named(
        tuple(tuple(found[g].get(i) for i in range(len(group))) for g, group in enumerate(groups)), tuple(orphans)
    )


class _Places:
    """The entries that no group has taken yet, sorted, in all and by shape."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = tuple(shapes)
        self.all = list(range(len(shapes)))
        self.free: dict[Shape, list[int]] = {}
        for entry, shape in enumerate(shapes):
            self.free.setdefault(shape, []).append(entry)

    def fitting(self, shape: Shape | None) -> list[int]:
        return self.all if shape is None else self.free[shape]

    def take(self, entry: int) -> Shape:
        shape = self.shapes[entry]
        for line in (self.all, self.free[shape]):
            del line[bisect_left(line, entry)]
        return shape


def _certain(
    group: Sequence[tuple[int, Shape | None]], found: Mapping[int, int], places: _Places
) -> dict[int, int] | None:
    left: dict[int, int] = {}
    last = -1
    for index, shape in group:
        entry = found.get(index)
        if entry is None:
            line = places.fitting(shape)
            at = bisect_right(line, last)
            entry = line[at] if at < len(line) else -1
        if entry <= last:
            return None
        left[index] = last = entry
    certain: dict[int, int] = {}
    following = len(places.shapes)
    for index, shape in reversed(group):
        entry = found.get(index)
        if entry is None:
            line = places.fitting(shape)
            at = bisect_left(line, following) - 1
            entry = line[at] if at >= 0 else following
        if entry >= following:
            return None
        following = entry
        if entry == left[index]:
            certain[index] = entry
    return certain


def shape_of(param: Param, slots: Mapping[str, str]) -> Shape | None:
    """Give a parameter's shape as its state tells it, None where it does not.

    The slots that follow by the optimizer's table tell; else those that only together have its axes; else the others with axes,
    where they are of one shape.
    """
    shapes: dict[str, list[Shape]] = {FOLLOWS: [], FACTORED: [], "": []}
    for name, slot in (param.slots or {}).items():
        if isinstance(slot.value, Tensor):
            known, shape = slots.get(name, ""), tuple(slot.value.promise.shape)
            if known or shape:
                shapes.get(FOLLOWS if known == FLAT else known, []).append(shape)
    if len({len(shape) for shape in shapes[FACTORED]}) == 1:
        shapes[FACTORED] = [tuple(map(max, zip(*shapes[FACTORED], strict=True)))]
    for told in shapes.values():
        if told:
            return told[0] if len(set(told)) == 1 else None
    return None


def entries(model: Mapping[str, Tensor], is_buffer: Callable[[str, Tensor], bool]) -> dict[str, Shape]:
    """Give the model's parameters in its order: without buffers, a tied set under its first name."""
    seen: set[Any] = set()
    result: dict[str, Shape] = {}
    for name, tensor in model.items():
        promise = tensor.promise
        if is_buffer(name, tensor) or (promise.nbytes and promise in seen):
            continue
        seen.add(promise)
        result[name] = tuple(promise.shape)
    return result


def check_names(optimizer: Optimizer, model: Mapping[str, Tensor], slots: Mapping[str, str]) -> None:
    """Refuse names that are not the model's, two entries of one name, and state whose shape is not its parameter's."""
    named = [param for param in optimizer.params if param.name is not None]
    foreign = [str(param.name) for param in named if param.name not in model]
    if foreign:
        raise OptimizerError(f"optimizer state names {_listed(foreign)}, which the model has not", names=foreign)
    counts = Counter(str(param.name) for param in named)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise OptimizerError(f"optimizer state names {_listed(twice)} twice", names=twice)
    for param in named:
        shape = tuple(model[str(param.name)].promise.shape)
        for name, slot in (param.slots or {}).items():
            if (
                slots.get(name) in {FOLLOWS, FLAT}
                and isinstance(slot.value, Tensor)
                and tuple(slot.value.promise.shape) != shape
            ):
                raise OptimizerError(
                    f"optimizer state {param.name}.{name} has shape {list(slot.value.promise.shape)}, its parameter {list(shape)}",
                    hint="the optimizer is of another model, or its state is sharded",
                    tensor=param.name,
                )


def from_lists(optimizer: Optimizer, lists: Sequence[Sequence[str]]) -> None:
    """Name an optimizer by a caller's list for each of its groups; OptimizerError names both lengths."""
    if len(lists) != len(optimizer.groups):
        raise OptimizerError(f"{len(lists)} lists of names for {len(optimizer.groups)} groups")
    for number, names in enumerate(lists):
        members = [param for param in optimizer.params if param.group == number]
        if len(members) != len(names):
            raise OptimizerError(f"group {number} has {len(members)} parameters, its list {len(names)} names")
        for param, name in zip(members, names, strict=True):
            param.name, param.by = name, "file"


def from_like(
    optimizer: Optimizer, lists: Sequence[Sequence[str]], shapes: Mapping[str, Shape], slots: Mapping[str, str]
) -> bool:
    """Name an optimizer by what the optimizer of the wanted model calls its entries, whole or not at all; say whether they fit.

    They fit where both have the same groups, every name is the model's, and no state has another shape.
    """
    members = [
        [param for param in optimizer.params if param.group == number] for number in range(len(optimizer.groups))
    ]
    if [len(group) for group in members] != [len(names) for names in lists]:
        return False
    pairs = [pair for group, names in zip(members, lists, strict=True) for pair in zip(group, names, strict=True)]
    if len({name for _, name in pairs}) < len(pairs):
        return False
    if any(name not in shapes or shape_of(param, slots) not in {None, shapes[name]} for param, name in pairs):
        return False
    for param, name in pairs:
        param.name, param.by = name, "like"
    return True


def from_order(
    optimizer: Optimizer, shapes: Mapping[str, Shape], slots: Mapping[str, str], by: Literal["order", "like"] = "order"
) -> list[int]:
    """Name an optimizer whole by the model's order, or leave it nameless; give the positions of orphaned parameters.

    ``by``: whose order it is, the file's or that of the wanted model. OptimizerError: no entry of the model matches any parameter.
    """
    by_group: list[list[int]] = [[] for _ in optimizer.groups]
    for position, param in enumerate(optimizer.params):
        by_group[param.group].append(position)
    told = [shape_of(param, slots) for param in optimizer.params]
    result = by_order(list(shapes.values()), [[told[position] for position in members] for members in by_group])
    orphans = [by_group[group][index] for group, index in result.orphans]
    if optimizer.params and len(orphans) == len(optimizer.params):
        raise OptimizerError(
            f"none of the optimizer's {len(orphans)} parameters has the shape of one of the model's:"
            f" it has {_shapes(told)}, the model {_shapes(shapes.values())}",
            hint="the optimizer is of another model; --section model=KEY chooses that one",
        )
    if result.whole:
        names = list(shapes)
        for group, members in zip(result.entries, by_group, strict=True):
            for entry, position in zip(group, members, strict=True):
                if entry is not None:
                    optimizer.params[position].name, optimizer.params[position].by = names[entry], by
    return orphans


def strangers(optimizer: Optimizer) -> list[int]:
    """Give the positions of the entries that no id has named; OptimizerError where that is all of them."""
    lost = [position for position, param in enumerate(optimizer.params) if param.name is None]
    if len(lost) == len(optimizer.params):
        shown = _listed([str(param.key) for param in optimizer.params])
        raise OptimizerError(
            f"none of the optimizer's {len(lost)} ids is one of the model's: {shown}",
            hint="the optimizer is of another model, or of another run of it",
        )
    return lost


def _shapes(shapes: Iterable[Shape | None]) -> str:
    return _listed([str(list(shape)) for shape in dict.fromkeys(shapes) if shape is not None])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
