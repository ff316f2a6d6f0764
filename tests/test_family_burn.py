"""Burn's family: ids, optimizers and schedulers of every release, into ours and back to what Burn 0.22.1 itself writes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate import registry
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Param, Slot
from ckptmigrate.dtypes import F32
from ckptmigrate.errors import CheckpointError, CkptError, OptimizerError, UsageError
from ckptmigrate.files import Disk
from ckptmigrate.format import FOLLOWS, SCALAR, Parts, ReadOptions
from ckptmigrate.tensor import Tensor, cast, fill
from ckptmigrate.values import NOTHING, Scalar

if TYPE_CHECKING:
    from collections.abc import Mapping

BURN = registry.family("burn")
MUSEUM = Path(__file__).parent / "fixtures" / "burn"
SHARED = Path(__file__).parent.parent.parent / "shared" / "fixtures" / "burn"
FIXTURES = SHARED if SHARED.is_dir() else MUSEUM  # all of them where they are at hand, else those that the museum has

RUNS = sorted(path.parent for path in FIXTURES.glob("0.*/golden/run-*/proof.json"))
RUNS = [run for run in RUNS if list((run.parent.parent / run.name / "checkpoint").glob("model-3.mpk*"))]
CURRENT = sorted(
    p for p in FIXTURES.glob("0.22.1/*.bpk") if p.name.startswith(("optim", "scheduler")) and "model" not in p.name
)
OLD = sorted(
    path
    for suffix in ("mpk", "mpk.gz")
    for path in FIXTURES.glob(f"0.*/*.{suffix}")
    if path.name.startswith(("optim", "scheduler", "net", "zoo"))
)


@dataclass(frozen=True)
class Said:
    scheduler: str | None = None


def read(disk: Disk, path: Path) -> Parts:
    source = disk.open(path)
    form = next(f for f in registry.formats() if f.sniff(source) is not None)
    return form.read(source, ReadOptions())


def identify(text: int | str) -> int:
    assert BURN.identify is not None
    return BURN.identify(text)


def tensors(parts: Parts) -> dict[str, Tensor]:
    return {name: value for name, value in (parts.tensors or {}).items() if isinstance(value, Tensor)}


def scalars(parts: Parts) -> dict[str, Scalar]:
    return {name: value for name, value in (parts.tensors or {}).items() if isinstance(value, Scalar)}


def tensor(*shape: int) -> Tensor:
    return Tensor(fill(0.5, F32, shape))


def optimizer(names: Mapping[str, Tensor | Scalar], **facts: Any) -> Optimizer:
    found = BURN.unpack("optimizers", Parts(family="burn", tensors=dict(names), facts=facts), Said())
    assert isinstance(found, Optimizer)
    return found


def scheduler(names: Mapping[str, Scalar], said: str | None = None, burn: str | None = None, **facts: Any) -> Any:
    versions = {} if burn is None else {"versions": {"burn": burn}}
    return BURN.unpack("schedulers", Parts(family="burn", tensors=dict(names), facts={**versions, **facts}), Said(said))


# ---------------------------------------------------------------- ids


def real_ids() -> list[tuple[str, int]]:
    found: dict[str, int] = {}
    for path in FIXTURES.glob("0.*/expected.json"):
        expected = json.loads(path.read_text())
        for entry in [e for section in ("net", "zoo") for e in expected.get(section) or ()]:
            if isinstance(entry, dict) and entry.get("id_u64") is not None:
                found[entry["id"]] = int(entry["id_u64"])
        found.update((entry["text"], int(entry["u64"])) for entry in expected.get("ids", ()) if "u64" in entry)
    return sorted(found.items())


def test_every_id_is_the_number_that_burn_makes_of_it() -> None:
    wrong = {text: (identify(text), number) for text, number in real_ids() if identify(text) != number}

    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5800000000000", 42), ("83h0200000000", 123456), ("vvvvvvvvvvvvu", (1 << 64) - 1), ("VVVVVVVVVVVVU", (1 << 64) - 1),
        ("5kmiqb9d5k", 0x2D2D2D2D2D2D), ("3uu5e6vv7c", 65966861433887), ("", 0), ("00", 0),
        ("6e8bc430-9c3a-11d9-9669-0800200c9a66", 5535594764737385160), ("00000000-0000-0000-0000-000000000000", 9963963603434378466),
        ("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", 2905257854522272510), (0, 0), ((1 << 64) - 1, (1 << 64) - 1),
    ],
)  # fmt: skip
def test_ids_of_the_description(text: int | str, number: int) -> None:
    if text == "5kmiqb9d5k":
        number = int.from_bytes(b"\x2d" * 6, "little")

    assert identify(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "V1StGXR8_Z5jdHi6B-myT", "layer one/weight", "30b82c23788d4d63a743ada258d5f13c", "0000000000000000", "5800000000001", "ü", "a" * 100_000,
        "\ud800",
    ],
)  # fmt: skip
def test_a_text_that_burn_cannot_read_has_an_id_all_the_same(text: str) -> None:
    """Nanoids, free text, base32 of more than 8 bytes (Burn panics), unused bits that are set."""
    assert 0 <= identify(text) < 1 << 64
    assert identify(text) == identify(text) != identify(text + "x")


# ---------------------------------------------------------------- optimizers


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


def test_slots_that_have_the_axes_of_their_parameter_are_in_the_table() -> None:
    assert BURN.slots["momentum.moment_1"] == BURN.slots["lr_decay.sum"] == BURN.slots["momentum"] == FOLLOWS
    assert BURN.slots["momentum.time"] == BURN.slots["time"] == SCALAR
    assert "second_moment" not in BURN.slots


def test_names_of_an_old_record_and_of_todays_give_the_same_entries() -> None:
    moments: dict[str, Tensor | Scalar] = {
        "momentum.time": Scalar("uint", 3),
        "momentum.moment_1": tensor(2),
        "momentum.moment_2": tensor(2),
    }
    old = optimizer(
        {f"5800000000000.V1.Rank1.{leaf}": value for leaf, value in moments.items()}, versions={"burn": "0.18.0"}
    )
    new = optimizer({"42.__rank": Scalar("uint", 1)} | {f"42.{leaf}": value for leaf, value in moments.items()})

    assert [identify(p.key) for p in old.params] == [identify(p.key) for p in new.params] == [42]
    assert old.params[0].slots == new.params[0].slots == {leaf: Slot(value) for leaf, value in moments.items()}


def test_an_id_of_digits_is_base32_in_a_record_and_a_number_in_todays_files() -> None:
    names = {"5800000000000.__rank": Scalar("uint", 1)}

    assert identify(optimizer(names, versions={"burn": "0.21.0"}).params[0].key) == 42
    assert identify(optimizer(names).params[0].key) == 5800000000000


def test_an_id_may_hold_dots() -> None:
    names: dict[str, Tensor | Scalar] = {
        "my.own.id.__rank": Scalar("uint", 2),
        "my.own.id.momentum.velocity": tensor(2, 2),
    }
    (param,) = optimizer(names, versions={"burn": "0.14.0"}).params

    assert param.key == "my.own.id"
    assert list(param.slots or {}) == ["momentum.velocity"]


def test_names_come_from_the_metadata_and_entries_without_momentum_keep_their_rank() -> None:
    found = optimizer({"7.__rank": Scalar("uint", 3)}, metadata={"7": "conv.weight"})
    (param,) = found.params

    assert (found.kind, param.name, param.by, param.key) == ("sgd", "conv.weight", "file", 7)
    again = BURN.pack("optimizers", found, Checkpoint("burn"))
    assert again.tensors == {"7.__rank": Scalar("uint", 3)}
    assert again.facts == {"metadata": {"7": "conv.weight"}}


def test_rank_and_order_are_those_of_the_model() -> None:
    """A reshaped parameter has the rank that it has now; entries stand in the model's order, nameless ones behind."""
    params = [
        Param(None, None, 9, 0, {"momentum.velocity": Slot(tensor(2))}),
        Param("b", "file", 2, 0, {"__rank": Slot(Scalar("uint", 1))}),
        Param("a", "file", 1, 0, {"momentum.velocity": Slot(tensor(2, 3))}),
        Param("c", "file", 3, 0, None),
    ]
    model = {
        "a": Tensor(fill(0, F32, (2, 3)), id=1),
        "b": Tensor(fill(0, F32, (3, 1, 1)), id=2),
        "c": Tensor(fill(0, F32, (1,)), id=3),
    }
    packed = BURN.pack("optimizers", Optimizer("sgd", params, [{}]), Checkpoint("burn", model))

    assert list(tensors(packed)) == ["1.momentum.velocity", "9.momentum.velocity"]
    assert scalars(packed) == {
        "1.__rank": Scalar("uint", 2),
        "2.__rank": Scalar("uint", 3),
        "9.__rank": Scalar("uint", 1),
    }
    assert packed.facts["metadata"] == {"1": "a", "2": "b"}


