"""Ten steps cost one read and one write, in constant memory: bytes are counted where the disk is asked for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import ckptmigrate
from ckptmigrate import (
    Add,
    Cast,
    Concat,
    Order,
    Reindex,
    Rename,
    Reorder,
    Reshape,
    Split,
    Stack,
    Tie,
    Transpose,
    Unstack,
)

if TYPE_CHECKING:
    from pathlib import Path

HEADS, WIDTH, LAYERS = 4, 1536, (1, 3)
CHAIN = [
    Rename(r"h\.(\d+)\.(.*)", r"layers.\1.\2"),
    Reindex(r"layers\.(\d+)\..*"),
    Transpose(r".*\.out"),
    Split(r"(.*)\.qkv", [r"\1.q", r"\1.k", r"\1.v"]),
    Reorder(r".*\.[qk]", fold=(HEADS, -1, 2), axes=(0, 2, 1)),
    Reshape(r".*\.conv", ("*", "*"), old=("*", "*", 1, 1)),
    Concat([r"(.*)\.v", r"(.*)\.conv"], r"\1.both", 1),
    Stack(r"layers\.(\d+)\.both", "both"),
    Cast("both", "BF16"),
    Add(r"\1.scale", near=r"(.*)\.q", shape=["*"], fill=1),
    Order(["both", r"layers\..*"]),
]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], int]:
    """Count the bytes that are read from and written to each file, by its inode."""
    found: dict[tuple[str, int], int] = {}

    def note(what: str, descriptor: int, count: int) -> None:
        key = what, os.fstat(descriptor).st_ino
        found[key] = found.get(key, 0) + count

    real = {name: getattr(os, name) for name in ("preadv", "pwrite", "copy_file_range")}

    def preadv(descriptor: int, *given: Any) -> int:
        count = int(real["preadv"](descriptor, *given))
        note("read", descriptor, count)
        return count

    def pwrite(descriptor: int, *given: Any) -> int:
        count = int(real["pwrite"](descriptor, *given))
        note("written", descriptor, count)
        return count

    def copy_file_range(source: int, target: int, *given: Any) -> int:
        count = int(real["copy_file_range"](source, target, *given))
        note("read", source, count)
        note("written", target, count)
        return count

    for call in (preadv, pwrite, copy_file_range):
        monkeypatch.setattr(os, call.__name__, call)
    return found


def model() -> dict[str, torch.Tensor]:
    made: dict[str, torch.Tensor] = {}
    for layer in LAYERS:
        made[f"h.{layer}.qkv"] = torch.rand(3 * WIDTH, WIDTH)
        made[f"h.{layer}.out"] = torch.rand(WIDTH // 2, WIDTH)
        made[f"h.{layer}.conv"] = torch.rand(WIDTH, WIDTH, 1, 1)
    return made


def halves(weight: torch.Tensor) -> torch.Tensor:
    return weight.reshape(HEADS, WIDTH // HEADS // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def expected(old: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    made, both = {}, []
    for number, layer in enumerate(LAYERS):
        q, k, v = old[f"h.{layer}.qkv"].chunk(3)
        made[f"layers.{number}.q"], made[f"layers.{number}.k"] = halves(q), halves(k)
        made[f"layers.{number}.out"] = old[f"h.{layer}.out"].T
        made[f"layers.{number}.scale"] = torch.ones(WIDTH)
        both.append(torch.cat([v, old[f"h.{layer}.conv"].squeeze()], 1))
    made["both"] = torch.stack(both).bfloat16()
    return made


def test_a_chain_of_many_steps_costs_one_read_and_one_write(
    tmp_path: Path, counted: dict[tuple[str, int], int]
) -> None:
    source, target = tmp_path / "old.pt", tmp_path / "new.safetensors"
    old = model()
    torch.save(old, source)
    report = ckptmigrate.migrate(source, target, operations=tuple(CHAIN), verify=False)
    assert isinstance(report, ckptmigrate.Report)
    with ckptmigrate.open(target) as new:
        found = {name: tensor.torch() for name, tensor in new.model.items()}

    assert list(found)[:1] == ["both"]
    wanted = expected(old)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert counted["read", source.stat().st_ino] <= 1.05 * source.stat().st_size
    assert counted["written", target.stat().st_ino] == target.stat().st_size
    assert {inode for what, inode in counted if what == "written"} == {target.stat().st_ino}


def test_what_no_run_of_bytes_gives_goes_through_scratch_and_the_source_is_read_once_still(
    tmp_path: Path, counted: dict[tuple[str, int], int]
) -> None:
    source, target = tmp_path / "old.pt", tmp_path / "new.safetensors"
    torch.save({"q": torch.rand(WIDTH, WIDTH)}, source)
    weight = torch.load(source, weights_only=True)["q"].T
    chain = (Transpose("q"), Reorder("q", fold=(HEADS, -1, 2), axes=(0, 2, 1)))
    ckptmigrate.migrate(source, target, operations=chain, verify=False)
    with ckptmigrate.open(target) as new:
        assert torch.equal(new.model["q"].torch(), halves(weight))

    assert counted["read", source.stat().st_ino] <= 1.05 * source.stat().st_size
    assert (
        sum(count for (what, _), count in counted.items() if what == "written") == target.stat().st_size + weight.nbytes
    )


def test_names_that_share_bytes_are_written_once(tmp_path: Path) -> None:
    source, target = tmp_path / "old.pt", tmp_path / "new.safetensors"
    torch.save({"embed": torch.rand(64, 64), "head": torch.rand(64, 64)}, source)
    ckptmigrate.migrate(source, target, operations=(Tie("embed", "head"), Unstack("nothing", "x{}", optional=True)))

    assert target.stat().st_size < 64 * 64 * 4 + 4096
    assert list(load_file(target)) == ["embed"]
    with ckptmigrate.open(target) as new:
        np.testing.assert_array_equal(new.model["head"].numpy(), new.model["embed"].numpy())


PROGRAM = """
import json, os, sys
import ckptmigrate
from ckptmigrate import Cast, Concat, Reorder, Split, Transpose

chain = (
    Transpose("w"),
    Reorder("w", fold=(16, -1, 2), axes=(0, 2, 1)),
    Split("w", ["a", "b", "c"], 1),
    Reorder("a|b|c", (3, 1, 0, 2)),
    Concat(["c", "a", "b"], "w", 1),
    Cast("w", "BF16"),
)
ckptmigrate.migrate(sys.argv[1], sys.argv[2], operations=chain, verify=False)
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(peak * 1024)
"""


def peak_of(folder: Path, rows: int, columns: int) -> int:
    """Give the peak memory, in bytes, of a process that takes a file of zeros through the chain."""
    head = json.dumps(
        {"w": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, rows * columns * 4]}}
    ).encode()
    source, target = folder / "old.safetensors", folder / "new.safetensors"
    with source.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + rows * columns * 4)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source), str(target)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert target.stat().st_size >= rows * columns * 2
    source.unlink()
    target.unlink()
    return int(ran.stdout)


@pytest.mark.slow
def test_operations_take_no_more_memory_for_a_file_ten_times_as_large(tmp_path: Path) -> None:
    small, large = peak_of(tmp_path, 9216, 1024), peak_of(tmp_path, 9216, 10_240)

    assert large <= 250 * 10**6
    assert large - small <= 32 << 20
