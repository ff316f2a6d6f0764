"""What the tests of tensors look at: random bytes in a file and in memory, any promise of them beside its numpy array, torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hypothesis import strategies as st

from ckptmigrate.dtypes import F32, DType
from ckptmigrate.files import Disk, File, Range
from ckptmigrate.tensor import (
    Tensor,
    View,
    array,
    expand,
    fill,
    joined,
    negate,
)
from ckptmigrate.tensor.promise import Promise

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

from contextlib import contextmanager

Pair = tuple[Promise, np.ndarray[Any, Any]]

MARKER, MARKED = 0xCA, 30_000


@dataclass
class Bytes:
    """Random bytes in memory and the same in a file; from ``MARKED`` on, every fifth byte is the marker."""

    data: bytes = field(repr=False)
    range: Range = field(repr=False)


@contextmanager
def bytes_in_a_file(folder: Path) -> Iterator[Bytes]:
    raw = np.random.default_rng(7).integers(0, 256, 40_000, dtype=np.uint8)
    raw[MARKED::5] = MARKER
    (folder / "bytes").write_bytes(raw.tobytes())
    with Disk() as disk:
        yield Bytes(raw.tobytes(), disk.open(folder / "bytes").range(0, raw.nbytes))


class Counted(File):
    """A file without bytes that counts what is asked of it."""

    name = "counted"

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.read = 0
        self.calls = 0

    @property
    def size(self) -> int:
        return self.nbytes

    def pread_into(self, offset: int, buffer: memoryview) -> None:
        assert 0 <= offset <= offset + len(buffer) <= self.nbytes
        self.read += len(buffer)
        self.calls += 1

    def descriptor(self) -> tuple[int, int]:
        raise NotImplementedError


def drawn(promise: Promise) -> np.ndarray[Any, Any]:
    return Tensor(promise).numpy()


def same(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


@st.composite
def views(draw: st.DrawFn, place: Bytes) -> Pair:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    kind = draw(st.sampled_from(["rows", "strided", "marked"]))
    big = draw(st.booleans())
    if kind == "marked":
        count = prod(shape)
        offset = MARKED + 1 + 5 * draw(st.integers(0, 100))
        strides = tuple(5 * s for s in np.empty(shape, "u1").strides) if count else (0,) * len(shape)
        view = View(place.range, F32, shape, strides, offset, big, MARKER)
        return view, np.ndarray(shape, ">f4" if big else "<f4", place.data, offset, strides).astype("<f4")
    offset = draw(st.integers(0, 64))
    if kind == "rows":
        strides = np.empty(shape, "f4").strides
    else:
        steps = st.sampled_from([0, 1, 4, 8, 20, 48, 100, 1200])
        strides = tuple(draw(steps) for _ in shape)
    view = View(place.range, F32, shape, strides, offset, big)
    return view, np.ndarray(shape, ">f4" if big else "<f4", place.data, offset, strides).astype("<f4")


@st.composite
def leaves(draw: st.DrawFn, place: Bytes) -> Pair:
    kind = draw(st.sampled_from(["view", "view", "view", "array", "fill"]))
    if kind == "view":
        return draw(views(place))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    if kind == "fill":
        return fill(1.5, F32, shape), np.full(shape, 1.5, "<f4")
    values = np.arange(prod(shape), dtype="<f4").reshape(shape[::-1]).transpose()
    return array(values), values


@st.composite
def promises(draw: st.DrawFn, place: Bytes, depth: int = 4) -> Pair:
    promise, values = draw(leaves(place))
    for _ in range(draw(st.integers(0, depth))):
        operation = draw(st.sampled_from(["transpose", "slice", "reshape", "join", "negate", "expand"]))
        axes = values.ndim
        if operation == "transpose":
            order = tuple(draw(st.permutations(range(axes))))
            promise, values = promise.transpose(order), values.transpose(order)
        elif operation == "slice" and axes:
            axis = draw(st.integers(0, axes - 1))
            start = draw(st.integers(0, values.shape[axis]))
            stop = draw(st.integers(start, values.shape[axis]))
            promise, values = promise.slice(axis, start, stop), values.take(range(start, stop), axis)
        elif operation == "reshape":
            shape = draw(shapes(values.size))
            promise, values = promise.reshape(shape), values.reshape(shape)
        elif operation == "join" and axes:
            axis = draw(st.integers(0, axes - 1))
            parts = [(promise, values)]
            for _ in range(draw(st.integers(1, 2))):
                stop = draw(st.integers(0, values.shape[axis]))
                parts.append((promise.slice(axis, 0, stop), values.take(range(stop), axis)))
            if values.size < 500:
                promise, values = joined([p for p, _ in parts], axis), np.concatenate([v for _, v in parts], axis)
        elif operation == "negate":
            promise, values = negate(promise), (values.view("u4") ^ 0x80000000).view("<f4") if axes else -values
        elif operation == "expand" and 1 in values.shape:
            shape = tuple(3 if n == 1 else n for n in values.shape)
            promise, values = expand(promise, shape), np.broadcast_to(values, shape)
        values = np.ascontiguousarray(values).reshape(values.shape)
    return promise, values


@st.composite
def shapes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    if size == 0:
        return draw(st.sampled_from([(0,), (2, 0), (0, 3)]))
    shape, left = [], size
    while left > 1:
        factor = draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0]))
        shape.append(factor)
        left //= factor
        if draw(st.integers(0, 5)) == 0:
            shape.append(1)
    return tuple(shape)


FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0")
INTS = ("I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64")


def torch_of(dtype: DType) -> Any:
    return getattr(torch, str(dtype.torch))


def to_torch(values: np.ndarray[Any, Any], dtype: DType) -> Any:
    return torch.frombuffer(bytearray(values.tobytes()), dtype=torch_of(dtype)).reshape(values.shape)


def to_numpy(tensor: Any, dtype: DType) -> np.ndarray[Any, Any]:
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return np.frombuffer(raw, dtype.numpy_dtype()).reshape(tuple(tensor.shape))


def samples(dtype: DType) -> np.ndarray[Any, Any]:
    """Every value of a small type; of a large one random bits, ordinary numbers, ties of the roundings, and the edges."""
    random = np.random.default_rng(5)
    if dtype.itemsize <= 2:
        return np.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype.numpy_dtype())
    bits = random.integers(0, 256, 40_000 * dtype.itemsize, np.uint8).view(dtype.numpy_dtype())
    if dtype.kind != "float":
        info = np.iinfo(dtype.numpy_dtype())
        edges = np.array([info.min, info.max, 2**24 + 1, 65_519, 65_520, 464, 465], dtype.numpy_dtype())
        return np.concatenate([bits, edges, np.arange(5000).astype(dtype.numpy_dtype())])
    ordinary = random.standard_normal(40_000) * 10.0 ** random.uniform(-9, 6, 40_000)
    halves = np.arange(65_536, dtype="u4") << 16
    ties = np.concatenate([(halves + step).view("f4") for step in (0, 0x7FFF, 0x8000, 0x8001)])
    near = [
        1 + 2**-8 + 2**-40,
        1 + 2**-11 + 2**-40,
        65_519.999999,
        65_520,
        464,
        464.1,
        2.0**-133,
        2.0**-150,
        448,
        57_344,
    ]
    with np.errstate(all="ignore"):
        parts = [bits, ordinary, ties.astype("f8"), near, [0.0, -0.0, np.inf, -np.inf, np.nan]]
        return np.concatenate([np.asarray(part).astype(dtype.numpy_dtype()) for part in parts])


def assert_same_numbers(expected: np.ndarray[Any, Any], actual: np.ndarray[Any, Any], dtype: DType) -> None:
    """Compare bits; a NaN is a NaN."""
    left, right = expected.view(f"u{dtype.itemsize}"), actual.view(f"u{dtype.itemsize}")
    differs = left != right
    if dtype.kind == "float":
        with np.errstate(all="ignore"):
            differs &= ~(np.isnan(expected.astype("f4")) & np.isnan(actual.astype("f4")))
    assert not differs.any(), (expected[differs][:5], actual[differs][:5])
