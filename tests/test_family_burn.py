"""Burn's family: runs and files of every release, into ours and back to what Burn 0.22.1 itself writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.checkpoint import Checkpoint, Optimizer
from ckptmigrate.dtypes import F32
from ckptmigrate.errors import CkptError
from ckptmigrate.files import Disk
from ckptmigrate.format import Parts
from ckptmigrate.tensor import Tensor, cast, fill
from ckptmigrate.values import NOTHING, Scalar

from .burn_family import BURN, CURRENT, OLD, Said, identify, read, scalars, tensor, tensors, uint
from .burn_records import FIXTURES

RUNS = sorted(path.parent for path in FIXTURES.glob("0.*/golden/run-*/proof.json"))
RUNS = [run for run in RUNS if list((run.parent.parent / run.name / "checkpoint").glob("model-3.mpk*"))]


# ---------------------------------------------------------------- as Burn writes today


@pytest.mark.parametrize("run", RUNS, ids=[f"{run.parent.parent.name}/{run.name}" for run in RUNS])
def test_a_run_of_any_release_becomes_what_burn_0_22_1_writes(run: Path) -> None:
    """Names, values, ids, kinds, order and metadata of optimizer and scheduler; the bytes are burnpack's business."""
    old = run.parent.parent / run.name / "checkpoint"
    proof = json.loads((run / "proof.json").read_text())
    with Disk() as disk:
        model, optim, schedule = (read(disk, next(old.glob(f"{what}-3.*"))) for what in ("model", "optim", "scheduler"))
        assert [BURN.section(p) for p in (model, optim, schedule)] == ["model", "optimizers", "schedulers"]
        held = {name: replace(t, id=identify(t.id or "")) for name, t in tensors(model).items()}
        names = {t.id: name for name, t in held.items()}
        found = BURN.unpack("optimizers", optim, Said())
        assert isinstance(found, Optimizer)
        for param in found.params:
            param.name, param.by = names[identify(param.key)], "file"
            param.slots = {k: v for k, v in (param.slots or {}).items() if not k.startswith("weight_decay.")}
        wanted = read(disk, run / "checkpoint" / "optim-3.bpk")
        packed = BURN.pack("optimizers", found, Checkpoint("burn", held))
        assert same(packed, wanted)
        tree = BURN.unpack("schedulers", schedule, Said(proof["scheduler"]))
        assert same(
            BURN.pack("schedulers", tree, Checkpoint("burn")), read(disk, run / "checkpoint" / "scheduler-3.bpk")
        )


def same(packed: Parts, wanted: Parts) -> bool:
    assert list(tensors(packed)) == list(tensors(wanted))
    for name, want in tensors(wanted).items():
        got = tensors(packed)[name]
        assert (got.id, got.shape) == (want.id, want.shape)
        assert cast(got.promise, F32).read(0, got.promise.numel) == want.promise.read(0, want.promise.numel)
    assert scalars(packed) == scalars(wanted)
    assert packed.facts.get("metadata", {}) == wanted.facts.get("metadata", {})
    return True


@pytest.mark.parametrize("path", CURRENT, ids=lambda path: str(path.name))
def test_what_burn_writes_today_comes_back_as_it_was(path: Path) -> None:
    with Disk() as disk:
        parts = read(disk, path)
        kind = BURN.section(parts)
        assert kind == ("optimizers" if path.name.startswith("optim") else "schedulers")
        value = BURN.unpack(kind, parts, Said())

        assert same(BURN.pack(kind, value, Checkpoint("burn")), parts)


KINDS = {
    "adam": "adam", "adamw": "adam", "adagrad": "adagrad", "rmsprop": "rmsprop", "adan": "adan", "lbfgs": "lbfgs", "lion": "lion",
    "lamb": "lamb", "adafactor": "adafactor", "sgd": "sgd", "coupled": "adam", "muon": None, "groups": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [p for p in (*OLD, *CURRENT) if p.name.startswith("optim") and "model" not in p.name],
    ids=lambda p: f"{p.parent.name}/{p.name}",
)
def test_the_leaves_tell_the_kind(path: Path) -> None:
    """Adam's record is AdamW's; Muon's is that of SGD with momentum, of matrices only; groups have several."""
    with Disk() as disk:
        found = BURN.unpack("optimizers", read(disk, path), Said())
        assert isinstance(found, Optimizer)
        config = re.split(r"[-.]", path.name)[1]

        assert found.kind == KINDS[config]
        assert bool(found.params) == (config != "lbfgs") == (not found.shared)
        if "amsgrad" in path.name:
            assert all("momentum.max_moment_2" in (param.slots or {}) for param in found.params)


