"""The command line: what it prints, its exit codes, and that it never shows a traceback for a bad file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ckptmigrate
from ckptmigrate import Add, Transpose
from ckptmigrate.report import report_lines

from .command_line import BARE, CHECKPOINT, OLD, ROOT, Ran


def test_version_is_the_packages() -> None:
    assert Ran("--version").out == f"ckptmigrate {ckptmigrate.__version__}\n"


def test_python_m_runs_it() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "ckptmigrate", "--version"], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert shown.stdout.startswith("ckptmigrate ")


def test_inspect_json_has_the_shape_of_the_design() -> None:
    shown = Ran("inspect", CHECKPOINT, "--json", "--digests").json()

    assert shown["format"] == "torch_zip"
    assert shown["family"] == "torch"
    assert set(shown) >= {"path", "format", "layout", "family", "versions", "sections", "left_out"}
    sections = shown["sections"]
    weight = sections["model"]["tensors"][0]
    assert {k: weight[k] for k in ("name", "dtype", "shape", "nbytes")} == {
        "name": "conv.weight",
        "dtype": "F32",
        "shape": [2, 1, 3, 3],
        "nbytes": 72,
    }
    assert re.fullmatch("[0-9a-f]{64}", weight["sha256"])
    assert sections["model"]["ties"] == {"dec.weight": "emb.weight"}
    sgd, adam = sections["optimizers"]
    assert sgd["groups"][0]["lr"] == 0.1
    assert [p["name"] for p in adam["params"]] == ["conv.weight", "fc.weight", "fc.bias"]
    assert [s["name"] for s in adam["params"][0]["slots"]] == ["step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
    assert sections["progress"]["epoch"] == 7


def test_inspect_draws_no_tensor_without_digests() -> None:
    assert "sha256" not in Ran("inspect", CHECKPOINT, "--json").out


def test_verify_is_0_for_equal_and_1_for_different_or_broken(tmp_path: Path) -> None:
    assert Ran("migrate", BARE, tmp_path / "a.safetensors").code == 0
    assert Ran("migrate", BARE, tmp_path / "b.pt").code == 0
    assert Ran("verify", tmp_path / "a.safetensors", tmp_path / "b.pt").code == 0
    assert Ran("verify", BARE, tmp_path / "b.pt").code == 0

    state = torch.load(tmp_path / "b.pt", weights_only=True)
    state["fc.bias"] += 1
    torch.save(state, tmp_path / "c.pt")
    different = Ran("verify", BARE, tmp_path / "c.pt", "--json")
    assert different.code == 1
    assert different.json()["differences"] == [{"item": "model/fc.bias", "what": "other values"}]
    (tmp_path / "broken.pt").write_bytes(b"PK\3\4")
    assert Ran("verify", BARE, tmp_path / "broken.pt").code == 1


def test_a_refusal_is_exit_3_with_one_readable_message_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "in.pt").write_bytes(b"")
    ran = Ran("migrate", tmp_path / "in.pt", tmp_path / "out.pt")

    assert ran.code == 3
    assert "in.pt: file is empty" in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--to", "gguf"], ["--to", "torch_legacy"], ["--dtype", "f7"], ["--section", "model"], ["--layout", "mine"]],
)
def test_wrong_usage_is_exit_2(arguments: list[str], tmp_path: Path) -> None:
    assert Ran("migrate", BARE, tmp_path / "out", *arguments).code == 2


def test_a_suffix_that_contradicts_to_is_wrong_usage(tmp_path: Path) -> None:
    assert Ran("migrate", BARE, tmp_path / "out.pt", "--to", "safetensors").code == 2


def test_out_that_exists_is_refused_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    out.write_bytes(b"mine")

    assert Ran("migrate", BARE, out).code == 3
    assert out.read_bytes() == b"mine"
    assert Ran("migrate", BARE, out, "--force").code == 0
    assert out.read_bytes().startswith(b"PK")


def test_a_dry_run_writes_nothing_and_tells_problems_with_exit_3(tmp_path: Path) -> None:
    fine = Ran("migrate", BARE, tmp_path / "out.safetensors", "--dry-run")
    refused = Ran("migrate", CHECKPOINT, tmp_path / "out.safetensors", "--dry-run")

    assert fine.code == 0
    assert "nothing written" in fine.out
    assert refused.code == 3
    assert "--sections model" in refused.err
    assert not list(tmp_path.iterdir())


def test_in_place_turns_a_legacy_file_into_a_current_one_and_keeps_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    path.write_bytes(OLD.read_bytes())
    assert Ran("migrate", path, "--in-place").code == 0

    assert (tmp_path / "old.pth.ckptmigrate-backup").read_bytes() == OLD.read_bytes()
    assert list(torch.load(path, weights_only=True)) == list(torch.load(OLD, weights_only=False))


def test_in_place_writes_nothing_where_nothing_is_pending(tmp_path: Path) -> None:
    path = tmp_path / "new.pt"
    path.write_bytes(CHECKPOINT.read_bytes())
    ran = Ran("migrate", path, "--in-place")

    assert ran.code == 0
    assert path.read_bytes() == CHECKPOINT.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["new.pt"]


def test_the_same_input_and_plan_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt", "a.safetensors", "b.safetensors"):
        assert Ran("migrate", CHECKPOINT, tmp_path / name, "--sections", "model").code == 0

    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


STEP = '''"""A step of a chain kept beside a project."""
from ckptmigrate import Drop, Migrator, Rename

MIGRATOR = Migrator(
    chain="acme.net",
    version="2.0",
    operations=[Rename(r"fc\\.(.*)", r"head.\\1"), Drop(r"dec\\.weight", reason="tied to emb.weight since 2.0")],
)
'''


def steps(folder: Path) -> Path:
    (folder / "migrations" / "acme_net").mkdir(parents=True)
    (folder / "migrations" / "acme_net" / "v2_0_head.py").write_text(STEP)
    return folder / "migrations"


def test_bare_output_has_no_stamp(tmp_path: Path) -> None:
    options: list[str | Path] = ["--chain", "acme.net", "--migrations", steps(tmp_path), "--from", "acme.net=1.0"]
    assert Ran("migrate", CHECKPOINT, tmp_path / "stamped.pt", *options).code == 0
    assert Ran("migrate", CHECKPOINT, tmp_path / "bare.pt", *options, "--bare").code == 0

    assert Ran("inspect", tmp_path / "stamped.pt", "--json").json()["versions"] == {"acme.net": "2.0"}
    assert Ran("inspect", tmp_path / "bare.pt", "--json").json()["versions"] == {}
    assert b"ckptmigrate" not in (tmp_path / "bare.pt").read_bytes()


def test_a_chain_of_a_projects_own_folder_is_applied_stamped_and_seen_as_done(tmp_path: Path) -> None:
    options: list[str | Path] = ["--chain", "acme.net", "--migrations", steps(tmp_path)]
    done = Ran("migrate", CHECKPOINT, tmp_path / "out.pt", *options, "--from", "acme.net=1.0", "--json")
    again = Ran("migrate", tmp_path / "out.pt", tmp_path / "again.pt", *options, "--json")

    assert done.code == 0, done.err
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert "head.weight" in loaded["state_dict"]
    assert "fc.weight" not in loaded["state_dict"]
    assert "dec.weight" not in loaded["state_dict"]
    assert "head" in loaded["state_dict"]._metadata
    assert len(done.json()["steps"]) == 1
    assert again.json()["steps"] == []
    shown = Ran("inspect", tmp_path / "out.pt", "--json").json()
    assert shown["versions"]["acme.net"] == "2.0"
    assert [p["name"] for p in shown["sections"]["optimizers"][1]["params"]] == [
        "conv.weight",
        "head.weight",
        "head.bias",
    ]


def test_rename_only_and_exclude_act_on_whole_names(tmp_path: Path) -> None:
    assert Ran("migrate", BARE, tmp_path / "a.pt", "--rename", r"fc\.(.*)=head.\1", "--exclude", r"bn\..*").code == 0
    assert Ran("migrate", BARE, tmp_path / "b.pt", "--only", r"conv\..*").code == 0

    assert list(torch.load(tmp_path / "a.pt", weights_only=True)) == [
        "conv.weight",
        "conv.bias",
        "head.weight",
        "head.bias",
        "emb.weight",
        "dec.weight",
    ]
    assert list(torch.load(tmp_path / "b.pt", weights_only=True)) == ["conv.weight", "conv.bias"]


@pytest.mark.parametrize("verb", ["formats", "layouts"])
def test_what_is_installed_is_listed_with_where_from(verb: str) -> None:
    rows = Ran(verb, "--json").json()

    assert len(rows) > 3
    assert all(row["where"].startswith("ckptmigrate.") for row in rows)


def test_every_command_of_the_readme_parses() -> None:
    text = (ROOT / "README.md").read_text()
    commands = re.findall(r"^ckptmigrate (\w+)(.*?)(?:#.*)?$", text, flags=re.MULTILINE)
    assert len(commands) > 6
    for verb, rest in commands:
        shown = Ran(verb, "--help").out
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in shown, f"{verb} {option}"


def test_the_first_command_of_the_readme_runs(tmp_path: Path) -> None:
    command = re.search(r"&& ckptmigrate (migrate \S+) training\.pt", (ROOT / "README.md").read_text())
    assert command is not None
    verb, source = command[1].split()

    assert Ran(verb, ROOT / source, tmp_path / "training.pt").code == 0
    torch.load(tmp_path / "training.pt", weights_only=True)


def test_a_report_is_what_json_says_written_whole_into_a_file_of_its_own(tmp_path: Path) -> None:
    ran = Ran("migrate", BARE, tmp_path / "out.pt", "--report", tmp_path / "report.json", "--json")

    assert ran.code == 0
    assert json.loads((tmp_path / "report.json").read_text()) == ran.json()
    assert ran.json()["notes"] == ["dec.weight is emb.weight: written once, tied"]


def test_a_report_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("mine")

    assert Ran("migrate", BARE, tmp_path / "out.pt", "--report", tmp_path / "report.json").code == 3
    assert Ran("migrate", BARE, tmp_path / "out.pt", "--report", tmp_path / "not" / "there.json").code == 3
    assert Ran("migrate", BARE, tmp_path / "out.pt", "--report", tmp_path / "out.pt").code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    assert (tmp_path / "report.json").read_text() == "mine"


def test_a_refused_conversion_leaves_no_report(tmp_path: Path) -> None:
    assert Ran("migrate", BARE, tmp_path / "out.pt", "--exclude", "x", "--report", tmp_path / "report.json").code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_model_and_an_optimizer_in_files_of_their_own_are_one_checkpoint(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    torch.save(optimizer.state_dict(), tmp_path / "optim.pt")
    part = f"optimizer={tmp_path / 'optim.pt'}"

    assert Ran("migrate", tmp_path / "model.pt", tmp_path / "run", "--part", part).code == 0
    (found,) = Ran("inspect", tmp_path / "run", "--json").json()["sections"]["optimizers"]
    assert [(p["name"], len(p["slots"])) for p in found["params"]] == [("weight", 1), ("bias", 1)]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["inspect", "nix.pt"], 3),
        (["migrate", "nix.pt", "out.pt"], 3),
        (["verify", "nix.pt", "nix.pt"], 1),
        (["migrate", str(BARE)], 2),
    ],
)
def test_an_error_is_json_too(arguments: list[str], code: int) -> None:
    ran = Ran(*arguments, "--json")

    assert ran.code == code
    error = ran.json()["error"]
    assert set(error) == {"type", "message", "path", "hints"}
    assert error["message"] in ran.err


def test_values_that_are_long_or_deep_are_cut_and_say_by_how_much(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    extra = {
        "deep": deep, "list": list(range(1000)), "dict": {i: i for i in range(1000)}, "text": "x" * 5000,
        "bytes": bytes(5000), "inf": float("inf"), 0: "a", "0": "b",
    }  # fmt: skip
    torch.save({"state_dict": {"w": torch.ones(2)}, "extra": extra}, tmp_path / "a.pt")
    ran = Ran("inspect", tmp_path / "a.pt", "--json")

    assert ran.code == 0, ran.err
    assert len(ran.out) < 12_000
    text = json.dumps(ran.json(), ensure_ascii=False)
    for said in (
        "… 936 more",
        '"…": "936 more"',
        "… 3976 more",
        "<5000 bytes: ",
        "… deeper than 32",
        '"0~": "b"',
        '"inf"',
    ):
        assert said in text


def test_inspection_has_every_key_of_the_design_also_where_nothing_is() -> None:
    shown = Ran("inspect", BARE, "--json").json()

    assert list(shown) == [
        "path",
        "format",
        "layout",
        "family",
        "versions",
        "history",
        "sections",
        "left_out",
        "notes",
        "warnings",
    ]
    assert list(shown["sections"]) == ["model", "twins", "optimizers", "schedulers", "values", "progress"]
    assert shown["sections"]["twins"] == {}
    assert set(shown["sections"]["model"]) == {"tensors", "ties"}


def test_the_keys_of_an_optimizers_parameters_are_text() -> None:
    shown = Ran("inspect", OLD, "--json").json()

    keys = [p["key"] for o in shown["sections"]["optimizers"] for p in o["params"]]
    assert keys
    assert all(type(key) is str for key in keys)


def test_what_comes_from_nothing_and_what_is_made_anew_is_told(tmp_path: Path) -> None:
    torch.save({"bn.weight": torch.ones(2, 3)}, tmp_path / "old.pt")
    operations = [
        Add("bn.count", near=r"bn\.weight", fill=0, shape=[], dtype="I64", role="buffer"),
        Transpose(r"bn\.weight"),
    ]
    done = ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", operations=operations)
    assert isinstance(done, ckptmigrate.Report)
    lines = list(report_lines(done))

    assert "added: model/bn.count" in lines
    assert "derived: bn.weight -> model/bn.weight" in lines
    assert [each["target"] for each in done.as_dict()["added"]] == ["model/bn.count"]


def test_a_file_in_place_that_is_current_stays_and_that_is_said(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "new.pt")
    before = (tmp_path / "new.pt").read_bytes()
    ran = Ran("migrate", tmp_path / "new.pt", "--in-place")

    assert (ran.code, ran.out.splitlines()[0]) == (
        0,
        f"nothing is pending, nothing written; {tmp_path / 'new.pt'} stays as it is",
    )
    assert (tmp_path / "new.pt").read_bytes() == before
    assert Ran("migrate", tmp_path / "new.pt", "--in-place", "--json").json()["pending"] is False


def test_a_model_that_would_be_empty_is_a_problem_whatever_stands_beside_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    state = {"model": model.state_dict(), "optimizer": torch.optim.SGD(model.parameters()).state_dict()}
    torch.save(state, tmp_path / "old.pt")
    ran = Ran("migrate", tmp_path / "old.pt", tmp_path / "new.pt", "--exclude", ".*")

    assert ran.code == 3
    assert "nothing would be left of the model" in ran.err
