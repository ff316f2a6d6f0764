"""The verb that compares two checkpoints: its exit codes, its JSON, its text."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ckptmigrate import report
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.verify import Change, diff

from .command_line import BARE, Ran
from .compared import of, tensor

if TYPE_CHECKING:
    from pathlib import Path


def test_the_verb_says_0_equal_1_different_or_broken_2_wrong_usage(tmp_path: Path) -> None:
    other = tmp_path / "other.pt"
    torch.save({"x": torch.ones(2)}, other)
    broken = tmp_path / "broken.pt"
    broken.write_bytes(BARE.read_bytes()[:-40])

    assert (Ran("diff", BARE, BARE).code, Ran("diff", BARE, other).code) == (0, 1)
    assert Ran("diff", BARE, BARE).out.splitlines()[-1].startswith("equal: ")
    assert (Ran("diff", BARE, broken).code, Ran("diff", broken, BARE, "--json").code) == (1, 1)
    assert "error" in Ran("diff", broken, BARE, "--json").json()
    assert (Ran("diff", BARE).code, Ran("diff", BARE, other, "--what").code) == (2, 2)


def test_json_has_every_change_and_the_text_the_first_of_each_kind(tmp_path: Path) -> None:
    one = {f"w{n}": torch.full((2, 2), float(n)) for n in range(50)}
    other = {name: value + 1 + float(name[1:]) * torch.eye(2) for name, value in one.items()}
    other["w3"] = torch.full((2, 2), math.inf)
    torch.save(one, tmp_path / "a.pt")
    torch.save(other, tmp_path / "b.pt")
    shown = Ran("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--json").json()
    lines = Ran("diff", tmp_path / "a.pt", tmp_path / "b.pt").out.splitlines()

    assert (shown["equal"], shown["same"], len(shown["tensors"]["values"])) == (False, 0, 50)
    assert shown["paths"] == {"a": str(tmp_path / "a.pt"), "b": str(tmp_path / "b.pt")}
    assert shown["a"] == {"format": "torch_zip", "layout": "bare", "family": "torch"}
    assert shown["tensors"]["values"][0]["item"] == "model/w3"
    assert shown["tensors"]["values"][0]["spread"]["max_abs"] == "inf"
    assert shown["tensors"]["values"][1] == {
        "item": "model/w49", "a": {"dtype": "F32", "shape": [2, 2]}, "b": {"dtype": "F32", "shape": [2, 2]},
        "spread": {"differ": 4, "elements": 4, "max_abs": 50.0, "max_rel": pytest.approx(50 / 99), "at": [0, 0],
                   "a": 49.0, "b": 99.0, "nan_a": 0, "nan_b": 0},
    }  # fmt: skip
    assert set(shown["tensors"]) == {"renamed", "only_in_a", "only_in_b", "reshaped", "recast", "values"}
    assert lines[2] == "0 tensors the same, 50 with other values"
    assert lines[4].startswith(
        "with other values: model/w49  F32 [2, 2]: 4 of 4 differ, by up to 50 (49 and 99 at [0, 0])"
    )
    assert lines[-1] == "with other values: 30 more (all with --json)"
    assert json.dumps(shown, allow_nan=False)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (0.0, -0.0, "1 of 1 differ, in bits only (signed zeros, NaNs)"),
        (math.nan, 1.0, "1 of 1 differ; 1 NaN in A alone"),
        (2.0, 3.0, "1 of 1 differ, by up to 1 (2 and 3), relatively 0.333"),
    ],
)
def test_the_text_says_how_elements_differ(a: float, b: float, said: str) -> None:
    one, other = (Tensor(array(np.array(value, "<f4"))) for value in (a, b))

    assert (
        list(report.diff_lines(diff(of(x=one), of(x=other)), "a", "b"))[-1]
        == f"with other values: model/x  F32 []: {said}"
    )


def test_a_change_leaves_out_what_is_not_there() -> None:
    (change,) = diff(of(), of(x=tensor(1, 2))).tensors

    assert isinstance(change, Change)
    assert change.as_dict() == {"item": "model/x", "b": {"dtype": "F32", "shape": [2]}}
