"""Burn's whole road, as somebody walks it: one command over a file or a training folder, and real Burn takes what comes out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cbor2
import msgpack
import numpy as np
import pytest

import ckptmigrate
from ckptmigrate import convert, errors, registry, store
from ckptmigrate.format import GatherOptions, WriteOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Scalar

from .burn_records import FIXTURES, MUSEUM, ident, truth
from .burnpack_desk import referee
from .command_line import Ran

STEPS = str(
    Path(__file__).parent.parent / "migrations"
)  # where ckptmigrate is no installed package; the same step twice is one
NAMES = [f"checkpoint/{what}-3.bpk" for what in ("model", "optim", "scheduler")]
GOLDEN = [
    path.parent
    for path in sorted(FIXTURES.glob("0.*/golden/run-*/proof.json"))
    if (path.parents[2] / path.parent.name).is_dir()
]
RECORDS = [
    record
    for golden in sorted(FIXTURES.glob("0.*/golden/*.bpk"))
    for record in sorted(golden.parents[1].glob(f"{golden.stem}-full.*"))
]
STATE_RUNS = sorted(path for era in ("0.3.0", "0.4.0", "0.6.0") for path in FIXTURES.glob(f"{era}/run-*"))
RUN = MUSEUM / "0.21.0" / "run-sgd-momentum"
HALF_RUN = MUSEUM / "0.13.2" / "run-adam"


def run_of(golden: Path) -> Path:
    return golden.parents[1] / golden.name


def proof_of(golden: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden / "proof.json").read_text())
    return found


def dtypes(path: Path) -> set[str]:
    with ckptmigrate.open(path) as checkpoint:
        slots = [s.value for o in checkpoint.optimizers for p in o.params for s in (p.slots or {}).values()]
        tensors = [*checkpoint.model.values(), *slots]
        return {tensor.dtype.name for tensor in tensors if isinstance(tensor, Tensor)}


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


# ---------------------------------------------------------------- half precision


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


# ---------------------------------------------------------------- of what kind a scheduler is


@pytest.fixture
def undetermined(tmp_path: Path) -> Path:
    """A run whose scheduler's record is a number alone."""
    shutil.copytree(RUN, tmp_path / "run")
    scheduler = tmp_path / "run" / "checkpoint" / "scheduler-3.mpk"
    record = msgpack.unpackb(scheduler.read_bytes())
    scheduler.write_bytes(msgpack.packb(record | {"item": 9}))
    return tmp_path / "run"


def kind_at(path: Path) -> Any:
    with ckptmigrate.open(path) as checkpoint:
        (tree,) = checkpoint.schedulers
        return tree


def test_a_kind_that_nothing_tells_is_refused_with_both_remedies(undetermined: Path, tmp_path: Path) -> None:
    ran = Ran("migrate", undetermined, tmp_path / "out")

    assert ran.code == 3
    assert "--scheduler KIND tells" in ran.err
    assert "--drop schedulers" in ran.err


def test_the_configuration_beside_a_run_tells_it(undetermined: Path, tmp_path: Path) -> None:
    shutil.copy(MUSEUM / "learner" / "0.18.0" / "default" / "config.json", undetermined)
    ran = Ran("migrate", undetermined, tmp_path / "out", "--json")

    assert ran.code == 0, ran.err
    assert kind_at(tmp_path / "out") == {"current_iter": Scalar("uint", 9)}
    assert any("assumes that the scheduler is cosine" in warning for warning in ran.json()["warnings"])


def test_a_caller_tells_it_and_the_report_calls_that_an_assumption(undetermined: Path, tmp_path: Path) -> None:
    ran = Ran("migrate", undetermined, tmp_path / "out", "--scheduler", "linear")

    assert ran.code == 0, ran.err
    assert kind_at(tmp_path / "out") == {"remaining_iters": Scalar("uint", 9)}
    assert "assumes that the scheduler is linear" in ran.out


