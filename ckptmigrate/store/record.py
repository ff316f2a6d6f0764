"""What a checkpoint says that has no key of its own in a file: our JSON object beside the stamp, and back.

    {"stamp":  {"versions": {chain: version}, "history": [{"chain", "version", "digest", "parameters", "direction"}]},
     "record": {"family", "progress", "modules", "model": {"roles", "ids"}, "twins": {name: {"roles", "ids", "file"}},
                "optimizers": [{"kind", "params", "groups", "shared"}], "schedulers", "values", "places"}}

A file that holds tensors by name has everything in its record, value trees through ``values.encode``. A file that holds a tree
has only what the tree cannot say, and under "places" where each section lies in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate import values
from ckptmigrate.checkpoint import Applied, Optimizer, Param, Progress, Slot, Stamp
from ckptmigrate.errors import CorruptError
from ckptmigrate.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.values import Path, Tree

_BY = (None, "file", "order", "like")


def stamp_notes(stamp: Stamp) -> dict[str, Any]:
    """Give the stamp as our JSON object has it; {} where nothing is stamped."""
    notes: dict[str, Any] = {}
    if stamp.versions:
        notes["versions"] = dict(stamp.versions)
    if stamp.history:
        notes["history"] = [
            {"chain": a.chain, "version": a.version, "digest": a.digest}
            | ({"parameters": values.encode(dict(a.parameters), "")[0]} if a.parameters else {})
            | ({"direction": a.direction} if a.direction != "up" else {})
            for a in stamp.history
        ]
    return {"stamp": notes} if notes else {}


def stamp_of(notes: Mapping[str, Any]) -> Stamp:
    """Give the stamp in our JSON object; CorruptError where it is not of the shape above."""
    said = notes.get("stamp", {})
    if not isinstance(said, dict):
        raise CorruptError("the stamp is no object")
    versions, history = said.get("versions", {}), said.get("history", [])
    if not isinstance(versions, dict) or not all(isinstance(v, str) for v in versions.values()):
        raise CorruptError("the stamp's versions are no texts by chain")
    with _shaped("the stamp's history"):
        applied = tuple(
            Applied(
                _text(a["chain"]),
                _text(a["version"]),
                _text(a["digest"]),
                tuple(values.decode(a.get("parameters", {}), {}).items()),
                "down" if a.get("direction") == "down" else "up",
            )
            for a in history
        )
    return Stamp(dict(versions), applied)


def of_tensors(
    checkpoint: Checkpoint, files: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Give the record of a checkpoint whose target holds tensors by name, the optimizers' tensors and the values' tensors.

    Optimizer tensors are "{optimizer}/{position}/{slot}". ``files`` says in which file each twin lies. TensorError names
    a value that cannot be encoded.
    """
    slots: dict[str, Tensor] = {}
    state: dict[str, Tensor] = {}

    def encoded(tree: Tree, prefix: str, into: dict[str, Tensor]) -> Any:
        text, tensors = values.encode(tree, prefix)
        into.update(tensors)
        return text

    progress = checkpoint.progress
    found: dict[str, Any] = {
        "family": checkpoint.family,
        "progress": {
            "epoch": progress.epoch,
            "counts": progress.counts,
            "step": progress.step,
            "best": encoded(progress.best, "progress/best", state),
        },
        "modules": encoded(checkpoint.modules, "modules", state),
        "model": _identities(checkpoint.model),
        "twins": {n: _identities(t) | ({"file": files[n]} if n in files else {}) for n, t in checkpoint.twins.items()},
        "optimizers": [
            {
                "kind": optimizer.kind,
                "params": [
                    [p.name, p.by, encoded(p.key, "", {}), p.group]
                    + (
                        []
                        if p.slots is None
                        else [encoded({s: v.value for s, v in p.slots.items()}, f"{n}/{i}", slots)]
                    )
                    for i, p in enumerate(optimizer.params)
                ],
                "groups": encoded(optimizer.groups, f"{n}/groups", slots),
                "shared": encoded(optimizer.shared, f"{n}/shared", slots),
            }
            for n, optimizer in enumerate(checkpoint.optimizers)
        ],
        "schedulers": encoded(checkpoint.schedulers, "schedulers", state),
        "values": encoded(checkpoint.values, "values", state),
    }
    return {key: value for key, value in found.items() if not _empty(value)}, slots, state


