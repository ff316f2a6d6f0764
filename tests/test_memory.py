"""Bytes move once, in constant memory: measured in a process of its own on files that differ ten times in size."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

MiB = 1 << 20

PROGRAM = """
import json, os, sys

import ckptmigrate
from ckptmigrate.dtypes import BF16, F32
from ckptmigrate.files import Disk
from ckptmigrate.files.sink import Sink
from ckptmigrate.tensor import View, cast, joined

source, target, rows, columns = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
taken = {"bytes": 0}
files = set()


def counted(real, size, of):
    def call(*given, **named):
        got = real(*given, **named)
        if os.fstat(given[0]).st_ino in files:
            taken["bytes"] += size(got)
        return got
    return call


os.pread = counted(os.pread, len, 0)
os.preadv = counted(os.preadv, int, 0)
os.copy_file_range = counted(os.copy_file_range, int, 0)
files.add(os.stat(source).st_ino)

with Disk(os.path.dirname(target)) as disk, Sink(target, folder=False, verify=False) as sink:
    whole = View.rows(disk.open(source).range(0, rows * columns * 4), F32, (rows, columns))
    turned = whole.transpose((1, 0))
    first, second, third = (turned.slice(0, at * columns // 3, (at + 1) * columns // 3) for at in range(3))
    promise = cast(joined([third, first, second], 1), BF16)
    out = sink.open()
    out.put(promise)
    sink.publish()

# Not getrusage: its maximum survives exec, so that a large test run would be blamed on this program.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) * 1024
print(json.dumps({"peak": peak, "taken": taken["bytes"], "size": rows * columns * 4}))
"""


def marked(path: Path, rows: int, columns: int) -> list[tuple[int, int, float]]:
    """Make a file of zeros with a number in every few thousand rows; a hole costs no disk."""
    import numpy as np

    marks = [(row, row * 7919 % columns, float(row % 251 + 1)) for row in range(0, rows, 61)]
    with path.open("wb") as file:
        file.truncate(rows * columns * 4)
        for row, column, value in marks:
            file.seek((row * columns + column) * 4)
            file.write(np.float32(value).tobytes())
    return marks


def measured(folder: Path, rows: int, columns: int) -> dict[str, Any]:
    source, target = folder / "source", folder / "target"
    marks = marked(source, rows, columns)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source), str(target), str(rows), str(columns)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    check(target, marks, rows, columns)
    target.unlink()
    source.unlink()
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def check(target: Path, marks: list[tuple[int, int, float]], rows: int, columns: int) -> None:
    """Find every mark where transpose, split into thirds, the joint (third, first, second) and the cast put it."""
    third = columns // 3
    assert third * rows * 3 * 2 == target.stat().st_size
    with target.open("rb") as file:
        for row, column, value in marks:
            part, line = divmod(column, third)
            file.seek((line * 3 * rows + (1, 2, 0)[part] * rows + row) * 2)
            found = int.from_bytes(file.read(2), "little") << 16
            assert value == memoryview(found.to_bytes(4, "little")).cast("f")[0]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return measured(tmp_path_factory.mktemp("large"), 8192, 98_304)


@pytest.mark.slow
def test_three_gigabytes_through_transpose_slice_joint_and_cast_stay_under_150_mb(large: dict[str, Any]) -> None:
    assert large["size"] > 3 * 10**9
    assert large["peak"] <= 150 * 10**6


@pytest.mark.slow
def test_the_source_is_read_once(large: dict[str, Any]) -> None:
    assert large["taken"] <= 1.05 * large["size"]


@pytest.mark.slow
def test_a_file_ten_times_as_large_takes_no_more_memory(large: dict[str, Any], tmp_path: Path) -> None:
    small = measured(tmp_path, 8192, 9216)

    assert small["size"] * 10 < large["size"]
    assert large["peak"] - small["peak"] <= 16 * MiB
