"""Ids and entries of tied names: one parameter has one id and one entry, two have two."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import xxhash

import ckptmigrate
from ckptmigrate.format import WriteOptions
from ckptmigrate.operations import Tie, Transpose, Untie

from .burn_records import MUSEUM
from .burnpack_desk import referee
from .toys import make, run, state

if TYPE_CHECKING:
    from pathlib import Path

    from ckptmigrate.checkpoint import Checkpoint

PAIR = {"embed": (3, 2), "x": (2,), "head": (3, 2)}


def tied(*others: str) -> Checkpoint:
    """Give a model with ids whose head, and others, are its embedding."""
    checkpoint = make(PAIR | dict.fromkeys(others, (3, 2)), [["embed", "x"]], ids=True)
    for members in (checkpoint.model, checkpoint.twins["ema"]):
        members.update(dict.fromkeys(("head", *others), members["embed"]))
    return checkpoint


def own_id(identity: int, name: str) -> int:
    return xxhash.xxh64_intdigest(f"{identity}\0{name}\0".encode())


def entries(checkpoint: Checkpoint) -> list[tuple[str | None, Any, bool]]:
    return [(p.name, p.key, p.slots is not None) for p in checkpoint.optimizers[0].params]


def test_what_is_changed_away_from_its_partner_has_an_id_of_its_own() -> None:
    checkpoint = tied()

    assert run(checkpoint, Transpose("head"), ties="duplicate") == []
    assert (checkpoint.model["embed"].id, checkpoint.model["head"].id) == (1000, own_id(1000, "head"))
    assert entries(checkpoint) == [("embed", 1000, True), ("x", 1001, True), ("head", own_id(1000, "head"), False)]


def test_its_entry_follows_it_and_the_partner_that_stays_gets_one_without_state() -> None:
    checkpoint = tied()

    assert run(checkpoint, Transpose("embed"), ties="duplicate") == []
    assert (checkpoint.model["embed"].id, checkpoint.model["head"].id) == (own_id(1000, "embed"), 1000)
    assert entries(checkpoint) == [("embed", own_id(1000, "embed"), True), ("x", 1001, True), ("head", 1000, False)]


def test_names_that_are_changed_alike_stay_one_parameter() -> None:
    checkpoint = tied("tail")

    assert run(checkpoint, Transpose("head|tail"), ties="duplicate") == []
    assert checkpoint.model["head"].id == checkpoint.model["tail"].id == own_id(1000, "head")
    assert [entry[0] for entry in entries(checkpoint)] == ["embed", "x", "head"]


def test_a_parameter_that_was_written_twice_becomes_two_as_well() -> None:
    checkpoint = make(PAIR | {"tail": (3, 2)}, ids=True)
    for name in ("embed", "head", "tail"):  # of one id and alike, each at a place of its own in the file
        checkpoint.model[name] = replace(checkpoint.model[name], id=7)

    assert run(checkpoint, Transpose("head|tail")) == []
    assert [checkpoint.model[name].id for name in ("embed", "head", "tail")] == [
        7,
        own_id(7, "head"),
        own_id(7, "tail"),
    ]


def test_all_names_changed_at_once_keep_their_id() -> None:
    checkpoint = tied()

    assert run(checkpoint, Transpose("embed|head")) == []
    assert checkpoint.model["embed"].id == checkpoint.model["head"].id == 1000


# The entry of a tied set bears the name that the model has first, as torch's named_parameters does.


def test_a_tie_to_an_earlier_name_gives_the_entry_that_name() -> None:
    checkpoint = make(PAIR, [["embed", "x", "head"]])
    kept = state(checkpoint)[2][2]

    assert run(checkpoint, Tie("head", "embed")) == []
    assert [name for name, _, _ in state(checkpoint)] == ["embed", "x"]
    assert state(checkpoint)[0][2] == kept


def test_a_tie_and_its_way_back_leave_the_state_with_the_tensor_that_it_is_of() -> None:
    checkpoint = make(PAIR, [["embed", "x", "head"]])
    kept = state(checkpoint)[2][2]
    tie = Tie("head", "embed")

    assert run(checkpoint, tie, tie.inverse()) == []
    assert [(name, slots is None) for name, _, slots in state(checkpoint)] == [
        ("embed", True),
        ("x", False),
        ("head", False),
    ]
    assert state(checkpoint)[2][2] == kept


def test_the_first_of_two_tied_names_may_be_untied_and_the_other_keeps_the_state() -> None:
    checkpoint = tied()
    (_, _, kept), body = state(checkpoint)

    assert run(checkpoint, Untie("embed")) == []
    assert state(checkpoint) == [("embed", 0, None), body, ("head", 0, kept)]


class Net(torch.nn.Module):  # type: ignore[misc] # torch tells its types to nobody here
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(3, 3, bias=False)
        self.body = torch.nn.Linear(3, 3)
        self.head = torch.nn.Linear(3, 3, bias=False)
        if tied:
            self.embed.weight = self.head.weight


def test_the_names_of_the_file_are_those_that_torch_gives_the_tied_model(tmp_path: Path) -> None:
    net = Net(tied=False)
    optimizer = torch.optim.Adam(net.named_parameters())
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "old.pt")
    ckptmigrate.migrate(tmp_path / "old.pt", tmp_path / "new.pt", operations=(Tie(r"head\.weight", "embed.weight"),))
    found = torch.load(tmp_path / "new.pt", weights_only=True)["optimizer"]
    wanted = torch.optim.Adam(Net(tied=True).named_parameters())

    assert found["param_groups"][0]["param_names"] == wanted.state_dict()["param_groups"][0]["param_names"]
    assert torch.equal(found["state"][0]["exp_avg"], optimizer.state[net.head.weight]["exp_avg"])
    wanted.load_state_dict(found)


# A file of Burn, whose optimizer goes by ids.


@pytest.fixture
def run_of_burn(tmp_path: Path) -> Path:
    """Give a run of today's Burn whose first layer has a second name."""
    folder = tmp_path / "run"
    shutil.copytree(MUSEUM / "0.21.0" / "golden" / "run-sgd-momentum" / "checkpoint", folder / "checkpoint")
    ckptmigrate.migrate(folder, tmp_path / "tied", operations=(Tie(r"fc\.0\.weight", "twin.weight", adds=True),))
    return tmp_path / "tied"


