"""Named MessagePack records that contradict themselves, are cut, damaged or bombs: refused by name, in little memory."""

from __future__ import annotations

import gzip
import re
import time
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from ckptmigrate.errors import CkptError, CorruptError, TruncatedError
from ckptmigrate.files import Disk
from ckptmigrate.format import ReadOptions
from ckptmigrate.formats.burn_mpk import FORMAT
from ckptmigrate.tensor import Tensor, windows
from ckptmigrate.testing import Memory, check_flips, check_reads_lazily, check_sniffs_own, check_truncation

from .burn_mpks import T, param, parsed, record
from .burn_records import MUSEUM


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (
            {"linear": {"weight": param({"value": [1.0, 2.0, 3.0], "shape": [2, 2]})}},
            r"linear\.weight: 3 numbers .* \[2, 2\] holds 4",
        ),
        ({"w": param({"value": [], "shape": [2]})}, "w: 0 numbers .* holds 2"),
        ({"w": param({"bytes": bytes(15), "shape": [2, 2], "dtype": "F32"})}, r"w: 15 bytes, .* needs 16"),
        ({"w": param({"bytes": bytes(4), "shape": [1], "dtype": "F99"})}, "w: dtype .*F99"),
        ({"w": param({"bytes": bytes(4), "shape": [-1], "dtype": "F32"})}, "w: its shape"),
        ({"w": param({"bytes": bytes(4), "shape": [1.5], "dtype": "F32"})}, "w: its shape"),
        ({"w": param({"bytes": bytes(4), "shape": [1 << 62, 1 << 62], "dtype": "F32"})}, "w: 4 bytes"),
        ({"w": param({"bytes": bytes(0), "shape": [1] * 100, "dtype": "F32"})}, "w: its shape"),
        ({"a.b": param(T(1)), "a": {"b": param(T(1))}}, 'the name "a.b"'),
        ({"w": "text"}, "w is str"),
        ("text", "the item is str"),
    ],
)
def test_a_tree_that_contradicts_itself_is_refused_by_name(item: Any, says: str) -> None:
    with pytest.raises(CkptError, match=says):
        parsed(item)


def test_an_array_of_numbers_with_another_among_them_is_found_when_drawn() -> None:
    values = [15360] * 200 + [-5]
    parts = parsed({"w": param({"value": [*values], "shape": [201]})}, float="f32", int="f32")
    tensor = (parts.tensors or {})["w"]

    assert isinstance(tensor, Tensor)
    assert tensor.numpy().tolist() == values


@pytest.mark.parametrize("metadata", [{}, {"float": "f32"}, {"float": "f128", "int": "i32", "version": "1"}, 3, None])
def test_an_envelope_without_its_texts_is_refused(metadata: Any) -> None:
    data = msgpack.packb({"metadata": metadata, "item": None})
    source = Memory(data)

    assert isinstance(metadata, dict) == (FORMAT.sniff(source) is not None)
    with pytest.raises(CorruptError):
        FORMAT.read(source, ReadOptions())


def test_bytes_behind_the_record_are_said() -> None:
    parts = FORMAT.read(Memory(record({"w": param(T(1))}) + b"tail"), ReadOptions())

    assert "follow" in parts.warnings[0]


@pytest.mark.parametrize("era", [{"value": list(np.arange(99.0)), "shape": [99]}, T(99)])
def test_a_record_that_is_cut_says_within_which_tensor(era: dict[str, Any]) -> None:
    data = record({"enc": [{"w": param(T(2)), "b": None}, {"w": param(era)}]})
    with pytest.raises(CkptError) as caught:
        FORMAT.read(Memory(data[:-60]), ReadOptions())

    assert re.match(r"item\.enc\.1\.w\.param\.(value|bytes): ", caught.value.message)
    assert len(re.findall(r"\d+", caught.value.message.partition(": ")[2])) >= 2


