"""What sabotage is done to: a source with everything that can go wrong, and the three kinds of target."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch

if TYPE_CHECKING:
    from pathlib import Path

LARGE = (160, 128)  # 80 KiB of F32: above it the kernel copies, below it bytes pass through a buffer


class Target(NamedTuple):
    source: str
    out: str


TARGETS = {
    "one safetensors file": Target("bare.pt", "out.safetensors"),
    "a torch zip": Target("training.pt", "out.pt"),
    "our folder": Target("training.pt", "out"),
}
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def make(folder: Path) -> None:
    """Write what every conversion here reads: a tie, two equal shapes, a view that must be streamed, optimizer state."""
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.first = torch.nn.Linear(LARGE[1], LARGE[0], bias=False)
    model.second = torch.nn.Linear(LARGE[1], LARGE[0])
    model.tied = torch.nn.Linear(LARGE[1], LARGE[0], bias=False)
    model.tied.weight = model.first.weight
    model.turned = torch.nn.Parameter(torch.rand(96, 300).t())
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    torch.save(model.state_dict(), folder / "bare.pt")
    torch.save(
        {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "epoch": 3},
        folder / "training.pt",
    )
