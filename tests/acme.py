"""Acme, a framework that somebody else delivers: its plugin as an installed distribution would bring it, a checkpoint as it leaves one, its files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckptmigrate import registry, store
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Param, Progress, Slot, Stamp
from ckptmigrate.format import GatherOptions, WriteOptions
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.testing import written
from ckptmigrate.values import Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    sys.path.insert(0, str(PLUGINS))
    registry.forget()
    yield
    sys.path.remove(str(PLUGINS))
    registry.forget()


def tensor(*shape: int, start: int = 0, **more: Any) -> Tensor:
    return Tensor(array(np.arange(start, start + int(np.prod(shape)), dtype="f4").reshape(shape)), **more)


def slots(*shape: int, start: int) -> dict[str, Slot]:
    return {"moment": Slot(tensor(*shape, start=start)), "time": Slot(Scalar("uint", start))}


def trained() -> Checkpoint:
    """Give a checkpoint as Acme itself leaves one: ids on parameters, entries by id, in another order than the model's."""
    model = {"fc.weight": tensor(2, 3, id=71), "fc.bias": tensor(3, start=9, id=72), "mean": tensor(3, start=20)}
    params = [
        Param("fc.bias", "file", "72", 0, slots(3, start=100)),
        Param("fc.weight", "file", "71", 0, slots(2, 3, start=200)),
    ]
    return Checkpoint(
        "acme",
        model=model,
        optimizers=[Optimizer("acme", params, [{}])],
        schedulers=[{"step": 7}],
        progress=Progress(3, "finished"),
    )


def full() -> Checkpoint:
    """Give a checkpoint with every field filled, also those that Acme's own files have no place for."""
    checkpoint = trained()
    checkpoint.model["tied"] = checkpoint.model["fc.weight"]
    checkpoint.twins = {"ema": {name: tensor(*t.shape, start=40) for name, t in checkpoint.model.items()}}
    checkpoint.modules = {"fc": {"fields": ["weight", "bias"]}}
    checkpoint.optimizers[0].groups = [{"lr": 0.1}, {"lr": float("inf")}]
    checkpoint.optimizers[0].params[0].group = 1
    checkpoint.optimizers[0].params.insert(1, Param("tied", "like", None, 0))
    checkpoint.optimizers[0].shared = {"scale": tensor(1, start=5)}
    checkpoint.optimizers.append(Optimizer(None, [Param("fc.bias", "file", "72", 0, slots(3, start=300))], [{}]))
    checkpoint.schedulers.append({"step": 9})
    checkpoint.values = {"rng": {"cpu": tensor(4)}, "config": {"x": (1, None)}, "model": {"fc._extra": 1}}
    checkpoint.progress = Progress(3, "last", 900, tensor(start=8))
    checkpoint.stamp = Stamp({"acme": "2.0"})
    return checkpoint


def scattered(checkpoint: Checkpoint, **options: Any) -> dict[str, Any]:
    form = registry.format("acme_record")
    return store.scatter(checkpoint, form, registry.layout("acme_epoch"), WriteOptions(**options))


def laid(checkpoint: Checkpoint, folder: Path, **options: Any) -> Path:
    for name, data in written(store.lay_out(scattered(checkpoint, **options), WriteOptions())).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def opened(path: Path, **options: Any) -> Checkpoint:
    return store.open_checkpoint(path, gather_options=GatherOptions(**options))
