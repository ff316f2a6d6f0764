"""An optimizer's record, of any release, as entries and slots, and back.

    today   {id}.{leaf}            id in decimal; {id}.__rank for every parameter; metadata {id}: the parameter's path
    0.7-21  {id}.V1.Rank{D}.{leaf} the same leaves below the id's text; weight_decay.grad_last_step up to 0.8 (a step of the chain drops it)

=========  ===========================================================================  ==========================
kind       tensors, in the order in which they are declared                             scalars
=========  ===========================================================================  ==========================
sgd, muon  momentum.velocity, or none (sgd)
adam(w)    momentum.moment_1, momentum.moment_2, momentum.max_moment_2 (amsgrad)        momentum.time UInt
adagrad    lr_decay.sum                                                                 lr_decay.time UInt
rmsprop    square_avg.square_avg, centered.grad_avg (centred), centered.avg, momentum.buf
adan       momentum.exp_avg, .exp_avg_sq, .exp_avg_diff, .neg_pre_grad                  momentum.time UInt
lion       momentum
lamb       moment_1, moment_2                                                           time UInt
adafactor  second_moment, column_second_moment (rank 2 and more)                        time UInt
lbfgs      history_s.N, history_y.N, d, prev_flat_grad: of no parameter, without ids    *.len, g_iter UInt; t, prev_loss Float
=========  ===========================================================================  ==========================

Burn drops the state of a parameter of which a leaf is missing without a word, so a record of that kind is refused here; but a count
that is missing, as 0.4 and 0.5 wrote none for parameters of rank 2 and more, is taken from a caller.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckptmigrate.checkpoint import Optimizer, Param, Slot
from ckptmigrate.errors import OptimizerError, UsageError
from ckptmigrate.format import FOLLOWS, SCALAR, SHARED
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Scalar

from ._burn_ids import hashed, identify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.format import Parts

    Leaves = dict[str, Tensor | Scalar]

RANK = "__rank"
HIGHEST_RANK = 8  # today's reader panics above
DEEPEST = 4  # names in a leaf; those of Burn have up to two
STEPS = "steps"  # the fact of parts whose counts a caller told

SLOTS = {
    "momentum.velocity": FOLLOWS,  # sgd, muon
    "momentum.moment_1": FOLLOWS,  # adam, adamw
    "momentum.moment_2": FOLLOWS,
    "momentum.max_moment_2": FOLLOWS,
    "lr_decay.sum": FOLLOWS,  # adagrad
    "square_avg.square_avg": FOLLOWS,  # rmsprop
    "centered.grad_avg": FOLLOWS,
    "centered.avg": FOLLOWS,
    "momentum.buf": FOLLOWS,
    "momentum.exp_avg": FOLLOWS,  # adan
    "momentum.exp_avg_sq": FOLLOWS,
    "momentum.exp_avg_diff": FOLLOWS,
    "momentum.neg_pre_grad": FOLLOWS,
    "momentum": FOLLOWS,  # lion
    "moment_1": FOLLOWS,  # lamb
    "moment_2": FOLLOWS,
    "weight_decay.grad_last_step": FOLLOWS,  # sgd and adam of 0.7 and 0.8
    "momentum.time": SCALAR,
    "lr_decay.time": SCALAR,
    "time": SCALAR,
    RANK: SCALAR,
    **dict.fromkeys(("history_s", "history_y", "d", "prev_flat_grad", "t", "prev_loss", "g_iter"), SHARED),
}
"""Adafactor's second_moment and column_second_moment have shapes of their own, so they stand in no table."""

_ADAFACTOR = ("second_moment", "column_second_moment")
_ORDER = {leaf: at for at, leaf in enumerate((*SLOTS, *_ADAFACTOR))}
_COUNTS = {leaf for leaf, how in SLOTS.items() if how == SCALAR}

_KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("adam", frozenset({"momentum.moment_1", "momentum.moment_2", "momentum.time"})),
    ("adan", frozenset({"momentum.exp_avg", "momentum.exp_avg_sq", "momentum.exp_avg_diff", "momentum.neg_pre_grad", "momentum.time"})),
    ("rmsprop", frozenset({"square_avg.square_avg", "centered.avg"})),
    ("adagrad", frozenset({"lr_decay.sum", "lr_decay.time"})),
    ("lamb", frozenset({"moment_1", "moment_2", "time"})),
    ("adafactor", frozenset({"second_moment", "time"})),
    ("lion", frozenset({"momentum"})),
    ("sgd", frozenset({"momentum.velocity"})),
)  # fmt: skip
"""What an optimizer's entry must have. The first kind that has a leaf of an entry's is that entry's."""

