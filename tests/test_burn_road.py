"""Burn's whole road, as somebody walks it: one command over a file or a training folder, and real Burn takes what comes out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest

import ckptmigrate
from ckptmigrate import convert, errors, registry, store
from ckptmigrate.format import GatherOptions, WriteOptions
from ckptmigrate.tensor import Tensor

from .burn_records import MUSEUM, ident, truth
from .burn_runs import GOLDEN, NAMES, RECORDS, RUN, STATE_RUNS, STEPS, dtypes, proof_of, run_of
from .burnpack_desk import referee
from .command_line import Ran

# ---------------------------------------------------------------- byte for byte, and resumed by real Burn


@pytest.mark.parametrize("golden", GOLDEN, ids=map(ident, GOLDEN))
def test_one_epoch_of_a_run_becomes_the_files_that_burn_itself_writes(golden: Path, tmp_path: Path) -> None:
    proof = proof_of(golden)
    ran = Ran(
        "migrate", run_of(golden), tmp_path / "out", "--epoch", "3", "--scheduler", proof["scheduler"], "--bare", "--migrations", STEPS, "--json"
    )  # fmt: skip

    assert ran.code == 0, ran.err
    assert sorted(ran.json()["files"]) == NAMES
    for name in NAMES:
        assert (tmp_path / "out" / name).read_bytes() == (golden / name).read_bytes(), name


@pytest.mark.parametrize("record", RECORDS, ids=map(ident, RECORDS))
def test_a_model_in_any_recorder_becomes_the_file_that_burn_itself_writes(record: Path, tmp_path: Path) -> None:
    what = record.name.partition("-")[0]
    schema: list[str | Path] = ["--schema", record.parent / f"schema-{what}.json"] if ".bin" in record.name else []
    ints = ["--int", "counts"] if (what, record.parent.name) == ("zoo", "0.11.1") else []
    ran = Ran("migrate", record, tmp_path / "out.bpk", "--bare", "--migrations", STEPS, *schema, *ints)

    assert ran.code == 0, ran.err
    assert (tmp_path / "out.bpk").read_bytes() == (record.parent / "golden" / f"{what}.bpk").read_bytes()


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "stamped"])
@pytest.mark.parametrize("golden", GOLDEN, ids=map(ident, GOLDEN))
def test_burn_resumes_as_the_old_release_did(golden: Path, bare: bool, tmp_path: Path) -> None:
    proof = proof_of(golden)
    ckptmigrate.migrate(
        run_of(golden),
        tmp_path / "out",
        gather=GatherOptions(epoch=3, scheduler=proof["scheduler"]),
        write=WriteOptions(bare=bare),
        migrations=(STEPS,),
    )
    words = (proof["optimizer"], proof["scheduler"], json.dumps(proof["scheduler_config"]))
    said = referee("resume", tmp_path / "out", "3", *words)

    assert said["ok"], said
    assert [said["optim_unclaimed"], said["scheduler_unclaimed"]] == [[], []]
    resumed = truth(golden.parents[1])["runs"][golden.name]["resume_from_files"]
    allowed = max(5e-6, proof["resume_from_files_max_difference"] * 1.01)
    assert np.allclose(said["lrs"], resumed["lrs"], rtol=0, atol=1e-12)
    final = {parameter["name"]: parameter["values"] for parameter in said["final"]}
    for parameter in resumed.get("final", resumed.get("model")):
        difference = np.subtract(final[parameter["name"]], parameter["values"])
        assert np.abs(difference).max() <= allowed, parameter["name"]


@pytest.mark.parametrize("name", NAMES)
def test_a_stamp_adds_one_key_to_the_metadata_and_changes_nothing_else(name: str, tmp_path: Path) -> None:
    golden = MUSEUM / "0.21.0" / "golden" / RUN.name / name
    kind = proof_of(MUSEUM / "0.21.0" / "golden" / RUN.name)["scheduler"]
    ckptmigrate.migrate(RUN, tmp_path / "out", gather=GatherOptions(scheduler=kind))
    ours, theirs = (_header(path.read_bytes()) for path in (tmp_path / "out" / name, golden))

    metadata = ours[0].get("metadata", {})
    stamped = metadata.pop("ckptmigrate", None) is not None
    assert stamped is (
        name == NAMES[0]
    )  # the record lies in the first file; a step, as of SGD's runs of 0.3 to 0.8, stamps all
    assert metadata == theirs[0].get("metadata", {})
    assert ours[0].get("scalars") == theirs[0].get("scalars")
    assert list(ours[0]["tensors"]) == list(theirs[0]["tensors"])
    for tensor, entry in ours[0]["tensors"].items():
        other = theirs[0]["tensors"][tensor]
        assert {k: v for k, v in entry.items() if k != "data_offsets"} == {
            k: v for k, v in other.items() if k != "data_offsets"
        }
    assert ours[1] == theirs[1]


def _header(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give a burnpack's header and the bytes of each tensor, with the library of its encoding."""
    length = int.from_bytes(data[6:10], "little")
    header = cbor2.loads(data[10 : 10 + length])
    start = -(-(10 + length) // 256) * 256
    spans = {name: entry["data_offsets"] for name, entry in header["tensors"].items()}
    return header, {name: data[start + begin : start + end] for name, (begin, end) in spans.items()}


@pytest.mark.parametrize("run", STATE_RUNS, ids=map(ident, STATE_RUNS))
def test_a_run_of_the_state_era_gets_the_scheduler_file_that_is_said(run: Path, tmp_path: Path) -> None:
    ran = Ran("migrate", run, tmp_path / "out", "--epoch", "3", "--scheduler", "constant", "--json")

    assert ran.code == 0, ran.err
    assert sorted(ran.json()["files"]) == NAMES
    for name in NAMES:
        assert "tensors" in referee("read", tmp_path / "out" / name), name
    assert dtypes(tmp_path / "out") <= {"F32", "I32"}


def test_without_a_kind_that_run_is_said_to_be_not_resumable(tmp_path: Path) -> None:
    run = state_run(tmp_path)
    report = ckptmigrate.migrate(run, tmp_path / "out")

    assert sorted(report.files) == NAMES[:2]
    assert "--scheduler KIND" in next(w for w in report.warnings if "cannot be resumed" in w)
    with pytest.raises(errors.CheckpointError, match="noam has state, which nobody can make up"):
        ckptmigrate.migrate(run, tmp_path / "none", gather=GatherOptions(scheduler="noam"))
    some = ckptmigrate.migrate(run, tmp_path / "some", gather=GatherOptions(drop=("schedulers",)))
    assert not [text for text in some.warnings if "weight decay" not in text]  # which its optimizer remembers
    part = {"scheduler": str(MUSEUM / "0.13.2" / "scheduler-cosine-full.mpk")}
    joined = ckptmigrate.migrate(run, tmp_path / "joined", gather=GatherOptions(parts=part, scheduler="cosine"))
    assert sorted(joined.files) == NAMES


def state_run(tmp_path: Path) -> Path:
    """A run of 0.6, of the museum's files: two of them, as that release left them."""
    folder = tmp_path / "run" / "checkpoint"
    folder.mkdir(parents=True)
    shutil.copy(MUSEUM / "0.6.0" / "optim-adam-wd-model.json.gz", folder / "model-3.json.gz")
    shutil.copy(MUSEUM / "0.6.0" / "optim-adam-wd.json.gz", folder / "optim-3.json.gz")
    return folder.parent


# ---------------------------------------------------------------- names for a record without them


@pytest.mark.parametrize("names", ["schema-net.json", "net-full.json", "net-full.mpk", "golden/net.bpk"])
def test_a_schema_is_json_or_a_file_of_the_same_model(names: str, tmp_path: Path) -> None:
    folder = MUSEUM / "0.21.0"
    ran = Ran("migrate", folder / "net-full.bin", tmp_path / "out.bpk", "--schema", folder / names, "--bare")

    assert ran.code == 0, ran.err
    assert (tmp_path / "out.bpk").read_bytes() == (folder / "golden" / "net.bpk").read_bytes()
    shown = Ran("inspect", folder / "net-full.bin", "--schema", folder / names, "--json").json()
    assert shown["sections"]["model"]["tensors"][0]["name"] == "conv.weight"
    same = Ran("verify", folder / "net-full.bin", folder / "net-full.bin", "--schema", folder / names)
    assert same.out == "equal\n"


def test_a_schema_that_is_neither_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "schema.txt").write_text("linear: weight, bias")
    record = MUSEUM / "0.21.0" / "net-full.bin"
    ran = Ran("migrate", record, tmp_path / "out.bpk", "--schema", tmp_path / "schema.txt")

    assert (ran.code, "neither a checkpoint nor JSON" in ran.err) == (2, True)
    assert Ran("migrate", record, tmp_path / "out.bpk", "--schema", tmp_path / "none.json").code == 3


