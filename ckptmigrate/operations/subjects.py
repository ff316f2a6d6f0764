"""What operations on tensors ask of what they are given: a tensor, the axes that they speak of, lengths and shapes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from ckptmigrate.errors import TensorError, UsageError
from ckptmigrate.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptmigrate.tensor import Shape
    from ckptmigrate.values import Tree

Length: TypeAlias = int | str
"""A length as it is declared: a number, or the name of one; in shapes also ``-1``, ``"*"`` and ``"*1"``."""


def tensor(source: Tree) -> Tensor:
    """Give the tensor that an operation is given; TensorError where it is none, or bound to the axes that it has."""
    if not isinstance(source, Tensor):
        raise TensorError(f"is {type(source).__name__}, expected a tensor")
    if source.quant is not None and source.quant.axis is not None:
        raise TensorError(
            f"is quantised along axis {source.quant.axis}, and its scales would not follow", hint="dequantise it first"
        )
    return source


def cuttable(source: Tree, axis: int) -> tuple[Tensor, int]:
    """Give the tensor and an axis of it, counted from the front, along which positions can be told apart; else TensorError."""
    found = tensor(source)
    at = place(found, axis)
    if at == len(found.shape) - 1:
        check_packed(found)
    return found, at


def check_packed(source: Tensor) -> None:
    """TensorError where the last axis counts several values as one, so that nothing else can become the last, nor it anything else."""
    if source.dtype.packed > 1:
        raise TensorError(
            f"is {source.dtype}, {source.dtype.packed} values in one unit of its last axis", dtype=source.dtype.name
        )


def place(source: Tensor, axis: int) -> int:
    """Give an axis counted from the front; TensorError where the tensor has none."""
    count = len(source.shape)
    if not -count <= axis < count:
        raise TensorError(f"has the shape {list(source.shape)}, and no axis {axis}")
    return axis % count


def check_lengths(what: str, lengths: Sequence[Any], *, least: int = 0, rest: bool = False) -> None:
    """Refuse, when the migrator is written, what is neither a length nor the name of one; ``rest`` allows one -1."""
    for length in lengths:
        named = isinstance(length, str) and not length.startswith("*") and bool(length)
        number = isinstance(length, int) and not isinstance(length, bool)
        if not named and not (number and (length >= least or (rest and length == -1))):
            raise UsageError(f"{what} {length!r}: expected a number from {least} or the name of one")
    if [*lengths].count(-1) > 1:
        raise UsageError(f"{what} {list(lengths)}: only one can be the rest (-1)")


def check_axis(axis: Any) -> None:
    """Refuse, when the migrator is written, what is no axis."""
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise UsageError(f"axis={axis!r}: expected a number")


def check_shape(what: str, shape: Sequence[Any], *, rest: bool) -> None:
    """Refuse, when the migrator is written, an entry that is no length, no name of one and no axis (``"*"``, ``"*1"``)."""
    lengths = [entry for entry in shape if not (isinstance(entry, str) and entry.startswith("*"))]
    check_lengths(what, lengths, rest=rest)
    for entry in shape:
        if isinstance(entry, str) and entry.startswith("*") and entry != "*" and not entry[1:].isdecimal():
            raise UsageError(f"{what} {entry!r}: an axis of the old shape is '*' at its own place, else '*0', '*1', …")


def shaped(shape: Sequence[Length], old: Shape) -> Shape:
    """Give a declared shape for a tensor of the shape ``old``: axes copied, -1 what is left; TensorError where it does not fit."""
    lengths: list[int] = []
    for index, entry in enumerate(shape):
        if isinstance(entry, int):
            lengths.append(entry)
            continue
        axis = index if entry == "*" else int(entry[1:])
        if axis >= len(old):
            raise TensorError(f"has the shape {list(old)}, and no axis {axis} to copy")
        lengths.append(old[axis])
    if -1 in lengths:
        known = prod(length for length in lengths if length != -1)
        if not known or prod(old) % known:
            raise TensorError(f"has the shape {list(old)}, which does not make {list(shape)}")
        lengths[lengths.index(-1)] = prod(old) // known
    return tuple(lengths)


def fits(shape: Shape, pattern: Sequence[Length]) -> bool:
    """Say whether a shape is of a pattern in which ``"*"`` is any length."""
    return len(shape) == len(pattern) and all(wanted in ("*", n) for n, wanted in zip(shape, pattern, strict=True))


def cut(length: int, count: int, sizes: Sequence[Length], shares: Sequence[Length]) -> list[int]:
    """Give the lengths of ``count`` parts: as ``sizes`` say, in proportion to ``shares``, else equal; TensorError where they do not fit."""
    if sizes:
        known = [size for size in sizes if isinstance(size, int)]
        rest = length - sum(size for size in known if size != -1)
        if rest < 0 or (rest and -1 not in known):
            raise TensorError(f"an axis of {length:,} is not cut into {list(sizes)}")
        return [rest if size == -1 else size for size in known]
    parts = [share for share in shares or (1,) * count if isinstance(share, int)]
    whole = sum(parts)
    if length % whole:
        raise TensorError(f"an axis of {length:,} is not cut in proportion {':'.join(map(str, parts))}")
    return [length // whole * share for share in parts]
