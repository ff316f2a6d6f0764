"""Every command and every code block that README.md and docs/ show is run, in the order in which it stands on its page."""

from __future__ import annotations

import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

import ckptmigrate
from ckptmigrate import chains, convert, errors, marks, operations, registry, testing
from ckptmigrate.cli import app

from .reader import ROOT, Reader, section

MUSEUM = ROOT / "tests" / "fixtures" / "torch"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TYPED = [
    page for page in PAGES if page.name != "maintainers.md"
]  # that one needs a folder of its own: test_docs_day.py


def typed(page: Path) -> str:
    """Give what of a page is typed here: all but the day of which README shows the stations only."""
    return section(page, "A maintainer's day")[1] if page.name == "README.md" else page.read_text()


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
    shutil.copytree(ROOT / "tests" / "fixtures" / "burn" / "0.21.0" / "run-sgd-momentum", tmp_path / "artifacts")
    for path in list((tmp_path / "artifacts" / "checkpoint").iterdir()):
        shutil.copy(path, path.with_name(path.name.replace("-3", "-4")))
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.name)
@pytest.mark.usefixtures("midnight")
def test_what_a_page_shows_works_when_it_is_typed(page: Path) -> None:
    Reader(typed(page)).read()


def test_what_the_readme_shows_first_gives_a_file_that_today_s_torch_opens(midnight: Path) -> None:
    reader = Reader(typed(ROOT / "README.md"))
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


def test_the_page_on_python_names_every_public_name() -> None:
    text = (ROOT / "docs" / "python.md").read_text()

    assert [name for name in ckptmigrate.__all__ if not re.search(rf"`{name}[`(]", text)] == []


def test_the_page_on_commands_has_every_verb_and_every_option_and_no_other() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    group: Any = typer.main.get_command(app)
    verbs = {name: group.get_command(None, name) for name in group.list_commands(None)}
    options = {word for verb in verbs.values() for option in verb.params for word in option.opts if word[0] == "-"}

    assert len(verbs) == 13
    assert sorted(re.findall(r"^\| `([a-z]+)[ `]", text, flags=re.MULTILINE)) == sorted(verbs)
    assert set(re.findall(r"(?<=[` ])--[a-z-]+", text)) == options | {"--version", "--help"}


@pytest.mark.parametrize(
    "verb", ["plan", "check", "diff", "stamp", "chains", "new", "migrate", "inspect", "verify", "epochs", "doctor"]
)
def test_the_readme_types_every_verb_that_it_can(verb: str) -> None:
    assert f"\nckptmigrate {verb} " in (ROOT / "README.md").read_text()


def test_the_chains_that_the_page_lists_are_those_that_come_with_it() -> None:
    text = (ROOT / "docs" / "chains.md").read_text()
    listed = re.findall(r"^\| `([\w.]+)` ([\w.]+) \| .* \| (automatic|named) \|$", text, flags=re.MULTILINE)
    shipped = [row for row in chains.Catalog.find().rows() if row.where and row.where[0].startswith("ckptmigrate.")]

    assert listed == [(r.name, v, "automatic" if r.automatic else "named") for r in shipped for v in r.versions]


def test_the_page_on_operations_names_every_operation_and_every_mark() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    rooms = (operations.__name__, marks.__name__)
    offered = [
        name
        for name in ckptmigrate.__all__
        if str(getattr(getattr(ckptmigrate, name), "__module__", "")).startswith(rooms)
    ]

    assert len(offered) > 20
    assert [name for name in offered if f"{name}(" not in text] == []


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
