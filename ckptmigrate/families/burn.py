"""Burn: optimizer and scheduler records of every release, turned into ours and back.

A record's names come as today's files spell them (`{id}.momentum.moment_1`), whichever format they were read from:

    optimizer   _burn_optimizers.py   entries by parameter id, slots under today's leaf names
    scheduler   _burn_schedulers.py   a tree of today's scalar names without the group, {"current_iter": 3}
    ids         _burn_ids.py          nanoid, UUID, base32, number: one function for models and optimizers
    model       everything else

An empty record is a constant scheduler's: a model without tensors is nothing that anybody saves, and nothing is ever written as
one. Hyperparameters are in no record; Burn takes them from the program. Source: formats/burn.md 3.3, 5 and 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.checkpoint import Optimizer
from ckptmigrate.errors import OptimizerError
from ckptmigrate.format import Family, Parts
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import NOTHING, Scalar

from . import _burn_caveats, _burn_gates, _burn_optimizers, _burn_schedulers, _burn_symptoms
from ._burn_ids import identify
from ._burn_model_symptoms import STATISTICS

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.format import Symptom
    from ckptmigrate.values import Tree


def unpack(section: str, parts: Parts, options: Any) -> Optimizer | Tree | None:
    """Give an Optimizer or a scheduler's tree; None for what is neither.

    ``options.scheduler``, where there is one, is the kind that a caller says; CheckpointError where the record contradicts it.
    ``options.steps`` is how many steps an optimizer has made; where an entry has state and no count it is taken, and "steps" becomes a
    fact of the parts.
    """
    names = _names(parts)
    if names is None:
        return None
    if section == "optimizers":
        steps = _burn_optimizers.checked(getattr(options, "steps", None))
        return _burn_optimizers.unpack(names, parts, steps) if _is_optimizer(names) else None
    if section == "schedulers" and _burn_schedulers.are_names(names):
        said = _burn_schedulers.checked(getattr(options, "scheduler", None))
        numbers = {name: value for name, value in names.items() if isinstance(value, Scalar)}
        return _burn_schedulers.unpack(numbers, parts.facts.get("versions", {}).get("burn"), said, parts.warnings)
    return None


def pack(section: str, value: Any, checkpoint: Checkpoint) -> Parts:
    """Give the record that today's Burn writes of an optimizer or a scheduler."""
    if section == "schedulers":
        return Parts(family="burn", tensors=dict(_burn_schedulers.pack(value)))
    if not isinstance(value, Optimizer):
        raise OptimizerError(f"{type(value).__name__} is no optimizer")
    tensors, paths = _burn_optimizers.pack(value, checkpoint)
    return Parts(family="burn", tensors=tensors, facts={"metadata": paths} if paths else {})


def section(parts: Parts) -> str | None:
    """Tell what a file alone is; None where it is none of the three."""
    told = parts.facts.get("section")
    if isinstance(told, str):
        return told
    names = _names(parts)
    if names is None:
        return None
    if not names:
        if "producer" in parts.facts.get("metadata", {}):
            return "model"  # a store of Burn wrote it, which holds nothing else
        return "optimizers" if parts.tree is not None and "burn" in parts.facts.get("versions", {}) else "schedulers"
    if _burn_optimizers.are_names(names):
        return "optimizers"
    if _burn_schedulers.are_names(names):
        return "schedulers"
    return "model" if any(isinstance(value, Tensor) for value in names.values()) else None


def diagnose(parts: Parts, _: Checkpoint | None) -> list[Symptom]:
    """Give what Burn says of a record that opens, or does with it in silence."""
    return _burn_symptoms.diagnose(_names(parts) or {}, section(parts), parts)


def is_buffer(name: str, tensor: Tensor) -> bool:
    """Say whether a tensor of the model is no parameter: by its role, else running statistics and what has no gradient."""
    if tensor.role is not None:
        return tensor.role == "buffer"
    return name.rpartition(".")[2] in STATISTICS or tensor.dtype.kind not in {"float", "complex"}


def _is_optimizer(names: dict[str, Tensor | Scalar]) -> bool:
    return not names or _burn_optimizers.are_names(names)


def _names(parts: Parts) -> dict[str, Tensor | Scalar] | None:
    """Give what a record holds by name. A record that is one number has it under "", one that is nothing has no names."""
    if parts.tensors is None:
        return None
    if parts.tensors or parts.tree is NOTHING or parts.tree is None:
        return parts.tensors
    names: dict[str, Tensor | Scalar] = {}
    stack: list[tuple[str, Tree]] = [("", parts.tree)]
    while stack:
        name, node = stack.pop()
        if isinstance(node, dict | list | tuple):
            below = node.items() if isinstance(node, dict) else enumerate(node)
            stack.extend((f"{name}.{key}" if name else str(key), value) for key, value in reversed(list(below)))
        elif isinstance(node, Tensor | Scalar):
            names[name] = node
        elif isinstance(node, bool | int | float):
            names[name] = _number(node)
        elif node is not None:
            return None
    return names


def _number(value: bool | float) -> Scalar:
    if isinstance(value, bool):
        return Scalar("bool", value)
    if isinstance(value, int):
        return Scalar("int" if value < 0 else "uint", value)
    return Scalar("float", value)


FAMILY = Family(
    "burn",
    unpack=unpack,
    pack=pack,
    section=section,
    slots=_burn_optimizers.SLOTS,
    is_buffer=is_buffer,
    spares=_burn_gates.spares,
    identify=identify,
    target="burnpack",
    diagnose=diagnose,
    caveats=_burn_caveats.caveats,
    about="optimizer and scheduler records of Burn 0.3 and later",
)
