"""Stacks, lists, gates, shapes, ties and functions through the engine: model, twin, slots, modules and ledger."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckptmigrate import engine
from ckptmigrate.dtypes import F32
from ckptmigrate.files import Disk
from ckptmigrate.migrator import Migrator
from ckptmigrate.operations import Add, Apply, Reindex, Reorder, Reshape, Stack, Tie, Unstack, Untie
from ckptmigrate.tensor import View

from .toys import DECAY, FAMILY, TWO, arrays, make, run, state

if TYPE_CHECKING:
    from pathlib import Path

    from ckptmigrate.checkpoint import Checkpoint

EXPERTS = {"e.0.w": (2, 3), "e.1.w": (2, 3), "e.2.w": (2, 3), "n": (1,)}


def contents(checkpoint: Checkpoint) -> Any:
    return arrays(checkpoint.model), arrays(checkpoint.twins["ema"]), state(checkpoint)


def test_experts_are_stacked_with_their_moments_and_come_apart_again() -> None:
    checkpoint = make(EXPERTS, [list(EXPERTS)])
    before = contents(checkpoint)

    assert run(checkpoint, Stack((r"e\.\d+\.w",), "e.w")) == []
    assert checkpoint.model["e.w"].shape == (3, 2, 3)
    assert [(name, np.shape(slots["exp_avg"])) for name, _, slots in state(checkpoint)] == [
        ("e.w", (3, 2, 3)),
        ("n", (1,)),
    ]
    assert run(checkpoint, Unstack(r"e\.w", "e.{}.w")) == []
    assert contents(checkpoint) == before


def test_a_stack_that_lacks_a_member_is_a_problem_that_names_it() -> None:
    (problem,) = run(make({n: s for n, s in EXPERTS.items() if n != "e.1.w"}), Stack((r"e\.\d+\.w",), "e.w"))

    assert problem.endswith("e.w: missing of its group: 'e.1.w'")


def test_a_list_is_numbered_densely_and_everything_goes_by_the_new_numbers() -> None:
    checkpoint = make({"h.0.w": (1,), "h.2.w": (2,), "h.10.w": (3,)}, [["h.0.w", "h.2.w", "h.10.w"]])
    checkpoint.modules = {"h": {}, "h.0": {"version": 1}, "h.2": {"version": 2}, "h.10": {"version": 3}}
    before = state(checkpoint)
    step = Migrator("toy", "1.0", [Reindex(r"h\.(\d+)\..*")])

    assert engine.apply(checkpoint, step, FAMILY) == []
    assert list(checkpoint.model) == list(checkpoint.twins["ema"]) == ["h.0.w", "h.1.w", "h.2.w"]
    assert state(checkpoint) == [(f"h.{n}.w", *entry[1:]) for n, entry in enumerate(before)]
    assert checkpoint.modules == {"h": {}, "h.0": {"version": 1}, "h.1": {"version": 2}, "h.2": {"version": 3}}
    (problem,) = engine.apply(checkpoint, step, FAMILY, direction="down")
    assert "no way back: the numbers that were left out are not known, and no map= says them" in problem


def test_gates_are_reordered_with_their_moments_and_back() -> None:
    checkpoint = make(TWO, DECAY)
    before = contents(checkpoint)
    step = Migrator("toy", "1.0", [Reorder(r"a\..*", (1, 3, 0, 2))])

    assert engine.apply(checkpoint, step, FAMILY) == []
    assert checkpoint.model["a.w"].numpy().tolist() == [before[0]["a.w"][n] for n in (1, 3, 0, 2)]
    assert state(checkpoint)[2][2]["exp_avg"] == [before[2][2][2]["exp_avg"][n] for n in (1, 3, 0, 2)]
    assert engine.apply(checkpoint, step, FAMILY, direction="down") == []
    assert contents(checkpoint) == before


def test_a_nameless_optimizer_refuses_a_reorder_that_keeps_every_shape() -> None:
    (problem,) = run(make(TWO, DECAY, named=False), Reorder(r"a\.b", (1, 0)))

    assert "--params" in problem


def test_a_shape_names_numbers_and_the_way_down_has_them_from_the_history() -> None:
    checkpoint = make(TWO, DECAY)
    checkpoint.values["config"] = {"n_head": 2}
    step = Migrator("toy", "1.0", [Reshape(r"a\.w", ("heads", -1, 3))], needs={"heads": "config/n_head"})

    assert engine.apply(checkpoint, step, FAMILY) == []
    assert checkpoint.model["a.w"].shape == (2, 2, 3)
    assert np.shape(state(checkpoint)[0][2]["exp_avg"]) == (2, 2, 3)
    assert engine.numbers(checkpoint, step, {})[0] == {"heads": 2}


def test_a_kernel_that_is_no_1x1_convolution_is_refused_by_name_and_shape() -> None:
    shapes = {"p.w": (2, 3, 1, 1), "q.w": (2, 3, 3, 3)}

    assert run(make(shapes), Reshape(r".\.w", (2, 3), old=("*", "*", 1, 1))) == [
        "toy 1.0: Reshape('.\\\\.w', (2, 3), old=('*', '*', 1, 1)): q.w: has the shape [2, 3, 3, 3], expected ['*', '*', 1, 1]"
    ]


def test_an_untied_name_has_bytes_of_its_own_and_an_entry_where_the_model_has_it() -> None:
    checkpoint = make({"embed": (2, 2), "x": (1,), "head": (2, 2)}, [["embed", "x"]])
    checkpoint.model["head"] = checkpoint.model["embed"]

    assert run(checkpoint, Untie("head")) == []
    assert checkpoint.model["head"].numpy().tolist() == checkpoint.model["embed"].numpy().tolist()
    assert checkpoint.model["head"].promise != checkpoint.model["embed"].promise
    assert [(name, slots is None) for name, _, slots in state(checkpoint)] == [
        ("embed", False),
        ("x", False),
        ("head", True),
    ]


NORMED = {"c.weight_g": (2, 1), "c.weight_v": (2, 3), "c.bias": (2,)}
RUNS: list[int] = []


def fold(gain: Any, direction: Any) -> Any:
    RUNS.append(1)
    return gain * direction / np.linalg.norm(direction, axis=1, keepdims=True)


def fold_weight_norm(slots: Any = "refuse") -> Apply:
    return Apply([r"(.*)\.weight_g", r"(.*)\.weight_v"], {r"\1.weight": {"like": 1}}, fold, slots=slots)


def test_a_function_of_several_tensors_is_planned_without_drawing_and_drawn_once(tmp_path: Path) -> None:
    checkpoint = make(NORMED)
    gain, direction = (checkpoint.model[f"c.weight_{which}"].numpy() for which in "gv")
    (tmp_path / "raw").write_bytes(gain.tobytes() + direction.tobytes())
    with Disk() as disk:
        file = disk.open(tmp_path / "raw")
        for name, offset, shape in (("c.weight_g", 0, (2, 1)), ("c.weight_v", 8, (2, 3))):
            promise = View.rows(file.range(offset, 4 * prod(shape)), F32, shape)
            for members in (checkpoint.model, checkpoint.twins["ema"]):
                members[name] = members[name].with_promise(promise)

        RUNS.clear()
        assert run(checkpoint, fold_weight_norm()) == []
        assert RUNS == []
        assert list(checkpoint.model) == list(checkpoint.twins["ema"]) == ["c.weight", "c.bias"]
        expected = gain * direction / np.linalg.norm(direction, axis=1, keepdims=True)
        np.testing.assert_array_equal(checkpoint.model["c.weight"].numpy(), expected)
        assert RUNS == [1]


@pytest.mark.parametrize("slots", ["refuse", "drop"])
def test_state_that_a_function_cannot_carry_is_refused_or_dropped_as_the_operation_says(slots: Any) -> None:
    checkpoint = make(NORMED, [list(NORMED)])
    problems = run(checkpoint, fold_weight_norm(slots))

    if slots == "refuse":
        assert "exp_avg has the parameter's axes, and the operation does not say what becomes of it" in problems[0]
    else:
        assert problems == []
        assert [(name, slots is None) for name, _, slots in state(checkpoint)] == [
            ("c.weight", True),
            ("c.bias", False),
        ]
        rows = {row.source: row.what for row in checkpoint.ledger.rows()}
        assert rows["optimizers/0/1/exp_avg"] == rows["optimizers/0/1/step"] == "dropped"


def test_what_only_some_lack_is_added_to_those_and_the_others_are_counted() -> None:
    checkpoint = make({"a.mean": (2,), "a.count": (), "b.mean": (2,)})
    operation = Add(r"\1.count", near=r"(.*)\.mean", shape=[], dtype="I64", role="buffer", lacking=True)
    held = checkpoint.model["a.count"]

    assert run(checkpoint, operation) == []
    assert list(checkpoint.model) == list(checkpoint.twins["ema"]) == ["a.mean", "a.count", "b.mean", "b.count"]
    assert checkpoint.model["a.count"] is held
    assert checkpoint.ledger.notes == [f"toy 1.0: {operation.describe()}: 1 of 2 stood already as it would leave them"]
    assert run(checkpoint, operation) == []


def test_a_tie_leaves_both_names_at_their_places_and_the_entry_where_the_model_has_it_first() -> None:
    checkpoint = make({"a": (2,), "b": (1,), "c": (2,), "d": (1,)}, [["a", "b", "c", "d"]])
    kept = state(checkpoint)[2]

    assert run(checkpoint, Tie("c", "a")) == []
    assert list(checkpoint.model) == list(checkpoint.twins["ema"]) == ["a", "b", "c", "d"]
    assert checkpoint.model["a"].promise == checkpoint.model["c"].promise
    assert state(checkpoint)[0] == ("a", *kept[1:])
    assert [entry[0] for entry in state(checkpoint)] == ["a", "b", "d"]


def test_what_was_added_and_what_is_empty_has_no_bytes_that_two_names_could_share() -> None:
    checkpoint = make({"a": (0,), "b": (0,)})

    assert run(checkpoint, Tie("a", "b")) == [
        "toy 1.0: Tie('a', 'b'): a, b: has no bytes that two names could share: it was added, or is empty"
    ]
