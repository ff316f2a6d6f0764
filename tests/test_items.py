"""Modules, slots, values and items: what lies beside the tensors of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckptmigrate.operations import Add, Cast, Drop, Move, Rename, Transpose

from .toys import (
    DECAY,
    TWO,
    make,
    run,
    state,
    tensor,
)

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Checkpoint

# Modules, and what in a state dict is no tensor.


def with_modules(*paths: str, shapes: Mapping[str, tuple[int, ...]] = TWO) -> Checkpoint:
    checkpoint = make(shapes)
    checkpoint.modules = {path: {"version": number} for number, path in enumerate(paths)}
    checkpoint.values["model"] = {f"{path}._extra_state": path for path in paths if path}
    for path in paths:
        checkpoint.ledger.source(f"modules/{path}/version")
        checkpoint.ledger.became(f"modules/{path}/version", f"modules/{path}/version")
    return checkpoint


def test_a_modules_entry_and_its_extra_state_move_with_its_prefix() -> None:
    checkpoint = with_modules("", "a", "b")
    run(checkpoint, Rename(r"a\.w", "x.a.w"), Rename(r"a\.b", "x.a.b"))

    assert checkpoint.modules == {"": {"version": 0}, "x.a": {"version": 1}, "b": {"version": 2}}
    assert checkpoint.values["model"] == {"x.a._extra_state": "a", "b._extra_state": "b"}
    rows = {row.source: row for row in checkpoint.ledger.rows()}
    assert rows["modules/a/version"].targets == ("modules/x.a/version",)
    assert rows["modules//version"].what == "kept"


def test_a_wrapper_that_goes_leaves_its_modules_entry_to_the_root() -> None:
    checkpoint = with_modules("", "module", "module.a", "module.relu", shapes={"module.a.w": (1,)})
    run(checkpoint, Rename(r"module\.(.*)", r"\1"))

    assert checkpoint.modules == {"": {"version": 1}, "a": {"version": 2}, "relu": {"version": 3}}


def test_a_module_whose_tensors_went_apart_is_left_out_with_the_reason() -> None:
    checkpoint = with_modules("a", "b")
    run(checkpoint, Rename(r"a\.w", "x.w"))

    assert checkpoint.modules == {"b": {"version": 1}}
    assert checkpoint.values["model"] == {"b._extra_state": "b"}
    assert {row.source: row.reason for row in checkpoint.ledger.rows()}["modules/a/version"] == (
        "its tensors were not moved by one replacement of the module's name"
    )


def test_a_module_whose_tensors_were_all_dropped_is_left_out_with_that_reason() -> None:
    checkpoint = with_modules("", "a", "aux", "aux.0", shapes={"a.w": (1,), "aux.0.w": (1,), "aux.0.b": (1,)})
    run(checkpoint, Drop(r"aux\..*", "no auxiliary head"), Rename(r"a\.(.*)", r"x.\1"))

    assert checkpoint.modules == {"": {"version": 0}, "x": {"version": 1}}
    rows = {row.source: row.reason for row in checkpoint.ledger.rows()}
    assert rows["modules/aux.0/version"] == rows["modules/aux/version"] == "all its tensors were dropped"


def test_modules_stay_where_no_name_moved() -> None:
    checkpoint = with_modules("", "a", "b")
    run(checkpoint, Transpose(r"a\.w"), Add("a.count", r"a\.b", shape=[], dtype="I64", role="buffer"))

    assert list(checkpoint.modules) == ["", "a", "b"]


# Slots, values, items.


def test_an_operation_on_slots_reaches_every_parameter_and_no_model_tensor() -> None:
    checkpoint = make(TWO, DECAY)

    assert run(checkpoint, Rename("exp_avg", "momentum", on="slots"), Cast("step", "F32", on="slots")) == []
    assert all(list(p.slots or {}) == ["step", "momentum", "exp_avg_sq"] for p in checkpoint.optimizers[0].params)
    assert [entry[2]["step"] for entry in state(checkpoint)] == [7.0] * 4
    rows = {row.source: row for row in checkpoint.ledger.rows()}
    assert rows["optimizers/0/2/exp_avg"].targets == ("optimizers/0/2/momentum",)
    assert rows["optimizers/0/2/step"].what == "derived"


def test_a_slot_pattern_must_match_somewhere() -> None:
    (problem,) = run(make(TWO, DECAY), Rename("nothing", "x", on="slots"))

    assert "no slot matches 'nothing'" in problem
    assert run(make(TWO, DECAY), Rename("nothing", "x", on="slots", optional=True)) == []


def with_values() -> Checkpoint:
    checkpoint = make(TWO, DECAY)
    checkpoint.values = {
        "config": {"loops": {"fit": {"n": 1}, "old": [1, 2, 3]}},
        "rng": {"cpu": tensor(np.zeros(3, "u1"))},
    }
    checkpoint.schedulers = [{"gamma": 0.1, "verbose": False}]
    checkpoint.progress.step = 9
    return checkpoint


def test_an_operation_on_values_moves_and_drops_nodes_of_any_size() -> None:
    checkpoint = with_values()
    operations = [
        Drop("schedulers/\\d+/verbose", "gone since 2.7", on="values"),
        Rename(r"values/config/loops/(.*)", r"values/config/\1", on="values"),
        Drop(r"values/config/old/1", "x", on="values"),
        Rename(r"optimizers/0/groups/(\d+)/lr", r"optimizers/0/groups/\1/initial_lr", on="values"),
    ]

    assert run(checkpoint, *operations) == []
    assert checkpoint.values["config"] == {"loops": {}, "fit": {"n": 1}, "old": [1, 3]}
    assert checkpoint.schedulers == [{"gamma": 0.1}]
    assert [list(group) for group in checkpoint.optimizers[0].groups] == [["initial_lr"], ["initial_lr"]]


def test_only_an_operation_on_items_crosses_sections() -> None:
    checkpoint = with_values()
    assert run(checkpoint, Move(r"values/rng/cpu", "model/rng"), Move("progress/step", "values/steps")) == []

    assert checkpoint.model["rng"].shape == (3,)
    assert checkpoint.progress.step is None
    assert checkpoint.values["steps"] == 9


def test_a_parameter_that_leaves_the_model_takes_its_entry_along() -> None:
    checkpoint = make(TWO, DECAY)

    assert run(checkpoint, Move(r"model/a\.b", "values/bias")) == []
    assert "a.b" not in checkpoint.model
    assert "a.b" not in checkpoint.twins["ema"]
    assert [entry[0] for entry in state(checkpoint)] == ["a.w", "b.w", "b.b"]
    assert {row.source: row for row in checkpoint.ledger.rows()}["model/a.b"].targets == ("values/bias",)


@pytest.mark.parametrize("target", ["nowhere/x", "values", "model/", "progress/odd", "schedulers/7/x"])
def test_an_item_that_cannot_be_put_is_a_problem(target: str) -> None:
    assert len(run(with_values(), Move(r"values/rng/cpu", target))) == 1


def test_a_tensor_that_moves_within_the_model_keeps_its_place_there() -> None:
    checkpoint = make(TWO, DECAY)

    assert run(checkpoint, Move(r"model/a\.w", "model/z.w")) == []
    assert list(checkpoint.model) == ["z.w", "a.b", "b.w", "b.b"]
    assert [entry[0] for entry in state(checkpoint)] == ["z.w", "b.w", "a.b", "b.b"]
