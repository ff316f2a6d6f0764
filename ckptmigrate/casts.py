"""Changes of element type that a call asks for, or that a half-precision record needs where the target has full precision.

A record that was written in half precision says so by a fact of its file: its floats become F32 and its ints I32 in the model, the
twins and the optimizers alike, as its own framework did when it loaded one. ``--dtype`` casts the model and its twins only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .dtypes import F16, F32, F64, I32, DType
from .errors import TensorError
from .tensor import Made, Tensor, cast
from .values import spell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from .checkpoint import Checkpoint
    from .tensor import Promise
    from .values import Tree

HALF = "half"  # the fact of a file
PATTERNS = "patterns"  # another: its halves are written as whole numbers, as its integers are, so that only a caller tells them apart
DOUBTS = "doubts"  # a third: {name: what its reader warned of, and --int settles}


@dataclass(frozen=True, slots=True)
class Whole:
    """Floats that are whole numbers as I32; one that is none is refused as it is drawn."""

    dtype: ClassVar[DType] = I32
    elementwise: ClassVar[Literal[True]] = True

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the one array with other elements."""
        import numpy as np  # noqa: PLC0415 - numbers are needed only when they are drawn

        (array,) = arrays
        least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        wrong = array[~((array == np.trunc(array)) & (array >= least) & (array <= most))]
        if wrong.size:
            raise TensorError(f"--int: {wrong[0]} is no whole number that I32 holds", dtype=I32.name)
        return array.astype(np.int32)


@dataclass(frozen=True, slots=True)
class Patterns:
    """The whole numbers that were taken for bit patterns of halves, as I32. One that only a half has is refused as it is drawn."""

    dtype: ClassVar[DType] = I32
    elementwise: ClassVar[Literal[True]] = True

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the numbers of the one array of halves."""
        import numpy as np  # noqa: PLC0415 - numbers are needed only when they are drawn

        (array,) = arrays
        numbers = array.view(np.uint16)
        wrong = numbers[
            numbers > np.iinfo(np.int16).max
        ]  # a negative integer is written with its sign, a negative half is not
        if wrong.size:
            raise TensorError(f"--int: {wrong[0]} is the bit pattern of a half, no I16", dtype=I32.name)
        return numbers.astype(np.int32)


def cast_model(checkpoint: Checkpoint, dtype: DType) -> None:
    """Cast floating tensors of the model and its twins; integers, bools, RNG and optimizer state stay as they are."""
    for item, members in _models(checkpoint):
        for name, tensor in members.items():
            if tensor.dtype.kind == "float" and tensor.dtype != dtype:
                members[name] = replace(tensor, promise=cast(tensor.promise, dtype))
                checkpoint.ledger.derive(f"{item}/{name}", f"cast from {tensor.dtype} to {dtype}")


def widen(checkpoint: Checkpoint, *, model: bool = True) -> None:
    """Raise what came from a half-precision record. ``model`` False: another cast decides about the model's floats."""
    for item, members in _models(checkpoint):
        if _has(checkpoint, item.replace("/", ".", 1), HALF):
            for name, tensor in members.items():
                if model or tensor.dtype.kind != "float":
                    members[name] = _wide(tensor, f"{item}/{name}", checkpoint)
    for index, optimizer in enumerate(checkpoint.optimizers):
        if not _has(checkpoint, f"optimizers.{index}", HALF):
            continue
        for position, param in enumerate(optimizer.params):
            for slot, held in (param.slots or {}).items():
                item = f"optimizers/{index}/{position}/{slot}"
                held.value = _wide_tree(held.value, item, (), checkpoint)
        optimizer.shared = _wide_tree(optimizer.shared, f"optimizers/{index}/shared", (), checkpoint)


