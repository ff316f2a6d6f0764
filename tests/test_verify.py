"""Comparison of two checkpoints: each kind of difference is found and named, and nothing else is one; digests."""

from __future__ import annotations

import hashlib
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ckptmigrate
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Origin, Param, Progress, Slot, Stamp
from ckptmigrate.dtypes import BF16, F16, F32, I32, QUINT8
from ckptmigrate.files import Disk
from ckptmigrate.limits import MiB
from ckptmigrate.tensor import Quantisation, Tensor, View, array, cast, fill, joined
from ckptmigrate.values import Inert, Known, Ordered, Scalar
from ckptmigrate.verify import Difference, compare, digest

from .command_line import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def tensor(*values: float) -> Tensor:
    return Tensor(array(np.array(values, "<f4")))


def optimizer() -> Optimizer:
    params = [
        Param("fc.weight", "order", 0, 0, {"step": Slot(tensor(3)), "exp_avg": Slot(tensor(1, 2)), "lr": Slot(0.5)}),
        Param("fc.bias", "order", 1, 1, None),
    ]
    return Optimizer("adam", params, [{"lr": 0.1, "betas": (0.9, 0.99)}, {"lr": 0.2, "betas": (0.9, 0.99)}], {"n": 1})


def full() -> Checkpoint:
    """A checkpoint with every field filled; each call makes other objects of the same content."""
    return Checkpoint(
        "torch",
        model={"fc.weight": tensor(1, 2, 3), "fc.bias": tensor(4), "empty": Tensor(fill(0, F32, (0, 3)))},
        twins={"ema": {"fc.weight": tensor(5, 6, 7)}},
        modules={"fc": {"version": 1}},
        optimizers=[optimizer(), optimizer()],
        schedulers=[{"last_epoch": 3, "base_lrs": [0.1, tensor(8)]}],
        values={"rng": {"cpu": tensor(9), "py": (3, [1, 2], None)}, "extra": {"args": {"lr": 1e-3, "nan": float("nan")}}},
        progress=Progress(3, "finished", 900, 0.25),
    )  # fmt: skip


def set_at(*path: Any) -> Callable[[Checkpoint], None]:
    """Give a change that sets the last but one step of a path to the last."""

    def change(checkpoint: Checkpoint) -> None:
        node: Any = checkpoint
        for step in path[:-2]:
            node = getattr(node, step) if isinstance(step, str) and hasattr(node, step) else node[step]
        if isinstance(path[-2], str) and hasattr(node, path[-2]):
            setattr(node, path[-2], path[-1])
        else:
            node[path[-2]] = path[-1]

    return change


def delete(*path: Any) -> Callable[[Checkpoint], None]:
    def change(checkpoint: Checkpoint) -> None:
        node: Any = checkpoint
        for step in path[:-1]:
            node = getattr(node, step) if isinstance(step, str) and hasattr(node, step) else node[step]
        del node[path[-1]]

    return change


def test_equal_checkpoints_have_no_differences() -> None:
    assert compare(full(), full()) == []


