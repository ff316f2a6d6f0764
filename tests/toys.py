"""A family, and checkpoints in which every element is another number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ckptmigrate import engine
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Param, Slot
from ckptmigrate.format import FOLLOWS, SCALAR, SHARED, Family
from ckptmigrate.tensor import Tensor, array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FAMILY = Family(
    "toy",
    unpack=lambda _section, _parts, _options: None,
    pack=lambda _section, value, _checkpoint: value,
    section=lambda _parts: None,
    slots={"step": SCALAR, "exp_avg": FOLLOWS, "exp_avg_sq": FOLLOWS, "history": SHARED},
    is_buffer=lambda name, tensor: tensor.role == "buffer" or name.rpartition(".")[2] in {"mean", "count"},
)


def tensor(values: Any, role: Any = None, identity: int | None = None) -> Tensor:
    return Tensor(array(np.asarray(values)), role, identity)


def make(
    shapes: Mapping[str, tuple[int, ...]],
    groups: Sequence[Sequence[str]] = (),
    *,
    ids: bool = False,
    named: bool = True,
    stateless: Sequence[str] = (),
    step: Any = None,
) -> Checkpoint:
    """Give a model with an EMA twin and Adam over it; every element of every tensor is another number."""
    count = iter(range(1, 10**6))

    def fresh(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        size = int(np.prod(shape, dtype=int))
        return np.array([next(count) for _ in range(size)], "f4").reshape(shape)

    model = {n: tensor(fresh(s), identity=1000 + i if ids else None) for i, (n, s) in enumerate(shapes.items())}
    params: list[Param] = []
    for group, names in enumerate(groups):
        for name in names:
            slots = {
                "step": Slot(7 if step is None else step(name)),
                "exp_avg": Slot(tensor(fresh(shapes[name]))),
                "exp_avg_sq": Slot(tensor(fresh(shapes[name]))),
            }
            key = model[name].id if ids else len(params)
            params.append(
                Param(
                    name if named else None, "file" if named else None, key, group, None if name in stateless else slots
                )
            )
    optimizers = [Optimizer("adam", params, [{"lr": 0.1 * (g + 1)} for g in range(len(groups))])] if groups else []
    checkpoint = Checkpoint(
        "toy", model=model, twins={"ema": {n: tensor(fresh(s)) for n, s in shapes.items()}}, optimizers=optimizers
    )
    account(checkpoint)
    return checkpoint


def account(checkpoint: Checkpoint) -> None:
    ledger = checkpoint.ledger
    items = [f"model/{n}" for n in checkpoint.model]
    items += [f"twins/{t}/{n}" for t, members in checkpoint.twins.items() for n in members]
    for i, optimizer in enumerate(checkpoint.optimizers):
        items += [f"optimizers/{i}/{p}/{s}" for p, param in enumerate(optimizer.params) for s in param.slots or {}]
        items += [f"optimizers/{i}/groups/{g}/{k}" for g, group in enumerate(optimizer.groups) for k in group]
    for item in items:
        ledger.source(item)
        ledger.became(item, item)


def arrays(members: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    return {name: member.numpy().tolist() for name, member in members.items()}


def state(checkpoint: Checkpoint, index: int = 0) -> list[tuple[Any, ...]]:
    """Give an optimizer's entries as plain values: name, group, and per slot the number or the nested list."""
    return [
        (p.name, p.group, None if p.slots is None else {n: plain(s.value) for n, s in p.slots.items()})
        for p in checkpoint.optimizers[index].params
    ]


def plain(value: Any) -> Any:
    return value.numpy().tolist() if isinstance(value, Tensor) else value


def run(checkpoint: Checkpoint, *operations: Any, ties: Any = "keep") -> list[str]:
    return engine.apply_operations(checkpoint, operations, FAMILY, origin="toy 1.0", ties=ties)


TWO = {"a.w": (4, 3), "a.b": (4,), "b.w": (2, 3), "b.b": (2,)}
DECAY = [["a.w", "b.w"], ["a.b", "b.b"]]
