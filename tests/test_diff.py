"""What sets the tensors of two checkpoints apart: how far, where a tensor went and what proves it."""

from __future__ import annotations

import math
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import ckptmigrate
from ckptmigrate import report
from ckptmigrate.checkpoint import Checkpoint, Slot
from ckptmigrate.dtypes import BF16, F32, QUINT8
from ckptmigrate.files import Disk
from ckptmigrate.limits import MiB
from ckptmigrate.tensor import Quantisation, Tensor, View, array, cast, fill
from ckptmigrate.verify import contents, diff, fingerprint, renames

from .command_line import ROOT
from .compared import of, tensor, told
from .test_verify import full

if TYPE_CHECKING:
    from pathlib import Path

BURN = ROOT / "tests" / "fixtures" / "burn"


# ── how far ──


def test_a_cast_is_compared_by_its_numbers() -> None:
    values = Tensor(array(np.array([1.0, 1.0009765625, math.nan], "<f4")))
    found = diff(of(x=values), of(x=Tensor(cast(values.promise, BF16))))
    exact = diff(of(x=tensor(1, 0.5)), of(x=Tensor(array(np.array([1, 0.5], "<f8")))))

    (change,) = found.of("recast")
    assert change.spread is not None
    assert (change.spread.differ, change.spread.max_abs) == (1, 0.0009765625)
    assert [(c.spread, c.note) for c in exact.of("recast")] == [(None, "the same numbers")]


def test_quantised_tensors_are_compared_by_the_numbers_they_mean() -> None:
    one, other = (
        Tensor(array(raw, QUINT8, (2,)), quant=Quantisation("per_tensor_affine", scale, 0))
        for raw, scale in ((b"\2\4", 0.5), (b"\1\3", 1.0))
    )
    (change,) = diff(of(q=one), of(q=other)).tensors

    assert change.note == "other quantisation"
    assert change.spread is not None
    assert (change.spread.differ, change.spread.max_abs, change.spread.a, change.spread.b) == (1, 1.0, 2.0, 3.0)


# ── where it went ──


def test_a_tensor_under_another_name_is_renamed_and_its_twin_slots_and_module_follow() -> None:
    left, right = full(), full()
    for side, name in ((left, "fc"), (right, "head")):
        side.model = {f"{name}.weight": tensor(1, 2, 3), "bias": tensor(4)}
        side.twins = {"ema": {f"{name}.weight": tensor(5, 6, 7)}}
        side.modules = {name: {"version": 1}}
        for optimizer in side.optimizers:
            optimizer.params[0].name = f"{name}.weight"
    found = diff(left, right)

    assert told(found) == {"renamed": [("model/fc.weight", "model/head.weight")]}
    assert found.others == ()
    right.optimizers[0].params[0].slots = {"step": Slot(tensor(3)), "exp_avg": Slot(tensor(1, 5)), "lr": Slot(0.5)}
    assert told(diff(left, right))["values"] == [(None, "optimizers/0/head.weight/exp_avg")]


def test_swapped_names_and_a_row_of_layers_that_lost_its_first_are_renames() -> None:
    a, b, c = tensor(1, 2), tensor(3, 4), tensor(5, 6)

    assert told(diff(of(x=a, y=b), of(x=b, y=a))) == {"renamed": [("model/x", "model/y"), ("model/y", "model/x")]}
    shifted = diff(of(l__0__w=a, l__1__w=b, l__2__w=c), of(l__0__w=b, l__1__w=c))
    assert told(shifted) == {
        "only in a": [(None, "model/l.0.w")],
        "renamed": [("model/l.1.w", "model/l.0.w"), ("model/l.2.w", "model/l.1.w")],
    }


NO_PROOF = {
    "constant": (of(x=tensor(1, 1)), of(y=tensor(1, 1))),
    "one element": (of(x=tensor(7)), of(y=tensor(7))),
    "empty": (of(x=Tensor(fill(0, F32, (0, 3)))), of(y=Tensor(fill(0, F32, (0, 3))))),
    "duplicate": (of(x=tensor(1, 2), z=tensor(1, 2)), of(y=tensor(1, 2), z=tensor(1, 2))),
    "another shape": (of(x=tensor(1, 2)), of(y=Tensor(array(np.array([[1, 2]], "<f4"))))),
    "another dtype": (of(x=tensor(1, 2)), of(y=Tensor(array(np.array([1, 2], "<f4").view("<i4"))))),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_PROOF)
def test_what_proves_nothing_is_no_rename(case: str) -> None:
    found = diff(*NO_PROOF[case])

    assert told(found) == {"only in a": [(None, "model/x")], "only in b": [(None, "model/y")]}
    notes = {change.note for change in found.tensors}
    expected = {
        "the same values as y in B, which proves nothing: several tensors hold them",
        "the same values as x in A, which proves nothing: several tensors hold them",
    }
    assert notes == (expected if case == "duplicate" else {None})