def test_a_gzip_stream_that_is_cut_or_damaged_is_refused(tmp_path: Path) -> None:
    data = gzip.compress(
        record({"w": param({"value": list(np.random.default_rng(1).random(50_000)), "shape": [50_000]})})
    )
    for name, damaged in {"cut": data[:-9], "crc": data[:-8] + bytes(8)}.items():
        path = tmp_path / f"{name}.mpk.gz"
        path.write_bytes(damaged)
        with Disk() as disk, pytest.raises(CkptError) as caught:
            FORMAT.read(disk.open(path), ReadOptions())

        assert caught.value.path == str(path)


def test_a_bomb_is_refused_in_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "bomb.mpk.gz"
    head = record({"w": param({"value": [], "shape": [1]})})
    start = head.index(b"\xa5value\x90") + 6
    with gzip.open(path, "wb", 9) as file:
        file.write(head[:start] + b"\xdd\xff\xff\xff\xff")
        for _ in range(200):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    begun = time.monotonic()
    with Disk(tmp_path) as disk, pytest.raises(TruncatedError):
        FORMAT.read(disk.open(path), ReadOptions())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert time.monotonic() - begun < 20
    assert peak < 20 << 20


EXAMPLES = [
    "0.13.2/net-half.mpk",
    "0.21.0/net-full.mpk",
    "0.7.0/net-half.mpk.gz",
    "0.14.0/quant-affine-full.mpk",
    "0.21.0/optim-lbfgs-half.mpk",
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_contract(name: str) -> None:
    data = (MUSEUM / name).read_bytes()
    options = ReadOptions(dequantize=True)

    check_sniffs_own(FORMAT, data)
    check_reads_lazily(FORMAT, data, options)
    check_truncation(FORMAT, data, options=options, clock=time.monotonic)
    check_flips(FORMAT, data, 600, options, time.monotonic)
    if name.endswith(".gz"):
        check_truncation(FORMAT, gzip.decompress(data), options=options, clock=time.monotonic)


@pytest.mark.parametrize(
    ("item", "says"),
    [(b"\x90", "values"), (b"\x91\x01", "values"), (b"\x81\xa2ab\x80", "values"), (b"\x92" * 3000, "nested")],
)
def test_a_small_file_of_many_containers_is_refused(tmp_path: Path, item: bytes, says: str) -> None:
    path = tmp_path / "many.mpk.gz"
    head = record(None)
    path.write_bytes(
        gzip.compress(
            head[: head.index(b"\xa4item") + 5] + b"\xdd\x00\xff\xff\xff" + item * 1_100_000
            if len(item) < 10
            else head[:-5] + item,
            1,
        )
    )
    begun = time.monotonic()
    with Disk(tmp_path) as disk, pytest.raises(CkptError, match=says):
        FORMAT.read(disk.open(path), ReadOptions())

    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("floats", ["f32", "half::binary16::f16"])
def test_memory_does_not_grow_with_the_tensor(tmp_path: Path, floats: str, packed: bool) -> None:
    import tracemalloc

    peaks = []
    for count in (1_000_000, 8_000_000):
        item = np.zeros((count, 5 if floats == "f32" else 3), "u1")
        item[:, 0] = 0xCA if floats == "f32" else 0xCD
        item[:, 1] = 0x3C
        shell = record({"w": param({"value": [], "shape": [count]})}, float=floats)
        at = shell.index(b"\xa5value\x90") + 6
        data = shell[:at] + b"\xdd" + count.to_bytes(4, "big") + item.tobytes() + shell[at + 1 :]
        path = tmp_path / f"{count}.mpk"
        path.write_bytes(gzip.compress(data, 1) if packed else data)
        del data, item
        tracemalloc.start()
        with Disk(tmp_path) as disk:
            tensor = (FORMAT.read(disk.open(path), ReadOptions()).tensors or {})["w"]
            assert isinstance(tensor, Tensor)
            assert sum(len(piece) for piece in windows(tensor.promise)) == tensor.nbytes
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] < peaks[0] + (4 << 20)
    assert peaks[1] < 40 << 20
