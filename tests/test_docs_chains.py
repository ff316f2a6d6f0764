"""``docs/chains.md`` does what it says: its files are written, its commands run in order, its lines come out."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import ckptmigrate

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "chains.md").read_text()


class Block(NamedTuple):
    language: str
    text: str


BLOCKS = [Block(*found) for found in re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Follow the page in an empty folder; give the folder, and what each block of commands said."""
    folder, said = tmp_path_factory.mktemp("day"), [""]
    for language, text in BLOCKS:
        if language in {"python", "toml"}:
            named = re.match(r"# ([\w./]+)", text)
            assert named is not None
            path = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif language == "bash":
            said.append("".join(run(line, folder) for line in text.splitlines()))
        elif language == "text":
            said.append(said[-1])
    return folder, said


def run(line: str, folder: Path) -> str:
    """Run one command of the page; it succeeds, or exits with the code that its comment names."""
    command, _, comment = line.partition("  # ")
    program, *arguments = shlex.split(command)
    assert program in {"python", "ckptmigrate"}
    words = [sys.executable, *(["-m", "ckptmigrate"] if program == "ckptmigrate" else []), *arguments]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    code = re.search(r"exit code (\d)", comment)

    assert done.returncode == (int(code[1]) if code else 0), done.stderr
    return done.stdout + done.stderr


def test_every_line_that_the_page_shows_comes_out(workplace: tuple[Path, list[str]]) -> None:
    said = iter(workplace[1][1:])
    shown = []
    for language, text in BLOCKS:
        if language not in {"bash", "text"}:
            continue
        output = next(said)
        if language == "text" and "does not load" not in text:
            shown += [(line, line in output) for line in text.splitlines()]

    assert len(shown) > 3
    assert [line for line, there in shown if not there] == []


def test_the_upgraded_checkpoint_has_the_new_names_and_the_old_numbers(workplace: tuple[Path, list[str]]) -> None:
    folder, _ = workplace
    with ckptmigrate.open(folder / "old.pt") as old, ckptmigrate.open(folder / "new.pt") as new:
        assert list(new.model) == ["backbone.weight", "backbone.bias", "fc.weight", "fc.bias"]
        for name, tensor in new.model.items():
            before = old.model[name.replace("backbone", "features")]
            assert tensor.numpy().tolist() == before.numpy().tolist()
        assert [param.name for param in new.optimizers[0].params] == list(new.model)
        assert new.stamp.versions == {"acme.net": "2.0"}


def test_what_the_project_says_and_what_is_said_lead_to_the_same_bytes(workplace: tuple[Path, list[str]]) -> None:
    folder, _ = workplace

    assert (folder / "same.pt").read_bytes() == (folder / "new.pt").read_bytes() == (folder / "told.pt").read_bytes()
    assert not (folder / "older.pt").exists()


def test_torch_trains_on_from_the_upgraded_checkpoint(workplace: tuple[Path, list[str]]) -> None:
    import torch

    found = torch.load(workplace[0] / "new.pt", weights_only=True)
    model = torch.nn.Sequential()
    model.backbone, model.fc = torch.nn.Conv2d(3, 4, 1), torch.nn.Linear(4, 2)
    model.load_state_dict(found["model_state_dict"], strict=True)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(found["optimizer_state_dict"])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

    assert optimizer.state[model.fc.bias]["step"] == 2


def test_a_mistake_is_told_as_the_page_shows_it(workplace: tuple[Path, list[str]]) -> None:
    folder, _ = workplace
    step = folder / "migrations" / "acme_net" / "v2_0_backbone.py"
    right = step.read_text()
    try:
        step.write_text(right.replace(r'marks=[Present(r"features\..*")]', 'marks=[Present("(features")]'))
        said = run("ckptmigrate migrate old.pt never.pt  # exit code 3", folder)
    finally:
        step.write_text(right)
    (line,) = (
        line for block in BLOCKS if block.language == "text" for line in block.text.splitlines() if "load" in line
    )

    assert line in said
