"""Views: exact looks into a file, refused where they leave it, and read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ckptmigrate.dtypes import C64, F16, F32, I32, U8
from ckptmigrate.errors import CorruptError, LimitError, TensorError
from ckptmigrate.files import Disk, Member, Range
from ckptmigrate.limits import LIMITS
from ckptmigrate.tensor import (
    View,
    cast,
    check_expansion,
    fill,
    joined,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptmigrate.tensor.promise import Promise

from .looks import MARKED, MARKER, Bytes, Counted, bytes_in_a_file, drawn, same


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bytes]:
    with bytes_in_a_file(tmp_path_factory.mktemp("looks")) as place:
        yield place


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


def test_the_scratch_that_looks_will_spill_is_known_before_anything_is_drawn(tmp_path: Path) -> None:
    """A tall thin transpose goes through scratch in blocks, a reshape that no strides can say row by row."""
    rows = 5_000_000
    with (tmp_path / "tall").open("wb") as file:
        file.truncate(rows * 8)
    with Disk(tmp_path) as disk:
        tall = View.rows(disk.open(tmp_path / "tall").range(0, rows * 8), U8, (rows, 8))
        turned = tall.transpose((1, 0))
        flat = turned.reshape((rows * 8,))
        half = cast(joined([flat.slice(0, 0, 1000), fill(0, U8, (5,))], 0), F16)

        def awaited(promise: Promise) -> int:
            return sum(file.awaited for file in {source.file for source in promise.sources()})

        assert awaited(tall) == 0
        assert awaited(tall.slice(0, 0, 100).transpose((1, 0))) == 0
        assert awaited(turned) == rows * 8
        assert awaited(flat) == awaited(half) == 2 * rows * 8  # the blocks, and the rows made of them
        assert disk.scratch._opened is None
        half.read(0, 10)
        assert awaited(flat) == awaited(turned) == 0


def test_what_goes_through_scratch_still_names_the_member_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(96))
    with Disk(tmp_path) as disk:
        member = Member("data/0", 0, 96, 7)
        view = View.rows(disk.open(tmp_path / "x").range(0, 96, member), F32, (4, 6)).transpose((1, 0))

        for promise in (view.reshape((24,)), joined([view, view], 0).reshape((3, 16)), cast(view, F16).reshape((24,))):
            assert member in [source.member for source in promise.sources()]


def test_a_small_look_is_one_read() -> None:
    file = Counted(4096)
    view = View.rows(Range(file, 0, 4096), F32, (32, 32)).transpose((1, 0))

    view.read(0, view.numel)

    assert (file.calls, file.read) == (1, 4096)
