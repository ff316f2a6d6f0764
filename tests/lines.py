"""A chain of three steps, catalogs of it, and checkpoints that stand somewhere in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ckptmigrate import chains
from ckptmigrate.chains.catalog import Catalog, Step
from ckptmigrate.checkpoint import Checkpoint, Stamp
from ckptmigrate.format import Family
from ckptmigrate.marks import Present
from ckptmigrate.migrator import Chain, Migrator
from ckptmigrate.operations import Operation, Rename
from ckptmigrate.tensor import Tensor, array

HERE = Path(__file__).parent / "chains"
FAMILY = Family("toy", unpack=lambda _s, _p, _o: None, pack=lambda _s, v, _c: v, section=lambda _p: None)


def model(*names: str, stamp: dict[str, str] | None = None, own: dict[str, str] | None = None) -> Checkpoint:
    checkpoint = Checkpoint(
        "toy", model={name: Tensor(array(np.zeros(2, "f4"))) for name in names}, stamp=Stamp(stamp or {})
    )
    if own:
        checkpoint.origin.facts["versions"] = own
    return checkpoint


def catalog(*folders: str) -> Catalog:
    found = Catalog()
    for folder in folders:
        found.add_folder(HERE / folder)
    return found


def step(version: str, *operations: Operation, marks: Any = ()) -> Step:
    return Step(Migrator("line", version, operations, marks), f"v{version}.py")


LINE = Chain("line")
# Each step renames the model's one tensor to its own version, and is needed where the tensor has the name before.
STEPS = [
    step(v, Rename(a, b), marks=[Present(a)])
    for a, b, v in (("n0", "n1", "1.0"), ("n1", "n2", "2.0"), ("n2", "n3", "3.0"))
]


class Line(Catalog):
    """A catalog of one chain, built in memory."""

    def __init__(self, *steps: Step, chain: Chain = LINE) -> None:
        super().__init__()
        self.add_chain(chain, "here")
        for each in steps:
            self.add_step(each)


def planned(checkpoint: Checkpoint, found: Catalog | None = None, **options: Any) -> chains.Plan:
    return chains.plan(checkpoint, found or Line(*STEPS), family=FAMILY, **options)


def versions(plan: chains.Plan) -> list[str]:
    return [each.migrator.version for each in plan.steps]


def upgraded(checkpoint: Checkpoint, found: Catalog | None = None, **options: Any) -> Checkpoint:
    chains.upgrade(checkpoint, found or Line(*STEPS), family=FAMILY, **options)
    return checkpoint
