"""Stand-ins for operations that issue 5 brings: each as its author would write it, to see that the engine is ready for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ckptmigrate.errors import TensorError
from ckptmigrate.marks import fits
from ckptmigrate.operations import Group, Operation, Reason, Traits, many_to_one, matches, one_to_many
from ckptmigrate.tensor import Made, joined

from .toys import Spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptmigrate.dtypes import DType
    from ckptmigrate.tensor import Promise, Shape


@dataclass(frozen=True)
class Stack(Spelled):
    """Many tensors along a new first axis."""

    patterns: tuple[str, ...]
    into: str
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits()

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return many_to_one(names, self.patterns, self.into)

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = [s.promise.reshape((1, *s.promise.shape)) for s in sources]
        return (sources[0].with_promise(joined(parts, 0)),)


@dataclass(frozen=True)
class Unstack(Spelled):
    """One tensor into as many as its first axis is long; ``{}`` in the template is the number."""

    pattern: str
    into: str
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits()

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        groups = [
            Group((name,), tuple(found.expand(self.into).replace("{}", str(n)) for n in range(names[name].shape[0])))
            for name, _, found in matches(names, (self.pattern,))
        ]
        return groups or [Group((), (), missing=(self.pattern,))]

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        (source,) = sources
        rest = source.promise.shape[1:]
        return tuple(
            source.with_promise(source.promise.slice(0, n, n + 1).reshape(rest)) for n in range(source.promise.shape[0])
        )


@dataclass(frozen=True)
class Reindex(Spelled):
    """Dense numbers in a list: what stands at its first, second, … place is 0, 1, …"""

    pattern: str  # one group: the number
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        found = [(name, match) for name, _, match in matches(names, (self.pattern,))]
        dense = {number: str(n) for n, number in enumerate(sorted({int(match[1]) for _, match in found}))}
        groups = [
            Group((name,), (name[: match.start(1)] + dense[int(match[1])] + name[match.end(1) :],))
            for name, match in found
        ]
        return groups or [Group((), (), missing=(self.pattern,))]

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        return sources

    def inverse(self) -> Operation | Reason:
        return Reason("the numbers that were left out are not known")


@dataclass(frozen=True)
class Reorder(Spelled):
    """Equal blocks of an axis in another order: gate orders, rotary halves."""

    pattern: str
    blocks: tuple[int, ...]
    axis: int = 0
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return one_to_many(names, self.pattern, [r"\g<0>"])

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        (source,) = sources
        whole = source.promise
        if len(whole.shape) <= self.axis or whole.shape[self.axis] % len(self.blocks):
            raise TensorError(f"shape {list(whole.shape)} has no {len(self.blocks)} equal blocks on axis {self.axis}")
        step = whole.shape[self.axis] // len(self.blocks)
        parts = [whole.slice(self.axis, n * step, (n + 1) * step) for n in self.blocks]
        return (source.with_promise(joined(parts, self.axis)),)

    def inverse(self) -> Operation | Reason:
        return replace(self, blocks=tuple(sorted(range(len(self.blocks)), key=self.blocks.__getitem__)))


@dataclass(frozen=True)
class Reshape(Spelled):
    """Another shape for the same elements, in which text names a number; ``old`` is what it must have been."""

    pattern: str
    shape: tuple[Any, ...]
    old: tuple[Any, ...] = ()
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True, numbers=("shape",))

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return one_to_many(names, self.pattern, [r"\g<0>"])

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        (source,) = sources
        if self.old and not fits(source.promise.shape, self.old):
            raise TensorError(f"has the shape {list(source.promise.shape)}, not {list(self.old)}")
        rest = source.promise.numel // -int(np.prod(self.shape)) if -1 in self.shape else 0
        return (source.with_promise(source.promise.reshape(tuple(rest if n == -1 else n for n in self.shape))),)


@dataclass(frozen=True)
class Untie(Spelled):
    """A name whose bytes are its own from now on."""

    pattern: str
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits(unties=True)

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return one_to_many(names, self.pattern, [r"\g<0>"])

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        (source,) = sources
        return (source.with_promise(Made((source.promise,), Copied(source.promise.dtype, source.promise.shape))),)


@dataclass(frozen=True)
class Copied:
    """A rule that gives its input, drawn whole."""

    dtype: DType
    shape: Shape
    elementwise: ClassVar[Literal[False]] = False

    def pieces(self, inputs: tuple[Promise, ...]) -> Iterator[np.ndarray[Any, Any]]:
        (source,) = inputs
        yield np.frombuffer(source.read(0, source.numel), self.dtype.numpy_dtype())


@dataclass(frozen=True)
class FoldWeightNorm(Spelled):
    """What an Apply would be: two inputs, one output of a declared shape, whose result spills."""

    drawn: list[int] = field(default_factory=list, compare=False)
    slots: Literal["follow", "drop", "refuse"] = "refuse"
    optional: bool = False
    on: ClassVar[Any] = "model"

    @property
    def traits(self) -> Traits:
        return Traits(slots=self.slots)

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return many_to_one(names, (r"(.*)\.weight_g", r"(.*)\.weight_v"), r"\1.weight")

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        gain, direction = sources
        rule = Folding(direction.promise.dtype, direction.promise.shape, self.drawn)
        return (direction.with_promise(Made((gain.promise, direction.promise), rule)),)


@dataclass(frozen=True)
class Folding:
    """``g * v / |v|``, row by row."""

    dtype: DType
    shape: Shape
    drawn: list[int] = field(compare=False)
    elementwise: ClassVar[Literal[False]] = False

    def pieces(self, inputs: tuple[Promise, ...]) -> Iterator[np.ndarray[Any, Any]]:
        self.drawn.append(1)
        gain, direction = (
            np.frombuffer(each.read(0, each.numel), each.dtype.numpy_dtype()).reshape(each.shape) for each in inputs
        )
        yield gain * direction / np.linalg.norm(direction, axis=1, keepdims=True)