def test_a_caller_and_a_configuration_that_contradict_each_other_are_refused(
    undetermined: Path, tmp_path: Path
) -> None:
    shutil.copy(MUSEUM / "learner" / "0.18.0" / "default" / "config.json", undetermined)
    ran = Ran("migrate", undetermined, tmp_path / "out", "--scheduler", "linear")

    assert ran.code == 2
    assert "the configuration of cosine" in ran.err
    inner = Ran("migrate", undetermined / "checkpoint", tmp_path / "out", "--scheduler", "linear")
    assert inner.code == 0, inner.err


def test_a_record_that_contradicts_what_is_said_is_refused(tmp_path: Path) -> None:
    record = MUSEUM / "0.13.2" / "scheduler-cosine-full.mpk"
    wrong = Ran("migrate", record, tmp_path / "out.bpk", "--scheduler", "linear")
    right = Ran("migrate", record, tmp_path / "out.bpk", "--scheduler", "cosine", "--bare")

    assert (wrong.code, "is of cosine, not of linear" in wrong.err) == (3, True)
    assert right.code == 0, right.err
    assert Ran("migrate", record, tmp_path / "none.bpk", "--scheduler", "wild").code == 2


def test_a_record_that_contradicts_the_configuration_is_refused_with_the_way_out(tmp_path: Path) -> None:
    shutil.copytree(HALF_RUN, tmp_path / "run")
    shutil.copy(MUSEUM / "learner" / "0.18.0" / "default" / "config.json", tmp_path / "run")
    refused = Ran("migrate", tmp_path / "run", tmp_path / "out")

    assert refused.code == 3
    assert "is of exponential, not of cosine" in refused.err
    assert "config.json tells of cosine" in refused.err
    assert Ran("migrate", tmp_path / "run" / "checkpoint", tmp_path / "out").code == 0


