"""Operations of some ten lines each, a family, and checkpoints in which every element is another number."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ckptmigrate import engine
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Param, Slot
from ckptmigrate.dtypes import F32, I64
from ckptmigrate.errors import TensorError
from ckptmigrate.format import FOLLOWS, SCALAR, SHARED, Family
from ckptmigrate.operations import (
    Group,
    Operation,
    Reason,
    Traits,
    declared,
    many_to_one,
    one_to_many,
    spelled,
)
from ckptmigrate.tensor import Tensor, array, cast, fill, joined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FAMILY = Family(
    "toy",
    unpack=lambda _section, _parts, _options: None,
    pack=lambda _section, value, _checkpoint: value,
    section=lambda _parts: None,
    slots={"step": SCALAR, "exp_avg": FOLLOWS, "exp_avg_sq": FOLLOWS, "history": SHARED},
    is_buffer=lambda name, tensor: tensor.role == "buffer" or name.rpartition(".")[2] in {"mean", "count"},
)


class Spelled:
    """What every toy below shares; a real operation writes these two lines itself."""

    def as_dict(self) -> dict[str, Any]:
        return declared(self)

    def describe(self) -> str:
        return spelled(self)

    def inverse(self) -> Operation | Reason:
        return Reason("a toy")


@dataclass(frozen=True)
class Transpose(Spelled):
    pattern: str
    axes: tuple[int, ...] = (1, 0)
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return one_to_many(names, self.pattern, [r"\g<0>"])

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        (source,) = sources
        if len(source.shape) != len(self.axes):
            raise TensorError(f"has {len(source.shape)} axes, not {len(self.axes)}")
        return (source.with_promise(source.promise.transpose(self.axes)),)

    def inverse(self) -> Operation | Reason:
        return replace(self, axes=tuple(sorted(range(len(self.axes)), key=self.axes.__getitem__)))


@dataclass(frozen=True)
class Split(Spelled):
    pattern: str
    into: tuple[str, ...]
    sizes: tuple[Any, ...] = (1, 1)
    axis: int = 0
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits(numbers=("sizes",))

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return one_to_many(names, self.pattern, self.into)

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        (source,) = sources
        if not source.shape or sum(self.sizes) != source.shape[self.axis]:
            raise TensorError(f"shape {list(source.shape)} is not cut into {list(self.sizes)}")
        edges = np.cumsum([0, *self.sizes]).tolist()
        return tuple(source.with_promise(source.promise.slice(self.axis, a, b)) for a, b in itertools.pairwise(edges))


@dataclass(frozen=True)
class Concat(Spelled):
    patterns: tuple[str, ...]
    into: str
    axis: int = 0
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits()

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return many_to_one(names, self.patterns, self.into)

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        return (sources[0].with_promise(joined([s.promise for s in sources], self.axis)),)


@dataclass(frozen=True)
class Add(Spelled):
    near: str
    name: str
    shape: tuple[int, ...] = ()
    buffer: bool = False
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits()

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        found = one_to_many(names, self.near, [self.name])
        return [replace(g, sources=(), near=g.sources[0]) if g.sources else g for g in found]

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        promise = fill(0, I64 if self.buffer else F32, self.shape)
        return (Tensor(promise, "buffer" if self.buffer else "parameter"),)


@dataclass(frozen=True)
class Cast(Spelled):
    pattern: str
    optional: bool = False
    on: str = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return one_to_many(names, self.pattern, [r"\g<0>"])

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        (source,) = sources
        if isinstance(source, int):
            return (Tensor(array(np.array(source, "f4"))),)
        return (source.with_promise(cast(source.promise, F32)),)


@dataclass(frozen=True)
class Order(Spelled):
    """The names that are given in this order, at the places of any of them; all others stay where they are."""

    names: tuple[str, ...]
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        ordered = iter(self.names)
        final = tuple(next(ordered) if name in self.names else name for name in names)
        return [Group(final, final)]

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        return sources


@dataclass(frozen=True)
class Tie(Spelled):
    name: str
    to: str
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits()

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return [Group((self.to, self.name), (self.to, self.name))]

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        return (sources[0], sources[0])


@dataclass(frozen=True)
class Swap(Spelled):
    """Order of two: the names change places, with what they name."""

    one: str
    other: str
    optional: bool = False
    on: ClassVar[Any] = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return [Group((self.one, self.other), (self.other, self.one))]

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        return (sources[1], sources[0])


@dataclass(frozen=True)
class Move(Spelled):
    pattern: str
    into: str
    optional: bool = False
    on: ClassVar[Any] = "items"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def match(self, names: Mapping[str, Any]) -> list[Group]:
        return one_to_many(names, self.pattern, [self.into])

    def tensors(self, sources: tuple[Any, ...]) -> tuple[Any, ...]:
        return sources


def tensor(values: Any, role: Any = None, identity: int | None = None) -> Tensor:
    return Tensor(array(np.asarray(values)), role, identity)


def make(
    shapes: Mapping[str, tuple[int, ...]],
    groups: Sequence[Sequence[str]] = (),
    *,
    ids: bool = False,
    named: bool = True,
    stateless: Sequence[str] = (),
    step: Any = None,
) -> Checkpoint:
    """Give a model with an EMA twin and Adam over it; every element of every tensor is another number."""
    count = iter(range(1, 10**6))

    def fresh(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        size = int(np.prod(shape, dtype=int))
        return np.array([next(count) for _ in range(size)], "f4").reshape(shape)

    model = {n: tensor(fresh(s), identity=1000 + i if ids else None) for i, (n, s) in enumerate(shapes.items())}
    params: list[Param] = []
    for group, names in enumerate(groups):
        for name in names:
            slots = {
                "step": Slot(7 if step is None else step(name)),
                "exp_avg": Slot(tensor(fresh(shapes[name]))),
                "exp_avg_sq": Slot(tensor(fresh(shapes[name]))),
            }
            key = model[name].id if ids else len(params)
            params.append(
                Param(
                    name if named else None, "file" if named else None, key, group, None if name in stateless else slots
                )
            )
    optimizers = [Optimizer("adam", params, [{"lr": 0.1 * (g + 1)} for g in range(len(groups))])] if groups else []
    checkpoint = Checkpoint(
        "toy", model=model, twins={"ema": {n: tensor(fresh(s)) for n, s in shapes.items()}}, optimizers=optimizers
    )
    account(checkpoint)
    return checkpoint


def account(checkpoint: Checkpoint) -> None:
    ledger = checkpoint.ledger
    items = [f"model/{n}" for n in checkpoint.model]
    items += [f"twins/{t}/{n}" for t, members in checkpoint.twins.items() for n in members]
    for i, optimizer in enumerate(checkpoint.optimizers):
        items += [f"optimizers/{i}/{p}/{s}" for p, param in enumerate(optimizer.params) for s in param.slots or {}]
        items += [f"optimizers/{i}/groups/{g}/{k}" for g, group in enumerate(optimizer.groups) for k in group]
    for item in items:
        ledger.source(item)
        ledger.became(item, item)


def arrays(members: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    return {name: member.numpy().tolist() for name, member in members.items()}


def state(checkpoint: Checkpoint, index: int = 0) -> list[tuple[Any, ...]]:
    """Give an optimizer's entries as plain values: name, group, and per slot the number or the nested list."""
    return [
        (p.name, p.group, None if p.slots is None else {n: plain(s.value) for n, s in p.slots.items()})
        for p in checkpoint.optimizers[index].params
    ]


def plain(value: Any) -> Any:
    return value.numpy().tolist() if isinstance(value, Tensor) else value


def run(checkpoint: Checkpoint, *operations: Any, ties: Any = "keep") -> list[str]:
    return engine.apply_operations(checkpoint, operations, FAMILY, origin="toy 1.0", ties=ties)


TWO = {"a.w": (4, 3), "a.b": (4,), "b.w": (2, 3), "b.b": (2,)}
DECAY = [["a.w", "b.w"], ["a.b", "b.b"]]
