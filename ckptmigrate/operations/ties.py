"""Operations on what several names share: Tie makes two names one tensor, Untie gives one bytes of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ckptmigrate.errors import TensorError
from ckptmigrate.tensor import Joined, Made, Tensor, View
from ckptmigrate.tensor.rules import Array

from .contract import Group, On, Reason, Traits
from .names import Drop
from .patterns import check_patterns, in_place, matches
from .reversal import turned
from .spelling import declared, spelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from ckptmigrate.dtypes import DType
    from ckptmigrate.tensor import Promise
    from ckptmigrate.values import Tree


@dataclass(frozen=True, slots=True)
class Tie:
    r"""Let a second name have the bytes of the first: one tensor from now on, one entry of the optimizer.

        Tie(r"embed\.weight", "head.weight")
        Tie(r"(.*)embed\.weight", r"\1head.weight", adds=True)       # files that left the second name out

    What the second name held is dropped, and must have had that shape and dtype. ``adds``: it was not there.
    """

    pattern: str
    into: str
    adds: bool = False
    optional: bool = False
    on: ClassVar[On] = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def __post_init__(self) -> None:
        check_patterns((self.pattern, self.into))

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a first name."""
        groups = []
        for name, _, found in matches(names, (self.pattern,)):
            second = found.expand(self.into)
            missing = () if self.adds or second in names else (second,)
            sources = (name,) if self.adds or missing or second == name else (name, second)
            groups.append(Group(sources, (name, second), stays=True, missing=missing))
        return groups or [Group((), (), missing=(self.pattern,))]

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the first tensor twice."""
        first = sources[0]
        if isinstance(first, Tensor) and not is_look(first.promise):
            raise TensorError("has no bytes that two names could share: it was added, or is empty")
        for second in sources[1:]:
            if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
                raise TensorError("only tensors can be tied")
            if (first.shape, first.dtype) != (second.shape, second.dtype):
                raise TensorError(
                    f"are {first.dtype} {list(first.shape)} and {second.dtype} {list(second.shape)}, and cannot be one"
                )
        return (first, first)

    def inverse(self) -> Untie | Drop | Reason:
        """Drop the second name where it was added, else give it bytes of its own: those that it shares."""
        way = turned(self.pattern, self.into)
        if way is None:
            return Reason(f"{self.into!r} does not tell what {self.pattern!r} matched")
        if self.adds:
            return Drop(way[0], "the second name of a tie was added, and was not there before", optional=self.optional)
        return Untie(*way, optional=self.optional)

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Untie:
    r"""Give a name bytes of its own, equal to those that it shared: its own entry of the optimizer, without state.

        Untie(r"head\.weight", of="embed.weight")

    ``of``: the name that it was tied to, which the way back needs.
    """

    pattern: str
    of: str | None = None
    optional: bool = False
    on: ClassVar[On] = "model"
    traits: ClassVar[Traits] = Traits(unties=True)

    def __post_init__(self) -> None:
        check_patterns((self.pattern, self.of))

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a name."""
        return in_place(names, self.pattern)

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the tensor as a copy."""
        (source,) = sources
        if not isinstance(source, Tensor):
            raise TensorError(f"is {type(source).__name__}, expected a tensor")
        return (source.with_promise(Made((source.promise,), Copied(source.dtype))),)

    def inverse(self) -> Tie | Reason:
        """Tie it again."""
        way = None if self.of is None else turned(self.pattern, self.of)
        if way is None:
            return Reason("no of= says which name it was tied to")
        return Tie(*way, optional=self.optional)

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True, eq=False)
class Copied:
    """A rule that gives its input as it is. Every one is another: two copies of one tensor are two tensors."""

    dtype: DType
    elementwise: ClassVar[Literal[True]] = True

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the one array."""
        return arrays[0]


def is_look(promise: Promise) -> bool:
    """Say whether a promise looks at bytes of a file or of memory, so that an equal one is tied; two fills are not."""
    if not promise.numel:
        return False
    if isinstance(promise, View):
        return True
    if isinstance(promise, Joined):
        return any(map(is_look, promise.parts))
    return isinstance(promise.rule, Array) or any(map(is_look, promise.inputs))
