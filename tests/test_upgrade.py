"""Checkpoints in memory: what a library does in its own load_checkpoint(), with torch's and numpy's own objects."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import ckptmigrate
from ckptmigrate import Cast, Concat, Drop, Rename, Split, Transpose
from ckptmigrate.errors import CheckpointError, PlanError, UsageError

KEY = "ckptmigrate"
STEPS = {
    "v1_0_trunk.py": (
        "from ckptmigrate import Migrator, Present, Rename\n"
        "MIGRATOR = Migrator('acme.net', '1.0', [Rename(r'(\\d)\\.(.*)', r'trunk.\\1.\\2', back=(r'trunk\\.(.*)', r'\\1'))],"
        " marks=[Present(r'\\d\\..*')])\n"
    ),
    "v2_0_blind.py": (
        "from ckptmigrate import Migrator, Rename\n"
        "MIGRATOR = Migrator('acme.net', '2.0', [Rename('trunk.0.weight', 'trunk.0.kernel')])\n"
    ),
}


def laid_steps(folder: Path) -> Path:
    """Give a folder of migrations with the chain acme.net: a step with marks, and one without."""
    chain = folder / "migrations" / "acme_net"
    chain.mkdir(parents=True)
    for name, text in STEPS.items():
        (chain / name).write_text(text)
    return chain.parent


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return laid_steps(tmp_path)


class Trained:
    """A model and an Adam that has made a step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.model(torch.randn(5, 4)).square().sum().backward()
        self.optimizer.step()

    def checkpoint(self, **more: Any) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": 3, **more}