def test_tied_names_are_one_tensor_and_prove_where_it_went() -> None:
    one, other = tensor(1, 2), tensor(1, 2)
    found = diff(of(embed=one, head=one), of(embed=other, lm=other))

    assert told(found) == {"renamed": [("model/head", "model/lm")]}
    assert found.others == ()
    lost = diff(of(embed=one, head=one), of(embed=other))
    assert [(change.kind, change.item, change.note) for change in lost.tensors] == [
        ("only in a", "model/head", "tied to embed")
    ]


def test_module_versions_follow_their_module_and_those_of_two_that_became_one_are_not_mixed_up() -> None:
    left, right = (of(a__w=tensor(1, 2), b__w=tensor(3, 4)), of(c__w=tensor(1, 2), d__w=tensor(3, 4)))
    left.modules = {"a": {"version": 1}, "a.act": {"version": 1}, "b": {"version": 1}}
    right.modules = {"c": {"version": 1}, "c.act": {"version": 2}, "d": {"version": 1}}
    assert [(d.item, d.what) for d in diff(left, right).others] == [("modules/c.act/version", "1 in A, 2 in B")]

    joined = of(m__v=tensor(1, 2), m__u=tensor(3, 4))
    apart = of(a__v=tensor(1, 2), b__u=tensor(3, 4))
    apart.modules, joined.modules = {"a": {"version": 1}, "b": {"version": 1}}, {"m": {"version": 1}}
    assert {(d.item, d.what) for d in diff(apart, joined).others} == {
        ("modules/a", "only in A"), ("modules/b", "only in A"), ("modules/m", "only in B"),
    }  # fmt: skip


def test_constants_follow_their_module_where_its_tensors_prove_that_it_moved() -> None:
    left = of(f__w=tensor(1, 2), f__bias=tensor(0, 0), f__n=tensor(0), g__bias=tensor(0, 0))
    right = of(b__w=tensor(1, 2), b__bias=tensor(0, 0), b__n=tensor(1), h__bias=tensor(0, 0))
    found = diff(left, right)

    assert told(found)["renamed"] == [("model/f.w", "model/b.w"), ("model/f.bias", "model/b.bias")]
    assert found.of("renamed")[1].note == "as its module, for its own values prove nothing"
    assert [item for _, item in told(found)["only in a"]] == ["model/f.n", "model/g.bias"]


def test_a_prefix_before_every_name_is_one_line() -> None:
    model = {f"l.{n}.{part}": tensor(n, at, 7) for n in range(30) for at, part in enumerate(("w", "b"))}
    prefixed = {f"module.{name}": held for name, held in model.items()}
    found = diff(Checkpoint("torch", model=model), Checkpoint("torch", model=prefixed))
    lines = list(report.diff_lines(found, "a", "b"))

    assert len(found.of("renamed")) == 60
    assert "renamed: model/* -> model/module.*  60 tensors" in lines


@given(st.lists(st.sampled_from([(1.0, 2.0), (3.0, 4.0), (5.0, 5.0), (6.0, 7.0)]), max_size=6), st.randoms())
def test_a_rename_never_leads_to_other_elements_nor_from_what_a_side_holds_twice(
    held: list[tuple[float, float]], random: Any
) -> None:
    old = {f"a{n}": tensor(*values) for n, values in enumerate(held)}
    names = [f"a{n}" if random.random() < 0.5 else f"b{n}" for n in range(len(held))]
    shuffled = random.sample(held, len(held))
    new = {name: tensor(*values) for name, values in zip(names, shuffled, strict=True)}
    found = renames(contents(old), contents(new))

    assert len(set(found.values())) == len(found)
    for before, after in found.items():
        values = held[int(before[1:])]
        assert values == shuffled[names.index(after)]
        assert held.count(values) == shuffled.count(values) == 1
        assert len(set(values)) > 1


# ── tensors of one name ──


def test_shapes_that_hold_the_same_elements_are_told_from_those_that_do_not() -> None:
    flat, square, other = (
        Tensor(array(np.array(values, "<f4"))) for values in ([1, 2, 3, 4], [[1, 2], [3, 4]], [[1, 3], [2, 4]])
    )

    assert [c.note for c in diff(of(x=flat), of(x=square)).of("reshaped")] == ["the same elements in the same order"]
    assert [c.note for c in diff(of(x=flat), of(x=other)).of("reshaped")] == [None]


