"""``--like``: the model whose names the result must have; the frameworks themselves say whether it does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import ckptmigrate
from ckptmigrate import errors, like
from ckptmigrate.format import GatherOptions, Parts
from ckptmigrate.like.closest import Pool
from ckptmigrate.like.numbers import lost

from .burn_records import FIXTURES, MUSEUM
from .burnpack_desk import referee, tensor, write
from .command_line import Ran
from .nets import problems
from .toys import arrays

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# ---------------------------------------------------------------- what does not fit


def test_everything_that_does_not_fit_is_told_at_once_with_what_could_be_meant(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    torch.save(net.state_dict(), tmp_path / "old.pt")
    wanted = {"body.weight": torch.empty(4, 3), "0.bias": torch.empty(4), "1.weight": torch.empty(4, 2)}
    found = problems(tmp_path / "old.pt", wanted)

    assert found == (
        "--like a dict: missing: body.weight F32 [4, 3]; closest of the unmatched: 0.weight (same shape)",
        "--like a dict: unexpected: 0.weight F32 [4, 3]; closest of the unmatched: body.weight (same shape)",
        "--like a dict: unexpected: 1.bias F32 [2]",
        "--like a dict: misshapen: 1.weight is [2, 4], expected [4, 2], which is its transpose",
    )


def test_a_plan_says_what_does_not_fit(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "old.pt")
    torch.save({"b": torch.zeros(1)}, tmp_path / "like.pt")
    ran = Ran("plan", tmp_path / "old.pt", "--like", tmp_path / "like.pt")

    assert ran.code == 3
    assert "missing: b F32 [1]; closest of the unmatched: a (same shape)" in ran.out + ran.err


def test_at_most_twenty_of_a_kind_are_printed_and_all_are_in_the_json(tmp_path: Path) -> None:
    torch.save({f"old{n}": torch.zeros(1) for n in range(25)}, tmp_path / "old.pt")
    torch.save({f"new{n}": torch.zeros(2) for n in range(23)}, tmp_path / "like.pt")
    ran = Ran("migrate", tmp_path / "old.pt", tmp_path / "new.pt", "--like", tmp_path / "like.pt", "--json")

    assert ran.code == 3
    assert len(ran.json()["error"]["problems"]) == 48
    assert ran.err.count(": missing: new") == ran.err.count(": unexpected: old") == 20
    assert ": missing: … and 3 more" in ran.err
    assert ": unexpected: … and 5 more" in ran.err
    assert ": missing: … and 3 more" in Ran("plan", tmp_path / "old.pt", "--like", tmp_path / "like.pt").out


def test_a_variant_without_its_name_is_refused_and_passes_with_a_rename(
    corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    """CASES B11."""
    path = corpus("tracel-ai+burn/enum_depthwise_true.pt")
    state = torch.load(path, weights_only=True)
    wanted = {"conv.Dws." + name.removeprefix("conv."): value for name, value in state.items()}
    torch.save(wanted, tmp_path / "like.pt")
    ran = Ran("migrate", path, tmp_path / "new.pt", "--like", tmp_path / "like.pt")

    assert ran.code == 3
    assert (
        "missing: conv.Dws.dconv.weight F32 [2, 1, 3, 3]; closest of the unmatched: conv.dconv.weight (same shape"
        in ran.err
    )
    assert "unexpected: conv.pconv.bias F32 [2]; closest of the unmatched: conv.Dws.pconv.bias" in ran.err
    again = Ran(
        "migrate", path, tmp_path / "new.pt", "--like", tmp_path / "like.pt", "--rename", r"conv\.(.*)=conv.Dws.\1"
    )
    assert again.code == 0, again.err
    assert list(torch.load(tmp_path / "new.pt", weights_only=True)) == list(wanted)


def test_extra_state_that_the_model_has_and_the_checkpoint_not_is_missing(tmp_path: Path) -> None:
    class Stateful(nn.Linear):  # type: ignore[misc] # same
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 3}

    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "without.pt")
    torch.save(Stateful(2, 2).state_dict(), tmp_path / "with.pt")

    assert problems(tmp_path / "without.pt", Stateful(2, 2)) == (
        "--like a Stateful: missing: _extra_state, which is no tensor",
    )
    assert problems(tmp_path / "with.pt", nn.Linear(2, 2)) == (
        "--like a Linear: unexpected: _extra_state, which is no tensor",
    )
    ckptmigrate.migrate(tmp_path / "with.pt", tmp_path / "new.pt", like=Stateful(2, 2))


# ---------------------------------------------------------------- what is mended


def test_a_counter_that_older_releases_lacked_starts_as_zero_and_no_existing_one_changes(tmp_path: Path) -> None:
    """CASES G13."""
    norms = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    norms(torch.randn(4, 2))
    state = norms.state_dict()
    del state["0.num_batches_tracked"]
    torch.save(state, tmp_path / "old.pt")
    ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like=norms)
    new = torch.load(tmp_path / "new.pt", weights_only=True)

    nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2)).load_state_dict(new, strict=True)
    assert (new["0.num_batches_tracked"].dtype, new["0.num_batches_tracked"].shape) == (torch.int64, ())
    assert [int(new[f"{n}.num_batches_tracked"]) for n in (0, 1)] == [0, 1]


def test_nothing_is_added_that_the_model_does_not_have(tmp_path: Path) -> None:
    state = {"norm.weight": torch.ones(2), "norm.bias": torch.zeros(2)}
    torch.save(state, tmp_path / "old.pt")
    ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like=state)

    assert list(torch.load(tmp_path / "new.pt", weights_only=True)) == list(state)


class Tied(nn.Module):  # type: ignore[misc] # same
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def test_a_tensor_that_the_model_has_under_two_names_gets_its_second_back(tmp_path: Path) -> None:
    net = Tied()
    save_file({"head.weight": net.head.weight.detach()}, tmp_path / "old.safetensors")
    with torch.device("meta"):
        wanted = Tied()
    ckptmigrate.migrate(tmp_path / "old.safetensors", tmp_path / "new.pt", like=wanted, to="torch_zip")
    new = torch.load(tmp_path / "new.pt", weights_only=True)

    Tied().load_state_dict(new, strict=True)
    assert new["embed.weight"].data_ptr() == new["head.weight"].data_ptr()
    assert torch.equal(new["embed.weight"], net.embed.weight)


def zoo(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Give a file of 0.19 and what its model is today: the names, shapes and dtypes of the file, indices of tuples put back."""
    path = folder / "zoo.bpk"
    names = {re.sub(r"^pair\.(weight|bias)$", r"pair.0.\1", re.sub(r"^pair\.(gamma|beta)$", r"pair.1.\1", n)): t
             for n, t in ckptmigrate.open(path).model.items()}  # fmt: skip
    return path, {name: tensor.numpy() for name, tensor in names.items()}


