"""``plan``: what migrate would do, all problems at once, nothing written; and what it says is what migrate then does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import ckptmigrate
from ckptmigrate import Concat, Rename

from .command_line import BARE, CHECKPOINT, OLD, Ran
from .lines import HERE

RIGHT = ("--migrations", HERE / "right")
STEP = """from ckptmigrate import Migrator, Split
MIGRATOR = Migrator("acme.attn", "1.0", needs={"heads": "config/heads"}, operations=[
    Split(r"qkv", into=["q", "k"], sizes=["heads", -1], axis=0),
])
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.safetensors"
    safetensors.torch.save_file({"trunk.fc": torch.ones(2, 3), "trunk.conv": torch.ones(4), "aux": torch.ones(1)}, path)
    return path


@pytest.fixture
def attention(tmp_path: Path) -> tuple[str | Path, ...]:
    folder = tmp_path / "migrations" / "acme_attn"
    folder.mkdir(parents=True)
    (folder / "v1_0_split.py").write_text(STEP)
    path = tmp_path / "attention.safetensors"
    safetensors.torch.save_file({"qkv": torch.arange(10.0).reshape(5, 2)}, path)
    return path, "--migrations", folder.parent, "--chain", "acme.attn", "--from", "acme.attn=0"


def test_the_steps_and_the_table_of_names_before_and_after(old: Path) -> None:
    shown = Ran("plan", old, *RIGHT, "--chain", "acme.right", "--exclude", "aux", "--json").json()

    assert [(step["version"], step["operations"]) for step in shown["steps"]] == [
        ("1.0", ["Rename('trunk\\\\.(.*)', 'body.\\\\1', back=('body\\\\.(.*)', 'trunk.\\\\1'))"]),
        ("2.0", ["Rename('body\\\\.fc', 'head', back=('head', 'body.fc'))"]),
    ]
    assert [(row["before"], row["after"], row["fate"]) for row in shown["tensors"]] == [
        (["trunk.conv"], "body.conv", "renamed"),
        (["trunk.fc"], "head", "renamed"),
        (["aux"], None, "dropped"),
    ]
    assert shown["tensors"][1]["was"] == shown["tensors"][1]["becomes"] == {"dtype": "F32", "shape": [2, 3]}
    assert shown["stamps"] == {"acme.right": "2.0"}


def test_nothing_is_written(old: Path) -> None:
    before = sorted(old.parent.iterdir()), old.read_bytes()
    for options in ((), ("--in-place",), (old.parent / "out",), (*RIGHT, "--chain", "acme.right")):
        assert Ran("plan", old, *options).code == 0

    assert (sorted(old.parent.iterdir()), old.read_bytes()) == before


@pytest.mark.parametrize("source", [OLD, BARE, CHECKPOINT], ids=["old", "bare", "new"])
@pytest.mark.parametrize("out", ["a.pt", "folder"])
def test_the_bytes_it_says_are_those_that_migrate_writes(tmp_path: Path, source: Path, out: str) -> None:
    (told,) = ckptmigrate.plan(source, tmp_path / out)
    done = ckptmigrate.migrate(source, tmp_path / out)
    assert isinstance(done, ckptmigrate.Report)
    written = tmp_path / out
    files = (
        {path.name: path.stat().st_size for path in written.iterdir()}
        if written.is_dir()
        else {out: written.stat().st_size}
    )

    assert dict(told.files) == dict(done.files) == files
    assert told.nbytes == sum(files.values())
    assert (told.format, told.layout) == (done.format, done.layout)
    assert [(step.chain, step.version) for step in told.steps] == [tuple(step.split()[:3:2]) for step in done.steps]


def test_all_problems_come_at_once_and_the_code_is_3(old: Path) -> None:
    ran = Ran("plan", old, "--rename", "x=y", "--exclude", "z", "--json")

    assert ran.code == 3
    assert [problem.partition(" matches no tensor")[0] for problem in ran.json()["problems"]] == [
        "--rename x=y",
        "--exclude z",
    ]


def test_what_stands_against_the_target_is_told_with_what_stands_against_the_steps(tmp_path: Path) -> None:
    ran = Ran("plan", OLD, tmp_path / "a.safetensors", "--rename", "x=y", "--json")

    assert ran.code == 3
    assert len(ran.json()["problems"]) == 2
    assert "one safetensors file holds a model" in ran.json()["problems"][1]


def test_no_out_is_needed_and_to_says_the_format(old: Path) -> None:
    default, told = Ran("plan", old, "--json").json(), Ran("plan", old, "--to", "torch_zip", "--json").json()

    assert (default["format"], default["target"]) == ("safetensors", None)
    assert told["format"] == "torch_zip"


