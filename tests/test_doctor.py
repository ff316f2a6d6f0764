"""What the doctor says of a run: each word of Burn's against real Burn and its learner's own messages; test_remedies types each remedy."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ckptmigrate

from .burnpack_desk import OURS, file, referee
from .command_line import CHECKPOINT, Ran
from .damaged_runs import (
    FIRST_STEP,
    HARMLESS,
    LOUD,
    MODEL,
    OPTIM,
    RATE,
    RESTARTS,
    RUN,
    SCALARS_OF_EXP,
    SCHEDULER,
    SILENT,
    SILENT_OF_EXP,
    copied,
    learned,
    parts_of,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptmigrate.doctor import Finding

__all__ = ["learned", "run"]  # fixtures


def symptoms(run: Path, damage: Callable[[Path, int], None], epoch: int) -> list[Finding]:
    """Damage one epoch of a run and give what the doctor says of it."""
    damage(run / "checkpoint", epoch)
    found = [finding for finding in ckptmigrate.doctor(run) if finding.epoch == epoch]
    for finding in found:
        assert finding.cause
    return found


def test_runs_that_today_s_burn_wrote_have_no_symptom(run: Path) -> None:
    assert ckptmigrate.doctor(run) == []
    assert Ran("doctor", run).code == 0


@pytest.mark.parametrize("fault", LOUD)
def test_what_a_damaged_run_makes_burn_say_is_said(run: Path, fault: str) -> None:
    damage, words = LOUD[fault]
    found = symptoms(run, damage, 3)

    assert [f.message for f in found if not f.silent and re.search(words, f.message)], found


@pytest.mark.parametrize("fault", [*LOUD, *SCALARS_OF_EXP])
def test_a_loud_symptom_is_word_for_word_what_the_learner_printed(
    learned: tuple[Path, dict[str, dict[str, Any]]], fault: str
) -> None:
    run, said = learned
    damage, words = {**LOUD, **SCALARS_OF_EXP}[fault]
    found = symptoms(run, damage, 5)
    printed = said[fault]["stderr"].replace("DIR/", f"{run}/")

    loud = [f.message for f in found if not f.silent and re.search(words, f.message)]
    sizes = re.compile(r"got \d+ bytes") if fault == "model unaligned" else None  # the test's CBOR is another writer's
    clean = (lambda text: sizes.sub("", text)) if sizes else (lambda text: text)
    assert said[fault]["exit"] == 101
    assert loud
    assert clean(loud[0]).partition("…")[0] in clean(printed)


@pytest.mark.parametrize("fault", SILENT)
def test_what_burn_takes_in_silence_is_said(run: Path, fault: str) -> None:
    damage, words = SILENT[fault]
    found = symptoms(run, damage, 3)

    assert [f for f in found if f.silent and f.message.endswith(words)], found
    assert [f for f in found if not f.silent] == []


@pytest.mark.parametrize("fault", [*SILENT, *SILENT_OF_EXP])
def test_what_is_said_to_be_silent_the_learner_did_accept(
    learned: tuple[Path, dict[str, dict[str, Any]]], fault: str
) -> None:
    run, said = learned
    damage, words = {**SILENT, **SILENT_OF_EXP}[fault]
    found = symptoms(run, damage, 5)

    assert said[fault]["exit"] == 0
    assert said[fault]["epochs_trained"]
    assert [f for f in found if f.silent and f.message.endswith(words)], found
    assert [f for f in found if not f.silent] == []


@pytest.mark.parametrize("fault", FIRST_STEP)
def test_what_loads_and_panics_in_the_first_step_is_silent_and_in_the_panic_s_words(
    learned: tuple[Path, dict[str, dict[str, Any]]], fault: str
) -> None:
    run, said = learned
    damage, words = FIRST_STEP[fault]
    found = symptoms(run, damage, 5)

    assert [f.message for f in found if f.silent] == [words]
    assert words in said[fault]["stderr"]
    assert [f for f in found if not f.silent] == []


@pytest.mark.parametrize("fault", HARMLESS)
def test_what_changes_nothing_is_no_symptom(run: Path, fault: str) -> None:
    assert symptoms(run, HARMLESS[fault], 3) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (copied(MODEL, OPTIM), RESTARTS),
        (copied(SCHEDULER, OPTIM), RESTARTS),
        (copied(MODEL, SCHEDULER), RATE),
        (copied(OPTIM, SCHEDULER), RATE),
    ],
    ids=["a model as the optimizer", "a scheduler as the optimizer", "a model as the scheduler", "an optimizer as the scheduler"],
)  # fmt: skip
def test_a_file_in_another_s_place_is_said_and_the_referee_takes_it(
    run: Path, damage: Callable[[Path, int], None], words: str
) -> None:
    found = symptoms(run, damage, 3)
    assert [f.message for f in found if f.silent and f.message == words]
    assert [f for f in found if not f.silent] == []
    proof = json.loads((RUN / "proof.json").read_text())
    told = referee("resume", run, "3", "adam", proof["scheduler"], json.dumps(proof["scheduler_config"]))
    assert told["ok"] is True, told


def test_a_file_is_looked_at_as_what_its_name_says_it_is(tmp_path: Path) -> None:
    shutil.copy(RUN / "checkpoint" / "model-3.bpk", tmp_path / "optim-3.bpk")
    shutil.copy(RUN / "checkpoint" / "optim-3.bpk", tmp_path / "model-3.bpk")
    (one,) = ckptmigrate.doctor(tmp_path / "optim-3.bpk")
    (other,) = ckptmigrate.doctor(tmp_path / "model-3.bpk")

    assert (one.message, one.silent) == (RESTARTS, True)
    assert (other.message, other.silent) == ('Failed to load record: Validation("Missing tensors: […]")', False)


RANKS = "called `Result::unwrap()` on an `Err` value: Any { .. }"


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("fc.0.weight", "conv.weight", RANKS),
        ("fc.0.bias", "conv.bias", "=== Tensor Operation Error ==="),
        ("norm.beta", "norm.gamma", None),  # of one shape: written twice, and trained by one gradient
        ("norm.running_mean", "fc.0.bias", None),  # nothing trains a running mean
    ],
)
def test_an_id_that_stands_for_two_parameters_is_said_in_the_words_of_the_first_step(
    run: Path, one: str, other: str, words: str | None
) -> None:
    path = run / "checkpoint" / "model-3.bpk"
    table, data = parts_of(path)
    table["tensors"][one]["param_id"] = table["tensors"][other]["param_id"]
    path.write_bytes(file(table, data))
    proof = json.loads((RUN / "proof.json").read_text())
    told = referee("resume", run, "3", "adam", proof["scheduler"], json.dumps(proof["scheduler_config"]))
    alone = [f for f in ckptmigrate.doctor(path) if "have one id" in f.cause]
    found = [f for f in ckptmigrate.doctor(run) if f.epoch == 3 and "have one id" in f.cause]

    assert told["ok"] is (words is None)
    assert [f.message for f in alone] == [f.message for f in found] == [] if words is None else [words]
    if words is not None:
        assert told["error"]["stage"] == "train"
        assert words in told["error"]["cause"]["panic"]
        assert found[0].silent
        assert {one, other} <= set(re.findall(r"[\w.]+", found[0].cause))


@pytest.mark.parametrize("name", ["0.4.0/optim-adam-partial.json.gz", "time taken out"])
def test_an_optimizer_without_a_count_asks_for_the_steps(tmp_path: Path, name: str) -> None:
    path = tmp_path / Path(name).name.replace(" ", "-")
    if name.endswith(".gz"):
        shutil.copy(OURS / name, path)
    else:
        path = tmp_path / "optim-3.bpk"
        table, data = parts_of(RUN / "checkpoint" / "optim-3.bpk")
        table["scalars"] = {name: value for name, value in table["scalars"].items() if not name.endswith(".time")}
        path.write_bytes(file(table, data))
    (finding,) = [f for f in ckptmigrate.doctor(path) if f.silent]

    assert finding.message == RESTARTS
    assert "--steps N says how many steps the optimizer had made" in finding.cause
    assert finding.remedy.endswith(".bpk --steps N")


# ---------------------------------------------------------------- the verb


def test_other_files_get_what_their_reader_found(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pt"
    cut.write_bytes(CHECKPOINT.read_bytes()[:-40])
    ran = Ran("doctor", cut, "--json")
    assert ran.code == 1
    (symptom,) = ran.json()["symptoms"]
    assert set(symptom) == {"file", "epoch", "message", "cause", "silent", "remedy"}
    assert symptom["message"]
    assert Ran("doctor", CHECKPOINT).code == 0


def test_never_3_whatever_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "page.bpk").write_text("<!DOCTYPE html><html>not found</html>")
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    for path in [tmp_path / "empty", tmp_path / "page.bpk", tmp_path / "run", tmp_path / "nobody", Path("/dev/null")]:
        assert Ran("doctor", path).code == 1, path


def test_the_terminal_shows_file_words_cause_and_command(tmp_path: Path) -> None:
    shutil.copy(OURS / "0.19.1" / "net.bpk", tmp_path / "net.bpk")
    out = Ran("doctor", tmp_path / "net.bpk").out

    assert re.fullmatch(
        r"\S+net.bpk:\n  loud: .*File truncated.*\n    why: .*\n    mend: ckptmigrate migrate .*\n", out
    )


def test_a_whole_epoch_is_not_blamed_for_a_file_in_another_s_place(run: Path) -> None:
    for what in (OPTIM, SCHEDULER):
        copied(what, MODEL)(run / "checkpoint", 3)

        assert {finding.epoch for finding in ckptmigrate.doctor(run)} == {3}
