"""MessagePack is walked without reading payloads, and its numbers come out as the msgpack library gives them, whatever their widths."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate.dtypes import BOOL, F16, F32, F64, I16, I32, I64, U8, U64
from ckptmigrate.errors import CkptError, CorruptError, LimitError, TensorError, TruncatedError
from ckptmigrate.files import Range
from ckptmigrate.limits import LIMITS
from ckptmigrate.tensor import Made, Promise, Tensor, View
from ckptmigrate.testing import Memory
from ckptmigrate.wire import msgpack_numbers
from ckptmigrate.wire.cursor import Cursor
from ckptmigrate.wire.msgpack_numbers import Numbers
from ckptmigrate.wire.msgpacks import load


def walk(data: bytes, source: Memory | None = None) -> Any:
    cursor = Cursor(source or Memory(data), len(data))
    value = load(cursor, LIMITS)
    assert cursor.at == len(data)
    return value


def plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: plain(below) for name, below in node.items()}
    if isinstance(node, list):
        return [plain(below) for below in node]
    if isinstance(node, Range):
        return node.read(0, node.nbytes)
    return list(node.values or ()) if isinstance(node, Numbers) else node


def drawn(promise: Promise) -> np.ndarray[Any, Any]:
    return Tensor(promise).numpy().reshape(-1)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
TREES = st.recursive(LEAVES, lambda below: st.lists(below) | st.dictionaries(st.text(), below), max_leaves=30)


@given(TREES)
def test_a_value_comes_back_as_the_library_packed_it(value: Any) -> None:
    assert plain(walk(msgpack.packb(value))) == value


@pytest.mark.parametrize("float32", [True, False])
def test_a_list_of_floats_stays_where_it_is(float32: bool) -> None:
    values = [0.5, -2.0, float("inf"), 3.25] * 5000
    data = msgpack.packb({"value": values}, use_single_float=float32)
    source = Memory(data)
    found = walk(data, source)["value"]
    promise = found.promise(F32 if float32 else F64, (200, 100))

    assert source.taken[0] < 1 << 18  # windows at both ends, not the list
    assert isinstance(promise, View)
    assert promise.marker == (0xCA if float32 else 0xCB)
    assert drawn(promise).tolist() == values


def test_floats_of_another_width_than_the_record_says_are_cast() -> None:
    values = [0.1, -2.0, 1e-300]
    found = walk(msgpack.packb(values))

    assert drawn(found.promise(F32, (3,))).tolist() == np.array(values).astype("f4").tolist()


def test_a_marker_that_is_none_is_found_when_it_is_drawn() -> None:
    data = bytearray(msgpack.packb([1.5] * 100_000, use_single_float=True))
    data[5 + 5 * 60_000] = 0xCB
    found = walk(bytes(data))

    with pytest.raises(CorruptError, match="0xcb"):
        drawn(found.promise(F32, (100_000,)))


WIDE = st.integers(-(1 << 31), (1 << 31) - 1)
RUNS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 127, 128, 255, 256, 15360, 65535, 0xCDCD, 0xCCCC, 1 << 20, -1, -33, -200, -40000]),
        st.integers(1, 400),
    ),
    max_size=12,
)


@given(RUNS, st.lists(WIDE, max_size=300), st.integers(0, 1 << 32))
@settings(max_examples=60)
def test_integers_of_any_widths_are_found_in_bulk(runs: list[tuple[int, int]], others: list[int], seed: int) -> None:
    values = [v for value, times in runs for v in [value] * times] + others
    np.random.default_rng(seed).shuffle(values[: len(values) // 2])
    found = walk(msgpack.packb(values))
    if not values:
        assert found == []
        return

    assert found.count == len(values)
    assert found.kind == "int"
    assert found.signed == any(v < 0 for v in values)
    assert drawn(found.promise(I64, (len(values),))).tolist() == values


@pytest.mark.parametrize("zeros", [0.0, 0.0002, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("constant", [None, 0xCDCD, 0xC9C9])
def test_half_precision_patterns_across_windows(zeros: float, constant: int | None) -> None:
    """A pattern of cd cd cd never falls into step from a wrong guess, and one of c9 is no number at a wrong place."""
    random = np.random.default_rng(1)
    values = random.normal(size=300_000).astype("f2").view("u2")
    if constant is not None:
        values[1000:] = constant
    values[random.random(len(values)) < zeros] = 0
    found = walk(msgpack.packb(values.tolist()))

    assert (found.count, found.kind, found.signed) == (len(values), "int", False)
    assert (drawn(found.promise(F16, (3, 100_000), "bits")).view("u2") == values).all()


def test_mixed_numbers_are_read_by_value() -> None:
    values = [1, 2.5, -3, 1 << 40, 0.25] * 100
    found = walk(msgpack.packb(values))

    assert found.kind == "float"
    assert drawn(found.promise(F64, (500,))).tolist() == values
    with pytest.raises(TensorError, match="float"):
        drawn(found.promise(I64, (500,)))


def test_truth_values() -> None:
    values = [True, False, False] * 100
    found = walk(msgpack.packb(values))

    assert found.kind == "bool"
    assert drawn(found.promise(BOOL, (300,))).tolist() == values


@pytest.mark.parametrize(
    ("value", "dtype", "use"),
    [
        (40000, I16, "value"),
        (-1, U8, "value"),
        (1 << 33, I32, "value"),
        (-1, U64, "value"),
        (1 << 16, F16, "bits"),
        (-1, F16, "bits"),
    ],
)
def test_a_number_that_the_dtype_does_not_hold_is_named(value: int, dtype: Any, use: Any) -> None:
    found = walk(msgpack.packb([value] * 100))

    with pytest.raises(CorruptError, match=str(value)):
        drawn(found.promise(dtype, (100,), use))


@pytest.mark.parametrize("count", [1, 64, 65, 5000])
@pytest.mark.parametrize("item", [None, "x", {}, [1]])
def test_lists_of_other_things_are_lists(count: int, item: Any) -> None:
    assert plain(walk(msgpack.packb([item] * count))) == [item] * count


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"\xc1", CorruptError, "0xc1"),
        (b"\xd4\x01\x00", CorruptError, "0xd4"),
        (b"\x81\x01\x02", CorruptError, "0x01"),
        (b"\x82\xa1a\x01\xa1a\x02", CorruptError, "twice"),
        (b"\xa1\xff", CorruptError, "UTF-8"),
        (b"\xdd\xff\xff\xff\xff", TruncatedError, "4,294,967,295"),
        (b"\xdf\xff\xff\xff\xff", TruncatedError, "4,294,967,295"),
        (b"\xdd\xff\xff\xff\xff\xca\x00\x00\x00\x00", TruncatedError, "4,294,967,29[45]"),
        (b"\xdd\xff\xff\xff\xff\x01", TruncatedError, "4,294,967,29[45]"),
        (b"\xc6\xff\xff\xff\xff", TruncatedError, "4,?294,?967,?300"),
        (b"\xdb\xff\xff\xff\xff", LimitError, "limit"),
        (b"\xdb\x00\x01\x00\x01" + bytes(70000), LimitError, "limit"),
        (b"\x91" * 600 + b"\xc0", LimitError, "512"),
        (b"\xdc\x00\x50" + b"\x01" * 70 + b"\xa1x" * 10, CorruptError, "begins no number"),
        (b"", TruncatedError, "ends at"),
    ],
)
def test_what_no_record_holds_is_refused(data: bytes, error: type[CkptError], says: str) -> None:
    with pytest.raises(error, match=says):
        load(Cursor(Memory(data), len(data)), LIMITS)


def test_a_stream_without_an_end_in_sight_is_read_the_same() -> None:
    value = {"value": [0.5] * 100_000, "bytes": bytes(100_000), "ints": list(range(-500, 70_000))}
    data = msgpack.packb(value)
    import zlib

    packer = zlib.compressobj(wbits=31)
    stream = Memory(packer.compress(data) + packer.flush()).decoded("gzip", None, 1 << 30)
    found = load(Cursor(stream, None), LIMITS)

    assert drawn(found["value"].promise(F64, (100_000,))).tolist() == value["value"]
    assert drawn(found["ints"].promise(I32, (70_500,))).tolist() == value["ints"]
    assert plain(found["bytes"]) == value["bytes"]


def test_more_values_than_allowed_are_refused() -> None:
    with pytest.raises(LimitError, match="10 values"):
        load(Cursor(Memory(b"\xdc\x00\x20" + b"\xc0" * 32), 35), replace(LIMITS, nodes=10))


def test_equal_lists_are_equal_promises() -> None:
    found = walk(msgpack.packb({"a": list(range(100))}))["a"]

    assert found.promise(I32, (100,)) == found.promise(I32, (100,))
    assert isinstance(found.promise(I32, (100,)), Made)


@given(st.binary(max_size=3000))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        value = load(Cursor(Memory(data), len(data)), LIMITS)
        if isinstance(value, Numbers):
            drawn(value.promise(F64, (value.count,)))
    except CkptError:
        pass


@given(st.binary(min_size=1, max_size=60_000), st.integers(0, 300))
@settings(max_examples=50)
def test_starts_are_those_that_one_by_one_finds(noise: bytes, phase: int) -> None:
    """Lanes guess, and what they guess wrong is not believed: noise as payload has every phase."""
    raw = np.frombuffer(bytes([0xCD]) * phase + noise * (20_000 // len(noise) + 1), "u1")
    expected, at = [], 0
    while at < len(raw) and (width := msgpack_numbers.WIDTHS[raw[at]]) and at + width <= len(raw):
        expected.append(at)
        at += width
    found: list[int] = []
    for starts, _, _ in msgpack_numbers._groups(raw, len(raw)):
        found += range(starts.start, starts.stop, starts.step) if isinstance(starts, slice) else starts.tolist()

    assert found == expected


def test_the_struct_module_agrees_on_every_marker() -> None:
    for marker, code in msgpack_numbers.STORED.items():
        data = bytes([marker]) + bytes(range(1, msgpack_numbers.WIDTHS[marker]))
        (value,) = struct.unpack(
            ">"
            + {
                "f4": "f",
                "f8": "d",
                "u1": "B",
                "u2": "H",
                "u4": "I",
                "u8": "Q",
                "i1": "b",
                "i2": "h",
                "i4": "i",
                "i8": "q",
            }[code],
            data[1:],
        )

        assert msgpack_numbers._values(np.frombuffer(data, "u1"), np.array([0]), marker).tolist() == [value]
