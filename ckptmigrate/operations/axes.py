"""Operations on the axes of one tensor: Transpose, Reorder, Reshape. They keep its name and its id."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from ckptmigrate.errors import TensorError, UsageError
from ckptmigrate.tensor import View, joined
from ckptmigrate.tensor.strides import PAGE
from ckptmigrate.tensor.view import AGAIN

from .contract import Group, On, Reason, Traits
from .patterns import check_patterns, check_place, in_place
from .spelling import declared, spelled
from .subjects import Length, check_axis, check_lengths, check_packed, check_shape, cuttable, fits, shaped, tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.tensor import Promise
    from ckptmigrate.values import Tree

TENSORS = ("model", "slots", "values")
PARTS = 512  # more make a plan slow and its reads small; scratch costs one more pass over the tensor


@dataclass(frozen=True, slots=True)
class Transpose:
    r"""Put the axes into another order: axis ``axes[i]`` becomes axis i.

    Transpose(r".*\.conv1d\.weight")                    # two axes change places
    Transpose(r"stem\.kernel", (3, 2, 0, 1))            # HWIO to OIHW
    """

    pattern: str
    axes: Sequence[int] = (1, 0)
    optional: bool = False
    on: On = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def __post_init__(self) -> None:
        check_patterns((self.pattern, None))
        check_place(self.on, TENSORS)
        object.__setattr__(self, "axes", tuple(self.axes))
        for axis in self.axes:
            check_axis(axis)
        if sorted(self.axes) != list(range(len(self.axes))):
            raise UsageError(f"axes={self.axes}: expected every axis from 0 once")

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a name."""
        return in_place(names, self.pattern)

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the tensor with its axes in the other order."""
        source = tensor(sources[0])
        if len(source.shape) != len(self.axes):
            raise TensorError(f"has the shape {list(source.shape)}, expected {len(self.axes)} axes")
        if self.axes and self.axes[-1] != len(self.axes) - 1:
            check_packed(source)
        return (source.with_promise(source.promise.transpose(tuple(self.axes))),)

    def inverse(self) -> Transpose:
        """Put every axis where it was."""
        return replace(self, axes=_turned_round(self.axes))

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Reorder:
    r"""Permute positions along one axis: equal blocks of it, or the axis seen as several and these in another order.

        Reorder(r"lstm\.(weight|bias)_.*", (0, 2, 1, 3))                        # gates i f g o as i g f o
        Reorder(r".*\.qkv\.(weight|bias)", (1, 2, 0), within="heads")           # in each of as many equal parts
        Reorder(r".*\.[qk]\.weight", fold=("heads", -1, 2), axes=(0, 2, 1))     # rotary: pairs to halves

    ``blocks``: block ``blocks[i]`` becomes block i. ``fold``: the lengths the axis is seen as, ``axes`` their order, as
    ``view(fold).transpose`` and ``reshape`` back would do it.
    """

    pattern: str
    blocks: Sequence[int] = ()
    axis: int = 0
    within: Length = 1
    fold: Sequence[Length] = ()
    axes: Sequence[int] = ()
    optional: bool = False
    on: On = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True, numbers=("within", "fold"))

    def __post_init__(self) -> None:
        check_patterns((self.pattern, None))
        check_place(self.on, TENSORS)
        check_axis(self.axis)
        for name in ("blocks", "fold", "axes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_lengths("within", [self.within], least=1)
        check_lengths("fold", self.fold, least=1, rest=True)
        if bool(self.blocks) == bool(self.fold) or len(self.fold) != len(self.axes):
            raise UsageError("Reorder takes blocks=, or fold= and as many axes=")
        if self.fold and self.within != 1:
            raise UsageError("Reorder with fold= says groups as one more length of it, not as within=")
        for what, order in (("blocks", self.blocks), ("axes", self.axes)):
            if sorted(order) != list(range(len(order))):
                raise UsageError(f"{what}={order}: expected every number from 0 once")

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a name."""
        return in_place(names, self.pattern)

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the tensor with the positions of the axis in the other order."""
        source, axis = cuttable(sources[0], self.axis)
        length = source.shape[axis]
        if self.fold:
            known = prod(int(each) for each in self.fold if each != -1)
            if length % known or (length != known and -1 not in self.fold):
                raise TensorError(f"axis {self.axis} of {list(source.shape)} does not fold into {list(self.fold)}")
            lengths = shaped(self.fold, (length,))
            return (source.with_promise(_folded(source.promise, axis, lengths, tuple(self.axes))),)
        groups = int(self.within)
        if length % (groups * len(self.blocks)):
            raise TensorError(
                f"axis {self.axis} of {list(source.shape)} has no {len(self.blocks)} equal blocks"
                + (f" in each of {groups} equal parts" if groups > 1 else "")
            )
        return (source.with_promise(_permuted(source.promise, axis, groups, tuple(self.blocks))),)

    def inverse(self) -> Reorder:
        """Put every block, or every axis of the fold, where it was."""
        if self.blocks:
            return replace(self, blocks=_turned_round(self.blocks))
        return replace(self, fold=tuple(self.fold[axis] for axis in self.axes), axes=_turned_round(self.axes))

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Reshape:
    r"""Give the same elements another shape.

        Reshape(r".*\.proj\.weight", ("*", "*"), old=("*", "*", 1, 1))      # a 1x1 convolution is a linear layer
        Reshape(r".*\.qkv\.weight", (3, "heads", -1, "*1"))

    In ``shape`` a number is a length, -1 the rest, text the name of a number, ``"*"`` the old axis at that place and ``"*1"`` the
    old axis 1. ``old``: what the shape must have been, in which ``"*"`` is any length; what is not so is refused. Only with
    it there is a way back.
    """

    pattern: str
    shape: Sequence[Length]
    old: Sequence[Length] | None = None
    optional: bool = False
    on: On = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True, numbers=("shape", "old"))

    def __post_init__(self) -> None:
        check_patterns((self.pattern, None))
        check_place(self.on, TENSORS)
        check_shape("shape", self.shape, rest=True)
        object.__setattr__(self, "shape", tuple(self.shape))
        if self.old is not None:
            check_lengths("old", [entry for entry in self.old if entry != "*"])
            object.__setattr__(self, "old", tuple(self.old))

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a name."""
        return in_place(names, self.pattern)

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the tensor in the other shape."""
        source = tensor(sources[0])
        check_packed(source)
        if self.old is not None and not fits(source.shape, self.old):
            raise TensorError(f"has the shape {list(source.shape)}, expected {list(self.old)}")
        shape = shaped(self.shape, source.shape)
        if prod(shape) != source.promise.numel:
            raise TensorError(f"has the shape {list(source.shape)}, which does not make {list(self.shape)}")
        return (source.with_promise(source.promise.reshape(shape)),)

    def inverse(self) -> Reshape | Reason:
        """Give ``old`` as the shape: its axes copied from where they went, one that went nowhere is the rest."""
        if self.old is None:
            return Reason("no old= says what the shape was")
        copied = {
            index if entry == "*" else int(str(entry)[1:]): index
            for index, entry in enumerate(self.shape)
            if str(entry).startswith("*")
        }
        back: list[Length] = []
        for axis, entry in enumerate(self.old):
            if entry != "*":
                back.append(entry)
            elif axis in copied:
                back.append("*" if copied[axis] == axis else f"*{copied[axis]}")
            else:
                back.append(-1)
        if back.count(-1) > 1:
            return Reason("more than one axis of old= is not told by the new shape")
        new = tuple("*" if entry == -1 or str(entry).startswith("*") else entry for entry in self.shape)
        return replace(self, shape=tuple(back), old=new)

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


def _turned_round(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _permuted(whole: Promise, axis: int, groups: int, blocks: tuple[int, ...]) -> Promise:
    """Permute equal blocks in each of some equal parts of an axis: slices side by side, as long as they are not too many."""
    shape, count = whole.shape, len(blocks)
    step = shape[axis] // (groups * count)
    if groups == 1 or groups * count <= PARTS:
        starts = [(group * count + block) * step for group in range(groups) for block in blocks]
        return joined([whole.slice(axis, start, start + step) for start in starts], axis)
    split = whole.reshape((*shape[:axis], groups, count, step, *shape[axis + 1 :]))
    return joined([split.slice(axis + 1, block, block + 1) for block in blocks], axis + 1).reshape(shape)


def _folded(whole: Promise, axis: int, lengths: tuple[int, ...], order: tuple[int, ...]) -> Promise:
    """See an axis as several, put these into another order, and lay them flat again.

    No strides can say that of a file's bytes. Parts side by side can, one for every place of all new axes but the last; where
    these are many, or would read the file over and over, it goes through scratch.
    """
    shape, count = whole.shape, len(lengths)
    before, after = shape[:axis], shape[axis + 1 :]
    split = whole.reshape((*before, *lengths, *after))
    axes = (*range(axis), *(axis + each for each in order), *range(axis + count, axis + count + len(after)))
    moved = split.transpose(axes)
    outer = [lengths[each] for each in order[:-1]]
    if prod(outer) > PARTS or 0 in lengths:
        return moved.reshape(shape)
    parts = []
    for corner in itertools.product(*map(range, outer)):
        part = moved
        for offset, at in enumerate(corner):
            part = part.slice(axis + offset, at, at + 1)
        parts.append(part.reshape((*before, lengths[order[-1]], *after)))
    return joined(parts, axis) if _read_once(whole, parts) else moved.reshape(shape)


def _read_once(whole: Promise, parts: Sequence[Promise]) -> bool:
    """Say whether parts side by side ask the file for its bytes once: they lie apart, or in runs that are read one by one."""
    if sum(_spanned(part) for part in parts) <= AGAIN * _spanned(whole):
        return True
    return all(isinstance(part, View) and _run(part) > PAGE for part in parts)


def _spanned(promise: Promise) -> int:
    return sum(source.nbytes for source in promise.sources())


def _run(view: View) -> int:
    """Give the bytes of a view that lie in one piece."""
    run = view.itemsize
    for length, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if length > 1 and stride != run:
            break
        run *= length
    return run