@pytest.mark.parametrize("path", OLD, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_file_alone_is_told_apart(path: Path) -> None:
    told = (
        "model"
        if "model" in path.name or path.name.startswith(("net", "zoo"))
        else "optimizers"
        if path.name.startswith("optim")
        else "schedulers"
    )
    with Disk() as disk:
        parts = read(disk, path)
        assert BURN.section(parts) == told
        parts.facts.pop("section", None)
        assert BURN.section(parts) == told


# ---------------------------------------------------------------- whatever a file says

PIECES = st.sampled_from(
    [
        "1", "42", "a", "", "V1", "Rank2", "Rank9", "__rank", "momentum", "velocity", "moment_1", "moment_2", "time", "second_moment",
        "history_s", "len", "0", "d", "t", "g_iter", "schedulers", "Linear", "Cosine", "current_iter", "step", "previous_lr", "iter_idx",
    ]
)  # fmt: skip
NUMBERS = st.one_of(
    st.builds(Scalar, st.just("uint"), st.integers(0, (1 << 64) - 1)),
    st.builds(Scalar, st.just("int"), st.integers(-(1 << 63), 3)),
    st.builds(Scalar, st.just("float"), st.floats()),
    st.builds(Scalar, st.just("bool"), st.booleans()),
    st.builds(lambda shape: tensor(*shape), st.lists(st.integers(0, 3), max_size=9)),
)
NAMES = st.dictionaries(st.lists(PIECES, min_size=1, max_size=5).map(".".join), NUMBERS, max_size=8)


@given(
    NAMES,
    st.sampled_from([None, "0.7.0", "0.15.0", "0.19.1", "0.21.0", "wild"]),
    st.sampled_from([None, "step", "composed(linear)"]),
)
def test_any_names_are_read_or_refused_by_an_error_of_the_tree(names: Any, burn: str | None, said: str | None) -> None:
    facts = {} if burn is None else {"versions": {"burn": burn}}
    parts = Parts(family="burn", tensors=names, facts=facts)
    BURN.section(parts)
    for section in ("optimizers", "schedulers"):
        try:
            value = BURN.unpack(section, parts, Said(said))
            if value is not None:
                packed = BURN.pack(section, value, Checkpoint("burn"))
                assert BURN.unpack(section, packed, Said()) is not None
        except CkptError:
            pass


# ---------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (Parts(tensors={}), "schedulers"),
        (Parts(tree=None, tensors={}, facts={"versions": {"burn": "0.18.0"}}), "schedulers"),
        (Parts(tensors={}, facts={"versions": {"burn": "0.18.0"}}), "optimizers"),
        (Parts(tensors={"0.weight": Tensor(fill(0, F32, (1,)), id=7)}), "model"),
        (Parts(tensors={"": tensor(1)}), "model"),
        (Parts(tensors={"7.momentum": Tensor(fill(0, F32, (1,)), id=7)}), "optimizers"),
        (Parts(tensors={"7.__rank": uint(1)}), "optimizers"),
        (Parts(tensors={"wild": uint(1)}), None),
        (Parts(tree={"a": 1}), None),
        (Parts(tree=[0.1, 3], tensors={}), "schedulers"),
        (Parts(tensors={"a": tensor(1)}, facts={"section": "optimizers"}), "optimizers"),
    ],
)
def test_sections_are_told_by_names(parts: Parts, told: str | None) -> None:
    assert BURN.section(parts) == told


def test_a_tree_is_no_record_of_this_family() -> None:
    for tree in ({"step": 3}, 3, None, NOTHING):
        assert BURN.unpack("schedulers", Parts(tree=tree), Said()) is None
        assert BURN.unpack("optimizers", Parts(tree=tree), Said()) is None
    assert BURN.unpack("model", Parts(tensors={}), Said()) is None


def test_buffers_are_running_statistics_and_what_has_no_gradient() -> None:
    assert BURN.is_buffer("norm.running_mean", tensor(2))
    assert not BURN.is_buffer("norm.gamma", tensor(2))
    assert BURN.is_buffer("x", Tensor(fill(0.0, F32, (1,)), "buffer"))
    assert not BURN.is_buffer("running_mean", Tensor(fill(0.0, F32, (1,)), "parameter"))
