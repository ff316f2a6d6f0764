"""A run in one call: every epoch that is whole, one after the other, into one folder that mirrors the source's."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ckptmigrate
from ckptmigrate import batch, convert
from ckptmigrate.errors import ExistsError, OutputError, PlanError, UsageError
from ckptmigrate.format import GatherOptions, ReadOptions, WriteOptions
from ckptmigrate.formats import burnpack
from ckptmigrate.tensor import Tensor
from ckptmigrate.testing import Memory

from .burn_records import MUSEUM
from .command_line import Ran
from .learner_run import KINDS, a_web_page, cut, emptied, pointed, zipped_and_cut

if TYPE_CHECKING:
    from collections.abc import Callable

KIND = "linear"  # which the number in the scheduler's record does not tell
GOLDEN = MUSEUM / "0.21.0" / "golden" / "run-sgd-momentum" / "checkpoint"
LOGS = ["config.json", "experiment.log", "train/epoch-1/Loss.log"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with epochs 2, 3 and 4, and files around them as a learner leaves them."""
    folder = tmp_path / "run"
    shutil.copytree(MUSEUM / "0.21.0" / "run-sgd-momentum", folder)
    for kind in KINDS:
        for number in (2, 4):
            shutil.copy(folder / "checkpoint" / f"{kind}-3.mpk", folder / "checkpoint" / f"{kind}-{number}.mpk")
    (folder / "model.mpk").write_bytes((folder / "checkpoint" / "model-4.mpk").read_bytes())
    (folder / "config.json").write_text('{"batch": 4}')
    (folder / "experiment.log").write_text("INFO Restoring checkpoint\n" * 70_000)
    (folder / "train" / "epoch-1").mkdir(parents=True)
    (folder / "train" / "epoch-1" / "Loss.log").write_text("0.5,4\n")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def records(*numbers: int, suffix: str = ".bpk") -> list[str]:
    return sorted(f"checkpoint/{kind}-{number}{suffix}" for kind in KINDS for number in numbers)


def migrated(run: Path, out: Path | None, options: convert.Options | None = None) -> batch.RunReport:
    options = options or convert.Options()
    done = batch.migrate(run, out, replace(options, gather=replace(options.gather, scheduler=KIND)))
    assert isinstance(done, batch.RunReport)
    return done


