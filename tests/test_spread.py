"""How far two tensors lie apart: against numpy, and where floats alone would not tell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.dtypes import BY_NAME, F4
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.verify import spread

NUMBERS = ["F64", "F32", "F16", "BF16", "F8_E4M3", "I64", "U64", "I32", "I8", "U8", "BOOL", "C64"]


@given(st.data())
def test_the_spread_is_what_numpy_says_of_the_two_arrays(data: st.DataObject) -> None:
    dtype = BY_NAME[data.draw(st.sampled_from(NUMBERS))]
    shape = tuple(data.draw(st.lists(st.integers(1, 4), max_size=3)))
    size = math.prod(shape) * dtype.itemsize
    one, other = (bytearray(data.draw(st.binary(min_size=size, max_size=size))) for _ in range(2))
    for at in data.draw(st.sets(st.integers(0, math.prod(shape) - 1))):
        other[at * dtype.itemsize : (at + 1) * dtype.itemsize] = one[at * dtype.itemsize : (at + 1) * dtype.itemsize]
    if dtype.name == "BOOL":
        one, other = (bytearray(byte & 1 for byte in raw) for raw in (one, other))
    found = spread(*(Tensor(array(bytes(raw), dtype, shape)) for raw in (one, other)))

    wide: Any = complex if dtype.kind == "complex" else float if dtype.kind == "float" else int
    a, b = ([wide(x) for x in np.frombuffer(raw, dtype.numpy_dtype())] for raw in (one, other))
    apart = [
        i for i in range(len(a))
        if one[i * dtype.itemsize : (i + 1) * dtype.itemsize] != other[i * dtype.itemsize : (i + 1) * dtype.itemsize]
    ]  # fmt: skip
    if not apart:
        assert found is None
        return
    assert found is not None
    assert (found.differ, found.elements) == (len(apart), len(a))
    missing_a, missing_b = ({i for i in apart if a_or_b[i] != a_or_b[i]} for a_or_b in (a, b))
    assert (found.nan_a, found.nan_b) == (len(missing_a - missing_b), len(missing_b - missing_a))
    known = [i for i in apart if i not in missing_a | missing_b]
    gaps = [0.0 if a[i] == b[i] else _gap(a[i], b[i]) for i in known]
    assert found.max_abs == pytest.approx(max(gaps, default=0.0), rel=1e-12)
    if known:
        assert found.at is not None
        place = int(np.ravel_multi_index(found.at, shape)) if shape else 0
        assert found.max_abs == pytest.approx(0.0 if a[place] == b[place] else _gap(a[place], b[place]), rel=1e-12)
        assert (found.a, found.b) == (a[place], b[place])


def _gap(a: Any, b: Any) -> float:
    try:
        return float(abs(a - b))
    except OverflowError:
        return math.inf


@pytest.mark.parametrize(
    ("a", "b", "differ", "gap", "relative", "nans"),
    [
        ([1.0, 2.0, 4.0], [1.0, 2.5, 4.0], 1, 0.5, 0.2, (0, 0)),
        ([0.0, 1.0], [1e-3, 1.0], 1, 1e-3, 1.0, (0, 0)),
        ([0.0, 1.0], [-0.0, 1.0], 1, 0.0, 0.0, (0, 0)),
        ([math.nan, 1.0], [math.nan, 1.5], 1, 0.5, 1 / 3, (0, 0)),
        ([math.nan, 1.0], [2.0, 1.0], 1, 0.0, 0.0, (1, 0)),
        ([1.0, math.inf], [1.0, -math.inf], 1, math.inf, math.inf, (0, 0)),
        ([1.0, math.inf], [2.0, math.inf], 1, 1.0, 0.5, (0, 0)),
    ],
)
def test_nans_zeros_and_infinities_are_told_apart(
    a: list[float], b: list[float], differ: int, gap: float, relative: float, nans: tuple[int, int]
) -> None:
    found = spread(*(Tensor(array(np.array(x, "<f8"))) for x in (a, b)))

    assert found is not None
    assert (found.differ, found.max_abs, (found.nan_a, found.nan_b)) == (differ, gap, nans)
    assert found.max_rel == pytest.approx(relative)


def test_integers_are_compared_exactly_where_floats_would_not_tell_them_apart() -> None:
    a, b = (Tensor(array(np.array([2**53 + more, -(2**63)], "<i8"))) for more in (0, 1))
    found = spread(a, b)
    low, high = (Tensor(array(np.array([x], "<i8"))) for x in (-(2**63), 2**63 - 1))
    widest = spread(low, high)

    assert found is not None
    assert (found.differ, found.max_abs, found.a, found.b) == (1, 1.0, 2**53, 2**53 + 1)
    assert widest is not None
    assert widest.max_abs == float(2**64 - 1)


def test_types_without_numbers_differ_by_element_and_have_no_gap() -> None:
    found = spread(*(Tensor(array(raw, F4, (4,))) for raw in (b"abcd", b"abxy")))

    assert found is not None
    assert (found.differ, found.max_abs, found.at) == (2, None, None)
