"""What shapes would allow of what is left: candidates for a person, never taken unasked, for no element proves them."""

from __future__ import annotations

from collections import defaultdict
from math import prod
from typing import TYPE_CHECKING

from .derivation import Change, Derivation, change, reshape
from .pairing import moved, moves
from .siblings import KINDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ckptmigrate.tensor import Tensor


def guesses(
    left: Collection[str],
    lacking: Collection[str],
    old: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    derivations: Sequence[Derivation],
) -> Iterator[tuple[str, list[Derivation]]]:
    """Give what may be: the same name in another shape, one cut into several, several joined to one; each with its reason."""
    known = moves(derivations)
    expected = {name: moved(name, known) or name for name in left}
    found: dict[tuple[str, Change], list[Derivation]] = defaultdict(list)
    taken: set[str] = set()
    for name in left:
        target = expected[name]
        how = _turned(old[name].shape, new[target].shape) if target in lacking else None
        if how is not None and old[name].dtype == new[target].dtype:
            found["its shape allows it", how].append(Derivation((name,), (target,), ((how,),), by="name"))
            taken |= {name, target}
    sides = (
        _beside({n: n for n in lacking if n not in taken}),
        _beside({n: expected[n] for n in left if n not in taken}),
    )
    for name in [n for n in left if n not in taken]:
        parts, axis = _fitting(old[name].shape, _places(expected[name]), sides[0], new, taken)
        if axis is not None:
            how = change("Split", axis=axis, sizes=[new[part].shape[axis] for part in parts])
            found["their shapes add up", how].append(Derivation((name,), tuple(parts), joint=how, by="name"))
            taken |= {name, *parts}
    for target in [n for n in lacking if n not in taken]:
        parts, axis = _fitting(new[target].shape, _places(target), sides[1], old, taken)
        if axis is not None:
            how = change("Concat", axis=axis, sizes=[old[part].shape[axis] for part in parts])
            made = Derivation(tuple(parts), (target,), ((),) * len(parts), how, by="name")
            found["their shapes add up", how].append(made)
            taken |= {target, *parts}
    yield from ((text, members) for (text, _), members in found.items())


def _turned(old: tuple[int, ...], new: tuple[int, ...]) -> Change | None:
    """Give the change between two shapes of as many elements, if there is an obvious one."""
    if old == new or prod(old) != prod(new):
        return None
    return change("Transpose", axes=(1, 0)) if len(old) == 2 and old[::-1] == new else reshape(old, new)


def _places(name: str) -> list[tuple[str, str]]:
    """Give where parts of a name may stand: modules beside its own with its leaf; of ``in_proj_weight`` modules below its own."""
    module, _, leaf = name.rpartition(".")
    kind = next((kind for kind in KINDS if leaf.endswith(f"_{kind}")), None)
    return [(module.rpartition(".")[0], leaf), *([] if kind is None else [(module, kind)])]


def _fitting(
    whole: tuple[int, ...],
    places: Sequence[tuple[str, str]],
    beside: Mapping[tuple[str, str], list[str]],
    tensors: Mapping[str, Tensor],
    taken: Collection[str],
) -> tuple[list[str], int | None]:
    """Give the parts that stand at one of the places and make a whole, and the axis along which they do."""
    for place in places:
        parts = [name for name in beside.get(place, ()) if name not in taken]
        axis = _joint(whole, [tensors[part].shape for part in parts])
        if axis is not None:
            return parts, axis
    return [], None


def _beside(places: Mapping[str, str]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, said in places.items():
        found[_places(said)[0]].append(name)
    return found


def _joint(whole: tuple[int, ...], parts: Sequence[tuple[int, ...]]) -> int | None:
    """Give the axis along which parts make a whole, if their shapes allow it."""
    if len(parts) < 2 or any(len(part) != len(whole) for part in parts):
        return None
    for axis, length in enumerate(whole):
        others = {(*part[:axis], *part[axis + 1 :]) for part in parts}
        if others == {(*whole[:axis], *whole[axis + 1 :])} and sum(part[axis] for part in parts) == length:
            return axis
    return None