_HISTORIES = ("history_s", "history_y")
_LBFGS = re.compile(r"history_[sy]\.(?:len|\d+)|d|prev_flat_grad|t|prev_loss|g_iter")
_OLD = re.compile(r"(?s:(.*?))\.V1\.Rank(\d)(?:\.(.+))?")
_DECIMAL = re.compile(r"0|[1-9]\d{0,19}")


def are_names(names: Mapping[str, Tensor | Scalar]) -> bool:
    """Say whether these are the names of an optimizer's record, today's or an older one's."""
    if is_lbfgs(names) or any(name.endswith(f".{RANK}") or _OLD.fullmatch(name) for name in names):
        return True
    return bool(names) and all(_key_by_leaf(name, value) is not None for name, value in names.items())


def is_lbfgs(names: Mapping[str, Any]) -> bool:
    """Say whether these are the names of a record that is not keyed by parameter."""
    return "g_iter" in names and all(_LBFGS.fullmatch(name) for name in names)


def checked(steps: int | None) -> int | None:
    """Give the steps that a caller says; UsageError where no optimizer with state can have made so many."""
    if steps is not None and not 1 <= steps < 1 << 63:
        raise UsageError(f"--steps {steps}: expected a count from 1")
    return steps


def unpack(names: Mapping[str, Tensor | Scalar], parts: Parts, steps: int | None = None) -> Optimizer:
    """Give an optimizer's entries in the order of the record; OptimizerError names an entry that Burn would drop in silence.

    ``steps``: of the entries that have state and no count.
    """
    if is_lbfgs(names):
        return Optimizer("lbfgs", groups=[{}], shared=_histories(names))
    ours = "burn" not in parts.facts.get("versions", {})
    paths = parts.facts.get("metadata", {})
    optimizer = Optimizer(groups=[{}])
    kinds: set[str] = set()
    ranks: set[int] = set()
    uncounted = 0
    for text, leaves in _entries(names).items():
        rank = _told_rank(leaves.pop(RANK, None), text)
        count = missing_count(leaves)
        if count is not None and steps is not None:
            leaves[count], uncounted = Scalar("uint", steps), uncounted + 1
        slots = {leaf: Slot(_number(leaf, value, text)) for leaf, value in leaves.items()}
        kinds.add(_kind(leaves, text))
        shape = next(
            (value.shape for leaf, value in leaves.items() if SLOTS.get(leaf) == FOLLOWS and isinstance(value, Tensor)),
            None,
        )
        if shape is None and rank is not None:
            slots[RANK] = Slot(rank)  # nothing else of the entry tells it
        ranks.add(len(shape) if shape is not None else int(rank.value) if rank is not None else 0)
        key: int | str = int(text) if ours and _DECIMAL.fullmatch(text) and int(text) < 1 << 64 else text
        path = paths.get(text)
        optimizer.params.append(Param(path, None if path is None else "file", key, 0, slots))
    if uncounted:
        parts.facts[STEPS] = steps
        some = f"{uncounted} of {len(optimizer.params)} parameters"
        parts.warnings.append(
            f"assumes that the optimizer made {steps} steps, as --steps says: of {some} nothing in the record tells it"
        )
    if len(kinds) == 1 and not (kinds == {"sgd"} and ranks == {2} and _moves(optimizer)):
        optimizer.kind = next(iter(kinds))  # muon's record is sgd's with momentum, and of matrices only
    return optimizer


def _told_rank(value: Tensor | Scalar | None, text: str) -> Scalar | None:
    if value is None:
        return None
    if not isinstance(value, Scalar) or value.kind not in {"uint", "int"} or not 0 <= value.value <= HIGHEST_RANK:
        raise OptimizerError(
            f"{text}.{RANK} is {_brief(value)}, expected 0 to {HIGHEST_RANK}", parameter=text, field=RANK
        )
    return value


def _moves(optimizer: Optimizer) -> bool:
    return any("momentum.velocity" in (param.slots or {}) for param in optimizer.params)


def _entries(names: Mapping[str, Tensor | Scalar]) -> dict[str, Leaves]:
    """Give the leaves of each parameter by its id's text, which may itself hold dots."""
    known = {name.removesuffix(f".{RANK}") for name in names if name.endswith(f".{RANK}")}
    entries: dict[str, Leaves] = {}
    for name, value in names.items():
        old = _OLD.fullmatch(name)
        if old is not None:
            entry = entries.setdefault(old[1], {})
            entry.setdefault(RANK, Scalar("uint", int(old[2])))
            if old[3] is not None:
                entry[old[3]] = value
            continue
        text = _key(name, value, known)
        if text is None:
            raise OptimizerError(f"{name} is of no parameter that the optimizer's record names", tensor=name)
        entries.setdefault(text, {})[name[len(text) + 1 :]] = value
    return entries


