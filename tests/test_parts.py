"""Sections that lie in files of their own, named by `--part`: joined, placed, accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import ckptmigrate
from ckptmigrate import store
from ckptmigrate.checkpoint import Stamp
from ckptmigrate.errors import CheckpointError, SectionError, UsageError
from ckptmigrate.format import GatherOptions

from .test_account import items
from .test_layouts import kept, net, opened, trained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def pair(tmp_path: Path) -> tuple[Path, Path]:
    net_, opt, scheduler = trained()
    torch.save(net_.state_dict(), tmp_path / "model_state.th")
    training = {"optimizer": opt.state_dict(), "scheduler": scheduler.state_dict(), "epoch": 4, "metric": {"best": 0.5}}
    torch.save(training, tmp_path / "training_state.th")
    return tmp_path / "model_state.th", tmp_path / "training_state.th"


def test_an_optimizer_in_a_file_of_its_own_is_joined_and_named_by_the_model(tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    parts = {"optimizer": str(second), "schedulers": str(second)}
    checkpoint = store.open_checkpoint(first, gather_options=GatherOptions(parts=parts))

    assert [p.name for p in checkpoint.optimizers[0].params] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert len(checkpoint.schedulers) == 1
    assert checkpoint.progress.epoch == 4
    assert checkpoint.values["extra"] == {"metric": {"best": 0.5}}
    assert checkpoint.origin.places["optimizers.0"].file == "training_state.th"
    rows = {row.source: row.targets for row in checkpoint.ledger.rows()}
    assert rows["0.weight"] == ("model/0.weight",)
    assert rows["training_state.th/optimizer/state/1/exp_avg"] == ("optimizers/0/1/exp_avg",)
    assert rows["training_state.th/metric/best"] == ("values/extra/metric/best",)


def test_what_was_not_asked_of_a_further_file_is_left_out_by_name(tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    checkpoint = store.open_checkpoint(first, gather_options=GatherOptions(parts={"optimizers": str(second)}))
    left = {row.source: row.reason for row in checkpoint.ledger.rows() if row.what == "left out"}

    assert checkpoint.schedulers == []
    assert left["training_state.th/scheduler/step_size"] == (
        "not asked for: --part schedulers=training_state.th takes it"
    )


def test_a_further_file_without_what_was_asked_of_it_is_refused(tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    for name, path, words in (
        ("schedulers", first, r"model_state\.th has no schedulers; it has: model"),
        ("model", second, r"training_state\.th has no model; it has: optimizers, schedulers"),
        ("twins", second, "--part takes model, optimizers, schedulers, not 'twins'"),
    ):
        with pytest.raises(SectionError, match=words):
            store.open_checkpoint(first, gather_options=GatherOptions(parts={name: str(path)}))


def test_a_model_in_a_file_of_its_own_is_joined_and_a_second_one_is_refused(tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    checkpoint = store.open_checkpoint(second, gather_options=GatherOptions(parts={"model": str(first)}))

    assert [p.name for p in checkpoint.optimizers[0].params] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    (tmp_path / "other.th").write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match="holds a model, and there is one already"):
        store.open_checkpoint(first, gather_options=GatherOptions(parts={"model": str(tmp_path / "other.th")}))


def test_what_both_files_say_is_carried_twice_or_left_out_with_what_stands(tmp_path: Path) -> None:
    torch.save({"model": net().state_dict(), "epoch": 3, "args": {"lr": 1}, "note": "a"}, tmp_path / "a.pt")
    _, opt, _ = trained()
    torch.save({"optimizer": opt.state_dict(), "epoch": 4, "args": {"lr": 2, "wd": 3}, "note": "b"}, tmp_path / "b.pt")
    options = GatherOptions(parts={"optimizers": str(tmp_path / "b.pt")})
    checkpoint = store.open_checkpoint(tmp_path / "a.pt", gather_options=options)
    rows = {row.source: (row.what, row.targets, row.reason) for row in checkpoint.ledger.rows()}

    assert checkpoint.progress.epoch == 3
    assert checkpoint.values["config"] == {"lr": 1, "wd": 3}
    assert checkpoint.values["extra"] == {"note": "a", "b.pt": {"config": {"lr": 2}, "extra": {"note": "b"}}}
    assert rows["b.pt/epoch"] == ("left out", (), "there is 3 already")
    assert rows["b.pt/args/lr"][1] == ("values/extra/b.pt/config/lr",)
    assert rows["b.pt/note"][1] == ("values/extra/b.pt/extra/note",)
    assert set(items(checkpoint)) <= set(checkpoint.ledger.came_from())


def test_stamps_of_several_files_must_agree(tmp_path: Path) -> None:
    paths = {"1.0": {"model": net().state_dict()}, "2.0": {"optimizer": trained()[1].state_dict()}}
    for version, tree in paths.items():
        checkpoint = opened(tmp_path, tree)
        checkpoint.stamp = Stamp({"acme.x": version})
        kept(checkpoint, tmp_path)
        (tmp_path / "out.pt").rename(tmp_path / f"{version}.pt")
    options = GatherOptions(parts={"optimizers": str(tmp_path / "2.0.pt")})
    with pytest.raises(CheckpointError, match=r"the file and 2\.0\.pt bear stamps that disagree"):
        store.open_checkpoint(tmp_path / "1.0.pt", gather_options=options)


def test_what_lay_in_two_files_goes_into_one_by_our_keys(tmp_path: Path) -> None:
    first, second = pair(tmp_path)
    gather = GatherOptions(parts={"optimizers": str(second), "schedulers": str(second)})
    ckptmigrate.migrate(first, tmp_path / "out.pt", gather=gather)
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    model_, opt, _ = trained()

    assert list(loaded) == ["model_state_dict", "optimizer_state_dict", "scheduler_state_dict", "epoch", "extra"]
    model_.load_state_dict(loaded["model_state_dict"])
    opt.load_state_dict(loaded["optimizer_state_dict"])
    with pytest.raises(UsageError, match="cannot hold the keys"):
        ckptmigrate.migrate(first, tmp_path / "two.pt", gather=gather, layout="keep")
    with pytest.raises(UsageError, match=r"put back where it lay in one file: training_state\.th"):
        ckptmigrate.migrate(first, None, gather=gather, in_place=True)


def test_the_corpus_s_pair_of_model_and_training_state_is_one_checkpoint(corpus: Callable[[str], Path]) -> None:
    first = corpus("allenai+allennlp/allennlp-2021-model_state.th")
    second = corpus("allenai+allennlp/allennlp-2021-training_state.th")
    options = GatherOptions(parts={"optimizers": str(second)})
    checkpoint = store.open_checkpoint(first, gather_options=options)
    expected = torch.load(second, weights_only=True, map_location="cpu")["optimizer"]

    assert [p.name for p in checkpoint.optimizers[0].params] == list(checkpoint.model)
    for param, entry in zip(checkpoint.optimizers[0].params, expected["state"].values(), strict=True):
        assert param.slots is not None
        assert torch.equal(torch.from_numpy(param.slots["square_avg"].value.numpy().copy()), entry["square_avg"])
    assert checkpoint.values["extra"]["epochs_completed"] == 1
