"""Every command and every code block that README.md and docs/ show is run, in the order in which it stands on its page."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from ckptmigrate import convert, errors, registry, testing
from ckptmigrate.cli import app

ROOT = Path(__file__).parent.parent
MUSEUM = ROOT / "tests" / "fixtures" / "torch"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SETUP = {"pip", "make"}  # commands that set a machine up: .ci/run runs them


def blocks(page: Path) -> list[tuple[str, str]]:
    """Give the blocks of a page in order: language and text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody who types what a page shows, block after block, in one folder and one Python session."""

    def __init__(self, page: Path) -> None:
        self.page, self.commands = page, 0
        self.session: dict[str, Any] = {"__name__": "__main__"}

    def read(self) -> None:
        for language, text in blocks(self.page):
            named = re.match(r"# (\S+\.(?:py|toml))\b.*\n", text)  # the file that the block is
            if language in {"python", "toml"} and named:
                path = Path(named[1])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text[named.end() :])
            elif language == "python":
                exec(compile(text, f"{self.page.name}: {text[:40]!r}", "exec"), self.session)
            elif language == "bash":
                for line in text.splitlines():
                    self.type(line)
            else:
                assert language in {"text", "toml"}

    def type(self, line: str) -> None:
        shown, _, comment = line.partition("#")
        expected = int((re.search(r"exit code (\d)", comment) or ["", "0"])[1])
        for command in filter(str.strip, shown.split("&&")):
            program, *arguments = shlex.split(command)
            if program == "ckptmigrate":
                ran = CliRunner().invoke(app, arguments)
                assert ran.exit_code == expected, f"{self.page.name}: {command}: {ran.stderr}"
                self.commands += 1
            elif program == "python":
                exec(compile(Path(arguments[0]).read_text(), arguments[0], "exec"), {"__name__": "__main__"})
            else:
                assert program in SETUP, f"{self.page.name}: nobody runs {program}"


@pytest.fixture
def midnight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with the files that the pages speak of, as the working directory."""
    (tmp_path / "old.pth").write_bytes((MUSEUM / "1.0.0-py36" / "state_dict.pt").read_bytes())
    (tmp_path / "broken.pt").write_bytes((MUSEUM / "1.6.0-py38" / "state_dict.pt").read_bytes()[:-40])
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    state = {f"net.{name}": value for name, value in model.state_dict().items()}
    torch.save(
        {
            "state_dict": state, "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [], "epoch": 3,
            "global_step": 900, "pytorch-lightning_version": "2.4.0",
        },
        tmp_path / "last.ckpt",
    )  # fmt: skip
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("midnight")
def test_what_a_page_shows_works_when_it_is_typed(page: Path) -> None:
    Reader(page).read()


def test_what_the_readme_shows_first_gives_a_file_that_today_s_torch_opens(midnight: Path) -> None:
    reader = Reader(ROOT / "README.md")
    reader.read()

    assert reader.commands > 8
    assert {"model_state", "state_dict", "model_state_dict"} & set(
        torch.load(midnight / "training.pt", weights_only=True)
    )
    assert len(torch.load("new.pt", weights_only=True)["optimizer_states"]) == 1


def test_the_page_on_python_names_every_option_and_every_branch_of_the_errors() -> None:
    text = (ROOT / "docs" / "python.md").read_text()

    assert [field.name for field in fields(convert.Options) if f"`{field.name}`" not in text] == []
    for cls in errors.CkptError.__subclasses__():
        assert f"`errors.{cls.__name__}`" in text


def test_the_page_on_testing_names_every_check() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()

    assert [name for name in testing.__all__ if name.startswith("check_") and f"`{name}`" not in text] == []


def test_the_formats_that_the_readme_shows_are_there_and_write_what_it_says() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert len(rows) >= 4
    for name, writes in rows:
        assert (registry.format(name).lay_out is None) is not writes[0].isalnum(), name


def test_every_link_between_the_pages_leads_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links {target}"
