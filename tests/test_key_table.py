"""Each row of the key table of `formats/torch.md` 9.1 as its project writes it: what comes out, and that nothing else is lost."""

from __future__ import annotations

import argparse
import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch

from ckptmigrate import store
from ckptmigrate.errors import AmbiguousError
from ckptmigrate.format import GatherOptions, ReadOptions
from ckptmigrate.tensor import Tensor

from .test_layouts import alike, kept, net, trained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptmigrate.checkpoint import Checkpoint

NAMES = ["0.weight", "0.bias", "1.weight", "1.bias"]


class Row(NamedTuple):
    tree: dict[str, Any]
    model: tuple[Any, ...]
    twins: Any = MappingProxyType[str, Any]({})
    optimizers: tuple[tuple[Any, ...], ...] = ()
    schedulers: tuple[tuple[Any, ...], ...] = ()
    progress: tuple[int | None, str | None, int | None] = (None, None, None)
    best: float | None = None
    values: tuple[str, ...] = ()
    extra: tuple[Any, ...] = ()


def ema() -> dict[str, torch.Tensor]:
    return {name: tensor + 1 for name, tensor in net().state_dict().items()}


def half(state: dict[str, Any]) -> dict[str, Any]:
    """Give an optimizer's state with its moments halved, as Ultralytics saves it."""
    state = copy.deepcopy(state)
    for entry in state["state"].values():
        entry |= {name: value.half() for name, value in entry.items() if name != "step"}
    return state


def imagenet() -> Row:
    model, opt, _ = trained()
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    tree = {
        "epoch": 90,
        "arch": "resnet18",
        "state_dict": state,
        "best_prec1": torch.tensor(70.0),
        "optimizer": opt.state_dict(),
    }
    return Row(tree, ("state_dict",), {}, (("optimizer",),), (), (90, None, None), 70.0, (), ("arch",))


def torchvision() -> Row:
    model, opt, scheduler = trained()
    tree = {
        "model": model.state_dict(), "optimizer": opt.state_dict(), "lr_scheduler": scheduler.state_dict(), "epoch": 1,
        "args": argparse.Namespace(lr=0.1), "scaler": {"scale": 2.0},
    }  # fmt: skip
    places = (("optimizer",),), (("lr_scheduler",),)
    return Row(tree, ("model",), {}, *places, (1, None, None), None, ("scaler", "config"))


def timm() -> Row:
    model, opt, _ = trained()
    tree = {
        "epoch": 9, "arch": "vit", "state_dict": model.state_dict(), "optimizer": opt.state_dict(), "version": 2,
        "args": argparse.Namespace(lr=0.1), "amp_scaler": {"scale": 1.0}, "state_dict_ema": ema(), "metric": 81.5,
    }  # fmt: skip
    twins, values = {"ema": ("state_dict_ema",)}, ("scaler", "config")
    return Row(
        tree, ("state_dict",), twins, (("optimizer",),), (), (9, "last", None), 81.5, values, ("arch", "version")
    )


def detectron() -> Row:
    model, opt, scheduler = trained()
    tree = {
        "model": model.state_dict(),
        "optimizer": opt.state_dict(),
        "scheduler": scheduler.state_dict(),
        "iteration": 4,
    }
    return Row(tree, ("model",), {}, (("optimizer",),), (("scheduler",),), (None, None, 4))


def zoo() -> Row:
    state = {name: tensor.numpy() for name, tensor in net().state_dict().items()}
    tree = {"model": state, "__author__": "Caffe2", "matching_heuristics": True}
    return Row(tree, ("model",), extra=("__author__", "matching_heuristics"))


def pycls() -> Row:
    model, opt, _ = trained()
    tree = {"epoch": 1, "model_state": model.state_dict(), "optimizer_state": opt.state_dict(), "cfg": "MODEL:\n"}
    return Row(tree, ("model_state",), {}, (("optimizer_state",),), (), (1, None, None), None, ("config",))


def mmcv() -> Row:
    model, opt, _ = trained()
    meta = {"epoch": 2, "iter": 20, "mmcv_version": "1.7", "CLASSES": ("a", "b"), "hook_msgs": {"best_score": 0.5}}
    optimizers = {"generator": opt.state_dict(), "discriminator": opt.state_dict()}
    tree = {"meta": meta, "state_dict": model.state_dict(), "optimizer": optimizers}
    places = ("optimizer", "generator"), ("optimizer", "discriminator")
    return Row(tree, ("state_dict",), {}, places, (), (2, None, 20), None, (), ("meta",))


