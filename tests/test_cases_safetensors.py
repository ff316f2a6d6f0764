"""Public failure reports, part E: safetensors, judged by the reference library."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import ckptmigrate

if TYPE_CHECKING:
    from .conftest import Refuse


def save(path: Path, obj: Any) -> Path:
    torch.save(obj, path)
    return path


def raw(path: Path, header: str | dict[str, Any], data: bytes = b"") -> Path:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as opened:
        return dict(opened.metadata() or {})


def tied(path: Path) -> Path:
    a = torch.arange(6.0).reshape(2, 3)
    return save(path, {"emb.weight": a, "head.weight": a})


def test_e01_a_tie_is_written_once_recorded_and_comes_back(tmp_path: Path) -> None:
    done = ckptmigrate.migrate(tied(tmp_path / "in.pt"), tmp_path / "out.safetensors")
    ckptmigrate.migrate(tmp_path / "out.safetensors", tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt", weights_only=True)

    assert list(load_file(tmp_path / "out.safetensors")) == ["emb.weight"]
    assert metadata(tmp_path / "out.safetensors")["head.weight"] == "emb.weight"
    assert list(back) == ["emb.weight", "head.weight"]
    assert back["emb.weight"].data_ptr() == back["head.weight"].data_ptr()
    assert "head.weight" in " ".join(done.notes)


@pytest.mark.parametrize("write", [{"ties": "duplicate"}, {"bare": True}])
def test_e01_duplicate_and_bare_write_both(write: dict[str, Any], tmp_path: Path) -> None:
    ckptmigrate.migrate(tied(tmp_path / "in.pt"), tmp_path / "out.safetensors", write=ckptmigrate.WriteOptions(**write))
    loaded = load_file(tmp_path / "out.safetensors")

    assert torch.equal(loaded["emb.weight"], loaded["head.weight"])


def test_e01_disjoint_slices_of_one_storage_are_not_tied(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    ckptmigrate.migrate(save(tmp_path / "in.pt", {"a": base[:3], "b": base[3:]}), tmp_path / "out.safetensors")

    assert {k: v.tolist() for k, v in load_file(tmp_path / "out.safetensors").items()} == {
        "a": [0, 1, 2],
        "b": [3, 4, 5],
    }
    assert "b" not in metadata(tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    "header",
    [
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        '{"__metadata__":{"a":"1","a":"2"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    ],
)
def test_e03_a_duplicate_key_is_refused_by_name(header: str, tmp_path: Path, refuse: Refuse) -> None:
    refuse(raw(tmp_path / "in.safetensors", header, bytes(8)), "duplicate key", "a|dtype")


def test_e05_an_invalid_header_is_refused_with_its_position(tmp_path: Path, refuse: Refuse) -> None:
    refuse(raw(tmp_path / "in.safetensors", '{},"__metadata__":{"key":"value"}}'), "not valid JSON", "column 3")


def test_e05_a_file_without_tensors_opens_and_is_not_converted(tmp_path: Path, refuse: Refuse) -> None:
    source = raw(tmp_path / "in.safetensors", {"__metadata__": {"key": "value"}})
    shown = ckptmigrate.inspect(source)

    assert shown["sections"]["model"]["tensors"] == []
    assert "value" in json.dumps(shown)
    refuse(source, "holds no tensors")


HALF = {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}


def test_e07_a_short_data_section_names_both_numbers_and_the_tensor(tmp_path: Path, refuse: Refuse) -> None:
    refuse(raw(tmp_path / "in.safetensors", HALF, bytes(9)), "truncated: needs 16 data bytes, has 9", r"\ba\b")


def test_e07_a_cut_header_names_length_and_bytes_present(tmp_path: Path, refuse: Refuse) -> None:
    source = raw(tmp_path / "in.safetensors", HALF)
    data = source.read_bytes()
    source.write_bytes(data[:40])

    refuse(source, str(len(data) - 8), r"\b32\b")


def test_e07_five_bytes_are_shorter_than_the_length_prefix(tmp_path: Path, refuse: Refuse) -> None:
    source = tmp_path / "in.safetensors"
    source.write_bytes(b"\x10\0\0\0\0")

    refuse(source, "shorter than 8 bytes")


def test_e09_an_empty_tensor_is_legal_and_keeps_dtype_and_shape(tmp_path: Path) -> None:
    header = {
        "scaled_fp8": {"dtype": "F8_E4M3", "shape": [0], "data_offsets": [0, 0]},
        "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    }
    ckptmigrate.migrate(raw(tmp_path / "in.safetensors", header, bytes(4)), tmp_path / "out.safetensors")

    shown = ckptmigrate.inspect(tmp_path / "out.safetensors")["sections"]["model"]["tensors"]
    assert [(t["name"], t["dtype"], t["shape"]) for t in shown] == [("scaled_fp8", "F8_E4M3", [0]), ("a", "F32", [1])]


def test_e09_an_empty_range_for_an_element_is_refused_with_both_numbers(tmp_path: Path, refuse: Refuse) -> None:
    header = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 0]}}

    refuse(raw(tmp_path / "in.safetensors", header), "needs 4 bytes, range holds 0")


def test_e11_channels_last_and_transposed_tensors_are_written_row_major(tmp_path: Path) -> None:
    image = torch.arange(96.0).reshape(2, 3, 4, 4)
    saved = {"c": image.to(memory_format=torch.channels_last), "t": torch.arange(6).reshape(2, 3).t()}
    ckptmigrate.migrate(save(tmp_path / "in.pt", saved), tmp_path / "out.safetensors")
    loaded = load_file(tmp_path / "out.safetensors")

    assert loaded["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert torch.equal(loaded["c"], image)


def test_b03_strides_with_an_offset_give_the_logical_values(tmp_path: Path) -> None:
    base = torch.arange(2 * 3 * 2 * 2.0).reshape(2, 3, 2, 2)
    saved = {"conv.weight": base.to(memory_format=torch.channels_last), "part": base.reshape(6, 4)[1:, 1:3].t()}
    ckptmigrate.migrate(save(tmp_path / "in.pt", saved), tmp_path / "out.safetensors")
    loaded = load_file(tmp_path / "out.safetensors")

    assert loaded["conv.weight"][1, 2, 1, 1] == 23
    assert torch.equal(loaded["part"], base.reshape(6, 4)[1:, 1:3].t())


def test_e13_complex64_is_written_and_complex128_refused_by_name(tmp_path: Path, refuse: Refuse) -> None:
    ckptmigrate.migrate(
        save(tmp_path / "in.pt", {"freqs_cis": torch.ones(2, dtype=torch.complex64)}), tmp_path / "out.safetensors"
    )
    shown = ckptmigrate.inspect(tmp_path / "out.safetensors")["sections"]["model"]["tensors"]
    assert [(t["dtype"], t["nbytes"]) for t in shown] == [("C64", 16)]

    source = save(tmp_path / "wide.pt", {"freqs_cis": torch.ones(2, dtype=torch.complex128)})
    refuse(source, "freqs_cis", "complex128", out="wide.safetensors")


def test_b06_every_dtype_is_preserved_bit_for_bit(tmp_path: Path) -> None:
    dtypes = [
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    ]
    saved = {str(d): torch.tensor([0, 1, 2]).to(d) for d in dtypes} | {"torch.bool": torch.tensor([True, False, True])}
    ckptmigrate.migrate(save(tmp_path / "in.pt", saved), tmp_path / "out.safetensors")
    loaded = load_file(tmp_path / "out.safetensors")

    assert list(loaded.keys() ^ saved.keys()) == []
    for name, value in saved.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value)


def test_a_shard_says_that_its_tensors_are_parts(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"DCP_SHARDING_INFO": '{"w": {"saved_offsets": [0]}}'},
        "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    }
    shown = ckptmigrate.inspect(raw(tmp_path / "in.safetensors", header, bytes(4)))

    assert any("one shard" in warning for warning in shown["warnings"])
