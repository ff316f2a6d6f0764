"""What a record of Burn does not tell, and a caller says: which numbers are integers, how many steps were made, whose an id is."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cbor2
import msgpack
import numpy as np
import pytest

import ckptmigrate
from ckptmigrate import convert
from ckptmigrate.format import GatherOptions, WriteOptions
from ckptmigrate.values import Scalar

from .burn_records import FIXTURES, MUSEUM, bare, ident, truth, unpacked
from .burnpack_desk import referee, table_of
from .command_line import Ran

if TYPE_CHECKING:
    from ckptmigrate.tensor import Tensor

HALVES = [MUSEUM / "0.11.1" / "zoo-half.mpk.gz", MUSEUM / "0.13.2" / "zoo-half.mpk"]
GOLDEN = [
    path for path in (FIXTURES / release / "golden" / "zoo.bpk" for release in ("0.11.1", "0.13.2")) if path.exists()
]
STEPS = str(Path(__file__).parent.parent / "migrations")
PARTIAL = MUSEUM / "0.4.0" / "optim-adam-partial.json.gz"
PARTIALS = [PARTIAL, MUSEUM / "0.4.0" / "optim-adam-partial-f16.json.gz"]


# ---------------------------------------------------------------- integers among bit patterns


def counts_of(folder: Path) -> list[int]:
    found: list[int] = next(p["values"] for p in truth(folder)["zoo"] if p["name"] == "counts")
    return found


@pytest.mark.parametrize("record", HALVES, ids=lambda path: str(path.parent.name))
def test_integers_of_a_half_precision_record_are_those_that_burn_held(record: Path, tmp_path: Path) -> None:
    """In 0.13.2 nothing tells them from halves, in 0.11.1 a negative one does: the same call gives the same of both."""
    for out in ("out.bpk", "out.safetensors"):
        ran = Ran("migrate", record, tmp_path / out, "--int", "counts", "--migrations", STEPS, "--json")

        assert ran.code == 0, ran.err
        assert not any("small integers" in warning for warning in ran.json()["warnings"])
        with ckptmigrate.open(tmp_path / out) as checkpoint:
            assert checkpoint.model["counts"].dtype.name == "I32"
            assert checkpoint.model["counts"].numpy().tolist() == counts_of(record.parent)


@pytest.mark.parametrize("golden", GOLDEN, ids=map(ident, GOLDEN))
def test_beside_them_is_what_half_precision_kept_of_burns_own_file(golden: Path, tmp_path: Path) -> None:
    record = next(path for path in HALVES if path.parent.name == golden.parents[1].name)
    options = convert.Options(ints=("counts",), migrations=(STEPS,), write=WriteOptions(bare=True))
    convert.migrate(record, tmp_path / "out.bpk", options)
    with ckptmigrate.open(tmp_path / "out.bpk") as ours, ckptmigrate.open(golden) as theirs:
        assert [(n, t.dtype, t.shape) for n, t in ours.model.items()] == [
            (n, t.dtype, t.shape) for n, t in theirs.model.items()
        ]
        for name, tensor in theirs.model.items():
            held = tensor.numpy()
            kept = held.astype("f2").astype("f4") if held.dtype.kind == "f" else held
            assert np.array_equal(ours.model[name].numpy(), kept), name


def test_real_burn_takes_them_as_integers(tmp_path: Path) -> None:
    record = HALVES[1]
    for words, kind in ((["--int", "counts"], "int"), ([], "float")):
        assert Ran("migrate", record, tmp_path / f"{kind}.bpk", "--migrations", STEPS, *words).code == 0
    said = referee("load", tmp_path / "int.bpk", "zoo", "--partial")

    (found,) = (p for p in said["params"] if p["name"] == "counts")
    assert (found["kind"], found["loaded"], found["values"]) == ("int", True, counts_of(record.parent))
    assert not referee("load", tmp_path / "float.bpk", "zoo", "--partial")["ok"]  # what nobody says is refused there


def test_a_tensor_that_may_hold_them_is_told_with_the_option_that_says_so(tmp_path: Path) -> None:
    ran = Ran("migrate", HALVES[1], tmp_path / "out.bpk", "--migrations", STEPS, "--json")

    (warning,) = (text for text in ran.json()["warnings"] if "small integers" in text)
    assert warning.startswith("counts holds small integers, 24, 35, 46, 57")
    assert "--int 'counts' says so" in warning


def test_what_only_a_half_can_be_is_no_integer_and_nothing_is_left_behind(tmp_path: Path) -> None:
    negative = next(name for name, values in halves(HALVES[1]) if values and max(values) > 0x8000)
    ran = Ran("migrate", HALVES[1], tmp_path / "out.bpk", "--migrations", STEPS, "--int", negative.replace(".", r"\."))

    assert (ran.code, "is the bit pattern of a half, no I16" in ran.err) == (3, True)
    assert not (tmp_path / "out.bpk").exists()
    flags = Ran("migrate", HALVES[1], tmp_path / "out.bpk", "--migrations", STEPS, "--int", "flags")
    assert (flags.code, "flags is BOOL, and ints were stored as numbers of I16" in flags.err) == (3, True)


def halves(record: Path) -> list[tuple[str, list[int]]]:
    """Give every parameter at the top of a record and one module below it, with its numbers as the file has them."""
    item = unpacked(record)["item"]
    nodes = [(name, node) for name, node in item.items() if isinstance(node, dict)]
    nodes += [
        (f"{name}.{below}", node) for name, under in nodes for below, node in under.items() if isinstance(node, dict)
    ]
    return [
        (bare(name), node["param"]["value"])
        for name, node in nodes
        if node.keys() == {"id", "param"} and all(type(n) is int for n in node["param"]["value"])
    ]


def test_a_call_that_renames_it_too_calls_it_by_the_name_that_it_had(tmp_path: Path) -> None:
    words = ["--rename", "counts=steps_seen", "--int", "counts", "--migrations", STEPS, "--json"]
    ran = Ran("migrate", HALVES[1], tmp_path / "out.bpk", *words)

    assert ran.code == 0, ran.err
    assert not any("small integers" in warning for warning in ran.json()["warnings"])
    with ckptmigrate.open(tmp_path / "out.bpk") as checkpoint:
        assert checkpoint.model["steps_seen"].numpy().tolist() == counts_of(HALVES[1].parent)


def test_a_record_whose_tensors_tell_their_dtype_has_no_patterns(tmp_path: Path) -> None:
    record = {
        "metadata": {"float": "half::binary16::f16", "int": "i16", "format": "", "version": "0.14.0", "settings": "Half"},
        "item": {"w": {"id": "0" * 13, "param": {"bytes": b"\x18\0", "shape": [1], "dtype": "F16"}}},
        "_b": [],
    }  # fmt: skip
    (tmp_path / "half.mpk").write_bytes(msgpack.packb(record))
    ran = Ran("migrate", tmp_path / "half.mpk", tmp_path / "out.bpk", "--int", "w")

    assert (ran.code, "w is F16, and ints were stored as F32 or F64" in ran.err) == (3, True)


# ---------------------------------------------------------------- how many steps an optimizer has made


def a_run(tmp_path: Path, optimizer: Path) -> Path:
    """Give a run of one epoch as a learner of that release leaves it: the model that was trained, and its optimizer."""
    folder = tmp_path / "run" / "checkpoint"
    folder.mkdir(parents=True)
    shutil.copy(optimizer.with_name("optim-adam-partial-model.json.gz"), folder / "model-3.json.gz")
    shutil.copy(optimizer, folder / "optim-3.json.gz")
    return folder.parent


@pytest.mark.parametrize("path", PARTIALS, ids=lambda path: str(path.name))
def test_without_a_count_it_is_asked_for_and_with_it_the_state_is_what_burn_held(path: Path, tmp_path: Path) -> None:
    run = a_run(tmp_path, path)
    asked = Ran("migrate", run, tmp_path / "out", "--scheduler", "constant")
    assert (asked.code, "no momentum.time" in asked.err, "--steps N" in asked.err) == (3, True, True)
    assert not (tmp_path / "out").exists()

    said = truth(path.parent)["optim"]["adam-partial"]
    ran = Ran("migrate", run, tmp_path / "out", "--scheduler", "constant", "--steps", said["steps"], "--json")
    assert ran.code == 0, ran.err
    assert any("assumes that the optimizer made 3 steps, as --steps says" in text for text in ran.json()["warnings"])
    state = json.loads(gzip.decompress(path.read_bytes()))["StateNamed"]["values"]
    with ckptmigrate.open(tmp_path / "out") as checkpoint:
        ((param,),) = (optimizer.params for optimizer in checkpoint.optimizers)
        assert (param.name, checkpoint.optimizers[0].kind, param.slots is not None) == ("head.weight", "adam", True)
        slots = {name: slot.value for name, slot in (param.slots or {}).items()}
        assert slots["momentum.time"] == Scalar("uint", said["steps"])
        for moment in ("moment_1", "moment_2"):
            (key,) = (key for key in state if key.startswith(moment))
            values = state[key]["Data"]["value"]
            held = np.array(values, "u2").view("f2").astype("f4") if "f16" in path.name else np.array(values, "f4")
            assert slots[f"momentum.{moment}"].numpy().reshape(-1).tolist() == held.tolist()


def test_said_counts_are_byte_for_byte_those_that_a_later_release_wrote(tmp_path: Path) -> None:
    """0.6 writes every count. Without them its file is one of 0.4, and what is said must give back what Burn itself had written."""
    whole = MUSEUM / "0.6.0" / "optim-adam-partial.json.gz"
    tree = json.loads(gzip.decompress(whole.read_bytes()))
    values = tree["StateNamed"]["values"]
    times = {name: values.pop(name) for name in list(values) if name.startswith("time-")}
    (tmp_path / "timeless.json.gz").write_bytes(gzip.compress(json.dumps(tree).encode()))
    ckptmigrate.migrate(whole, tmp_path / "whole.bpk")
    ckptmigrate.migrate(tmp_path / "timeless.json.gz", tmp_path / "said.bpk", gather=GatherOptions(steps=3))

    assert {number for node in times.values() for number in node["Data"]["value"]} == {3.0}
    assert (tmp_path / "said.bpk").read_bytes() == (tmp_path / "whole.bpk").read_bytes()


def test_real_burn_claims_the_state_that_was_given_its_count(tmp_path: Path) -> None:
    run = a_run(tmp_path, MUSEUM / "0.6.0" / "optim-adam-partial.json.gz")
    optimizer = run / "checkpoint" / "optim-3.json.gz"
    tree = json.loads(gzip.decompress(optimizer.read_bytes()))
    values = tree["StateNamed"]["values"]
    tree["StateNamed"]["values"] = {name: node for name, node in values.items() if not name.startswith("time-")}
    optimizer.write_bytes(gzip.compress(json.dumps(tree).encode()))
    ckptmigrate.migrate(run, tmp_path / "out", gather=GatherOptions(scheduler="constant", steps=3))
    said = referee("resume", tmp_path / "out", "3", "adam-partial", "constant", json.dumps({"lr": 0.01}))

    assert said["ok"], said
    assert said["optim_unclaimed"] == []


def test_part_and_inspect_take_it_too(tmp_path: Path) -> None:
    model = MUSEUM / "0.4.0" / "optim-adam-partial-model.json.gz"
    words = ["--part", f"optimizers={PARTIAL}", "--steps", "3"]
    ran = Ran("migrate", model, tmp_path / "out", *words)
    shown = Ran("inspect", PARTIAL, "--steps", "3", "--json").json()

    assert ran.code == 0, ran.err
    (param,) = shown["sections"]["optimizers"][0]["params"]
    assert {slot["name"]: slot.get("value") for slot in param["slots"]}["momentum.time"] == 3
    with ckptmigrate.open(tmp_path / "out") as checkpoint:
        assert [param.name for param in checkpoint.optimizers[0].params] == ["head.weight"]


def test_a_count_that_means_nothing_is_wrong_usage(tmp_path: Path) -> None:
    whole = MUSEUM / "0.4.0" / "optim-adam.json.gz"  # some of its parameters have one, and the others get that
    for path, count, says in (
        (whole, "3", "no optimizer of the checkpoint lacks its step count"),
        (MUSEUM / "0.4.0" / "net.json.gz", "3", "no optimizer of the checkpoint lacks its step count"),
        (PARTIAL, "0", "--steps 0: expected a count from 1"),
    ):
        ran = Ran("migrate", path, tmp_path / "out.bpk", "--steps", count)
        assert (ran.code, says in ran.err) == (2, True), ran.err
    run = a_run(tmp_path, PARTIAL)
    for kind in ("model", "optim"):
        shutil.copy(run / "checkpoint" / f"{kind}-3.json.gz", run / "checkpoint" / f"{kind}-4.json.gz")
    ran = Ran("migrate", run, tmp_path / "out", "--steps", "3")
    assert (ran.code, "each epoch of a run has a count of its own" in ran.err) == (2, True), ran.err
    assert Ran("migrate", run, tmp_path / "out", "--steps", "3", "--epoch", "4").code == 0


def test_a_state_that_lacks_more_than_its_count_is_refused_as_before(tmp_path: Path) -> None:
    tree = json.loads(gzip.decompress(PARTIAL.read_bytes()))
    values = tree["StateNamed"]["values"]
    tree["StateNamed"]["values"] = {name: node for name, node in values.items() if name.startswith("moment_1-")}
    (tmp_path / "half.json.gz").write_bytes(gzip.compress(json.dumps(tree).encode()))
    ran = Ran("migrate", tmp_path / "half.json.gz", tmp_path / "out.bpk", "--steps", "3")

    assert (ran.code, "no momentum.moment_2, momentum.time" in ran.err, "--steps N" in ran.err) == (3, True, False)


# ---------------------------------------------------------------- ids of several parameters


@pytest.mark.parametrize("release", ["0.19.1", "0.20.1", "0.21.0"])
def test_ids_of_several_parameters_are_kept_where_no_state_is_of_them(release: str, tmp_path: Path) -> None:
    path = MUSEUM / release / "dtypes.bpk"
    ran = Ran("migrate", path, tmp_path / "out.bpk", "--json", "--bare")

    assert ran.code == 0, ran.err
    (warning,) = (text for text in ran.json()["warnings"] if "one id" in text)
    assert warning.startswith("z.f16 and u16 have one id, 0 (and so do others: 9 ids are of several parameters)")
    wanted = {one["name"]: one for one in truth(path.parent)["dtypes"]}
    fates = {row["source"]: row["fate"] for row in ran.json()["ledger"]}
    assert {name: fates[name] for name in wanted} == dict.fromkeys(wanted, "kept")
    with ckptmigrate.open(tmp_path / "out.bpk") as checkpoint:
        assert {name: (tensor.id, elements(tensor)) for name, tensor in checkpoint.model.items()} == {
            name: (int(one["id_u64"]), one["bytes_hex"]) for name, one in wanted.items()
        }
    told = referee("read", tmp_path / "out.bpk")
    assert {t["name"]: int(t["param_id"]) for t in told["tensors"]} == {
        name: int(one["id_u64"]) for name, one in wanted.items()
    }


def elements(tensor: Tensor) -> str:
    return tensor.promise.read(0, tensor.promise.numel).hex()


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """Give a run of today's Burn, of whose model two parameters were given one id."""
    run = tmp_path / "run"
    shutil.copytree(MUSEUM / "0.21.0" / "golden" / "run-sgd-momentum" / "checkpoint", run / "checkpoint")
    model = run / "checkpoint" / "model-3.bpk"
    data = model.read_bytes()
    table, start = table_of(data), aligned(10 + int.from_bytes(data[6:10], "little"))
    table["tensors"]["fc.1.weight"]["param_id"] = table["tensors"]["fc.0.weight"]["param_id"]
    text = cbor2.dumps(table)
    head = data[:6] + len(text).to_bytes(4, "little") + text
    model.chmod(0o644)
    model.write_bytes(head.ljust(aligned(len(head)), b"\0") + data[start:])
    return run


