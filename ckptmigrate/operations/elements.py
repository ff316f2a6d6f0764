"""Operations on elements: Add makes new ones, Cast gives them another dtype."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ckptmigrate.dtypes import BY_NAME
from ckptmigrate.errors import TensorError, UsageError
from ckptmigrate.tensor import Tensor, cast
from ckptmigrate.tensor import fill as filled
from ckptmigrate.values import Scalar

from .contract import Group, On, Reason, Slots, Traits
from .names import Drop
from .patterns import check_patterns, check_place, literal, matches, several, stands_beside
from .reversal import turned
from .spelling import declared, spelled
from .subjects import Length, check_shape, shaped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.dtypes import DType
    from ckptmigrate.values import Tree

NUMBERS = ("int", "uint", "float", "bool")  # what a number that is no tensor is called, as the mark Dtype calls it


@dataclass(frozen=True, slots=True)
class Add:
    r"""Add what was not there: one name, or one for each name that ``near`` matches, which it then stands behind.

        Add(r"\1.num_batches_tracked", near=r"(.*)\.running_mean", fill=0, shape=[], dtype="I64", role="buffer", lacking=True)
        Add(r"\1.bias", near=r"(.*)\.weight", shape=["*"])

    ``shape`` and ``dtype`` are those of ``near`` where they are not given; in a shape ``"*"`` is its axis at that place, ``"*1"`` its
    axis 1, text the name of a number. ``lacking``: names that are there already stay, and are counted. An added parameter joins
    its neighbour's group without state. On values, and beside a slot that is no tensor, ``fill`` itself is what is added.
    """

    into: str
    near: str | None = None
    fill: Any = 0
    shape: Sequence[Length] | None = None
    dtype: str | None = None
    role: Literal["parameter", "buffer"] = "parameter"
    lacking: bool = False
    optional: bool = False
    on: On = "model"
    traits: ClassVar[Traits] = Traits(numbers=("shape",))

    def __post_init__(self) -> None:
        check_place(self.on)
        if self.near is not None:
            check_patterns((self.near, self.into))
        if self.role not in {"parameter", "buffer"}:
            raise UsageError(f"role={self.role!r}: expected parameter or buffer")
        if self.dtype is not None:
            check_dtype(self.dtype)
            check_fill(self.fill, BY_NAME[self.dtype])
        if self.shape is not None:
            check_shape("shape", self.shape, rest=False)
            object.__setattr__(self, "shape", tuple(self.shape))
        if self.near is None and self.on == "model":
            if self.shape is None or self.dtype is None:
                raise UsageError(f"Add of {self.into!r}: no near= gives it shape and dtype")
            if any(str(entry).startswith("*") for entry in self.shape):
                raise UsageError(f"Add of {self.into!r}: no near= has an axis to copy")

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group without sources an added name, and with ``lacking`` one of those that are there already."""
        found: dict[str, str | None] = {}  # of several neighbours of one name the first counts
        if self.near is None:
            found[self.into] = None
        else:
            for name, _, match in matches(names, (self.near,)):
                found.setdefault(match.expand(self.into), name)
        if not found:
            return [Group((), (), missing=(str(self.near),))]
        standing = tuple(target for target in found if self.lacking and target in names)
        groups = [
            Group((), (target,), near=near) for target, near in found.items() if not (self.lacking and target in names)
        ]
        return groups + ([Group((), (), standing=standing)] if standing else [])

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give what is added, from its neighbour's shape and dtype where its own are not declared."""
        near = sources[0] if sources else None
        like = near if isinstance(near, Tensor) else None
        if self.dtype is None and (self.on in {"values", "items"} or like is None):
            if self.on == "model":
                raise TensorError("no neighbour gives it shape and dtype")
            return (deepcopy(self.fill),)
        dtype = like.dtype if self.dtype is None and like is not None else BY_NAME[str(self.dtype)]
        if self.shape is None:
            shape = like.shape if like is not None else ()
        else:
            shape = shaped(self.shape, like.shape if like is not None else ())
        return (Tensor(filled(self.fill, dtype, shape), self.role if self.on == "model" else None),)

    def inverse(self) -> Drop | Reason:
        """Drop what was added, where its name alone tells it."""
        if self.lacking:
            return Reason("which of the names were there already is not known")
        if self.near is None:
            pattern: str | None = literal_pattern(self.into)
        else:
            way = turned(self.near, self.into)
            pattern = None if way is None else way[0]
        if pattern is None:
            return Reason(f"the names that {self.into!r} gives cannot be told from others")
        return Drop(pattern, "it was added, and was not there before", optional=self.optional, on=self.on)

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Cast:
    r"""Give elements another dtype, as torch's ``.to()`` does; slots that follow their parameter are cast with it.

        Cast(r"norm\..*", "F32", old="BF16")
        Cast("step", "F32", old="int", on="slots")

    On slots and values a number that is no tensor is an ``int``, ``uint``, ``float`` or ``bool``, and may become a tensor of one
    element or come out of one. ``old``: what it must have been; only with it there is a way back (which cannot restore digits
    that a narrower dtype lost); what is something else is a problem, and left alone where the cast is ``optional``.
    ``slots="keep"``: moments keep their dtype. ``where``: take only names for which the name that this template (or each of several) expands
    to is there too; beside a slot stand the hyperparameters of its parameter's group as well: ``group/weight_decay``.
    """

    pattern: str
    dtype: str
    old: str | None = None
    slots: Slots = "follow"
    optional: bool = False
    on: On = "model"
    where: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_patterns((self.pattern, None), *((self.pattern, template) for template in several(self.where or ())))
        check_place(self.on)
        for dtype in (self.dtype, *([self.old] if self.old is not None else [])):
            if self.on == "model" or dtype not in NUMBERS:
                check_dtype(dtype)
        if self.slots not in {"follow", "keep"}:
            raise UsageError(f"slots={self.slots!r}: expected follow or keep")

    @property
    def traits(self) -> Traits:
        """Give what the engine must know."""
        return Traits(keeps_id=True, slots=self.slots)

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a name."""
        taken = [
            name
            for name, _, found in matches(names, (self.pattern,))
            if stands_beside(found, self.where, names)
            and (not self.optional or self.old is None or _dtype_of(names[name]) == self.old)
        ]
        return [Group((name,), (name,)) for name in taken] or [Group((), (), missing=(self.pattern,))]

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the tensor cast as it is drawn, or the number made a tensor, or the tensor of one element made a number."""
        (source,) = sources
        found = _dtype_of(source)
        if self.old is not None and found != self.old:
            raise TensorError(f"is {found}, expected {self.old}")
        if found == self.dtype:
            return sources
        if self.dtype not in NUMBERS:
            wanted = BY_NAME[self.dtype]
            if isinstance(source, Tensor):
                return (source.with_promise(cast(source.promise, wanted)),)
            number = _number(source)
            check_fill(number, wanted)
            return (Tensor(filled(number, wanted, ())),)
        return (_as_number(_number(source), self.dtype),)

    def inverse(self) -> Cast | Reason:
        """Cast to ``old``."""
        if self.old is None:
            return Reason("no old= says what the dtype was")
        return replace(self, dtype=self.old, old=self.dtype)

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


