"""Scratch: filled once, when it is first read; it has no name, and is gone with its checkpoint."""

from __future__ import annotations

import os
import shutil
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

import ckptmigrate
from ckptmigrate.errors import (
    CkptError,
    CorruptError,
    SpaceError,
    TruncatedError,
)
from ckptmigrate.files import Disk, Range
from ckptmigrate.limits import GiB, MiB

from .places import DATA, deflated, open_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Disk(scratch) as disk:
        yield disk


def test_a_spilled_file_is_filled_once_on_first_read(disk: Disk) -> None:
    calls = []

    def fill(write: Callable[[memoryview | bytes], None]) -> None:
        calls.append(1)
        for i in range(1000):
            write(i.to_bytes(4, "little"))
        write(memoryview(b"\1\0\2\0").cast("H"))

    spilled = disk.spill("numbers", 4004, fill)
    assert spilled.size == 4004
    assert calls == []

    assert spilled.pread(4 * 500, 4) == (500).to_bytes(4, "little")
    assert spilled.pread(4000, 4) == b"\1\0\2\0"
    assert calls == [1]


@pytest.mark.parametrize("nbytes", [3, 5])
def test_a_spilled_file_of_another_length_is_corrupt(disk: Disk, nbytes: int) -> None:
    spilled = disk.spill("numbers", nbytes, lambda write: write(b"1234"))

    with pytest.raises(CorruptError, match=str(nbytes)):
        spilled.pread(0, 1)


def test_spilled_files_of_unknown_length_lie_side_by_side(disk: Disk) -> None:
    inner = disk.spill("inner", None, lambda write: write(b"inner" * 1000))

    def fill(write: Callable[[memoryview | bytes], None]) -> None:
        write(inner.pread(0, 5))
        write(b"outer" * 1000)

    outer = disk.spill("outer", None, fill)
    third = disk.spill("third", 3, lambda write: write(b"abc"))

    assert outer.size == 5005
    assert third.pread(0, 3) == b"abc"
    assert outer.pread(0, 10) == b"innerouter"
    assert inner.pread(4990, 10) == b"innerinner"
    with pytest.raises(TruncatedError):
        outer.pread(5000, 6)


def test_the_scratch_file_has_no_name(disk: Disk, tmp_path: Path) -> None:
    disk.spill("numbers", 4, lambda write: write(b"1234")).pread(0, 4)

    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_scratch_folder_that_is_not_there_is_said_when_it_is_needed(tmp_path: Path) -> None:
    with Disk(tmp_path / "absent") as disk, pytest.raises(CkptError, match="scratch") as caught:
        disk.spill("numbers", 4, lambda write: write(b"1234")).pread(0, 4)

    assert caught.value.hints


def test_equal_keys_share_one_place_and_none_is_a_place_of_its_own(disk: Disk) -> None:
    def fill(write: Callable[[memoryview | bytes], None]) -> None:
        write(b"1234")

    assert disk.spill("a", 4, fill, key="k") is disk.spill("a", 4, fill, key="k")
    assert disk.spill("a", 4, fill) is not disk.spill("a", 4, fill)


def test_a_spilled_file_knows_what_it_is_drawn_from_down_to_the_disk(disk: Disk, tmp_path: Path) -> None:
    source = open_bytes(disk, tmp_path, b"0123456789").range(2, 4)
    one = Range(disk.spill("one", 4, lambda write: write(source.read(0, 4)), origins=[source]), 0, 4)
    two = Range(disk.spill("two", 2, lambda write: write(one.read(1, 2)), origins=one.sources()), 0, 2)

    assert list(source.sources()) == [source]
    assert list(one.sources()) == [one, source]
    assert list(two.sources()) == [two, one, source]
    assert [r.file.awaited for r in two.sources()] == [2, 4, 0]
    assert two.read(0, 2) == b"34"
    assert [r.file.awaited for r in two.sources()] == [0, 0, 0]


def test_scratch_that_was_left_gives_nothing_and_is_not_made_again(tmp_path: Path) -> None:
    with Disk(tmp_path) as disk:
        drawn = disk.spill("drawn", 4, lambda write: write(b"1234"))
        drawn.pread(0, 4)
        never = disk.spill("never", 4, lambda write: write(b"1234"))

    for file in (drawn, never):
        with pytest.raises(CkptError, match="its checkpoint was left") as caught:
            file.pread(0, 4)
        assert caught.value.path == file.name
    assert list(tmp_path.iterdir()) == []


