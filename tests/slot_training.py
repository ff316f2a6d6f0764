"""How a model of the slot table comes to its state with torch, and what torch alone makes of it: the reference of every cell."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .slot_recipes import OPTIMIZERS, Named, Net, Row

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 3
NAN = float("nan")


@dataclass(frozen=True)
class Situation:
    """How the optimizer came to its state: ``kind`` of parameter; what is special about the first that the row is about.

    ``named``: the file has ``param_names``; ``groups``: who lies in the second group; ``late``: how many steps it had no gradient for.
    """

    kind: str = "matrix"
    named: bool = False
    groups: str = "one"
    frozen: bool = False
    steps: int = STEPS
    late: int = 0
    tied: str | None = None


SITUATIONS = {
    "by position": Situation(),
    "by name": Situation(named=True),
    "two groups": Situation(groups="weights"),
    "first in another group": Situation(groups="first", named=True),
    "first frozen": Situation(frozen=True, named=True),
    "no state yet": Situation(steps=0),
    "first without state": Situation(late=STEPS),
    "first a step behind": Situation(late=1),
    "bystander tied": Situation(tied="head.weight"),
    "first tied to a later name": Situation(tied="first"),
    "first tied to an earlier name": Situation(tied="second"),
    "shape [1]": Situation(kind="[1]"),
    "rank 0": Situation(kind="[]"),
}


class Trained:
    """A model and its optimizer after some steps of torch, and an average of it."""

    def __init__(self, row: Row, situation: Situation, kind: str) -> None:
        torch.manual_seed(len(row.old))
        self.row, self.situation, self.kind = row, situation, kind
        self.first = next(iter(row.old))
        shapes = dict(row.old)
        ties = dict(row.tied)
        if situation.tied is not None:
            of = self.first if situation.tied in {"first", "second"} else situation.tied
            if situation.tied == "second":
                ties = {
                    self.first: "early.weight",
                    **{n: "early.weight" if f == self.first else f for n, f in ties.items()},
                }
                shapes["early.weight"] = shapes[self.first]
            else:
                ties["tail.weight"] = of
                shapes["tail.weight"] = ()
        self.net = Net(shapes, row.body, ties)
        members = {n: self.wanted(n, p) for n, p in self.net.named_parameters()}
        self.optimizer = optimizer_of(kind, self.grouped(self.net, members), named=situation.named)
        self.ema = copy.deepcopy(self.net)
        with torch.no_grad():
            for value in self.ema.parameters():
                value.mul_(0.5)
        for step in range(situation.steps):
            self.optimizer.step(lambda step=step: self.backward(step))
        self.state = {n: dict(self.optimizer.state.get(p, {})) for n, p in self.names()}
        self.held = self.optimizer.state_dict()

    def wanted(self, name: str, value: Tensor) -> int:
        """Give the group that a parameter is put into, -1 for none."""
        if self.situation.frozen and name == self.first:
            return -1
        if self.situation.groups == "first":
            return int(name not in {self.first, "head.bias"})
        return int(self.situation.groups == "weights" and value.ndim < 2)

    def group_of(self, name: str) -> int:
        """Give the group of a name: a tied set goes by its first."""
        value = self.net.get_parameter(name)
        return self.wanted(next(n for n, p in self.net.named_parameters() if p is value), value)

    def names(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Give all names, second ones too."""
        return list(self.net.named_parameters(remove_duplicate=False))

    def grouped(self, net: Net, group: dict[str, int]) -> list[list[tuple[str, torch.nn.Parameter]]]:
        """Give the members of each group in the order in which a model declares them."""
        count = 1 if self.situation.groups == "one" else 2
        return [[(n, p) for n, p in net.named_parameters() if group[n] == number] for number in range(count)]

    def backward(self, step: int) -> Tensor:
        """Give every parameter its gradient; one that is late has none yet."""
        self.optimizer.zero_grad()
        loss = loss_of(self.net, step)
        loss.backward()
        if step < self.situation.late:
            self.net.get_parameter(self.first).grad = None
        return loss


def optimizer_of(
    kind: str, groups: list[list[tuple[str, torch.nn.Parameter]]], *, named: bool
) -> torch.optim.Optimizer:
    hyper: tuple[dict[str, float], ...] = ({}, {"lr": 0.05})
    return OPTIMIZERS[kind](
        [
            {"params": members if named else [p for _, p in members], **hyper[number]}
            for number, members in enumerate(groups)
        ]
    )