MOMENTS: dict[str, Tensor | Scalar] = {
    "1.__rank": Scalar("uint", 1),
    "1.momentum.moment_1": tensor(2),
    "1.momentum.moment_2": tensor(2),
}


@pytest.mark.parametrize(
    ("change", "mention"),
    [
        ({}, r"no momentum\.time.*anew without a word"),
        ({"1.momentum.time": Scalar("float", 2.5)}, "expected a count"),
        ({"1.momentum.time": Scalar("float", float("inf"))}, "expected a count"),
        ({"1.momentum.time": Scalar("int", -1)}, "expected a count"),
        ({"1.momentum.time": tensor(1)}, "expected a count"),
        ({"1.momentum.time": Scalar("uint", 1), "1.momentum.max_moment_2": Scalar("uint", 1)}, "expected a tensor"),
        ({"1.momentum.time": Scalar("uint", 1), "stray": tensor(2)}, "stray is of no parameter"),
        ({"1.momentum.time": Scalar("uint", 1), "1.__rank": Scalar("uint", 9)}, "expected 0 to 8"),
        ({"1.momentum.time": Scalar("uint", 1), "1.__rank": Scalar("float", float("inf"))}, "expected 0 to 8"),
        ({"1.momentum.time": Scalar("uint", 1), "2.__rank": Scalar("uint", 1), "2.wild": tensor(2)}, "no optimizer of this family"),
    ],
)  # fmt: skip
def test_state_that_burn_would_drop_in_silence_is_refused_by_name(
    change: dict[str, Tensor | Scalar], mention: str
) -> None:
    with pytest.raises(OptimizerError, match=mention):
        optimizer(MOMENTS | change)


