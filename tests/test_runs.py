"""Runs, epochs and what is whole in a folder: damaged runs, several runs, a layout that somebody else delivers."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ckptmigrate
from ckptmigrate import registry
from ckptmigrate.checkpoint import Progress
from ckptmigrate.errors import CheckpointError
from ckptmigrate.tensor import View

from .acme import PLUGINS, laid, trained
from .burn_records import MUSEUM
from .command_line import MUSEUM as TORCH
from .command_line import Ran
from .learner_run import KINDS, a_web_page, cut, emptied, one, pointed, problems, run, zipped_and_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["run"]  # a fixture


def test_a_whole_run(run: Path) -> None:
    found = one(run)

    assert [(e.number, e.whole, e.current, e.warnings, e.beside) for e in found.epochs] == [
        (3, True, False, (), ()),
        (4, True, False, (), ()),
    ]
    assert found.gaps == ((1, 2),)
    assert found.newest is not None
    assert found.newest.number == 4


def test_nothing_is_drawn(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> bytes:
        raise AssertionError("a tensor was drawn")

    monkeypatch.setattr(View, "read", never)

    assert one(run).newest is not None
    with ckptmigrate.open(run / "model.mpk") as checkpoint, pytest.raises(AssertionError, match="was drawn"):
        next(iter(checkpoint.model.values())).numpy()


@pytest.mark.parametrize(("kind", "section"), [*zip(KINDS, ["model", "optimizers", "schedulers"], strict=True)])
def test_a_file_that_is_missing_leaves_the_epoch_before_it(run: Path, kind: str, section: str) -> None:
    (run / "checkpoint" / f"{kind}-4.mpk").unlink()
    found = one(run)

    assert [(e.number, e.missing, e.whole) for e in found.epochs] == [(3, (), True), (4, (section,), False)]
    assert found.epochs[1].problems == ()
    assert found.newest is found.epochs[0]
    assert f"no {section.removesuffix('s')}" in Ran("epochs", run).out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut, "2 bytes before what it claims"),
        (emptied, "file is empty"),
        (pointed, "a Git LFS pointer to a file of 900 bytes"),
        (zipped_and_cut, "the gzip stream does not end within its"),
        (a_web_page, "a web page"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_reason(
    run: Path, kind: str, damage: Callable[[Path], None], says: str
) -> None:
    name = f"checkpoint/{kind}-4.mpk"
    damage(run / name)
    found = one(run)
    (problem,) = problems(found.epochs[1]).items()

    assert problem[0] == name
    assert says in problem[1]
    assert found.newest is found.epochs[0]
    assert f"{name} cannot be read: {problem[1]}" in Ran("epochs", run).out


def test_a_record_of_another_section_makes_no_epoch(run: Path) -> None:
    """What today's framework would take in silence, and begin anew."""
    shutil.copy(run / "checkpoint" / "model-4.mpk", run / "checkpoint" / "optim-4.mpk")
    epoch = one(run).epochs[1]

    assert not epoch.whole
    assert problems(epoch) == {}
    assert "optim-4.mpk" in epoch.problems[0]


@pytest.mark.parametrize("kind", ["optim", "scheduler"])
@pytest.mark.parametrize("suffix", [".mpk", ".bpk"])
def test_a_record_of_another_section_is_no_model(run: Path, kind: str, suffix: str) -> None:
    golden = MUSEUM / "0.21.0" / "golden" / "run-sgd-momentum" / "checkpoint"
    source = run / "checkpoint" if suffix == ".mpk" else golden
    (run / "checkpoint" / "model-4.mpk").unlink()
    shutil.copy(source / f"{kind}-3{suffix}", run / "checkpoint" / f"model-4{suffix}")
    found = one(run)

    assert "not of a model" in problems(found.epochs[1])[f"checkpoint/model-4{suffix}"]
    assert found.newest is found.epochs[0]


def test_an_encoding_without_names_cannot_be_read_without_its_schema(run: Path) -> None:
    shutil.copy(MUSEUM / "0.21.0" / "net-full.bin", run / "checkpoint" / "model-4.bin")
    (run / "checkpoint" / "model-4.mpk").unlink()
    epoch = one(run).epochs[1]

    assert list(problems(epoch)) == ["checkpoint/model-4.bin"]
    assert epoch.files[0].format == "burn_bin"


def test_of_several_files_of_a_section_the_current_one_counts(run: Path) -> None:
    for kind in KINDS:
        golden = MUSEUM / "0.21.0" / "golden" / "run-sgd-momentum" / "checkpoint" / f"{kind}-3.bpk"
        shutil.copy(golden, run / "checkpoint" / f"{kind}-3.bpk")
    epoch = one(run).epochs[0]

    assert (epoch.whole, epoch.current) == (True, True)
    assert [file.name for file in epoch.files] == [f"checkpoint/{kind}-3.bpk" for kind in KINDS]
    assert epoch.beside == tuple(f"checkpoint/{kind}-3.mpk" for kind in KINDS)

    cut(run / "checkpoint" / "model-3.bpk")

    assert list(problems(one(run).epochs[0])) == ["checkpoint/model-3.bpk"]  # as a conversion would refuse it


def test_no_epoch_to_resume_from_is_exit_code_one(run: Path) -> None:
    for number in (3, 4):
        emptied(run / "checkpoint" / f"optim-{number}.mpk")
    ran = Ran("epochs", run)

    assert ran.code == 1
    assert ran.out.splitlines()[-1] == "  no epoch can be resumed"


def test_models_that_are_all_gone_leave_a_run_without_a_whole_epoch(run: Path) -> None:
    for number in (3, 4):
        (run / "checkpoint" / f"model-{number}.mpk").unlink()
    found = one(run)

    assert [(e.number, e.missing) for e in found.epochs] == [(3, ("model",)), (4, ("model",))]
    assert found.newest is None