def known_entries(names: Mapping[str, Tensor | Scalar]) -> dict[str, Leaves]:
    """Give the leaves of each parameter by its id's text; names of none are ignored, as Burn does."""
    try:
        return _entries(names)
    except OptimizerError:
        known = {name.removesuffix(f".{RANK}") for name in names if name.endswith(f".{RANK}")}
        return _entries({n: value for n, value in names.items() if any(n.startswith(f"{text}.") for text in known)})


def _key(name: str, value: Tensor | Scalar, known: set[str]) -> str | None:
    for at in reversed(_dots(name)):
        if name[:at] in known:
            return name[:at]
    return _key_by_leaf(name, value)


def _dots(name: str) -> list[int]:
    """Give the last dots of a name, from the left: those that a leaf may stand behind."""
    found = [len(name)]
    while len(found) <= DEEPEST and (at := name.rfind(".", 0, found[-1])) >= 0:
        found.append(at)
    return found[:0:-1]


def _key_by_leaf(name: str, value: Tensor | Scalar) -> str | None:
    """Give the id's text of a name that no rank stands beside: the tensor's own id, or what stands before a leaf that we know."""
    if isinstance(value, Tensor) and value.id is not None:
        return str(value.id) if name.startswith(f"{value.id}.") else None
    return next((name[:at] for at in _dots(name) if name[at + 1 :] in _ORDER), None)


def _told(leaves: Mapping[str, Any]) -> tuple[str, frozenset[str]] | None:
    """Give the kind that an entry's leaves are of, and what one of that kind must have; None where they are of none."""
    for kind, needed in _KINDS:
        if leaves.keys() & (needed - _COUNTS) or (kind == "adafactor" and leaves.keys() & set(_ADAFACTOR)):
            return kind, needed
    return None


def missing_count(leaves: Mapping[str, Any]) -> str | None:
    """Give the one leaf that an entry lacks, if that is its count."""
    told = _told(leaves)
    missing = told[1] - leaves.keys() if told is not None else frozenset()
    return next(iter(missing)) if len(missing) == 1 and missing <= _COUNTS else None


def _kind(leaves: Mapping[str, Any], text: str) -> str:
    present = leaves.keys() - {"weight_decay.grad_last_step"}
    if not present:
        return "sgd"  # without momentum: nothing else has nothing
    told = _told(leaves)
    if told is not None:
        kind, needed = told
        missing = sorted(needed - present)
        if missing:
            remedy = "--steps N says how many steps the optimizer had made; " if missing_count(leaves) else ""
            raise OptimizerError(
                f"the state of parameter {text} has {', '.join(sorted(present))} and no {', '.join(missing)}:"
                " Burn would start it anew without a word",
                hint=f"{remedy}--drop optimizers goes on without the state",
                parameter=text,
                field=missing[0],
            )
        return kind
    raise OptimizerError(
        f"the state of parameter {text} has {', '.join(sorted(present))}, which no optimizer of this family has",
        hint="--drop optimizers goes on without the state",
        parameter=text,
    )


def _number(leaf: str, value: Tensor | Scalar, text: str) -> Tensor | Scalar:
    """Give a leaf as today's record has it: what counts is an unsigned integer, all else a tensor."""
    if leaf in _COUNTS:
        if isinstance(value, Scalar) and value.kind == "uint":
            return value
        number = value.value if isinstance(value, Scalar) and value.kind != "bool" else None
        if number is not None and number >= 0 and float(number).is_integer():
            return Scalar("uint", int(number))
        raise OptimizerError(f"{text}.{leaf} is {_brief(value)}, expected a count from 0", parameter=text, field=leaf)
    if (leaf in SLOTS or leaf in _ADAFACTOR) and not isinstance(value, Tensor):
        raise OptimizerError(f"{text}.{leaf} is {_brief(value)}, expected a tensor", parameter=text, field=leaf)
    return value


def _brief(value: Tensor | Scalar) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"{value.value} ({value.kind})"


