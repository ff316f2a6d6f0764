"""What a checkpoint says that has no key of its own in a file: our JSON object beside the stamp, and back.

    {"stamp":  {"versions": {chain: version}, "history": [{"chain", "version", "digest", "parameters"}]},
     "record": {"family", "progress", "modules", "model": {"roles", "ids"}, "twins": {name: {"roles", "ids", "file"}},
                "optimizers": [{"kind", "params", "groups", "shared"}], "schedulers", "values", "places"}}

Files that hold tensors by name have everything in their record, value trees through ``values.encode``. Where a family packs its
own optimizers and schedulers into files, the record has no slots and no schedulers, and says what the family cannot. A file that
holds a tree has only what the tree cannot say, and under "places" where each section lies in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate import values
from ckptmigrate.checkpoint import Applied, Optimizer, Param, Progress, Slot, Stamp
from ckptmigrate.errors import CorruptError
from ckptmigrate.tensor import Tensor

from .owners import reorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptmigrate.checkpoint import Checkpoint, Counts
    from ckptmigrate.values import Path, Tree

_BY = (None, "file", "order", "like")
RECORD = "record"  # the key of the record in our JSON object, and what a layout's table calls its file
COUNTS = (None, "finished", "last", "next")


def stamp_notes(stamp: Stamp) -> dict[str, Any]:
    """Give the stamp as our JSON object has it; {} where nothing is stamped."""
    notes: dict[str, Any] = {}
    if stamp.versions:
        notes["versions"] = dict(stamp.versions)
    if stamp.history:
        notes["history"] = [
            {"chain": a.chain, "version": a.version, "digest": a.digest}
            | ({"parameters": values.encode(dict(a.parameters), "")[0]} if a.parameters else {})
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

    found = _beside_optimizers(checkpoint, files, state) | {
        "optimizers": [
            _optimizer_of(
                optimizer,
                [
                    [] if p.slots is None else [_encoded({s: v.value for s, v in p.slots.items()}, f"{n}/{i}", slots)]
                    for i, p in enumerate(optimizer.params)
                ],
                lambda tree, name, n=n: _encoded(tree, f"{n}/{name}", slots),  # type: ignore[misc] # a default binds n
            )
            for n, optimizer in enumerate(checkpoint.optimizers)
        ],
        "schedulers": _encoded(checkpoint.schedulers, "schedulers", state),
    }
    return {key: value for key, value in found.items() if not _empty(value)}, slots, state


def of_files(checkpoint: Checkpoint, files: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Give the record of a checkpoint whose optimizers and schedulers its family packs, and the tensors of the values."""
    state: dict[str, Tensor] = {}

    found = _beside_optimizers(checkpoint, files, state) | {
        "optimizers": [
            _optimizer_of(
                optimizer,
                [[p.slots is not None] for p in optimizer.params],
                lambda tree, name, n=n: _encoded(tree, f"optimizers/{n}/{name}", state),  # type: ignore[misc] # a default binds n
            )
            for n, optimizer in enumerate(checkpoint.optimizers)
        ]
    }
    return {key: value for key, value in found.items() if key == "progress" or not _empty(value)}, state


def _encoded(tree: Tree, prefix: str, into: dict[str, Tensor]) -> Any:
    """Give a tree as JSON can hold it; its tensors go into ``into``."""
    text, tensors = values.encode(tree, prefix)
    into.update(tensors)
    return text


def _beside_optimizers(checkpoint: Checkpoint, files: Mapping[str, str], state: dict[str, Tensor]) -> dict[str, Any]:
    progress = checkpoint.progress
    return {
        "family": checkpoint.family,
        "progress": {
            "epoch": progress.epoch,
            "counts": progress.counts,
            "step": progress.step,
            "best": _encoded(progress.best, "progress/best", state),
        },
        "modules": _encoded(checkpoint.modules, "modules", state),
        "model": _identities(checkpoint.model),
        "twins": {n: _identities(t) | ({"file": files[n]} if n in files else {}) for n, t in checkpoint.twins.items()},
        "values": _encoded(checkpoint.values, "values", state),
    }


def _optimizer_of(optimizer: Optimizer, states: list[list[Any]], encoded: Callable[[Tree, str], Any]) -> dict[str, Any]:
    """Give an optimizer's entry: ``states`` is what stands behind name, by, key and group of each parameter."""
    return {
        "kind": optimizer.kind,
        "params": [
            [p.name, p.by, values.encode(p.key, "")[0], p.group, *state]
            for p, state in zip(optimizer.params, states, strict=True)
        ],
        "groups": encoded(optimizer.groups, "groups"),
        "shared": encoded(optimizer.shared, "shared"),
    }


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


