"""check_migrator: what a step's author asks, and what it says of each slip."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

import ckptmigrate
from ckptmigrate import Add, Apply, Cast, Concat, Drop, Migrator, Present, Rename, Reshape, Split, Transpose
from ckptmigrate.errors import MigratorError
from ckptmigrate.testing import check_migrator

from .burn_records import FIXTURES
from .lines import HERE


def step(*operations: Any, marks: Any = (), **more: Any) -> Migrator:
    return Migrator("acme.net", "1.0", operations, marks, **more)


def tensor(*shape: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + int(np.prod(shape)), dtype=torch.float32).reshape(shape)


QKV = {"attn.qkv.weight": tensor(6, 4), "attn.qkv.bias": tensor(6)}
PARTS = {
    f"attn.{n}.{leaf}": QKV[f"attn.qkv.{leaf}"][2 * i : 2 * i + 2]
    for i, n in enumerate("qkv")
    for leaf in ("weight", "bias")
}
SPLIT = Split(r"(.*)\.qkv\.(weight|bias)", into=[r"\1.q.\2", r"\1.k.\2", r"\1.v.\2"], axis=0)


@pytest.mark.parametrize(
    ("operations", "before", "after", "more"),
    [
        ([SPLIT], QKV, PARTS, {}),
        ([Rename(r"fc\.w", "head.w"), Transpose(r"head\.w")], {"fc.w": tensor(2, 3)}, {"head.w": tensor(2, 3).T}, {}),
        ([Drop("aux", "gone")], {"a": tensor(1), "aux": tensor(1)}, {"a": tensor(1)}, {"back": False}),
        ([Cast("a", "F16", old="F32")], {"a": tensor(3)}, {"a": tensor(3).half()}, {}),
        ([Add("b", near="a", fill=1.0)], {"a": tensor(3)}, {"a": tensor(3), "b": torch.ones(3)}, {}),
        ([Concat(["a", "b"], "c", axis=0, sizes=[2, 1])], {"a": tensor(2), "b": tensor(1)}, {"c": torch.tensor([0.0, 1, 0])}, {}),
        (
            [Reshape("a", ["heads", -1], old=["*"])], {"a": tensor(6)}, {"a": tensor(6).reshape(2, 3)},
            {"numbers": {"heads": 2}},
        ),
        (
            [Apply(["a"], ["a"], lambda a: a * 2, slots="drop")], {"a": tensor(3)}, {"a": tensor(3) * 2}, {"back": False},
        ),
    ],
    ids=["split", "rename-transpose", "drop", "cast", "add", "concat", "reshape", "apply"],
)  # fmt: skip
def test_a_right_step_passes(operations: Any, before: Any, after: Any, more: Any) -> None:
    check_migrator(step(*operations), before, after, **more)


def test_arrays_and_whole_checkpoints_will_do() -> None:
    check_migrator(step(Rename("a", "b")), {"a": np.ones(2, "f4")}, {"b": np.ones(2, "f4")})
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    renamed = {f"fc.{name}": value for name, value in model.state_dict().items()}
    check_migrator(
        step(Rename(r"(weight|bias)", r"fc.\1", back=(r"fc\.(weight|bias)", r"\1"))),
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        {"model": renamed, "optimizer": optimizer.state_dict()},
    )


def refused(migrator: Migrator, before: Any, after: Any, **more: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        check_migrator(migrator, before, after, **more)
    return str(caught.value)


def test_a_name_that_is_missing_is_told_with_what_is_close_to_it() -> None:
    said = refused(step(Rename("fc.weight", "head.wieght")), {"fc.weight": tensor(1)}, {"head.weight": tensor(1)})

    assert said.splitlines() == [
        "acme.net 1.0 up:",
        "  head.weight is missing; close to it: head.wieght",
        "  head.wieght was not expected; close to it: head.weight",
    ]


def test_a_shape_and_an_element_that_are_others_are_told_with_their_place() -> None:
    turned = refused(step(Rename("a", "b")), {"a": tensor(2, 3)}, {"b": tensor(3, 2)})
    other = refused(step(Rename("a", "b")), {"a": tensor(2, 3)}, {"b": tensor(2, 3) + torch.eye(2, 3)})

    assert "b is F32 [2, 3], expected F32 [3, 2]" in turned
    assert "b[0, 0] is 0.0, expected 1.0; 2 of 6 elements differ" in other


def test_another_order_is_told() -> None:
    said = refused(step(Rename("a", "c")), {"a": tensor(1), "b": tensor(2)}, {"b": tensor(2), "c": tensor(1)})

    assert "the order is c, b, expected b, c" in said


def test_a_pattern_that_takes_a_bystander_is_told() -> None:
    said = refused(step(Rename(r"(.*)", r"net.\1", back=(r"net\.(.*)", r"\1"))), {"a": tensor(1)}, {"net.a": tensor(1)})

    assert "bystander.weight is a bystander, and was touched: a pattern takes more than it should" in said


def test_a_way_back_that_takes_more_than_it_gave_is_told() -> None:
    greedy = step(Rename(r"a\.(.*)", r"\1.w", back=(r"(.*)\.(w|bystander)", r"a.\1")))
    said = refused(greedy, {"a.x": tensor(1)}, {"x.w": tensor(1)}, bystanders=["some.bystander"])

    assert said.startswith("acme.net 1.0 down:")
    assert "some.bystander is a bystander, and was touched" in said


def test_no_way_back_is_told_with_the_reason_and_how_to_mean_it() -> None:
    said = refused(step(Drop("aux", "gone")), {"a": tensor(1), "aux": tensor(1)}, {"a": tensor(1)})

    assert "no way back: what was dropped is gone" in said
    assert "hint: back=False says that no way back is meant" in said
    assert "leave back=False out" in refused(step(Rename("a", "b")), {"a": tensor(1)}, {"b": tensor(1)}, back=False)


def test_marks_that_do_not_tell_before_from_after_are_told() -> None:
    before, after = {"a": tensor(1), "x": tensor(1)}, {"b": tensor(1), "x": tensor(1)}

    assert "its marks do not match before it" in refused(step(Rename("a", "b"), marks=[Present("z")]), before, after)
    assert "its marks still match after it" in refused(step(Rename("a", "b"), marks=[Present("x")]), before, after)


def test_a_step_that_cannot_be_taken_is_told_with_its_problems() -> None:
    said = refused(step(Rename("z", "b"), Transpose("y")), {"a": tensor(1)}, {"b": tensor(1)})

    assert "nothing matches 'z'" in said
    assert "nothing matches 'y'" in said


def test_what_is_computed_may_differ_by_as_much_as_is_said() -> None:
    halved = step(Apply(["a"], ["a"], lambda a: a / 3, slots="drop"))
    before, after = {"a": tensor(5)}, {"a": tensor(5) / 3 + 1e-7}

    assert "elements differ" in refused(halved, before, after, back=False)
    check_migrator(halved, before, after, back=False, tolerance=1e-6)


def test_a_bystander_that_is_a_tensor_of_the_checkpoint_is_told() -> None:
    said = refused(step(Rename("a", "b")), {"a": tensor(1)}, {"b": tensor(1)}, bystanders=["a"])

    assert "a cannot be a bystander, it is a tensor" in said


def test_a_shipped_step_makes_of_a_real_record_what_todays_burn_writes() -> None:
    """An instance norm of 0.13: the zoo has a group norm of its own too, which is the bystander."""
    migrator = importlib.import_module("ckptmigrate.migrations.burn.v0_14_instance_norm").MIGRATOR
    old, golden = FIXTURES / "0.13.2" / "zoo-full.mpk", FIXTURES / "0.13.2" / "golden" / "zoo.bpk"

    with ckptmigrate.open(old) as before, ckptmigrate.open(golden) as after:
        check_migrator(migrator, before, after, back=False)


def test_a_step_is_loaded_from_its_file_as_a_folder_of_migrations_is() -> None:
    check_migrator(f"{HERE}/right/acme_right/v1_0_body.py", {"trunk.a": tensor(2)}, {"body.a": tensor(2)})
    with pytest.raises(MigratorError, match="the moon is full"):
        check_migrator(f"{HERE}/broken/acme_broken/v1_0_raises.py", {}, {})
    with pytest.raises(MigratorError, match="is no step"):
        check_migrator(f"{HERE}/right/acme_right/v9_0_absent.py", {}, {})
