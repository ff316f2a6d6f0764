"""The operations that come later find nothing to rebuild: stand-ins for them, through the engine as it is."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckptmigrate import engine
from ckptmigrate.dtypes import F32
from ckptmigrate.files import Disk
from ckptmigrate.migrator import Migrator
from ckptmigrate.tensor import View

from .toys import DECAY, FAMILY, TWO, arrays, make, run, state
from .toys_later import FoldWeightNorm, Reindex, Reorder, Reshape, Stack, Unstack, Untie

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
    assert "no way back: the numbers that were left out are not known" in problem


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
        "toy 1.0: Reshape('.\\\\.w', (2, 3), old=('*', '*', 1, 1)): q.w: has the shape [2, 3, 3, 3], not ['*', '*', 1, 1]"
    ]


def test_an_untied_name_has_bytes_of_its_own_and_an_entry_after_the_one_it_shared() -> None:
    checkpoint = make({"embed": (2, 2), "x": (1,), "head": (2, 2)}, [["embed", "x"]])
    checkpoint.model["head"] = checkpoint.model["embed"]

    assert run(checkpoint, Untie("head")) == []
    assert checkpoint.model["head"].numpy().tolist() == checkpoint.model["embed"].numpy().tolist()
    assert checkpoint.model["head"].promise != checkpoint.model["embed"].promise
    assert [(name, slots is None) for name, _, slots in state(checkpoint)] == [
        ("embed", False),
        ("head", True),
        ("x", False),
    ]


NORMED = {"c.weight_g": (2, 1), "c.weight_v": (2, 3), "c.bias": (2,)}


def test_a_function_of_several_tensors_is_planned_without_drawing_and_drawn_once(tmp_path: Path) -> None:
    checkpoint, fold = make(NORMED), FoldWeightNorm()
    gain, direction = (checkpoint.model[f"c.weight_{which}"].numpy() for which in "gv")
    (tmp_path / "raw").write_bytes(gain.tobytes() + direction.tobytes())
    with Disk() as disk:
        file = disk.open(tmp_path / "raw")
        for name, offset, shape in (("c.weight_g", 0, (2, 1)), ("c.weight_v", 8, (2, 3))):
            promise = View.rows(file.range(offset, 4 * prod(shape)), F32, shape)
            checkpoint.model[name] = checkpoint.model[name].with_promise(promise)

        assert run(checkpoint, fold) == []
        assert fold.drawn == []
        assert list(checkpoint.model) == list(checkpoint.twins["ema"]) == ["c.weight", "c.bias"]
        expected = gain * direction / np.linalg.norm(direction, axis=1, keepdims=True)
        np.testing.assert_array_equal(checkpoint.model["c.weight"].numpy(), expected)
        assert fold.drawn == [1]


@pytest.mark.parametrize("slots", ["refuse", "drop"])
def test_state_that_a_function_cannot_carry_is_refused_or_dropped_as_the_operation_says(slots: Any) -> None:
    checkpoint = make(NORMED, [list(NORMED)])
    problems = run(checkpoint, FoldWeightNorm(slots=slots))

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
