"""Optimizers and twins follow the model, or the operation is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckptmigrate.checkpoint import Checkpoint, Slot
from ckptmigrate.operations import Add, Concat, Drop, Order, Rename, Split, Transpose

from .toys import DECAY, TWO, arrays, make, run, state, tensor

# The model, its twins and the slots of its parameters.


def test_a_transpose_reaches_model_twin_and_the_slots_that_follow_and_no_scalar() -> None:
    checkpoint = make(TWO, DECAY)
    before = arrays(checkpoint.model), arrays(checkpoint.twins["ema"]), state(checkpoint)

    assert run(checkpoint, Transpose(r"a\.w")) == []
    for old, new in ((before[0], checkpoint.model), (before[1], checkpoint.twins["ema"])):
        expected = {**old, "a.w": np.array(old["a.w"]).T.tolist()}
        assert arrays(new) == expected
    slots = before[2][0][2]
    turned = {
        "step": 7,
        "exp_avg": np.array(slots["exp_avg"]).T.tolist(),
        "exp_avg_sq": np.array(slots["exp_avg_sq"]).T.tolist(),
    }
    assert state(checkpoint) == [("a.w", 0, turned), *before[2][1:]]


def test_the_parts_of_a_split_stand_side_by_side_in_their_group_each_with_the_scalars() -> None:
    checkpoint = make(TWO, DECAY)
    old = state(checkpoint)[0][2]

    assert run(checkpoint, Split(r"a\.(w|b)", (r"a1.\1", r"a2.\1"), sizes=(1, 3))) == []
    assert list(checkpoint.model) == ["a1.w", "a1.b", "a2.w", "a2.b", "b.w", "b.b"]
    assert list(checkpoint.twins["ema"]) == list(checkpoint.model)
    assert [entry[:2] for entry in state(checkpoint)] == [
        ("a1.w", 0),
        ("a2.w", 0),
        ("b.w", 0),
        ("a1.b", 1),
        ("a2.b", 1),
        ("b.b", 1),
    ]
    assert state(checkpoint)[1][2] == {"step": 7, "exp_avg": old["exp_avg"][1:], "exp_avg_sq": old["exp_avg_sq"][1:]}
    assert [group["lr"] for group in checkpoint.optimizers[0].groups] == [0.1, 0.2]


def test_what_is_joined_stands_at_the_place_of_its_first_part() -> None:
    checkpoint = make({"q": (1, 2), "x": (5,), "k": (2, 2)}, [["q", "x", "k"]])
    old = state(checkpoint)

    assert run(checkpoint, Concat(("k", "q"), "kq")) == []
    assert list(checkpoint.model) == ["kq", "x"]
    assert [entry[0] for entry in state(checkpoint)] == ["kq", "x"]
    assert state(checkpoint)[0][2]["exp_avg"] == old[2][2]["exp_avg"] + old[0][2]["exp_avg"]


def test_an_added_parameter_joins_the_group_of_its_neighbour_without_state() -> None:
    checkpoint = make(TWO, DECAY)

    assert run(checkpoint, Add("a.scale", r"a\.b")) == []
    assert list(checkpoint.model) == ["a.w", "a.b", "a.scale", "b.w", "b.b"]
    assert list(checkpoint.twins["ema"]) == list(checkpoint.model)
    assert [entry[:2] for entry in state(checkpoint)] == [
        ("a.w", 0),
        ("b.w", 0),
        ("a.b", 1),
        ("a.scale", 1),
        ("b.b", 1),
    ]
    assert state(checkpoint)[3][2] is None


def test_an_added_buffer_joins_nothing() -> None:
    checkpoint = make(TWO, DECAY)

    assert run(checkpoint, Add("a.count", r"a\.b", shape=[], dtype="I64", role="buffer")) == []
    assert "a.count" in checkpoint.twins["ema"]
    assert len(checkpoint.optimizers[0].params) == 4


def test_a_parameter_added_beside_a_buffer_joins_the_parameter_before_it() -> None:
    checkpoint = make({"a.w": (1,), "a.mean": (1,), "b.w": (1,)}, [["a.w"], ["b.w"]])

    run(checkpoint, Add("a.scale", r"a\.mean"))
    assert [entry[:2] for entry in state(checkpoint)] == [("a.w", 0), ("a.scale", 0), ("b.w", 1)]


def test_a_parameter_added_beside_a_frozen_one_joins_nothing_and_that_is_noted() -> None:
    checkpoint = make({"a": (1,), "b": (1,)}, [["b"]])

    run(checkpoint, Add("a2", "a"))
    assert [entry[0] for entry in state(checkpoint)] == ["b"]
    assert any("a2 joins no optimizer" in note for note in checkpoint.ledger.notes)


def test_a_rename_keeps_entry_state_and_place() -> None:
    checkpoint = make(TWO, DECAY)
    old = state(checkpoint)

    assert run(checkpoint, Rename(r"b\.(.*)", r"head.\1")) == []
    assert state(checkpoint) == [old[0], ("head.w", *old[1][1:]), old[2], ("head.b", *old[3][1:])]


def test_renames_that_swap_names_swap_entries_and_leave_places() -> None:
    checkpoint = make({"a": (1,), "b": (2,)}, [["a", "b"]])
    old = arrays(checkpoint.model), state(checkpoint)

    assert run(checkpoint, Rename({"a": "b", "b": "a"})) == []
    assert arrays(checkpoint.model) == {"b": old[0]["a"], "a": old[0]["b"]}
    assert list(checkpoint.model) == ["b", "a"]
    assert state(checkpoint) == [("b", *old[1][0][1:]), ("a", *old[1][1][1:])]


def test_a_dropped_parameter_takes_its_state_along_with_the_reason() -> None:
    checkpoint = make(TWO, DECAY)

    assert run(checkpoint, Drop(r"a\.b", reason="no bias since 2.0")) == []
    assert [entry[0] for entry in state(checkpoint)] == ["a.w", "b.w", "b.b"]
    rows = {row.source: row for row in checkpoint.ledger.rows()}
    assert (rows["model/a.b"].what, rows["model/a.b"].reason) == ("dropped", "no bias since 2.0")
    assert (rows["optimizers/0/2/exp_avg"].what, rows["optimizers/0/2/exp_avg"].reason) == (
        "dropped",
        "no bias since 2.0",
    )
    assert rows["optimizers/0/3/exp_avg"].targets == ("optimizers/0/2/exp_avg",)


def test_a_twin_that_holds_only_some_names_gets_what_concerns_them() -> None:
    checkpoint = make(TWO, DECAY)
    checkpoint.twins["ema"] = {"a.w": checkpoint.twins["ema"]["a.w"]}

    assert run(checkpoint, Rename(r"(.*)\.(w|b)", r"m.\1.\2")) == []
    assert list(checkpoint.twins["ema"]) == ["m.a.w"]


def test_a_twin_with_part_of_a_group_is_a_problem() -> None:
    checkpoint = make({"q": (1,), "k": (1,)})
    del checkpoint.twins["ema"]["k"]

    assert run(checkpoint, Concat(("q", "k"), "qk")) == [
        f"toy 1.0: {Concat(('q', 'k'), 'qk').describe()}: twin ema lacks k, which qk needs"
    ]


# What cannot follow is refused by name.


def join_problem(checkpoint: Checkpoint) -> str:
    (problem,) = run(checkpoint, Concat(("q", "k"), "qk"))
    assert problem.startswith("toy 1.0: Concat(")
    assert "optimizer 0: qk: " in problem
    return problem.rpartition("qk: ")[2]


def test_joining_demands_one_group() -> None:
    assert join_problem(make({"q": (1,), "k": (1,)}, [["q"], ["k"]])).startswith("the parts lie in groups 0, 1")


def test_joining_demands_state_in_all_or_none() -> None:
    shapes = {"q": (1,), "k": (1,)}

    assert "k has none yet" in join_problem(make(shapes, [["q", "k"]], stateless=["k"]))
    without = make(shapes, [["q", "k"]], stateless=["q", "k"])
    assert run(without, Concat(("q", "k"), "qk")) == []
    assert state(without) == [("qk", 0, None)]


def test_joining_demands_equal_scalars() -> None:
    assert join_problem(make({"q": (1,), "k": (1,)}, [["q", "k"]], step=ord)) == "step is not the same in all: 113, 107"


def test_equal_scalar_tensors_are_equal_though_they_lie_at_two_places() -> None:
    checkpoint = make({"q": (2,), "k": (2,)}, [["q", "k"]], step=lambda _: tensor(np.array(3.0, "f4")))

    assert run(checkpoint, Concat(("q", "k"), "qk")) == []
    assert state(checkpoint)[0][2]["step"] == 3.0


def test_joining_a_frozen_part_is_refused() -> None:
    assert join_problem(make({"q": (1,), "k": (1,)}, [["q"]])) == "q has an entry, and k has none"


def test_an_unknown_slot_of_the_parameters_shape_follows() -> None:
    checkpoint = make({"a": (2, 3)}, [["a"]])
    slots = checkpoint.optimizers[0].params[0].slots
    assert slots is not None
    slots["memory"] = Slot(tensor(np.arange(6, dtype="f4").reshape(2, 3)))

    assert run(checkpoint, Transpose("a")) == []
    assert state(checkpoint)[0][2]["memory"] == [[0, 3], [1, 4], [2, 5]]


def test_an_unknown_slot_whose_shape_is_another_is_refused() -> None:
    checkpoint = make({"a": (2, 3)}, [["a"]])
    slots = checkpoint.optimizers[0].params[0].slots
    assert slots is not None
    slots["row_var"] = Slot(tensor(np.zeros((2, 1), "f4")))

    (problem,) = run(checkpoint, Transpose("a"))
    assert "nothing tells whether row_var" in problem


def test_an_unknown_slot_of_one_element_beside_a_parameter_of_one_could_be_either_and_is_refused() -> None:
    checkpoint = make({"q": (1,), "k": (1,)}, [["q", "k"]])
    for param in checkpoint.optimizers[0].params:
        assert param.slots is not None
        param.slots["momentum"] = Slot(tensor(np.zeros(1, "f4")))

    (problem,) = run(checkpoint, Concat(("q", "k"), "qk"))
    assert "nothing tells whether momentum" in problem


def test_an_unknown_slot_may_stay_where_only_the_name_changes() -> None:
    checkpoint = make({"a": (2, 3)}, [["a"]])
    slots = checkpoint.optimizers[0].params[0].slots
    assert slots is not None
    slots["row_var"] = Slot(tensor(np.zeros((2, 1), "f4")))

    assert run(checkpoint, Rename("a", "b")) == []


def test_a_slot_without_a_value_has_none_after_either() -> None:
    checkpoint = make({"a": (2, 3)}, [["a"]])
    slots = checkpoint.optimizers[0].params[0].slots
    assert slots is not None
    slots["exp_avg"] = Slot(None)

    assert run(checkpoint, Split("a", ("x", "y"))) == []
    assert [entry[2]["exp_avg"] for entry in state(checkpoint)] == [None, None]


def test_state_laid_out_by_all_parameters_at_once_cannot_follow() -> None:
    checkpoint = make({"a": (2, 3), "b": (1,)}, [["a", "b"]])
    checkpoint.optimizers[0].shared["old_dirs"] = [tensor(np.zeros(7, "f4"))]

    assert run(checkpoint, Rename("a", "c")) == []
    (problem,) = run(checkpoint, Transpose("c"))
    assert "old_dirs" in problem


# Nameless optimizers.


def test_a_nameless_optimizer_passes_what_leaves_every_parameter_and_the_order_as_they_were() -> None:
    checkpoint = make(TWO, DECAY, named=False)
    old = state(checkpoint)

    assert (
        run(
            checkpoint,
            Rename({"a\\.(.*)": "b.\\1", "b\\.(.*)": "a.\\1"}),
            Add("a.count", r"a\.b", shape=[], dtype="I64", role="buffer"),
        )
        == []
    )
    assert state(checkpoint) == old


@pytest.mark.parametrize(
    "operation",
    [Transpose(r"a\.w"), Split(r"a\.b", ("x", "y")), Add("x", r"a\.b"), Drop(r"a\.b", "x"), Order([r"b\.w", r"a\.w"])],
)
def test_a_nameless_optimizer_refuses_everything_else_and_names_the_way_out(operation: Any) -> None:
    checkpoint = make({**TWO, "a.w": (3, 3)}, DECAY, named=False)

    problems = run(checkpoint, operation)
    assert len(problems) == 1
    assert "--params" in problems[0]
    assert "--drop optimizer" in problems[0]


def test_a_rename_that_makes_a_parameter_a_buffer_changes_what_a_nameless_optimizer_counts() -> None:
    assert run(make(TWO, DECAY, named=False), Rename(r"a\.b", "a.mean")) != []


# Order.


def test_an_order_moves_names_and_the_entries_of_each_group() -> None:
    checkpoint = make({"a": (1,), "b": (2,), "c": (3,), "d": (4,)}, [["a", "c"], ["b", "d"]])
    old = {entry[0]: entry for entry in state(checkpoint)}

    assert run(checkpoint, Order(("d", "c", "b", "a"))) == []
    assert list(checkpoint.model) == ["d", "c", "b", "a"]
    assert state(checkpoint) == [old["c"], old["a"], old["d"], old["b"]]


def test_a_group_that_was_not_in_the_models_order_keeps_its_own_and_that_is_a_warning() -> None:
    checkpoint = make({"a": (1,), "b": (2,), "c": (3,)}, [["b", "a", "c"]])

    assert run(checkpoint, Order(("c", "b", "a"))) == []
    assert [entry[0] for entry in state(checkpoint)] == ["b", "a", "c"]
    assert "keeps its own" in checkpoint.ledger.warnings[0]


def test_an_order_of_the_model_is_the_order_of_a_twin_that_holds_only_some_of_its_names() -> None:
    checkpoint = make({"a": (1,), "b": (2,), "c": (3,), "d": (4,)}, [["a", "b", "c", "d"]])
    del checkpoint.twins["ema"]["b"]

    assert run(checkpoint, Order(("d", "a"))) == []
    assert list(checkpoint.model) == ["d", "b", "c", "a"]
    assert list(checkpoint.twins["ema"]) == ["d", "c", "a"]
