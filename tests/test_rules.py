"""Casts, dequantisation and lazy bits give what torch gives, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ckptmigrate.dtypes import BOOL, BY_NAME, C64, F16, F32, F64, I8, QINT8, QUINT8, DType
from ckptmigrate.errors import TensorError
from ckptmigrate.tensor import (
    Quantisation,
    Tensor,
    View,
    array,
    cast,
    conjugate,
    dequantise,
    fill,
    negate,
    normalise,
)
from ckptmigrate.tensor.promise import Made
from ckptmigrate.tensor.rules import Cast

if TYPE_CHECKING:
    from collections.abc import Iterator

from .looks import (
    FLOATS,
    INTS,
    Bytes,
    assert_same_numbers,
    bytes_in_a_file,
    drawn,
    same,
    samples,
    to_numpy,
    to_torch,
    torch_of,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bytes]:
    with bytes_in_a_file(tmp_path_factory.mktemp("looks")) as place:
        yield place


@pytest.mark.parametrize("target", [*FLOATS, *INTS, "BOOL"])
@pytest.mark.parametrize("source", [*FLOATS, *INTS, "BOOL"])
def test_a_cast_gives_what_torch_gives(source: str, target: str) -> None:
    source_dtype, dtype = BY_NAME[source], BY_NAME[target]
    values = samples(source_dtype)
    if source == "BOOL":
        values = np.array([False, True])
    if source in FLOATS and target in INTS:
        info = np.iinfo(dtype.numpy_dtype())
        wide = values.astype("f4" if source_dtype.itemsize <= 2 else values.dtype)
        with np.errstate(all="ignore"):
            values = values[(np.trunc(wide) >= float(info.min)) & (np.trunc(wide) < float(info.max + 1))]

    with np.errstate(all="ignore"):
        expected = to_numpy(to_torch(values, source_dtype).to(torch_of(dtype)), dtype)
        actual = drawn(cast(array(values, source_dtype), dtype))

    assert_same_numbers(expected, actual, dtype)


@pytest.mark.parametrize("target", INTS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_a_float_without_a_place_among_integers_is_refused(target: str, value: float) -> None:
    promise = cast(array(np.array([1.0, value])), BY_NAME[target])

    with pytest.raises(TensorError, match=f"has no place in {target}"):
        promise.read(0, 2)


def test_a_cast_that_loses_what_it_cannot_say_is_refused_while_planning() -> None:
    with pytest.raises(TensorError, match="imaginary"):
        cast(fill(1j, C64, (2,)), F32)
    with pytest.raises(TensorError, match="holds no plain numbers"):
        cast(array(b"abcd", QINT8, (4,)), F32)
    with pytest.raises(TensorError, match="holds no plain numbers"):
        cast(fill(1, F32, (2,)), BY_NAME["F4"])


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("source", ["F32", "I8", "BOOL", "C64", "C128", "C32"])
@pytest.mark.parametrize("target", ["C64", "C128", "C32"])
def test_a_cast_to_complex_gives_what_torch_gives(source: str, target: str) -> None:
    one, other = BY_NAME[source], BY_NAME[target]
    values = torch.tensor([0.0, 1.0, -2.5, 70_000.0, 1e-9]).to(torch.complex128)
    values = (values + values.flip(0) * 1j if one.kind == "complex" else values.real.clamp(0, 100)).to(torch_of(one))

    promise = cast(array(to_numpy(values, one).tobytes(), one, (5,)), other)

    assert to_numpy(values.to(torch_of(other)), other).tobytes() == bytes(promise.read(0, 5))


def test_a_cast_to_the_same_dtype_vanishes(place: Bytes) -> None:
    view = View.rows(place.range.part(0, 24), F32, (2, 3))

    assert cast(view, F32) is view
    assert cast(view, F16) == Made((view,), Cast(F32, F16))


@pytest.mark.parametrize(
    ("dtype", "kind"), [(QUINT8, torch.quint8), (QINT8, torch.qint8), (BY_NAME["QINT32"], torch.qint32)]
)
def test_dequantising_gives_what_torch_gives(dtype: DType, kind: Any) -> None:
    random = np.random.default_rng(3)
    info = np.iinfo(dtype.numpy_dtype())
    whole = random.integers(info.min, info.max, (37, 211), dtype.numpy_dtype(), endpoint=True)
    scale, zero_point = 0.0171, 7
    quantised = torch._make_per_tensor_quantized_tensor(torch.from_numpy(whole), scale, zero_point)

    promise = dequantise(array(whole, dtype), Quantisation("per_tensor_affine", scale, zero_point))

    assert quantised.dtype == kind
    assert same(quantised.dequantize().numpy(), drawn(promise))
    assert same(quantised.dequantize().numpy().T[3:9], drawn(promise.transpose((1, 0)).slice(0, 3, 9)))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [QUINT8, QINT8])
def test_dequantising_per_channel_gives_what_torch_gives_under_any_look(dtype: DType, axis: int) -> None:
    random = np.random.default_rng(axis)
    info = np.iinfo(dtype.numpy_dtype())
    whole = random.integers(info.min, info.max, (7, 11, 13), dtype.numpy_dtype(), endpoint=True)
    scales, zeros = random.uniform(1e-6, 3, whole.shape[axis]), random.integers(0, 50, whole.shape[axis])
    quantised = torch._make_per_channel_quantized_tensor(
        torch.from_numpy(whole), torch.from_numpy(scales), torch.from_numpy(zeros), axis
    )
    quant = Quantisation("per_channel_affine", Tensor(array(scales)), Tensor(array(zeros)), axis)

    promise = dequantise(array(whole, dtype), quant)
    expected = quantised.dequantize().numpy()

    assert same(expected, drawn(promise))
    assert same(expected.transpose(2, 0, 1)[:, 2:5], drawn(promise.transpose((2, 0, 1)).slice(1, 2, 5)))
    assert same(expected.reshape(77, 13), drawn(promise.reshape((77, 13))))


def test_float_zero_points_are_subtracted_as_floats() -> None:
    values = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    scales, zeros = torch.linspace(0.01, 0.2, 5), torch.linspace(-3, 3, 5)
    quantised = torch.quantize_per_channel(values, scales, zeros, 0, torch.quint8)

    promise = dequantise(
        array(quantised.int_repr().numpy(), QUINT8),
        Quantisation(
            "per_channel_affine_float_qparams", Tensor(array(scales.numpy())), Tensor(array(zeros.numpy())), 0
        ),
    )

    assert same(quantised.dequantize().numpy(), drawn(promise))


def test_what_cannot_be_dequantised_is_refused() -> None:
    with pytest.raises(TensorError, match="F32 cannot be dequantised"):
        dequantise(fill(0, F32, (2,)), Quantisation("per_tensor_affine", 1.0, 0))
    with pytest.raises(TensorError, match="QUINT4X2 cannot be dequantised"):
        dequantise(array(b"ab", BY_NAME["QUINT4X2"], (2,)), Quantisation("per_tensor_affine", 1.0, 0))
    scales = Tensor(fill(1, F64, (3,)))
    with pytest.raises(TensorError, match="3 scales, expected one for each of the 2 channels"):
        dequantise(array(b"abcd", QUINT8, (2, 2)), Quantisation("per_channel_affine", scales, scales, 0))


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("name", ["C64", "C128", "C32"])
def test_lazy_bits_of_complex_tensors_resolve_as_torch_resolves_them(name: str) -> None:
    dtype = BY_NAME[name]
    values = torch.tensor([1 + 2j, -0.0 - 0.0j, complex(np.inf, -3)], dtype=torch.complex128).to(torch_of(dtype))
    promise = array(to_numpy(values, dtype).tobytes(), dtype, (3,))

    # torch resolves complex32 through complex64, which is exact.
    wide = values.to(torch.complex128)
    assert to_numpy(wide.conj().resolve_conj().to(torch_of(dtype)), dtype).tobytes() == bytes(
        conjugate(promise).read(0, 3)
    )
    assert to_numpy(torch.neg(wide).to(torch_of(dtype)), dtype).tobytes() == bytes(negate(promise).read(0, 3))


@pytest.mark.parametrize("name", ["F64", "F32", "F16", "BF16", "I64", "I8", "U8"])
def test_a_lazy_neg_bit_resolves_as_torch_resolves_it(name: str) -> None:
    dtype = BY_NAME[name]
    values = samples(dtype)[:70_000]

    expected = to_numpy(torch._neg_view(to_torch(values, dtype)).resolve_neg(), dtype)

    assert_same_numbers(expected, drawn(negate(array(values, dtype))), dtype)


def test_what_has_no_sign_or_no_imaginary_part_is_refused() -> None:
    with pytest.raises(TensorError, match="BOOL has no negation"):
        negate(fill(1, BOOL, (1,)))
    with pytest.raises(TensorError, match="F32 has no conjugate"):
        conjugate(fill(1, F32, (1,)))


def test_booleans_of_any_byte_become_0_and_1() -> None:
    promise = array(bytes([0, 1, 2, 255]), BOOL, (4,))

    assert bytes(normalise(promise).read(0, 4)) == bytes([0, 1, 1, 1])
    assert bytes(cast(promise, F32).read(0, 4)) == np.array([0, 1, 1, 1], "<f4").tobytes()
    ints = fill(1, I8, (2,))
    assert normalise(ints) is ints