def test_in_place_with_nothing_pending_says_so(old: Path) -> None:
    assert "nothing is pending" in Ran("plan", old, "--in-place").out
    assert "nothing is pending" not in Ran("plan", old, "--in-place", "--rename", "aux=a").out


def test_scratch_is_what_a_compressed_source_will_spill(tmp_path: Path) -> None:
    burn = OLD.parents[2] / "burn" / "0.11.1" / "zoo-half.mpk.gz"
    if not burn.is_file():
        burn = next((OLD.parents[2] / "burn").rglob("*.gz"))
    (told,) = ckptmigrate.plan(burn, gather=ckptmigrate.GatherOptions())

    assert told.scratch > 0


def test_memory_is_a_window_and_not_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    large = {f"a{n}": torch.zeros(1024, 1024, 16) for n in range(2)}
    safetensors.torch.save_file(large, path)
    (plain,) = ckptmigrate.plan(path, dtype="f16")
    (joined,) = ckptmigrate.plan(path, dtype="f16", operations=(Concat(["a0", "a1"], "a", axis=1),))

    assert 0 < plain.memory < 16_000_000
    assert 0 < joined.memory < 150_000_000


def test_nothing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"a": torch.ones(4), "b": torch.ones(4)}, path)
    monkeypatch.setattr("ckptmigrate.tensor.view.View.read", _refuse)

    assert ckptmigrate.plan(path, operations=(Concat(["a", "b"], "c"),))[0].problems == ()


def _refuse(*_: Any) -> Any:
    raise AssertionError("a tensor was drawn")


def test_a_number_that_tensors_do_not_carry_comes_through_set(attention: tuple[str | Path, ...]) -> None:
    missing = Ran("plan", *attention, "--json")
    shown = Ran("plan", *attention, "--set", "heads=2", "--json")

    assert missing.code == 3
    assert "set it with --set heads=VALUE" in missing.json()["problems"][0]
    assert shown.code == 0
    assert shown.json()["steps"][0]["numbers"] == {"heads": 2}
    assert [(row["after"], row["becomes"]["shape"]) for row in shown.json()["tensors"]] == [
        ("q", [2, 2]),
        ("k", [3, 2]),
    ]


def test_set_is_kept_in_the_history_and_used_by_migrate_and_check(
    attention: tuple[str | Path, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    assert Ran("migrate", attention[0], out, *attention[1:], "--set", "heads=2").code == 0
    with ckptmigrate.open(out) as checkpoint:
        assert [applied.parameters for applied in checkpoint.stamp.history] == [(("heads", 2),)]

    checked = Ran("check", *attention, "--set", "heads=2")
    assert checked.code == 1
    assert "pending: acme.attn to 1.0" in checked.out


@pytest.mark.parametrize(
    "text", ["heads", "heads=", "heads=two", "heads=nan", "heads=1e999", "=2", f"heads={'9' * 5000}"]
)
def test_what_is_no_number_is_wrong_usage(attention: tuple[str | Path, ...], text: str) -> None:
    assert Ran("plan", *attention, "--set", text).code == 2


def test_a_number_that_no_step_needs_is_warned_of(attention: tuple[str | Path, ...]) -> None:
    ran = Ran("plan", *attention, "--set", "heads=2", "--set", "haeds=3.5")

    assert "warning: --set haeds: no step that is taken needs it" in ran.out


def test_a_one_off_operation_is_planned_and_applied(old: Path, tmp_path: Path) -> None:
    operations = (Rename(r"trunk\.(.*)", r"\1"),)
    (told,) = ckptmigrate.plan(old, operations=operations)
    ckptmigrate.migrate(old, tmp_path / "out.safetensors", operations=operations)
    state = safetensors.torch.load_file(tmp_path / "out.safetensors")

    assert [row.after for row in told.table] == list(state) == ["aux", "conv", "fc"]


def test_the_epochs_of_a_run_are_planned_one_by_one() -> None:
    run = OLD.parents[2] / "burn" / "0.13.2" / "run-adam"
    numbers = [epoch.number for epoch in ckptmigrate.epochs(run)[0].epochs]
    told = ckptmigrate.plan(run, gather=ckptmigrate.GatherOptions(scheduler=None))

    assert [one.epoch for one in told] == (numbers if len(numbers) > 1 else [None])


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")

    assert Ran("plan", tmp_path / "x").code == 3
    assert Ran("plan", OLD, OLD).code == 2
    assert Ran("plan", OLD, "out", "--in-place").code == 2
