"""Public cases of Burn, end to end on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

import ckptmigrate
from ckptmigrate.values import Scalar

from .command_line import Ran


def mpk(path: Path, item: Any, version: str = "0.20.1") -> Path:
    metadata = {"float": "f32", "int": "i32", "format": "NamedMpk", "version": version, "settings": "Full"}
    path.write_bytes(msgpack.packb({"metadata": metadata, "item": item, "_b": []}))
    return path


def payload(values: Any) -> dict[str, Any]:
    array = np.array(values, "<f4")
    return {"bytes": array.tobytes(), "shape": list(array.shape), "dtype": "F32"}


def parameter(text: str, values: Any) -> dict[str, Any]:
    return {"id": text, "param": payload(values)}


def test_a01_a_missing_field_without_tensors_is_no_obstacle_and_nothing_is_invented(tmp_path: Path) -> None:
    weight = np.arange(6, dtype="f4").reshape(2, 3)
    inner = {"weight": parameter("aaaaaaaaaaaaa", weight), "bias": None}
    outer = {"weight": parameter("bbbbbbbbbbbbb", weight.T), "bias": None}
    record = mpk(tmp_path / "classifier.mpk", {"pwff": {"linear_inner": inner, "linear_outer": outer}})
    for out in ("out.bpk", "out.safetensors"):
        assert Ran("migrate", record, tmp_path / out).code == 0
        with ckptmigrate.open(tmp_path / out) as checkpoint:
            assert list(checkpoint.model) == ["pwff.linear_inner.weight", "pwff.linear_outer.weight"]
            assert checkpoint.model["pwff.linear_inner.weight"].numpy().tobytes() == weight.tobytes()

    for words in (["old", "--to", "burn_mpk"], ["old.mpk"], ["old.mpk.gz"], ["old.bin.gz"]):
        refused = Ran("migrate", record, tmp_path / words[0], *words[1:])
        assert refused.code == 2
        assert "is read only" in refused.err
        assert "burnpack" in refused.err
        assert "safetensors" in refused.err
        assert not (tmp_path / words[0]).exists()


def test_a05_a_binary_record_is_told_of_and_read_with_a_schema(tmp_path: Path) -> None:
    texts = (b"f32", b"i32", b"burn_core::record::file::BinFileRecorder", b"0.19.0", b"FullPrecisionSettings")
    head = b"".join(bytes([len(text)]) + text for text in texts)
    weight = np.array([[1.5, -2], [0, 3.25]], "<f4")
    body = b"\x0daaaaaaaaaaaaa" + b"\x10" + weight.tobytes() + b"\2\2\2\1" + b"\0"
    (tmp_path / "linear.bin").write_bytes(head + body)
    linear = [["weight", "param"], ["bias", {"option": "param"}]]
    (tmp_path / "schema.json").write_text(json.dumps({"struct": [["linear", {"struct": linear}]]}))
    refused = Ran("migrate", tmp_path / "linear.bin", tmp_path / "out.bpk")

    assert refused.code == 3
    for mention in ("0.19.0", "FullPrecisionSettings", "--schema FILE", "names"):
        assert mention in refused.err
    done = Ran("migrate", tmp_path / "linear.bin", tmp_path / "out.bpk", "--schema", tmp_path / "schema.json", "--json")
    assert done.code == 0, done.err
    with ckptmigrate.open(tmp_path / "out.bpk") as checkpoint:
        assert list(checkpoint.model) == ["linear.weight"]
        assert checkpoint.model["linear.weight"].numpy().tolist() == weight.tolist()


def a07(folder: Path) -> Path:
    """A model and an optimizer of two parameters, the optimizer in the other order."""
    (folder / "run").mkdir()
    weight, bias = np.array([[1, 2], [3, 4]], "f4"), np.array([5, 6], "f4")
    model = {"linear": {"weight": parameter("aaaaaaaaaaaaa", weight), "bias": parameter("bbbbbbbbbbbbb", bias)}}
    mpk(folder / "run" / "model-9.mpk", model)
    state = {
        text: {"V1": {f"Rank{value.ndim}": {"momentum": {
            "time": 5, "moment_1": payload(value * 10), "moment_2": payload(value * 100),
        }}}}
        for text, value in (("bbbbbbbbbbbbb", bias), ("aaaaaaaaaaaaa", weight))
    }  # fmt: skip
    mpk(folder / "run" / "optim-9.mpk", state)
    return folder / "run"


def test_a07_optimizer_state_is_joined_to_names_and_written_under_the_models_ids(tmp_path: Path) -> None:
    run = a07(tmp_path)
    assert Ran("migrate", run, tmp_path / "out", "--bare").code == 0
    with ckptmigrate.open(tmp_path / "out") as checkpoint:
        (optimizer,) = checkpoint.optimizers
        assert [param.name for param in optimizer.params] == ["linear.weight", "linear.bias"]
        assert [param.key for param in optimizer.params] == [tensor.id for tensor in checkpoint.model.values()]
        slots = optimizer.params[0].slots or {}
        assert slots["momentum.time"].value == Scalar("uint", 5)
        assert slots["momentum.moment_1"].value.numpy().tolist() == [[10, 20], [30, 40]]
    refused = Ran("migrate", run, tmp_path / "out.pt")
    assert refused.code == 2
    assert "only a named bridge crosses families: --chain burn_torch" in refused.err
    assert Ran("migrate", run, tmp_path / "out.pt", "--sections", "model").code == 0  # names and axes as they are


def test_a07_state_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    run = a07(tmp_path)
    record = msgpack.unpackb((run / "optim-9.mpk").read_bytes())
    record["item"]["aaaaaaaaaaaaa"]["V1"]["Rank2"]["momentum"]["moment_1"] = payload([[1, 2, 3]])
    (run / "optim-9.mpk").write_bytes(msgpack.packb(record))
    refused = Ran("migrate", run, tmp_path / "out")

    assert (refused.code, "linear.weight" in refused.err) == (3, True)
