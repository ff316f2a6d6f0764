"""Whose state an optimizer's entries are: by the ids of the file, by a caller's lists, or by the model's order; and the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ckptmigrate import naming
from ckptmigrate.checkpoint import Progress
from ckptmigrate.errors import CheckpointError, OptimizerError
from ckptmigrate.values import spell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.checkpoint import Checkpoint, How, Optimizer
    from ckptmigrate.format import Family, GatherOptions, Like
    from ckptmigrate.tensor import Shape, Tensor

ORPHAN = "its parameter is not the model's"
DECLARED = "declared"  # fact of an origin: the model's order is its own, and not one that its container made
NUMBERED = (
    "numbered"  # fact of an origin: a caller has given an epoch, or another meaning of one, that its files do not tell
)


def number(checkpoint: Checkpoint, options: GatherOptions) -> None:
    """Give the epoch that a caller says to a checkpoint that has none, and the meaning that a caller says to any."""
    progress = checkpoint.progress
    told = (progress.epoch, progress.counts)
    if options.epoch is not None and progress.epoch is None:
        checkpoint.progress = Progress(options.epoch, progress.counts, progress.step, progress.best)
    if options.epoch_means is not None:
        checkpoint.progress.counts = options.epoch_means
    if (checkpoint.progress.epoch, checkpoint.progress.counts) != told:
        checkpoint.origin.facts[NUMBERED] = True


def identify(checkpoint: Checkpoint, family: Family) -> None:
    """Turn the ids of the file into those of the family, and name optimizer entries by them: one function for both.

    A name that the optimizer's own file tells counts only where no id of the model decides.
    """
    if family.identify is None:
        return
    for members in (checkpoint.model, *checkpoint.twins.values()):
        for name, tensor in members.items():
            if tensor.id is not None:
                members[name] = replace(tensor, id=family.identify(tensor.id))
    holders = _holders(checkpoint)
    for optimizer in checkpoint.optimizers:
        for param in optimizer.params:
            if param.by not in {None, "file"} or not isinstance(param.key, int | str):
                continue
            told = checkpoint.model.get(param.name or "")
            candidates = holders.get(family.identify(param.key), [])
            if len(candidates) > 1:
                raise _torn(checkpoint, candidates)
            if candidates or (holders and (told is None or told.id is not None)):
                param.name, param.by = (candidates[0], "file") if candidates else (None, None)


def _holders(checkpoint: Checkpoint) -> dict[int | str, list[str]]:
    """Give the first name of each id. Tensors of one id and one shape are one parameter that was written twice; others are several."""
    holders: dict[int | str, list[str]] = {}
    for name, tensor in checkpoint.model.items():
        if tensor.id is not None:
            known = holders.setdefault(tensor.id, [])
            if not any(_alike(checkpoint.model[first], tensor) for first in known):
                known.append(name)
    return holders


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape)


def _torn(checkpoint: Checkpoint, candidates: Sequence[str]) -> CheckpointError:
    """Give the refusal of state whose id is that of several parameters."""
    tensors = [checkpoint.model[name] for name in candidates]
    return CheckpointError(
        f"{' and '.join(candidates)} have one id, {tensors[0].id}, and are"
        f" {' and '.join(f'{t.dtype} {list(t.shape)}' for t in tensors)}: an optimizer's state is of that id",
        candidates=list(candidates),
        id=tensors[0].id,
        hint="--drop optimizers goes on without its state",
    )


def warn_of_shared_ids(checkpoint: Checkpoint) -> None:
    """Say which ids stand for several parameters and are of no state. They stay as the file has them: its framework loads them so."""
    shared = {ident: names for ident, names in _holders(checkpoint).items() if len(names) > 1}
    if shared:
        ident, names = next(iter(shared.items()))
        more = f" (and so do others: {len(shared)} ids are of several parameters)" if len(shared) > 1 else ""
        checkpoint.ledger.warnings.append(
            f"{' and '.join(names)} have one id, {ident}{more}: kept as they are, because no optimizer's state is of it; a program"
            " that tells parameters apart by id loads them and cannot train them"
        )


def name_optimizers(checkpoint: Checkpoint, family: Family, options: GatherOptions, *, recorded: bool) -> None:
    """Name the optimizers' entries, take out orphans, and say what is assumed, what is nameless and what has no state yet.

    ``recorded``: our record has named them or left them nameless, so that nothing is assumed anew.
    """
    lists = list(options.params or ())
    groups = sum(len(optimizer.groups) for optimizer in checkpoint.optimizers)
    if lists and len(lists) != groups:
        raise OptimizerError(
            f"{len(lists)} lists of names for {groups} groups of {len(checkpoint.optimizers)} optimizers"
        )
    if options.like is not None:
        lend_roles(checkpoint, options.like)
    if not recorded:
        identify(checkpoint, family)
    for index, optimizer in enumerate(checkpoint.optimizers):
        own = [lists.pop(0) for _ in optimizer.groups] if lists else None
        try:
            _name_one(checkpoint, index, family, own, recorded=recorded, options=options)
        except OptimizerError as error:
            error.message = f"{_called(checkpoint, index)}: {error.message}"
            which = f"optimizers.{index}" if len(checkpoint.optimizers) > 1 else "optimizers"
            error.add_note(f"--drop {which} goes on without its state")
            raise


def _called(checkpoint: Checkpoint, index: int) -> str:
    place = checkpoint.origin.places.get(f"optimizers.{index}")
    where = "" if place is None else "/".join(filter(None, (place.file, spell(place.path))))
    return f"optimizer {index} ({where})" if where else f"optimizer {index}"


def _name_one(
    checkpoint: Checkpoint,
    index: int,
    family: Family,
    lists: Sequence[Sequence[str]] | None,
    *,
    recorded: bool,
    options: GatherOptions,
) -> None:
    optimizer, notes = checkpoint.optimizers[index], checkpoint.ledger.notes
    called = f"optimizer {index}"
    if lists is not None:
        naming.from_lists(optimizer, lists)
    stated = sum(param.slots is not None for param in optimizer.params)
    if stated < len(optimizer.params) and not optimizer.shared:
        notes.append(f"{called}: {stated} of {len(optimizer.params)} parameters have state")
    if not checkpoint.model or not optimizer.params:
        return
    by_id = family.identify is not None and any(tensor.id is not None for tensor in checkpoint.model.values())
    if by_id and not recorded:
        _orphan(checkpoint, index, naming.strangers(optimizer))
    elif not recorded and all(param.name is None for param in optimizer.params):
        name_by_position(checkpoint, index, family, options)
    if all(param.name is None for param in optimizer.params):
        notes.append(f"{called}: {naming.NAMELESS}")
    naming.check_names(optimizer, checkpoint.model, family.slots)


def name_by_position(checkpoint: Checkpoint, index: int, family: Family, options: GatherOptions) -> None:
    """Name entries that nothing but their position tells of: by the optimizer of the wanted model, by an order, or not at all.

    The order is the file's where its container keeps the one in which the model was declared; where it sorts names, and the wanted
    model has the same parameters, it is the wanted model's. A model that was declared in another order than the wanted one had an
    optimizer in another order too, so then that of the wanted model tells nothing.
    """
    optimizer, ledger, like = checkpoint.optimizers[index], checkpoint.ledger, options.like
    called = f"optimizer {index}"
    shapes = naming.entries(checkpoint.model, family.is_buffer)
    told = _in_order(shapes, like)
    moved = told is not None and list(told) != list(shapes) and bool(checkpoint.origin.facts.get(DECLARED))
    lists = like.optimizers[index] if like is not None and index < len(like.optimizers) and not moved else ()
    if like is not None and lists and naming.from_like(optimizer, lists, shapes, family.slots):
        ledger.notes.append(f"{called}: its parameters are those that the optimizer of {like.name} names")
        return
    if not options.names:
        return
    by: Literal["order", "like"] = "order"
    if told is not None and not moved:
        shapes, by = told, "like"
    _orphan(checkpoint, index, naming.from_order(optimizer, shapes, family.slots, by))
    if any(param.by == "order" for param in optimizer.params):
        ledger.notes.append(_assumes(index))
    elif like is not None and any(param.by == "like" for param in optimizer.params):
        ledger.notes.append(_in_order_of(index, like))
    elif len(optimizer.params) > len(shapes):
        ledger.warnings.append(
            f"{called}: has {len(optimizer.params)} parameters, and the model {len(shapes)}: it is of another model"
        )


def confirm(checkpoint: Checkpoint, index: int, family: Family, like: Like) -> None:
    """Say of an order that was assumed that it is the wanted model's, where the names have become its own and stand as they do there."""
    params, notes = checkpoint.optimizers[index].params, checkpoint.ledger.notes
    shapes = naming.entries(checkpoint.model, family.is_buffer)
    told = _in_order(shapes, like)
    if told is not None and list(told) == list(shapes) and any(param.by == "order" for param in params):
        for param in params:
            param.by = "like" if param.by == "order" else param.by
        notes[:] = [_in_order_of(index, like) if note == _assumes(index) else note for note in notes]