@pytest.mark.parametrize("changed", ["fc.0.weight", "twin.weight"])
def test_a_burnpack_in_which_one_of_two_tied_names_was_changed_opens_again(
    changed: str, run_of_burn: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ckptmigrate.migrate(
        run_of_burn,
        out,
        operations=(Transpose(changed.replace(".", r"\.")),),
        write=WriteOptions(ties="duplicate"),
    )
    with ckptmigrate.open(run_of_burn) as before, ckptmigrate.open(out) as after:
        old = before.model["fc.0.weight"]
        found = {name: (tensor.id, tensor.shape) for name, tensor in after.model.items()}
        having = {p.name: (p.key, p.slots["momentum.velocity"].value) for p in after.optimizers[0].params if p.slots}
    stays = "twin.weight" if changed == "fc.0.weight" else "fc.0.weight"

    assert found[stays] == (old.id, old.shape)
    assert found[changed] == (own_id(int(old.id or 0), changed), old.shape[::-1])
    assert (having["fc.0.weight"][0], having["fc.0.weight"][1].shape) == found["fc.0.weight"]
    assert "twin.weight" not in having


def test_real_burn_reads_the_two_ids(run_of_burn: Path, tmp_path: Path) -> None:
    ckptmigrate.migrate(
        run_of_burn,
        tmp_path / "out",
        operations=(Transpose(r"fc\.0\.weight"),),
        write=WriteOptions(ties="duplicate"),
    )
    model = referee("read", tmp_path / "out" / "checkpoint" / "model-3.bpk")
    state_ids = json.dumps(referee("read", tmp_path / "out" / "checkpoint" / "optim-3.bpk"))
    ids = {tensor["name"]: str(tensor["param_id"]) for tensor in model["tensors"]}

    assert len(set(ids.values())) == len(ids)
    assert ids["fc.0.weight"] in state_ids
    assert ids["twin.weight"] not in state_ids