def test_a_time_that_is_a_float_or_an_int_becomes_what_burn_counts_in() -> None:
    for told in (Scalar("float", 3.0), Scalar("int", 3)):
        (param,) = optimizer(MOMENTS | {"1.momentum.time": told}).params
        assert (param.slots or {})["momentum.time"].value == Scalar("uint", 3)


@pytest.mark.parametrize(
    "names",
    [
        {"history_s.len": Scalar("uint", 2), "history_s.0": tensor(2), "g_iter": Scalar("uint", 1)},
        {
            "history_s.len": Scalar("uint", 2),
            "history_s.0": tensor(2),
            "history_s.2": tensor(2),
            "g_iter": Scalar("uint", 1),
        },
        {"d": Scalar("uint", 1), "g_iter": Scalar("uint", 1)},
        {"t": tensor(1), "g_iter": Scalar("uint", 1)},
    ],
)
def test_a_broken_lbfgs_record_is_refused(names: dict[str, Tensor | Scalar]) -> None:
    with pytest.raises(OptimizerError):
        optimizer(names)


def test_a_long_name_of_dots_costs_nothing() -> None:
    import time

    start = time.monotonic()
    names: dict[str, Tensor | Scalar] = {"1.__rank": Scalar("uint", 1)} | {
        f"{'.' * 60_000}{n}": tensor(1) for n in range(50)
    }
    with pytest.raises(OptimizerError):
        optimizer(names)

    assert time.monotonic() - start < 1


# ---------------------------------------------------------------- schedulers


def uint(value: int) -> Scalar:
    return Scalar("uint", value)


@pytest.mark.parametrize(
    ("names", "burn", "tree"),
    [
        ({}, "0.18.0", {}),
        ({"": uint(9)}, "0.12.1", {"step": Scalar("float", 9.0)}),
        ({"": uint(9)}, "0.14.0", {"step": Scalar("float", 9.0)}),
        ({"": Scalar("float", 0.25)}, "0.18.0", {"previous_lr": Scalar("float", 0.25)}),
        ({"": uint((1 << 64) - 1)}, "0.18.0", {"current_iter": uint((1 << 64) - 1)}),
        ({"": Scalar("int", -1)}, "0.18.0", {"iter_idx": Scalar("int", -1)}),
        ({"": uint(9)}, "0.18.0", {"undetermined": uint(9)}),
        ({"": uint(9)}, None, {"undetermined": uint(9)}),
        ({"0": Scalar("float", 0.1), "1": Scalar("float", 0.9)}, "0.13.2", {"previous_lr": Scalar("float", 0.1)}),
        ({"0": Scalar("float", 0.1), "1": Scalar("float", 0.9), "2": uint(5)}, "0.13.2", {"remaining_iters": uint(5)}),
        (dict(zip("01234", [*[Scalar("float", 0.1)] * 3, uint(8), uint(3)], strict=True)), "0.14.0", {"current_iter": uint(3)}),
        ({"schedulers.0.Noam": uint(3), "schedulers.1.Exponential": Scalar("float", 0.5)}, "0.19.0", {"0": {"step": Scalar("float", 3.0)}, "1": {"previous_lr": Scalar("float", 0.5)}}),
        ({"schedulers.0.Linear": uint(6)}, "0.21.0", {"0": {"remaining_iters": uint(6)}}),
        ({"schedulers.0.Linear": uint(6)}, "0.21.0-pre.2", {"0": {"undetermined": uint(6)}}),
        ({"schedulers.0.Linear": uint((1 << 64) - 1)}, "0.19.1", {"0": {"current_iter": uint((1 << 64) - 1)}}),
        ({"0.current_iter": uint(2)}, None, {"current_iter": uint(2)}),
        ({"current_iter": uint(2)}, None, {"current_iter": uint(2)}),
        ({"0.step": uint(2), "0.1.current_iter": uint(2)}, None, {"step": uint(2), "1": {"current_iter": uint(2)}}),
        ({"0.step": Scalar("float", 2.0), "1.iter_idx": Scalar("int", 0)}, None, {"groups": {"0": {"step": Scalar("float", 2.0)}, "1": {"iter_idx": Scalar("int", 0)}}}),
    ],
)  # fmt: skip
def test_a_record_of_any_release_bears_todays_names(names: dict[str, Scalar], burn: str | None, tree: Any) -> None:
    assert scheduler(names, burn=burn) == tree