# ---------------------------------------------------------------- files alone, and ids


@pytest.mark.parametrize("name", ["optim-adam-full.mpk", "scheduler-step-fresh-full.mpk"])
def test_an_optimizer_or_scheduler_alone_is_one_file_of_its_own(name: str, tmp_path: Path) -> None:
    ran = Ran("migrate", MUSEUM / "0.21.0" / name, tmp_path / "out.bpk", "--scheduler", "step", "--json")
    if name.startswith("optim"):
        assert (ran.code, "has no scheduler" in ran.err) == (2, True)
        ran = Ran("migrate", MUSEUM / "0.21.0" / name, tmp_path / "out.bpk", "--json")

    assert ran.code == 0, ran.err
    with ckptmigrate.open(tmp_path / "out.bpk") as checkpoint:
        assert not checkpoint.model
        assert [len(checkpoint.optimizers), len(checkpoint.schedulers)] == [name[0] == "o", name[0] == "s"]


def test_the_paths_in_an_optimizers_file_are_no_values_of_the_checkpoint() -> None:
    golden = MUSEUM / "0.21.0" / "golden" / RUN.name
    for path in (golden, golden / "checkpoint" / "optim-3.bpk"):
        with ckptmigrate.open(path) as checkpoint:
            assert checkpoint.optimizers[0].params[0].name is not None
            assert not any("." in value for value in checkpoint.values.get("metadata", {}).values())


