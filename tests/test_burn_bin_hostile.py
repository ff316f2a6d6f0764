"""Hostile binary records: nothing claims memory or time that its bytes do not pay for."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from ckptmigrate.errors import CkptError, LimitError, UnsupportedFormatError
from ckptmigrate.files import Disk
from ckptmigrate.format import ReadOptions
from ckptmigrate.testing import Memory, check_flips, check_reads_lazily, check_sniffs_own, check_truncation

from .burn_bins import BURN_BIN, LINEAR, head, read, schema_of, small, text
from .burn_records import MUSEUM

EXAMPLES = {"small": (small(), LINEAR)}
for _release, _name in (("0.7.0", "net-full.bin"), ("0.13.2", "net-half.bin.gz"), ("0.21.0", "optim-adam-full.bin")):
    _path = MUSEUM / _release / _name
    _data = _path.read_bytes()
    EXAMPLES[f"{_release}-{_name.removesuffix('.gz')}"] = (
        gzip.decompress(_data) if _name.endswith(".gz") else _data,
        json.loads(schema_of(_path).read_text()),
    )
EXAMPLES["gzip"] = (gzip.compress(small(), mtime=0), LINEAR)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_contract_of_formats_is_kept(name: str) -> None:
    data, schema = EXAMPLES[name]
    check_sniffs_own(BURN_BIN, data)
    check_reads_lazily(BURN_BIN, data, ReadOptions(schema=schema))
    check_truncation(BURN_BIN, data, options=ReadOptions(schema=schema), clock=time.monotonic)
    check_flips(BURN_BIN, data, options=ReadOptions(schema=schema), clock=time.monotonic)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_refusal_without_a_schema_meets_no_other_exception(name: str) -> None:
    data, _ = EXAMPLES[name]
    for cut in range(0, len(data), max(1, len(data) // 200)):
        for hostile in (data[:cut], data[:cut] + bytes([data[cut] ^ 0xFF]) + data[cut + 1 :]):
            source = Memory(hostile)
            if BURN_BIN.sniff(source) is not None:
                with pytest.raises(CkptError):
                    BURN_BIN.read(source, ReadOptions())


HUGE = b"\xfd" + b"\xff" * 8


@pytest.mark.parametrize(
    ("rest", "schema"),
    [
        (HUGE, {"vec": "param"}),
        (HUGE, {"vec": "constant"}),
        (HUGE, {"vec": {"struct": [["k", "constant"]]}}),
        (HUGE, {"map": "constant"}),
        (HUGE, "param"),
        (HUGE, "tensor"),
        (b"\x04" + bytes(4) + HUGE, "tensor"),
        (b"\x04" + bytes(4) + b"\x02" + HUGE + b"\x01\x01", "tensor"),
        (b"\x04" + bytes(4) + b"\x08" + HUGE * 8 + b"\x01", "tensor"),
        (b"\x04" + bytes(4) + b"\x01\x01\x0f", "tensor"),
        (b"\x04" + bytes(4) + b"\x01\x01\x63", "tensor"),
        (b"\x02", "bool"),
        (b"\x01\xff", "str"),
        (b"\x01\x01a\x00\x01a\x00", {"map": "constant"}),
        (b"\x02\x01a\x00\x01a\x00", {"map": "constant"}),
        (b"\x01", "constant"),
        (b"", "f64"),
    ],
)
def test_claims_are_checked_before_memory_is_taken(rest: bytes, schema: Any) -> None:
    start = time.monotonic()
    with pytest.raises(CkptError):
        read(head("0.20.1") + rest, schema)

    assert time.monotonic() - start < 2


@pytest.mark.parametrize("of", ["unit", {"struct": []}, {"array": "unit", "len": 1_000_000}, {"tuple": []}])
def test_any_number_of_nothing_costs_nothing(of: Any) -> None:
    start = time.monotonic()
    read(head("0.20.1") + HUGE, {"vec": of})

    assert time.monotonic() - start < 1


def test_a_bomb_of_constants_is_refused_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "bomb.bin.gz"
    path.write_bytes(gzip.compress(head("0.20.1") + b"\xfc\xff\xff\xff\x7f" + bytes(50_000_000), 9))
    start = time.monotonic()
    with Disk() as disk, pytest.raises(CkptError):
        BURN_BIN.read(disk.open(path), ReadOptions(schema={"vec": {"struct": [["k", "constant"]]}}))
    with Disk() as disk, pytest.raises(CkptError):
        BURN_BIN.read(disk.open(path), ReadOptions(schema={"vec": "constant"}))
    with Disk() as disk, pytest.raises(UnsupportedFormatError):
        BURN_BIN.read(disk.open(path), ReadOptions())

    assert time.monotonic() - start < 5


def test_a_file_of_nothing_but_ids_is_refused_in_seconds(tmp_path: Path) -> None:
    """Each id claims a list of halves that goes on to the end, which must not be crossed once for each."""
    path = tmp_path / "ids.bin"
    entry = text("aaaaaaaaaaaaa") + b"\xfc\x00\x00\x01\x00"
    path.write_bytes(head("0.13.2", "half::binary16::f16", "i16") + entry * 200_000)
    start = time.monotonic()
    with Disk() as disk, pytest.raises(UnsupportedFormatError):
        BURN_BIN.read(disk.open(path), ReadOptions())

    assert time.monotonic() - start < 5


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    schema: Any = "param"
    for _ in range(100_000):
        schema = {"option": schema}
    with pytest.raises(LimitError):
        read(small(), schema)
