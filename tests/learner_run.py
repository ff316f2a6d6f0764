"""A run as a learner leaves one, and what becomes of its files."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ckptmigrate

from .burn_records import MUSEUM

if TYPE_CHECKING:
    from ckptmigrate.runs import Epoch, Run

KINDS = ["model", "optim", "scheduler"]


def one(path: Path) -> Run:
    (run,) = ckptmigrate.epochs(path)
    return run


def problems(epoch: Epoch) -> dict[str, str]:
    return {file.name: file.problem for file in epoch.files if file.problem}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with epochs 3 and 4, and files around them as a learner leaves them."""
    folder = tmp_path / "run"
    shutil.copytree(MUSEUM / "0.21.0" / "run-sgd-momentum", folder)
    for kind in KINDS:
        shutil.copy(folder / "checkpoint" / f"{kind}-3.mpk", folder / "checkpoint" / f"{kind}-4.mpk")
    (folder / "experiment.log").write_text("INFO Restoring checkpoint\n")
    (folder / "model.mpk").write_bytes((folder / "checkpoint" / "model-4.mpk").read_bytes())
    (folder / "train" / "epoch-1").mkdir(parents=True)
    (folder / "train" / "epoch-1" / "Loss.log").write_text("0.5,4\n")
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def pointed(path: Path) -> None:
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 900\n")


def zipped_and_cut(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes())[:-9])


def a_web_page(path: Path) -> None:
    path.write_text("<!DOCTYPE html><html>not found</html>")
