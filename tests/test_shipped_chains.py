"""The shipped chains of torch's world: what each makes of a file is what torch itself made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ckptmigrate
from ckptmigrate.chains import Catalog
from ckptmigrate.errors import CkptError, PlanError
from ckptmigrate.testing import check_migrator

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


def saved(path: Path, model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> Path:
    """Let a model and its optimizers take one step, and save them."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizers": [each.state_dict() for each in optimizers]}, path)
    return path


def normed(weight_norm: Any) -> torch.nn.ModuleDict:
    """Give a model of weight norms of several kinds, with spectral norms beside them."""
    torch.manual_seed(5)
    return torch.nn.ModuleDict(
        {
            "linear": weight_norm(torch.nn.Linear(3, 4)),
            "spectral": torch.nn.utils.spectral_norm(torch.nn.Linear(4, 4)),
            "parametrized": torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4)),
            "lstm": weight_norm(torch.nn.LSTM(3, 4), "weight_hh_l0"),
            "whole": weight_norm(torch.nn.Conv2d(3, 4, 3), dim=None),
            "turned": weight_norm(torch.nn.ConvTranspose1d(3, 4, 3), dim=1),
        }
    )


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_a_spectral_norm_beside_weight_norms_stays_as_it_is(tmp_path: Path) -> None:
    old = normed(torch.nn.utils.weight_norm)
    new = normed(torch.nn.utils.parametrizations.weight_norm)
    path = saved(tmp_path / "old.pt", old)
    renamed = upgraded(path, tmp_path / "new.pt", "torch.weight_norm")["model"]
    folded = upgraded(path, tmp_path / "folded.pt", "torch.fold_weight_norm")["model"]
    for name in ("linear", "whole", "turned"):
        torch.nn.utils.remove_weight_norm(old[name])
    torch.nn.utils.remove_weight_norm(old["lstm"], "weight_hh_l0")
    expected = old.state_dict()

    assert not new.load_state_dict(renamed).missing_keys
    assert folded.keys() == expected.keys()
    assert all(torch.allclose(folded[name], expected[name], rtol=0, atol=1e-6) for name in expected)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("chain", ["torch.weight_norm", "torch.fold_weight_norm"])
def test_a_weight_norm_of_any_parameter_is_recognised(chain: str, tmp_path: Path) -> None:
    lstm = torch.nn.utils.weight_norm(torch.nn.LSTM(3, 4), "weight_hh_l0")
    report = ckptmigrate.plan(saved(tmp_path / "lstm.pt", lstm))

    assert any(f"--chain {chain}" in note for one in report for note in one.notes)


def test_the_step_of_a_sparse_adam_stays_a_number_whatever_optimizer_stands_beside_it(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 3, sparse=True), "fc": torch.nn.Linear(3, 4)})
    sparse = torch.optim.SparseAdam(list(model["embed"].parameters()))
    dense = torch.optim.NAdam(model["fc"].parameters())
    model["fc"](model["embed"](torch.tensor([0, 1]))).sum().backward()
    sparse.step()
    dense.step()
    torch.save(
        {"model": model.state_dict(), "optimizers": [sparse.state_dict(), dense.state_dict()]}, tmp_path / "new.pt"
    )
    down = upgraded(tmp_path / "new.pt", tmp_path / "old.pt", "torch", "1.10")
    up = upgraded(tmp_path / "old.pt", tmp_path / "again.pt", "torch")

    assert [one.current for one in ckptmigrate.check(tmp_path / "new.pt")] == [True]
    assert [type(each["state"][0]["step"]) for each in down["optimizers"]] == [int, int]
    assert type(down["optimizers"][1]["state"][0]["mu_product"]) is float
    assert same(up, load(tmp_path / "new.pt"))


def test_parameters_that_only_end_like_a_weight_norm_s_are_none(tmp_path: Path) -> None:
    state = {
        "attn.w_g": torch.rand(3, 3),
        "attn.w_v": torch.rand(3, 3),
        "fc.weight_g": torch.ones(4, 1),
        "fc.weight_v": torch.ones(4, 3),
    }
    torch.save(state, tmp_path / "old.pt")

    for chain in ("torch.weight_norm", "torch.fold_weight_norm"):
        made = upgraded(tmp_path / "old.pt", tmp_path / f"{chain}.pt", chain)
        assert all(torch.equal(made[name], state[name]) for name in ("attn.w_g", "attn.w_v"))
        assert "fc.weight_v" not in made


def test_a_direction_of_zeros_is_what_torch_makes_of_it_and_nothing_is_printed(tmp_path: Path) -> None:
    torch.save(
        {"fc.weight_g": torch.ones(2, 1), "fc.weight_v": torch.tensor([[0.0, 0.0], [3.0, 4.0]])}, tmp_path / "old.pt"
    )
    made = upgraded(tmp_path / "old.pt", tmp_path / "new.pt", "torch.fold_weight_norm")["fc.weight"]

    torch.testing.assert_close(made, torch.tensor([[torch.nan, torch.nan], [0.6, 0.8]]), equal_nan=True)


def test_what_is_no_magnitude_is_refused_and_not_multiplied(tmp_path: Path) -> None:
    torch.save({"fc.weight_g": torch.ones(2, 2), "fc.weight_v": torch.ones(2, 2)}, tmp_path / "old.pt")

    with pytest.raises(CkptError, match=r"\[2, 2\] is no magnitude of \[2, 2\]"):
        upgraded(tmp_path / "old.pt", tmp_path / "new.pt", "torch.fold_weight_norm")


@pytest.mark.parametrize(("target", "stamped"), [(None, "2.7"), ("2.5", "2.4"), ("1.4", "1.4")])
def test_steps_of_an_automatic_chain_that_are_not_needed_are_passed_and_hold(
    target: str | None, stamped: str, tmp_path: Path
) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "new.pt")
    (found,) = ckptmigrate.plan(tmp_path / "new.pt", chains={"torch": target}, said={"torch": "1.4"})

    assert (found.steps, found.stamps) == ((), (("torch", stamped),))


def test_a_lightning_file_of_today_without_loops_is_told_nothing(tmp_path: Path) -> None:
    tree = load(FIXTURES / "lightning" / "1.9.5.after.pt")
    del tree["loops"]
    torch.save(tree | {"pytorch-lightning_version": "2.5.0"}, tmp_path / "in.pt")
    report = ckptmigrate.migrate(tmp_path / "in.pt", tmp_path / "out.pt")

    assert not any("lightning" in note for note in report.notes)


STEPS: dict[tuple[str, str], dict[str, Any]] = {
    ("torch_weight_norm", "three"): {},
    ("torch_wrappers", "nested"): {"back": False},
    ("torch_fold_weight_norm", "three"): {"back": False, "tolerance": 1e-6},
    ("torch_fold_weight_norm", "parametrized"): {"back": False, "tolerance": 1e-6},
    ("torch_batch_norm", "counters"): {"back": False},
    ("torchvision", "densenet"): {},
}


@pytest.mark.parametrize(("folder", "name"), STEPS)
def test_a_shipped_step_touches_no_bystander_and_takes_along_what_follows(folder: str, name: str) -> None:
    (step,) = Catalog.find().steps(chain_of(folder))
    before, after = (load(FIXTURES / folder / f"{name}.{when}.pt") for when in ("before", "after"))

    check_migrator(
        step.migrator,
        before=before.get("model_state_dict", before),
        after=after.get("model_state_dict", after),
        **STEPS[folder, name],
    )
