"""``--like`` and order: the model's order, roles and names of an optimizer's entries, by which training goes on bit by bit."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import ckptmigrate
from ckptmigrate import like
from ckptmigrate.format import GatherOptions, Like, Wanted

from .nets import IN_ORDER, OTHER, Net, check_next_step, meta, problems, saved, trained
from .toys import FAMILY, arrays, make, state

if TYPE_CHECKING:
    from pathlib import Path


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
