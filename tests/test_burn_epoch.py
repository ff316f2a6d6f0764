"""Burn's training folders: three files an epoch, found, read and laid back; the scheduler's kind from the files around them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ckptmigrate import registry, store
from ckptmigrate.dtypes import F16, F32
from ckptmigrate.errors import AmbiguousError, CheckpointError
from ckptmigrate.format import GatherOptions, WriteOptions
from ckptmigrate.tensor import Tensor, cast
from ckptmigrate.testing import written

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Checkpoint

LAYOUT = registry.layout("burn_epoch")
MUSEUM = Path(__file__).parent / "fixtures" / "burn"
SHARED = Path(__file__).parent.parent.parent / "shared" / "fixtures" / "burn"
FIXTURES = SHARED if SHARED.is_dir() else MUSEUM  # all of them where they are at hand, else those that the museum has
RUNS = sorted(path.parent for path in FIXTURES.glob("0.*/golden/run-*/proof.json"))
RUNS = [run for run in RUNS if list((run.parent.parent / run.name / "checkpoint").glob("model-3.mpk*"))]


@dataclass(frozen=True)
class Options(GatherOptions):
    """What a caller says, and of what kind the scheduler is."""

    scheduler: str | None = None


def source_of(run: Path) -> Path:
    return run.parent.parent / run.name


@pytest.mark.parametrize("run", RUNS, ids=[f"{run.parent.parent.name}/{run.name}" for run in RUNS])
def test_an_epoch_of_any_release_becomes_the_golden_files_byte_for_byte(run: Path) -> None:
    """Gathered, raised to f32 as Burn's recorders did on load, without the weight decay's memory, scattered and laid out."""
    proof = json.loads((run / "proof.json").read_text())
    with store.open_checkpoint(
        source_of(run), gather_options=Options(epoch=3, scheduler=proof["scheduler"])
    ) as checkpoint:
        assert checkpoint.origin.layout == LAYOUT.name
        assert (checkpoint.progress.epoch, checkpoint.progress.counts) == (3, "finished")
        raised(checkpoint)
        bare = WriteOptions(bare=True)
        files = store.scatter(checkpoint, registry.format("burnpack"), LAYOUT, bare)
        for name, (form, parts) in files.items():
            assert form.lay_out is not None
            assert written(form.lay_out(parts, bare, name))[name] == (run / name).read_bytes(), name

    assert sorted(files) == [f"checkpoint/{what}-3.bpk" for what in ("model", "optim", "scheduler")]


def raised(checkpoint: Checkpoint) -> None:
    def wide(tensor: Tensor) -> Tensor:
        return tensor.with_promise(cast(tensor.promise, F32)) if tensor.dtype == F16 else tensor

    checkpoint.model = {name: wide(tensor) for name, tensor in checkpoint.model.items()}
    for param in checkpoint.optimizers[0].params:
        (param.slots or {}).pop("weight_decay.grad_last_step", None)
        for slot in (param.slots or {}).values():
            slot.value = wide(slot.value) if isinstance(slot.value, Tensor) else slot.value


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of a run of the museum, with files around it as a learner leaves them."""
    shutil.copytree(MUSEUM / "0.21.0" / "run-sgd-momentum", tmp_path / "run")
    (tmp_path / "run" / "experiment.log").write_text("INFO Restoring checkpoint\n")
    (tmp_path / "run" / "train" / "epoch-1").mkdir(parents=True)
    (tmp_path / "run" / "train" / "epoch-1" / "Loss.log").write_text("0.5,4\n")
    return tmp_path / "run"


def test_the_three_files_are_one_checkpoint_joined_by_ids(run: Path) -> None:
    for folder in (run, run / "checkpoint"):
        with store.open_checkpoint(folder) as checkpoint:
            (optimizer,) = checkpoint.optimizers
            assert {param.name for param in optimizer.params} <= checkpoint.model.keys()
            assert {param.by for param in optimizer.params} == {"file"}
            assert [checkpoint.progress.epoch, len(checkpoint.schedulers)] == [3, 1]


