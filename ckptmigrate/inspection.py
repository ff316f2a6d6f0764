"""What a checkpoint holds, as plain data in the shape of ``inspect --json`` (DESIGN section 9)."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Any

from .marks import facts
from .tensor import Tensor
from .values import Inert, Known, Scalar
from .verify import digest

if TYPE_CHECKING:
    from .checkpoint import Checkpoint, Optimizer

LONG = 64  # items of a list or dict, or bytes, that inspection spells out; the file holds the rest
TEXT = 1024  # characters of a text
DEEP = 32  # containers within containers; real values stay under 10


def describe(checkpoint: Checkpoint, path: str, *, digests: bool = False) -> dict[str, Any]:
    """Give format, layout, versions, sections and what is left out; draws tensor bytes only when ``digests`` is set."""
    sections: dict[str, Any] = {"model": _model(checkpoint.model, digests=digests)}
    sections["twins"] = {name: _model(twin, digests=digests) for name, twin in checkpoint.twins.items()}
    sections["optimizers"] = [_optimizer(o, digests=digests) for o in checkpoint.optimizers]
    sections["schedulers"] = [plain(s, digests=digests) for s in checkpoint.schedulers]
    sections["values"] = {name: plain(value, digests=digests) for name, value in checkpoint.values.items()}
    progress = checkpoint.progress
    sections["progress"] = {
        key: plain(value, digests=digests)
        for key, value in (
            ("epoch", progress.epoch),
            ("counts", progress.counts),
            ("step", progress.step),
            ("best", progress.best),
        )
        if value is not None
    }
    return {
        "path": path,
        "format": checkpoint.origin.format,
        "layout": checkpoint.origin.layout,
        "family": checkpoint.family,
        "versions": _versions(checkpoint),
        "history": [{"chain": a.chain, "version": a.version, "digest": a.digest} for a in checkpoint.stamp.history],
        "sections": sections,
        "left_out": [
            {"path": fate.source, "reason": fate.reason or ""}
            for fate in checkpoint.ledger.rows()
            if fate.what in {"left out", "dropped"}
        ],
        "notes": list(checkpoint.ledger.notes),
        "warnings": list(checkpoint.ledger.warnings),
    }


def _versions(checkpoint: Checkpoint) -> dict[str, str]:
    """Give what the files themselves say of their chains, and what the stamp says, which counts."""
    told = {c: v for own in facts(checkpoint, "versions") for c, v in own.items() if isinstance(v, str)}
    return {**told, **checkpoint.stamp.versions}


def _model(tensors: dict[str, Tensor], *, digests: bool) -> dict[str, Any]:
    first: dict[Any, str] = {}
    ties = {}
    for name, tensor in tensors.items():
        if tensor.nbytes:
            kept = first.setdefault(tensor.promise, name)
            if kept != name:
                ties[name] = kept
    return {"tensors": [{"name": n, **_tensor(t, digests=digests)} for n, t in tensors.items()], "ties": ties}


def _tensor(tensor: Tensor, *, digests: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "dtype": tensor.dtype.name,
        "shape": list(tensor.dtype.spelled_shape(tensor.shape)),
        "nbytes": tensor.nbytes,
    }
    if tensor.role:
        shown["role"] = tensor.role
    if tensor.id is not None:
        shown["id"] = tensor.id
    if digests:
        shown["sha256"] = digest(tensor)
    return shown


def _optimizer(optimizer: Optimizer, *, digests: bool) -> dict[str, Any]:
    params = []
    for param in optimizer.params:
        shown: dict[str, Any] = {"name": param.name, "key": str(param.key), "group": param.group}
        if param.by:
            shown["by"] = param.by
        if param.slots is None:
            shown["slots"] = None
        else:
            shown["slots"] = [
                {"name": name, **_tensor(slot.value, digests=digests)}
                if isinstance(slot.value, Tensor)
                else {"name": name, "value": plain(slot.value, digests=digests)}
                for name, slot in param.slots.items()
            ]
        params.append(shown)
    shown_optimizer: dict[str, Any] = {
        "kind": optimizer.kind,
        "groups": [plain(group, digests=digests) for group in optimizer.groups],
        "params": params,
    }
    if optimizer.shared:
        shown_optimizer["shared"] = plain(optimizer.shared, digests=digests)
    return shown_optimizer


def plain(tree: Any, *, digests: bool = False, depth: int = 0) -> Any:
    """Give a tree as JSON can hold it, for reading by people and scripts; not an encoding (that is values.encode).

    What is long or deep is cut, and says by how much.
    """
    if isinstance(tree, Tensor):
        return _tensor(tree, digests=digests)
    if isinstance(tree, Scalar):
        return plain(tree.value)
    if isinstance(tree, Inert):
        return f"<{tree.kind} {tree.path}>"
    if isinstance(tree, str):
        return tree if len(tree) <= TEXT else f"{tree[:TEXT]}… {len(tree) - TEXT} more"
    if isinstance(tree, bytes):
        return f"<{len(tree)} bytes: {tree[:LONG].hex()}{'…' if len(tree) > LONG else ''}>"
    if isinstance(tree, float) and not math.isfinite(tree):
        return str(tree)
    if isinstance(tree, Known) and tree.args is None:
        return tree.path
    if isinstance(tree, dict | list | tuple | Known):
        if depth == DEEP:
            return f"… deeper than {DEEP}"
        return _container(tree, digests=digests, depth=depth + 1)
    return tree


def _container(tree: Any, *, digests: bool, depth: int) -> Any:
    if isinstance(tree, Known):
        return {tree.path: _container(list(tree.args or ()), digests=digests, depth=depth)}
    more = len(tree) - LONG
    if not isinstance(tree, dict):
        items = [plain(value, digests=digests, depth=depth) for value in tree[:LONG]]
        return [*items, f"… {more} more"] if more > 0 else items
    shown: dict[str, Any] = {}
    for key, value in islice(tree.items(), LONG):
        text = _key(key)
        while text in shown:  # 0 and "0" are spelled alike
            text += "~"
        shown[text] = plain(value, digests=digests, depth=depth)
    return {**shown, "…": f"{more} more"} if more > 0 else shown


def _key(key: Any) -> str:
    return key.path if isinstance(key, Inert | Known) else str(key)
