r"""State files (`.json.gz`) of Burn 0.3 to 0.6: one tree in JSON in gzip, without version, precision or order.

    0.4 to 0.6   {"StateNamed": {"values": {NAME: NODE}}}   {"Data": {"value": [numbers], "shape": […]}}   {"ParamId": {"value": TEXT}}
    0.3          {NAME: NODE}                               {"shape": […], "value": [numbers]}             TEXT

    {"data": NODE, "id": ID}, exactly   what a `Param` wrote: the name goes to NODE; only a tensor keeps the id
    `mod-3`                             the fourth of a list of modules: `3`
    {} as data                          an optional tensor that is absent

    optimizer    momentum-ID  moment_1-ID  moment_2-ID  weight-decay-ID  time-ID   →   `ID.momentum.velocity`, `ID.momentum.moment_1`,
                                                                                      `ID.weight_decay.grad_last_step`, `ID.momentum.time`

Names of a module may be "data", "id", "value" or "shape" (a value that is no array of numbers tells). 0.4 and 0.5 wrote Adam's time for
parameters of rank 1 only, and restarted the others: here the others get it, if it is one and the same. Names come sorted, numbers as
numbers, because two saves of one model differ in order. Integers are bit patterns of f16 (serde_json writes every float with a point).
f64 is told by numbers in more detail than an f32 has: more than nine digits, or, in 0.3, which passes all through f64, what no f32 is.
Source: burn-core/src/module/state.rs of 0.3.0 to 0.6.0; formats/burn.md 3.1, 5.1.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import F16, F32, F64
from ckptmigrate.errors import CorruptError, reading
from ckptmigrate.format import Format, Match, Parts, ReadOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Scalar, brief
from ckptmigrate.wire.json_stream import Numbers, load

from ._burn_payloads import Precision, is_array, is_numbers
from ._burn_record import RANK, Record
from ._burn_symptoms import recorded
from ._gzip import head, opened, packed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptmigrate.files import Source

NANOID = 21  # characters of an id up to 0.5; 0.6 wrote UUIDs
HEAD = 4096  # bytes in which the first tensor of a 0.3 file begins, behind the names that lead to it
_TAGGED = re.compile(rb'\s*\{\s*"StateNamed"\s*:\s*\{\s*"values"\s*:\s*\{')
_PLAIN = re.compile(rb'\s*\{(?:\s*"(?:[^"\\]|\\.){1,300}"\s*:\s*\{)*\s*(?:"shape"\s*:\s*\[|\})')
_DETAIL = re.compile(rb"[1-9](?:\.?[0-9]){8,}\.?[1-9]")  # ten digits or more from the first that counts to the last
_MODULE = re.compile(r"mod-(0|[1-9][0-9]*)")
_SLOTS = {
    "momentum-": "momentum.velocity",
    "weight-decay-": "weight_decay.grad_last_step",
    "moment_1-": "momentum.moment_1",
    "moment_2-": "momentum.moment_2",
    "time-": "momentum.time",
}
_ORDER = list(_SLOTS.values())


class Id(str):
    """A parameter's id, in a tree that has no other text."""

    __slots__ = ()


class Data(dict[str, Any]):
    """A tensor's payload, told from a module whose fields have its names."""

    __slots__ = ()


def sniff(source: Source) -> Match | None:
    """Claim the tagged tree, plain or in gzip; the untagged one in gzip, where its first names lead to a shape."""
    begins = head(source, HEAD)
    plain = bool(begins) and packed(source) and _PLAIN.match(begins) is not None
    return Match(FORMAT) if plain or _TAGGED.match(begins) else None


