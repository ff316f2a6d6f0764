"""From where the model of ``--like`` is read: a file, or a callable of the working directory."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from ckptmigrate import like

from .command_line import Ran

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme_nets.py").write_text(
        "import torch\n"
        "def small():\n    with torch.device('meta'):\n        return torch.nn.Linear(3, 2)\n"
        "def broken():\n    raise ValueError('no weights today')\n"
        "def leaves():\n    raise SystemExit(7)\n"
        "class Kinds:\n    state = staticmethod(lambda: small().state_dict())\n"
        "number = 3\n"
        "net = torch.nn.Linear(3, 2)\n"
        "class Two(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(3, 2)\n"
    )
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "old.pt")
    return tmp_path


@pytest.mark.parametrize("said", ["acme_nets:small", "acme_nets:Kinds.state", "acme_nets:net", "acme_nets:Two"])
def test_a_callable_of_the_working_directory_is_the_model(program: Path, said: str) -> None:
    before = list(sys.path)
    ran = Ran("migrate", "old.pt", "new.pt", "--like", said)

    assert ran.code == 0, ran.err
    assert sys.path == before
    torch.nn.Linear(3, 2).load_state_dict(torch.load(program / "new.pt", weights_only=True), strict=True)


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ("acme_nets:broken", 3, r"raised ValueError: no weights today \(.*acme_nets.py, line 6\)"),
        ("acme_nets:leaves", 3, r"raised SystemExit: 7 \(.*acme_nets.py, line 8\)"),
        ("acme_nets:number", 3, "is a int without tensors"),
        ("acme_nets:nothing", 2, "acme_nets has no nothing"),
        ("acme_elsewhere:small", 2, "there is no module acme_elsewhere, and no such file"),
        ("elsewhere.pt", 3, "no such file"),
    ],
)
def test_what_is_no_model_is_told_as_its_own_error(program: Path, said: str, code: int, text: str) -> None:
    ran = Ran("migrate", "old.pt", "new.pt", "--like", said)

    assert ran.code == code
    assert re.search(text, ran.err), ran.err
    assert said in ran.err
    assert not (program / "new.pt").exists()


def test_a_file_that_is_called_like_a_callable_is_a_file(program: Path) -> None:
    (program / "acme_nets:small").write_bytes((program / "old.pt").read_bytes())

    assert like.load("acme_nets:small").tensors.keys() == {"weight", "bias"}
    assert like.load("acme_nets:small").others is None
