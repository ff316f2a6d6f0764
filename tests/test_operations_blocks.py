"""Split, Concat, Stack and Unstack against numpy, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckptmigrate.dtypes import F32
from ckptmigrate.operations import Concat, Group, Split, Stack, Unstack, bind
from ckptmigrate.tensor import Tensor, fill

from .test_operations_tensors import made, numbered, refusal
from .toys import tensor

QKV = ["q", "k", "v"]


@pytest.mark.parametrize(
    ("how", "lengths"),
    [
        ({}, [4, 4, 4]),
        ({"sizes": [1, 5, 6]}, [1, 5, 6]),
        ({"sizes": [2, -1, 0]}, [2, 10, 0]),
        ({"shares": [4, 1, 1]}, [8, 2, 2]),
    ],
)
@pytest.mark.parametrize("axis", [0, -1])
def test_parts_are_equal_or_as_long_as_sizes_or_shares_say(how: Any, lengths: list[int], axis: int) -> None:
    value = numbered(12, 12)
    parts = made(Split("qkv", QKV, axis, **how), value)

    for part, expected in zip(parts, np.split(value, np.cumsum(lengths)[:-1], axis), strict=True):
        np.testing.assert_array_equal(part, expected)
    np.testing.assert_array_equal(made(Concat(QKV, "qkv", axis, **how), *parts)[0], value)


def test_grouped_query_attention_is_cut_by_named_numbers() -> None:
    operation, _ = bind(Split("qkv", QKV, shares=["heads", "kv", "kv"]), {"heads": 6, "kv": 2})

    assert [len(part) for part in made(operation, numbered(40, 2))] == [24, 8, 8]


def test_an_axis_that_is_not_cut_so_is_refused() -> None:
    assert refusal(Split("a", QKV), numbered(4)) == "an axis of 4 is not cut in proportion 1:1:1"
    assert refusal(Split("a", QKV, sizes=(1, 1, 1)), numbered(4)) == "an axis of 4 is not cut into [1, 1, 1]"
    assert refusal(Split("a", QKV, sizes=(4, 1, -1)), numbered(4)) == "an axis of 4 is not cut into [4, 1, -1]"
    assert refusal(Split("a", QKV), numbered()) == "has the shape [], and no axis 0"


def test_parts_that_are_not_as_declared_or_do_not_fit_are_refused() -> None:
    two = numbered(2), numbered(3)

    assert refusal(Concat(["a", "b"], "ab", sizes=(3, 2)), *two) == "the parts are [2, 3] long, expected sizes [3, 2]"
    assert refusal(Concat(["a", "b"], "ab", shares=(1, 4)), *two) == "the parts are [2, 3] long, expected shares [1, 4]"
    assert "expected F32 as part 0" in refusal(Concat(["a", "b"], "ab"), two[0], two[1].astype("f8"))
    assert "shape [2, 2]" in refusal(Concat(["a", "b"], "ab"), numbered(2, 3), numbered(2, 2))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_members_are_stacked_along_a_new_axis_and_taken_apart(axis: int) -> None:
    members = [numbered(2, 3) + 10 * n for n in range(3)]
    (whole,) = made(Stack(r"e\.(\d+)", "e", axis), *members)

    np.testing.assert_array_equal(whole, np.stack(members, axis))
    for member, expected in zip(made(Unstack("e", "e.{}", axis), whole), members, strict=True):
        np.testing.assert_array_equal(member, expected)


def test_members_are_named_by_their_number() -> None:
    names = {"h.e": tensor(numbered(11, 2)), "x": tensor(numbered(1))}
    (group,) = Unstack(r"(.*)\.e", r"\1.{}.w{}").match(names)

    assert group.targets == tuple(f"h.{n}.w{n}" for n in range(11))


def test_members_count_from_nought_and_to_the_count_that_is_declared() -> None:
    (group,) = Stack(r"e\.(\d+)", "e").match(dict.fromkeys(["e.2", "e.3"]))

    assert group.missing == ("e.0", "e.1")
    assert refusal(Stack(r"e\.(\d+)", "e", count=3), numbered(1), numbered(1)) == "2 members to stack, expected 3"


def test_what_cannot_be_taken_apart_is_refused() -> None:
    assert refusal(Unstack("e", "e.{}"), numbered()) == "has the shape [], and no axis 0"
    assert refusal(Unstack("e", "e.{}"), numbered(0, 2)) == "has 0 members on axis 0, expected from 1 to 65,536"
    assert refusal(Unstack("e", ["a", "b"]), numbered(3)) == "has 3 members on axis 0, expected 2"
    assert "no place for a new axis 3" in refusal(Stack(["a", "b"], "e", 3), numbered(2), numbered(2))
    huge = Tensor(fill(0, F32, (10**12, 1)))
    (group,) = Unstack("e", "e.{}").match({"e": huge})
    assert group == Group(("e",), ("e",))
    assert "1,000,000,000,000 members" in refusal(Unstack("e", "e.{}"), huge)