def one_step_on(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    torch.manual_seed(1)
    optimizer.zero_grad()
    model(torch.randn(5, 4)).square().sum().backward()
    optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


class Library(torch.nn.Module):  # type: ignore[misc] # torch's own stubs make it Any here
    """What the library calls the same network since 1.0."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.trunk(x)


def test_a_librarys_checkpoint_loads_strictly_and_trains_on_bit_for_bit(migrations: Path) -> None:
    old = Trained()
    saved = copy.deepcopy(old.checkpoint(**ckptmigrate.stamp_for("acme.net", version="0")))
    state = ckptmigrate.upgrade(saved, chain="acme.net", version="1.0", migrations=[migrations])
    model = Library()
    model.load_state_dict(state["model"], strict=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    optimizer.load_state_dict(state["optimizer"])

    expected = one_step_on(old.model, old.optimizer)
    found = one_step_on(model, optimizer)

    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert json.loads(state[KEY])["stamp"]["versions"] == {"acme.net": "1.0"}
    assert state["epoch"] == 3


def test_what_went_in_is_not_changed(migrations: Path) -> None:
    saved = Trained().checkpoint(note=["a", {"b": 1}])
    before = copy.deepcopy(saved)
    names = list(saved["model"])
    ckptmigrate.upgrade(saved, chain="acme.net", said="0", version="1.0", migrations=[migrations])

    assert list(saved) == list(before)
    assert list(saved["model"]) == names
    assert all(torch.equal(saved["model"][name], before["model"][name]) for name in names)
    assert saved["optimizer"]["param_groups"] == before["optimizer"]["param_groups"]
    assert saved["note"] == before["note"]


def test_a_renamed_tensor_is_the_very_tensor_and_a_part_of_one_shares_its_memory() -> None:
    state = {"qkv.weight": torch.arange(24.0).reshape(6, 4), "fc.weight": torch.arange(6.0).reshape(2, 3)}
    found = ckptmigrate.upgrade(
        state,
        operations=[
            Rename("fc.weight", "head.weight"),
            Split(r"qkv\.weight", into=["q.weight", "k.weight"], axis=0),
        ],
    )

    assert found["head.weight"] is state["fc.weight"]
    assert torch.equal(found["k.weight"], state["qkv.weight"][3:])
    found["k.weight"][0, 0] = -1.0
    assert state["qkv.weight"][3, 0] == -1.0


def test_a_transpose_is_a_view_and_what_is_computed_is_new() -> None:
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, 3), "c": torch.zeros(1, 3)}
    found = ckptmigrate.upgrade(state, operations=[Transpose("a"), Cast("b", "BF16")])
    joined = ckptmigrate.upgrade(state, operations=[Concat(["b", "c"], "d", axis=0)])

    assert torch.equal(found["a"], state["a"].T)
    assert found["a"].untyped_storage().data_ptr() == state["a"].untyped_storage().data_ptr()
    assert found["b"].dtype is torch.bfloat16
    assert torch.equal(found["b"].float(), state["b"])
    assert torch.equal(joined["d"], torch.cat([state["b"], state["c"]]))


def test_a_tensor_without_data_stays_on_its_device() -> None:
    state = {"w": torch.empty(4, 6, device="meta", dtype=torch.float16), "b": torch.empty(4, device="meta")}
    found = ckptmigrate.upgrade(state, operations=[Rename("w", "v"), Split("v", into=["x", "y"], axis=1)])

    assert [(name, t.device.type, tuple(t.shape)) for name, t in found.items()] == [
        ("x", "meta", (4, 3)),
        ("y", "meta", (4, 3)),
        ("b", "meta", (4,)),
    ]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(4, 3).T[1:, ::2],
        torch.tensor(5),
        torch.empty(0, 3),
        torch.ones(3).expand(2, 3),
        torch.zeros(3, dtype=torch.bool),
        torch.ones(3, dtype=torch.float8_e4m3fn),
    ],
    ids=["parameter", "conjugate", "strided", "scalar", "empty", "expanded", "bool", "float8"],
)
def test_every_kind_of_tensor_comes_back_as_it_is(tensor: torch.Tensor) -> None:
    found = ckptmigrate.upgrade({"a": tensor, "b": torch.ones(1)}, operations=[Rename("b", "c")])

    assert found["a"] is tensor


def test_what_is_no_tensor_of_plain_numbers_is_carried_beside() -> None:
    sparse = torch.eye(3).to_sparse()
    found = ckptmigrate.upgrade({"model": {"a": torch.ones(1)}, "mask": sparse}, operations=[Rename("a", "b")])

    assert found["mask"] is sparse
    assert list(found["model"]) == ["b"]


def test_tied_tensors_stay_tied() -> None:
    shared = torch.ones(2, 2)
    found = ckptmigrate.upgrade(
        {"a": shared, "b": shared, "c": torch.ones(2, 2)},
        operations=[Transpose("(a|b)"), Rename("c", "d")],
    )

    assert found["a"].untyped_storage().data_ptr() == found["b"].untyped_storage().data_ptr()
    assert found["d"].untyped_storage().data_ptr() != found["a"].untyped_storage().data_ptr()


def test_objects_of_any_class_and_dictionaries_of_other_classes_go_through() -> None:
    class Own:
        pass

    own, counted = Own(), defaultdict(list, {"x": [1]})
    found = ckptmigrate.upgrade(
        {"model": {"a": torch.ones(1)}, "own": own, "counted": counted, "size": torch.Size([1]), "set": {1}},
        operations=[Rename("a", "b")],
    )

    assert found["own"] is own
    assert found["counted"] is counted
    assert found["size"] == torch.Size([1])
    assert found["set"] == {1}


def test_a_tensor_within_a_dictionary_of_another_class_is_upgraded_too() -> None:
    found = ckptmigrate.upgrade(
        {"model": defaultdict(list, {"a": torch.ones(1)}), "epoch": 1}, operations=[Rename("a", "b")]
    )

    assert list(found["model"]) == ["b"]


def test_arrays_of_numpy_come_out_as_arrays_and_share_their_memory(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"w": np.arange(6, dtype="f4").reshape(2, 3), "b": np.ones(2, "f2")}, tmp_path / "m")
    state = safetensors.numpy.load_file(tmp_path / "m")
    found = ckptmigrate.upgrade(state, operations=[Rename("b", "bias"), Transpose("w")])

    assert type(found) is dict
    assert found["bias"] is state["b"]
    assert np.array_equal(found["w"], state["w"].T)
    assert np.shares_memory(found["w"], state["w"])


def test_the_metadata_of_a_state_dict_follows_its_modules(migrations: Path) -> None:
    state = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).state_dict()
    found = ckptmigrate.upgrade(state, chain="acme.net", version="1.0", said="0", migrations=[migrations])

    assert isinstance(found, OrderedDict)
    assert vars(found)["_metadata"]["trunk.1"] == {"version": 2}
    assert list(state._metadata) == ["", "0", "1"]


def test_all_problems_come_at_once(migrations: Path) -> None:
    with pytest.raises(PlanError) as caught:
        ckptmigrate.upgrade({"a": torch.ones(1)}, operations=[Rename("x", "y"), Drop("z", "gone")])

    assert [p.partition(": ")[0] for p in caught.value.problems] == ["the call", "the call"]
    with pytest.raises(PlanError, match=r"nothing matches 'trunk\.0\.weight'"):
        ckptmigrate.upgrade({"a": torch.ones(1)}, chain="acme.net", said="1.0", migrations=[migrations])


def test_nothing_to_do_gives_the_very_object() -> None:
    saved = Trained().checkpoint()

    assert ckptmigrate.upgrade(saved) is saved


@pytest.mark.parametrize(("given", "error"), [(torch.nn.Linear(2, 2), UsageError), ({"epoch": 3}, CheckpointError)])
def test_what_is_no_checkpoint_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ckptmigrate.upgrade(given)


def test_a_version_without_a_chain_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="none is named"):
        ckptmigrate.upgrade({"a": torch.ones(1)}, version="1.0")


def test_the_result_fits_the_model_that_it_must_be_like(migrations: Path) -> None:
    state = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6)).state_dict()
    found = ckptmigrate.upgrade(
        state, chain="acme.net", version="1.0", said="0", migrations=[migrations], like=Library()
    )
    with pytest.raises(PlanError, match=r"trunk\.0\.weight"):
        ckptmigrate.upgrade(state, like=Library())

    Library().load_state_dict(found, strict=True)


def test_no_torch_is_imported_for_arrays() -> None:
    import subprocess
    import sys

    code = (
        "import sys, numpy, ckptmigrate; from ckptmigrate import Rename; "
        "ckptmigrate.upgrade({'a': numpy.ones(2)}, operations=[Rename('a', 'b')]); print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "False"


def test_an_object_that_holds_itself_is_refused() -> None:
    given: dict[str, Any] = {"a": torch.ones(1)}
    given["self"] = [given]

    with pytest.raises(CheckpointError, match="holds itself"):
        ckptmigrate.upgrade(given, operations=[Rename("a", "b")])


def test_a_sparse_tensor_among_the_models_is_never_lost() -> None:
    """It follows where its whole module moves, and keeps its name where it does not."""
    state = {"m.a": torch.ones(1), "m.b": torch.ones(1), "m.mask": torch.eye(2).to_sparse()}
    moved = ckptmigrate.upgrade(state, operations=[Rename(r"m\.(.*)", r"n.\1")])
    parted = ckptmigrate.upgrade(state, operations=[Rename({r"m\.a": "x.a", r"m\.b": "y.b"})])

    assert parted["m.mask"] is state["m.mask"]
    assert any(value is state["m.mask"] for value in moved.values())


def test_numbers_of_numpy_come_back_as_they_were() -> None:
    best = np.float64(0.5)
    found = ckptmigrate.upgrade({"model": {"a": torch.ones(1)}, "best": best}, operations=[Rename("a", "b")])

    assert found["best"] is best


def test_arrays_and_tensors_side_by_side_come_back_each_as_its_own_kind() -> None:
    given = {"model": {"a": torch.ones(2, 3)}, "table": np.arange(6.0).reshape(2, 3)}
    found = ckptmigrate.upgrade(
        given, operations=[Transpose("a"), Transpose("values/table", on="values", optional=True)]
    )

    assert isinstance(found["model"]["a"], torch.Tensor)
    assert isinstance(found["table"], np.ndarray)


def test_memory_and_file_come_to_the_same(tmp_path: Path, migrations: Path) -> None:
    torch.save(Trained().checkpoint(scheduler={"last_epoch": 3, "_step_count": 4}), tmp_path / "old.pt")
    ckptmigrate.migrate(
        tmp_path / "old.pt", tmp_path / "new.pt", chains={"acme.net": "1.0"}, said={"acme.net": "0"},
        migrations=(str(migrations),),
    )  # fmt: skip
    in_file = torch.load(tmp_path / "new.pt", weights_only=True)
    in_memory = ckptmigrate.upgrade(
        torch.load(tmp_path / "old.pt", weights_only=True), chain="acme.net", said="0", version="1.0", migrations=[migrations]
    )  # fmt: skip
    stamp = in_memory.pop(KEY)

    assert repr(in_memory) == repr(in_file)
    assert vars(in_memory["model"]) == vars(in_file["model"])
    assert json.loads(stamp)["stamp"]["versions"]["acme.net"] == "1.0"
    assert stamp == ckptmigrate.stamp_of(tmp_path / "new.pt")[KEY]


def test_numbers_that_tensors_do_not_carry_are_given_or_found_among_the_values(tmp_path: Path) -> None:
    folder = tmp_path / "acme_attn"
    folder.mkdir()
    (folder / "v1_0_split.py").write_text(
        "from ckptmigrate import Migrator, Split\n"
        "MIGRATOR = Migrator('acme.attn', '1.0', needs={'heads': 'config/heads'}, operations=[\n"
        "    Split('qkv', into=['q', 'k'], sizes=['heads', -1], axis=0)])\n"
    )
    state = {"qkv": torch.arange(10.0).reshape(5, 2)}
    given: dict[str, Any] = {"chain": "acme.attn", "said": "0", "migrations": [tmp_path]}
    told = ckptmigrate.upgrade(state, numbers={"heads": 2}, **given)
    found = ckptmigrate.upgrade({"model": state, "config": {"heads": 3}}, **given)

    assert [tuple(part.shape) for part in told.values()] == [(2, 2), (3, 2)]
    assert [tuple(part.shape) for part in found["model"].values()] == [(3, 2), (2, 2)]
    with pytest.raises(PlanError, match="needs heads"):
        ckptmigrate.upgrade(state, **given)


def test_it_goes_down_too(migrations: Path) -> None:
    new = ckptmigrate.upgrade(
        Trained().checkpoint(), chain="acme.net", said="0", version="1.0", migrations=[migrations]
    )
    old = ckptmigrate.upgrade(new, chain="acme.net", version="0", migrations=[migrations])

    assert list(old["model"]) == list(Trained().checkpoint()["model"])
    assert json.loads(old[KEY])["stamp"]["versions"]["acme.net"] == "0"
