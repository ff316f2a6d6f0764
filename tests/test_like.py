"""``--like``: the model that the result must fit; the frameworks themselves say whether it does."""

from __future__ import annotations

import copy
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import ckptmigrate
from ckptmigrate import errors, like
from ckptmigrate.format import GatherOptions, Like, Parts, Wanted
from ckptmigrate.like.closest import Pool
from ckptmigrate.like.numbers import lost

from .burn_records import FIXTURES, MUSEUM
from .burnpack_desk import referee, tensor, write
from .command_line import Ran
from .toys import FAMILY, arrays, make, state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Net(nn.Module):  # type: ignore[misc] # torch is Any to mypy here
    """Two layers of one shape in either order, a norm with statistics, and a buffer that looks like a bias."""

    def __init__(self, *order: str) -> None:
        super().__init__()
        for name in order or ("a", "norm", "b"):
            self.add_module(name, nn.BatchNorm1d(3) if name == "norm" else nn.Linear(3, 3))
        self.a.register_buffer("table", torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shown: torch.Tensor = self.b(self.norm(self.a(x) + self.a.table))
        return shown


OTHER = ("b", "a", "norm")
IN_ORDER = "optimizer 0: its parameters are named in the order of the model of a Net"


def meta(*order: str) -> Net:
    with torch.device("meta"):
        return Net(*order)


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.linspace(-1, 1, 24).reshape(8, 3)).pow(2).sum().backward()
    optimizer.step()


def trained(net: nn.Module, groups: Callable[[nn.Module], Any] = lambda net: net.parameters()) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(groups(net), lr=0.1)
    for _ in range(3):
        step(net, optimizer)
    return optimizer


def saved(path: Path, net: nn.Module, optimizer: torch.optim.Optimizer | None = None, **more: Any) -> Path:
    held: dict[str, Any] = {"model_state_dict": net.state_dict(), **more}
    if optimizer is not None:
        held["optimizer_state_dict"] = optimizer.state_dict()
    torch.save(held, path)
    return path


def problems(path: Path, wanted: Any, **options: Any) -> tuple[str, ...]:
    with pytest.raises(errors.PlanError) as caught:
        ckptmigrate.migrate(path, path.with_name("refused.pt"), like=wanted, **options)
    assert not path.with_name("refused.pt").exists()
    return caught.value.problems


def check_next_step(net: Net, optimizer: torch.optim.Optimizer, resumed: Net, again: torch.optim.Optimizer) -> None:
    """One more step of both gives the same bits under every name."""
    step(net, optimizer)
    step(resumed, again)
    mine, theirs = net.state_dict(), resumed.state_dict()

    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


# ---------------------------------------------------------------- order, roles and optimizers


def test_the_order_becomes_the_models_and_the_optimizer_takes_the_same_step(tmp_path: Path) -> None:
    net = Net()
    optimizer = trained(net)
    saved(tmp_path / "old.pt", net, optimizer, ema_state_dict=copy.deepcopy(net.state_dict()))
    ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like=meta(*OTHER))
    new = torch.load(tmp_path / "new.pt", weights_only=True)
    resumed = Net(*OTHER)

    assert list(new["model_state_dict"]) == list(new["ema_state_dict"]) == list(resumed.state_dict())
    resumed.load_state_dict(new["model_state_dict"], strict=True)
    again = torch.optim.Adam(resumed.parameters(), lr=0.1)
    again.load_state_dict(new["optimizer_state_dict"])
    check_next_step(net, optimizer, resumed, again)


def test_a_buffer_of_the_model_is_no_entry_of_a_positional_optimizer(tmp_path: Path) -> None:
    """`table` has the shape of a bias, and its name tells nobody: without the model no entry's name is certain."""
    net = Net()
    saved(tmp_path / "old.pt", net, trained(net))
    with ckptmigrate.open(tmp_path / "old.pt") as plain:
        assert [p.by for p in plain.optimizers[0].params] == [None] * 6
    with ckptmigrate.open(tmp_path / "old.pt", gather=GatherOptions(like=like.load(meta()))) as checkpoint:
        assert [(p.name, p.by) for p in checkpoint.optimizers[0].params] == [
            (name, "like") for name, _ in net.named_parameters()
        ]
        assert checkpoint.ledger.notes == [IN_ORDER]


