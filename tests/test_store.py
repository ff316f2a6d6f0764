"""From paths to checkpoints and back: what a file is, what is in it, and that what was written is what was planned."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.torch
import torch

from ckptmigrate import registry, store, values
from ckptmigrate.checkpoint import Applied, Checkpoint, Optimizer, Param, Progress, Slot, Stamp
from ckptmigrate.errors import (
    AmbiguousError,
    CheckpointError,
    CkptError,
    CorruptError,
    ForeignCallError,
    SectionError,
    TensorError,
    UnknownFormatError,
    UnsupportedFormatError,
    UsageError,
)
from ckptmigrate.files import Disk
from ckptmigrate.files.sink import Sink
from ckptmigrate.format import Format, GatherOptions, Match, Parts, ReadOptions, WriteOptions
from ckptmigrate.store import record
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.values import Inert, Known, Ordered, Scalar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def tensor(*shape: int, start: int = 0, **more: Any) -> Tensor:
    count = int(np.prod(shape))
    return Tensor(array(np.arange(start, start + count, dtype="f4").reshape(shape)), **more)


def full() -> Checkpoint:
    """Give a checkpoint with every field filled."""
    model = {
        "embed": tensor(4, 3),
        "norm.mean": tensor(3, start=50, role="buffer"),
        "head.weight": tensor(2, 3, start=9, id=7),
    }
    model["tied"] = Tensor(model["embed"].promise)
    slots = {
        "step": Slot(tensor(start=5)),
        "exp_avg": Slot(tensor(4, 3, start=100)),
        "exp_avg_sq": Slot(tensor(4, 3, start=200)),
    }
    adam = Optimizer(
        kind="adam",
        params=[
            Param("embed", "file", 0, 0, slots),
            Param("head.weight", "file", 1, 1, {}),
        ],
        groups=[{"lr": 0.1, "betas": (0.9, 0.99)}, {"lr": float("inf"), "maximize": None}],
        shared={"loss_scale": 3},
    )
    sgd = Optimizer(params=[Param("embed", "order", 0, 0), Param("head.weight", "order", 1, 0)], groups=[{"lr": 1}])
    return Checkpoint(
        family="torch",
        model=model,
        twins={"ema": {name: Tensor(array(t.numpy() + 1), t.role) for name, t in model.items()}, "a/b": dict(model)},
        modules={"": {"version": 1}, "norm": {"version": 2, "note": (1, 2)}},
        optimizers=[adam, sgd],
        schedulers=[{"last_epoch": 3, "base_lrs": [0.1], 4: b"\0\xff"}, {"last_epoch": 1}],
        values={
            "rng": {"cpu": tensor(5, start=3), "python": (3, tuple(range(9)), None)},
            "scaler": {"scale": 65536.0},
            "config": {"name": "x", "nan": float("nan"), "big": 2**80},
            "extra": {"list": [tensor(1, start=77), {"deep": (tensor(2),)}], 0: "int key"},
            "model": {"fc._extra_state": {"a": 1}},
            "odd": 3,
        },
        progress=Progress(3, "finished", 900, 0.25),
        stamp=Stamp({"torch": "2.6", "acme.x": "1.0"}, (Applied("acme.x", "1.0", "d1", (("heads", 16),)), Applied("torch", "2.6", "d2"))),
    )  # fmt: skip


def written(
    checkpoint: Checkpoint, target: str, layout: str | None, out: Path, options: WriteOptions | None = None
) -> Path:
    """Write through the sink, compare with the plan as a conversion does, and publish."""
    options = options or WriteOptions()
    chosen = registry.format(target)
    one = bool(out.suffix)
    scattered = store.scatter(
        checkpoint, chosen, registry.layout(layout) if layout else None, options, out.name if one else ""
    )
    blueprint = store.lay_out(scattered, options)
    assert blueprint.problems == []
    with Sink(out, folder=not one) as sink:
        store.write(blueprint, sink)
        sink.finish()
        with Disk() as disk:
            root = disk.open(sink.path)
            for name, (form, planned) in scattered.items():
                read = form.read(root if one else root.child(name), ReadOptions())
                out_of = sink.outs["" if one else name]
                assert store.compare_parts(planned, read, out_of, ties=not options.bare) == []
        sink.publish(last=blueprint.last)
    return out


def fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """Give everything that must come back, as one tree."""
    return {
        "family": checkpoint.family,
        "model": checkpoint.model,
        "twins": checkpoint.twins,
        "modules": checkpoint.modules,
        "optimizers": [
            [o.kind, [[p.name, p.by, p.group, None if p.slots is None else {s: v.value for s, v in p.slots.items()}] for p in o.params], o.groups, o.shared]
            for o in checkpoint.optimizers
        ],
        "schedulers": checkpoint.schedulers,
        "values": dict(sorted(checkpoint.values.items())),
        "progress": [checkpoint.progress.epoch, checkpoint.progress.counts, checkpoint.progress.step, checkpoint.progress.best],
    }  # fmt: skip


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


# ---------------------------------------------------------------- sections


def test_sections_that_are_not_wanted_are_left_out_and_noted(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(1), "n": 5}, "epoch": 3, "rng_state": torch.ones(2)}, tmp_path / "a.pt")
    checkpoint = store.open_checkpoint(tmp_path / "a.pt", gather_options=GatherOptions(only=("model",)))

    assert store.is_bare_model(checkpoint)
    assert checkpoint.values == {"model": {"n": 5}}
    assert {row.source: row.what for row in checkpoint.ledger.rows()} == {
        "model/w": "kept", "model/n": "kept", "epoch": "dropped", "rng_state": "dropped",
    }  # fmt: skip


def test_a_dropped_optimizer_moves_the_next_one_up() -> None:
    checkpoint = full()
    for number in range(2):
        checkpoint.ledger.became(f"file/{number}", f"optimizers/{number}/0/exp_avg")
    store.select(checkpoint, drop=("optimizers.0",))

    assert len(checkpoint.optimizers) == 1
    assert {row.source: (row.what, row.targets) for row in checkpoint.ledger.rows()} == {
        "file/0": ("dropped", ()),
        "file/1": ("renamed", ("optimizers/0/0/exp_avg",)),
    }


@pytest.mark.parametrize("word", ["optimizer", "optimizers", "optimizers.1"])
def test_one_optimizer_or_all_can_be_dropped(word: str) -> None:
    checkpoint = full()
    store.select(checkpoint, drop=(word,))

    assert len(checkpoint.optimizers) == (1 if "." in word else 0)


def test_a_section_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(SectionError, match=r"no section 'nope'; there are: model, modules"):
        store.select(full(), only=("nope",))


# ---------------------------------------------------------------- what a file is


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n", "Git LFS pointer to a file of 12345 bytes"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"  <html><head></head></html>", "web page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML"),
        (b'{"error": "not found", "code": 404}', "JSON"),
        (b"just some words that a human wrote\n", "text"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "PNG image"),
        (b"\x1f\x8b\x08\0" + b"\0" * 40, "gzip"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 40, "HDF5"),
        (b"abc", "not a known checkpoint format"),
        (bytes(range(200, 256)), "not a known checkpoint format: begins with c8 c9"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "model.bpk"])
def test_what_is_no_checkpoint_is_said_to_be_what_it_is(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CkptError) as caught:
        store.open_checkpoint(tmp_path / name)

    if len(content) > 8 or not name.endswith(".safetensors"):  # a short file of that name is a truncated one
        assert isinstance(caught.value, UnknownFormatError)
        assert words in str(caught.value)
    assert name in str(caught.value)


def test_a_safetensors_file_under_another_name_is_read_by_content_and_said(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "ip_adapter.bin")
    checkpoint = store.open_checkpoint(tmp_path / "ip_adapter.bin")

    assert list(checkpoint.model) == ["w"]
    assert any("'ip_adapter.bin'" in note and "read as safetensors" in note for note in checkpoint.ledger.notes)


def stand_in(name: str, **more: Any) -> Format:
    form = Format(name, sniff=lambda _: None, read=lambda *_: Parts(), **more)
    return dataclasses.replace(form, sniff=lambda source: Match(form, refuse=more.get("about") or None))


def test_two_formats_that_read_a_file_are_ambiguous_and_one_that_refuses_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"content")
    with Disk() as disk:
        source = disk.open(tmp_path / "x")
        monkeypatch.setattr(registry, "formats", lambda: (stand_in("a"), stand_in("b")))
        with pytest.raises(AmbiguousError, match="a and b claim it alike"):
            store.detect(source)
        monkeypatch.setattr(registry, "formats", lambda: (stand_in("a"), stand_in("b", about="an archive of b")))
        assert store.detect(source).format.name == "a"
        monkeypatch.setattr(registry, "formats", lambda: (stand_in("b", about="an archive of b"),))
        with pytest.raises(UnsupportedFormatError, match="an archive of b"):
            store.detect(source)


def test_a_file_is_read_without_a_look_at_its_neighbours(tmp_path: Path) -> None:
    out = written(full(), "safetensors", "ckptmigrate", tmp_path / "o")
    alone = store.open_checkpoint(out / "model.safetensors")

    assert alone.optimizers == []
    assert alone.stamp == full().stamp


def test_a_folder_of_other_files_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("hello")
    with pytest.raises(UnknownFormatError, match="a folder that no format claims"):
        store.open_checkpoint(tmp_path)


def test_a_folder_that_lost_a_file_is_refused_by_its_name(tmp_path: Path) -> None:
    out = written(full(), "safetensors", "ckptmigrate", tmp_path / "o")
    (out / "ema.safetensors").unlink()
    with pytest.raises(CheckpointError, match="twin 'ema' in ema, and no such file is there"):
        store.open_checkpoint(out)


def test_a_folder_that_lost_its_tensors_of_values_is_refused(tmp_path: Path) -> None:
    out = written(full(), "safetensors", "ckptmigrate", tmp_path / "o")
    (out / "state.safetensors").unlink()
    with pytest.raises(CorruptError, match="no tensor 'values/rng/cpu'"):
        store.open_checkpoint(out)


def test_stamps_that_disagree_are_refused(tmp_path: Path) -> None:
    out = written(full(), "safetensors", "ckptmigrate", tmp_path / "o")
    state = json.loads((out / "training_state.json").read_text())
    state["stamp"]["versions"]["torch"] = "1.0"
    (out / "training_state.json").write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="bear stamps that disagree"):
        store.open_checkpoint(out)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda r: r.update(optimizers=3),
        lambda r: r.update(optimizers=[{"params": [[1]]}]),
        lambda r: r.update(values={"x": ["@nonsense"]}),
        lambda r: r.update(progress=[]),
        lambda r: r.update(twins={"ema": {"roles": 3}}),
        lambda r: r["optimizers"][0]["params"][0].__setitem__(1, "guess"),
    ],
)
def test_a_record_of_another_shape_is_refused_never_a_crash(tmp_path: Path, break_it: Callable[[Any], None]) -> None:
    out = written(full(), "safetensors", "ckptmigrate", tmp_path / "o")
    state = json.loads((out / "training_state.json").read_text())
    break_it(state["record"])
    (out / "training_state.json").write_text(json.dumps(state))
    with pytest.raises(CkptError):
        store.open_checkpoint(out)


# ---------------------------------------------------------------- what is refused in a tree


def parts_format(tree: Any) -> Format:
    return Format("stand_in", sniff=lambda _: None, read=lambda *_: Parts("torch", tree), speaks="tree")


def read_tree(tmp_path: Path, tree: Any, options: ReadOptions | None = None) -> Parts:
    (tmp_path / "x").write_bytes(b"x")
    with Disk() as disk:
        return store.read(disk.open(tmp_path / "x"), options or ReadOptions(), Match(parts_format(tree)))


def test_calls_that_nobody_knows_are_refused_all_at_once_with_path_and_name(tmp_path: Path) -> None:
    tree = {"a": Inert("call", "os.system", ("true",)), "b": [Inert("call", "acme.make")]}
    with pytest.raises(ForeignCallError, match=r"a \(os.system\), b/0 \(acme.make\)") as caught:
        read_tree(tmp_path, tree)
    assert caught.value.data["calls"] == [("a", "os.system"), ("b/0", "acme.make")]
    assert read_tree(tmp_path, tree, ReadOptions(inert_calls=True)).tree is tree


def test_a_fault_is_refused_by_its_key_path_with_its_hint(tmp_path: Path) -> None:
    tree = {"model": {"fc.weight": Inert("fault", "torch.x", ("a tensor without data", "load it elsewhere"))}}
    with pytest.raises(TensorError, match=r"model/fc.weight: a tensor without data") as caught:
        read_tree(tmp_path, tree)
    assert caught.value.hints == ["load it elsewhere"]


# ---------------------------------------------------------------- reopening


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


# ---------------------------------------------------------------- record


def test_a_stamp_comes_back_through_json() -> None:
    stamp = full().stamp
    notes = json.loads(json.dumps(record.stamp_notes(stamp)))

    assert record.stamp_of(notes) == stamp
    assert record.stamp_notes(Stamp()) == {}
    assert record.stamp_of({}) == Stamp()


@pytest.mark.parametrize("stamp", [3, {"versions": 3}, {"versions": {"a": 1}}, {"history": [{}]}, {"history": 3}])
def test_a_stamp_of_another_shape_is_corrupt(stamp: Any) -> None:
    with pytest.raises(CorruptError):
        record.stamp_of({"stamp": stamp})


def test_a_leaf_that_stands_at_two_places_is_counted_where_it_stands_first() -> None:
    shared = {"x": 1}
    tree = {
        "model": Ordered({"w": tensor(1)}),
        "a": shared,
        "b": shared,
        "k": Known("builtins.set", ([1, 2],)),
        "s": Scalar("int", 1),
    }
    checkpoint = store.gather({"": Parts("torch", tree)}, GatherOptions(), container="torch_zip")

    assert list(checkpoint.ledger.sources) == ["model/w", "a/x", "k/0/0", "k/0/1", "s"]
    assert checkpoint.values["extra"] == {"a": shared, "b": shared, "k": tree["k"], "s": Scalar("int", 1)}