def read(source: Source, options: ReadOptions) -> Parts:
    """Give the tensors and numbers under today's names, sorted; errors name the tensor and both numbers."""
    with reading(source.name):
        cursor = opened(source, options.limits)
        tagged = _TAGGED.match(cursor.look(HEAD)) is not None
        tree = load(cursor, options.limits, _is_detailed if tagged else _is_no_f32)
        if cursor.look(1):
            raise CorruptError(f"text follows the state, which ends at {cursor.at:,}")
        root, arrays = _untagged(tree, tagged=tagged)
        if not isinstance(root, dict) or isinstance(root, Data):
            raise CorruptError("the state is no map of names")
        half = bool(arrays) and all(array.kind == "int" for array in arrays)
        floating = F16 if half else F64 if any(array.detailed for array in arrays if array.kind == "float") else F32
        made = Record(Precision(floating, None), options)
        parts = made.parts({})
        del parts.facts["fields"]
        if _is_optimizer(root):
            parts.facts["section"] = "optimizers"
            _name_slots(root, made)
        else:
            parts.facts["section"] = "model"
            _name_parameters(root, made)
        if half:
            parts.facts["half"] = True
        if any(isinstance(tensor, Tensor) and len(str(tensor.id)) == NANOID for tensor in made.tensors.values()):
            parts.facts["nanoids"] = True
        return parts


def _is_detailed(text: bytes) -> bool:
    return _DETAIL.search(text) is not None


def _is_no_f32(text: bytes) -> bool:
    import numpy as np  # noqa: PLC0415 - numbers are needed only here

    try:
        values = np.array(json.loads(b"[" + text + b"]"), np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return False  # refused when it is drawn
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float32) != values).any())


def _untagged(tree: Any, *, tagged: bool) -> tuple[Any, list[Numbers]]:
    """Give the tree with maps as dict, tensors as Data, ids as Id, and the arrays of all tensors; without recursion."""
    root: dict[str, Any] = {}
    arrays: list[Numbers] = []
    stack: list[tuple[dict[str, Any], str, Any]] = [(root, "", tree)]
    while stack:
        into, name, node = stack.pop()
        found = _told(node, name) if tagged else node
        if isinstance(found, str):
            into[name] = Id(found)
        elif isinstance(found, Data) or (not tagged and _is_data(found)):
            into[name] = Data(found)
            arrays += [found["value"]] if is_numbers(found["value"]) else []
        elif isinstance(found, dict):
            into[name] = made = dict.fromkeys(found)
            stack.extend((made, below, value) for below, value in found.items())
        else:
            raise CorruptError(f'"{name}" is {brief(found)}, where a state has maps, tensors and ids')
    return root[""], arrays


def _told(node: Any, name: str) -> Any:
    """Give what a tagged node holds."""
    match node:
        case {"StateNamed": {"values": dict(values), **more}, **others} if not more and not others:
            return values
        case {"ParamId": {"value": str(text), **more}, **others} if not more and not others:
            return text
        case {"Data": dict(data), **others} if not others and _is_data(data):
            return Data(data)
    raise CorruptError(f'"{name}" is {brief(node)}, expected a StateNamed, Data or ParamId')


def _is_data(node: Any) -> bool:
    return (
        isinstance(node, dict)
        and node.keys() == {"value", "shape"}
        and is_array(node["value"])
        and is_array(node["shape"])
    )