def test_the_widest_gap_comes_first_and_nans_before_it() -> None:
    left = of(a=tensor(1, 2), b=tensor(1, 2), c=tensor(1, 2), d=tensor(1, 2))
    right = of(a=tensor(1, 2.5), b=tensor(1, 4), c=tensor(1, math.nan), d=tensor(1, 2))
    found = diff(left, right)

    assert [change.item for change in found.of("values")] == ["model/c", "model/b", "model/a"]
    assert found.same == 1


def test_equal_tensors_of_every_section_are_counted() -> None:
    found = diff(full(), full())

    assert found.equal
    assert found.same == 3 + 1 + 2 * 2 + 1 + 1


# ── real files ──


def torch_model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    model = torch.nn.Sequential()
    model.features = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model.fc = torch.nn.Linear(4, 2)
    return model


def test_a_renamed_module_of_torch_takes_its_buffers_and_its_adam_state_along(tmp_path: Path) -> None:
    old, new = torch_model(), torch_model()
    new.backbone = new.features
    del new.features
    new.add_module("fc", new._modules.pop("fc"))
    for model, name in ((old, "a"), (new, "b")):
        optimizer = torch.optim.Adam(list(model.named_parameters()))
        torch.manual_seed(2)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        torch.save(
            {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()},
            tmp_path / f"{name}.pt",
        )
    found = ckptmigrate.diff(tmp_path / "a.pt", tmp_path / "b.pt")

    assert len(found.of("renamed")) == 7
    assert {(c.was, c.item) for c in found.of("renamed")} == {
        (f"model/features.{rest}", f"model/backbone.{rest}")
        for rest in (key.partition(".")[2] for key in old.state_dict() if key.startswith("features"))
    }
    assert len(found.tensors) == 7
    assert found.others == ()


def test_a_zip_and_the_safetensors_of_it_are_equal_and_one_element_is_found(tmp_path: Path) -> None:
    state = {name: value.contiguous() for name, value in torch_model().state_dict().items()}
    torch.save(state, tmp_path / "a.pt")
    ckptmigrate.migrate(tmp_path / "a.pt", tmp_path / "a.safetensors")
    state["fc.weight"][1, 2] += 0.5
    safetensors.torch.save_file(state, tmp_path / "b.safetensors")

    assert ckptmigrate.diff(tmp_path / "a.pt", tmp_path / "a.safetensors").equal
    found = ckptmigrate.diff(tmp_path / "a.pt", tmp_path / "b.safetensors")
    (change,) = found.tensors
    assert (change.kind, change.item) == ("values", "model/fc.weight")
    assert change.spread is not None
    assert (change.spread.differ, change.spread.elements, change.spread.at) == (1, 8, (1, 2))
    assert change.spread.max_abs == pytest.approx(0.5)


def test_a_record_and_what_its_framework_wrote_of_it_today_differ_in_width_alone() -> None:
    record = BURN / "0.13.2" / "run-adam" / "checkpoint" / "optim-3.mpk"
    today = BURN / "0.13.2" / "golden" / "run-adam" / "checkpoint" / "optim-3.bpk"
    found = ckptmigrate.diff(record, today)

    assert {change.kind for change in found.tensors} == {"recast"}
    assert {change.note for change in found.tensors} == {"the same numbers"}
    assert len(found.tensors) == 18
    assert found.others == ()


def test_elements_are_drawn_once_and_those_that_differ_once_more_in_little_memory(tmp_path: Path) -> None:
    size = 48 * MiB
    for name in ("same", "a", "b"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
            file.seek(size - 1)
            file.write(b"\1" if name == "b" else b"\0")

    drawn: dict[str, int] = {}
    with Disk() as disk:
        views = {
            name: View.rows(disk.open(tmp_path / name).range(0, size), F32, (size // 4,)) for name in ("same", "a", "b")
        }
        read = View.read

        def counting(view: View, start: int, stop: int) -> memoryview:
            at = next(name for name, held in views.items() if held == view)
            drawn[at] = drawn.get(at, 0) + (stop - start) * 4
            return read(view, start, stop)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(View, "read", counting)
            tracemalloc.start()
            left, right = (of(s=Tensor(views["same"]), x=Tensor(views[name])) for name in ("a", "b"))
            found = diff(left, right)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()

    (change,) = found.of("values")
    assert change.item == "model/x"
    assert change.spread is not None
    assert (change.spread.differ, change.spread.at) == (1, (size // 4 - 1,))
    assert drawn == {"same": 2 * size, "a": 2 * size, "b": 2 * size}
    assert peak < 24 * MiB


def test_a_constant_is_told_from_what_is_constant_up_to_its_last_element() -> None:
    for count in (0, 1, 2, 63, 64, 65, 300_000):
        values = np.full(count, 7, "<f4")
        assert fingerprint(array(values)).constant
        if count > 1:
            values[-1] = 8
            assert not fingerprint(array(values)).constant
