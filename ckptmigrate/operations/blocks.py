"""Operations that cut one tensor into several and lay several side by side: Split, Concat, Stack, Unstack."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ckptmigrate.errors import TensorError, UsageError
from ckptmigrate.tensor import Tensor, joined

from .axes import TENSORS
from .contract import Group, On, Reason, Traits
from .patterns import check_patterns, check_place, many_to_one, matches, one_to_many, several
from .reversal import fanned, gathered, turned
from .spelling import declared, spelled
from .subjects import Length, check_axis, check_lengths, check_packed, cut, cuttable, place, tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.values import Tree

MEMBERS = 65_536  # names that one tensor may become: far beyond any list of layers or experts, and soon made


@dataclass(frozen=True, slots=True)
class Split:
    r"""Cut a tensor along an axis, in the order of the names that its parts get.

        Split(r"(.*)\.qkv\.(weight|bias)", [r"\1.q.\2", r"\1.k.\2", r"\1.v.\2"])
        Split(r"(.*)\.qkv\.weight", [r"\1.q.weight", r"\1.k.weight", r"\1.v.weight"], shares=["heads", "kv_heads", "kv_heads"])

    Parts are equal, or of ``sizes`` (-1: the rest), or in proportion to ``shares``; text names a number.
    """

    pattern: str
    into: Sequence[str]
    axis: int = 0
    sizes: Sequence[Length] = ()
    shares: Sequence[Length] = ()
    optional: bool = False
    on: On = "model"
    traits: ClassVar[Traits] = Traits(numbers=("sizes", "shares"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "into", several(self.into))
        check_patterns(*((self.pattern, template) for template in self.into))
        check_place(self.on, TENSORS)
        _check_parts(self, len(self.into))

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a name, with a target a part."""
        return one_to_many(names, self.pattern, self.into)

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the parts, each a look at the whole."""
        source, axis = cuttable(sources[0], self.axis)
        lengths = cut(source.shape[axis], len(self.into), self.sizes, self.shares)
        edges = itertools.pairwise(itertools.accumulate(lengths, initial=0))
        return tuple(source.with_promise(source.promise.slice(axis, start, stop)) for start, stop in edges)

    def inverse(self) -> Concat | Reason:
        """Lay the parts side by side again, where their names tell that of the whole."""
        way = fanned(self.pattern, self.into)
        if way is not None:
            shares = () if self.sizes else self.shares or (1,) * len(self.into)
            return Concat(*way, self.axis, self.sizes, shares, optional=self.optional, on=self.on)
        return Reason(f"the names {', '.join(map(repr, self.into))} do not tell what {self.pattern!r} matched")

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Concat:
    r"""Lay tensors side by side along an axis, in the order of the patterns, then of the numbers in their names.

        Concat([r"(.*)\.q\.weight", r"(.*)\.k\.weight", r"(.*)\.v\.weight"], r"\1.qkv.weight", shares=[1, 1, 1])

    Only with ``sizes`` (-1: the rest) or ``shares``, which the parts must then have, there is a way back.
    """

    patterns: Sequence[str]
    into: str
    axis: int = 0
    sizes: Sequence[Length] = ()
    shares: Sequence[Length] = ()
    optional: bool = False
    on: On = "model"
    traits: ClassVar[Traits] = Traits(numbers=("sizes", "shares"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", several(self.patterns))
        check_patterns(*((pattern, self.into) for pattern in self.patterns))
        check_place(self.on, TENSORS)
        _check_parts(self, len(self.patterns))

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a target."""
        return many_to_one(names, self.patterns, self.into)

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the whole, a joint of the parts."""
        parts = [cuttable(source, self.axis)[0] for source in sources]
        _check_alike(parts)
        axis = place(parts[0], self.axis)
        if self.sizes or self.shares:
            found = [part.shape[axis] if axis < len(part.shape) else 0 for part in parts]
            wanted = cut(sum(found), len(self.patterns), self.sizes, self.shares)
            if found != wanted:
                said = f"sizes {list(self.sizes)}" if self.sizes else f"shares {list(self.shares)}"
                raise TensorError(f"the parts are {found} long, expected {said}")
        return (parts[0].with_promise(joined([part.promise for part in parts], axis)),)

    def inverse(self) -> Split | Reason:
        """Cut the whole again, where the sizes are declared and its name tells those of the parts."""
        if not (self.sizes or self.shares):
            return Reason("no sizes= or shares= say how long the parts were")
        way = gathered(self.patterns, self.into)
        if way is not None:
            shares = () if len(set(self.shares)) == 1 and isinstance(self.shares[0], int) else self.shares
            return Split(*way, self.axis, self.sizes, shares, optional=self.optional, on=self.on)
        return Reason(f"the name {self.into!r} does not tell what {', '.join(map(repr, self.patterns))} matched")

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Stack:
    r"""Lay tensors of one shape along a new axis, in the order of the patterns, then of the numbers in their names, from 0.

        Stack(r"(.*)\.experts\.(\d+)\.w1\.weight", r"\1.experts.w1", count="experts")
        Stack([r"(.*)\.gate", r"(.*)\.up"], r"\1.gate_up", axis=1)

    A number that is skipped is a missing member; ``count`` tells of one that is missing at the end.
    """

    patterns: Sequence[str]
    into: str
    axis: int = 0
    count: Length | None = None
    optional: bool = False
    on: On = "model"
    traits: ClassVar[Traits] = Traits(numbers=("count",))

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", several(self.patterns))
        check_patterns(*((pattern, self.into) for pattern in self.patterns))
        check_place(self.on, TENSORS)
        check_axis(self.axis)
        if self.count is not None:
            check_lengths("count", [self.count], least=1)
        if not self.patterns:
            raise UsageError("Stack of nothing")

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a target; members count from 0."""
        return many_to_one(names, self.patterns, self.into, 0 if len(self.patterns) == 1 else None)

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the whole, a joint of the members."""
        parts = [tensor(source) for source in sources]
        _check_alike(parts)
        if self.count is not None and len(parts) != self.count:
            raise TensorError(f"{len(parts)} members to stack, expected {self.count}")
        axes = len(parts[0].shape) + 1
        if not -axes <= self.axis < axes:
            raise TensorError(f"has the shape {list(parts[0].shape)}, and no place for a new axis {self.axis}")
        axis = self.axis % axes
        if axis == axes - 1:
            check_packed(parts[0])
        rows = [part.promise.reshape((*part.shape[:axis], 1, *part.shape[axis:])) for part in parts]
        return (parts[0].with_promise(joined(rows, axis)),)

    def inverse(self) -> Unstack | Reason:
        """Give every member its name again, where the number in it is a group of its own, or every pattern is one member."""
        if len(self.patterns) == 1:
            way = turned(self.patterns[0], self.into, counts=True)
            if way is not None and "{}" in way[1]:
                return Unstack(*way, self.axis, optional=self.optional, on=self.on)
        else:
            ways = gathered(self.patterns, self.into)
            if ways is not None:
                return Unstack(*ways, self.axis, optional=self.optional, on=self.on)
        return Reason(
            f"the name {self.into!r} does not tell what {', '.join(map(repr, self.patterns))} matched;"
            r" a number that is counted stands as (\d+)"
        )

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Unstack:
    r"""Take a tensor apart along an axis, which goes away; ``{}`` in the name of a member is its number, from 0.

    Unstack(r"(.*)\.experts\.w1", r"\1.experts.{}.w1.weight")
    Unstack(r"(.*)\.gate_up", [r"\1.gate", r"\1.up"], axis=1)
    """

    pattern: str
    into: str | Sequence[str]
    axis: int = 0
    optional: bool = False
    on: On = "model"
    traits: ClassVar[Traits] = Traits()

    def __post_init__(self) -> None:
        if not isinstance(self.into, str):
            object.__setattr__(self, "into", tuple(self.into))
        check_patterns(*((self.pattern, template) for template in several(self.into)))
        check_place(self.on, TENSORS)
        check_axis(self.axis)
        if isinstance(self.into, str) and "{}" not in self.into:
            raise UsageError(
                f"Unstack into {self.into!r}: {{}} says where the number stands, or a list has a name for each"
            )

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a name, with a target for each of its members."""
        groups = []
        for name, _, found in matches(names, (self.pattern,)):
            if isinstance(self.into, str):
                count = self._count(names[name])
                expanded = found.expand(self.into.replace("{}", "\0"))
                targets = tuple(expanded.replace("\0", str(n)) for n in range(count)) if count else (name,)
            else:
                targets = tuple(map(found.expand, self.into))
            groups.append(Group((name,), targets))
        return groups or [Group((), (), missing=(self.pattern,))]

    def _count(self, source: Tree) -> int:
        """Give the number of members, 0 for what ``tensors`` will refuse."""
        shape = source.shape if isinstance(source, Tensor) else ()
        count = shape[self.axis] if -len(shape) <= self.axis < len(shape) else 0
        return count if count <= MEMBERS else 0

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the members, each a look at the whole."""
        source, axis = cuttable(sources[0], self.axis)
        count = source.shape[axis]
        if not 0 < count <= MEMBERS:
            raise TensorError(f"has {count:,} members on axis {self.axis}, expected from 1 to {MEMBERS:,}")
        if not isinstance(self.into, str) and count != len(self.into):
            raise TensorError(f"has {count:,} members on axis {self.axis}, expected {len(self.into)}")
        shape = (*source.shape[:axis], *source.shape[axis + 1 :])
        return tuple(source.with_promise(source.promise.slice(axis, n, n + 1).reshape(shape)) for n in range(count))

    def inverse(self) -> Stack | Reason:
        """Stack the members again, where their names tell that of the whole."""
        if isinstance(self.into, str):
            way = turned(self.pattern, self.into, counts=True)
            if way is not None:
                return Stack((way[0],), way[1], self.axis, optional=self.optional, on=self.on)
        else:
            ways = fanned(self.pattern, self.into)
            if ways is not None:
                return Stack(*ways, self.axis, len(self.into), optional=self.optional, on=self.on)
        return Reason(f"the names {self.into!r} do not tell what {self.pattern!r} matched")

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


def _check_parts(operation: Split | Concat, count: int) -> None:
    """Refuse, when the migrator is written, parts that could never be."""
    check_axis(operation.axis)
    for name, least in (("sizes", 0), ("shares", 1)):
        given = tuple(getattr(operation, name) or ())
        object.__setattr__(operation, name, given)
        check_lengths(name, given, least=least, rest=name == "sizes")
        if given and len(given) != count:
            raise UsageError(f"{len(given)} {name} for {count} parts")
    if operation.sizes and operation.shares:
        raise UsageError("sizes= and shares= say the same thing twice")
    if not count:
        raise UsageError(f"{type(operation).__name__} of no parts")


def _check_alike(parts: Sequence[Tensor]) -> None:
    """TensorError where parts are quantised otherwise than the first."""
    for part in parts[1:]:
        if part.quant != parts[0].quant:
            raise TensorError("the parts are not quantised alike", hint="dequantise them first")