def _walk(root: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Give every node with its path as today's names spell it, siblings sorted; wrappers add nothing to a path."""
    stack: list[tuple[str, Any]] = [("", root)]
    while stack:
        path, node = stack.pop()
        yield path, node
        if not isinstance(node, dict) or isinstance(node, Data):
            continue
        if _is_wrapper(node):
            if not isinstance(node["data"], Data):
                stack.append((path, node["data"]))
            continue
        below = sorted(((_place(name), child) for name, child in node.items()), key=lambda found: found[0])
        stack.extend((f"{path}.{name}" if path else name, child) for (_, _, name), child in reversed(below))


def _is_wrapper(node: Any) -> bool:
    return isinstance(node, dict) and node.keys() == {"data", "id"} and isinstance(node["id"], Id)


def _place(name: str) -> tuple[bool, int, str]:
    """Give what siblings are sorted by, and the name that today's files have."""
    module = _MODULE.fullmatch(name)
    return (False, int(module[1]), module[1]) if module else (True, 0, name)


def _is_optimizer(root: dict[str, Any]) -> bool:
    return all(isinstance(node, Data) and name.startswith(tuple(_SLOTS)) for name, node in root.items())


def _name_parameters(root: dict[str, Any], made: Record) -> None:
    for path, node in _walk(root):
        if _is_wrapper(node) and isinstance(node["data"], Data):
            made.put(path, made.tensor(path, node["data"], str(node["id"])))
        elif isinstance(node, (Data, Id)) or (_is_wrapper(node) and isinstance(node["data"], Id)):
            raise CorruptError(
                f"{path}: {'an id' if not isinstance(node, Data) else 'a tensor'} without the other of the two"
            )


def _name_slots(root: dict[str, Any], made: Record) -> None:
    """Name what an optimizer holds, parameter by parameter; the rank is that of its tensors."""
    entries: dict[str, dict[str, Data]] = {}
    for name, data in root.items():
        prefix = next(prefix for prefix in _SLOTS if name.startswith(prefix))
        entries.setdefault(name.removeprefix(prefix), {})[_SLOTS[prefix]] = data
    clock, missing = _clock(entries), []
    for text, slots in sorted(entries.items()):
        shapes = set()
        found: dict[str, Tensor | Scalar] = {}
        for slot in sorted(slots, key=_ORDER.index):
            name = f"{text}.{slot}"
            if slot == "momentum.time":
                found[name] = Scalar("uint", _time(name, slots[slot], half=made.precision.floating is F16))
            else:
                tensor = made.tensor(name, slots[slot], text)
                found[name] = tensor
                shapes.add(tensor.shape)
        if len(shapes) != 1:
            raise CorruptError(f"the state of parameter {text} has tensors of {len(shapes)} shapes, expected one")
        if "momentum.moment_1" in slots and "momentum.time" not in slots:
            missing.append(text)
            if clock is not None:
                found[f"{text}.momentum.time"] = Scalar("uint", clock)
        made.put(f"{text}.{RANK}", Scalar("uint", len(shapes.pop())))
        for name, value in found.items():
            made.put(name, value)
    if missing:
        told = "no other has one either" if clock is None else f"it is taken from the others, {clock}"
        made.warnings.append(
            f"{len(missing)} of {len(entries)} parameters have no step count, which Burn 0.4 and 0.5 wrote for rank 1 only: {told}"
        )


def _clock(entries: dict[str, dict[str, Data]]) -> int | None:
    """Give the step count that all parameters agree on which have one."""
    times = {tuple(slots["momentum.time"]["value"].values or ()) for slots in entries.values() if _has_time(slots)}
    half = any(kind == "int" for kind in (s["momentum.time"]["value"].kind for s in entries.values() if _has_time(s)))
    return _rounded(next(iter(times))[0], half=half) if len(times) == 1 and len(next(iter(times))) == 1 else None


def _has_time(slots: dict[str, Data]) -> bool:
    return "momentum.time" in slots and is_numbers(slots["momentum.time"]["value"])


def _time(name: str, data: Data, *, half: bool) -> int:
    values = data["value"].values if is_numbers(data["value"]) else None
    if values is None or len(values) != 1 or not isinstance(values[0], (int, float)) or not 0 <= values[0] < 1 << 63:
        raise CorruptError(f"{name}: a step count is one number, found {brief(values)}", tensor=name)
    return _rounded(values[0], half=half)


def _rounded(value: float, *, half: bool) -> int:
    if not half:
        return round(value)
    import numpy as np  # noqa: PLC0415 - same

    pattern = np.array([int(value) & 0xFFFF], np.uint16).view(np.float16)
    return round(float(pattern[0])) if np.isfinite(pattern[0]) else 0


FORMAT = Format(
    "burn_state", family="burn", suffixes=(".json.gz",), sniff=sniff, read=read, diagnose=recorded,
    about="State files of Burn 0.3 to 0.6",
)  # fmt: skip
