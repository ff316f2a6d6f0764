"""Where targets stand: at their first source, and module by module where sources of one module stand side by side; entries alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ckptmigrate import engine
from ckptmigrate.migrator import Migrator
from ckptmigrate.operations import Apply, Order, Rename, Split, Unstack

from .toys import FAMILY, arrays, make, run, state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptmigrate.checkpoint import Checkpoint

PARTS = (r"\1q.\2", r"\1k.\2", r"\1v.\2")
FUSED = Split(r"(.*)qkv\.(weight|bias)", PARTS)
PACKED = Split(r"(.*)in_proj_(weight|bias)", PARTS)
EXPERTS = Unstack(r"(.*)experts\.(w\d)", r"\1experts.{}.\2")
LINEARS = Unstack(r"(.*)experts\.(w\d)", r"\1experts.{}.\2.weight")

CASES = [
    pytest.param(
        FUSED,
        {"a.weight": (2,), "qkv.weight": (3, 2), "qkv.bias": (3,), "z": (1,)},
        ["a.weight", "q.weight", "q.bias", "k.weight", "k.bias", "v.weight", "v.bias", "z"],
        id="a fused layer with a bias",
    ),
    pytest.param(
        FUSED,
        {"qkv.bias": (3,), "qkv.weight": (3, 2)},
        ["q.bias", "q.weight", "k.bias", "k.weight", "v.bias", "v.weight"],
        id="whichever comes first in the layer",
    ),
    pytest.param(
        PACKED,
        {"attn.in_proj_weight": (3, 2), "attn.in_proj_bias": (3,), "attn.out_proj.weight": (1, 1)},
        [f"attn.{n}.{w}" for n in "qkv" for w in ("weight", "bias")] + ["attn.out_proj.weight"],
        id="an attention of torch",
    ),
    pytest.param(
        EXPERTS,
        {"experts.w1": (2, 3), "experts.w2": (2, 4)},
        ["experts.0.w1", "experts.0.w2", "experts.1.w1", "experts.1.w2"],
        id="stacked experts",
    ),
    pytest.param(
        LINEARS,
        {"experts.w1": (2, 3), "experts.w2": (2, 4)},
        [f"experts.{n}.w{m}.weight" for n in (0, 1) for m in (1, 2)],
        id="stacked experts that become modules of modules",
    ),
    pytest.param(
        Split(r"(.*)\.w(\d?)", (r"\1.a\2", r"\1.b\2")),
        {"layers.0.w": (2,), "layers.1.w": (2,)},
        ["layers.0.a", "layers.0.b", "layers.1.a", "layers.1.b"],
        id="two modules",
    ),
    pytest.param(
        FUSED,
        {f"h.{n}.qkv.{w}": (3,) for n in (0, 1) for w in ("weight", "bias")},
        [f"h.{n}.{m}.{w}" for n in (0, 1) for m in "qkv" for w in ("weight", "bias")],
        id="two fused layers side by side",
    ),
    pytest.param(
        Split(r"m\.(w|b)", (r"m.late.\1", r"m.scale_\1")),
        {"m.w": (2,), "m.b": (2,)},
        ["m.late.w", "m.late.b", "m.scale_w", "m.scale_b"],
        id="what the module itself has stands together",
    ),
]


def contents(checkpoint: Checkpoint) -> Any:
    model, twin = arrays(checkpoint.model), arrays(checkpoint.twins["ema"])
    return list(model.items()), list(twin.items()), state(checkpoint)


def names(checkpoint: Checkpoint) -> list[list[str]]:
    return [list(checkpoint.model), list(checkpoint.twins["ema"]), [entry[0] for entry in state(checkpoint)]]


@pytest.mark.parametrize(("operation", "shapes", "expected"), CASES)
def test_model_twin_and_entries_stand_as_a_framework_walks_its_modules_and_the_way_back_restores_the_order(
    operation: Any, shapes: dict[str, tuple[int, ...]], expected: list[str]
) -> None:
    checkpoint = make(shapes, [list(shapes)])
    before = contents(checkpoint)
    step = Migrator("toy", "1.0", [operation])

    assert engine.apply(checkpoint, step, FAMILY) == []
    assert names(checkpoint) == [expected] * 3
    assert checkpoint.ledger.unexplained() == []
    assert engine.apply(checkpoint, step, FAMILY, direction="down") == []
    assert contents(checkpoint) == before


def test_moments_go_where_their_parameter_goes_though_all_shapes_are_equal() -> None:
    checkpoint = make({"qkv.weight": (3,), "qkv.bias": (3,)}, [["qkv.weight", "qkv.bias"]])
    weight, bias = (entry[2]["exp_avg"] for entry in state(checkpoint))

    assert run(checkpoint, FUSED) == []
    found = {name: slots["exp_avg"] for name, _, slots in state(checkpoint)}
    assert found == {
        **{f"{n}.weight": [weight[i]] for i, n in enumerate("qkv")},
        **{f"{n}.bias": [bias[i]] for i, n in enumerate("qkv")},
    }
    rows = {row.source: row.targets for row in checkpoint.ledger.rows()}
    assert rows["optimizers/0/1/exp_avg"] == tuple(f"optimizers/0/{n}/exp_avg" for n in (1, 3, 5))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([["qkv.weight"], ["qkv.bias"]], [["q.weight", "k.weight", "v.weight"], ["q.bias", "k.bias", "v.bias"]]),
        ([["qkv.bias"]], [["q.bias", "k.bias", "v.bias"]]),
        (
            [["z", "qkv.weight", "qkv.bias"]],
            [["z", "q.weight", "q.bias", "k.weight", "k.bias", "v.weight", "v.bias"]],
        ),
    ],
    ids=["two groups", "weight frozen", "behind what stands elsewhere in the model"],
)
def test_entries_follow_the_order_in_their_own_group(
    groups: Sequence[Sequence[str]], expected: list[list[str]]
) -> None:
    checkpoint = make({"qkv.weight": (3, 2), "qkv.bias": (3,), "z": (1,)}, groups)

    assert run(checkpoint, FUSED) == []
    entries = state(checkpoint)
    assert [[name for name, group, _ in entries if group == g] for g in range(len(groups))] == expected
    assert checkpoint.ledger.warnings == []


def test_a_group_that_has_weights_apart_from_biases_keeps_its_own_order_and_that_is_a_warning() -> None:
    checkpoint = make({"qkv.weight": (3, 2), "qkv.bias": (3,), "z": (1,)}, [["qkv.weight", "z", "qkv.bias"]])

    assert run(checkpoint, FUSED) == []
    assert names(checkpoint)[2] == ["q.weight", "k.weight", "v.weight", "z", "q.bias", "k.bias", "v.bias"]
    (warning,) = checkpoint.ledger.warnings
    assert "optimizer 0, group 0 was not in the order of the model and keeps its own" in warning


def test_anything_between_two_sources_keeps_them_apart_also_in_what_does_not_hold_it() -> None:
    shapes = {"m.w": (2,), "m.mean": (1,), "m.b": (2,)}
    checkpoint = make(shapes, [["m.w", "m.b"]])
    del checkpoint.twins["ema"]["m.mean"]

    assert run(checkpoint, Split(r"m\.([wb])", (r"x.\1", r"y.\1"))) == []
    assert names(checkpoint) == [
        ["x.w", "y.w", "m.mean", "x.b", "y.b"],
        ["x.w", "y.w", "x.b", "y.b"],
        ["x.w", "y.w", "x.b", "y.b"],
    ]


def test_a_twin_that_holds_only_some_of_the_sources_has_them_in_the_models_order() -> None:
    checkpoint = make({"qkv.weight": (3, 2), "qkv.scale": (3,), "qkv.bias": (3,)})
    del checkpoint.twins["ema"]["qkv.weight"]

    assert run(checkpoint, Split(r"qkv\.(.*)", (r"q.\1", r"k.\1", r"v.\1"))) == []
    assert list(checkpoint.twins["ema"]) == [f"{n}.{w}" for n in "qkv" for w in ("scale", "bias")]
    assert [name for name in checkpoint.model if name in checkpoint.twins["ema"]] == list(checkpoint.twins["ema"])


def test_renames_alone_leave_every_name_at_its_place() -> None:
    shapes = {"m.a": (1,), "m.b": (2,), "m.c": (3,)}
    checkpoint = make(shapes, [list(shapes)])

    assert run(checkpoint, Rename({r"m\.a": "x.a", r"m\.b": "y.b", r"m\.c": "x.c"})) == []
    assert names(checkpoint) == [["x.a", "y.b", "x.c"]] * 3


def test_two_operations_are_two_and_each_keeps_its_place() -> None:
    checkpoint = make({"qkv.weight": (3, 2), "qkv.bias": (3,)})

    assert (
        run(checkpoint, Split(r"qkv\.(weight)", ("q.w", "k.w", "v.w")), Split(r"qkv\.bias", ("q.b", "k.b", "v.b")))
        == []
    )
    assert list(checkpoint.model) == ["q.w", "k.w", "v.w", "q.b", "k.b", "v.b"]


RNN = {f"rnn.{w}_{n}": (2,) for w in ("weight", "bias") for n in ("ih", "hh")}
GATES = Split(r"rnn\.(weight|bias)_(ih|hh)", (r"rnn.\2_a.\1", r"rnn.\2_b.\1"))


@pytest.mark.parametrize("told", [False, True])
def test_of_layers_that_stood_one_between_the_parts_of_another_an_order_tells_the_way_back(told: bool) -> None:
    checkpoint = make(RNN, [list(RNN)])
    before = contents(checkpoint)
    names_of_old = [name.replace(".", r"\.") for name in RNN]
    order = [Order(names_of_old, names_of_old)] if told else []
    step = Migrator("toy", "1.0", [*order, GATES])

    assert engine.apply(checkpoint, step, FAMILY) == []
    assert (
        names(checkpoint) == [[f"rnn.{n}_{g}.{w}" for n in ("ih", "hh") for g in "ab" for w in ("weight", "bias")]] * 3
    )
    assert engine.apply(checkpoint, step, FAMILY, direction="down") == []
    assert (contents(checkpoint) == before) is told
    assert arrays(checkpoint.model) == dict(before[0])


def halves(weight: Any) -> tuple[Any, Any]:
    return weight[:1], weight[1:]


def test_a_function_that_makes_several_of_one_stands_by_the_same_rule() -> None:
    checkpoint = make({"m.w": (2,), "m.b": (2,)}, [["m.w", "m.b"]])
    cut = Apply([r"m\.([wb])"], {r"x.\1": {"shape": [1]}, r"y.\1": {"shape": [1]}}, halves, slots="follow")

    assert run(checkpoint, cut) == []
    assert names(checkpoint) == [["x.w", "x.b", "y.w", "y.b"]] * 3
