"""Joined twice: the gates and ups of all experts in one tensor are each a stack, side by side along another axis.

A tensor that is left is cut in two or three along an axis, if the first line of the first piece is a tensor of the other side; the
pieces are then looked for as any other tensor is. What is found of all pieces is kept, and the whole is joined, or split, in a step of
its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .derivation import Derivation, change
from .evidence import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .evidence import Holding

PIECES = (2, 3)


def nested(
    old: dict[str, Holding], new: dict[str, Holding], found: list[Derivation], match: Callable[[], None]
) -> None:
    """Match what is left by pieces, in place. ``match`` matches what is in ``old`` and ``new``, and notes it in ``found``."""
    before, sides = len(found), (dict(old), dict(new))
    whole: list[tuple[int, str, int, list[str]]] = []  # side, name, axis, pieces
    for number, (side, other) in enumerate(((old, new), (new, old))):
        for name, axis, pieces in list(_cut(side, other)):
            del side[name]
            side.update(pieces)
            whole.append((number, name, axis, list(pieces)))
    if not whole:
        return
    match()
    for number, name, axis, names in whole:
        side = (old, new)[number]
        if any(piece in side for piece in names):
            undone = [d for d in found[before:] if set(names) & {*d.sources, *d.targets}]
            for derivation in undone:
                found.remove(derivation)
                old |= {n: sides[0][n] for n in derivation.sources if n in sides[0]}
                new |= {n: sides[1][n] for n in derivation.targets if n in sides[1]}
            for piece in names:
                side.pop(piece, None)
            side[name] = sides[number][name]
            continue
        sizes = [sides[number][name].own.shape[axis] // len(names)] * len(names)
        joint = change("Concat" if number else "Split", axis=axis, sizes=sizes)
        sources, targets = (tuple(names), (name,)) if number else ((name,), tuple(names))
        found.append(Derivation(sources, targets, ((),) * len(sources), joint))


def _cut(side: dict[str, Holding], other: dict[str, Holding]) -> Iterator[tuple[str, int, dict[str, Holding]]]:
    """Give tensors that may have been joined twice, the axis, and their pieces under names of their own."""
    bags = {each.bag for holding in other.values() for each in (holding.own, *holding.casts.values())}
    for name, holding in side.items():
        promise, shape = holding.tensor.promise, holding.own.shape
        cuts = ((axis, count) for axis in range(1, len(shape)) for count in PIECES if shape[axis] % count == 0)
        for axis, count in cuts if len(shape) > 2 and holding.own.lines else ():
            size = shape[axis] // count
            if trace(promise.slice(0, 0, 1).slice(axis, 0, size)).bag in bags:
                looks = [promise.slice(axis, at, at + size) for at in range(0, shape[axis], size)]
                names: Sequence[str] = [f"{name}.{index}" for index in range(count)]
                tensors = [holding.tensor.with_promise(look) for look in looks]
                yield (
                    name,
                    axis,
                    {
                        piece: replace(holding, names=(piece,), tensor=tensor, own=trace(tensor.promise), casts={})
                        for piece, tensor in zip(names, tensors, strict=True)
                    },
                )
                break
