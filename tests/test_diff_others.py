"""What sets two checkpoints apart that is no tensor: values, order, ties, roles, ids, the stamp."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ckptmigrate.checkpoint import Checkpoint, Optimizer, Param, Progress, Slot, Stamp
from ckptmigrate.values import Known
from ckptmigrate.verify import diff

from .compared import tensor, told
from .test_verify import full

if TYPE_CHECKING:
    from collections.abc import Callable


def _set(**changes: Any) -> Callable[[Checkpoint], None]:
    def change(checkpoint: Checkpoint) -> None:
        for name, value in changes.items():
            setattr(checkpoint, name, value)

    return change


def _hyper(checkpoint: Checkpoint) -> None:
    checkpoint.optimizers[0].groups[1]["lr"] = 0.3
    checkpoint.optimizers[0].groups[1]["betas"] = (0.9, 0.999)


def _reverse(checkpoint: Checkpoint) -> None:
    checkpoint.model = dict(reversed(checkpoint.model.items()))
    checkpoint.optimizers[1].params.reverse()


def _roles(role: Any) -> Callable[[Checkpoint], None]:
    def change(checkpoint: Checkpoint) -> None:
        held = checkpoint.model["fc.weight"]
        checkpoint.model["fc.weight"] = replace(held, role=role, id=1 if role == "buffer" else 2)

    return change


def _tie(checkpoint: Checkpoint) -> None:
    checkpoint.model["other"] = checkpoint.model["fc.weight"]


def _copy(checkpoint: Checkpoint) -> None:
    checkpoint.model["other"] = tensor(1, 2, 3)


def _random(*numbers: int) -> Callable[[Checkpoint], None]:
    return _set(values={"rng": {"python": (3, tuple(numbers), None)}})


SAYINGS: dict[str, tuple[Callable[[Checkpoint], None], Callable[[Checkpoint], None], dict[str, str]]] = {
    "hyperparameters": (_set(), _hyper, {
        "optimizers/0/groups/1/lr": "0.2 in A, 0.3 in B", "optimizers/0/groups/1/betas/1": "0.99 in A, 0.999 in B"}),
    "types": (_set(values={"x": {"n": 1}}), _set(values={"x": {"n": 1.0}}), {"values/x/n": "1 in A, 1.0 in B"}),
    "keys": (_set(values={"x": {"n": 1, "a": None}}), _set(values={"x": {"n": 1, "b": 2}}), {
        "values/x/a": "only in A: None", "values/x/b": "only in B: 2"}),
    "equal keys": (_set(values={"x": {1: 5}}), _set(values={"x": {True: 5}}), {
        "values/x": "1: int 1 is not bool True"}),
    "calls": (_set(values={"x": Known("a.b", (1,))}), _set(values={"x": Known("a.c", (1,))}), {"values/x": "a.b in A, a.c in B"}),
    "scheduler": (_set(schedulers=[{"last_epoch": 1}]), _set(schedulers=[{"last_epoch": 2}]), {
        "schedulers/0/last_epoch": "1 in A, 2 in B"}),
    "progress": (_set(), _set(progress=Progress(4, "last", 900, 0.25)), {
        "progress/epoch": "3 in A, 4 in B", "progress/counts": "'finished' in A, 'last' in B"}),
    "a run of numbers": (_random(*range(30)), _random(*range(29), 5), {
        "values/rng/python/1": "1 of 30 numbers differ, first at 29: 29 in A, 5 in B"}),
    "order": (_set(), _reverse, {
        "order/model": "2 of 3 stand elsewhere, first 0: fc.weight in A, empty in B",
        "order/optimizers/1": "2 of 2 stand elsewhere, first 0: fc.weight in A, fc.bias in B"}),
    "role and id": (_roles("parameter"), _roles("buffer"), {
        "roles/fc.weight": "parameter in A, buffer in B", "ids": "1 of 1 are others, first of fc.weight: 2 in A, 1 in B"}),
    "ties": (_tie, _copy, {"ties/fc.weight": "one tensor with other in A, not in B"}),
    "stamp": (_set(stamp=Stamp({"x": "1.0", "y": "2"})), _set(stamp=Stamp({"x": "1.1"})), {
        "stamp/x": "1.0 in A, 1.1 in B", "stamp/y": "2 in A, none in B"}),
}  # fmt: skip


@pytest.mark.parametrize("case", SAYINGS)
def test_each_kind_of_saying_is_found_alone(case: str) -> None:
    one, other, expected = SAYINGS[case]
    left, right = full(), full()
    one(left)
    other(right)
    found = diff(left, right)

    if case != "ties":
        assert [c for c in found.tensors if not c.item.startswith("values/")] == []
    assert {d.item: d.what for d in found.others} == expected


def test_what_only_one_file_can_say_does_not_set_them_apart() -> None:
    left, right = full(), full()
    _roles("parameter")(left)
    right.modules = {}
    right.family = "other"
    for optimizer in right.optimizers:
        optimizer.kind = None

    assert diff(left, right).equal


def test_the_order_of_entries_that_are_found_by_id_means_nothing() -> None:
    def holding(*keys: int) -> Checkpoint:
        params = [Param(None, None, key, 0, {"m": Slot(tensor(key, 1))}) for key in keys]
        return Checkpoint("x", optimizers=[Optimizer(params=params, groups=[{}])])

    assert diff(holding(70, 80), holding(80, 70), int).equal
    assert told(diff(holding(70, 80), holding(80, 70))) == {
        "values": [(None, "optimizers/0/0/m"), (None, "optimizers/0/1/m")]
    }
