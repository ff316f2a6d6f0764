"""CBOR: written as ciborium writes it, read back as the cbor2 library reads it, and refused before a claim takes memory or time."""

from __future__ import annotations

import math
import struct
import time
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.errors import CkptError, CorruptError, LimitError, TensorError
from ckptmigrate.wire.cbor import NESTING, SKIPPED, Reader, dumps, loads

INTEGERS = st.integers(-(1 << 64), (1 << 64) - 1) | st.sampled_from(
    [n + by for n in (0, 24, 256, 1 << 16, 1 << 32, 1 << 63) for by in (-1, 0)]
)
FLOATS = st.floats() | st.floats(width=16) | st.floats(width=32)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | st.text(),
    lambda below: st.lists(below, max_size=30) | st.dictionaries(st.text(), below, max_size=30),
    max_leaves=60,
)


@given(value=VALUES)
def test_what_is_written_reads_back_here_and_in_the_library(value: Any) -> None:
    data = dumps(value)

    assert repr(loads(data)) == repr(value)
    assert repr(cbor2.loads(data)) == repr(value)


@given(value=VALUES)
def test_what_the_library_writes_is_read(value: Any) -> None:
    assert repr(loads(cbor2.dumps(value))) == repr(value)


@given(number=INTEGERS)
def test_integers_have_the_shortest_head(number: int) -> None:
    assert dumps(number) == cbor2.dumps(number, canonical=True)


@given(number=FLOATS)
def test_floats_have_the_shortest_width_that_keeps_every_bit(number: float) -> None:
    data = dumps(number)

    assert struct.pack(">d", loads(data)) == struct.pack(">d", number)
    if not math.isnan(number):
        assert data == cbor2.dumps(number, canonical=True)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"UInt": 5}, "A1 64 55496E74 05"),
        ({"UInt": (1 << 64) - 1}, "A1 64 55496E74 1B FFFFFFFFFFFFFFFF"),
        ({"Int": -1}, "A1 63 496E74 20"),
        ({"Float": 1.0}, "A1 65 466C6F6174 F9 3C00"),
        ({"Float": 0.001}, "A1 65 466C6F6174 FB 3F50624DD2F1A9FC"),
        ({"Float": struct.unpack("<f", struct.pack("<f", 0.1))[0]}, "A1 65 466C6F6174 FA 3DCCCCCD"),
        ({"Bool": True}, "A1 64 426F6F6C F5"),
        (math.nan, "F9 7E00"),
        (-0.0, "F9 8000"),
        (math.inf, "F9 7C00"),
        (struct.unpack(">d", bytes.fromhex("7FF8000000000001"))[0], "FB 7FF8000000000001"),
    ],
)
def test_bytes_are_those_that_the_real_program_wrote(value: Any, written: str) -> None:
    assert dumps(value) == bytes.fromhex(written)


@pytest.mark.parametrize("value", [1 << 64, -(1 << 64) - 1, b"raw", "\ud800", {1, 2}, object()])
def test_what_has_no_place_is_refused(value: Any) -> None:
    with pytest.raises(TensorError):
        dumps(value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "an item at byte 0 needs 1 bytes, 0 are left"),
        ("18", "needs 2 bytes, 1 are left"),
        ("1B 00000000", "needs 9 bytes"),
        ("63 6162", "needs 3 bytes, 2 are left"),
        ("9B FFFFFFFFFFFFFFFF", "needs 18446744073709551615 bytes, 0 are left"),
        ("BB FFFFFFFFFFFFFFFF", "needs 36893488147419103230 bytes"),
        ("A2 61 61 00 61 61 01", 'the key "a" twice, again at byte 4'),
        ("A1 01 02", "an integer at byte 1, expected a key"),
        ("61 FF", "at byte 0 is no UTF-8"),
        ("00 00", "ends at byte 1, and claims to end at 2"),
        ("9F FF", "an array at byte 0 without a length at its start"),
        ("1C", "without a length at its start"),
        ("41 00", "bytes at byte 0, expected a value"),
        ("C0 00", "a tag at byte 0, expected a value"),
        ("F8 20", "is the simple value 24"),
        ("E0", "is the simple value 0"),
    ],
)
def test_broken_items_are_refused_with_place_and_numbers(data: str, message: str) -> None:
    with pytest.raises(CorruptError, match=message):
        loads(bytes.fromhex(data))


def test_deep_and_many_are_refused() -> None:
    with pytest.raises(LimitError):
        loads(b"\x81" * 5000 + b"\x00")
    with pytest.raises(LimitError):
        loads(dumps([0] * 100), most=100)

    assert loads(b"\x81" * (NESTING - 1) + b"\x00") is not None


@pytest.mark.parametrize(
    "data",
    [
        b"\x9a\x00\x80\x00\x00" + b"\x80" * (1 << 23),
        b"\x81" * (1 << 23) + b"\x00",
        b"\xc1" * (1 << 23) + b"\x00",
        b"\x81" * NESTING + b"\x00",
    ],
    ids=["many", "deep", "tags", "one too deep"],
)
def test_stepping_over_a_bomb_ends_in_seconds(data: bytes) -> None:
    start = time.monotonic()
    with pytest.raises(LimitError):
        Reader(data).skip()

    assert time.monotonic() - start < 5


@given(value=VALUES)
def test_stepping_over_a_value_ends_where_it_ends(value: Any) -> None:
    for data in (dumps(value), cbor2.dumps(cbor2.CBORTag(4711, [value, b"raw", {1: 2}]))):
        reader = Reader(data + b"\x00")
        reader.skip()

        assert reader.uint() == 0
        reader.end()


@given(data=st.binary(max_size=60))
def test_any_bytes_give_a_value_or_an_error_of_the_tree(data: bytes) -> None:
    try:
        value = loads(data)
    except CkptError:
        return

    assert repr(value) == repr(cbor2.loads(data))


def test_unknown_values_are_stepped_over_once_for_all() -> None:
    reader = Reader(dumps([0] * (SKIPPED - 1)) + b"\x00\x00")
    reader.skip()
    with pytest.raises(LimitError, match="that nobody asks for"):
        reader.skip()
