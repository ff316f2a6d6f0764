"""bincode's integers, texts and lists of numbers, against a plain reading of each byte."""

from __future__ import annotations

import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.dtypes import BOOL, F16, F32, F64, I16, I32, I64, DType
from ckptmigrate.errors import CkptError, CorruptError, LimitError, TruncatedError
from ckptmigrate.files import Disk
from ckptmigrate.testing import Memory
from ckptmigrate.wire import bincodes
from ckptmigrate.wire.cursor import Cursor

from .places import open_bytes

if TYPE_CHECKING:
    from ckptmigrate.files import Source


def varint(value: int) -> bytes:
    """Write an integer as bincode does, from its description."""
    for first, width, most in ((None, 1, 250), (0xFB, 2, 0xFFFF), (0xFC, 4, 0xFFFFFFFF)):
        if value <= most:
            return bytes([value]) if first is None else bytes([first]) + value.to_bytes(width, "little")
    return b"\xfd" + value.to_bytes(8, "little")


def zigzag(value: int) -> bytes:
    return varint(2 * value if value >= 0 else -2 * value - 1)


def cursor(data: bytes) -> Cursor:
    return Cursor(Memory(data), len(data))


unsigned = st.one_of(
    st.integers(0, 300), st.integers(0, (1 << 64) - 1), st.sampled_from([250, 251, 65535, 65536, 1 << 32])
)
signed = st.integers(-(1 << 63), (1 << 63) - 1)


@given(unsigned)
def test_an_unsigned_integer_comes_back(value: int) -> None:
    data = varint(value)
    read = cursor(data)

    assert bincodes.uint(read) == value
    assert read.at == len(data)


@given(signed)
def test_a_signed_integer_comes_back(value: int) -> None:
    assert bincodes.sint(cursor(zigzag(value))) == value


@pytest.mark.parametrize(
    "data", [b"\xfb\x05\x00", b"\xfc\xff\xff\x00\x00", b"\xfd" + bytes(8), b"\xfe" + bytes(16), b"\xff"]
)
def test_an_integer_that_bincode_does_not_write_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptError):
        bincodes.uint(cursor(data))


def test_an_integer_that_is_cut_is_refused_with_both_numbers() -> None:
    with pytest.raises(TruncatedError) as caught:
        bincodes.uint(cursor(b"\xfc\x00\x00"))

    assert (caught.value.data["needed"], caught.value.data["present"]) == (5, 3)


def test_texts_are_utf8_and_have_a_limit() -> None:
    assert bincodes.text(cursor(b"\x04gr\xc3\xbc"), 10) == "grü"
    with pytest.raises(CorruptError, match="UTF-8"):
        bincodes.text(cursor(b"\x01\xff"), 10)
    with pytest.raises(LimitError):
        bincodes.text(cursor(varint(1 << 40)), 10)


def test_floats_and_truth() -> None:
    assert bincodes.real(cursor(struct.pack("<f", 0.1)), "f32") == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert bincodes.real(cursor(struct.pack("<d", 0.1)), "f64") == 0.1
    assert bincodes.truth(cursor(b"\1")) is True
    with pytest.raises(CorruptError):
        bincodes.truth(cursor(b"\2"))


@given(st.lists(st.integers(0, 65535), max_size=400), st.binary(max_size=3))
def test_bit_patterns_in_a_list_are_halves(patterns: list[int], after: bytes) -> None:
    with Disk() as disk:
        data = b"".join(map(varint, patterns)) + after
        source = _temporary(disk, data)
        read = Cursor(source, len(data))
        numbers = bincodes.measure(read, len(patterns), "unsigned")

        assert read.at == len(data) - len(after)
        assert not numbers.signed
        drawn = bytes(numbers.promise(F16, (len(patterns),), "bits").read(0, len(patterns)))
        assert drawn == np.array(patterns, "<u2").tobytes()


@given(st.lists(signed, max_size=200))
def test_signed_integers_in_a_list_come_back(values: list[int]) -> None:
    with Disk() as disk:
        data = b"".join(map(zigzag, values))
        numbers = bincodes.measure(Cursor(_temporary(disk, data), len(data)), len(values), "zigzag")

        drawn = bytes(numbers.promise(I64, (len(values),)).read(0, len(values)))
        assert numbers.signed
        assert drawn == np.array(values, "<i8").tobytes()


@pytest.mark.parametrize("seed", range(3))
def test_a_long_list_is_crossed_and_drawn_in_windows(seed: int) -> None:
    """Runs of one width and all mixtures of widths, over many windows and blocks."""
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 65536, 120_000) * (generator.random(120_000) < (0.5, 0.999, 0.01)[seed])
    with Disk() as disk:
        data = b"".join(varint(int(value)) for value in values) + b"\xff"
        read = Cursor(_temporary(disk, data), len(data))
        numbers = bincodes.measure(read, len(values), "unsigned")

        assert read.take(1) == b"\xff"
        drawn = bytes(numbers.promise(F16, (300, 400), "bits").transpose((1, 0)).read(0, len(values)))
        assert drawn == values.astype("<u2").reshape(300, 400).T.tobytes()


@pytest.mark.parametrize(("encoding", "dtype"), [("f32", F32), ("f64", F64)])
def test_floats_stay_where_they_are(encoding: bincodes.Encoding, dtype: DType) -> None:
    data = np.arange(6, dtype=dtype.numpy_dtype()).tobytes()
    promise = bincodes.measure(cursor(data), 6, encoding).promise(dtype, (2, 3))
    plain = promise.plain()

    assert plain is not None
    assert (plain.offset, plain.nbytes) == (0, len(data))


def test_truth_in_a_list_is_checked_as_it_is_crossed() -> None:
    assert bytes(bincodes.measure(cursor(b"\0\1\1"), 3, "bool").promise(BOOL, (3,)).read(0, 3)) == b"\0\1\1"
    with pytest.raises(CorruptError, match="at 1"):
        bincodes.measure(cursor(b"\0\2\1"), 3, "bool")


@pytest.mark.parametrize(
    ("data", "count"), [(b"\x01", 2), (b"\xfb\x00", 1), (b"\x01\xff\x01", 3), (b"", 1 << 60), (b"\x01" * 9, 1 << 40)]
)
def test_a_list_that_is_not_there_is_refused(data: bytes, count: int) -> None:
    with pytest.raises(CkptError):
        bincodes.measure(cursor(data), count, "unsigned")
    with pytest.raises(CkptError):
        bincodes.measure(cursor(data), count, "f64")


@pytest.mark.parametrize(
    ("values", "dtype", "use"), [([70_000], F16, "bits"), ([1 << 20], I16, "value"), ([1 << 40], I32, "value")]
)
def test_an_integer_that_the_dtype_does_not_hold_is_refused_when_drawn(
    values: list[int], dtype: DType, use: str
) -> None:
    with Disk() as disk:
        data = b"".join(map(varint, values))
        numbers = bincodes.measure(Cursor(_temporary(disk, data), len(data)), len(values), "unsigned")
        with pytest.raises(CorruptError, match="is not"):
            numbers.promise(dtype, (len(values),), "bits" if use == "bits" else "value").read(0, 1)


def _temporary(disk: Disk, data: bytes) -> Source:
    with TemporaryDirectory() as folder:
        return open_bytes(disk, Path(folder), data)  # open for as long as the disk is
