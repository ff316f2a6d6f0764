"""Each command that the doctor prints is typed: it ends well, and what it wrote has the symptom no more, by the doctor and by real Burn."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ckptmigrate

from .burnpack_desk import OURS, referee
from .command_line import Ran
from .damaged_runs import (
    FIRST_STEP,
    LEARNER,
    LOUD,
    MODEL,
    OPTIM,
    SCALARS_OF_EXP,
    SCHEDULER,
    SILENT,
    SILENT_OF_EXP,
    bytes_of,
    copied,
    edit,
    learned,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptmigrate.doctor import Finding

__all__ = ["learned", "run"]  # fixtures


def a_folder_of(what: str) -> Callable[[Path, int], None]:
    def damage(folder: Path, epoch: int) -> None:
        (folder / f"{what}-{epoch}.bpk").unlink()
        (folder / f"{what}-{epoch}.bpk").mkdir()

    return damage


PLACES: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "a model as the optimizer": (copied(MODEL, OPTIM), ""),
    "a scheduler as the optimizer": (copied(SCHEDULER, OPTIM), ""),
    "a model as the scheduler": (copied(MODEL, SCHEDULER), ""),
    "an optimizer as the scheduler": (copied(OPTIM, SCHEDULER), ""),
    "an optimizer as the model": (copied(OPTIM, MODEL), ""),
    "optim cut in its table": (bytes_of(OPTIM, lambda data: data[:60]), ""),
    "scheduler cut in its table": (bytes_of(SCHEDULER, lambda data: data[:12]), ""),
    "scheduler of a version to come": (bytes_of(SCHEDULER, lambda data: data[:4] + b"\x02" + data[5:]), ""),
    "scheduler is a folder": (a_folder_of(SCHEDULER), ""),
    "optim is a folder": (a_folder_of(OPTIM), ""),
}
NONE = ckptmigrate.Finding("", None, "", "", silent=False, remedy="")
FAULTS = {**LOUD, **SILENT, **FIRST_STEP, **PLACES}
BEYOND = {"epochs", "inspect", "verify"}
"""Verbs that show where to go on, where nothing mends what is lost."""


def typed(finding: Finding) -> tuple[Ran, Path | None]:
    """Type a remedy, with a number where it says N; give what became of it, and what it wrote, if it writes."""
    _, verb, *words = shlex.split(finding.remedy.replace("--steps N", "--steps 2"))
    return Ran(verb, *words), Path(words[1]) if verb == "migrate" else None


def same(finding: Finding, others: list[Finding]) -> list[str]:
    """Give the symptoms of others that are the same as one: of a file of the same kind, in the same words."""
    kind = Path(finding.file).name.partition("-")[0]
    words = re.sub(r"\d+", "", finding.message.replace(str(Path(finding.file).parent), ""))
    return [
        other.message
        for other in others
        if Path(other.file).name.startswith(kind)
        and re.sub(r"\d+", "", other.message.replace(str(Path(other.file).parent), "")) == words
    ]


def openable(out: Path) -> None:
    """Ask real Burn to read every file that was written."""
    written = [out] if out.is_file() else sorted(out.rglob("*.bpk"))
    assert written
    for path in written:
        told = referee("read", path)
        assert told["ok"], (path, told)


def followed(run: Path, finding: Finding) -> tuple[Path, list[str]]:
    """Type a remedy, then what the doctor prints for the same file of its result; give the last result and what was typed."""
    commands: list[str] = []
    kind, at = Path(finding.file).name.partition("-")[0], run
    while finding.remedy:
        ran, out = typed(finding)
        verb = shlex.split(finding.remedy)[1]
        assert ran.code == 0 or (verb in BEYOND and ran.code == 1), (finding, ran.err)
        commands.append(finding.remedy)
        if out is None or "--sections" in finding.remedy:
            return out or at, commands
        at = out
        openable(at)
        left = ckptmigrate.doctor(at)
        assert same(finding, left) == [], finding
        finding = next((each for each in left if Path(each.file).name.startswith(kind)), NONE)
        assert len(commands) < 4, commands
    assert finding.silent or not finding.message, (finding, commands)
    return at, commands


def mended(run: Path, epoch: int) -> None:
    """Follow each remedy of one epoch, in a copy of the run."""
    found = [finding for finding in ckptmigrate.doctor(run) if finding.epoch == epoch]
    assert found
    for number, finding in enumerate({each.remedy: each for each in found if each.remedy}.values()):
        copy = run.parent / f"run-{number}"
        shutil.copytree(run, copy)
        told = [
            each for each in ckptmigrate.doctor(copy) if each.message.replace(str(copy), str(run)) == finding.message
        ]
        out, commands = followed(copy, next(each for each in told if each.epoch == epoch))
        if "--sections" in commands[-1]:  # the weights are all that can be had
            assert [each for each in ckptmigrate.doctor(out) if Path(each.file).name.startswith(MODEL)] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_doctor_prints_mends_a_damaged_run(run: Path, fault: str) -> None:
    FAULTS[fault][0](run / "checkpoint", 3)
    mended(run, 3)


@pytest.mark.parametrize(
    "fault", [*SCALARS_OF_EXP, *SILENT_OF_EXP, "scheduler file missing", "optim half", "model in F16"]
)
def test_so_it_does_a_run_whose_configuration_tells_the_scheduler(
    learned: tuple[Path, dict[str, object]], fault: str
) -> None:
    folder, _ = learned
    {**SCALARS_OF_EXP, **SILENT_OF_EXP, **FAULTS}[fault][0](folder / "checkpoint", 5)
    mended(folder, 5)


ALONE = sorted(
    path
    for path in OURS.rglob("*")
    if path.is_file() and path.parent.name != "generators" and re.search(r"\.(bpk|mpk|mpk\.gz|bin|bin\.gz|json|json\.gz)$", path.name)
    and not re.search(r"expected|schema|proof|config", path.name) and "generators" not in path.parts
)  # fmt: skip


@pytest.mark.parametrize("path", ALONE, ids=lambda path: str(path.relative_to(OURS)))
def test_what_the_doctor_prints_mends_a_file_alone(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the remedy asks for a schema, it is the one of the file's model; what the command itself then asks for is answered."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    shutil.copy(path, tmp_path / "in" / path.name)
    found = ckptmigrate.doctor(tmp_path / "in" / path.name)
    for finding in {each.remedy: each for each in found if each.remedy}.values():
        if "schema.json" in finding.remedy:
            named = path.name.partition(".")[0].rsplit("-", 1)[0]
            schema = path.parent / f"schema-{'quant' if 'quant' in named else named}.json"
            assert schema.exists(), finding
            shutil.copy(schema, tmp_path / "schema.json")
        ran, out = typed(finding)
        answers = [option for asked, option in asked_for(path).items() if asked in ran.err]
        if answers:
            ran = Ran(*shlex.split(finding.remedy)[1:], *answers[0])
        assert ran.code == 0, (finding, ran.err)
        assert out is not None
        openable(out)
        assert same(finding, ckptmigrate.doctor(out)) == [], finding
        out.unlink()


@pytest.mark.parametrize(
    "name", ["0.21.0/net-full.mpk", "0.7.0/net-full.bin", "0.4.0/optim-adam-partial.json.gz", "0.21.0/net-full.json"]
)
def test_so_it_does_a_record_that_bears_the_name_of_today_s_files(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(OURS / name, tmp_path / "renamed.bpk")
    shutil.copy(OURS / "0.7.0" / "schema-net.json", tmp_path / "schema.json")
    found = ckptmigrate.doctor("renamed.bpk")
    assert found[0].message == "Invalid magic number"
    for finding in [each for each in found if each.remedy]:
        ran, out = typed(finding)
        if "--steps N" in ran.err:
            ran = Ran(*shlex.split(finding.remedy)[1:], "--steps", "2")
        assert ran.code == 0, (finding, ran.err)
        assert out is not None
        openable(out)
        assert [each for each in ckptmigrate.doctor(out) if not each.silent] == []
        out.unlink()


def asked_for(path: Path) -> dict[str, list[str]]:
    """Give what only the owner of a file knows, by the words that ask for it: its scheduler is that of the file's name."""
    kind = path.name.partition(".")[0].partition("-")[2].partition("-")[0]
    return {
        "--scheduler KIND": ["--scheduler", "linear" if kind.isdecimal() else kind],
        "--dequantize": ["--dequantize"],
        "--steps N": ["--steps", "2"],
    }