def test_sorted_names_stand_in_no_order_so_that_the_models_counts(tmp_path: Path) -> None:
    net = Net(*OTHER)
    optimizer = trained(net)
    save_file({name: net.state_dict()[name] for name in sorted(net.state_dict())}, tmp_path / "model.safetensors")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    gather = GatherOptions(parts={"optimizers": str(tmp_path / "optimizer.pt")})
    ckptmigrate.migrate(
        tmp_path / "model.safetensors", tmp_path / "new.pt", to="torch_zip", gather=gather, like=meta(*OTHER)
    )
    new = torch.load(tmp_path / "new.pt", weights_only=True)
    resumed = Net(*OTHER)
    resumed.load_state_dict(new["model_state_dict"], strict=True)
    again = torch.optim.Adam(resumed.parameters(), lr=0.1)
    again.load_state_dict(new["optimizer_state_dict"])

    assert list(new["model_state_dict"]) == list(resumed.state_dict())
    check_next_step(net, optimizer, resumed, again)


def test_a_file_in_declared_order_is_named_by_that_order_though_the_model_has_another(tmp_path: Path) -> None:
    """The optimizer was made with the old model, whose order the pickle keeps."""
    net = Net()
    saved(tmp_path / "old.pt", net, trained(net))
    with ckptmigrate.open(tmp_path / "old.pt", gather=GatherOptions(like=like.load(meta(*OTHER)))) as checkpoint:
        assert [(p.name, p.by) for p in checkpoint.optimizers[0].params] == [
            (name, "order") for name, _ in net.named_parameters()
        ]


def decayed(net: nn.Module) -> list[dict[str, Any]]:
    """Biases first, without decay, the last of them foremost: no order of the model."""
    named = list(net.named_parameters())[::-1]
    return [
        {"params": [p for n, p in named if "weight" not in n], "weight_decay": 0.0},
        {"params": [p for n, p in named if "weight" in n]},
    ]


def test_the_optimizer_of_the_model_names_the_entries_and_gives_their_order(tmp_path: Path) -> None:
    net, wanted = Net(), Net(*OTHER)
    optimizer = trained(net, decayed)
    own = torch.optim.Adam(decayed(wanted), lr=0.1)
    saved(tmp_path / "old.pt", net, optimizer)
    names = [[name for name in group if name] for group in like.load((net, optimizer)).optimizers[0]]
    report = ckptmigrate.migrate(
        tmp_path / "old.pt",
        tmp_path / "new.pt",
        like=(wanted, own),
        gather=GatherOptions(params=tuple(map(tuple, names))),
    )
    new = torch.load(tmp_path / "new.pt", weights_only=True)
    wanted.load_state_dict(new["model_state_dict"], strict=True)
    own.load_state_dict(new["optimizer_state_dict"])

    assert not [w for w in report.warnings if "groups" in w]
    check_next_step(net, optimizer, wanted, own)


def test_a_like_whose_optimizer_has_names_names_the_parameters(tmp_path: Path) -> None:
    net = Net()
    optimizer = trained(net, decayed)
    saved(tmp_path / "old.pt", net, optimizer)
    named = torch.optim.Adam(
        [
            {"params": [(n, p) for n, p in net.named_parameters() if any(p is q for q in g["params"])][::-1]}
            for g in decayed(net)
        ]
    )
    saved(tmp_path / "like.pt", net, named)
    with ckptmigrate.open(
        tmp_path / "old.pt", gather=GatherOptions(like=like.load(tmp_path / "like.pt"))
    ) as checkpoint:
        (found,) = checkpoint.optimizers
        members = {id(p): n for n, p in net.named_parameters()}

        assert {p.by for p in found.params} == {"like"}
        assert [p.name for p in found.params] == [members[id(p)] for g in optimizer.param_groups for p in g["params"]]
        assert [n for n in checkpoint.ledger.notes if n.startswith("optimizer 0")] == [
            f"optimizer 0: its parameters are those that the optimizer of {tmp_path / 'like.pt'} names"
        ]