def test_ids_win_over_the_paths_in_an_optimizers_file(tmp_path: Path) -> None:
    golden = MUSEUM / "0.21.0" / "golden" / RUN.name
    names = {"fc.0.weight": "moved.weight", "fc.0.bias": "moved.bias"}
    shutil.copytree(golden / "checkpoint", tmp_path / "run" / "checkpoint")
    model = tmp_path / "run" / "checkpoint" / "model-3.bpk"
    model.unlink()
    ckptmigrate.migrate(golden / NAMES[0], model, rename=tuple(names.items()))
    with ckptmigrate.open(tmp_path / "run") as checkpoint:
        (optimizer,) = checkpoint.optimizers
        assert {param.name for param in optimizer.params} <= set(checkpoint.model)
        assert {"moved.weight", "moved.bias"} <= {param.name for param in optimizer.params}


def test_a_model_without_ids_gets_them_where_an_optimizer_refers_to_it(tmp_path: Path) -> None:
    options = convert.Options(write=WriteOptions(bare=True))
    kind = proof_of(MUSEUM / "0.21.0" / "golden" / RUN.name)["scheduler"]
    with ckptmigrate.open(RUN, gather=GatherOptions(scheduler=kind)) as checkpoint:
        for name, tensor in checkpoint.model.items():
            checkpoint.model[name] = Tensor(tensor.promise)
        files = store.scatter(checkpoint, registry.format("burnpack"), registry.layout("burn_epoch"), options.write)
        model, optim = (files[name][1].tensors or {} for name in NAMES[:2])
        ids = {str(tensor.id) for tensor in model.values() if isinstance(tensor, Tensor)}

        assert "None" in ids  # running statistics, which no optimizer has
        assert {name.partition(".")[0] for name in optim} == ids - {"None"}


def test_a_schedulers_file_that_is_none_is_refused(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    shutil.copy(tmp_path / "run" / NAMES[0].replace("bpk", "mpk"), tmp_path / "run" / NAMES[2].replace("bpk", "mpk"))
    ran = Ran("migrate", tmp_path / "run", tmp_path / "out")

    assert (ran.code, "scheduler-3.mpk is no scheduler's state" in ran.err) == (3, True)