def check_dtype(dtype: Any) -> None:
    """Refuse, when the migrator is written, what is no dtype that numbers can be made of."""
    known = BY_NAME.get(dtype) if isinstance(dtype, str) else None
    if known is None or known.kind in {"raw", "quantised"}:
        numbers = ", ".join(name for name, each in BY_NAME.items() if each.kind not in {"raw", "quantised"})
        raise UsageError(f"dtype {dtype!r}: expected one of {numbers}")


def check_fill(value: Any, dtype: DType) -> None:
    """Refuse a number that a dtype does not hold, before anything is drawn."""
    bits = 8 * dtype.itemsize
    low, high = {"int": (-(2 ** (bits - 1)), 2 ** (bits - 1)), "uint": (0, 2**bits), "bool": (0, 2)}.get(
        dtype.kind, (0, 0)
    )
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    number = isinstance(value, int | float) or (dtype.kind == "complex" and isinstance(value, complex))
    if not number or (high and not (whole and low <= value < high)):
        raise UsageError(f"{value!r} is no {dtype}")


def literal_pattern(text: str) -> str:
    """Give the pattern that matches one text."""
    pattern = "".join(char if char.isalnum() or char in "_-/" else f"\\{char}" for char in text)
    assert literal(pattern) == text
    return pattern


def _dtype_of(value: Tree) -> str:
    if isinstance(value, Tensor):
        return value.dtype.name
    return value.kind if isinstance(value, Scalar) else type(value).__name__


def _number(value: Tree) -> Any:
    """Give the number that a value is; that of a tensor is drawn."""
    if isinstance(value, Scalar):
        return value.value
    if isinstance(value, bool | int | float):
        return value
    if not isinstance(value, Tensor) or value.shape:
        said = f"has the shape {list(value.shape)}" if isinstance(value, Tensor) else f"is {type(value).__name__}"
        raise TensorError(f"{said}, expected one number")
    return value.numpy().item()


def _as_number(number: Any, kind: str) -> Tree:
    if kind == "float":
        return float(number)
    if not isfinite(number) or number != int(number):
        raise TensorError(f"{number!r} is no {kind}")
    if (kind == "uint" and number < 0) or (kind == "bool" and number not in {0, 1}):
        raise TensorError(f"{number!r} is no {kind}")
    if kind == "uint":
        return Scalar("uint", int(number))
    return bool(number) if kind == "bool" else int(number)
