"""A small net of torch whose layers stand in any order, trained, saved, and resumed beside what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ckptmigrate
from ckptmigrate import errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Net(nn.Module):  # type: ignore[misc] # torch is Any to mypy here
    """Two layers of one shape in either order, a norm with statistics, and a buffer that looks like a bias."""

    def __init__(self, *order: str) -> None:
        super().__init__()
        for name in order or ("a", "norm", "b"):
            self.add_module(name, nn.BatchNorm1d(3) if name == "norm" else nn.Linear(3, 3))
        self.a.register_buffer("table", torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shown: torch.Tensor = self.b(self.norm(self.a(x) + self.a.table))
        return shown


OTHER = ("b", "a", "norm")
IN_ORDER = "optimizer 0: its parameters are named in the order of the model of a Net"


def meta(*order: str) -> Net:
    with torch.device("meta"):
        return Net(*order)


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.linspace(-1, 1, 24).reshape(8, 3)).pow(2).sum().backward()
    optimizer.step()


def trained(net: nn.Module, groups: Callable[[nn.Module], Any] = lambda net: net.parameters()) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(groups(net), lr=0.1)
    for _ in range(3):
        step(net, optimizer)
    return optimizer


def saved(path: Path, net: nn.Module, optimizer: torch.optim.Optimizer | None = None, **more: Any) -> Path:
    held: dict[str, Any] = {"model_state_dict": net.state_dict(), **more}
    if optimizer is not None:
        held["optimizer_state_dict"] = optimizer.state_dict()
    torch.save(held, path)
    return path


def problems(path: Path, wanted: Any, **options: Any) -> tuple[str, ...]:
    with pytest.raises(errors.PlanError) as caught:
        ckptmigrate.migrate(path, path.with_name("refused.pt"), like=wanted, **options)
    assert not path.with_name("refused.pt").exists()
    return caught.value.problems


def check_next_step(net: Net, optimizer: torch.optim.Optimizer, resumed: Net, again: torch.optim.Optimizer) -> None:
    """One more step of both gives the same bits under every name."""
    step(net, optimizer)
    step(resumed, again)
    mine, theirs = net.state_dict(), resumed.state_dict()

    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
