"""The engine: problems, ids, ties and ledger, steps and their way back, and random chains against an oracle of numpy."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xxhash

from ckptmigrate import engine
from ckptmigrate.migrator import Migrator
from ckptmigrate.operations import (
    Add,
    Cast,
    Concat,
    Drop,
    Order,
    Reindex,
    Rename,
    Reorder,
    Reshape,
    Split,
    Stack,
    Tie,
    Transpose,
    Unstack,
    Untie,
)

from .toys import DECAY, FAMILY, TWO, arrays, make, run, state

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Checkpoint

# Problems, all of them at once.


def test_every_problem_names_origin_operation_and_tensor_and_the_rest_goes_on() -> None:
    checkpoint = make(TWO, DECAY)
    operations = [Rename("nothing", "x"), Rename(r"a\.w", "b.w"), Transpose(r"a\.b"), Rename(r"b\.b", "c")]

    problems = run(checkpoint, *operations)
    assert problems == [
        "toy 1.0: Rename('nothing', 'x'): nothing matches 'nothing'",
        "toy 1.0: Rename('a\\\\.w', 'b.w'): a.w: b.w exists already",
        "toy 1.0: Transpose('a\\\\.b'): a.b: has the shape [4], expected 2 axes",
    ]
    assert list(checkpoint.model) == ["a.w", "a.b", "b.w", "c"]


def test_two_sources_to_one_name_are_a_problem_that_names_both() -> None:
    (problem,) = run(make(TWO), Rename(r"[ab]\.w", "w"))

    assert problem.endswith("a.w and b.w would both become w")


def test_a_chain_of_renames_onto_a_name_that_stays_is_refused_as_a_whole() -> None:
    checkpoint = make({"a": (1,), "b": (1,), "c": (1,)})

    assert len(run(checkpoint, Rename({"a": "b", "b": "c"}))) == 2
    assert list(checkpoint.model) == ["a", "b", "c"]


def test_a_missing_member_is_a_problem_even_of_an_optional_operation() -> None:
    checkpoint = make({"h.0.q": (1,), "h.0.k": (1,), "h.1.q": (1,)})

    (problem,) = run(checkpoint, Concat((r"(.*)\.q", r"(.*)\.k"), r"\1.qk", optional=True))
    assert "h.1.qk: missing of its group" in problem
    assert list(checkpoint.model) == ["h.0.qk", "h.1.q"]


def test_optional_excuses_a_pattern_that_matches_nothing() -> None:
    assert (
        run(make(TWO), Rename("x", "y", optional=True), Drop("x", "y", optional=True), Transpose("x", optional=True))
        == []
    )


def test_a_name_that_would_be_empty_is_a_problem() -> None:
    (problem,) = run(make({"module": (1,), "module.a": (1,)}), Rename(r"module\.?(.*)", r"\1"))

    assert problem.endswith("module: would have no name")


def calls(size: int, operation: Any) -> int:
    """Count what the interpreter calls while an operation is applied to a model of ``size`` modules with all that goes by its names."""
    names = {f"layers.{n // 10}.m.{n % 10}.weight": (2,) for n in range(size)}
    checkpoint = make(names, [list(names)], ids=True)
    checkpoint.modules = {name.removesuffix(".weight"): {"version": 1} for name in names}
    checkpoint.values["model"] = {f"{path}._extra_state": {"n": 1} for path in checkpoint.modules}
    for path in checkpoint.modules:
        for item in (f"modules/{path}/version", f"values/model/{path}._extra_state/n"):
            checkpoint.ledger.source(item)
            checkpoint.ledger.became(item, item)
    count = 0

    def counted(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(counted)
    try:
        assert run(checkpoint, operation) == []
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "operation",
    [
        Rename(r"layers\.(.*)", r"blocks.\1"),
        Rename(r"layers\.(\d*[02468])\.(.*)", r"blocks.\1.\2"),
        Drop(r"layers\.\d+\.m\.3\..*", "x"),
        Transpose(".*", (0,)),
        Split(r"(.*)\.weight", (r"\1.a", r"\1.b")),
        Concat((r"(layers\.\d+)\.m\.\d+\.weight",), r"\1.all"),
        Add(r"\1.bias", r"(.*)\.weight"),
        Add(r"\1.bias", r"(.*)\.weight", lacking=True),
        Order([r".*[02468]\.weight", r".*\.weight"]),
        Reindex(r".*\.m\.(?P<n>\d+)\..*", map={n: 9 - n for n in range(10)}),
        Reshape(".*", (2, 1)),
        Reorder(".*", (1, 0)),
        Stack((r"(layers\.\d+)\.m\.\d+\.weight",), r"\1.all"),
        Unstack(r"(.*)\.weight", r"\1.{}"),
        Cast(".*", "BF16"),
        Tie(r"(layers\.\d+)\.m\.0\.weight", r"\1.again", adds=True),
        Untie(r".*\.3\.weight"),
        Rename("exp_avg", "momentum", on="slots"),
        Drop(r"values/model/.*", "x", on="values"),
    ],
    ids=lambda operation: operation.describe(),
)
def test_the_work_grows_with_the_names_and_not_with_their_square(operation: Any) -> None:
    assert calls(400, operation) < 6 * calls(100, operation)


# Every source and target is accounted for.


def test_the_ledger_says_of_each_item_where_it_went() -> None:
    checkpoint = make(TWO, DECAY)
    operations = [
        Split(r"a\.w", ("p", "q"), sizes=(1, 3)),
        Rename(r"b\.(.*)", r"c.\1"),
        Transpose("p"),
        Add("new", r"a\.b", shape=[1]),
    ]
    assert run(checkpoint, *operations) == []
    rows = {row.source: row for row in checkpoint.ledger.rows()}

    assert (rows["model/a.w"].what, rows["model/a.w"].targets) == ("derived", ("model/p", "model/q"))
    assert (rows["model/b.w"].what, rows["model/b.w"].targets) == ("renamed", ("model/c.w",))
    assert rows["model/a.b"].what == "kept"
    assert rows["twins/ema/a.w"].targets == ("twins/ema/p", "twins/ema/q")
    assert rows["optimizers/0/0/exp_avg"].targets == ("optimizers/0/0/exp_avg", "optimizers/0/1/exp_avg")
    assert rows["optimizers/0/0/exp_avg"].what == "derived"
    assert (rows["optimizers/0/0/step"].what, rows["optimizers/0/0/step"].targets) == (
        "kept",
        ("optimizers/0/0/step", "optimizers/0/1/step"),
    )
    assert rows["optimizers/0/3/exp_avg"].targets == ("optimizers/0/5/exp_avg",)
    assert rows["optimizers/0/groups/1/lr"].what == "kept"
    assert "Add(" in checkpoint.ledger.added["model/new"]
    standing = {item for item in checkpoint.ledger.came_from() if item.startswith(("model/", "optimizers/0/"))}
    there = {f"model/{n}" for n in checkpoint.model}
    there |= {f"optimizers/0/{i}/{s}" for i, p in enumerate(checkpoint.optimizers[0].params) for s in p.slots or {}}
    assert standing == there | {"optimizers/0/groups/0/lr", "optimizers/0/groups/1/lr"}


def test_a_swap_is_a_swap_in_the_ledger_too() -> None:
    checkpoint = make({"a": (1,), "b": (1,)})
    run(checkpoint, Rename({"a": "b", "b": "a"}))
    rows = {row.source: row.targets for row in checkpoint.ledger.rows()}

    assert rows["model/a"] == ("model/b",)
    assert rows["model/b"] == ("model/a",)


# Ties and ids.


def tied() -> Checkpoint:
    checkpoint = make({"embed": (3, 2), "x": (2,), "head": (3, 2)}, [["embed", "x"]])
    for members in (checkpoint.model, checkpoint.twins["ema"]):
        members["head"] = members["embed"]
    return checkpoint


def test_changing_one_of_two_tied_names_is_a_problem_that_names_both() -> None:
    (problem,) = run(tied(), Transpose("head"))

    assert "head and embed are tied" in problem


def test_changing_both_tied_names_alike_keeps_them_tied_and_their_state_follows_once() -> None:
    checkpoint = tied()
    old = state(checkpoint)

    assert run(checkpoint, Transpose("embed|head")) == []
    assert checkpoint.model["embed"].promise == checkpoint.model["head"].promise
    assert state(checkpoint)[0][2]["exp_avg"] == np.array(old[0][2]["exp_avg"]).T.tolist()
    assert len(state(checkpoint)) == 2


def test_ties_may_be_duplicated_and_the_new_parameter_starts_without_state() -> None:
    checkpoint = tied()

    assert run(checkpoint, Transpose("head"), ties="duplicate") == []
    assert [(name, slots is None) for name, _, slots in state(checkpoint)] == [
        ("embed", False),
        ("x", False),
        ("head", True),
    ]


def test_the_state_of_a_dropped_tied_name_goes_to_the_one_that_stays() -> None:
    checkpoint = tied()
    old = state(checkpoint)

    assert run(checkpoint, Drop("embed", "the head holds it")) == []
    assert state(checkpoint) == [old[1], ("head", *old[0][1:])]
    assert "goes to head" in checkpoint.ledger.notes[0]


def test_two_fills_of_one_value_are_not_tied() -> None:
    checkpoint = make(TWO)

    assert run(checkpoint, Add("s1", r"a\.w", shape=[2, 1]), Add("s2", r"a\.w", shape=[2, 1]), Transpose("s1")) == []


def test_a_tie_leaves_one_entry() -> None:
    checkpoint = make({"a": (2,), "b": (2,), "c": (1,)}, [["a", "b", "c"]])

    assert run(checkpoint, Tie("a", "b")) == []
    assert checkpoint.model["a"].promise == checkpoint.model["b"].promise
    assert [entry[0] for entry in state(checkpoint)] == ["a", "c"]
    assert {row.source: row.what for row in checkpoint.ledger.rows()}["optimizers/0/1/exp_avg"] == "dropped"


def test_a_rename_and_a_transpose_keep_a_tensors_id_and_its_entrys_key() -> None:
    checkpoint = make(TWO, DECAY, ids=True)

    assert run(checkpoint, Rename(r"a\.w", "w"), Transpose("w")) == []
    assert checkpoint.model["w"].id == 1000
    assert checkpoint.optimizers[0].params[0].key == 1000


def test_a_joined_tensors_id_is_the_hash_of_its_sources_ids_and_its_name_and_so_is_its_entrys_key() -> None:
    checkpoint = make({"q": (1,), "k": (1,)}, [["q", "k"]], ids=True)
    expected = xxhash.xxh64(b"1000\x001001\x00qk\x00").intdigest()

    assert run(checkpoint, Concat(("q", "k"), "qk")) == []
    assert checkpoint.model["qk"].id == expected
    assert checkpoint.optimizers[0].params[0].key == expected


def test_an_added_tensors_id_is_the_hash_of_its_name_where_the_model_has_ids() -> None:
    checkpoint, without = make(TWO, ids=True), make(TWO)
    run(checkpoint, Add("s", r"a\.b"))
    run(without, Add("s", r"a\.b"))

    assert checkpoint.model["s"].id == xxhash.xxh64(b"s").intdigest()
    assert without.model["s"].id is None


def test_a_new_id_that_another_tensor_has_is_refused() -> None:
    checkpoint = make(TWO, ids=True)
    identity = xxhash.xxh64(b"s").intdigest()
    checkpoint.model["b.b"] = replace(checkpoint.model["b.b"], id=identity)

    (problem,) = run(checkpoint, Add("s", r"a\.b"))
    assert problem.endswith(f"s and b.b would both have the id {identity}")


def test_the_parts_of_a_split_have_ids_of_their_own() -> None:
    checkpoint = make(TWO, ids=True)

    assert run(checkpoint, Split(r"a\.b", ("x", "y"))) == []
    assert checkpoint.model["x"].id == xxhash.xxh64(b"1001\x00x\x00").intdigest()
    assert checkpoint.model["y"].id == xxhash.xxh64(b"1001\x00y\x00").intdigest()


def test_an_entry_called_by_its_name_is_called_by_the_new_one() -> None:
    checkpoint = make(TWO, DECAY)
    for param in checkpoint.optimizers[0].params:
        param.key = param.name

    run(checkpoint, Rename(r"a\.(.*)", r"z.\1"))
    assert [param.key for param in checkpoint.optimizers[0].params] == ["z.w", "b.w", "z.b", "b.b"]


# Steps, numbers, the way back.


def test_a_step_applied_and_taken_back_is_identity() -> None:
    step = Migrator("toy", "1.0", [Rename(r"a\.w", "x"), Transpose("x"), Rename({"x": r"y", r"a\.b": "z"})])
    checkpoint = make(TWO, DECAY, ids=True)
    before = (
        arrays(checkpoint.model),
        arrays(checkpoint.twins["ema"]),
        state(checkpoint),
        [t.id for t in checkpoint.model.values()],
    )

    assert engine.apply(checkpoint, step, FAMILY) == []
    assert list(checkpoint.model) == ["y", "z", "b.w", "b.b"]
    assert engine.apply(checkpoint, step, FAMILY, direction="down") == []
    assert (
        arrays(checkpoint.model),
        arrays(checkpoint.twins["ema"]),
        state(checkpoint),
        [t.id for t in checkpoint.model.values()],
    ) == before


def test_a_step_without_a_way_back_is_refused_with_the_reason() -> None:
    step = Migrator("toy", "1.0", [Drop("x", "the reason")])

    assert engine.apply(make(TWO), step, FAMILY, direction="down") == [
        "toy 1.0: Drop('x', 'the reason'): no way back: what was dropped is gone (the reason)"
    ]


HEADS = Migrator("toy", "1.0", [Split(r"a\.w", ("q", "k"), sizes=("heads", 3))], needs={"heads": "config/n_head"})


def test_a_number_that_tensors_do_not_carry_comes_from_the_values() -> None:
    checkpoint = make(TWO)
    checkpoint.values["config"] = {"n_head": 1}

    assert engine.apply(checkpoint, HEADS, FAMILY) == []
    assert checkpoint.model["k"].shape == (3, 3)


def test_what_the_caller_sets_comes_before_the_values() -> None:
    checkpoint = make({"a.w": (5, 1)})
    checkpoint.values["config"] = {"n_head": 1}

    assert engine.apply(checkpoint, HEADS, FAMILY, parameters={"heads": 2, "other": 1}) == []
    assert engine.numbers(checkpoint, HEADS, {"heads": 2, "other": 1}) == ({"heads": 2}, [])


def test_a_number_that_nobody_gives_is_a_problem() -> None:
    problems = engine.apply(make(TWO), HEADS, FAMILY)

    assert problems == [
        "toy 1.0: needs heads, and the values have no number at config/n_head; set it with --set heads=VALUE"
    ]
