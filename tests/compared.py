"""Small checkpoints to compare, and what a comparison told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckptmigrate.checkpoint import Checkpoint
from ckptmigrate.tensor import Tensor, array

if TYPE_CHECKING:
    from ckptmigrate.verify import Diff


def tensor(*values: float) -> Tensor:
    return Tensor(array(np.array(values, "<f4")))


def of(**model: Tensor) -> Checkpoint:
    return Checkpoint("torch", model={name.replace("__", "."): held for name, held in model.items()})


def told(found: Diff) -> dict[str, list[tuple[str | None, str]]]:
    kinds = {change.kind for change in found.tensors}
    return {kind: [(change.was, change.item) for change in found.of(kind)] for kind in sorted(kinds)}