def hint(checkpoint: Checkpoint) -> None:
    """Say which floats of the model stay wider or narrower than F32, and how they would not."""
    counts: dict[str, int] = {}
    for tensor in checkpoint.model.values():
        if tensor.dtype.kind == "float" and (tensor.dtype == F64 or tensor.dtype.itemsize == F32.itemsize // 2):
            counts[tensor.dtype.name] = counts.get(tensor.dtype.name, 0) + 1
    for name, count in counts.items():
        some = "1 tensor of the model is" if count == 1 else f"{count} tensors of the model are"
        checkpoint.ledger.notes.append(f"{some} {name}, kept as they are: --dtype f32 casts them")


def to_ints(checkpoint: Checkpoint, patterns: Sequence[str]) -> list[str]:
    """Turn tensors of the model that a caller calls integers, and that were written as floats, into I32; give what cannot be.

    In a half-precision record that writes both as whole numbers, those that are read as bit patterns are the integers; and one that a
    negative number proved an integer becomes I32 too, so that the same call gives the same dtype whatever the values are.
    """
    problems: list[str] = []
    patterned = _has(checkpoint, "model", PATTERNS)
    for name, tensor in checkpoint.model.items():
        if not any(re.fullmatch(pattern, name) for pattern in patterns):
            continue
        if tensor.dtype.kind == "int":
            if patterned and tensor.dtype != I32:
                _settle(checkpoint, name, tensor, cast(tensor.promise, I32))
        elif patterned and tensor.dtype == F16:
            _settle(checkpoint, name, tensor, Made((tensor.promise,), Patterns()))
        elif not patterned and tensor.dtype in {F32, F64}:
            _settle(checkpoint, name, tensor, Made((tensor.promise,), Whole()))
        else:
            stored = "numbers of I16, beside floats of F16" if patterned else "F32 or F64"
            problems.append(f"--int: {name} is {tensor.dtype}, and ints were stored as {stored}")
    return problems


def _settle(checkpoint: Checkpoint, name: str, tensor: Tensor, promise: Promise) -> None:
    """Put an integer tensor in the place of what its reader took it for, and take back what it warned of."""
    item, ledger = f"model/{name}", checkpoint.ledger
    checkpoint.model[name] = replace(tensor, promise=promise)
    ledger.derive(item, f"{tensor.dtype} to I32: --int says that it holds integers")
    doubts = {
        name: text
        for said in checkpoint.origin.facts.values()
        if isinstance(said, dict)
        for name, text in said.get(DOUBTS, {}).items()
    }
    if doubts:
        settled = {doubts.get(origin.partition("/")[2]) for origin in ledger.came_from().get(item, ())}
        ledger.warnings = [text for text in ledger.warnings if text not in settled]


def _models(checkpoint: Checkpoint) -> Iterator[tuple[str, dict[str, Tensor]]]:
    yield "model", checkpoint.model
    yield from ((f"twins/{name}", twin) for name, twin in checkpoint.twins.items())


def _has(checkpoint: Checkpoint, section: str, fact: str) -> bool:
    """Say whether the file that a section came from has a fact."""
    place = checkpoint.origin.places.get(section)
    facts = {} if place is None else checkpoint.origin.facts.get(place.file or "file", {})
    return bool(facts.get(fact))


def _wide(tensor: Tensor, item: str, checkpoint: Checkpoint) -> Tensor:
    dtype = tensor.dtype
    narrow = dtype.itemsize == F32.itemsize // 2
    wanted = F32 if dtype.kind == "float" and narrow else I32 if dtype.kind == "int" and dtype != I32 else dtype
    if wanted == dtype:
        return tensor
    checkpoint.ledger.derive(item, f"raised from {dtype} to {wanted}: the record is of half precision")
    return replace(tensor, promise=cast(tensor.promise, wanted))


def _wide_tree(tree: Tree, item: str, path: tuple[Any, ...], checkpoint: Checkpoint) -> Tree:
    """Give a slot's value, or state of no parameter, with its tensors raised."""
    if isinstance(tree, Tensor):
        return _wide(tree, f"{item}/{spell(path)}" if path else item, checkpoint)
    if isinstance(tree, dict):
        return type(tree)((key, _wide_tree(value, item, (*path, key), checkpoint)) for key, value in tree.items())
    if isinstance(tree, list):
        return [_wide_tree(value, item, (*path, at), checkpoint) for at, value in enumerate(tree)]
    return tree
