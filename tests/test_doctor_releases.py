"""What the doctor says of records of other releases: the words of today's Burn, and of the release that wrote them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import ckptmigrate

from .burnpack_desk import MUSEUM, OURS
from .damaged_runs import LEARNER, MODEL, OPTIM, SCHEDULER


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


def test_an_old_run_is_told_file_by_file_in_the_loader_s_words(tmp_path: Path) -> None:
    shutil.copytree(OURS / "0.21.0" / "run-sgd-momentum", tmp_path / "run")
    found = ckptmigrate.doctor(tmp_path / "run")
    last = [f for f in found if f.epoch == max(g.epoch or 0 for g in found) and "Can load" in f.message]
    assert [f.message.partition(".:")[0] for f in last] == [
        "Can load model checkpoint", "Can load optimizer checkpoint", "Can load learning rate scheduler checkpoint",
    ]  # fmt: skip
    assert all("No such file or directory (os error 2)" in f.message for f in last)