def test_indices_of_tuples_that_a_record_lost_come_back_and_then_nothing_is_doubted(tmp_path: Path) -> None:
    old, wanted = zoo(MUSEUM / "0.19.1")
    assert any("without their index" in text for text in ckptmigrate.migrate(old, tmp_path / "lost.bpk").warnings)
    report = ckptmigrate.migrate(old, tmp_path / "zoo.bpk", like=wanted)

    assert [text for text in report.warnings if "index" in text] == []
    said = referee("load", tmp_path / "zoo.bpk", "zoo", "--partial")
    assert (said["ok"], [n for n in (*said["missing"], *said["unused"]) if n.startswith("pair")]) == (True, [])


def test_so_they_do_by_today_s_file_of_the_model(tmp_path: Path) -> None:
    folder = FIXTURES / "0.19.1"
    if not (folder / "golden" / "zoo.bpk").exists():
        pytest.skip("the museum is not beside this checkout: shared/fixtures/burn/0.19.1/golden/zoo.bpk")
    ckptmigrate.migrate(folder / "zoo.bpk", tmp_path / "zoo.bpk", like=folder / "golden" / "zoo.bpk")

    assert ckptmigrate.verify(tmp_path / "zoo.bpk", folder / "golden" / "zoo.bpk") == []


def test_a_lost_index_with_two_readings_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "old.bpk"
    path.write_bytes(write(Parts(tensors={"pair.weight": tensor([[1.0], [2.0]], 1)})))
    wanted = {f"pair.{n}.weight": np.zeros((2, 1), "f4") for n in (0, 1)}
    with pytest.raises(
        errors.PlanError, match=r"pair\.weight lost a number, and could be pair\.0\.weight or pair\.1\.weight"
    ):
        ckptmigrate.migrate(path, tmp_path / "new.bpk", like=wanted)


