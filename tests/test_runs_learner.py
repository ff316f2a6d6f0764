"""Runs of Burn's own learner: what every strategy kept of them, of every release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .burn_records import SHARED
from .command_line import Ran
from .learner_run import one, problems, run

if TYPE_CHECKING:
    from ckptmigrate.runs import Run

__all__ = ["run"]  # a fixture

LEARNER = SHARED / "learner"
RELEASES = sorted(path.parent for path in LEARNER.glob("*/expected.json"))


def gaps(kept: list[int]) -> list[int]:
    return [number for number in range(1, max(kept)) if number not in kept]


def spelled(run: Run) -> list[int]:
    return [number for first, last in run.gaps for number in range(first, last + 1)]


def in_learner(release: str, name: str) -> Path:
    if not (LEARNER / release / name).is_dir():
        pytest.skip(
            f"the learner's folders are not beside this checkout: {Path('shared', 'fixtures', 'burn', 'learner')}"
        )
    return LEARNER / release / name


@pytest.mark.skipif(not RELEASES, reason="the learner's folders are not beside this checkout")
def test_every_folder_of_a_learner_has_the_epochs_that_its_strategy_kept() -> None:
    seen = 0
    for release in RELEASES:
        for name, said in json.loads((release / "expected.json").read_text())["folders"].items():
            run = one(release / name)
            assert [epoch.number for epoch in run.epochs] == said["kept_epochs"], run.path
            assert spelled(run) == gaps(said["kept_epochs"]), run.path
            assert all(epoch.whole for epoch in run.epochs), run.path
            assert run.newest is run.epochs[-1]
            found = {f"checkpoint/{path.name}" for path in (release / name / "checkpoint").iterdir()}
            assert {file.name for epoch in run.epochs for file in epoch.files} == found
            assert {epoch.current for epoch in run.epochs} == {release.name == "0.22.1"}
            seen += 1

    assert seen >= 22


@pytest.mark.parametrize("release", [path.name for path in RELEASES])
def test_a_resumed_run_goes_on_where_its_files_say(release: str) -> None:
    run = one(in_learner(release, "keep2-resumed"))

    assert [epoch.number for epoch in run.epochs if epoch.whole] == [6, 7]
    assert run.gaps == ((1, 5),)


def test_what_the_default_strategy_removed_is_told() -> None:
    ran = Ran("epochs", in_learner("0.18.0", "default"))

    assert ran.code == 0
    assert "epoch 2: whole: model (burn_mpk), optimizer (burn_mpk), scheduler (burn_mpk)" in ran.out
    assert "not there, as retention removed them or they were never saved: 1, 3" in ran.out
    assert "the newest that can be resumed: 5, once it is migrated" in ran.out


def test_a_run_that_today_s_framework_opens_needs_no_migration() -> None:
    ran = Ran("epochs", in_learner("0.22.1", "best"))

    assert ran.out.splitlines()[-1] == "  the newest that can be resumed: 5"


def test_the_state_era_had_no_scheduler_so_nothing_can_be_resumed() -> None:
    path = SHARED / "0.3.0" / "run-sgd-momentum"
    if not path.is_dir():
        pytest.skip("runs of 0.3.0 are not beside this checkout")
    run = one(path)

    assert [(e.number, e.missing, problems(e)) for e in run.epochs] == [(n, ("schedulers",), {}) for n in (1, 2, 3)]
    assert run.newest is None
