"""What Burn says of records that open, or does with them in silence: names, kinds and ids that its loaders look for.

The loader of a model is strict, those of optimizers and schedulers are not: what they do not find restarts without a word. What comes
in ``parts.facts``: "expected", the section as which a file is given; "beside", section -> parts of the other files of its epoch;
"others", epoch -> parts of the model of other epochs; "hints", what the files around a run tell. "current" has only a burnpack.
Sources: formats/burn.md 5.3, 6.2, 8.2 and 8.3, and runs of 0.22.1 (fixtures/burn/learner).
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import OptimizerError
from ckptmigrate.format import FOLLOWS, SCALAR, Symptom
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Scalar

from . import _burn_optimizers, _burn_schedulers
from ._burn_ids import identify
from ._burn_optimizers import HIGHEST_RANK, RANK, SLOTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ckptmigrate.format import Parts

    Names = Mapping[str, Tensor | Scalar]

MODEL_ONLY = "ckptmigrate migrate {folder} {folder}.new --sections model"
WIDEN = "ckptmigrate migrate {path} {stem}.new.bpk --dtype f32"
TENSOR_ERROR = "=== Tensor Operation Error ==="
RESTARTS = "loads without a word, and the optimizer starts anew"
SOME_RESTART = "loads without a word, and the state of some parameters starts anew"
RATE_RESTARTS = "loads without a word, and the scheduler starts anew at its initial rate"
SHOWN = 5
_GATE = re.compile(r"((?:.*\.)?)forget_gate\.((?:input|hidden)_transform\.(?:weight|bias))")
_COUNTS = {leaf for leaf, how in SLOTS.items() if how == SCALAR}


def diagnose(names: Names, section: str | None, parts: Parts) -> list[Symptom]:
    """Give the symptoms of one record: as what it is given, where a caller knows, else as what it is."""
    expected = parts.facts.get("expected") or section
    if expected == "model":
        return list(_model(names, section, parts))
    if expected == "optimizers":
        return list(_optimizer(names, parts))
    if expected == "schedulers" and "current" in parts.facts:
        return list(_scheduler(names, parts.facts.get("hints", {}).get("scheduler")))
    return []


# ---------------------------------------------------------------- model


def _model(names: Names, section: str | None, parts: Parts) -> Iterator[Symptom]:
    if section in {"optimizers", "schedulers"}:
        cause = f"a record of {section} is given as the model: none of the model's names is in it"
        yield Symptom(
            'Failed to load record: Validation("Missing tensors: […]")', cause, False, "ckptmigrate inspect {path}"
        )
        return
    if "current" not in parts.facts:
        yield from _coupled(names, parts)
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
    yield from _dtypes(names)


def _trained(parts: Parts) -> set[int]:
    """Give the ids of which the optimizer of the same epoch has state."""
    beside = parts.facts.get("beside", {}).get("optimizers")
    if beside is None or not _burn_optimizers.are_names(beside.tensors or {}):
        return set()
    return {_ident(text, today="current" in beside.facts) for text in _entries(beside.tensors or {})}


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
        found = _GATE.fullmatch(name)
        neighbour = None if found is None else names.get(f"{found[1]}input_gate.{found[2]}")
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


def _ident(text: str, *, today: bool) -> int:
    """Give the id that an optimizer's entry stands under: today's are numbers, older ones text that a release spelled."""
    return int(text) if today and text.isdecimal() else identify(text)


def _optimizer_paths(beside: Parts | None) -> set[str]:
    """Give the parameters that an optimizer's record names, where it is one."""
    if beside is None or not _burn_optimizers.are_names(beside.tensors or {}):
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


def _dtypes(names: Names) -> Iterator[Symptom]:
    found: dict[str, list[str]] = {}
    for name, tensor in names.items():
        if isinstance(tensor, Tensor) and tensor.promise.dtype.name in {"F16", "BF16", "F64"}:
            found.setdefault(tensor.promise.dtype.name, []).append(name)
    for dtype, those in found.items():
        cause = (
            f"{len(those)} tensors are {dtype} ({_some(those)}): Burn takes the file's element type over and says so nowhere; a model"
            " whose inputs are F32 panics in its first step"
        )
        yield Symptom(f"storage: dtype mismatch (expected {dtype}, got F32)", cause, True, WIDEN)


# ---------------------------------------------------------------- optimizer