def test_of_several_epochs_one_must_be_said(run: Path) -> None:
    for name in ("model", "optim", "scheduler"):
        shutil.copy(run / "checkpoint" / f"{name}-3.mpk", run / "checkpoint" / f"{name}-12.mpk")
    with pytest.raises(AmbiguousError, match="3, 12"):
        store.open_checkpoint(run)
    with store.open_checkpoint(run, gather_options=GatherOptions(epoch=12)) as checkpoint:
        assert checkpoint.progress.epoch == 12


def test_the_file_of_todays_format_counts_where_an_epoch_has_both(run: Path) -> None:
    golden = MUSEUM / "0.21.0" / "golden" / "run-sgd-momentum" / "checkpoint"
    for path in golden.glob("*.bpk"):
        shutil.copy(path, run / "checkpoint")
    with store.open_checkpoint(run) as checkpoint:
        assert {place.file for place in checkpoint.origin.places.values()} == {
            f"checkpoint/{what}-3.bpk" for what in ("model", "optim", "scheduler")
        }


def test_state_of_another_model_is_left_out_and_reported(run: Path) -> None:
    other = MUSEUM / "0.13.2" / "run-adam" / "checkpoint" / "optim-3.mpk"
    (run / "checkpoint" / "optim-3.mpk").unlink()
    shutil.copy(other, run / "checkpoint" / "optim-3.mpk")
    with pytest.raises(CheckpointError, match="none of the optimizer's 9 ids is one of the model's"):
        store.open_checkpoint(run)


# ---------------------------------------------------------------- what the files around a run tell


def test_a_scheduler_is_recognised_by_the_fields_of_its_configuration() -> None:
    config = json.loads((MUSEUM / "learner" / "0.18.0" / "default" / "config.json").read_text())
    assert LAYOUT.hints is not None

    assert LAYOUT.hints({"config.json": config}) == {"scheduler": "cosine"}


@pytest.mark.parametrize(
    "path", sorted(FIXTURES.glob("learner/*/*/config.json")), ids=lambda p: f"{p.parent.parent.name}/{p.parent.name}"
)
def test_every_configuration_of_a_learner_tells_the_scheduler(path: Path) -> None:
    assert LAYOUT.hints is not None
    told = LAYOUT.hints({"config.json": json.loads(path.read_text())})["scheduler"]
    older = path.parent.parent.name in {"0.8.0", "0.10.0"}

    assert told == (
        "noam" if older else "exponential" if path.parent.name.startswith(("keep2", "best-only")) else "cosine"
    )


EVERY = sorted(FIXTURES.glob("0.*/expected.json"))


@pytest.mark.parametrize("path", EVERY, ids=lambda p: str(p.parent.name))
def test_configurations_of_every_kind_are_recognised(path: Path) -> None:
    assert LAYOUT.hints is not None
    for name, entry in (json.loads(path.read_text()).get("schedulers") or {}).items():
        if not isinstance(entry, dict) or not isinstance(entry.get("config"), dict):
            continue
        told = LAYOUT.hints({"config.json": {"model": {"d": 3}, "lr_scheduler": entry["config"]}}).get("scheduler", "")
        kind = entry.get("kind", name.partition("-")[0])

        if kind in {"noam", "cosine", "linear", "exponential", "step"}:
            assert told == kind
        elif kind in {"composed", "sequential"}:
            assert told.startswith(f"{kind}(")
        else:
            assert told == ""


@pytest.mark.parametrize(
    "companions",
    [
        {},
        {"config.json": None},
        {"config.json": {"a": {"initial_lr": 1, "gamma": 1}, "b": {"warmup_steps": 1, "model_size": 1}}},
        {"config.json": {"schedulers": [{"wild": {}}, 3]}},
        {"config.json": [[[{"initial_lr": 1}]]]},
    ],
)
def test_nothing_is_guessed_of_other_files(companions: dict[str, Any]) -> None:
    assert LAYOUT.hints is not None
    assert LAYOUT.hints(companions) == {}