def _histories(names: Mapping[str, Tensor | Scalar]) -> dict[str, Any]:
    """Give LBFGS's values, the histories as lists; their lengths are checked and stand for nothing else."""
    shared: dict[str, Any] = {}
    for history in _HISTORIES:
        length = names.get(f"{history}.len")
        listed = sum(name.startswith(f"{history}.") for name in names) - (length is not None)
        if length is not None and not (isinstance(length, Scalar) and length.value == listed):
            raise OptimizerError(f"{history} has {listed} tensors, and its length says {_brief(length)}", field=history)
        members = [names.get(f"{history}.{at}") for at in range(listed)]
        if not all(isinstance(member, Tensor) for member in members):
            raise OptimizerError(f"{history} has a gap among its {listed} tensors", field=history)
        shared[history] = members
    for name, value in names.items():
        if not name.startswith(_HISTORIES):
            if isinstance(value, Tensor) != (name in {"d", "prev_flat_grad"}):
                raise OptimizerError(f"{name} of LBFGS is {_brief(value)}", field=name)
            shared[name] = value
    return shared


# ---------------------------------------------------------------- back


def pack(optimizer: Optimizer, checkpoint: Checkpoint) -> tuple[Leaves, dict[str, str]]:
    """Give the names of today's record and its metadata, id -> path: parameters in the model's order, leaves as declared.

    An entry's id is the one of the model's tensor, where there is one; then its own; then xxh64 of its name.
    """
    if any(SLOTS.get(name) == SHARED for name in optimizer.shared):
        return _packed_histories(optimizer.shared), {}
    place = {name: at for at, name in enumerate(checkpoint.model)}
    params = sorted(
        (p for p in optimizer.params if p.slots is not None), key=lambda p: place.get(p.name or "", len(place))
    )
    found: Leaves = {}
    paths: dict[str, str] = {}
    for param in params:
        ident = _ident(param, checkpoint)
        if f"{ident}.{RANK}" in found:
            raise OptimizerError(f"two parameters have the id {ident}", parameter=param.name, id=ident)
        found[f"{ident}.{RANK}"] = Scalar("uint", _rank(param, checkpoint))
        if param.name is not None:
            paths[str(ident)] = param.name
        found.update(_packed(param, ident))
    return found, paths


def _ident(param: Param, checkpoint: Checkpoint) -> int:
    tensor = checkpoint.model.get(param.name or "")
    if tensor is not None:
        return identify(tensor.id) if tensor.id is not None else hashed(param.name or "")
    return identify(param.key) if isinstance(param.key, int | str) else hashed(param.name or "")


def _rank(param: Param, checkpoint: Checkpoint) -> int:
    tensor = checkpoint.model.get(param.name or "")
    slots = param.slots or {}
    shapes = [s.value.shape for leaf, s in slots.items() if leaf != RANK and isinstance(s.value, Tensor)]
    rank = slots.get(RANK)
    told = rank.value.value if rank is not None and isinstance(rank.value, Scalar) else None
    found = len(shapes[0]) if shapes else len(tensor.shape) if tensor is not None else told
    if found is None or not 0 <= found <= HIGHEST_RANK:
        raise OptimizerError(
            f"the state of {param.name or param.key} has rank {found}, expected 0 to {HIGHEST_RANK}",
            parameter=param.name,
        )
    return int(found)


def _packed(param: Param, ident: int) -> Iterator[tuple[str, Tensor | Scalar]]:
    slots = param.slots or {}
    for leaf in sorted(slots, key=lambda leaf: _ORDER.get(leaf, len(_ORDER))):
        value = slots[leaf].value
        if leaf == RANK:
            continue
        if isinstance(value, Tensor):
            yield f"{ident}.{leaf}", Tensor(value.promise, None, ident, value.quant)
        else:
            yield (
                f"{ident}.{leaf}",
                _scalar(f"{param.name or ident}.{leaf}", value, "uint" if leaf in _COUNTS else None),
            )


def _scalar(name: str, value: Any, wanted: str | None) -> Scalar:
    if isinstance(value, bool):
        value = Scalar("bool", value)
    elif isinstance(value, int | float):
        value = Scalar("float" if isinstance(value, float) else "int" if value < 0 else "uint", value)
    if not isinstance(value, Scalar) or (wanted is not None and value.kind != wanted):
        raise OptimizerError(f"{name} is {value!r}, which a record of this family does not hold", field=name)
    return value


def _packed_histories(shared: Mapping[str, Any]) -> Leaves:
    found: Leaves = {}
    for history in _HISTORIES:
        members = shared.get(history, [])
        found[f"{history}.len"] = Scalar("uint", len(members))
        found.update((f"{history}.{at}", Tensor(member.promise)) for at, member in enumerate(members))
    for name in ("d", "prev_flat_grad"):
        if isinstance(shared.get(name), Tensor):
            found[name] = Tensor(shared[name].promise)
    for name, kind in (("t", "float"), ("prev_loss", "float"), ("g_iter", "uint")):
        if shared.get(name) is not None:
            found[name] = _scalar(name, shared[name], kind)
    return found
