"""Where people put things: each layout's file, as its own project writes it, is found and comes back with its own keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ckptmigrate import registry, store
from ckptmigrate.checkpoint import Progress
from ckptmigrate.errors import AmbiguousError, CheckpointError, SectionError
from ckptmigrate.files import Disk
from ckptmigrate.files.sink import Sink
from ckptmigrate.format import GatherOptions, ReadOptions, WriteOptions

if TYPE_CHECKING:
    from pathlib import Path

    from ckptmigrate.checkpoint import Checkpoint


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    model = net()
    opt = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 2)
    model(torch.randn(4, 2)).sum().backward()
    opt.step()
    scheduler.step()
    return model, opt, scheduler


def opened(tmp_path: Path, tree: Any, **options: Any) -> Checkpoint:
    torch.save(tree, tmp_path / "in.pt")
    return store.open_checkpoint(tmp_path / "in.pt", gather_options=GatherOptions(**options))


def kept(checkpoint: Checkpoint, tmp_path: Path) -> Any:
    """Write a checkpoint back where it was, and give what torch loads."""
    scattered = store.scatter(checkpoint, registry.format("torch_zip"), None, WriteOptions(), "out.pt")
    blueprint = store.lay_out(scattered, WriteOptions())
    assert blueprint.problems == []
    with Sink(tmp_path / "out.pt", folder=False, force=True) as sink:
        store.write(blueprint, sink)
        sink.finish()
        with Disk() as disk:
            written, planned = scattered["out.pt"]
            assert store.compare_parts(planned, store.read(disk.open(sink.path), ReadOptions()), sink.outs[""]) == []
            assert written.name == "torch_zip"
        sink.publish(last=blueprint.last)
    return torch.load(tmp_path / "out.pt", weights_only=True)


def alike(a: Any, b: Any) -> bool:
    """Compare two of torch's trees: types of containers aside, order of keys not."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    return type(a) is type(b) and bool(a == b)


def lightning() -> dict[str, Any]:
    model, opt, scheduler = trained()
    return {
        "epoch": 4,
        "global_step": 40,
        "pytorch-lightning_version": "1.9.0",
        "state_dict": model.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5), "best_model_path": "x"}},
        "optimizer_states": [opt.state_dict()],
        "lr_schedulers": [scheduler.state_dict()],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1},
        "MixedPrecision": {"scale": 65536.0, "_growth_tracker": 0},
    }


def timm() -> dict[str, Any]:
    model, opt, _ = trained()
    ema = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return {
        "epoch": 9, "arch": "vit", "state_dict": model.state_dict(), "optimizer": opt.state_dict(), "version": 2,
        "args": {"lr": 0.1}, "amp_scaler": {"scale": 1.0}, "state_dict_ema": ema, "metric": 81.5,
    }  # fmt: skip


def imagenet() -> dict[str, Any]:
    model, opt, scheduler = trained()
    return {
        "epoch": 3, "arch": "resnet18", "state_dict": model.state_dict(), "best_acc1": torch.tensor(70.0),
        "optimizer": opt.state_dict(), "scheduler": scheduler.state_dict(),
    }  # fmt: skip


def torchvision() -> dict[str, Any]:
    model, opt, scheduler = trained()
    return {
        "model": model.state_dict(), "optimizer": opt.state_dict(), "lr_scheduler": scheduler.state_dict(), "epoch": 1,
        "model_ema": {name: tensor.clone() for name, tensor in model.state_dict().items()}, "scaler": {"scale": 2.0},
    }  # fmt: skip


def mmengine() -> dict[str, Any]:
    model, opt, scheduler = trained()
    return {
        "meta": {"epoch": 2, "iter": 20, "seed": 1},
        "state_dict": model.state_dict(),
        "message_hub": {"log": [1, 2]},
        "optimizer": {"g": opt.state_dict(), "d": opt.state_dict()},
        "param_schedulers": [scheduler.state_dict(), scheduler.state_dict()],
    }


