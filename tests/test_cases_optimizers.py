"""Public failure reports, part H: optimizer state of another day, told to the command line (H01, H03, H05)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from .command_line import Ran
from .told import load, refused, saved, upgraded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def adam(*names: str, step: Any, keys: Any = None) -> dict[str, Any]:
    """Give a model of these parameters, and Adam over them; ``step`` None: no state."""
    keys = list(range(len(names))) if keys is None else keys
    model = {name: torch.full((2,), i + 1.0) for i, name in enumerate(names)}
    slots = {"step": step, "exp_avg": torch.full((2,), 0.25), "exp_avg_sq": torch.full((2,), 0.5)}
    hyper = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False}
    state = {} if step is None else {key: dict(slots) for key in keys}
    return {"model": model, "optimizer": {"state": state, "param_groups": [{**hyper, "params": keys}]}}


def step_on(
    found: dict[str, Any], make: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
) -> torch.optim.Optimizer:
    """Let torch load model and optimizer and take one more step."""
    params = [torch.nn.Parameter(value) for value in found["model"].values()]
    optimizer = make(params)
    optimizer.load_state_dict(found["optimizer"])
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    return optimizer


def test_h01_an_int_step_becomes_a_tensor_unasked_and_torch_s_next_step_makes_it_6(tmp_path: Path) -> None:
    held = adam("w", "b", step=5)
    found, report = upgraded(held, tmp_path)
    states = found["optimizer"]["state"]

    assert all(
        s["step"].dtype == torch.float32 and s["step"].shape == () and float(s["step"]) == 5 for s in states.values()
    )
    assert all(
        torch.equal(states[i][n], held["optimizer"]["state"][i][n]) for i in (0, 1) for n in ("exp_avg", "exp_avg_sq")
    )
    assert [step.split(" (")[0] for step in report["steps"]] == ["torch to 1.12"]
    assert [float(state["step"]) for state in step_on(found).state.values()] == [6.0, 6.0]


def test_h01_the_way_down_gives_the_int(tmp_path: Path) -> None:
    upgraded(adam("w", step=5), tmp_path)
    ran = Ran("migrate", tmp_path / "out.pt", tmp_path / "old.pt", "--chain", "torch=1.4")
    step = load(tmp_path / "old.pt")["optimizer"]["state"][0]["step"]

    assert ran.code == 0
    assert (type(step), step) == (int, 5)


def test_h01_a_real_file_of_2021_goes_on_from_its_first_step(corpus: Callable[[str], Path], tmp_path: Path) -> None:
    source = corpus("allenai+allennlp/allennlp-2021-training_state.th")
    old = load(source)["optimizer"]
    ran = Ran("migrate", source, tmp_path / "out.pt")
    found = load(tmp_path / "out.pt")["optimizer"]
    params = [torch.nn.Parameter(torch.zeros_like(state["square_avg"])) for state in found["state"].values()]
    optimizer = torch.optim.Adadelta(params)
    optimizer.load_state_dict(found)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()

    assert ran.code == 0
    assert [type(state["step"]) for state in old["state"].values()] == [int] * 9
    assert list(old["state"]) == list(found["state"])
    for before, after in zip(
        old["state"].values(), load(tmp_path / "out.pt")["optimizer"]["state"].values(), strict=True
    ):
        assert (after["step"].dtype, after["step"].shape, float(after["step"])) == (torch.float32, (), before["step"])
        assert all(torch.equal(before[name], after[name]) for name in ("square_avg", "acc_delta"))
    assert [float(state["step"]) for state in optimizer.state.values()] == [
        s["step"] + 1 for s in old["state"].values()
    ]


def test_h03_moments_without_a_step_are_refused_naming_parameter_and_field(tmp_path: Path) -> None:
    held = adam("w", "b", step=5)
    del held["optimizer"]["state"][0]["step"]
    source = saved(tmp_path / "in.pt", held)
    said = refused(tmp_path, source, tmp_path / "out.pt")
    ran = Ran("migrate", source, tmp_path / "out.pt", "--drop", "optimizers", "--json")

    assert "optimizer state of parameter 0 has exp_avg, exp_avg_sq and no step" in said
    assert "--drop optimizers" in said
    assert ran.code == 0
    assert set(load(tmp_path / "out.pt")) == {"model"}


@pytest.mark.parametrize(("kept", "said"), [(0, "0 of 2 parameters have state"), (1, "1 of 2 parameters have state")])
def test_h03_state_that_is_missing_is_legal_kept_as_it_is_and_noted(kept: int, said: str, tmp_path: Path) -> None:
    held = adam("w", "b", step=torch.tensor(5.0))
    held["optimizer"]["state"] = {i: held["optimizer"]["state"][i] for i in range(kept)}
    found, report = upgraded(held, tmp_path)

    assert list(found["optimizer"]["state"]) == list(range(kept))
    assert any(said in note for note in report["notes"])
    assert len(step_on(found).state) == 2


def test_h05_keys_that_are_names_stay_names_where_they_were_and_are_numbers_in_the_standard_file(
    tmp_path: Path,
) -> None:
    names = ["a.weight", "a.bias"]
    held = adam(*names, step=torch.tensor(5.0), keys=names)
    found, _ = upgraded(held, tmp_path)
    ran = Ran("migrate", tmp_path / "in.pt", tmp_path / "standard.pt", "--layout", "standard")
    standard = load(tmp_path / "standard.pt")["optimizer_state_dict"]

    assert found["optimizer"]["param_groups"][0]["params"] == names
    assert list(found["optimizer"]["state"]) == names
    assert ran.code == 0
    assert list(standard["state"]) == standard["param_groups"][0]["params"] == [0, 1]
    assert standard["param_groups"][0]["param_names"] == names


def test_h05_a_name_that_is_not_the_model_s_is_refused(tmp_path: Path) -> None:
    held = adam("a.weight", "other", step=torch.tensor(5.0), keys=["a.weight", "a.bias"])
    said = refused(tmp_path, saved(tmp_path / "in.pt", held), tmp_path / "out.pt")

    assert "optimizer state names a.bias, which the model has not" in said
