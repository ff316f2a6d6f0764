"""What a call says is done or refused: no option is ignored in silence, and the original is never the output."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from .command_line import BARE, CHECKPOINT, Ran

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("link", [None, os.link, os.symlink])
def test_the_original_is_never_replaced_by_its_own_conversion_also_when_forced(
    tmp_path: Path, link: Callable[[Path, Path], None] | None
) -> None:
    path = tmp_path / "in.pt"
    path.write_bytes(BARE.read_bytes())
    out = path if link is None else tmp_path / "out.pt"
    if link is not None:
        link(path, out)
    ran = Ran("migrate", path, out, "--force", "--exclude", "fc.*")

    assert ran.code == 2
    assert "--in-place" in ran.err
    assert path.read_bytes() == BARE.read_bytes()


def test_a_folder_is_never_replaced_by_its_own_conversion(tmp_path: Path) -> None:
    assert Ran("migrate", CHECKPOINT, tmp_path / "run").code == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}

    assert Ran("migrate", tmp_path / "run", tmp_path / "run", "--force").code == 2
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (
            ["--only", "conv.wieght"],
            3,
            "--only conv.wieght matches no tensor of the model; close to it are conv.weight",
        ),
        (["--exclude", r"fc\.nix"], 3, r"--exclude fc\.nix matches no tensor"),
        (["--rename", "nix=x"], 3, "--rename nix=x matches no tensor"),
        (["--only", "("], 2, "--only (: missing )"),
        (["--rename", "(=x"], 2, "--rename (=x: missing )"),
        (["--exclude", ".*"], 3, "nothing would be left"),
        (["--epoch-means", "last"], 2, "tells no epoch"),
        (["--params", "no.json"], 3, "no.json: no such file"),
        (["--section", "model=nix"], 3, "nothing at nix"),
        (["--sections", "nix"], 3, "no section 'nix'"),
        (["--drop", "nix"], 3, "no section 'nix'"),
        (["--chain", "nix"], 3, "no chain is called nix"),
        (["--migrations", "nix"], 3, "nix: no such file"),
        (["--chain", "torch=1.4", "--chain", "torch=2.4"], 2, "--chain torch: said twice, '1.4' and '2.4'"),
    ],
)
def test_an_option_that_would_mean_nothing_is_refused_and_not_ignored(
    options: list[str], code: int, said: str, tmp_path: Path
) -> None:
    ran = Ran("migrate", BARE, tmp_path / "out.pt", *options)

    assert ran.code == code
    assert said in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [["--to", "safetensors"], ["--layout", "standard"]])
def test_in_place_takes_no_option_that_would_change_format_or_layout(options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "in.pt"
    path.write_bytes(BARE.read_bytes())

    assert Ran("migrate", path, "--in-place", *options).code == 2
    assert path.read_bytes() == BARE.read_bytes()


@pytest.mark.parametrize("options", [["--rename", "fc.bias=fc.b"], ["--dtype", "f16"], ["--exclude", "fc.*"]])
def test_in_place_does_what_the_call_asks_of_a_file_that_is_current(options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "in.pt"
    path.write_bytes(BARE.read_bytes())
    ran = Ran("migrate", path, "--in-place", *options, "--json")

    assert ran.json()["written"] is True
    assert Ran("verify", path, tmp_path / "in.pt.ckptmigrate-backup").code == 1