@pytest.mark.parametrize(
    ("make", "layout", "twins", "optimizers", "schedulers", "epoch", "counts"),
    [
        (lightning, "lightning", [], 1, 1, 4, "last"),
        (timm, "timm", ["ema"], 1, 0, 9, "last"),
        (imagenet, "plain", [], 1, 1, 3, None),
        (torchvision, "plain", ["ema"], 1, 1, 1, None),
        (mmengine, "plain", [], 2, 2, 2, None),
    ],
    ids=["lightning", "timm", "imagenet", "torchvision", "mmengine"],
)
def test_a_project_s_file_is_found_whole_and_comes_back_with_its_own_keys(
    tmp_path: Path, make: Any, layout: str, twins: list[str], optimizers: int, schedulers: int, epoch: int, counts: Any
) -> None:
    tree = make()
    checkpoint = opened(tmp_path, tree)

    assert checkpoint.origin.layout == layout
    assert list(checkpoint.model) == list(net().state_dict())
    assert list(checkpoint.twins) == twins
    assert (len(checkpoint.optimizers), len(checkpoint.schedulers)) == (optimizers, schedulers)
    assert (checkpoint.progress.epoch, checkpoint.progress.counts) == (epoch, counts)
    assert checkpoint.ledger.unexplained() == []
    assert [param.name for param in checkpoint.optimizers[0].params] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert alike(tree, kept(checkpoint, tmp_path))


def progress(ready: int, completed: int) -> dict[str, Any]:
    return {"fit_loop": {"epoch_progress": {"current": {"ready": ready, "completed": completed}}}}


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"pytorch-lightning_version": "1.5.10"}, "next"),  # current_epoch + 1 was saved
        ({"pytorch-lightning_version": "0.9.0"}, "next"),
        ({"pytorch-lightning_version": "1.6.0"}, "last"),
        ({"pytorch-lightning_version": "2.5.0.post0", "loops": progress(5, 4)}, "last"),  # saved by a hook of epoch 4
        (
            {"pytorch-lightning_version": "2.5.0", "loops": progress(4, 4)},
            "next",
        ),  # saved after fit: four are completed
        (
            {"pytorch-lightning_version": "2.5.0", "loops": progress(0, 4)},
            "next",
        ),  # a file of 1.4 that Lightning migrated
        ({"pytorch-lightning_version": "2.5.0", "loops": {"fit_loop": 3}}, "last"),
        ({"pytorch-lightning_version": "dev"}, None),
    ],
)
def test_what_lightning_s_epoch_counts_is_told_by_release_and_loops(
    tmp_path: Path, changes: dict[str, Any], counts: Any
) -> None:
    progress = opened(tmp_path, lightning() | changes).progress

    assert (progress.epoch, progress.counts) == (4, counts)


@pytest.mark.parametrize(("version", "counts"), [(2, "last"), (3, "last"), (1, "next"), (0, "next"), ("2", None)])
def test_what_timm_s_epoch_counts_is_told_by_its_version(tmp_path: Path, version: Any, counts: Any) -> None:
    assert opened(tmp_path, timm() | {"version": version}).progress.counts == counts


def test_the_same_epoch_in_another_way_of_counting_is_another_number() -> None:
    assert [Progress(4, "last").counted(c) for c in ("finished", "last", "next", None)] == [5, 4, 5, 4]
    assert [Progress(4, "next").counted(c) for c in ("finished", "last")] == [4, 3]
    assert [Progress(4).counted("last"), Progress().counted("last")] == [4, None]


def test_lightning_s_version_is_told_to_its_chain(tmp_path: Path) -> None:
    assert opened(tmp_path, lightning()).origin.facts["versions"] == {"lightning": "1.9.0"}


@pytest.mark.parametrize(
    "key", ["model_state_dict", "state_dict", "model", "net", "weights", "params", "module", "my_model"]
)
def test_one_state_dict_is_the_model_whatever_its_key(tmp_path: Path, key: str) -> None:
    tree = {key: net().state_dict(), "config": {"n_head": 2, "list": [1, 2]}}
    checkpoint = opened(tmp_path, tree)

    assert list(checkpoint.model) == list(net().state_dict())
    assert checkpoint.values == {"config": {"n_head": 2, "list": [1, 2]}}
    assert alike(tree, kept(checkpoint, tmp_path))


