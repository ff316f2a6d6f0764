"""What the doctor says: each word of Burn's against real Burn, its learner's own messages and its files; test_remedies types each remedy."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import ckptmigrate
from ckptmigrate.files import Disk
from ckptmigrate.formats._burnpack_opening import opening

from .burnpack_desk import FILES, MUSEUM, OURS, file, referee
from .command_line import CHECKPOINT, Ran
from .damaged_runs import (
    FIRST_STEP,
    HARMLESS,
    LEARNER,
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


# ---------------------------------------------------------------- files alone


@pytest.mark.parametrize("name", FILES)
def test_what_today_s_burn_says_on_opening_a_file_is_what_the_referee_says(name: str) -> None:
    told = referee("read", FILES[name])
    with Disk() as disk:
        assert opening(disk.open(FILES[name])) == (None if told["ok"] else told["error"]["display"])


@pytest.mark.parametrize("what", [MODEL, OPTIM, SCHEDULER])
def test_so_it_is_of_damaged_tables(tmp_path: Path, what: str) -> None:
    """An item of the table is of another kind, length or value: what the doctor calls loud the referee refuses, in words that begin alike."""
    random = Random(what)
    data = (RUN / "checkpoint" / f"{what}-3.bpk").read_bytes()
    path, refused = tmp_path / "damaged.bpk", 0
    for _ in range(40):
        at = random.randrange(6, 10 + int.from_bytes(data[6:10], "little"))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :])
        with Disk() as disk:
            said = opening(disk.open(path))
        told = referee("read", path)

        assert (said is None) is told["ok"], (at, said, told)
        if said is not None:
            refused += 1
            assert told["error"]["display"].startswith(re.split("…|Syntax", said)[0])
    assert refused


VALUES: dict[str, Any] = {
    "a count": 9, "a negative": -10, "beyond i64": 1 << 63, "the largest": (1 << 64) - 1, "below i64": -(1 << 63) - 1,
    "a fraction": 1.5, "NaN": float("nan"), "nothing": None, "a truth": True, "text": "a", "a list": [1], "a map": {},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["UInt", "Int", "Float", "Bool"])
@pytest.mark.parametrize("value", VALUES)
def test_so_it_is_of_a_scalar_that_holds_something_else(tmp_path: Path, kind: str, value: str) -> None:
    path = tmp_path / "scalars.bpk"
    path.write_bytes(file({"tensors": {}, "scalars": {"s": {kind: VALUES[value]}}}, b""))
    told = referee("read", path)
    with Disk() as disk:
        said = opening(disk.open(path))

    assert (said is None) is told["ok"]
    if said is not None:
        assert told["error"]["display"].startswith(said.partition("…")[0])


@pytest.mark.parametrize("length", [0, 1, 3, 18, 23])
def test_so_it_is_of_offsets_that_claim_to_be_more_or_fewer(tmp_path: Path, length: int) -> None:
    """Burn takes two of them, and what follows for the next field, whatever the length says."""
    path = tmp_path / "model-3.bpk"
    data = (RUN / "checkpoint" / "model-3.bpk").read_bytes()
    name = b"data_offsets"
    for at in [found.end() for found in re.finditer(name, data)]:
        path.write_bytes(data[:at] + bytes([0x80 + length]) + data[at + 1 :])
        told = referee("read", path)
        found = ckptmigrate.doctor(path)

        assert told["ok"] is (length > 2)
        assert [finding.silent for finding in found] == [told["ok"]]
        assert f"has {length} data_offsets, expected 2" in found[0].cause


SCHEMES = [name for name in FILES if re.search(r"0\.22\.1/quant-.*\.bpk", name)]


@pytest.mark.parametrize("name", SCHEMES)
def test_so_it_is_of_damaged_words_for_a_quantisation(tmp_path: Path, name: str) -> None:
    """A letter of the word is another: what is none of a field's variants is told, and so is the field that is missing then."""
    data, path = FILES[name].read_bytes(), tmp_path / "damaged.bpk"
    begin = data.index(b"QFloat") + 7
    for at in [*range(begin, begin + 40, 3)]:
        path.write_bytes(data[:at] + b"x" + data[at + 1 :])
        told = referee("read", path)
        with Disk() as disk:
            said = opening(disk.open(path))

        assert (said is None) is told["ok"], (at, said, told)
        if said is not None:
            assert told["error"]["display"].startswith(said.partition("…")[0]), (at, said, told)