NUMBERED = st.lists(st.sampled_from(["a", "b", "0", "1"]), min_size=1, max_size=4).map(".".join)


@given(st.dictionaries(NUMBERED, st.sampled_from([(1,), (2,)]), max_size=6), st.randoms())
def test_only_a_number_ever_comes_back_and_only_one_to_one(wanted: dict[str, tuple[int, ...]], random: Any) -> None:
    present = {}
    for name, shape in wanted.items():
        kept = [part for part in name.split(".") if not part.isdecimal() or random.random() < 0.5]
        present[".".join(kept)] = shape
    strangers = {n: s for n, s in present.items() if n not in wanted}
    moves, doubts = lost(strangers, {n: s for n, s in wanted.items() if n not in present})

    assert len(set(moves.values())) == len(moves)
    assert not moves.keys() & doubts.keys()
    for short, name in moves.items():
        rest = iter(name.split("."))
        assert all(part in rest for part in short.split(".") if part)
        assert [p for p in short.split(".") if p and not p.isdecimal()] == [
            p for p in name.split(".") if not p.isdecimal()
        ]
        assert strangers[short] == wanted[name]


def test_gates_that_a_coupled_lstm_never_used_go_where_the_model_has_none(tmp_path: Path) -> None:
    """`plain` keeps its forget gate, because the model has one there."""
    ckptmigrate.migrate(
        MUSEUM / "0.21.0" / "coupled-full.mpk", tmp_path / "coupled.bpk", like=MUSEUM / "0.22.1" / "coupled.bpk"
    )

    assert ckptmigrate.verify(tmp_path / "coupled.bpk", MUSEUM / "0.22.1" / "coupled.bpk") == []
    assert referee("load", tmp_path / "coupled.bpk", "coupled")["ok"]


def test_the_optimizer_of_a_coupled_lstm_goes_on_with_what_is_left(tmp_path: Path) -> None:
    old, new = MUSEUM / "0.21.0", MUSEUM / "0.22.1" / "optim-coupled-model.bpk"
    gather = GatherOptions(parts={"optimizers": str(old / "optim-coupled-full.mpk")}, epoch=1)
    ckptmigrate.migrate(old / "optim-coupled-model.mpk", tmp_path / "run", to="burnpack", like=new, gather=gather)
    with ckptmigrate.open(tmp_path / "run", gather=GatherOptions(epoch=1)) as ours, ckptmigrate.open(new) as theirs:
        (optimizer,) = ours.optimizers

        assert arrays(ours.model) == arrays(theirs.model)
        assert {p.name for p in optimizer.params if p.slots} == theirs.model.keys()


def test_a_gate_that_was_trained_is_unexpected(tmp_path: Path) -> None:
    wanted = [n for n in like.load(MUSEUM / "0.22.1" / "coupled.bpk").tensors if not n.startswith("plain.forget")]
    with ckptmigrate.open(MUSEUM / "0.22.1" / "coupled.bpk") as checkpoint:
        model = {name: np.zeros(checkpoint.model[name].shape, "f4") for name in wanted}
    gather = GatherOptions(parts={"optimizers": str(MUSEUM / "0.21.0" / "optim-coupled-full.mpk")})
    with pytest.raises(errors.PlanError) as caught:
        ckptmigrate.migrate(
            MUSEUM / "0.21.0" / "optim-coupled-model.mpk", tmp_path / "new", to="burnpack", like=model, gather=gather
        )

    assert [p.partition(" F32")[0] for p in caught.value.problems] == [
        f"--like a dict: unexpected: plain.forget_gate.{kind}_transform.{leaf}"
        for kind in ("input", "hidden")
        for leaf in ("weight", "bias")
    ]


# ---------------------------------------------------------------- the closest


def test_names_of_another_shape_count_only_where_they_are_alike() -> None:
    pool = Pool({"encoder.layer.0.attention.weight": (4, 4), "x": (2,), "decoder.bias": (9,)})

    assert (
        pool.closest("encoder.layers.0.attention.weight", (4, 5))
        == "; closest of the unmatched: encoder.layer.0.attention.weight [4, 4]"
    )
    assert pool.closest("scale", (2,)) == "; closest of the unmatched: x (same shape)"
    assert pool.closest("scale", (3,)) == ""