def test_a_bare_state_dict_is_the_model_with_its_module_versions(tmp_path: Path) -> None:
    state = net().state_dict()
    checkpoint = opened(tmp_path, state)

    assert checkpoint.origin.layout == "bare"
    assert checkpoint.modules == dict(state._metadata)
    assert checkpoint.values == {}
    loaded = kept(checkpoint, tmp_path)
    assert alike(state, loaded)
    assert dict(loaded._metadata) == dict(state._metadata)


@pytest.mark.parametrize("tree", [torch.arange(3), [torch.ones(1), torch.zeros(2)], {"weight": torch.ones(2)}])
def test_a_tensor_alone_a_list_and_a_single_name_come_back_as_they_were(tmp_path: Path, tree: Any) -> None:
    checkpoint = opened(tmp_path, tree)

    names = {torch.Tensor: ["value"], list: ["0", "1"], dict: ["weight"]}[type(tree)]
    assert list(checkpoint.model) == names
    assert alike(tree, kept(checkpoint, tmp_path))


def test_a_nest_of_tensors_is_named_by_its_paths_and_comes_back_nested(tmp_path: Path) -> None:
    tree = {"encoder": {"layers": [{"w": {"q": torch.ones(1)}}, {"w": {"q": torch.zeros(1)}}]}}
    checkpoint = opened(tmp_path, tree)

    assert list(checkpoint.model) == ["encoder/layers/0/w/q", "encoder/layers/1/w/q"]
    assert alike(tree, kept(checkpoint, tmp_path))


def test_a_whole_training_file_is_not_taken_for_a_state_dict(tmp_path: Path) -> None:
    tree = {
        "epoch": 3,
        "global_step": 9,
        "state_dict": {"w": torch.ones(2), "n": 5},
        "lr": [0.1, 0.2],
        0: torch.zeros(1),
    }
    checkpoint = opened(tmp_path, tree)

    assert list(checkpoint.model) == ["w"]
    assert checkpoint.values["model"] == {"n": 5}
    assert (checkpoint.progress.epoch, checkpoint.progress.step) == (3, 9)
    assert list(checkpoint.values["extra"]) == ["lr", 0]
    assert alike(tree, kept(checkpoint, tmp_path))


def test_a_second_set_under_the_model_s_names_is_a_twin(tmp_path: Path) -> None:
    other = {name: tensor + 1 for name, tensor in net().state_dict().items()}
    checkpoint = opened(tmp_path, {"model": net().state_dict(), "ema": other})

    assert list(checkpoint.twins) == ["ema"]
    assert list(checkpoint.twins["ema"]) == list(checkpoint.model)


def test_sets_under_other_names_are_ambiguous_and_listed_with_their_counts(tmp_path: Path) -> None:
    tree = {"model": net().state_dict(), "ema": {"x": torch.ones(1)}}
    with pytest.raises(AmbiguousError, match=r"model \(7 tensors\); ema \(1 tensors\)") as caught:
        opened(tmp_path, tree)
    assert [hint.split()[:2] for hint in caught.value.hints] == [
        ["--section", "model=model"],
        ["--section", "model=ema"],
    ]


def test_a_section_that_was_said_is_taken_and_the_rest_is_carried(tmp_path: Path) -> None:
    tree = {"model": net().state_dict(), "ema": {"x": torch.ones(1)}}
    checkpoint = opened(tmp_path, tree, sections={"model": ("ema",)})

    assert list(checkpoint.model) == ["x"]
    assert list(checkpoint.values["extra"]) == ["model"]
    assert alike(tree, kept(checkpoint, tmp_path))


def test_a_wrong_section_is_refused_with_the_keys_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(SectionError, match="nothing at net; there are: model, epoch") as caught:
        opened(tmp_path, {"model": net().state_dict(), "epoch": 1}, sections={"model": ("net",)})
    assert caught.value.data["present"] == ["model", "epoch"]