def test_every_epoch_is_converted_and_what_lies_around_them_copied(run: Path, tmp_path: Path) -> None:
    done = migrated(run, tmp_path / "out", convert.Options(write=WriteOptions(bare=True)))

    assert names(tmp_path / "out") == sorted([*records(2, 3, 4), *LOGS])
    for name in LOGS:
        assert (tmp_path / "out" / name).read_bytes() == (run / name).read_bytes()
    for number in (2, 3, 4):
        for kind in KINDS:
            made = (tmp_path / "out" / "checkpoint" / f"{kind}-{number}.bpk").read_bytes()
            assert made == (GOLDEN / f"{kind}-3.bpk").read_bytes()
    assert (list(done.reports), done.refused) == ([2, 3, 4], {})
    assert (done.copied, done.not_copied) == (tuple(LOGS), ("model.mpk",))
    assert {report.target for report in done.reports.values()} == {str(tmp_path / "out")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    (found,) = ckptmigrate.epochs(tmp_path / "out")
    assert [(epoch.number, epoch.whole, epoch.current) for epoch in found.epochs] == [
        (n, True, True) for n in (2, 3, 4)
    ]


@pytest.mark.parametrize("kind", ["model", "optim"])
@pytest.mark.parametrize("damage", [Path.unlink, emptied])
def test_an_epoch_that_is_not_whole_is_refused_as_a_set_and_the_others_go_on(
    run: Path, tmp_path: Path, kind: str, damage: Callable[[Path], None]
) -> None:
    damage(run / "checkpoint" / f"{kind}-3.mpk")
    ran = Ran("migrate", run, tmp_path / "out", "--scheduler", KIND, "--report", tmp_path / "report.json")

    assert ran.code == 3
    assert names(tmp_path / "out") == sorted([*records(2, 4), *LOGS])
    assert "epoch 3: refused: " in ran.out
    assert "1 of 3 epochs refused" in ran.out
    assert '"refused": [' in (tmp_path / "report.json").read_text()


def test_without_any_whole_epoch_nothing_is_written_and_every_reason_is_told(run: Path, tmp_path: Path) -> None:
    for number in (2, 3, 4):
        emptied(run / "checkpoint" / f"optim-{number}.mpk")

    with pytest.raises(PlanError) as caught:
        migrated(run, tmp_path / "out")

    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["epoch 2", "epoch 3", "epoch 4"]
    assert all("file is empty" in problem for problem in caught.value.problems)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_failure_of_the_output_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = convert.migrate

    def full(path: Path, out: Path, options: convert.Options, progress: None = None) -> convert.Report:
        if options.gather.epoch == 4 and not options.dry_run:
            raise OutputError("no space left", path=str(out))
        return real(path, out, options, progress)

    monkeypatch.setattr(convert, "migrate", full)
    with pytest.raises(OutputError, match="no space left"):
        migrated(run, tmp_path / "out")

    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_sections_takes_what_there_is(run: Path, tmp_path: Path) -> None:
    (run / "checkpoint" / "optim-3.mpk").unlink()
    done = migrated(run, tmp_path / "out", convert.Options(gather=GatherOptions(only=("model",))))

    assert names(tmp_path / "out") == sorted([*(f"checkpoint/model-{n}.bpk" for n in (2, 3, 4)), *LOGS])
    assert done.refused == {}


def no_file_at_all(path: Path) -> None:
    path.unlink()
    path.mkdir()


def without_names(path: Path) -> None:
    """Leave a record whose encoding has no names, which nobody reads without its schema."""
    shutil.copy(MUSEUM / "0.13.2" / "optim-adam-full.bin", path.with_suffix(".bin"))
    path.unlink()


def another(path: Path) -> None:
    shutil.copy(path.with_name("model-3.mpk"), path)


@pytest.mark.parametrize("kind", ["optim", "scheduler"])
@pytest.mark.parametrize(
    "damage", [cut, emptied, pointed, zipped_and_cut, a_web_page, no_file_at_all, without_names, another]
)
@pytest.mark.parametrize("chosen", [["--sections", "model"], ["--drop", "optimizers", "--drop", "schedulers"]])
def test_a_file_of_a_section_that_nobody_takes_may_be_as_damaged_as_it_likes(
    run: Path, tmp_path: Path, kind: str, damage: Callable[[Path], None], chosen: list[str]
) -> None:
    for number in (3, 4):
        damage(run / "checkpoint" / f"{kind}-{number}.mpk")
    whole = Ran("migrate", run, tmp_path / "out", *chosen, "--bare", "--json")
    one = Ran("migrate", run, tmp_path / "one", *chosen, "--bare", "--epoch", "4", "--json")

    assert (whole.code, one.code) == (0, 0), whole.err + one.err
    assert [name for name in names(tmp_path / "out") if name.endswith(".bpk")] == [
        f"checkpoint/model-{n}.bpk" for n in (2, 3, 4)
    ]
    for path in (tmp_path / "out", tmp_path / "one"):
        assert (path / "checkpoint" / "model-4.bpk").read_bytes() == (GOLDEN / "model-3.bpk").read_bytes()
    for report in [*whole.json()["epochs"], one.json()]:
        assert {left["path"].partition(".")[0].rpartition("-")[0] for left in report["left_out"]} == {
            "checkpoint/optim",
            "checkpoint/scheduler",
        }
        assert all("hence not read" in left["reason"] and chosen[0] in left["reason"] for left in report["left_out"])


@pytest.mark.parametrize("damage", [cut, emptied, a_web_page, no_file_at_all, Path.unlink])
@pytest.mark.parametrize("chosen", ["optimizers", "schedulers", "optimizers,schedulers"])
def test_so_may_a_model_where_the_state_has_ids_of_its_own(
    run: Path, tmp_path: Path, damage: Callable[[Path], None], chosen: str
) -> None:
    """The state stands under the ids that the lost model gave it; Burn needs no more to find its parameters."""
    damage(run / "checkpoint" / "model-3.mpk")
    whole = Ran("migrate", run, tmp_path / "out", "--sections", chosen, "--scheduler", KIND, "--json")
    one = Ran(
        "migrate", run, tmp_path / "one", "--sections", chosen, "--scheduler", KIND, "--epoch", "3", "--bare", "--json"
    )

    assert (whole.code, one.code) == (0, 0), whole.err + one.err
    kinds = [kind for kind in ("optim", "scheduler") if kind in chosen]
    written = [name for name in names(tmp_path / "out") if name.endswith(".bpk")]
    assert written == sorted(f"checkpoint/{kind}-{n}.bpk" for kind in kinds for n in (2, 3, 4))
    nameless = [text for text in one.json()["warnings"] if "parameters have no names" in text]
    assert len(nameless) == ("optimizers" in chosen)
    if "optimizers" in chosen:
        made, wanted = (tables(at / "optim-3.bpk") for at in (tmp_path / "one" / "checkpoint", GOLDEN))
        assert made == (wanted[0], {}, wanted[2])


def tables(path: Path) -> tuple[dict[str, bytes], dict[str, str], dict[str, Any]]:
    """Give a burnpack's tensors, its metadata and its scalars, without the order in which they lie."""
    parts = burnpack.read(Memory(path.read_bytes()), ReadOptions())
    held = parts.tensors or {}
    tensors = {n: bytes(t.promise.read(0, t.promise.numel)) for n, t in held.items() if isinstance(t, Tensor)}
    return tensors, parts.facts["metadata"], {name: value for name, value in held.items() if name not in tensors}


def test_what_is_taken_is_still_refused_where_it_cannot_be_read(run: Path, tmp_path: Path) -> None:
    cut(run / "checkpoint" / "optim-4.mpk")
    ran = Ran("migrate", run, tmp_path / "out", "--epoch", "4", "--sections", "model,optimizers")

    assert ran.code == 3
    assert "before what it claims" in ran.err


def test_one_call_from_python_takes_a_run_or_one_checkpoint(run: Path, tmp_path: Path) -> None:
    emptied(run / "checkpoint" / "optim-3.mpk")
    several = ckptmigrate.migrate(run, tmp_path / "out", gather=GatherOptions(scheduler=KIND))
    single = ckptmigrate.migrate(run, tmp_path / "one", gather=GatherOptions(scheduler=KIND, epoch=2))
    again = ckptmigrate.migrate(run, tmp_path / "dry", dry_run=True, gather=GatherOptions(scheduler=KIND))

    assert isinstance(several, ckptmigrate.RunReport)
    assert isinstance(single, ckptmigrate.Report)
    assert (several.written, several.verified, again.written, again.verified) == (True, True, False, False)
    assert sorted(several.files) == records(2, 4)
    assert sorted(single.files) == records(2)
    assert several.warnings[0] == "epoch 3: refused: checkpoint/optim-3.mpk: file is empty"
    assert several.notes == tuple(f"epoch {n}: {note}" for n, one in several.reports.items() for note in one.notes)
    assert several.fates == several.reports[2].fates + several.reports[4].fates
    assert single.fates == several.reports[2].fates


def test_the_number_of_an_epoch_cannot_be_dropped(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--drop progress"):
        migrated(run, tmp_path / "out", convert.Options(gather=GatherOptions(drop=("progress",))))


def test_in_place_puts_every_epoch_beside_the_old_one(run: Path) -> None:
    before = {name: (run / name).read_bytes() for name in names(run)}
    ran = Ran("migrate", run, "--in-place", "--scheduler", KIND)

    assert ran.code == 0
    assert names(run) == sorted([*before, *records(2, 3, 4)])
    assert {name: (run / name).read_bytes() for name in before} == before
    assert "wrote" not in Ran("migrate", run, "--in-place", "--scheduler", KIND).out  # nothing is pending any more


def test_a_dry_run_writes_nothing_and_finds_the_same(run: Path, tmp_path: Path) -> None:
    done = migrated(run, tmp_path / "out", convert.Options(dry_run=True))

    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (list(done.reports), done.copied) == ([2, 3, 4], tuple(LOGS))
    assert not any(report.written for report in done.reports.values())


def test_what_is_there_is_replaced_only_by_force(run: Path, tmp_path: Path) -> None:
    migrated(run, tmp_path / "out")
    first = {name: (tmp_path / "out" / name).read_bytes() for name in names(tmp_path / "out")}
    (tmp_path / "out" / "config.json").write_text("{}")

    with pytest.raises(ExistsError):
        migrated(run, tmp_path / "out")
    with pytest.raises(UsageError, match=r"OUT is the (run|checkpoint) itself"):
        migrated(run, run, convert.Options(force=True))
    migrated(run, tmp_path / "out", convert.Options(force=True))

    assert {name: (tmp_path / "out" / name).read_bytes() for name in names(tmp_path / "out")} == first


def test_one_epoch_that_is_named_is_one_checkpoint(run: Path, tmp_path: Path) -> None:
    done = batch.migrate(run, tmp_path / "out", convert.Options(gather=GatherOptions(epoch=3, scheduler=KIND)))

    assert isinstance(done, convert.Report)
    assert names(tmp_path / "out") == sorted([*records(3), *LOGS])
    assert done.written
    assert f"copied: {', '.join(LOGS)}" in done.notes


def test_only_the_epoch_that_is_named_is_opened_and_none_of_the_others_is_copied(run: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        emptied(run / "checkpoint" / f"{kind}-2.mpk")
    batch.migrate(run, tmp_path / "out", convert.Options(gather=GatherOptions(epoch=3, scheduler=KIND)))

    assert names(tmp_path / "out") == sorted([*records(3), *LOGS])


def test_one_epoch_that_is_not_whole_is_refused_with_its_own_reason(run: Path, tmp_path: Path) -> None:
    (run / "checkpoint" / "optim-3.mpk").unlink()
    ran = Ran("migrate", run, tmp_path / "out", "--epoch", "3", "--scheduler", KIND)

    assert ran.code == 3
    assert "has no optimizers" in ran.err
    assert "--sections model takes what there is" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_epoch_that_is_not_there_is_refused_with_those_that_are(run: Path, tmp_path: Path) -> None:
    ran = Ran("migrate", run, tmp_path / "out", "--epoch", "7", "--scheduler", KIND)

    assert ran.code == 3
    assert "has no epoch 7; it has: 2, 3, 4" in ran.err


@pytest.mark.parametrize(("out", "to"), [("out.bpk", None), ("out.safetensors", None), ("out", "safetensors")])
def test_a_target_that_holds_one_epoch_asks_for_it(run: Path, tmp_path: Path, out: str, to: str | None) -> None:
    ran = Ran("migrate", run, tmp_path / out, "--scheduler", KIND, *(["--to", to] if to else []))

    assert ran.code == 3
    assert "holds epochs 2, 3, 4" in ran.err
    assert "--epoch 4 takes the last one" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_in_place_an_epoch_without_its_other_sections_keeps_its_number(run: Path) -> None:
    for number in (2, 4):
        for kind in KINDS:
            (run / "checkpoint" / f"{kind}-{number}.mpk").unlink()
    cut(run / "checkpoint" / "optim-3.mpk")

    assert Ran("migrate", run, "--in-place", "--sections", "model").code == 0
    assert [name for name in names(run) if name.endswith(".bpk")] == ["checkpoint/model-3.bpk"]