def _assumes(index: int) -> str:
    return f"optimizer {index}: {naming.ASSUMES}"


def _in_order_of(index: int, like: Like) -> str:
    return f"optimizer {index}: its parameters are named in the order of the model of {like.name}"


def _in_order(shapes: Mapping[str, Shape], like: Like | None) -> dict[str, Shape] | None:
    """Give the model's parameters in the order of the wanted model, None where that has no order of its own or lacks one of them."""
    if like is None or not like.declared or not shapes.keys() <= like.tensors.keys():
        return None
    return {name: shapes[name] for name in like.tensors if name in shapes}


def lend_roles(checkpoint: Checkpoint, like: Like) -> None:
    """Let the tensors whose name and shape the wanted model has be parameters and buffers as they are there."""
    for members in (checkpoint.model, *checkpoint.twins.values()):
        for name, tensor in members.items():
            wanted = like.tensors.get(name)
            if wanted is not None and wanted.role is not None and wanted.shape == tuple(tensor.shape):
                members[name] = replace(tensor, role=wanted.role)


def is_declared(model: Mapping[str, Tensor], *, tree: bool) -> bool:
    """Say whether a model stands in an order of its own: trees and records keep that of its declaration, a table may sort them.

    Such a container sorts by dtype, then by name; what stands in any other order was put there by somebody.
    """
    by_dtype: dict[str, list[str]] = {}
    for name, tensor in model.items():
        by_dtype.setdefault(tensor.dtype.name, []).append(name)
    recorded = any(tensor.id is not None for tensor in model.values())
    return tree or recorded or any(names != sorted(names) for names in by_dtype.values())