def test_a_configuration_that_is_no_json_is_noted_and_tells_nothing(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    for name, text in (("config.json", "{"), ("deep.json", "[" * 100_000), ("twice.json", '{"a": 1, "a": 2}')):
        (tmp_path / "run" / name).write_text(text)
    with ckptmigrate.open(tmp_path / "run") as checkpoint:
        assert checkpoint.companions == {}
        assert sorted(note.partition(" ")[0] for note in checkpoint.ledger.notes if "tells nothing" in note) == [
            "config.json", "deep.json", "twice.json",
        ]  # fmt: skip


def test_a_kind_means_nothing_where_there_is_no_scheduler(tmp_path: Path) -> None:
    ran = Ran("migrate", MUSEUM / "0.21.0" / "net-full.mpk", tmp_path / "out.bpk", "--scheduler", "noam")

    assert (ran.code, "has no scheduler" in ran.err) == (2, True)


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


# ---------------------------------------------------------------- cases


def mpk(path: Path, item: Any, version: str = "0.20.1") -> Path:
    metadata = {"float": "f32", "int": "i32", "format": "NamedMpk", "version": version, "settings": "Full"}
    path.write_bytes(msgpack.packb({"metadata": metadata, "item": item, "_b": []}))
    return path


def payload(values: Any) -> dict[str, Any]:
    array = np.array(values, "<f4")
    return {"bytes": array.tobytes(), "shape": list(array.shape), "dtype": "F32"}


def parameter(text: str, values: Any) -> dict[str, Any]:
    return {"id": text, "param": payload(values)}


def test_a01_a_missing_field_without_tensors_is_no_obstacle_and_nothing_is_invented(tmp_path: Path) -> None:
    weight = np.arange(6, dtype="f4").reshape(2, 3)
    inner = {"weight": parameter("aaaaaaaaaaaaa", weight), "bias": None}
    outer = {"weight": parameter("bbbbbbbbbbbbb", weight.T), "bias": None}
    record = mpk(tmp_path / "classifier.mpk", {"pwff": {"linear_inner": inner, "linear_outer": outer}})
    for out in ("out.bpk", "out.safetensors"):
        assert Ran("migrate", record, tmp_path / out).code == 0
        with ckptmigrate.open(tmp_path / out) as checkpoint:
            assert list(checkpoint.model) == ["pwff.linear_inner.weight", "pwff.linear_outer.weight"]
            assert checkpoint.model["pwff.linear_inner.weight"].numpy().tobytes() == weight.tobytes()

    for words in (["old", "--to", "burn_mpk"], ["old.mpk"], ["old.mpk.gz"], ["old.bin.gz"]):
        refused = Ran("migrate", record, tmp_path / words[0], *words[1:])
        assert refused.code == 2
        assert "is read only" in refused.err
        assert "burnpack" in refused.err
        assert "safetensors" in refused.err
        assert not (tmp_path / words[0]).exists()


def test_a05_a_binary_record_is_told_of_and_read_with_a_schema(tmp_path: Path) -> None:
    texts = (b"f32", b"i32", b"burn_core::record::file::BinFileRecorder", b"0.19.0", b"FullPrecisionSettings")
    head = b"".join(bytes([len(text)]) + text for text in texts)
    weight = np.array([[1.5, -2], [0, 3.25]], "<f4")
    body = b"\x0daaaaaaaaaaaaa" + b"\x10" + weight.tobytes() + b"\2\2\2\1" + b"\0"
    (tmp_path / "linear.bin").write_bytes(head + body)
    linear = [["weight", "param"], ["bias", {"option": "param"}]]
    (tmp_path / "schema.json").write_text(json.dumps({"struct": [["linear", {"struct": linear}]]}))
    refused = Ran("migrate", tmp_path / "linear.bin", tmp_path / "out.bpk")

    assert refused.code == 3
    for mention in ("0.19.0", "FullPrecisionSettings", "--schema FILE", "names"):
        assert mention in refused.err
    done = Ran("migrate", tmp_path / "linear.bin", tmp_path / "out.bpk", "--schema", tmp_path / "schema.json", "--json")
    assert done.code == 0, done.err
    with ckptmigrate.open(tmp_path / "out.bpk") as checkpoint:
        assert list(checkpoint.model) == ["linear.weight"]
        assert checkpoint.model["linear.weight"].numpy().tolist() == weight.tolist()


def a07(folder: Path) -> Path:
    """A model and an optimizer of two parameters, the optimizer in the other order."""
    (folder / "run").mkdir()
    weight, bias = np.array([[1, 2], [3, 4]], "f4"), np.array([5, 6], "f4")
    model = {"linear": {"weight": parameter("aaaaaaaaaaaaa", weight), "bias": parameter("bbbbbbbbbbbbb", bias)}}
    mpk(folder / "run" / "model-9.mpk", model)
    state = {
        text: {"V1": {f"Rank{value.ndim}": {"momentum": {
            "time": 5, "moment_1": payload(value * 10), "moment_2": payload(value * 100),
        }}}}
        for text, value in (("bbbbbbbbbbbbb", bias), ("aaaaaaaaaaaaa", weight))
    }  # fmt: skip
    mpk(folder / "run" / "optim-9.mpk", state)
    return folder / "run"


def test_a07_optimizer_state_is_joined_to_names_and_written_under_the_models_ids(tmp_path: Path) -> None:
    run = a07(tmp_path)
    assert Ran("migrate", run, tmp_path / "out", "--bare").code == 0
    with ckptmigrate.open(tmp_path / "out") as checkpoint:
        (optimizer,) = checkpoint.optimizers
        assert [param.name for param in optimizer.params] == ["linear.weight", "linear.bias"]
        assert [param.key for param in optimizer.params] == [tensor.id for tensor in checkpoint.model.values()]
        slots = optimizer.params[0].slots or {}
        assert slots["momentum.time"].value == Scalar("uint", 5)
        assert slots["momentum.moment_1"].value.numpy().tolist() == [[10, 20], [30, 40]]
    refused = Ran("migrate", run, tmp_path / "out.pt")
    assert refused.code == 2
    assert "only a named bridge crosses families: --chain burn_torch" in refused.err
    assert Ran("migrate", run, tmp_path / "out.pt", "--sections", "model").code == 0  # names and axes as they are


def test_a07_state_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    run = a07(tmp_path)
    record = msgpack.unpackb((run / "optim-9.mpk").read_bytes())
    record["item"]["aaaaaaaaaaaaa"]["V1"]["Rank2"]["momentum"]["moment_1"] = payload([[1, 2, 3]])
    (run / "optim-9.mpk").write_bytes(msgpack.packb(record))
    refused = Ran("migrate", run, tmp_path / "out")

    assert (refused.code, "linear.weight" in refused.err) == (3, True)


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