# ---------------------------------------------------------------- runs of other releases


OLD_RUNS = sorted({path.parent.parent for path in OURS.glob("*/run-*/checkpoint/model-3.*")})
LEARNED = sorted(path for path in LEARNER.glob("*/*") if (path / "checkpoint").is_dir())


@pytest.mark.parametrize("path", [*OLD_RUNS, *LEARNED], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_the_doctor_prints_mends_a_run_of_any_release(tmp_path: Path, path: Path) -> None:
    """A learner's configuration tells its scheduler; of the other runs only their owner knows it."""
    shutil.copytree(path, tmp_path / "run")
    newest = max(epoch.number for one in ckptmigrate.epochs(tmp_path / "run") for epoch in one.epochs)
    found = [each for each in ckptmigrate.doctor(tmp_path / "run") if each.epoch == newest]
    loud = {each.remedy for each in found if not each.silent}
    assert bool(loud) == (path.parent.name != "0.22.1")
    for finding in [each for each in found if not each.silent][:1]:
        assert len(loud) == 1
        ran, out = typed(finding)
        if "--scheduler KIND" in ran.err and not (path / "config.json").exists():
            ran = Ran(*shlex.split(finding.remedy)[1:], "--scheduler", "linear" if path.name != "run-adam" else "noam")
        assert ran.code == 0, ran.err
        assert out is not None
        openable(out)
        assert [each for each in ckptmigrate.doctor(out) if not each.silent] == []
        assert ckptmigrate.epochs(out)[0].newest is not None


@pytest.mark.parametrize(
    "gone", [("optim",), ("scheduler",), ("optim", "scheduler"), ("model",), ("model", "scheduler")]
)
@pytest.mark.parametrize("cut", [False, True])
def test_one_command_for_what_is_left_of_an_epoch(tmp_path: Path, gone: tuple[str, ...], cut: bool) -> None:
    """What would take all of it would be refused for the part that is lost, so none such is printed."""
    shutil.copytree(OURS / "0.21.0" / "run-sgd-momentum", tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text('{"lr": {"initial_lr": 0.1, "final_lr": 0.01, "num_iters": 9}}')
    for what in gone:
        path = tmp_path / "run" / "checkpoint" / f"{what}-3.mpk"
        path.write_bytes(path.read_bytes()[:-3]) if cut else path.unlink()
    remedies = {finding.remedy for finding in ckptmigrate.doctor(tmp_path / "run") if finding.remedy}
    assert len(remedies) == 1, remedies
    ran, out = typed(next(each for each in ckptmigrate.doctor(tmp_path / "run") if each.remedy))

    if "model" in gone:
        assert (ran.code, out) == (1, None)  # epochs: there is none to go on from
        return
    assert ran.code == 0, ran.err
    assert out is not None
    assert sorted(path.name for path in out.rglob("*.bpk")) == sorted(
        f"{what}-3.bpk"
        for what in ("model", "optim", "scheduler")
        if not (what in gone and (what == "optim" or cut)) and not (what == "scheduler" and "optim" in gone)
    )


# ---------------------------------------------------------------- names of other releases


@pytest.fixture
def coupled(tmp_path: Path) -> Path:
    """A run of 0.21 with a coupled LSTM, as its recorder left it: model and Adam, after two steps, and a linear scheduler."""
    folder = tmp_path / "run" / "checkpoint"
    folder.mkdir(parents=True)
    shutil.copy(OURS / "0.21.0" / "optim-coupled-model.mpk", folder / "model-2.mpk")
    shutil.copy(OURS / "0.21.0" / "optim-coupled-full.mpk", folder / "optim-2.mpk")
    shutil.copy(OURS / "0.21.0" / "run-sgd-momentum" / "checkpoint" / "scheduler-3.mpk", folder / "scheduler-2.mpk")
    (tmp_path / "run" / "config.json").write_text('{"lr": {"initial_lr": 0.1, "final_lr": 0.01, "num_iters": 9}}')
    return tmp_path / "run"


GATES = [f"lstm.forget_gate.{part}_transform.{what}" for part in ("hidden", "input") for what in ("bias", "weight")]


@pytest.mark.parametrize("converted", [False, True])
def test_gates_that_a_coupled_lstm_has_no_more_are_told_as_burn_does_and_the_command_drops_them(
    coupled: Path, converted: bool
) -> None:
    if converted:
        assert Ran("migrate", coupled, coupled.parent / "today").code == 0
        coupled = coupled.parent / "today"
        told = referee("load", coupled / "checkpoint" / "model-2.bpk", "coupled")
        assert told["error"]["debug"] == f"Validation({json.dumps(f'Unused tensors: {json.dumps(GATES)}')})"
    (finding,) = [each for each in ckptmigrate.doctor(coupled) if "Unused tensors" in each.message]

    assert finding.message == f"Failed to load record: Validation({json.dumps(f'Unused tensors: {json.dumps(GATES)}')})"
    assert not finding.silent
    ran, out = typed(finding)
    assert ran.code == 0, ran.err
    assert out is not None
    assert ckptmigrate.doctor(out) == []
    assert referee("load", out / "checkpoint" / "model-2.bpk", "coupled")["ok"]


def test_an_lstm_whose_forget_gate_was_trained_is_none_of_these(coupled: Path) -> None:
    """The other LSTM of that model, whose gates have state, stays whole."""
    found = [each.message for each in ckptmigrate.doctor(coupled) if "Unused tensors" in each.message]

    assert len(found) == 1
    assert "plain." not in found[0]


def test_elements_of_a_tuple_that_lost_their_index_are_told_and_the_rename_puts_them_back(tmp_path: Path) -> None:
    """A file of 0.19 tells nothing of tuples; what Burn then misses is put back by the command that the doctor spells."""
    shutil.copy(OURS / "0.19.1" / "zoo.bpk", tmp_path / "zoo.bpk")
    (finding,) = ckptmigrate.doctor(tmp_path / "zoo.bpk")
    assert "elements of a tuple without their index" in finding.cause
    spelled = re.search(r"--rename '(\S+)'", finding.cause)
    assert spelled is not None

    words = shlex.split(finding.remedy)[1:]
    assert Ran(*words).code == 0
    before = referee("load", words[2], "zoo", "--partial")
    assert Ran(*words, "--force", "--rename", spelled[1], "--rename", r"pair\.(gamma|beta)=pair.1.\1").code == 0
    after = referee("load", words[2], "zoo", "--partial")

    lost = ["pair.0.bias", "pair.0.weight", "pair.1.beta", "pair.1.gamma"]
    assert sorted(name for name in before["missing"] if name.startswith("pair")) == lost
    assert [name for name in [*after["missing"], *after["unused"]] if name.startswith("pair")] == []


def test_elements_of_a_tuple_that_shared_a_name_are_lost_and_nothing_is_said_to_mend_them() -> None:
    opened, lost = ckptmigrate.doctor(OURS / "0.19.1" / "twin.bpk")

    assert opened.message.startswith("Validation error: File truncated")
    assert (lost.message, lost.remedy) == ('Failed to load record: Validation("Missing tensors: […]")', "")
    assert "bytes of its tensors have no name" in lost.cause


def test_the_optimizer_tells_where_an_index_belongs(run: Path) -> None:
    def lose(table: dict[str, Any]) -> None:
        for what in ("weight", "bias"):
            table["tensors"][f"fc.{what}"] = table["tensors"].pop(f"fc.1.{what}")

    edit(MODEL, lose)(run / "checkpoint", 3)
    finding = next(each for each in ckptmigrate.doctor(run) if each.epoch == 3)
    assert finding.message == r'Failed to load record: Validation("Missing tensors: [\"fc.1.bias\", \"fc.1.weight\"]")'
    ran, out = typed(finding)

    assert ran.code == 0, ran.err
    assert out is not None
    assert ckptmigrate.doctor(out) == []
    assert referee("load", out / "checkpoint" / "model-3.bpk", "net")["ok"]


def test_of_two_elements_under_one_name_nobody_says_which_it_is(run: Path) -> None:
    def lose(table: dict[str, Any]) -> None:
        table["tensors"]["fc.weight"] = table["tensors"].pop("fc.1.weight")
        del table["tensors"]["fc.0.weight"]

    edit(MODEL, lose)(run / "checkpoint", 3)
    found = [each for each in ckptmigrate.doctor(run) if each.epoch == 3 and "Missing tensors" in each.message]

    assert [each for each in found if r"[\"fc.0.weight\", \"fc.1.weight\"]" in each.message]
    assert {each.remedy for each in found} == {""}
