"""Trees of every kind of value, drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ckptmigrate.dtypes import F32
from ckptmigrate.files import File, Range
from ckptmigrate.tensor import Quantisation, Tensor, View
from ckptmigrate.values import Inert, Known, Ordered, Scalar


class Zeros(File):
    """A file of zeros, which stands where no byte matters."""

    name = "zeros"

    @property
    def size(self) -> int:
        return 1 << 20

    def pread_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = bytes(len(buffer))

    def descriptor(self) -> tuple[int, int]:
        raise NotImplementedError


ZEROS = Zeros()


def tensor(offset: int = 0, shape: tuple[int, ...] = (2,), **said: Any) -> Tensor:
    nbytes = 4 * math.prod(shape)
    strides = tuple(4 * math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return Tensor(View(Range(ZEROS, offset, nbytes), F32, shape, strides), **said)


TEXTS = st.text(max_size=6) | st.sampled_from(
    ["@", "@.x", "@ordered", "@tuple", "\ud83d\ude00", "\udc00", "", "a/b", "~1"]
)
INTEGERS = st.integers() | st.sampled_from([1 << 53, -(1 << 53), (1 << 53) + 1, 1 << 4000])
LEAVES = st.none() | st.booleans() | INTEGERS | st.floats() | TEXTS | st.binary(max_size=8)
TENSORS = st.builds(
    tensor,
    st.sampled_from([0, 4, 8]),
    role=st.sampled_from([None, "parameter", "buffer"]),
    id=st.none() | INTEGERS | TEXTS,
)
SCALARS = (
    st.builds(Scalar, st.sampled_from(["uint", "int"]), INTEGERS)
    | st.builds(Scalar, st.just("float"), st.floats())
    | st.builds(Scalar, st.just("bool"), st.booleans())
)
NAMES = st.builds(lambda path: Inert("name", path), TEXTS)
FLAT_KEYS = LEAVES | st.tuples(LEAVES, st.tuples(LEAVES))


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> Any:
    """Draw a tree of every kind of node; recursion by hand, as the repr of a recursive strategy of this size takes seconds."""

    def below(most: int = 3) -> list[Any]:
        return [draw(trees(depth - 1)) for _ in range(draw(st.integers(0, most)))]

    def dictionary() -> dict[Any, Any]:
        keys = draw(st.lists(FLAT_KEYS | NAMES, max_size=3)) + [
            Known("a.b", tuple(below(1))) for _ in range(draw(st.integers(0, 1)))
        ]
        keys = [key for key in keys if key == key]  # noqa: PLR0124 - a NaN within a tuple is a key of its own each time
        return {key: draw(trees(depth - 1)) for key in keys}

    kind = draw(st.integers(0, 9)) if depth else 0
    match kind:
        case 1:
            return draw(TENSORS)
        case 2:
            return draw(SCALARS | NAMES)
        case 3:
            return below()
        case 4:
            return tuple(below())
        case 5:
            return Known(draw(TEXTS), draw(st.sampled_from([None, tuple(below(2))])))
        case 6:
            return quantised(draw(TENSORS), draw(trees(depth - 1)))
        case 7:
            return ordered(dictionary(), {draw(TEXTS): node for node in below(2)})
        case 8:
            return dictionary()
        case 9:
            return {str(index): node for index, node in enumerate(below())}
        case _:
            return draw(LEAVES)


def ordered(items: dict[Any, Any], attributes: dict[str, Any]) -> Ordered:
    made = Ordered(items)
    made.attributes.update(attributes)
    return made


def quantised(plain: Tensor, scale: Any) -> Tensor:
    return replace(plain, quant=Quantisation("per_channel", scale, 3, 0))
