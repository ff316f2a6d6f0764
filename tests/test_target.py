"""OUT without a suffix: one file where there is one record, a folder where there are several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import ckptmigrate

from .burn_records import MUSEUM
from .burnpack_desk import referee
from .command_line import CHECKPOINT, Ran

if TYPE_CHECKING:
    from pathlib import Path

RUN = MUSEUM / "0.21.0" / "run-sgd-momentum" / "checkpoint"
GOLDEN = MUSEUM / "0.21.0" / "golden" / "run-sgd-momentum" / "checkpoint"


@pytest.mark.parametrize("kind", ["model", "optim", "scheduler"])
@pytest.mark.parametrize("name", ["out", "out.bpk"])
def test_a_record_alone_is_one_file_whatever_out_is_called(tmp_path: Path, kind: str, name: str) -> None:
    said = ["--scheduler", "linear"] if kind == "scheduler" else []
    ran = Ran("migrate", RUN / f"{kind}-3.mpk", tmp_path / name, "--bare", *said)

    assert ran.code == 0, ran.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    made = referee("read", tmp_path / name)
    assert made["ok"]
    if kind != "optim":  # an optimizer's record alone is in its own order, and tells no paths
        assert (tmp_path / name).read_bytes() == (GOLDEN / f"{kind}-3.bpk").read_bytes()


@pytest.mark.parametrize("kind", ["model", "optim", "scheduler"])
def test_a_record_alone_opens_again(tmp_path: Path, kind: str) -> None:
    gather = ckptmigrate.GatherOptions(scheduler="linear" if kind == "scheduler" else None)
    ckptmigrate.migrate(RUN / f"{kind}-3.mpk", tmp_path / "out", gather=gather)
    with ckptmigrate.open(tmp_path / "out") as checkpoint:
        assert [bool(checkpoint.model), bool(checkpoint.optimizers), bool(checkpoint.schedulers)] == [
            kind == each for each in ("model", "optim", "scheduler")
        ]


@pytest.mark.parametrize("kind", ["model", "optim"])
def test_a_record_that_is_given_a_number_becomes_the_file_of_that_epoch(tmp_path: Path, kind: str) -> None:
    assert Ran("migrate", RUN / f"{kind}-3.mpk", tmp_path / "out", "--epoch", "7").code == 0
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.bpk")] == [f"out/checkpoint/{kind}-7.bpk"]


def test_a_record_beside_others_is_a_folder(tmp_path: Path) -> None:
    joined = ["--part", f"optimizers={RUN / 'optim-3.mpk'}"]

    assert Ran("migrate", RUN / "model-3.mpk", tmp_path / "out", *joined).code == 0
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.bpk")) == [
        "out/checkpoint/model-0.bpk",
        "out/checkpoint/optim-0.bpk",
    ]


def test_an_optimizer_for_a_format_that_has_no_file_of_its_own_for_one_is_a_folder(tmp_path: Path) -> None:
    ran = Ran("migrate", RUN / "optim-3.mpk", tmp_path / "out", "--to", "safetensors")

    assert ran.code == 0, ran.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "optimizer.safetensors",
        "training_state.json",
    ]
    assert Ran("migrate", RUN / "optim-3.mpk", tmp_path / "one.safetensors").code == 3


def test_a_torch_checkpoint_with_several_sections_is_a_folder_and_its_model_one_file(tmp_path: Path) -> None:
    assert Ran("migrate", CHECKPOINT, tmp_path / "all").code == 0
    assert Ran("migrate", CHECKPOINT, tmp_path / "model", "--sections", "model").code == 0
    assert [(tmp_path / "all").is_dir(), (tmp_path / "model").is_file()] == [True, True]


@pytest.mark.parametrize("name", ["new.pth.tar", "new.th", "new.PT", "new.ckpt", "new.bin"])
def test_what_torch_users_call_their_files_is_one_file_of_torch(tmp_path: Path, name: str) -> None:
    ran = Ran("migrate", CHECKPOINT, tmp_path / name)

    assert ran.code == 0, ran.err
    assert torch.load(tmp_path / name, weights_only=True)["epoch"] is not None


def test_a_file_of_a_name_that_nobody_claims_becomes_one_file_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "old.weights").write_bytes(CHECKPOINT.read_bytes())
    ran = Ran("migrate", tmp_path / "old.weights", tmp_path / "new.weights")

    assert ran.code == 0, ran.err
    assert (
        torch.load(tmp_path / "new.weights", weights_only=True).keys()
        == torch.load(CHECKPOINT, weights_only=False).keys()
    )


def test_out_of_another_name_that_nobody_claims_is_a_folder(tmp_path: Path) -> None:
    assert Ran("migrate", CHECKPOINT, tmp_path / "run.2024").code == 0
    assert (tmp_path / "run.2024" / "model.safetensors").is_file()