def loss_of(net: Net, step: int) -> Tensor:
    x = torch.sin(torch.arange(15.0).reshape(5, 3) + step)
    return net(x).square().mean() + 0.01 * torch.stack([p.float().sin().sum() for p in net.parameters()]).sum()


class Reference:
    """What should come out: the new model and its optimizer, changed in memory with torch alone."""

    def __init__(self, old: Trained) -> None:
        row = old.row
        self.old, self.row = old, row
        self.model = row.mapped(dict(old.net.state_dict()))
        self.ema = row.mapped(dict(old.ema.state_dict()))
        self.net = Net(self.shapes(), row.becomes, self.ties(), {n: v.dtype for n, v in self.model.items()})
        groups = row.mapped({n: torch.full_like(p, old.group_of(n) + 1, dtype=torch.float32) for n, p in old.names()})
        self.group = {n: int(value.flatten()[0].abs()) - 1 for n, value in groups.items()}  # an Apply may turn signs
        self.group.update({n: old.group_of(near) for n, near in row.fresh.items()})
        self.held = self.state_dict(old.held["state"] if old.kind == "LBFGS" else None)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        names = [n for n in ("early.weight", "tail.weight") if n in self.model]
        return {**self.row.new, **{n: tuple(self.model[n].shape) for n in names}}

    def ties(self) -> dict[str, str]:
        """Give the names that share the bytes of an earlier one."""
        first: dict[Any, str] = {}
        owners = {n: first.setdefault((v.data_ptr(), v.shape, v.stride()), n) for n, v in self.model.items()}
        return {n: owner for n, owner in owners.items() if n not in {owner, *self.row.fresh}}

    def state_of(self) -> dict[str, dict[str, Any]]:
        """Give each parameter's slots: what became of the old ones, a number from what it was made of, nothing where one had none."""
        found: dict[str, dict[str, Any]] = {}
        old = self.old
        for slot in dict.fromkeys(slot for state in old.state.values() for slot in state):
            counted = slot == "step"
            filled = {
                n: torch.full_like(p, float(old.state[n].get(slot, NAN)), dtype=torch.float32)
                if counted
                else old.state[n].get(slot)
                for n, p in old.names()
            }
            filled = {n: torch.full_like(old.net.get_parameter(n), NAN) if v is None else v for n, v in filled.items()}
            for name, value in (self.row.mapped if counted else self.row.moments or self.row.mapped)(filled).items():
                if name not in self.row.fresh and not value.isnan().any():
                    found.setdefault(name, {})[slot] = value.flatten()[0].float().abs() if counted else value
        return found

    def state_dict(self, shared: Any) -> dict[str, Any]:
        """Give what the new optimizer would have saved."""
        old = self.old
        members = old.grouped(self.net, self.group)
        numbers = {n: i for i, n in enumerate(n for group in members for n, _ in group)}
        groups = []
        for given, group in zip(old.held["param_groups"], members, strict=True):
            names = {"param_names": [n for n, _ in group]} if old.situation.named else {}
            groups.append({**given, **names, "params": [numbers[n] for n, _ in group]})
        state = {numbers[n]: s for n, s in self.state_of().items() if n in numbers} if shared is None else shared
        return {"state": state, "param_groups": groups}


def saved(old: Trained, path: Path) -> Path:
    held = copy.deepcopy(old.held)
    if old.kind == "Adam-int":
        for state in held["state"].values():
            state["step"] = int(state["step"])
    torch.save(
        {
            "epoch": 1,
            "model_state_dict": old.net.state_dict(),
            "ema_state_dict": old.ema.state_dict(),
            "optimizer_state_dict": held,
        },
        path,
    )
    return path


def same(a: Any, b: Any) -> bool:
    """Say whether two state dicts hold the same, tensors by dtype, shape and bits."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        alike = isinstance(a, Tensor) and isinstance(b, Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return alike and torch.equal(bits(a), bits(b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def bits(value: Tensor) -> Tensor:
    return value.detach().contiguous().reshape(-1).view(torch.uint8) if value.numel() else value.detach()


def stepped(reference: Reference, model: Named, held: Any) -> tuple[Named, Any]:
    """Load model and optimizer with torch, take one more step, and give both state dicts."""
    old, net = reference.old, copy.deepcopy(reference.net)
    net.load_state_dict(model)
    optimizer = optimizer_of(old.kind, old.grouped(net, reference.group), named=old.situation.named)
    optimizer.load_state_dict(copy.deepcopy(held))  # torch goes on in the tensors that it is given

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, STEPS)
        loss.backward()
        return loss

    optimizer.step(closure)
    return dict(net.state_dict()), optimizer.state_dict()