def _optimizer(names: Names, parts: Parts) -> Iterator[Symptom]:
    today = "current" in parts.facts
    if _burn_optimizers.is_lbfgs(names):
        return
    if today and any(isinstance(value, Tensor) and value.id is None for value in names.values()):
        cause = "a tensor of it has no param_id: LBFGS's record, or a file that something else wrote"
        yield Symptom("Optimizer record tensors should carry a parameter id.", cause, False, MODEL_ONLY)
        return
    if not _burn_optimizers.are_names(names):
        what = "no tensor and no number" if not names else f"names that no optimizer has ({_some(list(names))})"
        yield Symptom(
            RESTARTS, f"it holds {what}: a model, a scheduler or nothing, given as the optimizer", True, MODEL_ONLY
        )
        return
    entries = _entries(names)
    paths = parts.facts.get("metadata", {})
    yield from _strangers(entries, parts, today=today)
    yield from _ranks(entries, paths)
    yield from _lacking(entries, paths)
    yield from _shapes(entries, paths, parts.facts.get("beside", {}).get("model"))


def _entries(names: Names) -> dict[str, dict[str, Tensor | Scalar]]:
    """Give the leaves of each parameter; names of none are ignored, as Burn does."""
    try:
        return _burn_optimizers._entries(names)  # noqa: SLF001 - the reader's own grouping, which must be the same
    except OptimizerError:
        known = {name.removesuffix(f".{RANK}") for name in names if name.endswith(f".{RANK}")}
        mine = {name: value for name, value in names.items() if any(name.startswith(f"{text}.") for text in known)}
        return _burn_optimizers._entries(mine)  # noqa: SLF001 - same


def _strangers(entries: Mapping[str, Any], parts: Parts, *, today: bool) -> Iterator[Symptom]:
    """Give entries whose ids no parameter of the model has."""
    model = parts.facts.get("beside", {}).get("model")
    tensors = [] if model is None else [t for t in (model.tensors or {}).values() if isinstance(t, Tensor)]
    if not tensors:
        return
    ids = {identify(tensor.id) for tensor in tensors if tensor.id is not None}
    mine = {_ident(text, today=today): text for text in entries}
    strange = [text for ident, text in mine.items() if ident not in ids]
    if not ids:
        cause = "the model's tensors have no param_id: Burn gives them new ones at each load, and no state finds its parameter"
        yield Symptom(RESTARTS, cause, True, MODEL_ONLY)
    elif len(strange) == len(mine):
        cause = "no id in it is one of the model's: it belongs to another model, and is saved again with every epoch"
        yield Symptom(RESTARTS, cause, True, MODEL_ONLY)
    elif strange:
        cause = f"{len(strange)} of {len(mine)} ids are none of the model's ({_some(strange)})"
        yield Symptom(SOME_RESTART, cause, True, "ckptmigrate migrate {folder} {folder}.new")


def _ranks(entries: Mapping[str, Any], paths: Mapping[str, str]) -> Iterator[Symptom]:
    for text, leaves in entries.items():
        rank = leaves.get(RANK)
        if not isinstance(rank, Scalar):
            continue
        shapes = [v.shape for leaf, v in leaves.items() if isinstance(v, Tensor) and SLOTS.get(leaf) == FOLLOWS]
        name = paths.get(text, text)
        if rank.value > HIGHEST_RANK:
            message = f"Unsupported tensor rank for optimizer state: {rank.value}"
            yield Symptom(
                message, f"{name} has {RANK} {rank.value}, and Burn has {HIGHEST_RANK} axes", False, MODEL_ONLY
            )
            return
        if any(len(shape) != rank.value for shape in shapes):
            cause = f"{name} has {RANK} {rank.value}, and state of shape {list(shapes[0])}: a panic while it loads"
            yield Symptom(TENSOR_ERROR, cause, False, MODEL_ONLY)
            return


def _lacking(entries: Mapping[str, Any], paths: Mapping[str, str]) -> Iterator[Symptom]:
    """Give the parameters of which a leaf is missing, misspelt or of the wrong kind, by what it is."""
    found: dict[str, list[str]] = {}
    for text, leaves in entries.items():
        if (fault := _fault(leaves)) is not None:
            found.setdefault(fault, []).append(paths.get(text, text))
    for fault, those in found.items():
        message = RESTARTS if len(those) == len(entries) else SOME_RESTART
        yield Symptom(message, f"{fault}: {_some(those)}", True, MODEL_ONLY)
    whole = [v for leaves in entries.values() for leaf, v in leaves.items() if isinstance(v, Tensor) and leaf in SLOTS]
    if any(value.promise.dtype.kind != "float" for value in whole):
        yield Symptom(
            "loads without a word, and casts the state to floats", "state is held in integers", True, MODEL_ONLY
        )