def mmengine() -> Row:
    model, opt, scheduler = trained()
    tree = {
        "meta": {"epoch": 2, "iter": 20, "seed": 1, "cfg": "x"}, "state_dict": model.state_dict(), "ema_state_dict": ema(),
        "message_hub": {"runtime_info": {"epoch": 2}}, "optimizer": opt.state_dict(), "param_schedulers": [scheduler.state_dict()],
    }  # fmt: skip
    places = {"ema": ("ema_state_dict",)}, (("optimizer",),), (("param_schedulers", 0),)
    return Row(tree, ("state_dict",), *places, (2, None, 20), None, (), ("meta", "message_hub"))


def ultralytics() -> Row:
    _, opt, _ = trained()
    tree = {
        "epoch": 3, "best_fitness": 0.3, "model": None, "ema": net().half(), "updates": 7, "optimizer": half(opt.state_dict()),
        "scaler": {}, "train_args": {"lr0": 0.01}, "train_metrics": {}, "version": "8.3.0", "date": "2025",
    }  # fmt: skip
    extra = ("model", "updates", "train_args", "train_metrics", "version", "date")
    return Row(tree, ("ema",), {}, (("optimizer",),), (), (3, None, None), 0.3, ("scaler",), extra)


def stripped() -> Row:
    tree = {"epoch": -1, "best_fitness": None, "model": net().half(), "ema": None, "optimizer": None, "updates": None}
    return Row(tree, ("model",), progress=(-1, None, None), extra=("best_fitness", "ema", "optimizer", "updates"))


def yolov5() -> Row:
    _, opt, _ = trained()
    tree = {
        "epoch": 3, "best_fitness": np.array([0.5]), "model": net().half(), "ema": net().half(), "updates": 7,
        "optimizer": opt.state_dict(), "opt": {"lr": 0.1}, "wandb_id": None, "training_results": "text",
    }  # fmt: skip
    twins, extra = {"ema": ("ema",)}, ("updates", "opt", "wandb_id", "training_results")
    return Row(tree, ("model",), twins, (("optimizer",),), (), (3, None, None), 0.5, (), extra)


def fairseq() -> Row:
    model, opt, _ = trained()
    history = [{"optimizer_name": "Adam", "lr_scheduler_state": {"best": 1.0}, "num_updates": 9}]
    tree = {
        "args": argparse.Namespace(arch="x"), "cfg": None, "model": model.state_dict(), "criterion": None, "optimizer_history": history,
        "task_state": {}, "extra_state": {"train_iterator": {"epoch": 3}, "best": 2.0}, "last_optimizer_state": opt.state_dict(),
    }  # fmt: skip
    extra = ("cfg", "criterion", "optimizer_history", "task_state", "extra_state")
    return Row(tree, ("model",), {}, (("last_optimizer_state",),), (), (None, None, None), None, ("config",), extra)


def lightning() -> Row:
    model, opt, scheduler = trained()
    tree = {
        "epoch": 4, "global_step": 40, "pytorch-lightning_version": "2.5.0", "state_dict": model.state_dict(), "loops": {},
        "callbacks": {"ModelCheckpoint{'monitor': 'loss'}": {"best_model_score": torch.tensor(0.5), "best_k_models": {}}},
        "optimizer_states": [opt.state_dict()], "lr_schedulers": [scheduler.state_dict()], "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1}, "MixedPrecision": {"scale": 65536.0},
    }  # fmt: skip
    places = (("optimizer_states", 0),), (("lr_schedulers", 0),)
    extra = ("pytorch-lightning_version", "loops", "callbacks", "hparams_name")
    return Row(tree, ("state_dict",), {}, *places, (4, "last", 40), None, ("scaler", "config"), extra)


def whisper() -> Row:
    return Row({"dims": {"n_mels": 80}, "model_state_dict": net().state_dict()}, ("model_state_dict",), extra=("dims",))


def esrgan() -> Row:
    return Row({"params": net().state_dict(), "params_ema": ema()}, ("params",), {"ema": ("params_ema",)})


def only_ema() -> Row:
    return Row({"params_ema": ema()}, ("params_ema",))


def shadow() -> Row:
    """EMA of torch_ema and score_sde: a list without names, which nothing ties to the model's."""
    model, opt, _ = trained()
    average = {"decay": 0.999, "num_updates": 7, "shadow_params": [p.detach().clone() for p in model.parameters()]}
    tree = {"optimizer": opt.state_dict(), "model": model.state_dict(), "ema": average, "step": 5}
    return Row(tree, ("model",), {}, (("optimizer",),), (), (None, None, 5), None, (), ("ema",))


def integers() -> Row:
    """A state dict whose keys are numbers: a nest of tensors, which comes back with its own keys."""
    return Row({"model": {0: torch.ones(2), 1: torch.zeros(3)}, "epoch": 1}, ("model",), progress=(1, None, None))


def empty() -> Row:
    return Row({"model": {}, "ema": ema(), "best": None}, ("ema",), extra=("model", "best"))


ROWS = [
    imagenet, torchvision, timm, detectron, zoo, pycls, mmcv, mmengine, ultralytics, stripped, yolov5, fairseq, lightning, whisper,
    esrgan, only_ema, shadow, integers, empty,
]  # fmt: skip