DIFFERENT = [
    (set_at("model", "fc.weight", tensor(1, 2, 4)), "model/fc.weight", "other values"),
    (set_at("model", "fc.weight", tensor(1, 2)), "model/fc.weight", "shape [3] and [2]"),
    (set_at("model", "fc.weight", Tensor(array(np.array([1, 2, 3], "<i4")))), "model/fc.weight", "dtype F32 and I32"),
    (set_at("model", "empty", Tensor(fill(0, F32, (3, 0)))), "model/empty", "shape [0, 3] and [3, 0]"),
    (set_at("model", "fc.bias", tensor(-0.0)), "model/fc.bias", "other values"),
    (delete("model", "fc.bias"), "model/fc.bias", "only in A"),
    (set_at("model", "new", tensor(1)), "model/new", "only in B"),
    (set_at("twins", "ema", "fc.weight", tensor(5, 6, 8)), "twins/ema/fc.weight", "other values"),
    (delete("twins", "ema"), "twins/ema/fc.weight", "only in A"),
    (set_at("modules", "fc", {"version": 2}), "modules/fc", "version: int 1 is not int 2"),
    (set_at("modules", "more", {"version": 2}), "modules/more", "only in B"),
    (delete("optimizers", 1), "optimizers/1", "only in A"),
    (set_at("optimizers", 0, "kind", "sgd"), "optimizers/0", "an optimizer of kind adam and of kind sgd"),
    (set_at("optimizers", 0, "params", 1, "group", 0), "optimizers/0/fc.bias", "group: int 1 is not int 0"),
    (delete("optimizers", 0, "params", 1), "optimizers/0/fc.bias", "only in A"),
    (set_at("optimizers", 1, "params", 0, "slots", "exp_avg", Slot(tensor(1, 3))), "optimizers/1/fc.weight/exp_avg", "other values"),
    (delete("optimizers", 0, "params", 0, "slots", "exp_avg"), "optimizers/0/fc.weight/exp_avg", "only in A"),
    (set_at("optimizers", 0, "params", 0, "slots", "lr", Slot(0.6)), "optimizers/0/fc.weight/lr", "the root: float 0.5 is not float 0.6"),
    (set_at("optimizers", 0, "params", 1, "slots", {"step": Slot(1)}), "optimizers/0/fc.bias/step", "only in B"),
    (set_at("optimizers", 0, "groups", 1, "lr", 0.3), "optimizers/0/groups", "1/lr: float 0.2 is not float 0.3"),
    (set_at("optimizers", 0, "shared", "n", 2), "optimizers/0/shared", "n: int 1 is not int 2"),
    (set_at("schedulers", 0, "base_lrs", 1, tensor(9)), "schedulers/0/base_lrs/1", "other values"),
    (set_at("schedulers", 0, "last_epoch", 4), "schedulers/0", "last_epoch: int 3 is not int 4"),
    (delete("schedulers", 0), "schedulers/0", "only in A"),
    (set_at("values", "rng", "cpu", tensor(1)), "values/rng/cpu", "other values"),
    (delete("values", "rng"), "values/rng/cpu", "only in A"),
    (delete("values", "extra"), "values/extra", "only in A"),
    (set_at("values", "extra", "args", "lr", 1), "values/extra", "args/lr: float 0.001 is not int 1"),
    (set_at("progress", "epoch", 4), "progress", "epoch: int 3 is not int 4"),
    (set_at("progress", "counts", "last"), "progress", "counts: str 'finished' is not str 'last'"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "item", "what"), DIFFERENT, ids=[f"{item}: {what}" for _, item, what in DIFFERENT])
def test_each_kind_of_difference_is_found_alone_and_named(
    change: Callable[[Checkpoint], None], item: str, what: str
) -> None:
    left, right = full(), full()
    change(right)

    assert compare(left, right) == [Difference(item, what)]
    turned = {"only in A": "only in B", "only in B": "only in A"}
    assert [d.item for d in compare(right, left)] == [item]
    assert what not in turned or compare(right, left)[0].what == turned[what]


def test_all_differences_come_at_once_in_order() -> None:
    left, right = full(), full()
    for change, _, _ in (DIFFERENT[0], DIFFERENT[5], DIFFERENT[-2]):
        change(right)

    assert [d.item for d in compare(left, right)] == ["model/fc.bias", "model/fc.weight", "progress"]


def test_formats_order_ties_roles_ids_and_stamps_are_no_differences() -> None:
    left, right = full(), full()
    right.model = {name: right.model[name] for name in reversed(right.model)}
    right.model["fc.weight"] = replace(right.model["fc.weight"], role="parameter", id=7)
    right.values = {"extra": {"args": {"nan": float("nan"), "lr": 1e-3}}, "rng": right.values["rng"]}
    right.origin, right.stamp, right.family = Origin("x", "y"), Stamp({"a": "1"}), "other"
    right.optimizers[0].groups = [dict(reversed(group.items())) for group in right.optimizers[0].groups]
    right.optimizers[0].params.reverse()
    tied = tensor(1)
    left.model |= {"a": tied, "b": tied}
    right.model |= {"a": tensor(1), "b": tensor(1)}

    assert compare(left, right) == []


def test_what_only_one_file_can_say_is_no_difference() -> None:
    left, right = full(), full()
    right.modules = {}
    for each in right.optimizers:
        each.kind = None
        for position, param in enumerate(each.params):
            param.name, param.by, param.key = None, None, position

    assert compare(left, right) == []


def test_entries_without_names_are_compared_by_position() -> None:
    left, right = full(), full()
    for side in (left, right):
        side.optimizers[0].params[1].name = None
    right.optimizers[0].params[0].slots = {"step": Slot(tensor(4))}
    right.optimizers[0].params[0].name = "other"

    found = {d.item: d.what for d in compare(left, right)}

    assert found == {
        "optimizers/0/0": "of fc.weight and of other",
        "optimizers/0/0/exp_avg": "only in A",
        "optimizers/0/0/lr": "only in A",
        "optimizers/0/0/step": "other values",
    }


