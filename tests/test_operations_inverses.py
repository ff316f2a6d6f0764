"""An operation and its inverse are identity for values, order, slots, twins and bystanders; where there is none, it says why."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate import engine
from ckptmigrate.migrator import Migrator
from ckptmigrate.operations import (
    Add,
    Apply,
    Cast,
    Concat,
    Drop,
    Move,
    Operation,
    Order,
    Reason,
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

from .toys import FAMILY, arrays, make, state

SHAPES = {
    "h.0.attn.qkv.weight": (12, 3),
    "h.0.attn.qkv.bias": (12,),
    "h.0.experts.0.w": (2, 4),
    "h.0.experts.1.w": (2, 4),
    "h.0.pair": (2, 3),
    "h.0.conv.weight": (4, 3, 1, 1),
    "h.0.gate": (5, 2),
    "h.0.up": (5, 2),
    "h.0.down": (1, 2),
    "h.1.attn.qkv.weight": (24, 3),
    "h.1.attn.qkv.bias": (24,),
    "h.1.pair": (2, 5),
    "bystander": (3, 2),
}


def back(x: Any) -> Any:
    return x / 2


def there(x: Any) -> Any:
    return x * 2


WITH_INVERSE: list[Operation] = [
    Rename({r"h\.0\.gate": "up", "bystander": "h.0.gate"}),
    Rename(r"h\.(\d)\.(.*)", r"layers.\1.\2", back=(r"layers\.(\d)\.(.*)", r"h.\1.\2")),
    Order([r"h\.1\..*", r"h\.0\..*"], back=[r"h\.0\..*", r"h\.1\..*"]),
    Order(["bystander", r".*\.bias"], back=[r"h\.0\..*bias", r"h\.1\..*bias", "bystander"]),
    Reindex(r"h\.(\d)\..*", map={0: 4, 1: 0}),
    Reindex(r"h\.0\.experts\.(?P<n>\d)\.w", map={0: 1, 1: 0}),
    Transpose(r".*qkv\.weight"),
    Transpose(r".*conv\.weight", (2, 0, 3, 1)),
    Reorder(r".*qkv\..*", (1, 2, 0)),
    Reorder(r".*\.weight", (2, 0, 1), axis=1),
    Reorder(r".*qkv\..*", (1, 0), within=3),
    Reorder(r".*qkv\..*", fold=(2, -1, 3), axes=(2, 0, 1)),
    Reshape(r".*conv\.weight", ("*", "*"), old=("*", "*", 1, 1)),
    Reshape(r".*conv\.weight", (2, -1, "*1"), old=("*", "*", 1, 1)),
    Reshape(r"h\..\.pair", (-1,), old=(2, "*")),
    Split(r"(.*)\.qkv\.(weight|bias)", [r"\1.q.\2", r"\1.k.\2", r"\1.v.\2"]),
    Split(r"h\.(\d)\.attn\.qkv\.(weight|bias)", [r"\2.q.\1", r"k.\1.\2"], shares=(5, 1)),
    Split(r"(.*)\.pair", [r"\1.a", r"\1.b"], 1, sizes=(-1, 1)),
    Concat([r"(.*)\.gate", r"(.*)\.up", r"(.*)\.down"], r"\1.all", sizes=(5, 5, 1)),
    Concat([r"(.*)\.gate", r"(.*)\.up"], r"\1.both", 1, shares=(1, 1)),
    Stack(r"(.*)\.experts\.(\d+)\.w", r"\1.experts.w", 1),
    Stack([r"(.*)\.gate", r"(.*)\.up"], r"\1.both", -1),
    Unstack(r"(.*)\.pair", r"\1.{}.part"),
    Unstack(r"(.*)\.pair", [r"\1.first", r"\1.second"]),
    Add(r"\1.qkv.scale", near=r"(.*)\.qkv\.weight", shape=["*"], fill=1),
    Add("new", shape=[2], dtype="F32"),
    Cast(r".*\.weight", "F64", old="F32"),
    Cast("step", "F32", old="int", on="slots"),
    Rename("exp_avg", "momentum", on="slots"),
    Tie(r"h\.0\.gate", "h.0.again", adds=True),
    Move(r"model/bystander", "values/bystander"),
    Apply([".*"], [r"\g<0>"], there, slots="follow", back=Apply([".*"], [r"\g<0>"], back, slots="follow")),
]


def contents(checkpoint: Any) -> Any:
    return (
        list(arrays(checkpoint.model).items()),
        list(arrays(checkpoint.twins["ema"]).items()),
        [tensor.dtype for tensor in checkpoint.model.values()],
        repr(state(checkpoint)),  # 7 is not 7.0
    )


def parameters(operation: Operation) -> list[str]:
    """Give the names that Adam has state of: all, but what an operation cannot carry back."""
    return [name for name in SHAPES if not (isinstance(operation, Move) and name == "bystander")]


@pytest.mark.parametrize("operation", WITH_INVERSE, ids=lambda operation: operation.describe())
def test_up_and_down_is_identity(operation: Operation) -> None:
    checkpoint = make(SHAPES, [parameters(operation)], ids=True)
    if isinstance(operation, Move):  # the twin of a tensor that leaves the model stays behind, and is dropped
        del checkpoint.twins["ema"]["bystander"]
    before = contents(checkpoint)
    ids = {name: tensor.id for name, tensor in checkpoint.model.items()}
    step = Migrator("toy", "1.0", [operation])

    assert engine.apply(checkpoint, step, FAMILY) == []
    assert contents(checkpoint) != before
    assert engine.apply(checkpoint, step, FAMILY, direction="down") == []
    after = contents(checkpoint)
    if isinstance(operation, Move):  # it comes back at the end
        assert sorted(after[0]) == sorted(before[0])
    else:
        assert after == before
    if operation.traits.keeps_id:
        assert {name: tensor.id for name, tensor in checkpoint.model.items()} == ids
    else:
        touched = {name for group in operation.match(checkpoint.model) for name in group.sources}
        for name in ids.keys() - touched:
            assert checkpoint.model[name].id == ids[name]


def twice(operation: Operation) -> Operation | Reason:
    inverse = operation.inverse()
    assert not isinstance(inverse, Reason)
    return inverse.inverse()


@pytest.mark.parametrize(
    "operation",
    [operation for operation in WITH_INVERSE if not isinstance(twice(operation), Reason)],
    ids=lambda operation: operation.describe(),
)
def test_the_inverse_of_an_inverse_does_what_the_operation_does(operation: Operation) -> None:
    again = twice(operation)
    assert not isinstance(again, Reason)
    one, other = (make(SHAPES, [parameters(operation)]) for _ in range(2))
    for checkpoint in (one, other) if isinstance(operation, Move) else ():
        del checkpoint.twins["ema"]["bystander"]

    assert engine.apply_operations(one, [operation], FAMILY, origin="x") == []
    assert engine.apply_operations(other, [again], FAMILY, origin="x") == []
    assert contents(one) == contents(other)


def test_a_tie_is_untied_again_and_the_other_way_round() -> None:
    assert Tie(r"(.*)embed\.w", r"\1head.w").inverse() == Untie(r"(.*)head\.w", r"\1embed.w")
    assert Untie(r"head\.w", of="embed.w").inverse() == Tie(r"embed\.w", "head.w")


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (Rename(r"a\.(.*)", r"b.\1"), "no back= says"),
        (Drop("a", "retired"), "what was dropped is gone"),
        (Order(["a"]), "no back= says it"),
        (Reindex(r"h\.(\d)"), "no map= says them"),
        (Move(r"model/(\w)\w", r"values/\1"), "no back= does"),
        (Reshape("w", (-1,)), "no old= says"),
        (Reshape("w", (-1,), old=("*", "*")), "more than one axis"),
        (Split(r"(.*)\.(q|k)", [r"\1.a", r"\1.b"]), "do not tell what"),
        (Concat(["a", "b"], "c"), "no sizes= or shares="),
        (Concat([r"(.*)\.a", r".*\.b"], "c", shares=(1, 1)), "does not tell what"),
        (Stack([r"e\.\d+"], "e"), r"stands as (\d+)"),
        (Unstack(r".*\.e", "e.{}"), "do not tell what"),
        (Add("b", near="a", lacking=True), "which of the names were there"),
        (Add(r"\1.b", near=r"(.*)\.[wv]"), "cannot be told from others"),
        (Cast("a", "F32"), "no old= says"),
        (Untie("a"), "no of= says"),
        (Tie(r".*\.a", "b"), "does not tell what"),
        (Apply(["a"], ["b"], there), "no back= undoes there"),
    ],
    ids=lambda value: value.describe() if hasattr(value, "describe") else "",
)
def test_what_has_no_way_back_says_why(operation: Operation, why: str) -> None:
    reason = operation.inverse()

    assert isinstance(reason, Reason)
    assert why in reason.text


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_cut_is_joined_again(data: st.DataObject) -> None:
    names = data.draw(
        st.lists(st.from_regex(r"[a-z]{1,3}(\.[a-z0-9]{1,2})?", fullmatch=True), min_size=2, max_size=5, unique=True)
    )
    whole, *parts = names
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=len(parts), max_size=len(parts)))
    axis = data.draw(st.integers(-2, 1))
    shape = [3, 3]
    shape[axis] = sum(sizes)
    operation = Split(re.escape(whole), parts, axis, sizes)
    step = Migrator("toy", "1.0", [operation])
    checkpoint = make({"before": (1,), whole: (shape[0], shape[1]), "after.x": (2,)}, [[whole]])
    before = contents(checkpoint)

    assert engine.apply(checkpoint, step, FAMILY) == []
    assert list(checkpoint.model) == ["before", *parts, "after.x"]
    assert engine.apply(checkpoint, step, FAMILY, direction="down") == []
    assert contents(checkpoint) == before


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_order_of_blocks_and_of_a_fold_is_undone(data: st.DataObject) -> None:
    blocks = data.draw(st.integers(1, 5).flatmap(lambda n: st.permutations(range(n))))
    fold = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axes = data.draw(st.permutations(range(len(fold))))
    within = data.draw(st.integers(1, 3))
    length = 1
    for factor in (*fold, len(blocks), within):
        length *= factor
    operations = [
        Reorder("w", blocks, axis=-1, within=within),
        Reorder("w", axis=-1, fold=[*fold[:-1], -1], axes=axes),
        Reorder("w", data.draw(st.permutations(range(2)))),
    ]
    step = Migrator("toy", "1.0", operations)
    checkpoint = make({"w": (2, length)}, [["w"]], ids=True)
    before = contents(checkpoint)

    assert engine.apply(checkpoint, step, FAMILY) == []
    assert engine.apply(checkpoint, step, FAMILY, direction="down") == []
    assert contents(checkpoint) == before
