"""Burn's family, and small records of it as tests unpack them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptmigrate import registry
from ckptmigrate.checkpoint import Optimizer
from ckptmigrate.dtypes import F32
from ckptmigrate.format import Parts, ReadOptions
from ckptmigrate.tensor import Tensor, fill
from ckptmigrate.values import Scalar

from .burn_records import FIXTURES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.files import Disk

BURN = registry.family("burn")

CURRENT = sorted(
    p for p in FIXTURES.glob("0.22.1/*.bpk") if p.name.startswith(("optim", "scheduler")) and "model" not in p.name
)
OLD = sorted(
    path
    for suffix in ("mpk", "mpk.gz")
    for path in FIXTURES.glob(f"0.*/*.{suffix}")
    if path.name.startswith(("optim", "scheduler", "net", "zoo"))
)


@dataclass(frozen=True)
class Said:
    scheduler: str | None = None


def read(disk: Disk, path: Path) -> Parts:
    source = disk.open(path)
    form = next(f for f in registry.formats() if f.sniff(source) is not None)
    return form.read(source, ReadOptions())


def identify(text: int | str) -> int:
    assert BURN.identify is not None
    return BURN.identify(text)


def tensors(parts: Parts) -> dict[str, Tensor]:
    return {name: value for name, value in (parts.tensors or {}).items() if isinstance(value, Tensor)}


def scalars(parts: Parts) -> dict[str, Scalar]:
    return {name: value for name, value in (parts.tensors or {}).items() if isinstance(value, Scalar)}


def tensor(*shape: int) -> Tensor:
    return Tensor(fill(0.5, F32, shape))


def optimizer(names: Mapping[str, Tensor | Scalar], **facts: Any) -> Optimizer:
    found = BURN.unpack("optimizers", Parts(family="burn", tensors=dict(names), facts=facts), Said())
    assert isinstance(found, Optimizer)
    return found


def scheduler(names: Mapping[str, Scalar], said: str | None = None, burn: str | None = None, **facts: Any) -> Any:
    versions = {} if burn is None else {"versions": {"burn": burn}}
    return BURN.unpack("schedulers", Parts(family="burn", tensors=dict(names), facts={**versions, **facts}), Said(said))


def uint(value: int) -> Scalar:
    return Scalar("uint", value)
