"""What Burn says of records that open, or does with them in silence: names, kinds and ids that its loaders look for.

The loader of a model is strict, those of optimizers and schedulers are not: what they do not find restarts without a word. What comes
in ``parts.facts``: "expected", the section as which a file is given; "beside", section -> parts of the other files of its epoch;
"others", epoch -> parts of the model of other epochs; "hints", what the files around a run tell. "current" has only a burnpack.
Sources: formats/burn.md 5.3, 6.2, 8.2 and 8.3, and runs of 0.22.1 (fixtures/burn/learner).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.format import FOLLOWS, SCALAR, Symptom
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Scalar

from . import _burn_optimizers, _burn_schedulers
from ._burn_ids import identify
from ._burn_model_symptoms import TENSOR_ERROR, model, shared, some, told_id
from ._burn_optimizers import HIGHEST_RANK, RANK, SLOTS, known_entries, missing_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptmigrate.format import Parts

    Names = Mapping[str, Tensor | Scalar]

MODEL_ONLY = "ckptmigrate migrate {folder} {folder}.new --sections model"
COUNTED = "ckptmigrate migrate {path} {stem}.new.bpk --steps N"
RESTARTS = "loads without a word, and the optimizer starts anew"
SOME_RESTART = "loads without a word, and the state of some parameters starts anew"
RATE_RESTARTS = "loads without a word, and the scheduler starts anew at its initial rate"
_COUNTS = {leaf for leaf, how in SLOTS.items() if how == SCALAR}


def diagnose(names: Names, section: str | None, parts: Parts) -> list[Symptom]:
    """Give the symptoms of one record: as what it is given, where a caller knows, else as what it is."""
    expected = parts.facts.get("expected") or section
    if expected == "model":
        return list(model(names, section, parts))
    if expected == "optimizers":
        return list(_optimizer(names, parts))
    if expected == "schedulers" and "current" in parts.facts:
        return list(_scheduler(names, parts.facts.get("hints", {}).get("scheduler")))
    return []


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
        what = "no tensor and no number" if not names else f"names that no optimizer has ({some(list(names))})"
        yield Symptom(
            RESTARTS, f"it holds {what}: a model, a scheduler or nothing, given as the optimizer", True, MODEL_ONLY
        )
        return
    entries = known_entries(names)
    paths = parts.facts.get("metadata", {})
    yield from _strangers(entries, parts, today=today)
    yield from _ranks(entries, paths)
    yield from _lacking(entries, paths)
    yield from _shapes(entries, paths, _tensors(parts))


def _strangers(entries: Mapping[str, Any], parts: Parts, *, today: bool) -> Iterator[Symptom]:
    """Give entries whose ids no parameter of the model has."""
    tensors = _tensors(parts)
    if not tensors:
        return
    ids = {identify(tensor.id) for tensor in tensors.values() if tensor.id is not None}
    mine = {told_id(text, today=today): text for text in entries}
    strange = [text for ident, text in mine.items() if ident not in ids]
    if not ids:
        cause = "the model's tensors have no param_id: Burn gives them new ones at each load, and no state finds its parameter"
        yield Symptom(RESTARTS, cause, True, MODEL_ONLY)
    elif len(strange) == len(mine):
        cause = "no id in it is one of the model's: it belongs to another model, and is saved again with every epoch"
        yield Symptom(RESTARTS, cause, True, MODEL_ONLY)
    elif strange:
        cause = f"{len(strange)} of {len(mine)} ids are none of the model's ({some(strange)})"
        torn = mine.keys() & shared(tensors.items()).keys()  # then nobody knows whose state the rest is
        yield Symptom(SOME_RESTART, cause, True, MODEL_ONLY if torn else "ckptmigrate migrate {folder} {folder}.new")


def _tensors(parts: Parts) -> dict[str, Tensor]:
    """Give the tensors of the model beside."""
    beside = parts.facts.get("beside", {}).get("model")
    found = {} if beside is None else beside.tensors or {}
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


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
    """Give the parameters of which a leaf is missing, misspelt or of the wrong kind, by what it is.

    Where all that is missing are counts, a caller may know them.
    """
    found: dict[str, list[str]] = {}
    counts = True
    for text, leaves in entries.items():
        if (fault := _fault(leaves)) is not None:
            found.setdefault(fault, []).append(paths.get(text, text))
            counts = counts and missing_count(leaves) is not None
    remedy = COUNTED if counts else MODEL_ONLY
    for fault, those in found.items():
        message = RESTARTS if len(those) == len(entries) else SOME_RESTART
        steps = "; --steps N says how many steps the optimizer had made, batches and not epochs" if counts else ""
        yield Symptom(message, f"{fault}: {some(those)}{steps}", True, remedy)
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


def _shapes(entries: Mapping[str, Any], paths: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Iterator[Symptom]:
    """Give state of another shape than its parameter. A transposed matrix alone is right: some Linears are saved transposed."""
    torn = shared(tensors.items())
    by_id = {identify(t.id): tuple(t.shape) for t in tensors.values() if t.id is not None}
    by_id = {ident: shape for ident, shape in by_id.items() if ident not in torn}
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
        cause = f"it holds names that no scheduler has ({some(list(names))})"
        yield Symptom(RATE_RESTARTS, cause, True, remedy)
        return
    bare = [name for name in names if not name.partition(".")[0].isdecimal()]
    if bare:
        cause = f"{some(bare)} stands without the number of its group: Burn looks for 0.{bare[0]}"
        yield Symptom(RATE_RESTARTS, cause, True, "ckptmigrate migrate {path} {stem}.new.bpk")
        return
    wanted = set() if kind is None else {f"0.{name}" for name in _wanted(kind)}
    if wanted - names.keys():
        cause = f"the configuration beside it is of {kind}, which looks for {some(sorted(wanted))}; here is {some(list(names)) or 'nothing'}"
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
