"""Tensors as promises: a dtype, a shape, and bytes that are drawn only when they are written.

    View    a strided look into a range of a file: every tensor that a file holds
    Joined  parts side by side along an axis: concatenations, shards
    Made    a rule over inputs: casts, fills, arrays in memory

All three are frozen, hashable values with the same face (Promise), closed under transpose, reshape and slice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from .dtypes import DType
    from .files import Disk, Range

Shape = tuple[int, ...]


class PromiseFace(Protocol):
    """What every promise answers; elements are counted in row-major order of ``shape``."""

    dtype: DType
    shape: Shape

    @property
    def numel(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def window(self) -> int: ...  # elements that are best read at once

    def sources(self) -> Iterator[Range]: ...
    def plain(self) -> Range | None: ...  # the range that holds exactly these bytes, row-major, little-endian, or None
    def read(self, start: int, stop: int) -> memoryview: ...  # elements [start, stop), row-major, little-endian
    def transpose(self, axes: tuple[int, ...]) -> Promise: ...
    def reshape(self, shape: Shape) -> Promise: ...
    def slice(self, axis: int, start: int, stop: int) -> Promise: ...


@dataclass(frozen=True, slots=True)
class View:
    """A strided look into a range; ``strides`` and ``offset`` in bytes, strides normalised so that equal looks are equal values."""

    range: Range
    dtype: DType
    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0
    big_endian: bool = False
    marker: int | None = None  # the byte that must stand before each element (msgpack's float markers)

    @classmethod
    def rows(cls, range: Range, dtype: DType, shape: Shape, *, big_endian: bool = False) -> View: ...  # row-major from the start


@dataclass(frozen=True, slots=True)
class Joined:
    parts: tuple[Promise, ...]
    axis: int


@dataclass(frozen=True, slots=True)
class Made:
    inputs: tuple[Promise, ...]
    rule: Rule


class Rule(Protocol):
    """How a Made comes from its inputs. ``elementwise``: output element i depends on element i of each input only."""

    elementwise: bool

    def dtype(self, inputs: tuple[Promise, ...]) -> DType: ...
    def shape(self, inputs: tuple[Promise, ...]) -> Shape: ...
    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]: ...


Promise = View | Joined | Made


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What turns a quantised tensor's integers into numbers: value = scale * (q - zero_point), per tensor or along an axis."""

    scheme: str
    scale: Any  # float, or a Tensor of one value per channel
    zero_point: Any
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A promise and what the file says of it: parameter or buffer, and the id that optimizer state refers to it by."""

    promise: Promise
    role: Literal["parameter", "buffer"] | None = None
    id: int | str | None = None  # text as the file has it, until gather asks FAMILY.identify
    quant: Quantisation | None = None