def aligned(offset: int) -> int:
    return -(-offset // 256) * 256


def test_state_of_such_an_id_is_refused_with_both_candidates(torn: Path, tmp_path: Path) -> None:
    refused = Ran("migrate", torn, tmp_path / "out", "--json")

    assert refused.code == 3
    assert "fc.0.weight and fc.1.weight have one id" in refused.err
    assert "F32 [32, 4] and F32 [4, 3]: an optimizer's state is of that id" in refused.err
    assert not (tmp_path / "out").exists()
    assert "--drop optimizers" in refused.err
    assert Ran("migrate", torn, tmp_path / "out", "--drop", "optimizers").code == 0


def test_real_burn_loads_such_a_model_with_its_ids_and_cannot_train_it(torn: Path, tmp_path: Path) -> None:
    """Why the ids are kept, and what is warned of."""
    ckptmigrate.migrate(torn / "checkpoint" / "model-3.bpk", tmp_path / "out.bpk")
    loaded = referee("load", tmp_path / "out.bpk", "net")
    run = referee(
        "resume", torn, "3", proof()["optimizer"], proof()["scheduler"], json.dumps(proof()["scheduler_config"])
    )

    assert loaded["ok"], loaded
    ids = {p["name"]: p["id_u64"] for p in loaded["params"]}
    assert ids["fc.0.weight"] == ids["fc.1.weight"]
    assert (run["ok"], run["error"]["stage"]) == (False, "train")


def proof() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MUSEUM / "0.21.0" / "golden" / "run-sgd-momentum" / "proof.json").read_text())
    return found