def in_bytes(node: Any, key: str) -> Any:
    """Give a table in which the maps that have a key have it as bytes."""
    if not isinstance(node, dict):
        return node
    return {name.encode() if name == key else name: in_bytes(below, key) for name, below in node.items()}


@pytest.mark.parametrize(
    "field", ["tensors", "metadata", "scalars", "dtype", "shape", "data_offsets", "param_id", "UInt"]
)
def test_the_name_of_a_field_may_be_bytes_for_burn_and_for_us(tmp_path: Path, field: str) -> None:
    path = tmp_path / "optim-3.bpk"
    table, data = parts_of(RUN / "checkpoint" / "optim-3.bpk")
    path.write_bytes(file(in_bytes(table, field), data))

    assert file(table, data) != path.read_bytes()
    assert referee("read", path)["ok"]
    assert ckptmigrate.doctor(path) == []
    assert ckptmigrate.verify(path, RUN / "checkpoint" / "optim-3.bpk") == []


def test_the_name_of_a_tensor_may_not(tmp_path: Path) -> None:
    path = tmp_path / "model-3.bpk"
    table, data = parts_of(RUN / "checkpoint" / "model-3.bpk")
    path.write_bytes(file(in_bytes(table, "head.weight"), data))
    (finding,) = ckptmigrate.doctor(path)

    assert not finding.silent
    assert referee("read", path)["error"]["display"].startswith(finding.message.rstrip("…"))


@pytest.mark.parametrize("cut", [0, 3, 9, 10, 200, 900])
def test_so_it_is_of_a_cut_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.bpk"
    path.write_bytes((RUN / "checkpoint" / "model-3.bpk").read_bytes()[:cut])
    told = referee("read", path)
    (finding,) = ckptmigrate.doctor(path)

    assert (finding.message, finding.silent) == (told["error"]["display"], False)


def test_a_record_of_each_era_says_what_today_s_burn_and_the_others_say() -> None:
    for name, words in {
        "0.11.1/net-full.mpk": ["Invalid magic number", "missing field `_b`", "missing field `bytes`"],
        "0.13.2/net-half.mpk": ["Invalid magic number", "missing field `bytes`"],
        "0.21.0/net-full.mpk": ["Invalid magic number", "missing field `value`"],
        "0.21.0/net-full.bin": ["Invalid magic number"],
        "0.19.1/net.bpk": ["Validation error: File truncated: expected at least 1748 bytes, got 1553 bytes"],
    }.items():
        found = ckptmigrate.doctor(OURS / name)

        assert [f.message for f in found] == words


@pytest.mark.parametrize(
    ("reader", "writer"), [("0.13.2", "0.11.1"), ("0.18.0", "0.13.2"), ("0.21.0", "0.11.1"), ("0.13.2", "0.21.0")]
)
def test_what_other_releases_are_said_to_say_they_said(reader: str, writer: str) -> None:
    source = MUSEUM / writer / "run-adam" / "checkpoint"
    if not source.exists() or not (LEARNER / "messages.json").exists():
        pytest.skip("the museum is not beside this checkout: shared/fixtures/burn")
    path = next(p for p in source.iterdir() if p.name.startswith("model-3."))
    said = json.loads((LEARNER / "messages.json").read_text())
    printed = next(one for one in said if one["burn"] == reader and one["fault"] == f"model of burn {writer}")["stderr"]

    assert any(f.message in printed for f in ckptmigrate.doctor(path) if f.message.startswith("missing field"))


