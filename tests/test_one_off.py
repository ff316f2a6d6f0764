"""``migrate(…, operations=[…])``: every operation does in one call what it does in a step, on the file and in memory alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch

import ckptmigrate
from ckptmigrate import (
    Add,
    Apply,
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
from ckptmigrate.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

A, B = torch.arange(12.0).reshape(4, 3), torch.arange(12.0, 24.0).reshape(4, 3)
GIVEN = {"l.0.w": A, "l.1.w": B, "c": torch.ones(2)}
REST = {"c": torch.ones(2)}

ONE_OFFS: list[tuple[Any, dict[str, torch.Tensor]]] = [
    (Rename(r"l\.(\d)\.w", r"layer\1"), {"layer0": A, "layer1": B, **REST}),
    (Drop(r"l\..*", "gone"), REST),
    (Add("d", near="c", fill=2.0), {**GIVEN, "d": torch.full((2,), 2.0)}),
    (Reshape(r"l\.0\.w", [3, 4]), {**GIVEN, "l.0.w": A.reshape(3, 4)}),
    (Transpose(r"l\.0\.w"), {**GIVEN, "l.0.w": A.T}),
    (Reorder(r"l\.0\.w", blocks=(1, 0)), {**GIVEN, "l.0.w": torch.cat([A[2:], A[:2]])}),
    (Split(r"l\.0\.w", into=["x", "y"], sizes=[1, 3]), {"x": A[:1], "y": A[1:], "l.1.w": B, **REST}),
    (Concat([r"l\.0\.w", r"l\.1\.w"], "w", axis=1), {"w": torch.cat([A, B], 1), **REST}),
    (Stack([r"l\.0\.w", r"l\.1\.w"], "w"), {"w": torch.stack([A, B]), **REST}),
    (Unstack(r"l\.0\.w", into="row{}"), {**{f"row{n}": A[n] for n in range(4)}, "l.1.w": B, **REST}),
    (Cast(r"l\..*", "F16"), {"l.0.w": A.half(), "l.1.w": B.half(), **REST}),
    (Reindex(r"l\.(\d)\.w", map={0: 5, 1: 6}), {"l.5.w": A, "l.6.w": B, **REST}),
    (Order(["c", r"l\..*"]), GIVEN),
    (Apply([r"l\.0\.w"], ["s"], lambda a: a + 1, slots="drop"), {"s": A + 1, "l.1.w": B, **REST}),
]


@pytest.mark.parametrize(("operation", "expected"), ONE_OFFS, ids=[type(one).__name__ for one, _ in ONE_OFFS])
def test_a_one_off_is_what_the_operation_says_in_a_file_and_in_memory(
    tmp_path: Path, operation: Any, expected: dict[str, torch.Tensor]
) -> None:
    safetensors.torch.save_file(GIVEN, tmp_path / "old.safetensors")
    ckptmigrate.migrate(tmp_path / "old.safetensors", tmp_path / "new.safetensors", operations=(operation,))
    in_file = safetensors.torch.load_file(tmp_path / "new.safetensors")
    in_memory = ckptmigrate.upgrade(dict(GIVEN), operations=[operation])

    for found in (in_file, in_memory):
        assert set(found) == set(expected)
        assert all(found[name].dtype == tensor.dtype for name, tensor in expected.items())
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_an_order_is_that_of_the_result() -> None:
    assert list(ckptmigrate.upgrade(dict(GIVEN), operations=[Order(["c", r"l\..*"])])) == ["c", "l.0.w", "l.1.w"]


def test_ties_are_made_and_undone() -> None:
    tied = ckptmigrate.upgrade(dict(GIVEN), operations=[Tie("c", "d", adds=True)])
    apart = ckptmigrate.upgrade(tied, operations=[Untie("d")])

    assert tied["c"].data_ptr() == tied["d"].data_ptr()
    assert apart["c"].data_ptr() != apart["d"].data_ptr()
    assert torch.equal(apart["c"], apart["d"])


def test_several_are_taken_one_after_the_other_and_their_problems_come_at_once() -> None:
    found = ckptmigrate.upgrade(dict(GIVEN), operations=[Rename("c", "d"), Rename("d", "e"), Transpose(r"l\.1\.w")])

    assert list(found) == ["l.0.w", "l.1.w", "e"]
    with pytest.raises(PlanError) as caught:
        ckptmigrate.upgrade(dict(GIVEN), operations=[Transpose("x"), Reshape("c", [3])])
    assert len(caught.value.problems) == 2