def test_the_same_elements_by_other_promises_are_equal(tmp_path: Path) -> None:
    values = np.arange(12, dtype="<f4").reshape(3, 4)
    (tmp_path / "turned").write_bytes(values.T.tobytes())
    with Disk() as disk:
        turned = View.rows(disk.open(tmp_path / "turned").range(0, 48), F32, (4, 3)).transpose((1, 0))
        halves = joined([turned.slice(0, 0, 1), turned.slice(0, 1, 3)], 0)
        same = [Tensor(array(values)), Tensor(turned), Tensor(halves), Tensor(cast(array(values.astype("<f8")), F32))]
        for one in same:
            for other in same:
                assert compare(Checkpoint("a", model={"x": one}), Checkpoint("b", model={"x": other})) == []


def test_nans_are_compared_by_their_bits() -> None:
    quiet, other = (Tensor(array(bits.to_bytes(4, "little"), F32, (1,))) for bits in (0x7FC00000, 0x7FC00001))

    assert compare(Checkpoint("a", model={"x": quiet}), Checkpoint("b", model={"x": quiet})) == []
    assert compare(Checkpoint("a", model={"x": quiet}), Checkpoint("b", model={"x": other})) != []


@pytest.mark.parametrize(
    "quant",
    [
        None,
        Quantisation("per_tensor_affine", 0.25, 3),
        Quantisation("per_tensor_affine", 0.5, 4),
        Quantisation("per_channel_affine", tensor(0.5, 0.5), tensor(3, 3), 0),
        Quantisation("per_channel_affine", tensor(0.5, 0.5), tensor(3, 4), 0),
        Quantisation("per_channel_affine", tensor(0.5, 0.5), tensor(3, 3), 1),
    ],
)
def test_the_same_integers_at_another_scale_are_other_numbers(quant: Quantisation | None) -> None:
    def holding(given: Quantisation | None) -> Checkpoint:
        return Checkpoint("torch", model={"q": Tensor(array(b"abcd", QUINT8, (2, 2)), quant=given)})

    reference = Quantisation("per_tensor_affine", 0.5, 3)

    assert compare(holding(reference), holding(quant)) == [Difference("model/q", "other quantisation")]
    assert compare(holding(quant), holding(quant and replace(quant))) == []


def knotted(value: Any, leaf: Tensor) -> Any:
    """A value with every kind of node, a node shared and a node that holds itself."""
    ordered = Ordered(a=1, b=leaf)
    ordered.attributes["_metadata"] = {"": {"version": value}}
    own = Inert("object", "acme.Node", (1,), {"x": leaf}, [2])
    own.state["parent"] = own
    shared = [Scalar("uint", 3), leaf]
    return {"ordered": ordered, "own": own, "twice": (shared, shared), "known": Known("torch.Size", (2, leaf))}


def test_tensors_inside_any_node_are_compared_by_elements_and_circles_end() -> None:
    def holding(value: Any, leaf: Tensor) -> Checkpoint:
        return Checkpoint("torch", values={"extra": knotted(value, leaf)})

    assert compare(holding(1, tensor(1)), holding(1, tensor(1))) == []
    found = {d.item: d.what for d in compare(holding(1, tensor(1)), holding(2, tensor(2)))}
    assert found.pop("values/extra") == "ordered/@_metadata//version: int 1 is not int 2"
    assert set(found) == {
        "values/extra/known/1",
        "values/extra/ordered/b",
        "values/extra/own/@state/x",
        "values/extra/twice/0/1",
        "values/extra/twice/1/1",
    }
    assert set(found.values()) == {"other values"}


@pytest.mark.parametrize("change", [[1, 2], (1, 2, 3), {"0": 1}, "x", None, 1.0, True])
def test_values_of_another_type_or_length_are_different(change: Any) -> None:
    left, right = Checkpoint("a", values={"extra": {"x": (1, 2)}}), Checkpoint("a", values={"extra": {"x": change}})

    assert [d.item for d in compare(left, right)] == ["values/extra"]


def test_a_tree_as_deep_as_readers_allow_is_compared() -> None:
    def nested(value: Any) -> Checkpoint:
        for _ in range(500):
            value = [value]
        return Checkpoint("a", values={"extra": value})

    assert compare(nested(1), nested(1)) == []
    assert len(compare(nested(1), nested(2))) == 1