def test_a_descriptor_of_scratch_that_is_held_outlives_its_disk(tmp_path: Path) -> None:
    """The thread that compares may be behind when the checkpoint is left: its number must not become another file's."""
    with Disk(tmp_path) as disk:
        descriptor, base = disk.spill("drawn", 4, lambda write: write(b"1234")).descriptor()

    (tmp_path / "other").write_bytes(b"abcd")
    with (tmp_path / "other").open("rb") as other:
        assert other.fileno() != descriptor
        assert os.pread(descriptor, 4, base) == b"1234"


def test_the_space_is_given_back_when_the_disk_is_left(tmp_path: Path) -> None:
    def held() -> int:
        return sum(
            "(deleted)" in str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
        )

    before = held()
    with Disk(tmp_path) as disk:
        disk.spill("drawn", MiB, lambda write: write(bytes(MiB))).pread(0, 4)
        assert held() == before + 1

    assert held() == before


def test_threads_may_draw_side_by_side(disk: Disk, tmp_path: Path) -> None:
    encoded = open_bytes(disk, tmp_path, deflated(DATA))
    calls = []

    def filling(i: int) -> Callable[[Callable[[memoryview | bytes], None]], None]:
        def fill(write: Callable[[memoryview | bytes], None]) -> None:
            calls.append(i)
            for _ in range(100):
                write(bytes([i]) * 5000)

        return fill

    def draw(i: int) -> bool:
        stream = encoded.decoded("deflate", len(DATA), GiB, zlib.crc32(DATA)).range(i * 1000, MiB)
        shared = disk.spill("shared", 500_000, filling(99), key="shared")
        own = disk.spill("own", 500_000, filling(i), key=("own", i))
        return (
            stream.read(0, MiB) == DATA[i * 1000 : i * 1000 + MiB]
            and own.pread(0, 500_000) == bytes([i]) * 500_000
            and shared.pread(0, 500_000) == bytes([99]) * 500_000
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(draw, range(24)))
    assert sorted(calls) == [*range(24), 99]


def free(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=nbytes))


@pytest.mark.parametrize("look", ["decoded", "turned"])
def test_a_disk_that_cannot_hold_output_and_scratch_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    size = 40 * MiB
    state = {"w": torch.zeros(size // 8, 8, dtype=torch.uint8)}
    torch.save({"w": state["w"].t()} if look == "turned" else state, tmp_path / "plain.pt")
    if look == "decoded":
        with (
            zipfile.ZipFile(tmp_path / "plain.pt") as plain,
            zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for name in plain.namelist():
                packed.writestr(name, plain.read(name))
    source = tmp_path / ("plain.pt" if look == "turned" else "x.pt")
    out = tmp_path / "out.safetensors"

    free(monkeypatch, 2 * size)  # the output has a header too
    with pytest.raises(SpaceError, match="the output and its scratch, both on one disk") as caught:
        ckptmigrate.migrate(source, out, scratch=str(tmp_path))
    assert caught.value.data["needed"] > 2 * size
    assert not out.exists()
    free(monkeypatch, size - 1)
    with pytest.raises(SpaceError, match="the output needs"):
        ckptmigrate.migrate(source, out, scratch=str(tmp_path))
    free(monkeypatch, 2 * size + MiB)
    assert ckptmigrate.migrate(source, out, scratch=str(tmp_path)).written


def test_a_scratch_folder_that_is_not_there_matters_only_where_scratch_is_needed(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(5_000_000, 8, dtype=torch.uint8).t()}, tmp_path / "turned.pt")
    torch.save({"w": torch.zeros(3)}, tmp_path / "plain.pt")
    absent = str(tmp_path / "absent")

    assert ckptmigrate.migrate(tmp_path / "plain.pt", tmp_path / "a.safetensors", scratch=absent).written
    with pytest.raises(CkptError, match="no scratch file can be made here") as caught:
        ckptmigrate.migrate(tmp_path / "turned.pt", tmp_path / "b.safetensors", scratch=absent)
    assert caught.value.path == absent
    assert not (tmp_path / "b.safetensors").exists()
