"""Marks: how an unstamped checkpoint that still needs a step is recognised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckptmigrate.errors import UsageError
from ckptmigrate.marks import Absent, Dtype, Fact, Fields, Mark, Present, Shape, Value
from ckptmigrate.operations import Rename
from ckptmigrate.tensor import Tensor, array

from .lines import Line, model, planned, step, versions


def test_marks_hold_of_what_they_name() -> None:
    checkpoint = model("a.w", "count")
    checkpoint.model["count"] = Tensor(array(np.array([3], "i8")))
    checkpoint.values = {"config": {"heads": 4, "list": ["x"]}}
    checkpoint.modules = {"bn": {"fields": ["group_norm"]}}
    checkpoint.origin.facts = {"file.bin": {"half": True}, "shape": 1}
    holding: list[Mark] = [
        Present(r"a\..*"),
        Absent("b"),
        Shape(".*", ["*"]),
        Shape("a.w", [2]),
        Dtype("count", "I64"),
        Value("config/heads", 4),
        Value("config/list/0", "x"),
        Value("count", 3, on="model"),
        Fact("half", True),
        Fact("shape", 1),
        Fields(".*", ["group_norm"]),
    ]
    failing: list[Mark] = [
        Present("a"),
        Absent("count"),
        Shape("a.w", [3]),
        Shape("a.w", ["*", "*"]),
        Dtype("a.w", "I64"),
        Value("config/heads", 5),
        Value("config/none/0", 5),
        Value("a.w", 0, on="model"),
        Fact("half", False),
        Fields("bn", ["group_norm", "x"]),
        Present("step", on="slots"),
    ]

    assert [mark for mark in holding if not mark.holds(checkpoint)] == []
    assert [mark for mark in failing if mark.holds(checkpoint)] == []


def test_marks_ask_items_that_are_no_tensors_by_their_path() -> None:
    checkpoint = model("a.w")
    checkpoint.schedulers = [{"last_epoch": 3, "milestones": [1, 2], "_schedulers": [{"verbose": False}]}]
    checkpoint.values = {"extra": {"loops": {"fit": {}}}}
    holding: list[Mark] = [
        Present(r"schedulers/\d+/(?:.*/)?verbose", on="items"),
        Present("values/extra/loops", on="items"),
        Absent("values/extra/callbacks", on="items"),
        Dtype("schedulers/0/milestones", "list", on="items"),
        Value("schedulers/0/last_epoch", 3, on="items"),
    ]

    assert [mark for mark in holding if not mark.holds(checkpoint)] == []
    assert not Present("verbose", on="items").holds(checkpoint)
    assert not Present(r"model/.*", on="items").holds(checkpoint)


def test_a_step_needs_all_of_its_marks() -> None:
    found = Line(step("1.0", Rename("a", "b"), marks=[Present("a"), Absent("z")]))

    assert versions(planned(model("a", "z"), found, named={"line": None})) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: Present("("),
        lambda: Shape("[", [1]),
        lambda: Value("(", 1, on="model"),
        lambda: Present("a", on="slot"),  # type: ignore[arg-type] # what a maintainer may write
    ],
)
def test_a_wrong_mark_is_refused_where_it_is_written(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


def test_a_path_among_values_is_no_pattern() -> None:
    assert Value("config/(", None).holds(model("a"))
