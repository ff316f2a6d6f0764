"""Whose state an optimizer's entries are: by the ids of the file, by a caller's lists, or by the model's order; and the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptmigrate import naming
from ckptmigrate.checkpoint import Progress
from ckptmigrate.errors import CheckpointError, OptimizerError
from ckptmigrate.values import spell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptmigrate.checkpoint import Checkpoint, How, Optimizer
    from ckptmigrate.format import Family, GatherOptions

ORPHAN = "its parameter is not the model's"


def number(checkpoint: Checkpoint, options: GatherOptions) -> None:
    """Give the epoch that a caller says to a checkpoint that has none, and the meaning that a caller says to any."""
    progress = checkpoint.progress
    if options.epoch is not None and progress.epoch is None:
        checkpoint.progress = Progress(options.epoch, progress.counts, progress.step, progress.best)
    if options.epoch_means is not None:
        checkpoint.progress.counts = options.epoch_means


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
            holder = holders.get(family.identify(param.key))
            if holder is not None or (holders and (told is None or told.id is not None)):
                param.name, param.by = holder, None if holder is None else "file"


def _holders(checkpoint: Checkpoint) -> dict[int | str, str]:
    """Give the first name of each id. Tensors of one id are one parameter that was written twice; of two shapes they are none."""
    holders: dict[int | str, str] = {}
    for name, tensor in checkpoint.model.items():
        if tensor.id is None:
            continue
        first = holders.setdefault(tensor.id, name)
        other = checkpoint.model[first]
        if (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
            raise CheckpointError(
                f"{first} and {name} have one id, {tensor.id}, and are {other.dtype} {list(other.shape)} and"
                f" {tensor.dtype} {list(tensor.shape)}",
                candidates=[first, name],
                id=tensor.id,
            )
    return holders


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
    if not recorded:
        identify(checkpoint, family)
    for index, optimizer in enumerate(checkpoint.optimizers):
        own = [lists.pop(0) for _ in optimizer.groups] if lists else None
        try:
            _name_one(checkpoint, index, family, own, recorded=recorded, assume=options.names)
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
    assume: bool,
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
    elif assume and not recorded and all(param.name is None for param in optimizer.params):
        shapes = naming.entries(checkpoint.model, family.is_buffer)
        _orphan(checkpoint, index, naming.from_order(optimizer, shapes, family.slots))
        if any(param.by == "order" for param in optimizer.params):
            notes.append(f"{called}: {naming.ASSUMES}")
        elif len(optimizer.params) > len(shapes):
            checkpoint.ledger.warnings.append(
                f"{called}: has {len(optimizer.params)} parameters, and the model {len(shapes)}: it is of another model"
            )
    if all(param.name is None for param in optimizer.params):
        notes.append(f"{called}: {naming.NAMELESS}")
    naming.check_names(optimizer, checkpoint.model, family.slots)


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
