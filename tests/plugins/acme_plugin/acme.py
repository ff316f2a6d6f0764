"""Acme's optimizers and schedulers: entries by the parameter's id, `{id}.moment`, `{id}.time`; a scheduler is one number.

An id is text in the file; text that is no number is its length. (A real family would take a hash.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.checkpoint import Optimizer, Param, Slot
from ckptmigrate.errors import OptimizerError
from ckptmigrate.format import FOLLOWS, SCALAR, Family, Parts
from ckptmigrate.values import Scalar

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Checkpoint


def identify(text: int | str) -> int:
    if isinstance(text, int):
        return text
    return int(text) if text.isdecimal() else len(text)


def unpack(section: str, parts: Parts, _options: Any) -> Any:
    tensors = parts.tensors or {}
    if section == "schedulers":
        step = tensors.get("scheduler.step")
        return {"step": int(step.value)} if isinstance(step, Scalar) else None
    optimizer = Optimizer(kind="acme", groups=[{}])
    for name, value in tensors.items():
        key, _, slot = name.partition(".")
        if not optimizer.params or optimizer.params[-1].key != key:
            optimizer.params.append(Param(None, None, key, 0, {}))
        slots = optimizer.params[-1].slots
        assert slots is not None
        if slot:
            slots[slot] = Slot(value)
    return optimizer


def pack(section: str, value: Any, checkpoint: Checkpoint) -> Parts:
    if section == "schedulers":
        return Parts("acme", tensors={"scheduler.step": Scalar("uint", value["step"])})
    tensors: dict[str, Any] = {}
    for param in value.params:
        if param.name is None:
            raise OptimizerError("an entry without a name has no id")
        key = checkpoint.model[param.name].id
        tensors |= {f"{key}.{name}": slot.value for name, slot in (param.slots or {}).items()}
    return Parts("acme", tensors=tensors)


def section(parts: Parts) -> str | None:
    names = list(parts.tensors or {})
    if any(name.startswith("scheduler.") for name in names):
        return "schedulers"
    if names and all(name.partition(".")[0].isdecimal() for name in names):
        return "optimizers"
    return "model" if names else None


FAMILY = Family(
    "acme",
    unpack=unpack,
    pack=pack,
    section=section,
    slots={"moment": FOLLOWS, "time": SCALAR},
    identify=identify,
    target="acme_record",
)