@pytest.mark.parametrize(
    ("said", "tree"),
    [
        ("noam", {"step": Scalar("float", 9.0)}), ("cosine", {"current_iter": uint(9)}), ("linear", {"remaining_iters": uint(9)}),
        ("step", {"iter_idx": Scalar("int", 9)}),
    ],
)  # fmt: skip
def test_a_kind_that_the_record_does_not_tell_is_taken_as_said_and_reported(said: str, tree: Any) -> None:
    parts = Parts(family="burn", tensors={"": uint(9)}, facts={"versions": {"burn": "0.20.1"}})

    assert BURN.unpack("schedulers", parts, Said(said)) == tree
    assert len(parts.warnings) == 1
    assert f"assumes that the scheduler is {said}" in parts.warnings[0]


def test_the_children_of_a_composed_one_are_said_between_brackets() -> None:
    names = {"schedulers.0.Linear": uint(2), "schedulers.1.Exponential": Scalar("float", 0.5)}

    assert scheduler(names, "composed(cosine, exponential)", "0.20.1")["0"] == {"current_iter": uint(2)}
    assert scheduler(names, "Composed(linear,exponential)", "0.20.1")["0"] == {"remaining_iters": uint(2)}
    with pytest.raises(CheckpointError, match="of exponential, not of noam"):
        scheduler(names, "composed(cosine,noam)", "0.20.1")


@pytest.mark.parametrize(
    ("names", "burn", "said"),
    [
        ({}, "0.18.0", "cosine"), ({"": uint(9)}, "0.14.0", "cosine"), ({"": Scalar("float", 0.5)}, "0.18.0", "noam"),
        ({"": uint(9)}, "0.18.0", "exponential"), ({"": uint(9)}, "0.15.0", "step"), ({"": Scalar("int", -1)}, "0.18.0", "cosine"),
        ({"0.current_iter": uint(2)}, None, "linear"), ({"0.step": uint(2)}, None, "noam"), ({"": uint(9)}, "0.18.0", "composed(noam)"),
    ],
)  # fmt: skip
def test_a_kind_that_the_record_contradicts_is_refused(names: dict[str, Scalar], burn: str | None, said: str) -> None:
    with pytest.raises(CheckpointError):
        scheduler(names, said, burn)


@pytest.mark.parametrize(
    "said", ["cosinus", "noam(step)", "composed(", "composed(cosine,wild)", "", "composed(cosine))"]
)
def test_a_kind_that_nobody_knows_is_wrong_usage(said: str) -> None:
    with pytest.raises(UsageError, match="no kind of scheduler"):
        scheduler({"": uint(9)}, said, "0.18.0")


@pytest.mark.parametrize(
    ("tree", "mention"),
    [
        ({"undetermined": uint(3)}, "does not tell"),
        ({"0": {"undetermined": uint(3)}}, "does not tell"),
        ({"gamma": 0.1}, "none of this family"),
        ({"current_iter": Scalar("float", 2.5)}, "whole"),
        ({"current_iter": Scalar("float", float("nan"))}, "whole"),
        ({"current_iter": Scalar("int", -2)}, "from 0"),
        ({"previous_lr": Scalar("bool", value=True)}, "number"),
        ([3], "none of this family"),
    ],
)
def test_what_is_no_record_of_today_is_not_written(tree: Any, mention: str) -> None:
    with pytest.raises(CheckpointError, match=mention):
        BURN.pack("schedulers", tree, Checkpoint("burn"))


def test_plain_numbers_are_written_as_burn_reads_them() -> None:
    tree = {"groups": {"0": {"step": 3}, "1": {"0": {"current_iter": 2}, "step": 4}, "2": {}}}
    packed = BURN.pack("schedulers", tree, Checkpoint("burn"))

    assert packed.tensors == {"0.step": Scalar("float", 3.0), "1.0.current_iter": uint(2), "1.step": uint(4)}


def test_one_number_twice_is_refused() -> None:
    with pytest.raises(CheckpointError, match="twice"):
        scheduler({"current_iter": uint(1), "0.current_iter": uint(2)})


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
