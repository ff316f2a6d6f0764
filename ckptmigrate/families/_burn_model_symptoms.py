"""What Burn says of a model's record that opens: its loader is strict, but for dtypes and for whose an id is.

Names, shapes and ids are looked at beside the optimizer of the same epoch and the model of another: a file alone does not tell what
the program declares. Sources: formats/burn.md 3.4, 8.2, 8.3 and 9; runs of 0.22.1.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from ckptmigrate.format import Symptom
from ckptmigrate.tensor import Tensor

from ._burn_gates import input_gate
from ._burn_ids import identify
from ._burn_optimizers import are_names, known_entries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from ckptmigrate.format import Parts
    from ckptmigrate.values import Scalar

    Names = Mapping[str, Tensor | Scalar]

WIDEN = "ckptmigrate migrate {path} {stem}.new.bpk --dtype f32"
TENSOR_ERROR = "=== Tensor Operation Error ==="
OTHER_RANK = "called `Result::unwrap()` on an `Err` value: Any { .. }"
STATISTICS = {"running_mean", "running_var"}  # nobody trains them
SHOWN = 5


def model(names: Names, section: str | None, parts: Parts) -> Iterator[Symptom]:
    """Give the symptoms of a record that is given as the model; ``section``: what it is."""
    if section in {"optimizers", "schedulers"}:
        cause = f"a record of {section} is given as the model: none of the model's names is in it"
        yield Symptom(
            'Failed to load record: Validation("Missing tensors: […]")', cause, False, "ckptmigrate inspect {path}"
        )
        return
    if "current" not in parts.facts:
        yield from _coupled(names, parts)
        yield from _torn(names)
        return
    beside = parts.facts.get("beside", {}).get("optimizers")
    paths = _optimizer_paths(beside)
    have = {name: list(t.shape) for name, t in names.items() if isinstance(t, Tensor)}
    missing = sorted(path for path in paths if path.replace("r#", "") not in {name.replace("r#", "") for name in have})
    if missing:
        cause = "the optimizer of this epoch has state for them"
        yield Symptom(_validation("Missing tensors", missing), cause, False, _renaming(missing, have.keys() - paths))
    else:
        yield from _coupled(names, parts)
        yield from _unlike(have, parts.facts.get("others", {}))
    yield from _integers(names, parts)
    yield from _torn(names)
    yield from _dtypes(names)


def _trained(parts: Parts) -> set[int]:
    """Give the ids of which the optimizer of the same epoch has state."""
    beside = parts.facts.get("beside", {}).get("optimizers")
    if beside is None or not are_names(beside.tensors or {}):
        return set()
    return {told_id(text, today="current" in beside.facts) for text in known_entries(beside.tensors or {})}


def _integers(names: Names, parts: Parts) -> Iterator[Symptom]:
    """Give integers where the optimizer has state, which it has of floats alone."""
    trained = _trained(parts)
    for name, tensor in names.items():
        if isinstance(tensor, Tensor) and tensor.id is not None and tensor.promise.dtype.kind in {"int", "uint"}:
            if identify(tensor.id) not in trained:
                continue
            cause = f"{name} holds integers, and the optimizer of this epoch has state of it: it was trained, as floats"
            dtype = tensor.promise.dtype.name
            yield Symptom(f"Expected float dtype, got {dtype}", cause, False, "ckptmigrate epochs {folder}")
            return


def _renaming(missing: list[str], strange: Collection[str]) -> str:
    """Give the command that puts back the indices that names of tuples' elements have lost; "" where that is not all."""
    renames: dict[str, str] = {}
    for path in missing:
        steps = path.split(".")
        without = {
            ".".join(steps[:at] + steps[at + 1 :]) for at, step in enumerate(steps) if step.isdecimal()
        }.intersection(strange)
        if len(without) != 1 or (name := without.pop()) in renames:  # two elements under one name: one of them is lost
            return ""
        renames[name] = path
    words = [f"--rename {shlex.quote(f'{re.escape(name)}={path}')}" for name, path in renames.items()]
    return " ".join(["ckptmigrate migrate {folder} {folder}.new --epoch {epoch}", *words])


def _coupled(names: Names, parts: Parts) -> Iterator[Symptom]:
    """Give the forget gates of LSTMs that have none any more: the optimizer has state of the input gate, and none of theirs."""
    trained = _trained(parts)
    gates: list[str] = []
    for name, tensor in names.items():
        neighbour = names.get(input_gate(name) or "")
        if (
            isinstance(tensor, Tensor)
            and isinstance(neighbour, Tensor)
            and {tensor.id, neighbour.id}.isdisjoint({None})
        ):
            ids = [identify(one.id) for one in (tensor, neighbour) if one.id is not None]
            gates += [name] if [ident in trained for ident in ids] == [False, True] else []
    if gates:
        late = "" if "current" in parts.facts else ", once it is converted"
        cause = (
            f"the optimizer beside it has state of the input gates and none of these: an LSTM with input_forget, whose forget gate 0.20"
            f" and 0.21 saved and never used, and 0.22 refuses{late}"
        )
        remedy = "ckptmigrate migrate {folder} {folder}.new --chain burn.coupled_lstm"
        yield Symptom(_validation("Unused tensors", sorted(gates)), cause, False, remedy)


