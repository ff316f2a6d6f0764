"""Promises against numpy at random windows; parts side by side, rules over whole inputs, and how much is drawn at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmigrate.dtypes import F16, F32, F64, I32, U8, DType
from ckptmigrate.errors import TensorError
from ckptmigrate.files import Disk, Range
from ckptmigrate.tensor import (
    Joined,
    Tensor,
    View,
    array,
    cast,
    fill,
    joined,
    negate,
    strides,
)
from ckptmigrate.tensor import promise as promise_module
from ckptmigrate.tensor import view as view_module
from ckptmigrate.tensor.promise import Made, Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

from .looks import Bytes, Counted, bytes_in_a_file, drawn, promises, same


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bytes]:
    with bytes_in_a_file(tmp_path_factory.mktemp("looks")) as place:
        yield place


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
        (view_module, "TINY"),
        (promise_module, "PIECE"),
    ):
        monkeypatch.setattr(module, name, draws.draw(st.sampled_from([8, 16, 40, 200])))
    budgets = draws.draw(st.sampled_from([(4,), (8, 64), (16, 100)]))
    for module in (strides, view_module, promise_module):
        monkeypatch.setattr(module, "WINDOWS", budgets)
    monkeypatch.setattr(view_module, "STAGE", draws.draw(st.sampled_from([0.0, 1.0])))
    assert isinstance(place.range.file.disk, Disk)
    place.range.file.disk._spilled.clear()
    promise, values = draws.draw(promises(place))
    start = draws.draw(st.integers(0, values.size))
    stop = draws.draw(st.integers(start, values.size))

    assert values.reshape(-1)[start:stop].tobytes() == bytes(promise.read(start, stop))
    assert same(values, drawn(promise))


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


def test_a_rule_over_whole_inputs_tells_its_scratch_and_its_sources_without_being_drawn(place: Bytes) -> None:
    rule = Sorted(U8, (6, 4))
    promise = Made((View.rows(place.range.part(48, 24), U8, (24,)),), rule)
    in_memory = Made((array(np.arange(24, dtype="u1")),), rule)

    sources = list(promise.sources())

    assert [source.file.awaited for source in sources] == [24, 0]
    assert sources[1] == place.range.part(48, 24)
    assert list(promise.transpose((1, 0)).sources()) == sources
    assert list(in_memory.sources()) == []
    assert rule.drawn == []