def _orphan(checkpoint: Checkpoint, index: int, orphans: Sequence[int]) -> None:
    """Leave out entries that are of no parameter of the model; those behind them move up."""
    if not orphans:
        return
    optimizer, ledger, lost = checkpoint.optimizers[index], checkpoint.ledger, set(orphans)
    ledger.warnings.append(
        f"optimizer {index}: {len(lost)} of {len(optimizer.params)} parameters are none of the model's"
        " (no parameter has their shape or id); their state is left out"
    )
    ledger.drop_all_under({f"optimizers/{index}/{position}": ORPHAN for position in orphans}, "left out")
    reorder(checkpoint, index, [position for position in range(len(optimizer.params)) if position not in lost])


def reorder(checkpoint: Checkpoint, index: int, order: Sequence[int]) -> None:
    """Let an optimizer's entries stand in this order of their old positions; what is not in it is gone already."""
    optimizer: Optimizer = checkpoint.optimizers[index]
    place = {str(old): new for new, old in enumerate(order)}
    moves: dict[str, tuple[tuple[str, ...], How]] = {}
    for item in checkpoint.ledger.under(f"optimizers/{index}"):
        pieces: list[Any] = item.split("/", 3)
        if len(pieces) > 2 and pieces[2] in place and str(place[pieces[2]]) != pieces[2]:
            moves[item] = (("/".join([*pieces[:2], str(place[pieces[2]]), *pieces[3:]]),), "renamed")
    checkpoint.ledger.rename_all(moves)
    optimizer.params = [optimizer.params[position] for position in order]
