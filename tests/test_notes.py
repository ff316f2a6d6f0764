"""Our own JSON object is checked alike in every file that carries it."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ckptmigrate import registry, store
from ckptmigrate.errors import CorruptError, LimitError, UnsupportedFormatError
from ckptmigrate.files import Disk
from ckptmigrate.format import Parts, ReadOptions, WriteOptions

if TYPE_CHECKING:
    from pathlib import Path


def in_safetensors(text: str) -> bytes:
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": {"ckptmigrate": text}, "a": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


def in_torch_zip(text: str) -> bytes:
    stream = io.BytesIO()
    torch.save({"a": torch.zeros(1)}, stream)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("archive/.data/ckptmigrate.json", text)
    return stream.getvalue()


def in_state_json(text: str) -> bytes:
    return text.encode()


CARRIERS = {"safetensors": in_safetensors, "torch_zip": in_torch_zip, "state_json": in_state_json}


def read(carrier: str, text: str, tmp_path: Path) -> Parts:
    path = tmp_path / "carrier"
    path.write_bytes(CARRIERS[carrier](text))
    with Disk() as disk:
        return store.read(disk.open(path), ReadOptions())


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_object_comes_back_with_names_that_are_new(carrier: str, tmp_path: Path) -> None:
    notes = {"ckptmigrate": 1, "stamp": {"versions": {"a": "1"}}, "from 1.9": [1, {"x": None}]}

    assert read(carrier, json.dumps(notes), tmp_path).notes == notes


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_newer_version_is_refused_by_its_number_in_every_carrier(carrier: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"version 2 of .*, this release reads 1") as refusal:
        read(carrier, '{"ckptmigrate": 2, "record": 5}', tmp_path)

    assert refusal.value.data["version"] == 2
    assert refusal.value.hints == ["install a newer ckptmigrate"]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"ckptmigrate": "1"}', "expected a version"),
        ('{"ckptmigrate": true}', "expected a version"),
        ('{"ckptmigrate": 0}', "expected a version"),
        ('{"ckptmigrate": 1, "stamp": []}', '"stamp", expected an object'),
        ('{"ckptmigrate": 1, "record": 3}', '"record", expected an object'),
        ('{"ckptmigrate": 1, "x": 1, "x": 2}', 'duplicate key "x"'),
        ('{"ckptmigrate": 1, "x": NaN}', "JSON holds NaN"),
        ('{"ckptmigrate": 1', "is not valid JSON"),
    ],
)
def test_what_is_no_such_object_is_refused_in_every_carrier(carrier: str, text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptError) as refusal:
        read(carrier, text, tmp_path)

    assert says in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("inner", ["{}," * 2_000_000, '"' + "x" * (16 << 20) + '",'], ids=["nodes", "bytes"])
def test_an_object_that_would_fill_the_memory_is_refused(carrier: str, inner: str, tmp_path: Path) -> None:
    with pytest.raises(LimitError):
        read(carrier, '{"ckptmigrate": 1, "x": [' + inner + "0]}", tmp_path)


@pytest.mark.parametrize("name", ["torch_zip", "state_json"])
def test_a_writer_tells_of_an_object_that_no_reader_takes(name: str) -> None:
    lay_out = registry.format(name).lay_out
    tree: dict[str, Any] = {"tree": {}} if name == "torch_zip" else {}

    assert lay_out is not None
    problems = lay_out(Parts(notes={"x": "y" * (16 << 20)}, **tree), WriteOptions(), "out").problems

    assert any("readers take 16777216" in text for text in problems)