# ---------------------------------------------------------------- which epoch it is


@pytest.fixture
def current(tmp_path: Path) -> Path:
    """Give a run of one epoch that today's Burn wrote."""
    run = tmp_path / "current"
    shutil.copytree(MUSEUM / "0.21.0" / "golden" / "run-sgd-momentum" / "checkpoint", run / "checkpoint")
    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_choosing_an_epoch_of_a_run_changes_nothing(current: Path) -> None:
    before = contents(current)
    ran = Ran("migrate", current, "--in-place", "--epoch", "3", "--scheduler", proof()["scheduler"])

    assert ran.code == 0, ran.err
    assert "nothing written" in ran.out
    assert contents(current) == before


def test_numbering_a_source_that_has_none_is_a_change_once(current: Path) -> None:
    model = current / "model.bpk"
    model.write_bytes((current / "checkpoint" / "model-3.bpk").read_bytes())
    said = [
        Ran("migrate", model, "--in-place", *words).out
        for words in 2 * [["--epoch", "3"]] + 2 * [["--epoch-means", "next"]]
    ]

    assert ["nothing written" in text for text in said] == [False, True, False, True]
    with ckptmigrate.open(model) as checkpoint:
        assert (checkpoint.progress.epoch, checkpoint.progress.counts) == (3, "next")