def test_comparing_takes_a_window_of_memory_and_stops_at_the_first_difference(tmp_path: Path) -> None:
    size = 256 * MiB
    for name in ("a", "b"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    with (tmp_path / "b").open("r+b") as file:
        file.seek(size - 1)
        file.write(b"\1")
    with Disk() as disk:
        one, other = (
            Tensor(View.rows(disk.open(tmp_path / name).range(0, size), F32, (size // 4,))) for name in ("a", "b")
        )
        tracemalloc.start()
        found = compare(Checkpoint("a", model={"x": one}), Checkpoint("a", model={"x": other}))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    assert found == [Difference("model/x", "other values")]
    assert peak < 8 * MiB


def test_the_digest_is_sha_256_of_the_elements_row_major_and_little_endian(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((300, 700)).astype(">f4")
    (tmp_path / "x").write_bytes(values.tobytes())
    with Disk() as disk:
        view = View.rows(disk.open(tmp_path / "x").range(0, values.nbytes), F32, values.shape, big_endian=True)

        for promise, expected in (
            (view, values.astype("<f4")),
            (view.transpose((1, 0)), values.T.astype("<f4")),
            (view.slice(1, 5, 10), values[:, 5:10].astype("<f4")),
            (cast(view, F16), values.astype("<f2")),
            (fill(1, I32, (2, 2)), np.ones((2, 2), "<i4")),
            (fill(1, I32, (0,)), np.ones(0, "<i4")),
            (fill(1, I32, ()), np.ones((), "<i4")),
        ):
            assert hashlib.sha256(np.ascontiguousarray(expected).tobytes()).hexdigest() == digest(Tensor(promise))
        rounded = torch.from_numpy(values.astype("<f4")).to(torch.bfloat16).view(torch.uint16).numpy()
        assert hashlib.sha256(rounded.tobytes()).hexdigest() == digest(Tensor(cast(view, BF16)))


def test_a_training_checkpoint_equals_what_it_was_converted_to(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    state = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "epoch": 3}
    torch.save(state | {"config": {"lr": 1e-3, "shape": (1, 2)}}, tmp_path / "x.pt")
    ckptmigrate.migrate(tmp_path / "x.pt", tmp_path / "out")
    ckptmigrate.migrate(tmp_path / "x.pt", tmp_path / "out.pt")

    assert ckptmigrate.verify(tmp_path / "x.pt", tmp_path / "out") == []
    assert ckptmigrate.verify(tmp_path / "out", tmp_path / "out.pt") == []
    state["optimizer_state_dict"]["state"][2]["exp_avg"][1] += 1
    torch.save(state | {"config": {"lr": 1e-2, "shape": (1, 2)}}, tmp_path / "y.pt")
    found = [d.item for d in ckptmigrate.verify(tmp_path / "out", tmp_path / "y.pt")]
    assert len(found) == 2
    assert found[0].endswith("/exp_avg")
    assert found[1] == "values/config"


BURN = ROOT / "tests" / "fixtures" / "burn"
RECORD = BURN / "0.13.2" / "run-adam" / "checkpoint" / "optim-3.mpk"
TODAY = BURN / "0.13.2" / "golden" / "run-adam" / "checkpoint" / "optim-3.bpk"


def keys(path: Path) -> list[Any]:
    with ckptmigrate.open(path) as checkpoint:
        return [param.key for param in checkpoint.optimizers[0].params]


def test_entries_of_optimizer_files_alone_are_paired_by_their_ids_in_whatever_order_they_stand() -> None:
    """Burn wrote the entries of a record in the order of a hash map: these two say the same state."""
    one, other = (BURN / "0.21.0" / f"optim-adam-full.{suffix}" for suffix in ("mpk", "json"))

    assert keys(one) != keys(other)
    assert sorted(keys(one)) == sorted(keys(other))
    assert ckptmigrate.verify(one, other) == []


def test_an_old_record_is_paired_with_today_s_file_by_id_though_only_that_has_names() -> None:
    """The record's ids are UUIDs and its floats halves; today's are numbers, in model order, and F32."""
    found = ckptmigrate.verify(RECORD, TODAY)

    with ckptmigrate.open(TODAY) as today:
        items = [
            f"optimizers/0/{param.name}/{name}"
            for param in today.optimizers[0].params
            for name, slot in (param.slots or {}).items()
            if isinstance(slot.value, Tensor)
        ]
    assert {d.what for d in found} == {"dtype F16 and F32"}
    assert [d.item for d in found] == sorted(items)


def test_ids_that_pair_nothing_leave_the_position() -> None:
    def holding(*keys: int) -> Checkpoint:
        params = [Param(None, None, key, 0, {"m": Slot(tensor(at))}) for at, key in enumerate(keys)]
        return Checkpoint("x", optimizers=[Optimizer(params=params, groups=[{}])])

    assert compare(holding(70, 80), holding(90, 100), int) == []
    assert [d.item for d in compare(holding(70, 80), holding(80, 70), int)] == [
        "optimizers/0/70/m",
        "optimizers/0/80/m",
    ]
    assert compare(holding(70, 80), holding(80, 70)) == []
    assert {d.item: d.what for d in compare(holding(70, 80), holding(70, 90), int)} == {
        "optimizers/0/80": "only in A", "optimizers/0/80/m": "only in A",
        "optimizers/0/90": "only in B", "optimizers/0/90/m": "only in B",
    }  # fmt: skip
