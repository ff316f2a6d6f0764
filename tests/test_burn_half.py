"""Half precision of Burn's old recorders: raised where the target asks for it, kept where a caller does."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgpack
import numpy as np
import pytest

import ckptmigrate
from ckptmigrate import errors
from ckptmigrate.format import GatherOptions

from .burn_records import MUSEUM, truth
from .burn_runs import HALF_RUN, RUN, dtypes
from .command_line import Ran


def test_a_half_precision_run_is_raised_whole_and_the_ledger_says_so(tmp_path: Path) -> None:
    report = ckptmigrate.migrate(HALF_RUN, tmp_path / "out", gather=GatherOptions(scheduler="exponential"))

    assert dtypes(HALF_RUN) == {"F16"}
    assert dtypes(tmp_path / "out") == {"F32"}
    raised = {fate.source: fate for fate in report.fates if fate.what == "derived"}
    assert len(raised) == 11 + 2 * 9  # the model, and two moments of each parameter
    assert {fate.reason for fate in raised.values()} == {"raised from F16 to F32: the record is of half precision"}
    with ckptmigrate.open(HALF_RUN) as before, ckptmigrate.open(tmp_path / "out") as after:
        for name, tensor in before.model.items():
            assert np.array_equal(tensor.numpy().astype("f4"), after.model[name].numpy())


def test_keep_keeps_it_and_another_cast_casts_the_model_alone(tmp_path: Path) -> None:
    kept = Ran("migrate", HALF_RUN, tmp_path / "kept", "--scheduler", "exponential", "--dtype", "keep")
    cast = Ran("migrate", HALF_RUN, tmp_path / "cast", "--scheduler", "exponential", "--dtype", "bf16")

    assert (kept.code, cast.code) == (0, 0), kept.err + cast.err
    assert dtypes(tmp_path / "kept") == {"F16"}
    assert dtypes(tmp_path / "cast") == {"BF16", "F32"}


def test_only_a_target_that_says_so_gets_it_raised(tmp_path: Path) -> None:
    ckptmigrate.migrate(MUSEUM / "0.13.2" / "net-half.mpk", tmp_path / "net.safetensors")

    assert "F16" in dtypes(tmp_path / "net.safetensors")


def test_each_file_of_a_folder_speaks_for_itself(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoint"
    shutil.copytree(MUSEUM / "0.21.0" / "golden" / RUN.name / "checkpoint", folder)
    (folder / "model-3.bpk").unlink()
    Ran("migrate", RUN / "checkpoint" / "model-3.mpk", folder / "model-3.bpk", "--dtype", "f16")
    report = ckptmigrate.migrate(folder.parent, tmp_path / "out")

    assert dtypes(tmp_path / "out") == {"F16", "F32"}  # no record of half precision: somebody wants it so
    assert any("F16, kept" in note and "--dtype f32" in note for note in report.notes)


def test_ints_of_a_half_precision_record_are_raised_too(tmp_path: Path) -> None:
    record = {
        "metadata": {
            "float": "half::binary16::f16", "int": "i16", "format": "", "version": "0.14.0", "settings": "Half",
        },
        "item": {
            "counts": {"id": "0" * 13, "param": {"bytes": b"\1\0\xff\xff", "shape": [2], "dtype": "I16"}},
            "weight": {"id": "1" * 13, "param": {"bytes": b"\0\x3c", "shape": [1], "dtype": "F16"}},
        },
        "_b": [],
    }  # fmt: skip
    (tmp_path / "half.mpk").write_bytes(msgpack.packb(record))
    Ran("migrate", tmp_path / "half.mpk", tmp_path / "half.bpk")

    with ckptmigrate.open(tmp_path / "half.bpk") as checkpoint:
        assert [t.dtype.name for t in checkpoint.model.values()] == ["I32", "F32"]
        assert checkpoint.model["counts"].numpy().tolist() == [1, -1]


def test_doubles_are_kept_with_a_hint(tmp_path: Path) -> None:
    record = MUSEUM / "0.13.2" / "net-double.mpk"
    kept = ckptmigrate.migrate(record, tmp_path / "kept.bpk")
    cast = ckptmigrate.migrate(record, tmp_path / "cast.bpk", dtype="f32")

    assert (dtypes(tmp_path / "kept.bpk"), dtypes(tmp_path / "cast.bpk")) == ({"F64"}, {"F32"})
    assert any("F64, kept as they are: --dtype f32" in note for note in kept.notes)
    assert not any("kept as they are" in note for note in cast.notes)


def test_ints_that_were_stored_as_floats_must_be_whole(tmp_path: Path) -> None:
    record = MUSEUM / "0.11.1" / "zoo-full.mpk.gz"
    done = ckptmigrate.migrate(record, tmp_path / "out.bpk", ints=("counts",))
    with ckptmigrate.open(tmp_path / "out.bpk") as checkpoint:
        expected = next(p for p in truth(record.parent)["zoo"] if p["name"] == "counts")
        assert checkpoint.model["counts"].dtype.name == "I32"
        assert checkpoint.model["counts"].numpy().reshape(-1).tolist() == expected["values"]
    assert [fate.source for fate in done.fates if fate.what == "derived"] == ["counts"]

    with pytest.raises(errors.TensorError, match="is no whole number"):
        ckptmigrate.migrate(record, tmp_path / "wrong.bpk", ints=("pwff.linear_inner.weight",))
    assert not (tmp_path / "wrong.bpk").exists()
    missed = Ran("migrate", record, tmp_path / "wrong.bpk", "--int", "count")
    assert (missed.code, "close to it are counts" in missed.err) == (3, True)
    half = Ran("migrate", MUSEUM / "0.13.2" / "net-half.mpk", tmp_path / "wrong.bpk", "--int", "fc.0.bias")
    assert (half.code, "is the bit pattern of a half, no I16" in half.err) == (3, True)
    told = Ran("migrate", MUSEUM / "0.21.0" / "net-half.mpk", tmp_path / "wrong.bpk", "--int", "fc.0.bias")
    assert (told.code, "fc.0.bias is F16" in told.err) == (3, True)