def without_tensors(record: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Give what a record says without the trees whose tensors lie in a file that is not there, and the names of these."""
    with _shaped("the record"):
        kept, lost = dict(record), list[str]()
        if _holds_tensors(kept.get("values", {})) and isinstance(kept["values"], dict):
            lost += [f"values.{name}" for name, tree in kept["values"].items() if _holds_tensors(tree)]
            kept["values"] = {name: tree for name, tree in kept["values"].items() if not _holds_tensors(tree)}
        if _holds_tensors(kept.get("progress", {}).get("best")):
            lost.append("progress.best")
            kept["progress"] = {name: value for name, value in kept["progress"].items() if name != "best"}
        if _holds_tensors(kept.get("schedulers", [])):
            lost.append("schedulers")
            del kept["schedulers"]
        if _holds_tensors(optimizers := kept.get("optimizers", [])):
            lost.append("optimizers")
            kept["optimizers"] = [{k: v for k, v in each.items() if not _holds_tensors(v)} for each in optimizers]
        return kept, lost


def _holds_tensors(encoded: Any) -> bool:
    stack = [encoded]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            if node and node[0] in ("@tensor", "@quantised"):
                return True
            stack.extend(node)
        elif isinstance(node, dict):
            stack.extend(node.values())
    return False


def twin_files(record: Mapping[str, Any]) -> dict[str, str]:
    """Give the stem of the file of each twin that a folder's record tells."""
    with _shaped("the record's twins"):
        return {name: _text(entry.get("file", name)) for name, entry in record.get("twins", {}).items()}


def add_from_tree(record: Mapping[str, Any], checkpoint: Checkpoint) -> int:
    """Add to a checkpoint what a tree's record says beside the tree; give the number of optimizers that it names, or not."""
    told = 0
    with _shaped("the record"):
        checkpoint.family = _text(record.get("family", checkpoint.family))
        checkpoint.progress.counts = _counts(record.get("counts", checkpoint.progress.counts))
        _identify(checkpoint, record)
        checkpoint.values |= values.decode(record.get("values", {}), {})
        for optimizer, said in zip(checkpoint.optimizers, record.get("optimizers", ()), strict=False):
            optimizer.kind = said.get("kind")
            if len(said["names"]) == len(optimizer.params):
                told += 1
                for param, (name, by) in zip(optimizer.params, said["names"], strict=True):
                    param.name, param.by = name, _BY[_BY.index(by)]  # type: ignore[assignment] # one of the four
    return told


def add_from_files(record: Mapping[str, Any], state: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Add to a checkpoint, whose optimizers the family unpacked and named, all that ``of_files`` took from one."""
    with _shaped("the record"):
        checkpoint.family = _text(record.get("family", checkpoint.family))
        checkpoint.progress = _progress(record, state)
        checkpoint.modules |= values.decode(record.get("modules", {}), state)
        _identify(checkpoint, record)
        checkpoint.values |= values.decode(record.get("values", {}), state)
        for index, said in enumerate(record.get("optimizers", ())[: len(checkpoint.optimizers)]):
            _complete(checkpoint, index, said, state)


def _complete(checkpoint: Checkpoint, index: int, said: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Give an optimizer that its family unpacked its own order, groups and entries without state."""
    optimizer = checkpoint.optimizers[index]
    places = {param.name: place for place, param in enumerate(optimizer.params) if param.name is not None}
    nameless = [place for place, param in enumerate(optimizer.params) if param.name is None]
    order: list[int] = []
    added: list[Param] = []
    for name, by, key, group, stated in said.get("params", ()):
        place = places.pop(name, None) if name is not None else nameless.pop(0) if stated and nameless else None
        if place is None:
            slots: dict[str, Slot] | None = {} if stated else None
            added.append(Param(name, _BY[_BY.index(by)], values.decode(key, {}), group, slots))  # type: ignore[arg-type] # one of the four
            place = len(optimizer.params) + len(added) - 1
        else:
            param = optimizer.params[place]
            param.name, param.by, param.group = name, _BY[_BY.index(by)], group  # type: ignore[assignment] # one of the four
            param.slots = param.slots if stated else None
        order.append(place)
    if places or nameless:
        checkpoint.ledger.warnings.append(
            f"optimizer {index}: {len(places) + len(nameless)} entries are not in our record of it; they stand behind the others"
        )
    optimizer.params += added
    reorder(checkpoint, index, [*order, *sorted([*places.values(), *nameless])])
    optimizer.kind = said.get("kind", optimizer.kind)
    optimizer.groups = values.decode(said.get("groups", []), state) or optimizer.groups
    optimizer.shared = values.decode(said.get("shared", {}), state)


def add_from_tensors(
    record: Mapping[str, Any], slots: Mapping[str, Any], state: Mapping[str, Any], checkpoint: Checkpoint
) -> None:
    """Add to a checkpoint all that ``of_tensors`` took from one."""
    with _shaped("the record"):
        checkpoint.family = _text(record.get("family", checkpoint.family))
        checkpoint.progress = _progress(record, state)
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


def _progress(record: Mapping[str, Any], state: Mapping[str, Any]) -> Progress:
    said = record.get("progress", {})
    best = values.decode(said.get("best"), state)
    return Progress(_whole(said.get("epoch")), _counts(said.get("counts")), _whole(said.get("step")), best)


def _whole(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise TypeError(value)
    return value


def _counts(value: Any) -> Counts | None:
    if value not in COUNTS:
        raise ValueError(value)
    return value  # type: ignore[no-any-return] # one of the four


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