def told_id(text: str, *, today: bool) -> int:
    """Give the id that an optimizer's entry stands under: today's are numbers, older ones text that a release spelled."""
    return int(text) if today and text.isdecimal() else identify(text)


def _optimizer_paths(beside: Parts | None) -> set[str]:
    """Give the parameters that an optimizer's record names, where it is one."""
    if beside is None or not are_names(beside.tensors or {}):
        return set()
    return {path for key, path in beside.facts.get("metadata", {}).items() if key.isdecimal()}


def _unlike(have: dict[str, list[int]], others: Mapping[int, Parts]) -> Iterator[Symptom]:
    """Give what a program says of this model that loads the one of another epoch. Burn tells shapes, else missing, else unused ones."""
    for epoch, other in sorted(others.items(), reverse=True)[:1]:
        want = {name: list(t.shape) for name, t in (other.tensors or {}).items() if isinstance(t, Tensor)}
        shapes = [
            f"{name}: shape mismatch, expected Shape {{ dims: {shape} }} but record has Shape {{ dims: {have[name]} }}"
            for name, shape in sorted(want.items())
            if name in have and have[name] != shape
        ]
        missing, unused = sorted(want.keys() - have.keys()), sorted(have.keys() - want.keys())
        verdicts = (("Apply errors", shapes), ("Missing tensors", missing), ("Unused tensors", unused))
        verdict = next(((what, found) for what, found in verdicts if found), None)
        if verdict is not None:
            cause = f"the model of epoch {epoch} is another: a program that loads that one refuses this one"
            yield Symptom(_validation(*verdict), cause, False, "ckptmigrate verify {path} {other:%d}" % epoch)  # noqa: UP031 - braces


def _validation(what: str, items: list[str]) -> str:
    """Give Rust's debug text of a verdict: a list of texts within a text."""
    listed = "[" + ", ".join(json.dumps(item, ensure_ascii=False) for item in items) + "]"
    return f"Failed to load record: Validation({json.dumps(f'{what}: {listed}', ensure_ascii=False)})"


def shared(tensors: Iterable[tuple[str, Tensor]]) -> dict[int, list[str]]:
    """Give the ids that several trained tensors have which are not of one shape, and the first of each shape."""
    holders: dict[int, dict[tuple[int, ...], str]] = {}
    for name, tensor in tensors:
        if tensor.id is not None and tensor.promise.dtype.kind == "float" and name.rpartition(".")[2] not in STATISTICS:
            holders.setdefault(identify(tensor.id), {}).setdefault(tuple(tensor.shape), name)
    return {ident: list(shapes.values()) for ident, shapes in holders.items() if len(shapes) > 1}


def _torn(names: Names) -> Iterator[Symptom]:
    """Give an id that stands for parameters of several shapes: their gradients are looked for under it, and are of one."""
    tensors = {name: tensor for name, tensor in names.items() if isinstance(tensor, Tensor)}
    for ident, those in shared(tensors.items()).items():
        ranks = {len(tensors[name].shape) for name in those}
        shapes = ", ".join(f"{name} {list(tensors[name].shape)}" for name in those)
        cause = (
            f"{shapes} have one id, {ident}: Burn loads them with it, finds the gradient of one under the id of the other, and"
            " panics in the first training step. Whose the id is nothing in the file tells: give the others ids of their own in the"
            " program that wrote it"
        )
        yield Symptom(OTHER_RANK if len(ranks) > 1 else TENSOR_ERROR, cause, True, "")
        return


def _dtypes(names: Names) -> Iterator[Symptom]:
    found: dict[str, list[str]] = {}
    for name, tensor in names.items():
        if isinstance(tensor, Tensor) and tensor.promise.dtype.name in {"F16", "BF16", "F64"}:
            found.setdefault(tensor.promise.dtype.name, []).append(name)
    for dtype, those in found.items():
        cause = (
            f"{len(those)} tensors are {dtype} ({some(those)}): Burn takes the file's element type over and says so nowhere; a model"
            " whose inputs are F32 panics in its first step"
        )
        yield Symptom(f"storage: dtype mismatch (expected {dtype}, got F32)", cause, True, WIDEN)


def some(items: list[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more
