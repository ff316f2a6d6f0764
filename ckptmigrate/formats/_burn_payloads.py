"""Payloads of Burn's records: what a tensor is in a tree that was walked, whatever the encoding.

    {value: [numbers], shape: [2, 3]}                      0.7 to 0.13, and the State files before
    {bytes: bytes, shape: [2, 3], dtype: WORD}             0.14 to 0.21; WORD: see _burn_dtypes, _burn_quant

Numbers stay where they lie until they are drawn; bytes written as numbers (JSON) become a range of scratch then.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ckptmigrate.dtypes import BOOL, F32, I16, U8, DType
from ckptmigrate.errors import CorruptError, LimitError, TensorError
from ckptmigrate.files import Range
from ckptmigrate.tensor import Tensor, View, fill
from ckptmigrate.tensor.promise import spilled
from ckptmigrate.values import brief

from ._burn_dtypes import QUANTISED, Spelling, spelled
from ._burn_quant import Scheme, can_copy, held, numbers, scheme

if TYPE_CHECKING:
    from ckptmigrate.format import ReadOptions
    from ckptmigrate.limits import Limits
    from ckptmigrate.tensor import Promise, Shape


class Numbers(Protocol):
    """An array of numbers in a file, as the walks over each encoding give it."""

    @property
    def count(self) -> int:
        """How many they are."""

    @property
    def kind(self) -> Literal["float", "int", "bool", "null"]:
        """What they are: floats if one of them is; "null" if nothing of them tells."""

    @property
    def signed(self) -> bool:
        """Whether an integer among them is negative."""

    @property
    def lossy(self) -> bool:
        """Whether null stands for one of them."""

    @property
    def range(self) -> Range:
        """Where they lie."""

    @property
    def values(self) -> tuple[Any, ...] | None:
        """What they are, where they are few."""

    def promise(self, dtype: DType, shape: Shape, use: Literal["value", "bits"] = "value") -> Promise:
        """Give the tensor of exactly these elements, or of their bit patterns."""


def is_numbers(node: Any) -> bool:
    """Tell whether a node of a tree is an array of numbers."""
    return hasattr(node, "promise") and hasattr(node, "count")


@dataclass(frozen=True, slots=True)
class Precision:
    """What the numbers of the first kind of payload are."""

    floating: DType
    integer: DType | None

    def of(self, found: Numbers) -> tuple[DType, Literal["value", "bits"]]:
        """Give the dtype of an array of numbers, and what they are to it."""
        if found.kind == "bool":
            return BOOL, "value"
        if found.kind != "int":
            return self.floating, "value"
        if self.floating.itemsize == 2:
            return (self.integer or I16, "value") if found.signed else (self.floating, "bits")
        return self.integer or self.floating, "value"


def is_payload(node: Any) -> bool:
    """Tell whether a node is a tensor's payload, of either kind, and no module with fields of these names."""
    if not isinstance(node, dict):
        return False
    if node.keys() == {"value", "shape"}:
        return is_array(node["value"]) and is_array(node["shape"])
    return node.keys() == {"bytes", "shape", "dtype"} and is_array(node["bytes"]) and is_array(node["shape"])


def is_array(node: Any) -> bool:
    """Tell whether a node is numbers or bytes, or nothing where these could stand."""
    return is_numbers(node) or isinstance(node, Range) or node == []


def tensor_of(payload: dict[str, Any], precision: Precision, options: ReadOptions) -> Tensor:
    """Give the tensor of a payload of either kind, without an id."""
    shape = _shape(payload["shape"], options.limits)
    return _listed(payload["value"], shape, precision) if "value" in payload else _stored(payload, shape, options)


def _listed(value: Any, shape: Shape, precision: Precision) -> Tensor:
    count = value.count if is_numbers(value) else 0
    if count != prod(shape):
        raise CorruptError(
            f"{count:,} numbers in its list, and its shape {list(shape)} holds {prod(shape):,}",
            present=count, needed=prod(shape),
        )  # fmt: skip
    if not count:
        return Tensor(_nothing(precision.floating, shape))
    dtype, use = precision.of(value)
    return Tensor(value.promise(dtype, shape, use))


def _stored(payload: dict[str, Any], shape: Shape, options: ReadOptions) -> Tensor:
    word, data = payload["dtype"], payload["bytes"]
    quantised = isinstance(word, dict) and len(word) == 1 and QUANTISED in word
    found: Scheme | Spelling = scheme(_plain(word[QUANTISED])) if quantised else spelled(_plain(word))
    nbytes = data.nbytes if isinstance(data, Range) else data.count if is_numbers(data) else 0
    if nbytes != found.needs(shape):
        raise CorruptError(
            f"{nbytes:,} bytes, and {list(shape)} of {found.text} needs {found.needs(shape):,}",
            present=nbytes, needed=found.needs(shape),
        )  # fmt: skip
    place = data if isinstance(data, Range) else _place(data)
    if place is None:
        return Tensor(_nothing(found.dtype if isinstance(found, Spelling) else F32, shape))
    if isinstance(found, Spelling):
        return Tensor(found.promise(place, shape))
    if options.dequantize:
        return Tensor(numbers(place, found, shape))
    if can_copy(found):
        return held(place, found, shape)
    raise TensorError(
        f"is quantised in a way that today's Burn does not write: {found.text}",
        dtype=found.text, hint="--dequantize turns quantised tensors into F32",
    )  # fmt: skip


def _shape(node: Any, limits: Limits) -> Shape:
    values = () if node == [] else node.values if is_numbers(node) else None
    if values is None or not all(type(n) is int and 0 <= n < 1 << 63 for n in values):
        raise CorruptError(f"its shape is {kind_of(node)}, expected a few lengths")
    if len(values) > limits.dimensions:
        raise LimitError(f"{len(values)} axes, the limit is {limits.dimensions}", limit=limits.dimensions)
    return tuple(values)


def _plain(word: Any) -> Any:
    """Give a word for a dtype with short arrays as lists."""
    if isinstance(word, dict):
        return {name: _plain(below) for name, below in word.items()}
    if isinstance(word, list):
        return [_plain(below) for below in word]
    return list(word.values) if is_numbers(word) and word.values is not None else word


def _place(data: Any) -> Range | None:
    """Give where bytes that are written as numbers will lie, once somebody draws them."""
    if not is_numbers(data):
        return None
    look = spilled(data.promise(U8, (data.count,)))
    return look.range if isinstance(look, View) else None


def _nothing(dtype: DType, shape: Shape) -> Promise:
    return fill(bytes(dtype.itemsize), dtype, shape)


def kind_of(node: Any) -> str:
    """Say what a node is, for messages."""
    if isinstance(node, Range):
        return f"{node.nbytes:,} bytes"
    return f"an array of {node.count:,} numbers" if is_numbers(node) else brief(node)