def of_tree(checkpoint: Checkpoint, places: Mapping[str, Path], beside: Mapping[str, Tree]) -> dict[str, Any]:
    """Give the record of a checkpoint whose target is a tree with its sections at ``places``.

    ``beside``: values without tensors that have no place in the tree.
    """
    found: dict[str, Any] = {
        "family": checkpoint.family,
        "counts": checkpoint.progress.counts,
        "model": _identities(checkpoint.model),
        "twins": {name: _identities(twin) for name, twin in checkpoint.twins.items() if _identities(twin)},
        "optimizers": [{"kind": o.kind, "names": [[p.name, p.by] for p in o.params]} for o in checkpoint.optimizers],
        "values": values.encode(dict(beside), "")[0],
        "places": {section: values.encode(list(path), "")[0] for section, path in places.items()},
    }
    return {key: value for key, value in found.items() if not _empty(value)}


def places_of(record: Mapping[str, Any]) -> dict[str, Path] | None:
    """Give the places that a tree's record tells, None where it tells none."""
    if "places" not in record:
        return None
    with _shaped("the record's places"):
        return {_text(section): tuple(values.decode(path, {})) for section, path in record["places"].items()}


def add_from_tree(record: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Add to a checkpoint what a tree's record says beside the tree."""
    with _shaped("the record"):
        checkpoint.family = _text(record.get("family", checkpoint.family))
        checkpoint.progress.counts = record.get("counts", checkpoint.progress.counts)
        _identify(checkpoint, record)
        checkpoint.values |= values.decode(record.get("values", {}), {})
        for optimizer, said in zip(checkpoint.optimizers, record.get("optimizers", ()), strict=False):
            optimizer.kind = said.get("kind")
            if len(said["names"]) == len(optimizer.params):
                for param, (name, by) in zip(optimizer.params, said["names"], strict=True):
                    param.name, param.by = name, _BY[_BY.index(by)]  # type: ignore[assignment] # one of the four


def add_from_tensors(
    record: Mapping[str, Any], slots: Mapping[str, Any], state: Mapping[str, Any], checkpoint: Checkpoint
) -> None:
    """Add to a checkpoint all that ``of_tensors`` took from one."""
    with _shaped("the record"):
        checkpoint.family = _text(record.get("family", checkpoint.family))
        said = record.get("progress", {})
        best = values.decode(said.get("best"), state)
        checkpoint.progress = Progress(said.get("epoch"), said.get("counts"), said.get("step"), best)
        checkpoint.modules = values.decode(record.get("modules", {}), state)
        _identify(checkpoint, record)
        checkpoint.optimizers = [_optimizer(entry, slots) for entry in record.get("optimizers", ())]
        checkpoint.schedulers = values.decode(record.get("schedulers", []), state)
        checkpoint.values = values.decode(record.get("values", {}), state)


def _optimizer(entry: Mapping[str, Any], slots: Mapping[str, Any]) -> Optimizer:
    params = []
    for name, by, key, group, *state in entry.get("params", ()):
        decoded = {slot: Slot(value) for slot, value in values.decode(state[0], slots).items()} if state else None
        params.append(Param(name, _BY[_BY.index(by)], values.decode(key, {}), group, decoded))  # type: ignore[arg-type] # one of the four
    groups, shared = values.decode(entry.get("groups", []), slots), values.decode(entry.get("shared", {}), slots)
    return Optimizer(entry.get("kind"), params, groups, shared)


def _identities(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    roles = {name: t.role for name, t in tensors.items() if t.role is not None}
    ids = {name: values.encode(t.id, "")[0] for name, t in tensors.items() if t.id is not None}
    return ({"roles": roles} if roles else {}) | ({"ids": ids} if ids else {})


def _identify(checkpoint: Checkpoint, record: Mapping[str, Any]) -> None:
    sets = [(checkpoint.model, record.get("model", {}))]
    sets += [(twin, record.get("twins", {}).get(name, {})) for name, twin in checkpoint.twins.items()]
    for tensors, said in sets:
        roles, ids = said.get("roles", {}), said.get("ids", {})
        if not roles and not ids:
            continue
        for name, tensor in tensors.items():
            ident = values.decode(ids[name], {}) if name in ids else tensor.id
            tensors[name] = Tensor(tensor.promise, roles.get(name, tensor.role), ident, tensor.quant)


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}) or (isinstance(value, dict) and all(v is None for v in value.values()))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


class _shaped:  # noqa: N801 - reads as a word where it is used
    """Turn what Python says of a wrong shape into a CorruptError that names the object."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError | TypeError | AttributeError | IndexError) or type(error) is ValueError:
            raise CorruptError(f"{self.what} is not of the shape that this release writes: {error!r}") from error
