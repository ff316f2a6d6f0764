"""Making a checkpoint fit a model, and saying where it does not.

    mended     names that lost a number, what a family says may go or starts as something, a second name of one tensor
    compared   missing, unexpected, misshapen: all at once, each with its closest candidates; one of them, and nothing more is done
    taken over roles, dtypes, the order; optimizers are named, and stand in the order of the model's own

Everything goes through the engine, so that twins, optimizer state, ids and ledger follow. Success means that the model loads it
strictly.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

from ckptmigrate import engine, naming
from ckptmigrate.errors import OptimizerError
from ckptmigrate.marks import with_state
from ckptmigrate.store import owners

from . import dtypes, given
from .closest import Pool
from .numbers import lost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.engine import Ties
    from ckptmigrate.format import Family, GatherOptions, Like, Wanted
    from ckptmigrate.operations import Operation
    from ckptmigrate.tensor import Shape, Tensor

    Apply = Callable[[Sequence[Operation]], list[str]]


class Spelled(Protocol):
    """What has a dtype and a shape: a tensor, and what one must be."""

    @property
    def dtype(self) -> object:
        """The element type."""

    @property
    def shape(self) -> Shape:
        """The lengths of the axes."""


def fit(checkpoint: Checkpoint, family: Family, options: GatherOptions, *, ties: Ties, said: str | None) -> list[str]:
    """Make a checkpoint fit the wanted model ``options.like``, in place; give what does not fit, in which case little was changed.

    ``said``: what the call says of dtypes, which then counts for floating tensors; None: they become those of the model.
    """
    like = options.like
    if like is None:
        return []
    if not checkpoint.model:
        checkpoint.ledger.warnings.append(f"there is no model here that {like.name} could be compared with")
        return []
    apply = functools.partial(
        engine.apply_operations, checkpoint, family=family, origin=f"--like {like.name}", ties=ties
    )
    problems = _mend(checkpoint, like, family, apply)
    problems += _differences(checkpoint, like)
    if problems:
        return problems
    owners.lend_roles(checkpoint, like)
    problems += _name(checkpoint, family, options) + _misnamed(checkpoint, like)
    problems += dtypes.take_over(checkpoint, like, said)
    if problems:
        return problems
    for index in range(len(checkpoint.optimizers)):
        owners.confirm(checkpoint, index, family, like)
    same = list(like.tensors) == list(checkpoint.model)
    if like.declared and not same:
        problems += apply([given.Arranged(tuple(like.tensors))])
    elif not same:
        checkpoint.ledger.notes.append(
            f"{like.name} sorts its names, so their order says nothing of the model's, and is not taken over"
        )
    _order_optimizers(checkpoint, like)
    if not problems:
        checkpoint.ledger.settle()
    return problems


def unsaid(checkpoint: Checkpoint, before: Collection[str]) -> list[str]:
    """Give what nobody has said of a model whose names are no longer what they were: that it declares them in this order.

    It matters where an optimizer has state and matches by position, not by id. ``before``: the model's names as they were read.
    """
    stated = any(param.slots for optimizer in checkpoint.optimizers for param in optimizer.params)
    numbered = any(tensor.id is not None for tensor in checkpoint.model.values())
    if not stated or numbered or list(before) == list(checkpoint.model):
        return []
    return [
        "the model is assumed to declare its parameters in the order in which they stand now; --like FILE makes sure"
    ]


def _mend(checkpoint: Checkpoint, like: Like, family: Family, apply: Apply) -> list[str]:
    """Do to names what is certain: each change is noted, and two readings of one name are a problem."""
    notes, wanted = checkpoint.ledger.notes, like.tensors
    moves, doubts = lost(_beyond(checkpoint.model, wanted), _beyond(wanted, checkpoint.model))
    problems = [
        f"--like {like.name}: two readings: {short} lost a number, and could be {' or '.join(names)}; --rename says which"
        for short, names in doubts.items()
    ]
    if moves:
        old, new = next(iter(moves.items()))
        more = f", and {len(moves) - 1} more" if len(moves) > 1 else ""
        notes.append(f"{old} is {new} in {like.name}: its name had lost a number{more}")
        problems += apply([given.renamed(moves)])
    trained = with_state(checkpoint)
    reasons: dict[str, list[str]] = {}
    for name in _beyond(checkpoint.model, wanted):
        reason = None if name in trained else family.spares(name, wanted.keys(), checkpoint)
        if reason is not None:
            reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        checkpoint.ledger.warnings.append(f"{', '.join(names)} of no use to {like.name}: {reason}")
        problems += apply([given.dropped(names, reason)])
    problems += apply(_seconds(checkpoint, like))
    return problems + apply(_starts(checkpoint, like, family))


def _seconds(checkpoint: Checkpoint, like: Like) -> list[Operation]:
    """Give the second names of tensors that the model has under two, and the checkpoint under one."""
    holders: dict[str, str] = {}
    for name, wanted in like.tensors.items():
        if name in checkpoint.model:
            holders.setdefault(wanted.tied, name)
    operations: list[Operation] = []
    for name in _beyond(like.tensors, checkpoint.model):
        to = holders.get(like.tensors[name].tied)
        if to is not None:
            checkpoint.ledger.notes.append(f"{name} is {to}, as {like.name} has it")
            operations.append(given.tied(name, to))
    return operations


def _starts(checkpoint: Checkpoint, like: Like, family: Family) -> list[Operation]:
    """Give the tensors that older releases did not have, and that start as one value."""
    operations: list[Operation] = []
    for name in _beyond(like.tensors, checkpoint.model):
        start = family.supplies(name, checkpoint.model.keys())
        if start is not None:
            value, near = start
            checkpoint.ledger.notes.append(f"{name} is not in the file: it starts as {value}, as {like.name} has it")
            operations.append(given.added(name, near, value, like.tensors[name]))
    return operations


def _beyond(these: Mapping[str, Tensor | Wanted], those: Mapping[str, Tensor | Wanted]) -> dict[str, Shape]:
    """Give the shapes of the names that only the first has."""
    return {name: tuple(each.shape) for name, each in these.items() if name not in those}


def _differences(checkpoint: Checkpoint, like: Like) -> list[str]:
    """Give what is missing, unexpected and misshapen."""
    model, wanted, lead = checkpoint.model, like.tensors, f"--like {like.name}"
    missing, unexpected = _beyond(wanted, model), _beyond(model, wanted)
    mine, theirs = Pool(unexpected), Pool(missing)
    found = [f"{lead}: missing: {_told(n, wanted[n])}{mine.closest(n, shape)}" for n, shape in missing.items()]
    found += [f"{lead}: unexpected: {_told(n, model[n])}{theirs.closest(n, shape)}" for n, shape in unexpected.items()]
    for name, must in wanted.items():
        shape = tuple(model[name].shape) if name in model else must.shape
        if shape != must.shape:
            turned = ", which is its transpose" if shape == must.shape[::-1] else ""
            found.append(
                f"{lead}: misshapen: {name} is {list(shape)}, expected {list(must.shape)}{turned}{mine.closest(name, must.shape, alike=False)}"
            )
    if like.others is not None:
        held = checkpoint.values.get("model")
        present = set(held) if isinstance(held, dict) else set()
        found += [f"{lead}: missing: {name}, which is no tensor" for name in sorted(like.others - present)]
        found += [f"{lead}: unexpected: {name}, which is no tensor" for name in sorted(present - like.others)]
    return found


def _told(name: str, each: Spelled) -> str:
    return f"{name} {each.dtype} {list(each.shape)}"


def _name(checkpoint: Checkpoint, family: Family, options: GatherOptions) -> list[str]:
    """Name the optimizers that are still nameless, now that the model has the names of the wanted one."""
    problems = []
    for index, optimizer in enumerate(checkpoint.optimizers):
        if optimizer.params and all(param.name is None for param in optimizer.params):
            try:
                owners.name_by_position(checkpoint, index, family, options)
                naming.check_names(optimizer, checkpoint.model, family.slots)
            except OptimizerError as error:
                problems.append(f"optimizer {index}: {error.message}")
    return problems


def _misnamed(checkpoint: Checkpoint, like: Like) -> list[str]:
    """Give the optimizers whose entries only an assumed order named, and the model shows that it was another."""
    problems = []
    lists = dict(enumerate(like.optimizers))
    same_order = [name for name in like.tensors if name in checkpoint.model] == list(checkpoint.model)
    for index, optimizer in enumerate(checkpoint.optimizers):
        assumed = [str(param.name) for param in optimizer.params if param.by == "order"]
        buffers = [name for name in assumed if like.tensors[name].role == "buffer"]
        told = [name for group in lists.get(index, ()) for name in group]
        wrong = None
        if buffers:
            wrong = f"has state that was taken for that of {buffers[0]}, which is a buffer there"
        elif same_order and assumed != told and sorted(assumed) == sorted(told):
            wrong = "was taken to be in the order of the model, and its own optimizer has another order"
        if wrong is not None:
            problems.append(f"--like {like.name}: optimizer {index} {wrong}; name its parameters with --params FILE")
    return problems


def _order_optimizers(checkpoint: Checkpoint, like: Like) -> None:
    """Let entries stand as in the model's own optimizers, whose loaders match by position; by id where there are ids."""
    if any(tensor.id is not None for tensor in checkpoint.model.values()):
        return
    for index, (optimizer, lists) in enumerate(zip(checkpoint.optimizers, like.optimizers, strict=False)):
        names = [param.name for param in optimizer.params]
        wanted = [name for group in lists for name in group]
        if not lists or None in names or names == wanted:
            continue
        groups = [{p.name for p in optimizer.params if p.group == number} for number in range(len(optimizer.groups))]
        if groups != [set(group) for group in lists]:
            checkpoint.ledger.warnings.append(
                f"optimizer {index}: its groups are not those of the optimizer of {like.name}, which may refuse it; they are kept"
            )
            continue
        place = {name: position for position, name in enumerate(names)}
        owners.reorder(checkpoint, index, [place[name] for name in wanted])