@pytest.mark.parametrize("reader", ["0.13.2", "0.18.0", "0.21.0"])
@pytest.mark.parametrize("fault", ["model half", "model last-byte", "model empty", "model magic", "model zeros"])
def test_what_a_broken_record_makes_the_release_say_that_wrote_it(tmp_path: Path, reader: str, fault: str) -> None:
    source = LEARNER / reader / "keep2" / "checkpoint" / "model-5.mpk"
    if not source.exists():
        pytest.skip("the learner's runs are not beside this checkout: shared/fixtures/burn/learner")
    data = source.read_bytes()
    broken = {
        "half": data[: len(data) // 2],
        "last-byte": data[:-1],
        "empty": b"",
        "magic": b"XXXX" + data[4:],
        "zeros": bytes(len(data)),
    }
    (tmp_path / "model-5.mpk").write_bytes(broken[fault.split()[1]])
    said = json.loads((LEARNER / "messages.json").read_text())
    printed = next(one for one in said if one["burn"] == reader and one["fault"] == fault)["stderr"]
    found = [f.message for f in ckptmigrate.doctor(tmp_path / "model-5.mpk")]

    assert len(found) == 2
    assert found[1] in printed


@pytest.mark.parametrize("release", ["0.8.0", "0.13.2", "0.18.0", "0.20.1", "0.21.0"])
@pytest.mark.parametrize("what", [MODEL, OPTIM, SCHEDULER])
def test_what_a_missing_file_makes_the_release_say_that_wrote_the_others(
    tmp_path: Path, release: str, what: str
) -> None:
    if not (LEARNER / release / "keep2").is_dir():
        pytest.skip("the learner's runs are not beside this checkout: shared/fixtures/burn/learner")
    shutil.copytree(LEARNER / release / "keep2", tmp_path / "run")
    next((tmp_path / "run" / "checkpoint").glob(f"{what}-5.*")).unlink()
    said = json.loads((LEARNER / "messages.json").read_text())
    printed = next(one for one in said if one["burn"] == release and one["fault"] == f"{what} file missing")["stderr"]
    today, own = [f for f in ckptmigrate.doctor(tmp_path / "run") if f.epoch == 5 and Path(f.file).name == f"{what}-5"]

    assert "cannot open" in today.message
    assert own.message in printed
    assert own.cause == f"Burn {release} says so of the same"


@pytest.mark.parametrize("what", [MODEL, OPTIM])
def test_what_a_missing_file_makes_the_first_releases_say(tmp_path: Path, what: str) -> None:
    """Their words are burn/src/train/checkpoint/file.rs and burn-core/src/module/state.rs of 0.3 to 0.6: no run of them is in the museum."""
    (tmp_path / "checkpoint").mkdir()
    shutil.copy(OURS / "0.4.0" / "net.json.gz", tmp_path / "checkpoint" / "model-2.json.gz")
    shutil.copy(OURS / "0.4.0" / "optim-adam.json.gz", tmp_path / "checkpoint" / "optim-2.json.gz")
    (tmp_path / "checkpoint" / f"{what}-2.json.gz").unlink()
    today, own = [f for f in ckptmigrate.doctor(tmp_path) if Path(f.file).name == f"{what}-2"]

    assert "cannot open" in today.message
    assert own.message.startswith("called `Result::unwrap()` on an `Err` value: StateError(FileNotFound(")
    assert own.cause == "Burn 0.3 to 0.6 says so of the same"


def test_second_moments_that_half_precision_lost_are_counted() -> None:
    found = ckptmigrate.doctor(OURS / "0.11.1" / "optim-adam-half.mpk.gz")
    (lost,) = [f for f in found if f.silent]

    assert re.search(r"\d+ of 177 second moments were stored as 0 in half precision", lost.cause)
    assert lost.remedy == ""  # the file lies in no run, of which the rest could be taken


def test_a_file_is_looked_at_as_what_its_name_says_it_is(tmp_path: Path) -> None:
    shutil.copy(RUN / "checkpoint" / "model-3.bpk", tmp_path / "optim-3.bpk")
    shutil.copy(RUN / "checkpoint" / "optim-3.bpk", tmp_path / "model-3.bpk")
    (one,) = ckptmigrate.doctor(tmp_path / "optim-3.bpk")
    (other,) = ckptmigrate.doctor(tmp_path / "model-3.bpk")

    assert (one.message, one.silent) == (RESTARTS, True)
    assert (other.message, other.silent) == ('Failed to load record: Validation("Missing tensors: […]")', False)


def test_an_old_run_is_told_file_by_file_in_the_loader_s_words(tmp_path: Path) -> None:
    shutil.copytree(OURS / "0.21.0" / "run-sgd-momentum", tmp_path / "run")
    found = ckptmigrate.doctor(tmp_path / "run")
    last = [f for f in found if f.epoch == max(g.epoch or 0 for g in found) and "Can load" in f.message]
    assert [f.message.partition(".:")[0] for f in last] == [
        "Can load model checkpoint", "Can load optimizer checkpoint", "Can load learning rate scheduler checkpoint",
    ]  # fmt: skip
    assert all("No such file or directory (os error 2)" in f.message for f in last)


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
