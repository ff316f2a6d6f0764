"""From checkpoints to paths: every field comes back from our own writers, and what was written is what was planned."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch

from ckptmigrate import registry, store, values
from ckptmigrate.checkpoint import Checkpoint, Progress
from ckptmigrate.errors import CorruptError, UsageError
from ckptmigrate.files import Disk
from ckptmigrate.files.sink import Sink
from ckptmigrate.format import GatherOptions, Parts, ReadOptions, WriteOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Ordered

from .filled import fields, full, tensor, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("target", "layout", "name"), [("safetensors", "ckptmigrate", "out"), ("torch_zip", "plain", "out.pt")]
)
def test_every_field_comes_back_from_both_writers(tmp_path: Path, target: str, layout: str, name: str) -> None:
    checkpoint = full()
    again = store.open_checkpoint(written(checkpoint, target, layout, tmp_path / name))

    assert values.difference(fields(checkpoint), fields(again), "values") is None
    assert again.stamp == checkpoint.stamp
    assert again.ledger.unexplained() == []


@pytest.mark.parametrize(
    ("target", "layout", "name"), [("safetensors", "ckptmigrate", "out"), ("torch_zip", "plain", "out.pt")]
)
def test_the_same_checkpoint_gives_the_same_bytes(tmp_path: Path, target: str, layout: str, name: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (written(full(), target, layout, tmp_path / side / name) for side in "ab")
    files = ["."] if first.is_file() else sorted(p.name for p in first.iterdir())
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes()


def test_the_standard_tree_has_our_keys_and_loads_with_weights_only(tmp_path: Path) -> None:
    loaded = torch.load(written(full(), "torch_zip", "plain", tmp_path / "o.pt"), weights_only=True)

    assert list(loaded) == [
        "model_state_dict", "ema_state_dict", "a/b_state_dict", "optimizer_state_dict", "scheduler_state_dict", "epoch",
        "global_step", "best_metric", "rng_state", "scaler", "config", "extra", "odd",
    ]  # fmt: skip
    assert [len(loaded[key]) for key in ("optimizer_state_dict", "scheduler_state_dict")] == [2, 2]


def test_the_standard_folder_is_read_by_safetensors_itself(tmp_path: Path) -> None:
    out = written(full(), "safetensors", "ckptmigrate", tmp_path / "o")

    assert sorted(p.name for p in out.iterdir()) == [
        "ema.safetensors", "model.safetensors", "optimizer.safetensors", "state.safetensors", "training_state.json",
        "twin-1.safetensors",
    ]  # fmt: skip
    slots = safetensors.torch.load_file(out / "optimizer.safetensors")
    assert torch.equal(slots["0/0/exp_avg"], torch.arange(100.0, 112.0).reshape(4, 3))
    assert {"0/0/step", "0/0/exp_avg", "0/0/exp_avg_sq"} == set(slots)


def test_a_bare_model_is_one_file_with_its_versions_beside_the_stamp(tmp_path: Path) -> None:
    checkpoint = Checkpoint("torch", model={"w": tensor(2)}, modules={"": {"version": 1}}, values={"model": {"n": 5}})
    assert store.is_bare_model(checkpoint)
    again = store.open_checkpoint(written(checkpoint, "safetensors", "ckptmigrate", tmp_path / "m.safetensors"))

    assert again.modules == {"": {"version": 1}}
    assert again.values == {"model": {"n": 5}}
    assert again.origin.layout == "bare"


def test_bare_output_is_just_what_the_framework_writes(tmp_path: Path) -> None:
    checkpoint = dataclasses.replace(full(), twins={}, optimizers=[], schedulers=[], values={}, progress=Progress())
    out = written(checkpoint, "safetensors", "ckptmigrate", tmp_path / "m.safetensors", WriteOptions(bare=True))
    with safetensors.safe_open(out, "np") as file:
        assert file.metadata() == {"format": "pt"}
    bare = written(checkpoint, "torch_zip", "plain", tmp_path / "m.pt", WriteOptions(bare=True))
    assert list(torch.load(bare, weights_only=True)) == list(checkpoint.model)


def test_a_folder_without_a_record_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="--bare writes no record"):
        store.scatter(full(), registry.format("safetensors"), registry.layout("ckptmigrate"), WriteOptions(bare=True))


def test_text_of_a_safetensors_header_travels(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "in.safetensors", {"format": "pt", "author": "me"})
    checkpoint = store.open_checkpoint(tmp_path / "in.safetensors")
    assert checkpoint.values["metadata"] == {"author": "me"}
    with safetensors.safe_open(
        written(checkpoint, "safetensors", "ckptmigrate", tmp_path / "o.safetensors"), "np"
    ) as file:
        assert file.metadata()["author"] == "me"
    again = store.open_checkpoint(written(checkpoint, "torch_zip", "plain", tmp_path / "o.pt"))

    assert again.values["metadata"] == {"author": "me"}


def test_what_one_file_cannot_hold_is_named_with_both_remedies() -> None:
    (problem,) = store.fits_one_file(full(), registry.format("safetensors"), None)

    for word in ("twins.ema", "optimizers.0", "values.rng", "values.extra", "without a suffix", "--sections model"):
        assert word in problem
    assert "values.config" not in problem
    assert store.fits_one_file(full(), registry.format("torch_zip"), None) == []


def test_plain_values_and_progress_travel_in_one_file(tmp_path: Path) -> None:
    checkpoint = Checkpoint(
        "torch", model={"w": tensor(1)}, values={"config": {"a": (1,)}}, progress=Progress(3, "last")
    )
    assert store.fits_one_file(checkpoint, registry.format("safetensors"), None) == []
    again = store.open_checkpoint(written(checkpoint, "safetensors", "ckptmigrate", tmp_path / "o.safetensors"))

    assert again.values == {"config": {"a": (1,)}}
    assert again.progress == Progress(3, "last")


def test_inert_values_are_left_out_once_by_name(tmp_path: Path) -> None:
    tree = {
        "model": Ordered({"w": tensor(1)}),
        "callback": Inert("object", "acme.Callback", state={"t": tensor(3)}),
        "l": [1, Inert("name", "acme.f")],
    }
    checkpoint = store.gather({"": Parts("torch", tree)}, GatherOptions(), container="torch_zip")
    again = store.open_checkpoint(written(checkpoint, "torch_zip", "plain", tmp_path / "o.pt"))

    assert again.values["extra"] == {"l": [1, None]}
    left = {row.source: row.reason for row in checkpoint.ledger.rows() if row.what == "left out"}
    assert left == {
        "callback": "an object of class acme.Callback",
        "callback/@state/t": "inside an object or call that nobody makes",
        "l/1": "the name acme.f",
    }


def sabotage(parts: Parts, change: Callable[[dict[str, Any]], None]) -> Parts:
    tensors = dict(parts.tensors or {})
    change(tensors)
    return dataclasses.replace(parts, tensors=tensors)


def swap(tensors: dict[str, Any]) -> None:
    tensors["a"], tensors["b"] = tensors["b"], tensors["a"]


def untie(tensors: dict[str, Any]) -> None:
    tensors["tied"] = tensors["b"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (swap, "a is read at"),
        (untie, "tied is read at"),
        (lambda t: t.pop("a"), "a is missing"),
        (lambda t: t.update(z=t["a"]), "z was not planned"),
        (lambda t: t.update(a=tensor(4)), "a is F32"),
        (lambda t: t.update(a=t.pop("a")), "another order"),
    ],
)
def test_a_writer_that_errs_is_found_without_reading_the_data(tmp_path: Path, change: Any, word: str) -> None:
    model = {"a": tensor(2, 2), "b": tensor(2, 2, start=9), "zero": tensor(0)}
    model["tied"] = Tensor(model["a"].promise)
    form = registry.format("safetensors")
    planned = store.scatter(Checkpoint("torch", model=model), form, None, WriteOptions(), "m.safetensors")[
        "m.safetensors"
    ][1]
    blueprint = store.lay_out({"m.safetensors": (form, planned)}, WriteOptions())
    with Sink(tmp_path / "m.safetensors", folder=False) as sink:
        store.write(blueprint, sink)
        sink.finish()
        with Disk() as disk:
            read = form.read(disk.open(sink.path), ReadOptions())
            assert store.compare_parts(planned, read, sink.outs[""]) == []
            found = store.compare_parts(planned, sabotage(read, change), sink.outs[""])

    assert any(word in line for line in found)


def test_a_damaged_member_is_refused_with_the_tensors_that_lie_in_it(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(40000.0), "v": torch.ones(3)}, tmp_path / "a.pt")
    raw = bytearray((tmp_path / "a.pt").read_bytes())
    at = bytes(raw).index(torch.arange(40000.0).numpy().tobytes())
    raw[at + 3] ^= 0x40
    (tmp_path / "a.pt").write_bytes(raw)
    checkpoint = store.open_checkpoint(tmp_path / "a.pt")
    with pytest.raises(CorruptError, match=r"data/0.*used by w$"):
        written(checkpoint, "safetensors", "ckptmigrate", tmp_path / "o.safetensors")
    assert not (tmp_path / "o.safetensors").exists()
