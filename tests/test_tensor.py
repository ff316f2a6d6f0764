"""Promises against numpy at random windows, and against torch where numbers change."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmigrate.dtypes import BF16, BOOL, BY_NAME, C64, F16, F32, F64, I8, I16, I32, I64, QINT8, QUINT8, U8, DType
from ckptmigrate.errors import CorruptError, LimitError, TensorError
from ckptmigrate.files import Disk, File, Range
from ckptmigrate.limits import LIMITS
from ckptmigrate.tensor import (
    Joined,
    Quantisation,
    Tensor,
    View,
    array,
    cast,
    check_expansion,
    conjugate,
    dequantise,
    expand,
    fill,
    joined,
    negate,
    normalise,
    strides,
)
from ckptmigrate.tensor import promise as promise_module
from ckptmigrate.tensor import view as view_module
from ckptmigrate.tensor.promise import Made, Promise
from ckptmigrate.tensor.rules import Cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Pair = tuple[Promise, np.ndarray[Any, Any]]

MARKER, MARKED = 0xCA, 30_000


@dataclass
class Bytes:
    """Random bytes in memory and the same in a file; from ``MARKED`` on, every fifth byte is the marker."""

    data: bytes = field(repr=False)
    range: Range = field(repr=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bytes]:
    raw = np.random.default_rng(7).integers(0, 256, 40_000, dtype=np.uint8)
    raw[MARKED::5] = MARKER
    path = tmp_path_factory.mktemp("tensor") / "bytes"
    path.write_bytes(raw.tobytes())
    with Disk() as disk:
        yield Bytes(raw.tobytes(), disk.open(path).range(0, raw.nbytes))


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


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(draws=st.data())
def test_every_promise_reads_as_numpy_at_any_window(place: Bytes, draws: st.DataObject) -> None:
    promise, values = draws.draw(promises(place))
    start = draws.draw(st.integers(0, values.size))
    stop = draws.draw(st.integers(start, values.size))

    assert values.shape == promise.shape
    assert values.reshape(-1)[start:stop].tobytes() == bytes(promise.read(start, stop))
    assert same(values, drawn(promise))
    assert hash(promise) == hash(promise)
    assert promise.window >= 1
    plain = promise.plain()
    if plain is not None:
        assert values.tobytes() == plain.read(0, plain.nbytes)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(draws=st.data())
def test_every_bound_on_the_way_leaves_the_bytes_alone(
    place: Bytes, monkeypatch: pytest.MonkeyPatch, draws: st.DataObject
) -> None:
    """With windows, stretches, gaps and blocks of a few bytes, small tensors take the ways of large ones."""
    for module, name in (
        (strides, "STRETCH"),
        (strides, "PAGE"),
        (strides, "SKEW"),
        (view_module, "CHUNK"),
        (promise_module, "PIECE"),
    ):
        monkeypatch.setattr(module, name, draws.draw(st.sampled_from([8, 16, 40, 200])))
    budgets = draws.draw(st.sampled_from([(4,), (8, 64), (16, 100)]))
    for module in (strides, view_module, promise_module):
        monkeypatch.setattr(module, "WINDOWS", budgets)
    monkeypatch.setattr(view_module, "STAGE", draws.draw(st.sampled_from([0.0, 1.0])))
    assert place.range.file.disk is not None
    place.range.file.disk.spilled.clear()
    promise, values = draws.draw(promises(place))
    start = draws.draw(st.integers(0, values.size))
    stop = draws.draw(st.integers(start, values.size))

    assert values.reshape(-1)[start:stop].tobytes() == bytes(promise.read(start, stop))
    assert same(values, drawn(promise))


def test_a_view_by_hand_lies_where_numpy_says(place: Bytes) -> None:
    view = View.rows(place.range.part(8, 48), F32, (3, 4))

    assert place.range.part(8, 48) == view.plain()
    assert same(np.frombuffer(place.data, "<f4", 12, 8).reshape(3, 4).T, drawn(view.transpose((1, 0))))
    assert view.transpose((1, 0)).plain() is None
    assert view.transpose((1, 0)).transpose((1, 0)) == view


def test_channels_last_comes_out_row_major(tmp_path: Path) -> None:
    values = torch.arange(24.0).reshape(2, 3, 2, 2)
    (tmp_path / "x").write_bytes(values.permute(0, 2, 3, 1).contiguous().numpy().tobytes())
    with Disk() as disk:
        view = View(disk.open(tmp_path / "x").range(0, 96), F32, (2, 3, 2, 2), (48, 4, 24, 12))

        assert same(values.numpy(), drawn(view))


def test_equal_looks_are_equal_values_whatever_their_ranges(place: Bytes) -> None:
    one = View(place.range, F32, (2, 3), (12, 4), 100)

    assert one == View.rows(place.range.part(100, 24), F32, (2, 3))
    assert hash(one) == hash(View.rows(place.range.part(100, 24), F32, (2, 3)))
    assert View(place.range, F32, (1, 3), (7, 4)) == View(place.range, F32, (1, 3), (99, 4))
    assert View(place.range, U8, (3,), (1,), 0, big_endian=True) == View.rows(place.range.part(0, 3), U8, (3,))
    assert one != View(place.range, F32, (2, 3), (12, 4), 96)
    assert one != View(place.range, I32, (2, 3), (12, 4), 100)


def test_an_empty_view_needs_no_bytes_and_forgets_its_strides(place: Bytes) -> None:
    view = View(place.range.part(0, 0), F32, (0, 3), (10**9, 7), 10**12)

    assert view == View(place.range.part(0, 0), F32, (0, 3), (0, 0))
    assert view.plain() == place.range.part(0, 0)
    assert bytes(view.read(0, 0)) == b""
    assert view.reshape((3, 0)).shape == (3, 0)


def test_a_complex_number_swaps_its_halves_and_not_itself(place: Bytes) -> None:
    view = View.rows(place.range.part(0, 80), C64, (10,), big_endian=True)

    assert same(np.frombuffer(place.data, ">c8", 10).astype("<c8").view("u8"), drawn(view).view("u8"))


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "says"),
    [
        ((-1,), (4,), 0, "size -1"),
        ((2,), (-4,), 4, "stride -4"),
        ((2,), (4,), -4, "offset -4"),
        ((2,), (4, 4), 0, "1 sizes and 2 strides"),
        ((2.0,), (4,), 0, "size 2.0"),
        ((10_001,), (4,), 0, "0 to 40,004 of a range of 40,000"),
        ((2,), (39_999,), 0, "0 to 40,003"),
        ((10**30,), (4,), 0, "of a range of 40,000"),
    ],
)
def test_a_claim_outside_the_range_is_refused_with_both_numbers(
    place: Bytes, shape: Any, strides: Any, offset: int, says: str
) -> None:
    with pytest.raises(CorruptError, match=says) as refused:
        View(place.range, F32, shape, strides, offset)

    assert refused.value.path == place.range.file.name


def test_too_many_axes_are_refused(place: Bytes) -> None:
    with pytest.raises(LimitError):
        View(place.range, F32, (1,) * 65, (0,) * 65)


def test_a_small_storage_that_claims_to_be_huge_is_refused(place: Bytes) -> None:
    bomb = View(place.range, F32, (2**40,), (0,))
    harmless = View(place.range, F32, (2**20,), (0,))

    check_expansion(harmless)
    with pytest.raises(LimitError, match=f"{2**42:,} bytes") as refused:
        check_expansion(bomb, LIMITS, "evil.pt")
    assert refused.value.path == "evil.pt"


def test_a_repeated_axis_reads_its_storage_once() -> None:
    file = Counted(4000)
    view = View(Range(file, 0, 4000), F32, (500, 1000), (0, 4))

    view.read(0, view.numel)

    assert file.read == 4000


def test_a_marker_that_is_not_there_is_told_with_its_place_in_the_file(place: Bytes) -> None:
    good = View(place.range, F32, (4, 5), (125, 25), MARKED + 1, big_endian=True, marker=MARKER)
    bad = View(place.range, F32, (4, 5), (100, 5), MARKED - 99, marker=MARKER)

    assert same(np.ndarray((4, 5), ">f4", place.data, MARKED + 1, (125, 25)).astype("<f4"), drawn(good))
    with pytest.raises(CorruptError, match=f"{MARKED - 100:,} stands before an element, expected 0xca"):
        drawn(bad)
    assert good.plain() is None


def test_a_slice_of_wide_lines_reads_what_it_takes_and_no_more() -> None:
    file = Counted(1000 * 40_000)
    view = View.rows(Range(file, 0, file.nbytes), F32, (1000, 10_000)).slice(1, 2000, 6000)

    for start in range(0, view.numel, view.window):
        view.read(start, min(start + view.window, view.numel))

    assert file.read == view.nbytes


def test_a_transposed_view_reads_each_byte_once_in_large_pieces() -> None:
    file = Counted(8192 * 8192 * 4)
    view = View.rows(Range(file, 0, file.nbytes), F32, (8192, 8192)).transpose((1, 0))

    for start in range(0, view.numel, view.window):
        view.read(start, min(start + view.window, view.numel))

    assert file.read <= 1.05 * view.nbytes
    assert view.nbytes / file.calls >= 4096


def test_a_tall_thin_transpose_reads_its_source_once(tmp_path: Path) -> None:
    values = np.arange(3_000_000 * 8, dtype="<u4").reshape(-1, 8)
    values.tofile(tmp_path / "tall")
    with Disk(tmp_path) as disk:
        view = View.rows(disk.open(tmp_path / "tall").range(0, values.nbytes), F32, values.shape).transpose((1, 0))
        read = 0
        real = view.range.file.pread_into

        def counted(offset: int, buffer: memoryview) -> None:
            nonlocal read
            read += len(buffer)
            real(offset, buffer)

        view.range.file.pread_into = counted  # type: ignore[method-assign]

        assert values.T.tobytes() == drawn(view).tobytes()
        assert read <= 1.05 * view.nbytes
        assert view.window * 4 <= 32 << 20


def test_a_reshape_that_no_strides_can_say_goes_through_scratch_and_ties_stay_ties(place: Bytes) -> None:
    one, two = (View.rows(place.range.part(0, 96), F32, (4, 6)).transpose((1, 0)) for _ in range(2))

    assert one.reshape((8, 3)) == two.reshape((8, 3))
    assert one.reshape((8, 3)).range.file is not place.range.file
    assert same(np.frombuffer(place.data, "<f4", 24).reshape(4, 6).T.reshape(8, 3), drawn(one.reshape((8, 3))))


def test_scratch_that_no_disk_offers_is_an_error_and_no_crash() -> None:
    view = View.rows(Range(Counted(96), 0, 96), F32, (4, 6)).transpose((1, 0))

    with pytest.raises(TensorError, match="no Disk with scratch"):
        view.reshape((24,))


def test_neighbours_join_into_the_view_they_were_cut_from(place: Bytes) -> None:
    view = View.rows(place.range.part(0, 480), F32, (4, 5, 6)).transpose((2, 0, 1))

    for axis in range(3):
        parts = [view.slice(axis, 0, 1), view.slice(axis, 1, 3), view.slice(axis, 3, view.shape[axis])]
        assert joined(parts, axis) == view


def test_parts_in_a_row_are_one_plain_range_and_others_are_not(place: Bytes) -> None:
    first, second = (View.rows(place.range.part(at, 24), F32, (2, 3)) for at in (0, 24))
    ints = View.rows(place.range.part(48, 24), I32, (2, 3))

    assert place.range.part(0, 48) == Joined((first, second), 0).plain()
    assert Joined((second, first), 0).plain() is None
    assert Joined((first, second), 1).plain() is None
    with pytest.raises(TensorError, match="part 1 to join is I32, expected F32"):
        joined([first, ints], 0)


def test_parts_that_do_not_fit_are_refused_with_their_shapes() -> None:
    with pytest.raises(TensorError, match=r"part 1 .* \[3, 3\]"):
        joined([fill(0, F32, (2, 2)), fill(0, F32, (3, 3))], 0)
    with pytest.raises(TensorError, match="axis 2"):
        joined([fill(0, F32, (2, 2))], 2)
    with pytest.raises(TensorError, match="nothing to join"):
        joined([], 0)


def test_a_joint_that_survives_a_reshape_needs_no_scratch() -> None:
    files = [Counted(4 * 6 * 5), Counted(8 * 6 * 5)]
    parts = [View.rows(Range(file, 0, file.nbytes), U8, (file.nbytes // 30, 6, 5)) for file in files]

    reshaped = joined(parts, 0).reshape((6, 2, 30))
    across = joined([part.transpose((1, 0, 2)) for part in parts], 1).reshape((3, 2, 12, 5))

    assert isinstance(reshaped, Joined)
    assert [part.shape for part in reshaped.parts] == [(2, 2, 30), (4, 2, 30)]
    assert isinstance(across, Joined)
    assert across.axis == 2


def test_one_part_alone_is_given_bare_and_outsiders_are_dropped(place: Bytes) -> None:
    first, second = View.rows(place.range.part(0, 24), F32, (2, 3)), View.rows(place.range.part(96, 24), F32, (2, 3))
    both = joined([first, second], 0)

    assert both.slice(0, 2, 4) == second
    assert joined([first, first.slice(0, 0, 0)], 0) == first
    assert both.slice(0, 1, 1).numel == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p: p.transpose((0, 0)),
        lambda p: p.transpose((0,)),
        lambda p: p.reshape((5,)),
        lambda p: p.reshape((-1, -6)),
        lambda p: p.slice(2, 0, 1),
        lambda p: p.slice(0, 1, 3),
        lambda p: p.slice(0, -1, 1),
        lambda p: p.read(0, 7),
        lambda p: p.read(-1, 2),
    ],
)
def test_a_look_that_does_not_fit_is_refused_by_every_class(place: Bytes, wrong: Callable[[Promise], object]) -> None:
    view = View.rows(place.range.part(0, 24), F32, (2, 3))
    for promise in (view, joined([view, view], 0).slice(0, 1, 3), cast(view, F16), fill(0, F32, (2, 3))):
        with pytest.raises(TensorError):
            wrong(promise)


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
    assert normalise(fill(1, I8, (2,))) == fill(1, I8, (2,))


def test_a_fill_of_any_size_costs_nothing_and_equals_itself() -> None:
    promise = fill(1.5, BF16, (2**40, 2**20))

    assert promise.window * promise.itemsize <= 1 << 20
    assert bytes(promise.read(2**59, 2**59 + 2)) == np.array([1.5, 1.5], ml_dtypes.bfloat16).tobytes()
    assert promise.transpose((1, 0)) == fill(1.5, BF16, (2**20, 2**40))
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


def test_nothing_is_read_until_bytes_are_asked_for() -> None:
    file = Counted(4000)
    view = View.rows(Range(file, 0, 4000), F32, (10, 100))
    promise = cast(joined([view.transpose((1, 0)), view.transpose((1, 0)).slice(0, 5, 50)], 0), F16)

    _ = (
        promise.transpose((1, 0)).slice(0, 1, 3),
        promise.window,
        promise.plain(),
        list(promise.sources()),
        hash(promise),
    )

    assert file.calls == 0


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_windows_are_large_where_tensors_are_and_never_larger_than_32_mib(axis: int, axes: tuple[int, ...]) -> None:
    shape = (600, 700, 80)
    file = Counted(2 * 4 * prod(shape))
    parts: list[Promise] = [
        View.rows(Range(file, at, 4 * prod(shape)), F32, shape).transpose(axes) for at in (0, 4 * prod(shape))
    ]
    parts = [parts[1], parts[0]]
    whole = joined(parts, axis)

    for promise in (*parts, whole, cast(whole, F16), cast(whole, F64), negate(parts[0])):
        assert 2**18 - 2**16 <= promise.window <= promise.numel
        assert promise.window * max(4, promise.itemsize) <= 32 << 20
        assert axes == (0, 1, 2) or promise.window % promise.shape[-1] == 0


def test_a_joint_of_flat_parts_is_read_in_large_windows() -> None:
    file = Counted(1 << 24)
    parts = [View.rows(Range(file, at, 1 << 20), F32, (1 << 18,)) for at in (1 << 20, 0, 1 << 21)]

    assert joined(parts, 0).window == 1 << 18


@dataclass(frozen=True, slots=True)
class Sorted:
    """A rule that needs all of its input: its bytes in order."""

    dtype: DType
    shape: tuple[int, ...]
    drawn: list[int] = field(default_factory=list, compare=False)
    elementwise: ClassVar[Literal[False]] = False

    def pieces(self, inputs: tuple[Promise, ...]) -> Iterator[np.ndarray[Any, Any]]:
        self.drawn.append(1)
        values = np.sort(Tensor(inputs[0]).numpy().reshape(-1))
        yield values[:10]
        yield values[10:]


def test_a_rule_over_whole_inputs_is_drawn_once_into_scratch_whatever_looks_are_taken(place: Bytes) -> None:
    rule = Sorted(U8, (6, 4))
    promise = Made((View.rows(place.range.part(0, 24), U8, (24,)),), rule)
    expected = np.sort(np.frombuffer(place.data, "u1", 24)).reshape(6, 4)

    assert same(expected.T, drawn(promise.transpose((1, 0))))
    assert same(expected[2:4], drawn(promise.slice(0, 2, 4)))
    assert same(expected, drawn(promise))
    assert same(expected.astype("<f4"), drawn(cast(promise, F32)))
    assert promise.transpose((1, 0)) == Made(promise.inputs, Sorted(U8, (6, 4))).transpose((1, 0))
    assert rule.drawn == [1]


def test_a_rule_over_whole_inputs_in_memory_needs_no_disk() -> None:
    promise = Made((array(np.arange(24, dtype="u1")[::-1]),), Sorted(U8, (6, 4)))

    assert same(np.arange(24, dtype="u1").reshape(6, 4).T, drawn(promise.transpose((1, 0))))