def test_no_names_forbids_to_assume_the_order_of_the_model_too(tmp_path: Path) -> None:
    net = Net()
    saved(tmp_path / "old.pt", net, trained(net))
    gather = GatherOptions(names=False, like=like.load(meta()))
    with ckptmigrate.open(tmp_path / "old.pt", gather=gather) as checkpoint:
        assert {p.name for p in checkpoint.optimizers[0].params} == {None}


def test_an_order_that_was_assumed_under_old_names_is_the_models_under_its_own(tmp_path: Path) -> None:
    """Layers of four shapes: each entry's name is certain before the rename, as far as the order is the model's."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    for param in net.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    held = {f"net.{name}": value for name, value in net.state_dict().items()}
    torch.save({"model_state_dict": held, "optimizer_state_dict": optimizer.state_dict()}, tmp_path / "old.pt")
    report = ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like=net, rename=((r"net\.(.*)", r"\1"),))

    assert [note for note in report.notes if note.startswith("optimizer")] == [
        "optimizer 0: its parameters are named in the order of the model of a Sequential"
    ]


def test_an_optimizer_that_only_the_new_names_tell_is_named_after_the_renames(tmp_path: Path) -> None:
    net = Net()
    optimizer = trained(net)
    held = {f"net.{name}": value for name, value in net.state_dict().items()}
    torch.save({"model_state_dict": held, "optimizer_state_dict": optimizer.state_dict()}, tmp_path / "old.pt")
    ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like=meta(), rename=((r"net\.(.*)", r"\1"),))
    new = torch.load(tmp_path / "new.pt", weights_only=True)
    resumed = Net()
    resumed.load_state_dict(new["model_state_dict"], strict=True)
    again = torch.optim.Adam(resumed.parameters(), lr=0.1)
    again.load_state_dict(new["optimizer_state_dict"])
    check_next_step(net, optimizer, resumed, again)


def test_state_that_an_assumed_order_gave_to_a_buffer_is_refused(tmp_path: Path) -> None:
    """Under its old name nobody could know that `first` is a buffer; it has the shape of the parameter."""
    held = {"first": torch.zeros(2), "second": torch.ones(2)}
    slots = {"step": torch.tensor(1.0), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)}
    optimizer = {"state": {0: slots, 1: slots}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
    torch.save({"model_state_dict": held, "optimizer_state_dict": optimizer}, tmp_path / "old.pt")
    wanted = nn.Module()
    wanted.register_buffer("mask", torch.zeros(2))
    wanted.register_parameter("weight", nn.Parameter(torch.zeros(2)))
    (problem,) = problems(tmp_path / "old.pt", wanted, rename=(("first", "mask"), ("second", "weight")))

    assert "optimizer 0 has state that was taken for that of mask, which is a buffer" in problem
    assert "--params FILE" in problem


def test_an_order_that_was_assumed_and_the_models_optimizer_contradicts_is_refused(tmp_path: Path) -> None:
    """Under the old names the optimizer of the model names nothing, and two of one shape pass for the order of the model."""
    net = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    optimizer = torch.optim.SGD([net["b"].weight, net["a"].weight], momentum=0.9)
    for param in net.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    held = {f"net.{name}": value for name, value in net.state_dict().items()}
    torch.save({"model_state_dict": held, "optimizer_state_dict": optimizer.state_dict()}, tmp_path / "old.pt")
    (problem,) = problems(tmp_path / "old.pt", (net, optimizer), rename=((r"net\.(.*)", r"\1"),))

    assert "optimizer 0 was taken to be in the order of the model, and its own optimizer has another order" in problem


def test_groups_that_are_not_the_models_are_kept_and_told(tmp_path: Path) -> None:
    net = Net()
    saved(tmp_path / "old.pt", net, trained(net))
    report = ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like=(net, torch.optim.Adam(decayed(net))))

    assert [w for w in report.warnings if "its groups are not those of the optimizer" in w]
    assert [len(g["params"]) for g in torch.load(tmp_path / "new.pt")["optimizer_state_dict"]["param_groups"]] == [6]


def test_without_a_model_the_report_says_what_order_is_assumed(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    for param in net.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    saved(tmp_path / "old.pt", net, optimizer)
    same = ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "same.pt")
    renamed = ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", rename=((r"0\.(.*)", r"first.\1"),))

    told = "the model is assumed to declare its parameters in the order in which they stand now; --like FILE makes sure"
    assert (told in same.notes, told in renamed.notes) == (False, True)


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


# ---------------------------------------------------------------- dtypes


def test_floats_become_those_of_the_model_and_twins_of_another_dtype_stay(tmp_path: Path) -> None:
    state = {"w": torch.linspace(-2, 2, 7).half()}
    held = {"state_dict": state, "ema_state_dict": dict(state), "master_state_dict": {"w": state["w"].double()}}
    torch.save(held, tmp_path / "old.pt")
    report = ckptmigrate.migrate(
        tmp_path / "old.pt", tmp_path / "new.pt", like={"w": torch.empty(7, dtype=torch.bfloat16)}
    )
    new = torch.load(tmp_path / "new.pt", weights_only=True)

    assert torch.equal(new["state_dict"]["w"], state["w"].bfloat16())
    assert [new[f"{twin}_state_dict"]["w"].dtype for twin in ("ema", "master")] == [torch.bfloat16, torch.float64]
    assert "1 tensor of the model is cast from F16 to BF16, as a dict has it" in report.notes


@pytest.mark.parametrize(("dtype", "expected"), [("f32", "F32"), ("keep", "F16")])
def test_what_the_call_says_of_floats_counts(dtype: str, expected: str, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2).half()}, tmp_path / "old.pt")
    wanted = {"w": torch.empty(2, dtype=torch.float64)}
    report = ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like=wanted, dtype=dtype)
    with ckptmigrate.open(tmp_path / "new.pt") as checkpoint:
        assert checkpoint.model["w"].dtype.name == expected
    assert report.notes[-1] == (
        f"1 tensor of the model is not cast from {expected} to F64, as a dict has it, because of --dtype {dtype}"
    )


KINDS = [torch.uint8, torch.bool, torch.int16, torch.int64, torch.float32, torch.uint64]


@given(
    st.sampled_from(KINDS),
    st.sampled_from(KINDS),
    st.lists(st.sampled_from([0, 1, 2, 255, -1, 300, 2**31, 2**62]), max_size=4),
)
def test_a_number_crosses_whole_or_is_refused(source: torch.dtype, target: torch.dtype, numbers: list[int]) -> None:
    from ckptmigrate.dtypes import BY_TORCH
    from ckptmigrate.like.dtypes import Exact

    before = torch.tensor(numbers, dtype=torch.int64).to(source)
    rule = Exact(BY_TORCH[str(target).removeprefix("torch.")])
    fits = [int(n) for n in before.tolist()]
    wide = {torch.uint8: (0, 255), torch.bool: (0, 1), torch.int16: (-(2**15), 2**15 - 1), torch.int64: (-(2**63), 2**63 - 1), torch.uint64: (0, 2**64 - 1)}  # fmt: skip
    low, high = wide.get(target, (-(2**63), 2**63))
    whole = all(low <= n <= high and (target != torch.float32 or int(np.float32(n)) == n) for n in fits)
    if whole:
        assert [int(n) for n in rule.apply([before.numpy()]).tolist()] == fits
    else:
        with pytest.raises(errors.TensorError, match="cannot become"):
            rule.apply([before.numpy()])


def test_one_tensor_does_not_become_two_of_different_dtypes(tmp_path: Path) -> None:
    shared = torch.ones(2)
    torch.save({"a": shared, "b": shared}, tmp_path / "old.pt")
    wanted = {"a": torch.empty(2), "b": torch.empty(2, dtype=torch.float64)}

    assert problems(tmp_path / "old.pt", wanted) == ("--like a dict: a and b are tied, expected F32 and F64",)


def test_a_half_precision_record_becomes_what_the_model_is(tmp_path: Path) -> None:
    """Without a model its floats would be raised to F32."""
    record = MUSEUM / "0.21.0" / "net-half.mpk"
    with ckptmigrate.open(record) as checkpoint:
        wanted = {n: Wanted(tuple(t.shape), t.dtype, None, n) for n, t in checkpoint.model.items()}
    ckptmigrate.migrate(record, tmp_path / "as_is.bpk", like=Like("half", wanted))
    ckptmigrate.migrate(record, tmp_path / "raised.bpk")
    with ckptmigrate.open(tmp_path / "as_is.bpk") as one, ckptmigrate.open(tmp_path / "raised.bpk") as other:
        assert {t.dtype.name for t in one.model.values()} == {"F16"}
        assert {t.dtype.name for t in other.model.values()} == {"F32"}
        assert arrays(one.model) == arrays(other.model)


def test_a_mask_of_bytes_becomes_the_booleans_that_the_model_has(tmp_path: Path) -> None:
    torch.save({"mask": torch.tensor([0, 1, 1], dtype=torch.uint8)}, tmp_path / "old.pt")
    ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like={"mask": torch.empty(3, dtype=torch.bool)})

    assert torch.load(tmp_path / "new.pt", weights_only=True)["mask"].tolist() == [False, True, True]


# ---------------------------------------------------------------- from where a model is read


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme_nets.py").write_text(
        "import torch\n"
        "def small():\n    with torch.device('meta'):\n        return torch.nn.Linear(3, 2)\n"
        "def broken():\n    raise ValueError('no weights today')\n"
        "def leaves():\n    raise SystemExit(7)\n"
        "class Kinds:\n    state = staticmethod(lambda: small().state_dict())\n"
        "number = 3\n"
        "net = torch.nn.Linear(3, 2)\n"
        "class Two(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(3, 2)\n"
    )
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "old.pt")
    return tmp_path


@pytest.mark.parametrize("said", ["acme_nets:small", "acme_nets:Kinds.state", "acme_nets:net", "acme_nets:Two"])
def test_a_callable_of_the_working_directory_is_the_model(program: Path, said: str) -> None:
    before = list(sys.path)
    ran = Ran("migrate", "old.pt", "new.pt", "--like", said)

    assert ran.code == 0, ran.err
    assert sys.path == before
    torch.nn.Linear(3, 2).load_state_dict(torch.load(program / "new.pt", weights_only=True), strict=True)


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ("acme_nets:broken", 3, r"raised ValueError: no weights today \(.*acme_nets.py, line 6\)"),
        ("acme_nets:leaves", 3, r"raised SystemExit: 7 \(.*acme_nets.py, line 8\)"),
        ("acme_nets:number", 3, "is a int without tensors"),
        ("acme_nets:nothing", 2, "acme_nets has no nothing"),
        ("acme_elsewhere:small", 2, "there is no module acme_elsewhere, and no such file"),
        ("elsewhere.pt", 3, "no such file"),
    ],
)
def test_what_is_no_model_is_told_as_its_own_error(program: Path, said: str, code: int, text: str) -> None:
    ran = Ran("migrate", "old.pt", "new.pt", "--like", said)

    assert ran.code == code
    assert re.search(text, ran.err), ran.err
    assert said in ran.err
    assert not (program / "new.pt").exists()


def test_a_file_that_is_called_like_a_callable_is_a_file(program: Path) -> None:
    (program / "acme_nets:small").write_bytes((program / "old.pt").read_bytes())

    assert like.load("acme_nets:small").tensors.keys() == {"weight", "bias"}
    assert like.load("acme_nets:small").others is None


def test_the_order_of_sorted_names_is_not_taken_over(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    torch.save(net.state_dict(), tmp_path / "old.pt")
    save_file(dict(sorted(net.state_dict().items())), tmp_path / "like.safetensors")
    report = ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", like=tmp_path / "like.safetensors")

    assert list(torch.load(tmp_path / "new.pt", weights_only=True)) == ["0.weight", "0.bias"]
    assert [note for note in report.notes if "says nothing of the model's" in note]


def test_safetensors_come_out_in_the_order_of_the_model(tmp_path: Path) -> None:
    save_file({"a.bias": torch.zeros(1), "a.weight": torch.ones(1, 1)}, tmp_path / "old.safetensors")
    wanted = {"a.weight": torch.empty(1, 1), "a.bias": torch.empty(1)}
    ckptmigrate.migrate(tmp_path / "old.safetensors", tmp_path / "new.safetensors", like=wanted)

    assert load_file(tmp_path / "new.safetensors").keys() == wanted.keys()
    with ckptmigrate.open(tmp_path / "new.safetensors") as checkpoint:
        assert list(checkpoint.model) == list(wanted)


def test_in_place_takes_the_model_too(tmp_path: Path) -> None:
    net = Net()
    saved(tmp_path / "net.pt", net)
    report = ckptmigrate.migrate(tmp_path / "net.pt", in_place=True, like=meta(*OTHER))

    assert report.written
    assert list(torch.load(tmp_path / "net.pt")["model_state_dict"]) == list(Net(*OTHER).state_dict())


# ---------------------------------------------------------------- the closest


def test_names_of_another_shape_count_only_where_they_are_alike() -> None:
    pool = Pool({"encoder.layer.0.attention.weight": (4, 4), "x": (2,), "decoder.bias": (9,)})

    assert (
        pool.closest("encoder.layers.0.attention.weight", (4, 5))
        == "; closest of the unmatched: encoder.layer.0.attention.weight [4, 4]"
    )
    assert pool.closest("scale", (2,)) == "; closest of the unmatched: x (same shape)"
    assert pool.closest("scale", (3,)) == ""


@st.composite
def fitted(draw: st.DrawFn) -> tuple[Any, list[str]]:
    """Give a checkpoint with named Adam state in the order of its model, in up to two groups, and the names in another order."""
    names = draw(st.lists(st.sampled_from([f"{a}.{b}" for a in "abcd" for b in "wxyz"]), min_size=1, unique=True))
    shapes = {name: draw(st.sampled_from([(2,), (2, 3)])) for name in names}
    second = set(draw(st.lists(st.sampled_from(names), unique=True)))
    groups = [[n for n in names if n not in second], [n for n in names if n in second]]
    return make(shapes, groups), draw(st.permutations(names))


@given(fitted(), st.booleans())
def test_any_order_of_a_model_is_taken_over_with_every_slot_of_every_name(
    given_: tuple[Any, list[str]], of_optimizer: bool
) -> None:
    checkpoint, order = given_
    before = {name: (group, slots) for name, group, slots in state(checkpoint)}
    model = arrays(checkpoint.model)
    members = [[p.name for p in checkpoint.optimizers[0].params if p.group == g] for g in (0, 1)]
    lists = tuple(tuple(reversed(group)) for group in members)
    wanted = {n: Wanted(tuple(checkpoint.model[n].shape), checkpoint.model[n].dtype, "parameter", n) for n in order}
    options = GatherOptions(like=Like("like.pt", wanted, None, (lists,) if of_optimizer else ()))

    assert like.fit(checkpoint, FAMILY, options, ties="keep", said=None) == []
    assert list(checkpoint.model) == list(checkpoint.twins["ema"]) == order
    assert arrays(checkpoint.model) == model
    assert {name: (group, slots) for name, group, slots in state(checkpoint)} == before
    for number in (0, 1):
        entries = [p.name for p in checkpoint.optimizers[0].params if p.group == number]
        assert entries == (list(lists[number]) if of_optimizer else [n for n in order if n in entries])
    assert checkpoint.ledger.unexplained() == []
