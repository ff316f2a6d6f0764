"""The engine: problems, ids, ties and ledger, steps and their way back, and random chains against an oracle of numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate import engine
from ckptmigrate.migrator import Migrator
from ckptmigrate.operations import Drop, Rename

from .toys import (
    DECAY,
    FAMILY,
    TWO,
    Add,
    Concat,
    Split,
    Tie,
    Transpose,
    arrays,
    make,
    run,
    state,
)

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
        "toy 1.0: Transpose('a\\\\.b'): a.b: has 1 axes, not 2",
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


# Every source and target is accounted for.


def test_the_ledger_says_of_each_item_where_it_went() -> None:
    checkpoint = make(TWO, DECAY)
    operations = [
        Split(r"a\.w", ("p", "q"), (1, 3)),
        Rename(r"b\.(.*)", r"c.\1"),
        Transpose("p"),
        Add(r"a\.b", "new", (1,)),
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
        ("head", True),
        ("x", False),
    ]


def test_the_state_of_a_dropped_tied_name_goes_to_the_one_that_stays() -> None:
    checkpoint = tied()
    old = state(checkpoint)

    assert run(checkpoint, Drop("embed", "the head holds it")) == []
    assert state(checkpoint) == [("head", *old[0][1:]), old[1]]
    assert "goes to head" in checkpoint.ledger.notes[0]


def test_two_fills_of_one_value_are_not_tied() -> None:
    checkpoint = make(TWO)

    assert run(checkpoint, Add(r"a\.w", "s1", (2, 1)), Add(r"a\.w", "s2", (2, 1)), Transpose("s1")) == []


def test_a_tie_leaves_one_entry() -> None:
    checkpoint = make({"a": (2,), "b": (2,), "c": (1,)}, [["a", "b", "c"]])

    assert run(checkpoint, Tie("b", to="a")) == []
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
    run(checkpoint, Add(r"a\.b", "s"))
    run(without, Add(r"a\.b", "s"))

    assert checkpoint.model["s"].id == xxhash.xxh64(b"s").intdigest()
    assert without.model["s"].id is None


def test_a_new_id_that_another_tensor_has_is_refused() -> None:
    checkpoint = make(TWO, ids=True)
    identity = xxhash.xxh64(b"s").intdigest()
    checkpoint.model["b.b"] = replace(checkpoint.model["b.b"], id=identity)

    (problem,) = run(checkpoint, Add(r"a\.b", "s", (4,)))
    assert problem.endswith(f"s and b.b would both have the id {identity}")


def test_the_parts_of_a_split_have_ids_of_their_own() -> None:
    checkpoint = make(TWO, ids=True)

    assert run(checkpoint, Split(r"a\.b", ("x", "y"), (2, 2))) == []
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

    assert (
        problems[0]
        == "toy 1.0: needs heads, and the values have no number at config/n_head; set it with --set heads=VALUE"
    )


# A random chain over a random model, against an oracle that knows only arrays.

Oracle = list[tuple[str, np.ndarray[Any, Any]]]


def turned(model: Oracle, index: int, choice: str) -> tuple[Oracle, Any]:
    """Do one thing to a list of named arrays with numpy alone, and give the operation that should do the same."""
    name, value = model[index]
    rest = [n for n, _ in model]
    exact = name.replace(".", r"\.")
    if choice == "transpose" and value.ndim == 2:
        return [(n, v.T if n == name else v) for n, v in model], Transpose(exact)
    if choice == "split" and value.ndim and value.shape[0] >= 2:
        new = [(f"{name}.x", value[:1]), (f"{name}.y", value[1:])]
        return [*model[:index], *new, *model[index + 1 :]], Split(
            exact, (f"{name}.x", f"{name}.y"), (1, value.shape[0] - 1)
        )
    partner = next(
        (
            i
            for i, (n, v) in enumerate(model)
            if n != name and v.ndim and v.ndim == value.ndim and v.shape[1:] == value.shape[1:]
        ),
        None,
    )
    if choice == "concat" and partner is not None:
        other, second = model[partner]
        new_name = f"j{len(model)}{name}"
        whole = (new_name, np.concatenate([value, second]))
        first = min(index, partner)
        out = [
            whole if i == first else entry for i, entry in enumerate(model) if i == first or i not in (index, partner)
        ]
        return out, Concat((exact, other.replace(".", r"\.")), new_name)
    if choice == "drop" and len(model) > 1:
        return [*model[:index], *model[index + 1 :]], Drop(exact, "x")
    new_name = f"r{len(rest)}{name}"
    return [(new_name if n == name else n, v) for n, v in model], Rename(exact, new_name)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([(2, 3), (3, 3), (4,), (1,), (), (5, 3)]), min_size=1, max_size=6),
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from(["transpose", "split", "concat", "drop", "rename"])), max_size=6
    ),
)
def test_a_random_chain_does_to_tensors_twins_and_slots_what_numpy_does(
    shapes: list[tuple[int, ...]], choices: list[tuple[int, str]]
) -> None:
    names = {f"p{i}.w": shape for i, shape in enumerate(shapes)}
    checkpoint = make(names, [list(names)])
    first = checkpoint.optimizers[0].params

    def slot(which: str) -> Oracle:
        return [(str(p.name), p.slots[which].value.numpy()) for p in first if p.slots is not None]

    sets: list[Oracle] = [[(n, t.numpy()) for n, t in m.items()] for m in (checkpoint.model, checkpoint.twins["ema"])]
    sets += [slot("exp_avg"), slot("exp_avg_sq")]
    operations = []
    for index, choice in choices:
        at = index % len(sets[0])
        results = [turned(each, at, choice) for each in sets]
        sets = [result[0] for result in results]
        operations.append(results[0][1])

    assert run(checkpoint, *operations) == []
    model, twin, average, square = sets
    assert [(n, v.tolist()) for n, v in model] == list(arrays(checkpoint.model).items())
    assert [(n, v.tolist()) for n, v in twin] == list(arrays(checkpoint.twins["ema"]).items())
    expected = [
        (n, 0, {"step": 7, "exp_avg": v.tolist(), "exp_avg_sq": w.tolist()})
        for (n, v), (_, w) in zip(average, square, strict=True)
    ]
    assert state(checkpoint) == expected
