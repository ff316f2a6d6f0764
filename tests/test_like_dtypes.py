"""``--like`` and dtypes: floats become the model's, whole numbers cross whole or are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ckptmigrate
from ckptmigrate import errors
from ckptmigrate.format import Like, Wanted

from .burn_records import MUSEUM
from .nets import problems
from .toys import arrays

if TYPE_CHECKING:
    from pathlib import Path


def test_floats_become_those_of_the_model_and_twins_of_another_dtype_stay(tmp_path: Path) -> None:
    state = {"w": torch.linspace(-2, 2, 7).half()}
    held = {"state_dict": state, "ema_state_dict": dict(state), "master_state_dict": {"w": state["w"].double()}}
    torch.save(held, tmp_path / "old.pt")
    report = ckptmigrate.migrate(
        tmp_path / "old.pt", tmp_path / "new.pt", like={"w": torch.empty(7, dtype=torch.bfloat16)}
    )
    new = torch.load(tmp_path / "new.pt", weights_only=True)

    assert torch.equal(new["state_dict"]["w"], state["w"].bfloat16())
    assert [new[f"{twin}_state_dict"]["w"].dtype for twin in ("ema", "master")] == [torch.bfloat16, torch.float64]
    assert "1 tensor of the model is cast from F16 to BF16, as a dict has it" in report.notes


@pytest.mark.parametrize(("dtype", "expected"), [("f32", "F32"), ("keep", "F16")])
def test_what_the_call_says_of_floats_counts(dtype: str, expected: str, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2).half()}, tmp_path / "old.pt")
    wanted = {"w": torch.empty(2, dtype=torch.float64)}
    report = ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like=wanted, dtype=dtype)
    with ckptmigrate.open(tmp_path / "new.pt") as checkpoint:
        assert checkpoint.model["w"].dtype.name == expected
    assert report.notes[-1] == (
        f"1 tensor of the model is not cast from {expected} to F64, as a dict has it, because of --dtype {dtype}"
    )


KINDS = [torch.uint8, torch.bool, torch.int16, torch.int64, torch.float32, torch.uint64]


@given(
    st.sampled_from(KINDS),
    st.sampled_from(KINDS),
    st.lists(st.sampled_from([0, 1, 2, 255, -1, 300, 2**31, 2**62]), max_size=4),
)
def test_a_number_crosses_whole_or_is_refused(source: torch.dtype, target: torch.dtype, numbers: list[int]) -> None:
    from ckptmigrate.dtypes import BY_TORCH
    from ckptmigrate.like.dtypes import Exact

    before = torch.tensor(numbers, dtype=torch.int64).to(source)
    rule = Exact(BY_TORCH[str(target).removeprefix("torch.")])
    fits = [int(n) for n in before.tolist()]
    wide = {torch.uint8: (0, 255), torch.bool: (0, 1), torch.int16: (-(2**15), 2**15 - 1), torch.int64: (-(2**63), 2**63 - 1), torch.uint64: (0, 2**64 - 1)}  # fmt: skip
    low, high = wide.get(target, (-(2**63), 2**63))
    whole = all(low <= n <= high and (target != torch.float32 or int(np.float32(n)) == n) for n in fits)
    if whole:
        assert [int(n) for n in rule.apply([before.numpy()]).tolist()] == fits
    else:
        with pytest.raises(errors.TensorError, match="cannot become"):
            rule.apply([before.numpy()])


def test_one_tensor_does_not_become_two_of_different_dtypes(tmp_path: Path) -> None:
    shared = torch.ones(2)
    torch.save({"a": shared, "b": shared}, tmp_path / "old.pt")
    wanted = {"a": torch.empty(2), "b": torch.empty(2, dtype=torch.float64)}

    assert problems(tmp_path / "old.pt", wanted) == ("--like a dict: a and b are tied, expected F32 and F64",)


def test_a_half_precision_record_becomes_what_the_model_is(tmp_path: Path) -> None:
    """Without a model its floats would be raised to F32."""
    record = MUSEUM / "0.21.0" / "net-half.mpk"
    with ckptmigrate.open(record) as checkpoint:
        wanted = {n: Wanted(tuple(t.shape), t.dtype, None, n) for n, t in checkpoint.model.items()}
    ckptmigrate.migrate(record, tmp_path / "as_is.bpk", like=Like("half", wanted))
    ckptmigrate.migrate(record, tmp_path / "raised.bpk")
    with ckptmigrate.open(tmp_path / "as_is.bpk") as one, ckptmigrate.open(tmp_path / "raised.bpk") as other:
        assert {t.dtype.name for t in one.model.values()} == {"F16"}
        assert {t.dtype.name for t in other.model.values()} == {"F32"}
        assert arrays(one.model) == arrays(other.model)


def test_a_mask_of_bytes_becomes_the_booleans_that_the_model_has(tmp_path: Path) -> None:
    torch.save({"mask": torch.tensor([0, 1, 1], dtype=torch.uint8)}, tmp_path / "old.pt")
    ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like={"mask": torch.empty(3, dtype=torch.bool)})

    assert torch.load(tmp_path / "new.pt", weights_only=True)["mask"].tolist() == [False, True, True]
