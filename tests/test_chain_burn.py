"""The shipped chains of Burn: what a step makes of a real record is what today's Burn itself writes, or loads strictly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import ckptmigrate
from ckptmigrate import chains, engine, registry
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Param, Slot
from ckptmigrate.convert import Report
from ckptmigrate.errors import UsageError
from ckptmigrate.format import GatherOptions, WriteOptions
from ckptmigrate.operations import Drop, Rename
from ckptmigrate.tensor import Tensor, array

from .burn_records import FIXTURES
from .burnpack_desk import referee

ROOT = Path(__file__).parent.parent
STEPS = str(
    ROOT / "migrations"
)  # found here too where ckptmigrate is no installed package; the same file twice is one step
BARE = WriteOptions(bare=True)
COUPLED = "burn.coupled_lstm"
GATES = [f"lstm.forget_gate.{part}_transform.{what}" for part in ("input", "hidden") for what in ("weight", "bias")]
LSTM = FIXTURES / "0.21.0" / "optim-coupled-model.mpk"
ADAM = FIXTURES / "0.21.0" / "optim-coupled-full.mpk"
RUNS = [
    run
    for release in ("0.7.0", "0.8.0")
    for run in sorted((FIXTURES / release / "golden").glob("run-*"))
    if (FIXTURES / release / run.name).is_dir()
]


def migrate(path: Path, out: Path, **options: Any) -> Report:
    done = ckptmigrate.migrate(path, out, migrations=(STEPS,), **options)
    assert isinstance(done, Report)
    return done


def dropped(report: Report) -> list[str]:
    return [fate.source for fate in report.fates if fate.what == "dropped"]


def renamed(report: Report) -> dict[str, tuple[str, ...]]:
    return {fate.source: fate.targets for fate in report.fates if fate.what == "renamed"}


def steps(report: Report) -> list[str]:
    return [step.partition(" (")[0] for step in report.steps]


def changed(path: Path, out: Path, change: Any) -> Path:
    """Give a real record of which one thing is otherwise."""
    record = msgpack.unpackb(path.read_bytes())
    change(record)
    out.write_bytes(msgpack.packb(record))
    return out


def of_release(version: str) -> Any:
    return lambda record: record["metadata"].update(version=version)


# ---------------------------------------------------------------- burn 0.14: instance norm


@pytest.mark.parametrize("name", ["zoo-full.mpk", "zoo-full.json"])
def test_an_instance_norm_of_0_13_becomes_what_todays_burn_writes(tmp_path: Path, name: str) -> None:
    """The zoo has a group norm in a field called `group_norm` too: it keeps its name."""
    report = migrate(FIXTURES / "0.13.2" / name, tmp_path / "zoo.bpk", write=BARE)

    assert steps(report) == ["burn to 0.14"]
    assert renamed(report) == {
        f"instance_norm.group_norm.{leaf}": (f"model/instance_norm.{leaf}",) for leaf in ("gamma", "beta")
    }
    assert dropped(report) == []
    assert (tmp_path / "zoo.bpk").read_bytes() == (FIXTURES / "0.13.2" / "golden" / "zoo.bpk").read_bytes()


@pytest.mark.parametrize(
    ("version", "expected"), [("0.13.0", 1), ("0.13", 1), ("0.12.1", 0), ("0.14.0", 0), ("0.130.0", 0)]
)
def test_only_a_record_of_0_13_has_such_an_instance_norm(tmp_path: Path, version: str, expected: int) -> None:
    path = changed(FIXTURES / "0.13.2" / "zoo-full.mpk", tmp_path / "zoo.mpk", of_release(version))

    assert len(migrate(path, tmp_path / "zoo.bpk").steps) == expected


def test_a_group_norm_that_has_a_field_beside_it_keeps_its_name(tmp_path: Path) -> None:
    """A constant beside it is enough, which is no tensor; an instance norm elsewhere in the model is renamed all the same."""

    def with_two(record: Any) -> None:
        record["item"] = {"mine": {**record["item"]["instance_norm"], "dropout": None}, **record["item"]}

    path = changed(FIXTURES / "0.13.2" / "zoo-full.mpk", tmp_path / "zoo.mpk", with_two)
    report = migrate(path, tmp_path / "zoo.bpk")
    with ckptmigrate.open(tmp_path / "zoo.bpk") as written:
        assert {"mine.group_norm.gamma", "group_norm.gamma", "instance_norm.gamma"} <= written.model.keys()
    assert len(renamed(report)) == 2

    alone = changed(path, tmp_path / "alone.mpk", lambda record: record["item"].pop("instance_norm"))
    assert migrate(alone, tmp_path / "alone.bpk").steps == ()


def test_an_instance_norm_may_be_the_whole_model(tmp_path: Path) -> None:
    path = changed(
        FIXTURES / "0.13.2" / "zoo-full.mpk", tmp_path / "norm.mpk", lambda r: r.update(item=r["item"]["instance_norm"])
    )
    migrate(path, tmp_path / "norm.bpk")
    with ckptmigrate.open(tmp_path / "norm.bpk") as written:
        assert list(written.model) == ["gamma", "beta"]


def test_what_was_migrated_is_stamped_and_has_nothing_pending(tmp_path: Path) -> None:
    migrate(FIXTURES / "0.13.2" / "zoo-full.mpk", tmp_path / "once.bpk")
    assert ckptmigrate.inspect(tmp_path / "once.bpk")["versions"] == {"burn": "0.14"}

    report = migrate(tmp_path / "once.bpk", tmp_path / "twice.bpk")
    assert report.steps == ()
    assert (tmp_path / "once.bpk").read_bytes() == (tmp_path / "twice.bpk").read_bytes()


@pytest.mark.parametrize("name", ["0.14.0/net-full.mpk", "0.21.0/net-full.mpk", "0.21.0/net.bpk", "0.22.1/net.bpk"])
def test_a_record_of_a_later_release_has_nothing_pending(tmp_path: Path, name: str) -> None:
    if not (FIXTURES / name).exists():
        pytest.skip(f"the museum is not beside this checkout: shared/fixtures/burn/{name}")
    report = migrate(FIXTURES / name, tmp_path / "net.bpk", dry_run=True)

    assert (report.steps, report.warnings) == ((), ())


# ---------------------------------------------------------------- burn 0.9: weight decay


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.parent.parent.name}/{run.name}")
def test_a_run_of_0_7_and_0_8_becomes_what_todays_burn_writes(tmp_path: Path, run: Path) -> None:
    proof = json.loads((run / "proof.json").read_text())
    gather = GatherOptions(epoch=3, scheduler=proof["scheduler"])
    report = migrate(run.parent.parent / run.name, tmp_path / "out", write=BARE, gather=gather)
    decayed = "momentum" in run.name  # those of Adam were trained without weight decay

    assert steps(report) == (["burn to 0.9"] if decayed else [])
    assert [name.rpartition(".")[2] for name in dropped(report)] == ["grad_last_step"] * len(dropped(report))
    assert bool(dropped(report)) == decayed
    for name in ("model", "optim", "scheduler"):
        written = tmp_path / "out" / "checkpoint" / f"{name}-3.bpk"
        assert written.read_bytes() == (run / "checkpoint" / f"{name}-3.bpk").read_bytes(), name


@pytest.mark.parametrize("name", ["optim-adam-wd.json.gz", "optim-sgd-momentum.json.gz"])
@pytest.mark.parametrize("release", ["0.4.0", "0.6.0"])
def test_the_first_releases_write_no_version_and_the_slot_tells(tmp_path: Path, release: str, name: str) -> None:
    path = FIXTURES / release / name
    if not path.exists():
        pytest.skip(f"the museum is not beside this checkout: shared/fixtures/burn/{release}/{name}")
    assert ckptmigrate.inspect(path)["versions"] == {}
    with ckptmigrate.open(path) as old:
        slots = [set(param.slots or {}) for param in old.optimizers[0].params]
        assert all("weight_decay.grad_last_step" in held for held in slots)
        chains.upgrade(old, chains.Catalog.find((STEPS,)), family=registry.family("burn"))

        assert [set(param.slots or {}) for param in old.optimizers[0].params] == [
            held - {"weight_decay.grad_last_step"} for held in slots
        ]
        assert old.stamp.versions == {"burn": "0.14"}


# ---------------------------------------------------------------- burn.coupled_lstm


def gather(optimizer: Path) -> GatherOptions:
    return GatherOptions(epoch=2, parts={"optimizers": str(optimizer)})


def test_the_optimizer_tells_which_lstm_is_coupled_and_burn_loads_the_model_strictly(tmp_path: Path) -> None:
    """The model has a second LSTM of the same names whose forget gate was trained: it stays."""
    report = migrate(LSTM, tmp_path / "out", chains={COUPLED: None}, gather=gather(ADAM), write=BARE)
    model = tmp_path / "out" / "checkpoint" / "model-2.bpk"

    assert steps(report) == [f"{COUPLED} to 0.22"]
    assert dropped(report) == GATES
    assert model.read_bytes() == (FIXTURES / "0.22.1" / "optim-coupled-model.bpk").read_bytes()
    told = referee("load", model, "coupled")
    assert (told["ok"], told.get("error")) == (True, None)


def test_without_the_step_todays_burn_refuses_it_and_the_chain_is_suggested(tmp_path: Path) -> None:
    report = migrate(LSTM, tmp_path / "out", gather=gather(ADAM))

    assert (report.steps, dropped(report)) == ((), [])
    assert f"chain {COUPLED} looks needed (step 0.22); apply it with --chain {COUPLED}" in report.notes
    told = referee("load", tmp_path / "out" / "checkpoint" / "model-2.bpk", "coupled")
    assert not told["ok"]
    assert "Unused tensors" in json.dumps(told["error"])


@pytest.mark.parametrize(
    "said", [GatherOptions(only=("model",)), GatherOptions(drop=("optimizer",))], ids=["only", "drop"]
)
def test_an_optimizer_that_is_not_wanted_in_the_end_still_tells(tmp_path: Path, said: GatherOptions) -> None:
    wanted = replace(said, parts={"optimizers": str(ADAM)})
    report = migrate(LSTM, tmp_path / "model.bpk", chains={COUPLED: None}, gather=wanted, write=BARE)

    assert set(GATES) <= set(dropped(report))
    assert (tmp_path / "model.bpk").read_bytes() == (FIXTURES / "0.22.1" / "optim-coupled-model.bpk").read_bytes()


def test_a_model_alone_does_not_tell_and_nothing_is_guessed(tmp_path: Path) -> None:
    path = FIXTURES / "0.21.0" / "coupled-full.mpk"
    report = migrate(path, tmp_path / "as-it-is.bpk", chains={COUPLED: None})
    assert (report.steps, dropped(report)) == ((), [])
    assert any("nothing of it is applied" in note and "the optimizer of the same run" in note for note in report.notes)

    report = migrate(path, tmp_path / "said.bpk", exclude=(r"lstm\.forget_gate\..*",), write=BARE)
    assert dropped(report) == GATES
    assert (tmp_path / "said.bpk").read_bytes() == (FIXTURES / "0.22.1" / "coupled.bpk").read_bytes()
    assert referee("load", tmp_path / "said.bpk", "coupled")["ok"]


def test_a_layer_that_was_not_trained_at_all_keeps_its_gates(tmp_path: Path) -> None:
    """A frozen LSTM has no state of its forget gate either, and none of the input gate beside it."""
    names = {name for name in _ids() if name.startswith("lstm.")}

    def without_layer(record: Any) -> None:
        for name in names - set(GATES):
            del record["item"][_ids()[name]]

    frozen = changed(ADAM, tmp_path / "frozen.mpk", without_layer)
    report = migrate(LSTM, tmp_path / "out", chains={COUPLED: None}, gather=gather(frozen))

    assert (report.steps, dropped(report)) == ((), [])


def _ids() -> dict[str, str]:
    with ckptmigrate.open(LSTM) as model:
        read = {}
        record = msgpack.unpackb(LSTM.read_bytes())["item"]
        for name in model.model:
            node = record
            for key in name.split("."):
                node = node[key]
            read[name] = node["id"]
    return read


# ---------------------------------------------------------------- the two conditions


def test_a_condition_that_nothing_fulfils_is_a_problem_unless_the_operation_is_optional() -> None:
    def checkpoint() -> Checkpoint:
        made = Checkpoint("burn", model={name: Tensor(array(np.ones(1, "f4"))) for name in ("a.x", "a.y")})
        made.modules = {"a": {"fields": ["x", "y"]}}
        made.optimizers = [
            Optimizer("sgd", [Param("a.y", "file", 1, 0, {"momentum.velocity": Slot(Tensor(array(np.ones(1, "f4"))))})])
        ]
        return made

    def problems(operation: Any) -> list[str]:
        return engine.apply_operations(checkpoint(), [operation], registry.family("burn"), origin="here")

    assert problems(Rename(r"(a)\.x", r"\1.z", fields=["x", "y"])) == []
    assert "nothing proves that a.x is meant" in problems(Rename(r"(a)\.x", r"\1.z", fields=["x"]))[0]
    assert problems(Rename(r"(a)\.x", r"\1.z", fields=["x"], optional=True)) == []
    assert problems(Drop(r"(.*)\.x", "why", beside=r"\1.y")) == []
    assert "nothing proves that a.y is meant" in problems(Drop(r"(.*)\.y", "why", beside=r"\1.x"))[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rename(r"a\.x", "b", fields=["x"]),  # no group says which module
        lambda: Rename(r"(a)\.x", "b", fields=["x"], on="slots"),
        lambda: Drop(r"a\.x", "why", beside=r"\1.y"),
        lambda: Drop(r"(a)\.x", "why", beside=r"\1.y", on="values"),
        lambda: ckptmigrate.Untrained("a", beside=r"\1"),
    ],
)
def test_a_condition_that_cannot_be_asked_is_refused_where_it_is_written(make: Any) -> None:
    with pytest.raises(UsageError):
        make()
