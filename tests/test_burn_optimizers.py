"""Optimizers of Burn: entries joined to the model by id, in its order; what Burn would drop in silence is refused."""

from __future__ import annotations

import pytest

from ckptmigrate.checkpoint import Checkpoint, Optimizer, Param, Slot
from ckptmigrate.dtypes import F32
from ckptmigrate.errors import OptimizerError
from ckptmigrate.format import FOLLOWS, SCALAR
from ckptmigrate.tensor import Tensor, fill
from ckptmigrate.values import Scalar

from .burn_family import BURN, identify, optimizer, scalars, tensor, tensors


def test_slots_that_have_the_axes_of_their_parameter_are_in_the_table() -> None:
    assert BURN.slots["momentum.moment_1"] == BURN.slots["lr_decay.sum"] == BURN.slots["momentum"] == FOLLOWS
    assert BURN.slots["momentum.time"] == BURN.slots["time"] == SCALAR
    assert "second_moment" not in BURN.slots


def test_names_of_an_old_record_and_of_todays_give_the_same_entries() -> None:
    moments: dict[str, Tensor | Scalar] = {
        "momentum.time": Scalar("uint", 3),
        "momentum.moment_1": tensor(2),
        "momentum.moment_2": tensor(2),
    }
    old = optimizer(
        {f"5800000000000.V1.Rank1.{leaf}": value for leaf, value in moments.items()}, versions={"burn": "0.18.0"}
    )
    new = optimizer({"42.__rank": Scalar("uint", 1)} | {f"42.{leaf}": value for leaf, value in moments.items()})

    assert [identify(p.key) for p in old.params] == [identify(p.key) for p in new.params] == [42]
    assert old.params[0].slots == new.params[0].slots == {leaf: Slot(value) for leaf, value in moments.items()}


def test_an_id_of_digits_is_base32_in_a_record_and_a_number_in_todays_files() -> None:
    names = {"5800000000000.__rank": Scalar("uint", 1)}

    assert identify(optimizer(names, versions={"burn": "0.21.0"}).params[0].key) == 42
    assert identify(optimizer(names).params[0].key) == 5800000000000


def test_an_id_may_hold_dots() -> None:
    names: dict[str, Tensor | Scalar] = {
        "my.own.id.__rank": Scalar("uint", 2),
        "my.own.id.momentum.velocity": tensor(2, 2),
    }
    (param,) = optimizer(names, versions={"burn": "0.14.0"}).params

    assert param.key == "my.own.id"
    assert list(param.slots or {}) == ["momentum.velocity"]


def test_names_come_from_the_metadata_and_entries_without_momentum_keep_their_rank() -> None:
    found = optimizer({"7.__rank": Scalar("uint", 3)}, metadata={"7": "conv.weight"})
    (param,) = found.params

    assert (found.kind, param.name, param.by, param.key) == ("sgd", "conv.weight", "file", 7)
    again = BURN.pack("optimizers", found, Checkpoint("burn"))
    assert again.tensors == {"7.__rank": Scalar("uint", 3)}
    assert again.facts == {"metadata": {"7": "conv.weight"}}


def test_rank_and_order_are_those_of_the_model() -> None:
    """A reshaped parameter has the rank that it has now; entries stand in the model's order, nameless ones behind."""
    params = [
        Param(None, None, 9, 0, {"momentum.velocity": Slot(tensor(2))}),
        Param("b", "file", 2, 0, {"__rank": Slot(Scalar("uint", 1))}),
        Param("a", "file", 1, 0, {"momentum.velocity": Slot(tensor(2, 3))}),
        Param("c", "file", 3, 0, None),
    ]
    model = {
        "a": Tensor(fill(0, F32, (2, 3)), id=1),
        "b": Tensor(fill(0, F32, (3, 1, 1)), id=2),
        "c": Tensor(fill(0, F32, (1,)), id=3),
    }
    packed = BURN.pack("optimizers", Optimizer("sgd", params, [{}]), Checkpoint("burn", model))

    assert list(tensors(packed)) == ["1.momentum.velocity", "9.momentum.velocity"]
    assert scalars(packed) == {
        "1.__rank": Scalar("uint", 2),
        "2.__rank": Scalar("uint", 3),
        "9.__rank": Scalar("uint", 1),
    }
    assert packed.facts["metadata"] == {"1": "a", "2": "b"}


MOMENTS: dict[str, Tensor | Scalar] = {
    "1.__rank": Scalar("uint", 1),
    "1.momentum.moment_1": tensor(2),
    "1.momentum.moment_2": tensor(2),
}


@pytest.mark.parametrize(
    ("change", "mention"),
    [
        ({}, r"no momentum\.time.*anew without a word"),
        ({"1.momentum.time": Scalar("float", 2.5)}, "expected a count"),
        ({"1.momentum.time": Scalar("float", float("inf"))}, "expected a count"),
        ({"1.momentum.time": Scalar("int", -1)}, "expected a count"),
        ({"1.momentum.time": tensor(1)}, "expected a count"),
        ({"1.momentum.time": Scalar("uint", 1), "1.momentum.max_moment_2": Scalar("uint", 1)}, "expected a tensor"),
        ({"1.momentum.time": Scalar("uint", 1), "stray": tensor(2)}, "stray is of no parameter"),
        ({"1.momentum.time": Scalar("uint", 1), "1.__rank": Scalar("uint", 9)}, "expected 0 to 8"),
        ({"1.momentum.time": Scalar("uint", 1), "1.__rank": Scalar("float", float("inf"))}, "expected 0 to 8"),
        ({"1.momentum.time": Scalar("uint", 1), "2.__rank": Scalar("uint", 1), "2.wild": tensor(2)}, "no optimizer of this family"),
    ],
)  # fmt: skip
def test_state_that_burn_would_drop_in_silence_is_refused_by_name(
    change: dict[str, Tensor | Scalar], mention: str
) -> None:
    with pytest.raises(OptimizerError, match=mention):
        optimizer(MOMENTS | change)


def test_a_time_that_is_a_float_or_an_int_becomes_what_burn_counts_in() -> None:
    for told in (Scalar("float", 3.0), Scalar("int", 3)):
        (param,) = optimizer(MOMENTS | {"1.momentum.time": told}).params
        assert (param.slots or {})["momentum.time"].value == Scalar("uint", 3)


@pytest.mark.parametrize(
    "names",
    [
        {"history_s.len": Scalar("uint", 2), "history_s.0": tensor(2), "g_iter": Scalar("uint", 1)},
        {
            "history_s.len": Scalar("uint", 2),
            "history_s.0": tensor(2),
            "history_s.2": tensor(2),
            "g_iter": Scalar("uint", 1),
        },
        {"d": Scalar("uint", 1), "g_iter": Scalar("uint", 1)},
        {"t": tensor(1), "g_iter": Scalar("uint", 1)},
    ],
)
def test_a_broken_lbfgs_record_is_refused(names: dict[str, Tensor | Scalar]) -> None:
    with pytest.raises(OptimizerError):
        optimizer(names)


def test_a_long_name_of_dots_costs_nothing() -> None:
    import time

    start = time.monotonic()
    names: dict[str, Tensor | Scalar] = {"1.__rank": Scalar("uint", 1)} | {
        f"{'.' * 60_000}{n}": tensor(1) for n in range(50)
    }
    with pytest.raises(OptimizerError):
        optimizer(names)

    assert time.monotonic() - start < 1
