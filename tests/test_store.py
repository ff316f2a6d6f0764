"""From paths to checkpoints: what a file is, what is in it, which sections are wanted, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch

from ckptmigrate import registry, store
from ckptmigrate.checkpoint import Stamp
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
)
from ckptmigrate.files import Disk
from ckptmigrate.format import Format, GatherOptions, Match, Parts, ReadOptions
from ckptmigrate.store import record
from ckptmigrate.values import Inert, Known, Ordered, Scalar

from .filled import full, tensor, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
