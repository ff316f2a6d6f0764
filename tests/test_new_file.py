"""The file that ``new`` writes: its text, its version, where it lies, what stands for the new model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ckptmigrate
from ckptmigrate import chains
from ckptmigrate.errors import ExistsError, UsageError, VersionError

from .architectures import pair, prefix_and_rename, split_qkv, stacked_experts
from .command_line import ROOT, Ran
from .proposals import CHAIN, assert_maps, propose


def test_the_file_is_laid_out_as_ruff_would_and_passes_mypy(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = [
        propose(tmp_path, *pair(stacked_experts, 0)).path,
        ckptmigrate.new("acme.other", "1.0", into=str(tmp_path / "migrations")).path,
        propose(tmp_path / "other", pair(split_qkv, 0)[0], pair(split_qkv, 1)[1]).path,
    ]
    for width in ("88", "120"):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "format", "--isolated", "--check", "--line-length", width, *files],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E,F,I,UP,B,W", "--line-length", "120", *files],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    for file in files:
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), file],
            capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "MYPYPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_a_skeleton_loads_and_says_what_to_fill_in(tmp_path: Path) -> None:
    ran = Ran("new", CHAIN, "1.0", "--migrations", tmp_path / "migrations")
    catalog = chains.Catalog()
    catalog.add_folder(tmp_path / "migrations")
    (step,) = catalog.steps(CHAIN)

    assert ran.code == 0
    assert (step.migrator.version, step.migrator.operations) == ("1.0", ())
    assert "fill in" in ran.out


def test_a_version_that_is_not_above_the_head_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "migrations")
    ckptmigrate.new(CHAIN, "2.0", into=folder)
    for version in ("1.9", "2.0a1"):
        with pytest.raises(VersionError, match="not above the newest step"):
            ckptmigrate.new(CHAIN, version, into=folder)

    assert [path.name for path in (tmp_path / "migrations").rglob("*.py")] == ["v2_0_step.py"]


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    path = Path(ckptmigrate.new(CHAIN, "2.0", into=str(folder)).path)
    path.write_text(path.read_text() + "# mine\n")
    with pytest.raises(ExistsError, match="already"):
        ckptmigrate.new(CHAIN, "2.0", into=str(folder))

    assert path.read_text().endswith("# mine\n")
    propose(tmp_path, *pair(split_qkv, 0), force=True)
    assert "Split(" in path.read_text()  # under its old name: two steps of one version would be an error
    assert_maps(tmp_path, *pair(split_qkv, 1))


def test_one_checkpoint_alone_proposes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two"):
        ckptmigrate.new(CHAIN, "2.0", tmp_path / "old.pt", into=str(tmp_path / "migrations"))

    assert not (tmp_path / "migrations").exists()


def test_a_project_says_where_its_migrations_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.ckptmigrate]\nmigrations = ["steps"]\n')
    monkeypatch.chdir(tmp_path)
    ran = Ran("new", CHAIN, "1.0")

    assert ran.code == 0
    assert (tmp_path / "steps" / "acme_net" / "v1_0_step.py").is_file()
    assert Ran("new", CHAIN, "0.5").code == 3


def test_a_callable_stands_for_the_new_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_model.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    block = lambda: nn.ModuleDict({'norm': nn.LayerNorm(8), 'up': nn.Linear(8, 16), 'conv': nn.Conv2d(3, 4, 3)})\n"
        "    return nn.ModuleDict({'model': nn.ModuleDict({'h': nn.ModuleList([block(), block()])})})\n"
    )
    monkeypatch.chdir(tmp_path)
    torch.save(pair(prefix_and_rename, 0)[0], "old.pt")
    ran = Ran("new", CHAIN, "2.0", "--from", "old.pt", "--to", "acme_model:build", "--json")
    assert ran.code == 0, ran.err
    found = ran.json()["proposal"]

    assert (found["named"], found["shaped"], found["equal"]) == (12, 12, None)
    assert set(found["by"]) == {"name"}
    assert_maps(tmp_path, *pair(prefix_and_rename, 1))


def test_a_name_in_a_checkpoint_is_never_code_of_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    evil = [
        'x"""\nraise SystemExit(1)\n"""',
        "y\nraise SystemExit(2)\n#",
        'z"\\',
        "w\rraise SystemExit(3)",
        "v\u2028\x00",
        "'" + '"',
    ]
    values = [torch.randn(3, 3) for _ in evil]
    old = {**dict(zip(evil, values, strict=True)), "left.weight": torch.randn(4, 4), "gone\n.weight": torch.randn(5, 5)}
    new = {f"{n}.new": t for n, t in zip(evil, values, strict=True)} | {
        "a\nraise.weight": torch.randn(4, 4),
        "b.weight": torch.randn(4, 4),
    }
    written = propose(tmp_path, old, new)
    catalog = chains.Catalog()
    catalog.add_folder(tmp_path / "migrations")
    (step,) = catalog.steps(CHAIN)
    assert written.proposal is not None

    assert step.migrator.digest == written.proposal.migrator(CHAIN, "2.0").digest
    assert written.proposal.proof.equal == len(evil)


def test_a_version_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    ran = Ran("new", "acme.net", "banana", "--migrations", tmp_path / "migrations")

    assert ran.code == 2
    assert "'banana' is no version" in ran.err
    assert not (tmp_path / "migrations").exists()
