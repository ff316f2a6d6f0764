"""The shipped chains of torch's world: what each makes of a file is what torch itself made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ckptmigrate
from ckptmigrate.chains import Catalog
from ckptmigrate.errors import PlanError

FIXTURES = Path(__file__).parent / "fixtures" / "chains"
PAIRS = sorted(path.name.removesuffix(".before.pt") for path in FIXTURES.glob("*/*.before.pt"))
CASES = sorted((path.parent.name, path.name.removesuffix(".before.pt")) for path in FIXTURES.glob("*/*.before.pt"))


def load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def same(a: Any, b: Any) -> bool:
    """Say whether two loaded files hold the same, tensors by their bytes and in their order."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        ordered = not any(isinstance(value, torch.Tensor) for value in a.values()) or list(a) == list(b)
        return a.keys() == b.keys() and ordered and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def chain_of(folder: str) -> str:
    return folder.replace("_", ".", 1)


def upgraded(path: Path, out: Path, chain: str, version: str | None = None) -> Any:
    named = {} if chain == "torch" and version is None else {chain: version}
    ckptmigrate.migrate(path, out, chains=named)
    return load(out)


@pytest.mark.parametrize(("folder", "name"), CASES)
def test_a_chain_makes_of_an_old_file_what_torch_makes_of_it(folder: str, name: str, tmp_path: Path) -> None:
    made = upgraded(FIXTURES / folder / f"{name}.before.pt", tmp_path / "out.pt", chain_of(folder))
    expected = load(FIXTURES / folder / f"{name}.after.pt")

    if folder == "torch_fold_weight_norm":
        assert list(made) == list(expected)
        assert all(torch.allclose(made[n], expected[n], rtol=0, atol=1e-6) for n in expected)
    else:
        assert same(made, expected)


def test_every_shipped_chain_of_torch_s_world_has_a_pair_of_files() -> None:
    shipped = {chain.name for chain in Catalog.find().loaded() if not chain.name.startswith("burn")}

    assert shipped == {chain_of(folder) for folder, _ in CASES}


DOWN = [
    case
    for case in CASES
    if case[0] in {"torch", "torch_weight_norm", "torchvision", "bert"} and case[1] != "multistep"
]


@pytest.mark.parametrize(("folder", "name"), DOWN)
def test_the_way_down_gives_the_old_file_again(folder: str, name: str, tmp_path: Path) -> None:
    made = upgraded(FIXTURES / folder / f"{name}.after.pt", tmp_path / "out.pt", chain_of(folder), "0")

    assert same(made, load(FIXTURES / folder / f"{name}.before.pt"))


def test_milestones_are_a_list_again_on_the_way_down_and_verbose_is_not_missed(tmp_path: Path) -> None:
    made = upgraded(FIXTURES / "torch" / "multistep.after.pt", tmp_path / "out.pt", "torch", "1.0")

    assert made["scheduler_state_dict"]["milestones"] == [1, 3, 3]
    assert "verbose" not in made["scheduler_state_dict"]


@pytest.mark.parametrize(
    ("folder", "name", "reason"),
    [
        ("torch_fold_weight_norm", "three", "a function cannot be turned round"),
        ("torch_wrappers", "nested", "no back= says what its names were"),
        ("torch_batch_norm", "counters", "which of the names were there already"),
    ],
)
def test_a_step_without_a_way_down_is_refused_with_the_reason(
    folder: str, name: str, reason: str, tmp_path: Path
) -> None:
    chain = chain_of(folder)
    ckptmigrate.migrate(FIXTURES / folder / f"{name}.before.pt", tmp_path / "new.pt", chains={chain: None})

    with pytest.raises(PlanError, match=reason):
        ckptmigrate.migrate(tmp_path / "new.pt", tmp_path / "old.pt", chains={chain: "0"})
    assert not (tmp_path / "old.pt").exists()


@pytest.mark.parametrize(("folder", "name"), [case for case in CASES if case[0] not in {"torch", "lightning"}])
def test_without_its_name_a_chain_is_only_suggested(folder: str, name: str, tmp_path: Path) -> None:
    chain, before = chain_of(folder), FIXTURES / folder / f"{name}.before.pt"
    report = ckptmigrate.migrate(before, tmp_path / "out.pt")

    assert isinstance(report, ckptmigrate.Report)
    assert any(f"--chain {chain}" in note for note in report.notes)
    assert same(load(tmp_path / "out.pt"), load(before))
