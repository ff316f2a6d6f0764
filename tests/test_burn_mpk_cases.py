"""Public cases of named MessagePack records, end to end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ckptmigrate
from ckptmigrate.values import Scalar

from .burn_mpks import T, param, record

if TYPE_CHECKING:
    import numpy as np

    from .conftest import Refuse


def migrated(path: Path, out: Path, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    import safetensors.numpy

    ckptmigrate.migrate(path, out, **options)
    found: dict[str, np.ndarray[Any, Any]] = safetensors.numpy.load_file(out)
    return found


def test_case_a01_a_record_that_lacks_a_field_without_tensors(tmp_path: Path) -> None:
    linear = {"weight": param(T(2, 3), "aaaaaaaaaaaaa"), "bias": None}
    path = tmp_path / "a01.mpk"
    path.write_bytes(
        record(
            {"pwff": {"linear_inner": linear, "linear_outer": {**linear, "weight": param(T(2, 3), "bbbbbbbbbbbbb")}}},
            "0.20.1",
        )
    )
    found = migrated(path, tmp_path / "a01.safetensors")

    assert sorted(found) == ["pwff.linear_inner.weight", "pwff.linear_outer.weight"]
    assert found["pwff.linear_inner.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(("floats", "dtype"), [("f32", "float32"), ("f64", "float64")])
def test_case_a03_the_layout_whose_reader_was_removed(tmp_path: Path, floats: str, dtype: str) -> None:
    path = tmp_path / "a03.mpk"
    payload = {"value": [1.5, -2.0, 0.0, 3.25], "shape": [2, 2]}
    path.write_bytes(record({"linear": {"weight": param(payload), "bias": None}}, "0.12.1", float=floats))
    found = migrated(path, tmp_path / "a03.safetensors")

    assert {name: (str(a.dtype), a.tolist()) for name, a in found.items()} == {
        "linear.weight": (dtype, [[1.5, -2.0], [0.0, 3.25]])
    }


def test_case_a03_another_number_of_items_is_refused(tmp_path: Path, refuse: Refuse) -> None:
    path = tmp_path / "a03-short.mpk"
    path.write_bytes(record({"linear": {"weight": param({"value": [1.5, -2.0, 0.0], "shape": [2, 2]})}}, "0.12.1"))

    refuse(path, r"linear\.weight", "3", "4", out="a03.safetensors")


def test_case_a11_constants_are_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a11.mpk"
    path.write_bytes(
        record(
            {"conv": {"weight": param(T(2), "aaaaaaaaaaaaa"), "bias": None, "stride": [None, None], "groups": None}},
            "0.16.1",
        )
    )

    assert list(migrated(path, tmp_path / "a11.safetensors")) == ["conv.weight"]


def a07(folder: Path, *moment: int) -> Path:
    state = {"momentum": {"time": 5, "moment_1": T(*moment), "moment_2": T(*moment)}}
    bias = {"momentum": {"time": 5, "moment_1": T(2), "moment_2": T(2)}}
    files = {
        "model-9": {"linear": {"weight": param(T(2, 2), "aaaaaaaaaaaaa"), "bias": param(T(2), "bbbbbbbbbbbbb")}},
        "optim-9": {"bbbbbbbbbbbbb": {"V1": {"Rank1": bias}}, "aaaaaaaaaaaaa": {"V1": {"Rank2": state}}},
        "scheduler-9": None,
    }
    (folder / "checkpoint").mkdir(parents=True)
    for name, item in files.items():
        (folder / "checkpoint" / f"{name}.mpk").write_bytes(record(item, "0.16.1"))
    return folder


def test_case_a07_optimizer_state_is_joined_to_names_by_id(tmp_path: Path) -> None:
    with ckptmigrate.open(a07(tmp_path / "run", 2, 2)) as checkpoint:
        (optimizer,) = checkpoint.optimizers
        state = {p.name: p.slots for p in optimizer.params}
        weight = state["linear.weight"]

        assert weight is not None
        assert weight["momentum.time"].value == Scalar("uint", 5)
        assert weight["momentum.moment_1"].value.numpy().tolist() == [[0, 1], [2, 3]]
        assert list(state) == ["linear.bias", "linear.weight"]
