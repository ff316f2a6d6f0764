"""Which tensors of one checkpoint are made of which of another, told by their elements alone; no name is looked at.

    digests   the same bytes: kept, renamed, cast, reshaped
    bags      the same elements in another order: transposed, axes permuted, blocks moved
    lines     rows of one are rows, columns or wholes of others: split, joined, stacked, unstacked

Each look is up in a table of what the old checkpoint left, so that the time grows with the number of lines and its logarithm.
What two tensors of one checkpoint could both be is not decided here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from math import gcd, prod
from typing import TYPE_CHECKING

from .derivation import Change, Derivation, arranged, change
from .lines import WHOLE, Table, aligned, covered
from .nesting import nested

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from .evidence import Array, Holding, Trace
    from .lines import Run

FEW_BLOCKS = 8  # gates; more of them are first tried as factors of the axis
MOST_BLOCKS = 64  # nobody would read more of them


def by_content(old: Sequence[Holding], new: Sequence[Holding]) -> tuple[list[Derivation], dict[str, list[str]]]:
    """Give what equal elements prove, in the order of the new checkpoint.

    Also give, for tensors whose lines are all found in a way that no single operation says, whose lines they are.
    """
    matching = _Matching(old, new)
    matching.whole(lambda trace: (trace.dtype, trace.shape, trace.digest), _same)
    matching.whole(lambda trace: (trace.dtype, trace.digest), _reshaped)
    matching.whole(lambda trace: (trace.dtype, prod(trace.shape), trace.bag), _permuted)
    matching.parts()
    nested(matching.old, matching.new, matching.found, matching.parts)
    order = {holding.names[0]: number for number, holding in enumerate(new)}
    unsaid = {name: sources for name, sources in matching.unsaid.items() if name in matching.new}
    return sorted(matching.found, key=lambda each: order.get(each.targets[0], len(order))), unsaid


class _Matching:
    """What is left on both sides, and what was found."""

    def __init__(self, old: Sequence[Holding], new: Sequence[Holding]) -> None:
        self.old = {holding.names[0]: holding for holding in old if holding.evident}
        self.new = {holding.names[0]: holding for holding in new if holding.evident}
        self.found: list[Derivation] = []
        self.unsaid: dict[str, list[str]] = {}

    def whole(
        self, key: Callable[[Trace], Hashable], changes: Callable[[Trace, Trace], tuple[Change, ...] | None]
    ) -> None:
        """Match one tensor with one, where the key is that of no other on either side."""
        sides: list[dict[Hashable, list[tuple[str, Trace]]]] = [defaultdict(list), defaultdict(list)]
        for name, holding in self.old.items():
            for trace in (holding.own, *holding.casts.values()):
                sides[0][key(trace)].append((name, trace))
        for name, holding in self.new.items():
            sides[1][key(holding.own)].append((name, holding.own))
        for common in [each for each in sides[1] if len(sides[0].get(each, ())) == len(sides[1][each]) == 1]:
            ((source, before),), ((target, after),) = sides[0][common], sides[1][common]
            if source not in self.old:
                continue  # as another dtype it was found already
            made = changes(before, after)
            if made is not None:
                self.take((source,), (target,), (self.casting(source, after.dtype) + made,))

    def casting(self, source: str, dtype: str) -> tuple[Change, ...]:
        """Give the cast of a source to a dtype, if it is one."""
        own = self.old[source].own.dtype
        return () if own == dtype else (change("Cast", dtype=dtype, old=own),)

    def take(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        before: tuple[tuple[Change, ...], ...],
        joint: Change | None = None,
        after: tuple[Change, ...] = (),
    ) -> None:
        """Note a derivation; what it needs and gives is not left any more."""
        self.found.append(Derivation(tuple(sources), tuple(targets), before, joint, after))
        for name in sources:
            del self.old[name]
        for name in targets:
            del self.new[name]

    def parts(self) -> None:
        """Match tensors whose lines are lines of others, one dtype after the other."""
        for dtype in dict.fromkeys(holding.own.dtype for holding in self.new.values()):
            traces = {n: t for n, h in self.old.items() if (t := h.as_dtype(dtype)) is not None and t.lines}
            targets = {n: h.own for n, h in self.new.items() if h.own.dtype == dtype and h.own.lines}
            table = Table.of(traces)
            covers = {name: cover for name, trace in targets.items() if (cover := covered(trace, table)) is not None}
            for sources, made in _components(covers):
                _Component(self, dtype, traces, targets, {name: covers[name] for name in made}, sources).resolve()
                self.unsaid |= {name: sources for name in made if name in self.new}


def _same(old: Trace, new: Trace) -> tuple[Change, ...] | None:  # noqa: ARG001 - one of three that are passed on
    return ()


def _reshaped(old: Trace, new: Trace) -> tuple[Change, ...] | None:
    return (change("Reshape", old=old.shape, shape=new.shape),)


def _permuted(old: Trace, new: Trace) -> tuple[Change, ...] | None:
    """Give the changes between two orders of the same elements: axes that were permuted, one of them in blocks."""
    import numpy as np  # noqa: PLC0415 - lines are compared

    left = [axis for axis, length in enumerate(old.shape) if length > 1]
    wanted = [axis for axis, length in enumerate(new.shape) if length > 1]
    if not old.lines or sorted(old.shape[a] for a in left) != sorted(new.shape[a] for a in wanted):
        return None
    order: dict[int, int] = {}
    for axis in wanted:
        found = next((a for a in left if np.array_equal(old.lines[a], new.lines[axis])), None)
        if found is not None:
            order[axis] = found
            left.remove(found)
    moved: tuple[Change, ...] = ()
    if len(left) == 1:
        (axis,) = set(wanted) - set(order)
        places = _places(old.lines[left[0]], new.lines[axis])
        reordered = None if places is None else reordering(places, left[0])
        if reordered is None:
            return None
        order[axis], moved = left[0], reordered
    elif left:
        return None
    return (*moved, *arranged(old.shape, new.shape, [order[axis] for axis in wanted]))


def _places(old: Array, new: Array) -> Array | None:
    """Give for each line of the new axis where it stood; None where the lines are others, or two of them are equal."""
    import numpy as np  # noqa: PLC0415 - same

    order, wanted = np.argsort(old, kind="stable"), np.argsort(new, kind="stable")
    if len(old) != len(new) or not np.array_equal(old[order], new[wanted]):
        return None
    places = np.empty(len(new), np.int64)
    places[wanted] = order
    if not (np.diff(old[order]) == 0).any():
        return places
    runs = Table([("", 0, old)]).cover(new) or []  # of equal lines, whichever continues the one before it
    places = np.concatenate([np.arange(run.start, run.start + run.length) for run in runs])
    return places if len(set(places.tolist())) == len(old) else None


def reordering(places: Array, axis: int) -> tuple[Change, ...] | None:
    """Give the change that moves the lines of an axis: position ``i`` takes the line at ``places[i]``.

    Equal blocks in another order (gates), or two factors of the axis that change places (heads, rotary embeddings).
    """
    import numpy as np  # noqa: PLC0415 - same

    count = len(places)
    if np.array_equal(places, np.arange(count)):
        return ()
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    size = gcd(count, *map(int, breaks), *map(int, places[breaks]), int(places[0]))
    blocks = places[::size] // size
    if len(blocks) <= FEW_BLOCKS:
        return (change("Reorder", blocks=blocks.tolist(), axis=axis),)
    inner = int(blocks[1])
    middle = int(np.argmax(blocks != np.arange(len(blocks)) * inner))
    outer, left = divmod(len(blocks), max(1, inner * middle))
    if not left and np.array_equal(blocks, np.arange(len(blocks)).reshape(outer, middle, inner).swapaxes(1, 2).ravel()):
        factors = [f for f in (outer, middle, inner, size) if f > 1]
        first = 1 if outer > 1 else 0
        axes = [*range(first), first + 1, first, *range(first + 2, len(factors))]
        return (change("Reorder", axis=axis, fold=factors, axes=axes),)
    return (change("Reorder", blocks=blocks.tolist(), axis=axis),) if len(blocks) <= MOST_BLOCKS else None


# ── parts ──


def _components(covers: dict[str, tuple[int, list[Run]]]) -> list[tuple[list[str], list[str]]]:
    """Give sources and targets that belong together: whoever shares a source is one group."""
    head: dict[str, str] = {}

    def find(name: str) -> str:
        while head.setdefault(name, name) != name:
            head[name] = head[head[name]]
            name = head[name]
        return name

    for runs in (runs for _, runs in covers.values()):
        for run in runs[1:]:
            head[find(run.name)] = find(runs[0].name)
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for target, (_, runs) in covers.items():
        sources, targets = groups.setdefault(find(runs[0].name), ([], []))
        sources += [name for name in dict.fromkeys(run.name for run in runs) if name not in sources]
        targets.append(target)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Component:
    """Sources and targets that share lines: one that was taken apart, or several that were joined."""

    matching: _Matching
    dtype: str
    old: dict[str, Trace]
    new: dict[str, Trace]
    covers: dict[str, tuple[int, list[Run]]]
    sources: list[str]

    def resolve(self) -> None:
        """Note what the lines prove; many to many, and what is left over of a source, is for a person to say."""
        axes = {(run.name, run.axis) for _, runs in self.covers.values() for run in runs}
        if len(axes) != len(self.sources):
            return
        if len(self.sources) == 1:
            self._taken_apart(self.sources[0], next(iter(axes))[1])
        elif len(self.covers) == 1:
            self._joined(dict(axes))

    def _taken_apart(self, source: str, axis: int) -> None:
        old = self.old[source]
        targets = sorted(self.covers, key=lambda name: min(run.start for run in self.covers[name][1]))
        cuts = {self.covers[name][0] for name in targets}
        if axis == WHOLE or len(cuts) != 1:
            return
        moved = _moved([run for name in targets for run in self.covers[name][1]], {}, axis, old.shape)
        (cut,) = cuts
        inner = _longer(old.shape, axis)
        outer = [_longer(self.new[name].shape, cut) for name in targets]
        parts = [[self.new[name].lines[a] for a in axes] for name, axes in zip(targets, outer, strict=True)]
        order = aligned(parts, [old.lines[a] for a in inner])
        if moved is None or order is None:
            return
        first, length, rest = self.new[targets[0]].shape, old.shape[axis], [inner[i] for i in order]
        if cut == WHOLE:
            at = axis if rest == inner and axis <= len(first) else 0
            whole = (*first[:at], length, *first[at:])
            joint = change("Unstack", axis=at)
        else:
            at, whole = cut, (*first[:cut], length, *first[cut + 1 :])
            joint = change("Split", axis=at, sizes=[self.new[name].shape[at] for name in targets])
        turned = arranged(old.shape, whole, _order(whole, at, axis, rest))
        self.matching.take((source,), targets, ((*self.matching.casting(source, self.dtype), *moved, *turned),), joint)

    def _joined(self, axes: dict[str, int]) -> None:
        ((target, (cut, runs)),) = self.covers.items()
        new = self.new[target]
        if cut == WHOLE:
            return
        stacked = set(axes.values()) == {WHOLE} and all(len(self.old[n].shape) < len(new.shape) for n in axes)
        lengths = {n: 1 if axes[n] == WHOLE else self.old[n].shape[axes[n]] for n in self.sources}
        begins = dict(zip(self.sources, accumulate([0, *lengths.values()]), strict=False))
        after = _moved(runs, begins, cut, new.shape)
        outer = _longer(new.shape, cut)
        inner = {name: _longer(self.old[name].shape, axes[name]) for name in self.sources}
        parts = [[self.old[name].lines[a] for a in inner[name]] for name in self.sources]
        order = aligned(parts, [new.lines[a] for a in outer])
        if after is None or order is None:
            return
        befores = []
        for name in self.sources:
            length = () if stacked else (lengths[name],)
            shape = (*new.shape[:cut], *length, *new.shape[cut + 1 :])
            rest = [inner[name][order.index(i)] for i in range(len(outer))]
            at = WHOLE if stacked or lengths[name] == 1 else cut
            turned = arranged(self.old[name].shape, shape, _order(shape, at, axes[name], rest))
            befores.append((*self.matching.casting(name, self.dtype), *turned))
        sizes = {} if stacked else {"sizes": list(lengths.values())}
        joint = change("Stack" if stacked else "Concat", axis=cut, **sizes)
        self.matching.take(self.sources, (target,), tuple(befores), joint, after)


def _moved(runs: list[Run], begins: dict[str, int], axis: int, shape: tuple[int, ...]) -> tuple[Change, ...] | None:
    """Give what moves the lines that runs take, in their order, out of an axis; None unless they take each once."""
    import numpy as np  # noqa: PLC0415 - lines are counted

    places = np.concatenate([np.arange(run.start, run.start + run.length) + begins.get(run.name, 0) for run in runs])
    whole = len(places) == shape[axis] and np.array_equal(np.sort(places), np.arange(shape[axis]))
    return reordering(places, axis) if whole else None


def _longer(shape: tuple[int, ...], but: int) -> list[int]:
    return [axis for axis, length in enumerate(shape) if length > 1 and axis != but]


def _order(shape: tuple[int, ...], at: int, axis: int, rest: list[int]) -> list[int]:
    """Give for each axis longer than 1 which axis of the source it is: ``axis`` at ``at``, the rest in their order."""
    others = iter(rest)
    return [axis if a == at else next(others) for a, length in enumerate(shape) if length > 1]
