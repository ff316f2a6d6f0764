"""The slot table: every operation, every optimizer, every situation. torch takes one more step from what came out, bit-equal.

Each cell trains with torch, saves with torch, migrates, loads with torch, and steps beside a reference that was changed in memory
with torch alone: that is "follows". All other cells are refused, and say of what.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ckptmigrate
from ckptmigrate import GatherOptions
from ckptmigrate.errors import PlanError
from ckptmigrate.operations import Concat, Split, Transpose

from .slot_recipes import MATRICES, OPTIMIZERS, ROWS, Row, both, parted
from .slot_training import SITUATIONS, STEPS, Reference, Situation, Trained, optimizer_of, same, saved, stepped

if TYPE_CHECKING:
    from pathlib import Path

RENAMES = {"Rename", "Reindex", "Move"}
JOINS = {"Concat", "Stack"}
APPLIES = {"Apply-follow", "Apply-refuse", "Apply-drop", "Apply-keep"}
REMAKES = {
    "Reshape",
    "Transpose",
    "Reorder",
    "Split",
    "Split-layer",
    "Unstack",
    "Unstack-layers",
    "Cast",
    "Apply-follow",
    *JOINS,
}
IDLE = {"first frozen", "first without state"}  # the parameter that the operation is about has no state
EVERY = set(OPTIMIZERS)
SECOND = "first tied to an earlier name"  # which stands for it in the optimizer: to drop or move the second name is to change nothing
TIED = {"first tied to a later name", SECOND}
ALL = set(MATRICES)
VECTORS = {"shape [1]", "rank 0"}
STATEFUL = set(SITUATIONS) - {"no state yet"}
ADAM = {"Adam", "Adam-int", "AMSGrad"}

ALL_AT_ONCE = r"optimizer 0 keeps d, .*old_dirs.* of all parameters at once, which cannot follow; leave it out with --drop optimizer"
WHO = r"optimizer 0: (qkv\.weight|experts\.w): "

REFUSED: list[tuple[set[str], set[str], set[str], str]] = [
    ({"Split", "Split-layer", "Concat", "Reorder"}, {"rank 0"}, EVERY, r"[ab]\.weight.* has the shape \[\], and no axis 0"),
    (REMAKES | APPLIES, TIED, EVERY, r"(tail|early)\.weight.* are tied, and would no longer be equal; --ties duplicate"),
    (ALL - RENAMES - {"Transpose", "Reorder"}, VECTORS, {"LBFGS"}, ALL_AT_ONCE),
    (ALL - RENAMES - {"Drop", "Order"}, {SECOND}, {"LBFGS"}, ALL_AT_ONCE),
    (ALL - RENAMES, STATEFUL - VECTORS - {SECOND}, {"LBFGS"}, ALL_AT_ONCE),
    (JOINS, {"first in another group"}, EVERY, WHO + "the parts lie in groups 0, 1, and only one can hold what they become"),
    (JOINS, {"first frozen"}, EVERY, WHO + r"(k\.weight|experts\.1\.w) has an entry, and (q\.weight|experts\.0\.w) has none"),
    (JOINS, {"first without state"}, EVERY, WHO + r"(k\.weight|experts\.1\.w) has state, and (q\.weight|experts\.0\.w) has none yet"),
    (JOINS, {"first a step behind"}, ADAM | {"Adafactor"}, WHO + r"step is not the same in all: 2"),
    (REMAKES, STATEFUL - VECTORS - IDLE, {"Adafactor"}, r"optimizer 0: [\w., ]+: row_var, F32 .*, sums over an axis of its parameter, F32 .*, and cannot follow"),
    ({"Stack"}, {"shape [1]"}, {"Adafactor"}, r"optimizer 0: ab\.w: variance stands only where a parameter has one axis or none, and it becomes \[2, 1\]"),
    ({"Unstack-layers"}, IDLE, {"Adafactor"}, r"optimizer 0: experts\.0\.b, experts\.1\.b: row_var, F32 \[2, 1\], sums over an axis of its parameter"),
    ({"Unstack", "Unstack-layers"}, {"shape [1]"}, {"Adafactor"}, r"optimizer 0: [ax]\.weight, [by]\.weight: row_var, F32 \[2, 1\], sums over an axis of its parameter"),
    ({"Apply-refuse"}, STATEFUL - IDLE, EVERY, r"optimizer 0: a\.weight: \w+ has the parameter's axes, and the operation does not say what becomes of it"),
]  # fmt: skip
"""Operations, situations, optimizers, and what the refusal says; the first that fits. Every cell that none fits follows."""


def refusal(operation: str, situation: str, optimizer: str) -> str | None:
    return next((said for o, s, k, said in REFUSED if operation in o and situation in s and optimizer in k), None)


def cells() -> list[Any]:
    return [
        pytest.param(operation, situation, optimizer, id=f"{operation}-{optimizer}-{situation.replace(' ', '_')}")
        for operation in MATRICES
        for situation in SITUATIONS
        for optimizer in OPTIMIZERS
    ]


@pytest.mark.parametrize(("operation", "situation", "optimizer"), cells())
def test_torch_goes_on_from_what_came_out_or_the_refusal_says_of_what(
    operation: str, situation: str, optimizer: str, tmp_path: Path
) -> None:
    where = SITUATIONS[situation]
    row = ROWS[where.kind][operation]
    if optimizer == "LBFGS" and where.groups != "one":
        with pytest.raises(ValueError, match="LBFGS doesn't support per-parameter options"):
            Trained(row, where, optimizer)
        return
    old = Trained(row, where, optimizer)
    source, out = saved(old, tmp_path / "old.pt"), tmp_path / "new.pt"
    said = refusal(operation, situation, optimizer)
    if said is not None:
        with pytest.raises(PlanError) as refused:
            ckptmigrate.migrate(source, out, operations=(row.operation,))
        assert any(re.search(said, problem) for problem in refused.value.problems), refused.value.problems
        assert not out.exists()
        return
    ckptmigrate.migrate(source, out, operations=(row.operation,))
    found = torch.load(out, weights_only=True)
    wanted = Reference(old)

    assert same(found["model_state_dict"], wanted.model)
    assert list(found["model_state_dict"]) == list(wanted.net.state_dict())
    assert same(found["ema_state_dict"], wanted.ema)
    assert found["optimizer_state_dict"]["param_groups"] == wanted.held["param_groups"]
    assert same(found["optimizer_state_dict"]["state"], wanted.held["state"])
    assert same(
        stepped(wanted, found["model_state_dict"], found["optimizer_state_dict"]),
        stepped(wanted, wanted.model, wanted.held),
    )


# What the table stands on: the reference itself, which knows nothing of this package.

MEANT = [name for name, row in MATRICES.items() if row.body is not None and row.becomes is not None]
ELEMENTWISE = ["SGD", "Adam", "AMSGrad"]
COMMUTES = sorted(ALL - {"Add", "Tie", "Untie", "Cast", "Apply-refuse", "Apply-drop", "Apply-keep"})


@pytest.mark.parametrize("operation", [name for name in MEANT if name != "Tie"])
def test_the_new_model_computes_what_the_old_one_did(operation: str) -> None:
    old = Trained(MATRICES[operation], Situation(), "SGD")
    wanted = Reference(old)
    wanted.net.load_state_dict(wanted.model)
    x = torch.linspace(-1, 1, 15).reshape(5, 3)
    loose = 2e-2 if operation == "Cast" else 1e-6

    torch.testing.assert_close(wanted.net(x), old.net(x), rtol=loose, atol=loose)


@pytest.mark.parametrize("optimizer", ELEMENTWISE)
@pytest.mark.parametrize("operation", COMMUTES)
def test_a_step_after_the_change_is_the_change_after_the_step(operation: str, optimizer: str) -> None:
    row = MATRICES[operation]
    old = Trained(row, Situation(), optimizer)
    wanted = Reference(old)
    wanted.net.load_state_dict(wanted.model)
    new = optimizer_of(optimizer, old.grouped(wanted.net, wanted.group), named=False)
    new.load_state_dict(copy.deepcopy(wanted.held))
    old.backward(STEPS)
    gradients = row.mapped({n: p.grad for n, p in old.names() if p.grad is not None})
    for name, param in wanted.net.named_parameters():
        param.grad = gradients[name].clone()
    old.optimizer.step()
    new.step()

    assert same(dict(wanted.net.state_dict()), row.mapped(dict(old.net.state_dict())))


# Beside the table: what torch would take in silence, what counts for itself, what has two readings, and the way out.


def test_the_moments_of_a_layer_are_its_own_where_all_shapes_are_equal_and_torch_would_take_any(tmp_path: Path) -> None:
    """By their sources the parts would stand as a.weight, b.weight, a.bias, b.bias; torch declares and counts by modules."""
    old_names, new_names = ("both.weight", "both.bias"), ("a.weight", "a.bias", "b.weight", "b.bias")
    mapped = both(
        parted(old_names[0], new_names[::2], lambda w: w.chunk(2)),
        parted(old_names[1], new_names[1::2], lambda w: w.chunk(2)),
    )
    split = Split(r"both\.(weight|bias)", [r"a.\1", r"b.\1"])
    row = Row(split, dict.fromkeys(old_names, (8,)), dict.fromkeys(new_names, (4,)), mapped)
    old = Trained(row, Situation(), "Adam")
    ckptmigrate.migrate(saved(old, tmp_path / "old.pt"), tmp_path / "new.pt", operations=(split,))
    found = torch.load(tmp_path / "new.pt", weights_only=True)
    wanted = Reference(old)
    model, held = found["model_state_dict"], found["optimizer_state_dict"]
    by_source = copy.deepcopy(held)
    by_source["state"][3], by_source["state"][4] = held["state"][4], held["state"][3]
    right = stepped(wanted, wanted.model, wanted.held)

    assert list(model)[2:6] == list(new_names)
    assert same(stepped(wanted, model, held), right)
    assert not same(stepped(wanted, model, by_source), right)


def counters(held: Any) -> list[tuple[float, int]]:
    return [(float(state["step"]), state["step"].data_ptr()) for state in held["state"].values()]


@pytest.mark.parametrize("kind", ["Adam", "Adam-int"])
def test_every_entry_counts_its_steps_in_a_tensor_of_its_own_through_every_target(kind: str, tmp_path: Path) -> None:
    row = MATRICES["Split"]
    source = saved(Trained(row, Situation(), kind), tmp_path / "old.pt")
    ckptmigrate.migrate(source, tmp_path / "folder", operations=(row.operation,))
    ckptmigrate.migrate(tmp_path / "folder", tmp_path / "new.pt")
    found = counters(torch.load(tmp_path / "new.pt", weights_only=True)["optimizer_state_dict"])

    assert [step for step, _ in found] == [STEPS] * 7
    assert len({place for _, place in found}) == 7


def test_a_library_s_own_load_gets_a_counter_for_every_entry_too(tmp_path: Path) -> None:
    source = saved(Trained(MATRICES["Split"], Situation(), "Adam-int"), tmp_path / "old.pt")
    upgraded = ckptmigrate.upgrade(torch.load(source, weights_only=True))
    steps = counters(upgraded["optimizer_state_dict"])

    assert len({place for _, place in steps}) == len(steps) == 5


def test_a_buffer_joins_nothing_that_is_trained(tmp_path: Path) -> None:
    row = Row(Concat([r"stem\.bias", r"norm\.running_mean"], "both"), {"a.weight": (4, 4)}, {}, dict)
    source = saved(Trained(row, Situation(), "Adam"), tmp_path / "old.pt")
    with pytest.raises(PlanError, match=r"both: stem\.bias has an entry, and norm\.running_mean has none"):
        ckptmigrate.migrate(source, tmp_path / "new.pt", operations=(row.operation,))


def test_which_of_two_alike_was_frozen_is_not_guessed_and_a_list_of_names_tells(tmp_path: Path) -> None:
    row = MATRICES["Concat"]
    old = Trained(row, Situation(frozen=True), "Adam")
    source, out = saved(old, tmp_path / "old.pt"), tmp_path / "new.pt"
    names = [n for n, _ in old.names() if n != "q.weight"]
    turn = Transpose(r"k\.weight")
    with pytest.raises(PlanError, match=r"does not tell which of its 6 entries is whose.*--params FILE"):
        ckptmigrate.migrate(source, out, operations=(turn,))
    ckptmigrate.migrate(source, out, operations=(turn,), gather=GatherOptions(params=(tuple(names),)))
    found = torch.load(out, weights_only=True)["optimizer_state_dict"]["state"]

    assert torch.equal(found[2]["exp_avg"], old.state["k.weight"]["exp_avg"].T)
    assert torch.equal(found[3]["exp_avg"], old.state["v.weight"]["exp_avg"])


@pytest.mark.parametrize(
    ("operation", "situation", "optimizer"),
    [
        ("Transpose", "by position", "Adafactor"),
        ("Transpose", "by position", "LBFGS"),
        ("Concat", "first a step behind", "Adam"),
        ("Stack", "first without state", "SGD"),
        ("Concat", "first in another group", "Adam"),
        ("Apply-refuse", "by position", "AMSGrad"),
    ],
)
def test_to_drop_the_optimizers_is_the_way_out(operation: str, situation: str, optimizer: str, tmp_path: Path) -> None:
    old = Trained(MATRICES[operation], SITUATIONS[situation], optimizer)
    source, out = saved(old, tmp_path / "old.pt"), tmp_path / "new.pt"
    ckptmigrate.migrate(source, out, operations=(old.row.operation,), gather=GatherOptions(drop=("optimizers",)))
    found = torch.load(out, weights_only=True)

    assert same(found["model_state_dict"], Reference(old).model)
    assert "optimizer_state_dict" not in found
