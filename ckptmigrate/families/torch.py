"""PyTorch: optimizer and scheduler state (`torch.optim`), turned into ours and back.

An optimizer's state dict::

    {"state":        {id: {"step": tensor(5.), "exp_avg": tensor, …}},      parameters without gradient are absent
     "param_groups": [{"param_names": [name, …], "lr": 0.1, …, "params": [id, …]}]}

============  ==========================================================================================================
``id``        index 0, 1, … in the order of the groups since 1.6; the address of the parameter up to 1.5; its name in files of
              FSDP and DCP. torch matches by position in the concatenated ``params`` and never looks at the value.
param_names   since 2.6, where the optimizer was built from named parameters; stands before the other fields
``step``      int up to 1.11 (Adadelta, RMSprop, Rprop to 2.3), a float32 scalar tensor since; it is read as it stands
None          SGD without momentum stores ``momentum_buffer: None`` from 1.8 to 2.3
LBFGS         has one entry, that of the first parameter, which belongs to no parameter
============  ==========================================================================================================

In memory ``Optimizer.shared`` holds the fields of LBFGS, under "state" entries of parameters that no group has, and what else
the state dict has at its top. Sources: torch/optim/optimizer.py and each optimizer's file, 1.0 to 2.13; formats/torch.md 11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.checkpoint import Optimizer, Param, Slot
from ckptmigrate.errors import OptimizerError
from ckptmigrate.format import FACTORED, FLAT, FOLLOWS, SCALAR, SHARED, Family, Parts
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Known

if TYPE_CHECKING:
    from collections.abc import Collection

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.values import Tree

_LBFGS = ("func_evals", "n_iter", "d", "t", "old_dirs", "old_stps", "ro", "H_diag", "prev_flat_grad", "prev_loss", "al")

SLOTS = {
    "step": SCALAR,
    "mu_product": SCALAR,  # NAdam
    "eta": SCALAR,  # ASGD
    "mu": SCALAR,  # ASGD
    "momentum_buffer": FOLLOWS,  # SGD, RMSprop, Muon
    "exp_avg": FOLLOWS,  # Adam and its kin, Lion
    "exp_avg_sq": FOLLOWS,
    "max_exp_avg_sq": FOLLOWS,
    "exp_inf": FOLLOWS,  # Adamax
    "sum": FOLLOWS,  # Adagrad
    "ax": FOLLOWS,  # ASGD
    "square_avg": FOLLOWS,  # RMSprop, Adadelta
    "grad_avg": FOLLOWS,
    "acc_delta": FOLLOWS,
    "prev": FOLLOWS,  # Rprop
    "step_size": FOLLOWS,
    "variance": FLAT,  # Adafactor, of a vector; of everything else it has the next two
    "row_var": FACTORED,
    "col_var": FACTORED,
    **dict.fromkeys(_LBFGS, SHARED),
}

_NEEDS_STEP = ({"exp_avg", "exp_avg_sq"}, {"exp_avg", "exp_inf"}, {"square_avg"}, {"ax", "eta"}, {"prev", "step_size"})
"""Slots whose optimizer reads ``step`` at its next step and dies with KeyError: 'step' without it. (Lion and Muon have none.)"""

_STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}


def unpack(section: str, parts: Parts, options: Any) -> Optimizer | Tree | None:
    """Give an Optimizer or a scheduler's tree; None for what is neither.

    ``section`` is "optimizers" or "schedulers"; ``parts.tree`` is the value. OptimizerError names a parameter that
    lacks the ``step`` its optimizer needs.
    """
    del options
    tree = parts.tree
    if section == "optimizers":
        return _optimizer(tree) if _is_optimizer(tree) else None
    if section == "schedulers":
        return tree if _is_scheduler(tree) else None
    return None


def pack(section: str, value: Any, checkpoint: Checkpoint) -> Parts:
    """Give what ``load_state_dict`` of torch's optimizer or scheduler takes.

    Parameters are 0, 1, … in the order of the groups; where the file is written back as it was (``origin.places``) and called
    its parameters by name, it calls them so again. Names from a file stand beside them as ``param_names``.
    """
    if section == "optimizers":
        return Parts(family="torch", tree=_packed(value, keep=bool(checkpoint.origin.places)))
    return Parts(family="torch", tree=value)


def section(parts: Parts) -> str | None:
    """Tell an optimizer's or a scheduler's file from the rest, for a file alone; tensors by name are a model."""
    if parts.tensors is not None:
        return "model"
    if _is_optimizer(parts.tree):
        return "optimizers"
    if _is_scheduler(parts.tree) and not any(isinstance(v, Tensor | dict) for v in parts.tree.values()):
        return "schedulers"
    return None


def is_buffer(name: str, tensor: Tensor) -> bool:
    """Say whether a tensor of the model is no parameter: by its role, else running statistics and what has no gradient."""
    if tensor.role is not None:
        return tensor.role == "buffer"
    return name.rpartition(".")[2] in _STATISTICS or tensor.promise.dtype.kind not in {"float", "complex"}


def supplies(name: str, present: Collection[str]) -> tuple[int, str] | None:
    """Give what a name starts as that older releases did not have: the counter that BatchNorm has since 0.4.1, beside its statistics."""
    module, dot, leaf = name.rpartition(".")
    beside = f"{module}{dot}running_var"
    return (0, beside) if leaf == "num_batches_tracked" and beside in present else None


def _mapping(tree: Tree) -> dict[Any, Any] | None:
    """Give the items of a dict, also of one that torch pickled as a defaultdict."""
    if isinstance(tree, Known) and tree.path == "collections.defaultdict" and tree.args:
        tree = next((arg for arg in tree.args if isinstance(arg, dict)), None)
    return tree if isinstance(tree, dict) else None


def _is_optimizer(tree: Tree) -> bool:
    if not isinstance(tree, dict) or not isinstance(tree.get("param_groups"), list):
        return False
    state = _mapping(tree.get("state"))
    if state is None or not all(isinstance(entry, dict) for entry in state.values()):
        return False
    groups = tree["param_groups"]
    return all(isinstance(g, dict) and isinstance(g.get("params"), list | tuple) for g in groups) and all(
        isinstance(key, int | str) for g in groups for key in g["params"]
    )


def _is_scheduler(tree: Tree) -> bool:
    return isinstance(tree, dict) and "last_epoch" in tree and "params" not in tree


def _optimizer(tree: dict[str, Any]) -> Optimizer:
    state = dict(_mapping(tree["state"]) or {})
    result = Optimizer(groups=[])
    keys = [key for group in tree["param_groups"] for key in group["params"]]
    _take_shared(state, keys, result)
    for number, group in enumerate(tree["param_groups"]):
        names = group.get("param_names")
        named = (
            isinstance(names, list | tuple)
            and len(names) == len(group["params"])
            and all(isinstance(n, str) for n in names)
        )
        for index, key in enumerate(group["params"]):
            name = names[index] if named else key if isinstance(key, str) else None
            entry = state.pop(key, None)
            slots = None if entry is None else {str(slot): Slot(value) for slot, value in entry.items()}
            if slots is not None:
                _check_step(slots, group, key, len(result.params))
            result.params.append(Param(name, None if name is None else "file", key, number, slots))
        hidden = {"params", "param_names"} if named else {"params"}
        result.groups.append({k: v for k, v in group.items() if k not in hidden})
    if state:
        result.shared["state"] = state
    result.shared.update({k: v for k, v in tree.items() if k not in {"state", "param_groups"}})
    return result


def _take_shared(state: dict[Any, Any], keys: list[Any], result: Optimizer) -> None:
    """LBFGS keeps the state of all parameters in the entry of the first; it follows none of them."""
    first = state.get(keys[0]) if keys else None
    if first and "func_evals" in first:
        result.shared.update({name: value for name, value in first.items() if name in _LBFGS})
        rest = {name: value for name, value in first.items() if name not in _LBFGS}
        state.pop(keys[0])
        if rest:
            state[keys[0]] = rest


def _check_step(slots: dict[str, Slot], group: dict[str, Any], key: Any, position: int) -> None:
    if "step" not in slots and "step" not in group and any(needs <= set(slots) for needs in _NEEDS_STEP):
        raise OptimizerError(
            f"optimizer state of parameter {key if isinstance(key, str) else position} has {', '.join(slots)} and no step",
            hint="the file was stripped: --drop optimizers goes on without its state",
            parameter=key,
            field="step",
        )


def _packed(optimizer: Optimizer, *, keep: bool) -> dict[str, Any]:
    by_name = keep and bool(optimizer.params) and all(isinstance(param.key, str) for param in optimizer.params)
    order = sorted(range(len(optimizer.params)), key=lambda i: optimizer.params[i].group)
    keys = {i: (optimizer.params[i].name or optimizer.params[i].key) if by_name else n for n, i in enumerate(order)}
    state: dict[Any, Any] = {}
    shared = dict(optimizer.shared)
    lbfgs = {name: shared.pop(name) for name in optimizer.shared if SLOTS.get(name) == SHARED}
    if lbfgs:
        state[keys[order[0]] if order else 0] = lbfgs
    for i in order:
        slots = optimizer.params[i].slots
        if slots is not None:
            state[keys[i]] = state.get(keys[i], {}) | {name: slot.value for name, slot in slots.items()}
    state.update(shared.pop("state", {}))
    groups = []
    for number, group in enumerate(optimizer.groups):
        members = [i for i in order if optimizer.params[i].group == number]
        named = [optimizer.params[i].name for i in members if optimizer.params[i].by == "file"]
        names = {"param_names": named} if members and len(named) == len(members) and not by_name else {}
        groups.append({**names, **group, "params": [keys[i] for i in members]})
    return {"state": state, "param_groups": groups, **shared}


FAMILY = Family(
    "torch",
    unpack=unpack,
    pack=pack,
    section=section,
    slots=SLOTS,
    is_buffer=is_buffer,
    supplies=supplies,
    target="safetensors",
    neutral=True,
    about="optimizer and scheduler state of PyTorch 1.0 and later",
)