def opened(tmp_path: Path, tree: Any, **options: Any) -> Checkpoint:
    torch.save(tree, tmp_path / "in.pt")
    return store.open_checkpoint(tmp_path / "in.pt", ReadOptions(), GatherOptions(**options))


def plainly(tree: Any) -> Any:
    """Give a tree as it is written: modules as state dicts, namespaces as dictionaries, numpy's values as torch's."""
    if isinstance(tree, torch.nn.Module):
        return dict(tree.state_dict())
    if isinstance(tree, argparse.Namespace):
        return dict(vars(tree))
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree)
    if isinstance(tree, dict):
        return {key: plainly(value) for key, value in tree.items()}
    return type(tree)(map(plainly, tree)) if isinstance(tree, list | tuple) else tree


@pytest.mark.filterwarnings("ignore:.*")  # torch deprecates the pickling of whole modules now and then
@pytest.mark.parametrize("make", ROWS, ids=lambda make: make.__name__)
def test_every_section_of_a_project_s_file_is_found(tmp_path: Path, make: Callable[[], Row]) -> None:
    row = make()
    checkpoint = opened(tmp_path, row.tree)
    places = {section: place.path for section, place in checkpoint.origin.places.items()}
    progress, best = checkpoint.progress, checkpoint.progress.best

    assert places["model"] == row.model
    assert {twin: places[f"twins.{twin}"] for twin in checkpoint.twins} == row.twins
    assert tuple(places[f"optimizers.{n}"] for n in range(len(checkpoint.optimizers))) == row.optimizers
    assert tuple(places[f"schedulers.{n}"] for n in range(len(checkpoint.schedulers))) == row.schedulers
    assert (progress.epoch, progress.counts, progress.step) == row.progress
    assert (float(best.numpy().reshape(())) if isinstance(best, Tensor) else best) == row.best
    assert sorted(name for name in checkpoint.values if name != "extra") == sorted(row.values)
    assert tuple(checkpoint.values.get("extra", {})) == row.extra
    for optimizer in checkpoint.optimizers:
        assert [str(param.name).removeprefix("module.") for param in optimizer.params] == NAMES


@pytest.mark.filterwarnings("ignore:.*")  # as above
@pytest.mark.parametrize("make", ROWS, ids=lambda make: make.__name__)
def test_a_project_s_file_comes_back_with_its_own_keys(tmp_path: Path, make: Callable[[], Row]) -> None:
    row = make()

    assert alike(plainly(row.tree), kept(opened(tmp_path, row.tree), tmp_path))


def gan() -> dict[str, Any]:
    model, opt, _ = trained()
    critic = torch.nn.Linear(4, 1)
    other = torch.optim.Adam(critic.parameters())
    critic(torch.ones(1, 4)).sum().backward()
    other.step()
    return {
        "g": model.state_dict(), "d": critic.state_dict(), "g_ema": ema(), "g_optim": opt.state_dict(), "d_optim": other.state_dict(),
    }  # fmt: skip


def test_a_gan_s_two_models_are_listed_with_their_counts_and_each_can_be_taken(tmp_path: Path) -> None:
    with pytest.raises(AmbiguousError, match=r"g \(7 tensors\); d \(2 tensors\); g_ema \(7 tensors\)") as caught:
        opened(tmp_path, gan())
    assert caught.value.data["candidates"] == {"g": 7, "d": 2, "g_ema": 7}
    assert [hint.split()[1] for hint in caught.value.hints] == ["model=g", "model=d", "model=g_ema"]
    checkpoint = opened(tmp_path, gan(), sections={"model": "g"}, drop=("optimizers.1",))

    assert list(checkpoint.twins) == ["g_ema"]
    assert list(checkpoint.values["extra"]) == ["d"]
    assert [param.name for param in checkpoint.optimizers[0].params] == NAMES
    assert list(opened(tmp_path, gan(), sections={"model": "d"}, drop=("optimizers.0",)).model) == ["weight", "bias"]


def test_an_average_under_other_names_is_ambiguous_until_the_model_is_said(tmp_path: Path) -> None:
    average = {"n_averaged": torch.tensor(3), **{f"module.{name}": tensor for name, tensor in ema().items()}}
    tree = {"model": net().state_dict(), "model_ema": average}
    with pytest.raises(AmbiguousError, match=r"model \(7 tensors\); model_ema \(8 tensors\)"):
        opened(tmp_path, tree)
    checkpoint = opened(tmp_path, tree, sections={"model": "model"})

    assert list(checkpoint.values["extra"]["model_ema"]) == list(average)
    assert alike(tree, kept(checkpoint, tmp_path))
    twin = opened(tmp_path, tree, sections={"model": "model", "twins.ema": "model_ema"})
    assert list(twin.twins["ema"]) == list(average)