def _fault(leaves: Mapping[str, Tensor | Scalar]) -> str | None:
    present = leaves.keys() - {RANK, "weight_decay.grad_last_step"}
    if not present:
        return None
    for _, needed in _burn_optimizers._KINDS:  # noqa: SLF001 - the reader's own table, which must be the same
        if present & (needed - _COUNTS):
            missing = sorted(needed - present)
            if missing:
                return f"no {', '.join(missing)} beside {', '.join(sorted(present))}"
            wrong = [leaf for leaf in sorted(needed & _COUNTS) if not _counts(leaves[leaf])]
            return f"{wrong[0]} is no whole number from 0" if wrong else None
    return f"{', '.join(sorted(present))}, which are of no optimizer"


def _counts(value: Tensor | Scalar) -> bool:
    return isinstance(value, Scalar) and value.kind in {"uint", "int"} and value.value >= 0


def _shapes(entries: Mapping[str, Any], paths: Mapping[str, str], model: Parts | None) -> Iterator[Symptom]:
    """Give state of another shape than its parameter. A transposed matrix alone is right: some Linears are saved transposed."""
    tensors = [] if model is None else [t for t in (model.tensors or {}).values() if isinstance(t, Tensor)]
    by_id = {identify(t.id): tuple(t.shape) for t in tensors if t.id is not None}
    for text, leaves in entries.items():
        shapes = {tuple(v.shape) for leaf, v in leaves.items() if isinstance(v, Tensor) and SLOTS.get(leaf) == FOLLOWS}
        own = by_id.get(int(text) if text.isdecimal() else identify(text))
        alike = len(shapes) < 2 and (own is None or all(s == own or (len(s) == 2 and s[::-1] == own) for s in shapes))
        if not alike:
            listed = " and ".join(str(list(shape)) for shape in sorted(shapes))
            cause = f"{paths.get(text, text)} has state of shape {listed}, and is {list(own) if own else 'of one shape'}: it loads, and the first step panics"
            yield Symptom(TENSOR_ERROR, cause, True, MODEL_ONLY)
            return


# ---------------------------------------------------------------- scheduler


def _scheduler(names: Names, kind: str | None) -> Iterator[Symptom]:
    remedy = "ckptmigrate migrate {folder} {folder}.new --drop schedulers"
    if not _burn_schedulers.are_names(names):
        cause = f"it holds names that no scheduler has ({_some(list(names))})"
        yield Symptom(RATE_RESTARTS, cause, True, remedy)
        return
    bare = [name for name in names if not name.partition(".")[0].isdecimal()]
    if bare:
        cause = f"{_some(bare)} stands without the number of its group: Burn looks for 0.{bare[0]}"
        yield Symptom(RATE_RESTARTS, cause, True, "ckptmigrate migrate {path} {stem}.new.bpk")
        return
    wanted = set() if kind is None else {f"0.{name}" for name in _wanted(kind)}
    if wanted - names.keys():
        cause = f"the configuration beside it is of {kind}, which looks for {_some(sorted(wanted))}; here is {_some(list(names)) or 'nothing'}"
        yield Symptom(RATE_RESTARTS, cause, True, remedy if names else "")
    for name, value in names.items():
        yield from _misread(name, value, remedy)


def _wanted(kind: str) -> list[str]:
    """Give the names of a kind's numbers, without the group."""
    children = _burn_schedulers.said_children(kind)
    if children:
        return [f"{at}.{name}" for at, child in enumerate(children) for name in _wanted(child)]
    leaf = _burn_schedulers.LEAVES.get(kind)
    return [] if leaf is None else [leaf[0]]


def _misread(name: str, value: Tensor | Scalar, remedy: str) -> Iterator[Symptom]:
    leaf = name.rpartition(".")[2]
    wanted = next((how for each, how in _burn_schedulers.LEAVES.values() if each == leaf), None)
    if (
        not isinstance(value, Scalar) or wanted is None or leaf == "step"
    ):  # noam's is a float, a sequential one's a count
        return
    if value.kind == "bool" or (wanted != "float" and value.kind == "float"):
        yield Symptom(RATE_RESTARTS, f"{name} is {value.value} ({value.kind}), wanted is {wanted}", True, remedy)
    elif wanted == "uint" and value.value < 0:
        yield Symptom(RATE_RESTARTS, f"{name} is {value.value}, and counts from 0", True, remedy)
    elif wanted == "float" and value.kind != "float":
        cause = f"{name} is the whole number {value.value}: Burn takes it for the rate"
        yield Symptom("loads without a word, and goes on with a wrong rate", cause, True, remedy)


def _some(items: list[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more