def test_a_file_without_tensors_is_refused_with_its_keys(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no tensors; its keys are: epoch, args"):
        opened(tmp_path, {"epoch": 1, "args": {"a": 1}})


def test_a_key_of_the_table_whose_value_is_something_else_is_not_taken(tmp_path: Path) -> None:
    tree = {"model": "resnet18", "optimizer": "adam", "epoch": "three", "state": net().state_dict()}
    checkpoint = opened(tmp_path, tree)

    assert list(checkpoint.model) == list(net().state_dict())
    assert checkpoint.optimizers == []
    assert checkpoint.values["extra"] == {"model": "resnet18", "optimizer": "adam", "epoch": "three"}


def test_an_optimizer_is_found_wherever_it_lies(tmp_path: Path) -> None:
    model, opt, _ = trained()
    tree = {
        "net": model.state_dict(),
        "adam": opt.state_dict(),
        "more": {"sgd": torch.optim.SGD(model.parameters()).state_dict(), "x": 1},
    }
    checkpoint = opened(tmp_path, tree)

    assert len(checkpoint.optimizers) == 2
    assert checkpoint.origin.places["optimizers.0"].path == ("adam",)
    assert checkpoint.origin.places["optimizers.1"].path == ("more", "sgd")
    assert alike(tree, kept(checkpoint, tmp_path))


def test_an_optimizer_s_file_alone_is_an_optimizer(tmp_path: Path) -> None:
    _, opt, _ = trained()
    checkpoint = opened(tmp_path, opt.state_dict())

    assert len(checkpoint.optimizers) == 1
    assert checkpoint.model == {}
    assert alike(opt.state_dict(), kept(checkpoint, tmp_path))


def test_rng_state_is_no_part_of_the_model(tmp_path: Path) -> None:
    tree = {
        "model": net().state_dict(),
        "rng_state": torch.get_rng_state(),
        "cuda_rng": [torch.zeros(16, dtype=torch.uint8)],
    }
    checkpoint = opened(tmp_path, tree)

    assert list(checkpoint.model) == list(net().state_dict())
    assert checkpoint.values["rng"].shape == (5056,)
    assert alike(tree, kept(checkpoint, tmp_path))


def test_optimizer_keys_that_are_names_are_checked_against_the_model(tmp_path: Path) -> None:
    state = {"0.weight": {"momentum_buffer": torch.ones(3, 2)}}
    tree = {
        "model": net().state_dict(),
        "optimizer": {"state": state, "param_groups": [{"params": ["0.weight", "gone"]}]},
    }
    with pytest.raises(CheckpointError, match="names gone, which the model has not"):
        opened(tmp_path, tree)
    tree["optimizer"]["param_groups"][0]["params"] = ["0.weight", "0.bias"]
    checkpoint = opened(tmp_path, tree)

    assert "optimizer 0: 1 of 2 parameters have state" in checkpoint.ledger.notes
    assert alike(tree, kept(checkpoint, tmp_path))


def test_no_names_refuses_to_assume_the_order(tmp_path: Path) -> None:
    model, opt, _ = trained()
    checkpoint = opened(tmp_path, {"model": model.state_dict(), "optimizer": opt.state_dict()}, names=False)

    assert {param.name for param in checkpoint.optimizers[0].params} == {None}
    assert not any("assumes" in note for note in checkpoint.ledger.notes)


def test_entries_of_no_parameter_are_left_out_and_said(tmp_path: Path) -> None:
    model = net()
    extra = torch.nn.Parameter(torch.ones(9, 9))
    opt = torch.optim.SGD([extra, *model.parameters()], lr=0.1, momentum=0.9)
    (model(torch.randn(4, 2)).sum() + extra.sum()).backward()
    opt.step()
    checkpoint = opened(tmp_path, {"model": model.state_dict(), "optimizer": opt.state_dict()})

    assert [p.name for p in checkpoint.optimizers[0].params] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert any("1 of 5 parameters are none of the model's" in w for w in checkpoint.ledger.warnings)
    left = [row for row in checkpoint.ledger.rows() if row.what == "left out"]
    assert [row.source for row in left] == ["optimizer/state/0/momentum_buffer"]
    moved = {row.source: row.targets for row in checkpoint.ledger.rows()}
    assert moved["optimizer/state/1/momentum_buffer"] == ("optimizers/0/0/momentum_buffer",)


def test_a_dropped_section_leaves_no_empty_container_behind(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, lightning(), drop=("optimizers",))
    loaded = kept(checkpoint, tmp_path)

    assert list(loaded) == [key for key in lightning() if key != "optimizer_states"]
