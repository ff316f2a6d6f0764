"""A checkpoint with every field filled, written as a conversion does, and all that must come back of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ckptmigrate import registry, store
from ckptmigrate.checkpoint import Applied, Checkpoint, Optimizer, Param, Progress, Slot, Stamp
from ckptmigrate.files import Disk
from ckptmigrate.files.sink import Sink
from ckptmigrate.format import ReadOptions, WriteOptions
from ckptmigrate.tensor import Tensor, array

if TYPE_CHECKING:
    from pathlib import Path


def tensor(*shape: int, start: int = 0, **more: Any) -> Tensor:
    count = int(np.prod(shape))
    return Tensor(array(np.arange(start, start + count, dtype="f4").reshape(shape)), **more)


def full() -> Checkpoint:
    """Give a checkpoint with every field filled."""
    model = {
        "embed": tensor(4, 3),
        "norm.mean": tensor(3, start=50, role="buffer"),
        "head.weight": tensor(2, 3, start=9, id=7),
    }
    model["tied"] = Tensor(model["embed"].promise)
    slots = {
        "step": Slot(tensor(start=5)),
        "exp_avg": Slot(tensor(4, 3, start=100)),
        "exp_avg_sq": Slot(tensor(4, 3, start=200)),
    }
    adam = Optimizer(
        kind="adam",
        params=[
            Param("embed", "file", 0, 0, slots),
            Param("head.weight", "file", 1, 1, {}),
        ],
        groups=[{"lr": 0.1, "betas": (0.9, 0.99)}, {"lr": float("inf"), "maximize": None}],
        shared={"loss_scale": 3},
    )
    sgd = Optimizer(params=[Param("embed", "order", 0, 0), Param("head.weight", "order", 1, 0)], groups=[{"lr": 1}])
    return Checkpoint(
        family="torch",
        model=model,
        twins={"ema": {name: Tensor(array(t.numpy() + 1), t.role) for name, t in model.items()}, "a/b": dict(model)},
        modules={"": {"version": 1}, "norm": {"version": 2, "note": (1, 2)}},
        optimizers=[adam, sgd],
        schedulers=[{"last_epoch": 3, "base_lrs": [0.1], 4: b"\0\xff"}, {"last_epoch": 1}],
        values={
            "rng": {"cpu": tensor(5, start=3), "python": (3, tuple(range(9)), None)},
            "scaler": {"scale": 65536.0},
            "config": {"name": "x", "nan": float("nan"), "big": 2**80},
            "extra": {"list": [tensor(1, start=77), {"deep": (tensor(2),)}], 0: "int key"},
            "model": {"fc._extra_state": {"a": 1}},
            "odd": 3,
        },
        progress=Progress(3, "finished", 900, 0.25),
        stamp=Stamp({"torch": "2.6", "acme.x": "1.0"}, (Applied("acme.x", "1.0", "d1", (("heads", 16),)), Applied("torch", "2.6", "d2"))),
    )  # fmt: skip


def written(
    checkpoint: Checkpoint, target: str, layout: str | None, out: Path, options: WriteOptions | None = None
) -> Path:
    """Write through the sink, compare with the plan as a conversion does, and publish."""
    options = options or WriteOptions()
    chosen = registry.format(target)
    one = bool(out.suffix)
    scattered = store.scatter(
        checkpoint, chosen, registry.layout(layout) if layout else None, options, out.name if one else ""
    )
    blueprint = store.lay_out(scattered, options)
    assert blueprint.problems == []
    with Sink(out, folder=not one) as sink:
        store.write(blueprint, sink)
        sink.finish()
        with Disk() as disk:
            root = disk.open(sink.path)
            for name, (form, planned) in scattered.items():
                read = form.read(root if one else root.child(name), ReadOptions())
                out_of = sink.outs["" if one else name]
                assert store.compare_parts(planned, read, out_of, ties=not options.bare) == []
        sink.publish(last=blueprint.last)
    return out


def fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """Give everything that must come back, as one tree."""
    return {
        "family": checkpoint.family,
        "model": checkpoint.model,
        "twins": checkpoint.twins,
        "modules": checkpoint.modules,
        "optimizers": [
            [o.kind, [[p.name, p.by, p.group, None if p.slots is None else {s: v.value for s, v in p.slots.items()}] for p in o.params], o.groups, o.shared]
            for o in checkpoint.optimizers
        ],
        "schedulers": checkpoint.schedulers,
        "values": dict(sorted(checkpoint.values.items())),
        "progress": [checkpoint.progress.epoch, checkpoint.progress.counts, checkpoint.progress.step, checkpoint.progress.best],
    }  # fmt: skip