def test_leftover_scratch_and_backups_are_never_found(run: Path) -> None:
    before = one(run).as_dict()
    at = run / "checkpoint"
    shutil.copy(at / "model-4.mpk", at / "model-9.mpk.ckptmigrate-backup")
    shutil.copy(at / "model-4.mpk", at / "model-9.mpk.1.ckptmigrate-backup")
    shutil.copy(at / "model-4.mpk", at / ".model-9.bpk.ckptmigrate-3f9a1c7e")
    shutil.copytree(run, run.parent / ".run.ckptmigrate-00ff00ff")
    shutil.copytree(run, run.parent / "run.ckptmigrate-backup")

    assert [found.as_dict() for found in ckptmigrate.epochs(run.parent)] == [before]


def test_the_folder_of_the_files_may_be_named_itself(run: Path) -> None:
    inside = one(run / "checkpoint")

    assert [file.name for file in inside.epochs[0].files] == [f"{kind}-3.mpk" for kind in KINDS]
    assert inside.newest == inside.epochs[1]


def test_a_gap_of_any_length_is_two_numbers(run: Path) -> None:
    for kind in KINDS:
        (run / "checkpoint" / f"{kind}-4.mpk").rename(run / "checkpoint" / f"{kind}-{10**17}.mpk")

    assert one(run).gaps == ((1, 2), (4, 10**17 - 1))


# ---------------------------------------------------------------- folders of several runs, and of none


def test_all_runs_below_a_folder_are_found_and_each_needs_an_epoch(run: Path) -> None:
    shutil.copytree(run, run.parent / "a" / "b" / "other")
    ran = Ran("epochs", run.parent, "--json")

    assert ran.code == 0
    assert [(r["path"], r["resumable"]) for r in ran.json()["runs"]] == [
        (str(run.parent / "a" / "b" / "other"), 4),
        (str(run), 4),
    ]

    for path in (run.parent / "a" / "b" / "other" / "checkpoint").glob("model-*"):
        path.unlink()

    assert Ran("epochs", run.parent).code == 1


def test_the_json_has_every_file_and_reason(run: Path) -> None:
    emptied(run / "checkpoint" / "optim-4.mpk")
    (run / "checkpoint" / "scheduler-4.mpk").unlink()
    (found,) = Ran("epochs", run, "--json").json()["runs"]

    assert found["epochs"][1] == {
        "epoch": 4, "whole": False, "current": False, "missing": ["schedulers"], "problems": [], "warnings": [], "beside": [],
        "files": [
            {"section": "model", "name": "checkpoint/model-4.mpk", "format": "burn_mpk", "current": False, "problem": None},
            {"section": "optimizers.0", "name": "checkpoint/optim-4.mpk", "format": None, "current": False, "problem": "file is empty"},
        ],
    }  # fmt: skip
    assert (found["layout"], found["gaps"], found["resumable"]) == ("burn_epoch", [[1, 2]], 3)


def test_a_folder_of_torch_checkpoints_is_no_run_yet(tmp_path: Path) -> None:
    for number in (1, 2):
        shutil.copy(TORCH / "2.13.0-py311" / "checkpoint.pt", tmp_path / f"model-{number}.pt")
        shutil.copy(TORCH / "2.13.0-py311" / "checkpoint.pt", tmp_path / f"optim-{number}.pt")
    ran = Ran("epochs", tmp_path)

    assert ran.code == 1
    assert "no run is there: its checkpoints (4 torch_zip)" in ran.err
    assert "a folder of such files is no run yet" in ran.err


def test_a_learner_that_kept_nothing_left_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    ran = Ran("epochs", tmp_path)

    assert ran.code == 1
    assert "holds no epoch" in ran.err
    assert "retention may have kept none" in ran.err


def test_what_is_no_folder_of_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("nothing here")

    for path, says in [
        (tmp_path, "no run is there"),
        (tmp_path / "note.txt", "a run is a folder"),
        (tmp_path / "absent", "no such file"),
    ]:
        with pytest.raises(ckptmigrate.errors.CkptError, match=says) as caught:
            ckptmigrate.epochs(path)
        assert caught.value.path == str(path)


def test_a_link_out_of_the_tree_is_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "out").symlink_to(run)

    with pytest.raises(CheckpointError, match="no run is there"):
        ckptmigrate.epochs(tmp_path / "tree")


# ---------------------------------------------------------------- a layout that somebody else delivers


@pytest.fixture
def _installed() -> Iterator[None]:
    sys.path.insert(0, str(PLUGINS))
    registry.forget()
    yield
    sys.path.remove(str(PLUGINS))
    registry.forget()


@pytest.mark.usefixtures("_installed")
def test_a_run_of_a_layout_that_is_installed_is_found_alike(tmp_path: Path) -> None:
    for number in (2, 5):
        checkpoint = trained()
        checkpoint.progress = Progress(number, "finished")
        laid(checkpoint, tmp_path / "acme")
    found = one(tmp_path)

    assert (found.layout, [(e.number, e.whole) for e in found.epochs]) == ("acme_epoch", [(2, True), (5, True)])
    assert found.gaps == ((1, 1), (3, 4))


def test_counting_from_zero_begins_the_gaps_at_zero(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from ckptmigrate import runs

    own = next(layout for layout in registry.layouts() if layout.name == one(run).layout)
    named: dict[Any, Any] = {"last": ((0, 2),), "next": ((1, 2),), None: ()}
    for counts, expected in named.items():
        changed = replace(own, epoch_counts=counts)
        monkeypatch.setattr(runs, "_layout", lambda _source, changed=changed: changed)
        assert one(run).gaps == expected
