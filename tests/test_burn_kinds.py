"""The kind of a scheduler that its record does not tell: from the caller or the configuration beside the run, never guessed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgpack
import pytest

import ckptmigrate
from ckptmigrate.values import Scalar

from .burn_records import MUSEUM
from .burn_runs import HALF_RUN, RUN
from .command_line import Ran


@pytest.fixture
def undetermined(tmp_path: Path) -> Path:
    """A run whose scheduler's record is a number alone."""
    shutil.copytree(RUN, tmp_path / "run")
    scheduler = tmp_path / "run" / "checkpoint" / "scheduler-3.mpk"
    record = msgpack.unpackb(scheduler.read_bytes())
    scheduler.write_bytes(msgpack.packb(record | {"item": 9}))
    return tmp_path / "run"


def kind_at(path: Path) -> Any:
    with ckptmigrate.open(path) as checkpoint:
        (tree,) = checkpoint.schedulers
        return tree


def test_a_kind_that_nothing_tells_is_refused_with_both_remedies(undetermined: Path, tmp_path: Path) -> None:
    ran = Ran("migrate", undetermined, tmp_path / "out")

    assert ran.code == 3
    assert "--scheduler KIND tells" in ran.err
    assert "--drop schedulers" in ran.err


def test_the_configuration_beside_a_run_tells_it(undetermined: Path, tmp_path: Path) -> None:
    shutil.copy(MUSEUM / "learner" / "0.18.0" / "default" / "config.json", undetermined)
    ran = Ran("migrate", undetermined, tmp_path / "out", "--json")

    assert ran.code == 0, ran.err
    assert kind_at(tmp_path / "out") == {"current_iter": Scalar("uint", 9)}
    assert any("assumes that the scheduler is cosine" in warning for warning in ran.json()["warnings"])


def test_a_caller_tells_it_and_the_report_calls_that_an_assumption(undetermined: Path, tmp_path: Path) -> None:
    ran = Ran("migrate", undetermined, tmp_path / "out", "--scheduler", "linear")

    assert ran.code == 0, ran.err
    assert kind_at(tmp_path / "out") == {"remaining_iters": Scalar("uint", 9)}
    assert "assumes that the scheduler is linear" in ran.out


def test_a_caller_and_a_configuration_that_contradict_each_other_are_refused(
    undetermined: Path, tmp_path: Path
) -> None:
    shutil.copy(MUSEUM / "learner" / "0.18.0" / "default" / "config.json", undetermined)
    ran = Ran("migrate", undetermined, tmp_path / "out", "--scheduler", "linear")

    assert ran.code == 2
    assert "the configuration of cosine" in ran.err
    inner = Ran("migrate", undetermined / "checkpoint", tmp_path / "out", "--scheduler", "linear")
    assert inner.code == 0, inner.err


def test_a_record_that_contradicts_what_is_said_is_refused(tmp_path: Path) -> None:
    record = MUSEUM / "0.13.2" / "scheduler-cosine-full.mpk"
    wrong = Ran("migrate", record, tmp_path / "out.bpk", "--scheduler", "linear")
    right = Ran("migrate", record, tmp_path / "out.bpk", "--scheduler", "cosine", "--bare")

    assert (wrong.code, "is of cosine, not of linear" in wrong.err) == (3, True)
    assert right.code == 0, right.err
    assert Ran("migrate", record, tmp_path / "none.bpk", "--scheduler", "wild").code == 2


def test_a_record_that_contradicts_the_configuration_is_refused_with_the_way_out(tmp_path: Path) -> None:
    shutil.copytree(HALF_RUN, tmp_path / "run")
    shutil.copy(MUSEUM / "learner" / "0.18.0" / "default" / "config.json", tmp_path / "run")
    refused = Ran("migrate", tmp_path / "run", tmp_path / "out")

    assert refused.code == 3
    assert "is of exponential, not of cosine" in refused.err
    assert "config.json tells of cosine" in refused.err
    assert Ran("migrate", tmp_path / "run" / "checkpoint", tmp_path / "out").code == 0


def test_a_configuration_that_is_no_json_is_noted_and_tells_nothing(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    for name, text in (("config.json", "{"), ("deep.json", "[" * 100_000), ("twice.json", '{"a": 1, "a": 2}')):
        (tmp_path / "run" / name).write_text(text)
    with ckptmigrate.open(tmp_path / "run") as checkpoint:
        assert checkpoint.companions == {}
        assert sorted(note.partition(" ")[0] for note in checkpoint.ledger.notes if "tells nothing" in note) == [
            "config.json", "deep.json", "twice.json",
        ]  # fmt: skip


def test_a_kind_means_nothing_where_there_is_no_scheduler(tmp_path: Path) -> None:
    ran = Ran("migrate", MUSEUM / "0.21.0" / "net-full.mpk", tmp_path / "out.bpk", "--scheduler", "noam")

    assert (ran.code, "has no scheduler" in ran.err) == (2, True)
