"""Tensors: fills and arrays in memory, and what comes out of each dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch

from ckptmigrate.dtypes import BF16, BY_NAME, F32, I16, I64, QINT8, U8, DType
from ckptmigrate.errors import TensorError
from ckptmigrate.tensor import (
    Tensor,
    View,
    array,
    fill,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

from .looks import Bytes, bytes_in_a_file, drawn, same


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bytes]:
    with bytes_in_a_file(tmp_path_factory.mktemp("looks")) as place:
        yield place


def test_two_fills_of_one_value_are_two_tensors() -> None:
    assert fill(0, F32, (2,)) != fill(0, F32, (2,))


def test_a_fill_of_any_size_costs_nothing() -> None:
    promise = fill(1.5, BF16, (2**40, 2**20))

    assert promise.window * promise.itemsize <= 1 << 20
    assert bytes(promise.read(2**59, 2**59 + 2)) == np.array([1.5, 1.5], ml_dtypes.bfloat16).tobytes()
    turned = promise.transpose((1, 0))
    assert (turned.dtype, turned.shape) == (BF16, (2**20, 2**40))
    assert bytes(turned.read(2**59, 2**59 + 2)) == bytes(promise.read(0, 2))
    assert not list(promise.sources())


@pytest.mark.parametrize(
    ("value", "dtype"), [(300, U8), (-1, U8), (2**63, I64), (1j, F32), (b"ab", F32), ("x", F32), (1.0, BY_NAME["F4"])]
)
def test_a_fill_that_does_not_fit_its_dtype_is_refused(value: Any, dtype: DType) -> None:
    with pytest.raises(TensorError):
        fill(value, dtype, (2,))


def test_arrays_are_equal_when_they_are_one_look_at_one_memory() -> None:
    values = np.arange(6.0, dtype="<f4").reshape(2, 3)

    assert array(values) == array(values)
    assert array(values).transpose((1, 0)) == array(values.T)
    assert array(values) != array(values.copy())
    assert len({array(values), array(values), array(values.T)}) == 2


def test_an_array_of_other_byte_order_or_type_is_taken_or_refused() -> None:
    assert same(np.arange(3, dtype="<i8"), drawn(array(np.arange(3, dtype=">i8"))))
    assert array(np.zeros(2, ml_dtypes.bfloat16)).dtype == BF16
    assert array(np.zeros(2, "i1"), QINT8).dtype == QINT8
    with pytest.raises(TensorError, match="object"):
        array(np.array([None]))
    with pytest.raises(TensorError, match="5 bytes in memory"):
        array(b"12345", F32, (1,))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_dtype_comes_out_as_an_array_of_its_bytes(place: Bytes, name: str) -> None:
    dtype = BY_NAME[name]
    view = View.rows(place.range.part(0, 6 * dtype.itemsize), dtype, (2, 3)).transpose((1, 0))

    values = Tensor(view).numpy()

    lines = np.frombuffer(place.data, f"V{dtype.itemsize}", 6).reshape(2, 3)
    assert values.shape == (3, 2)
    assert values.dtype == dtype.numpy_dtype()
    assert lines.T.tobytes() == values.tobytes()


def test_a_tensor_comes_out_as_torch_holds_it(place: Bytes) -> None:
    tensor = Tensor(View.rows(place.range.part(0, 24), I16, (3, 4)).transpose((1, 0)), role="buffer", id=7)

    assert torch.equal(torch.from_numpy(tensor.numpy().copy()), tensor.torch())
    assert tensor.shape == (4, 3)
    assert tensor.nbytes == 24
    assert tensor.with_promise(fill(0, I16, (1,))).role == "buffer"
