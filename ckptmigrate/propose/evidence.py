"""What the elements of tensors prove: one pass over each, in windows, whatever its size.

    digest   xxh3-128 of the elements in order            the same bytes, in any shape
    bag      sum of the elements' hashes                  the same elements, in any order
    lines    the bag of every slice along every axis      which rows of one tensor are which rows or columns of others

A bag is blind to order, so that a transpose, a permuted axis, a block that was moved and a split are all found by equal numbers;
sums of lines are the lines of what is joined. Bags suggest; what is proven is decided by applying the proposal and comparing.
Constant and empty tensors, and what a checkpoint holds twice, prove nothing; tied names are one tensor.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ckptmigrate.tensor import cast
from ckptmigrate.verify import Fingerprinting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np

    from ckptmigrate.dtypes import DType
    from ckptmigrate.tensor import Promise, Tensor

    Array = np.ndarray[Any, Any]

WINDOW = 1 << 18  # elements: their hashes stay in the processor's cache
SHORT = 16
NUMBERS = ("float", "int")  # kinds within which a cast is looked for


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What one pass over a tensor leaves: some hundred bytes, and 8 for each position of each axis.

    ``lines`` is empty for elements that are no whole bytes of a machine's word; ``constant``: all elements are one, or there are none.
    """

    dtype: str
    shape: tuple[int, ...]
    digest: bytes
    bag: int
    lines: tuple[Array, ...]
    constant: bool


@dataclass(frozen=True, slots=True)
class Holding:
    """One tensor of a checkpoint, the names that are tied to it, and its trace: as it is, and as other dtypes."""

    names: tuple[str, ...]
    tensor: Tensor
    own: Trace
    casts: Mapping[str, Trace]
    evident: bool  # neither constant nor held twice

    def as_dtype(self, dtype: str) -> Trace | None:
        """Give the trace as the other checkpoint would hold it."""
        return self.own if self.own.dtype == dtype else self.casts.get(dtype)


def holdings(tensors: Mapping[str, Tensor], dtypes: Iterable[DType] = ()) -> list[Holding]:
    """Give every tensor once, in the order of the names, traced as it is and as each of the dtypes that it could be cast to."""
    tied: dict[Promise, list[str]] = {}
    alone = []
    for name, tensor in tensors.items():
        if tensor.nbytes:
            tied.setdefault(tensor.promise, []).append(name)
        else:
            alone.append(name)  # empty ones are equal, and never one
    wanted = sorted(set(dtypes), key=str)
    found = []
    for names in (*tied.values(), *([name] for name in alone)):
        tensor = tensors[names[0]]
        others = [d for d in wanted if d != tensor.dtype and d.kind == tensor.dtype.kind and d.kind in NUMBERS]
        own = trace(tensor.promise)
        casts = {} if own.constant else {d.name: trace(cast(tensor.promise, d)) for d in others}
        found.append((tuple(names), tensor, own, casts))
    seen: dict[tuple[str, bytes], int] = {}
    for _, _, own, _ in found:
        seen[own.dtype, own.digest] = seen.get((own.dtype, own.digest), 0) + 1
    order = {name: number for number, name in enumerate(tensors)}
    made = [Holding(n, t, o, c, not o.constant and seen[o.dtype, o.digest] == 1) for n, t, o, c in found]
    return sorted(made, key=lambda holding: order[holding.names[0]])


def unread(tensors: Mapping[str, Tensor]) -> list[Holding]:
    """Give every tensor without drawing it: shapes and ties, and nothing that elements could prove."""
    tied: dict[Promise, list[str]] = {}
    for name, tensor in tensors.items():
        tied.setdefault(tensor.promise, []).append(name)
    return [
        Holding(
            tuple(names),
            tensors[names[0]],
            Trace(promise.dtype.name, promise.shape, b"", 0, (), constant=True),
            {},
            evident=False,
        )
        for promise, names in tied.items()
    ]


def trace(promise: Promise) -> Trace:
    """Draw a tensor once and give what its elements leave."""
    import numpy as np  # noqa: PLC0415 - elements are looked at

    shape, whole = promise.shape, Fingerprinting(promise.itemsize)
    words = promise.itemsize in {1, 2, 4, 8, 16}
    lines = tuple(np.zeros(length, np.uint64) for length in shape)
    bag = np.zeros(1, np.uint64)
    for corner, box, window in _boxes(promise):
        whole.add(window)
        if words:
            _add(bag, lines, corner, _hashes(np.frombuffer(window, np.uint8), promise.itemsize).reshape(box))
    found = whole.done()
    return Trace(promise.dtype.name, shape, found.value, int(bag[0]), lines if words else (), found.constant)


def _boxes(promise: Promise) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], memoryview]]:
    """Give windows of whole lines, front to back: where each begins, its shape, its bytes."""
    shape = promise.shape
    if not promise.numel:
        return
    if not shape:
        yield (), (), promise.read(0, 1)
        return
    most = max(WINDOW, promise.window)
    axis = next(a for a in range(len(shape)) if prod(shape[a + 1 :]) <= most)
    inner = prod(shape[axis + 1 :])
    step = max(1, most // inner)
    for outer in range(prod(shape[:axis])):
        corner, rest = [], outer
        for length in reversed(shape[:axis]):
            corner.append(rest % length)
            rest //= length
        base = outer * shape[axis]
        for at in range(0, shape[axis], step):
            stop = min(at + step, shape[axis])
            box = (*(1,) * axis, stop - at, *shape[axis + 1 :])
            yield (*reversed(corner), at), box, promise.read((base + at) * inner, (base + stop) * inner)


def _add(bag: Array, lines: tuple[Array, ...], corner: tuple[int, ...], hashes: Array) -> None:
    """Add a box of hashes to the bag and to each position of each axis that it covers, the last axis first; sums wrap."""
    left = hashes
    for axis in reversed(range(hashes.ndim)):
        length = hashes.shape[axis]
        table = left.reshape(-1, length)
        at = corner[axis] if axis < len(corner) else 0
        if length <= SHORT:  # numpy sums a short last axis ten times as slowly
            columns = [table[:, i] for i in range(length)]
            lines[axis][at : at + length] += [column.sum() for column in columns]
            left = functools.reduce(operator.add, columns)
        else:
            lines[axis][at : at + length] += table.sum(0)
            left = table.sum(1)
    bag += left.sum()


def _hashes(raw: Array, itemsize: int) -> Array:
    """Give a 64-bit hash of each element."""
    import numpy as np  # noqa: PLC0415 - called with an array

    if itemsize <= 2:
        out: Array = _table(itemsize)[raw.view(f"<u{itemsize}")]
        return out
    if itemsize == 16:
        halves = raw.view("<u8").reshape(-1, 2)
        return _mixed(halves[:, 0] + _mixed(halves[:, 1].copy()))
    words = raw.view(f"<u{itemsize}")
    out = np.empty(len(words), np.uint64)
    for at in range(0, len(words), WINDOW):
        out[at : at + WINDOW] = _mixed(words[at : at + WINDOW].astype(np.uint64))
    return out


@functools.cache
def _table(itemsize: int) -> Array:
    import numpy as np  # noqa: PLC0415 - same

    return _mixed(np.arange(1 << 8 * itemsize, dtype=np.uint64))


def _mixed(words: Array) -> Array:
    """Mix the bits of 64-bit words, in place: sums of the outcome tell multisets apart."""
    import numpy as np  # noqa: PLC0415 - same

    words += np.uint64(0x9E3779B97F4A7C15)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(32)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(29)
    return words
