"""The engine: walks the groups of each operation and applies them to everything that follows.

                       ┌─► model: names, places, ids
    operation ─ groups ┼─► every twin
                       ├─► every optimizer: entries, groups, slots      (following.py)
                       └─► ledger;  at the end ``modules`` and what in a state dict is no tensor

An operation sees names and hands back promises; that the optimizer follows is a property of this file and its neighbour alone.
Nothing is drawn but scalars that a join must find equal. A problem skips one group and leaves the checkpoint usable, so that a
plan can tell all problems at once.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ckptmigrate.checkpoint import Slot, slot_names
from ckptmigrate.errors import UsageError
from ckptmigrate.marks import at, has_fields, number, with_state
from ckptmigrate.operations import Reason, bind

from . import accounts, items, modules
from .changes import change_of, changes_of, placed, side_by_side, without_collisions
from .following import follow
from .identity import apart, check_ids, check_ties, with_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.format import Family
    from ckptmigrate.migrator import Migrator
    from ckptmigrate.operations import Group, Operation
    from ckptmigrate.tensor import Tensor

    from .changes import Change, Say

Direction = Literal["up", "down"]
Ties = Literal["keep", "duplicate"]


def apply(
    checkpoint: Checkpoint,
    migrator: Migrator,
    family: Family,
    *,
    direction: Direction = "up",
    parameters: Mapping[str, Any] | None = None,
    ties: Ties = "keep",
) -> list[str]:
    """Apply one step, upwards or through the inverses of its operations, in place; give every problem."""
    given, problems = numbers(checkpoint, migrator, parameters or {})
    operations = []
    for operation in migrator.operations:
        where = f"{migrator.name}: {operation.describe()}"
        turned = operation.inverse() if direction == "down" else operation
        if isinstance(turned, Reason):
            problems.append(f"{where}: no way back: {turned.text}")
            continue
        try:
            bound, unresolved = bind(turned, given)
        except UsageError as error:
            problems.append(f"{where}: {error.message}")
            continue
        untold = [name for name in unresolved if name not in migrator.needs]  # of those it is said already
        problems += [f"{where}: nothing says what {name!r} is; set it with --set {name}=VALUE" for name in untold]
        if not unresolved:
            operations.append(bound)
    if direction == "down":
        operations.reverse()
    return problems + apply_operations(checkpoint, operations, family, origin=migrator.name, ties=ties)


def apply_operations(
    checkpoint: Checkpoint, operations: Sequence[Operation], family: Family, *, origin: str, ties: Ties = "keep"
) -> list[str]:
    """Apply operations one after the other, in place; give every problem, led by ``origin`` and the operation."""
    problems: list[str] = []
    trail = modules.Trail(checkpoint.model)
    for operation in operations:
        lead = f"{origin}: {operation.describe()}"

        def say(message: str, lead: str = lead) -> None:
            problems.append(f"{lead}: {message}")

        if operation.on == "slots":
            _on_slots(checkpoint, operation, say, lead)
        elif operation.on == "model":
            _on_model(checkpoint, operation, family, trail, say, lead, ties)
        else:
            _on_items(checkpoint, operation, family, trail, say, lead)
    modules.settle(checkpoint, trail)
    return problems


def numbers(
    checkpoint: Checkpoint, migrator: Migrator, parameters: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Give the numbers that a step needs: what the caller set, else what lies among the values; and what is no number."""
    given = {name: value for name, value in parameters.items() if name in migrator.needs or name in _named(migrator)}
    problems = []
    for name, path in migrator.needs.items():
        if name in given:
            continue
        value = number(at(checkpoint.values, path))
        if value is not None:
            given[name] = value
        else:
            problems.append(
                f"{migrator.name}: needs {name}, and the values have no number at {path}; set it with --set {name}=VALUE"
            )
    return given, problems


def _named(migrator: Migrator) -> set[str]:
    """Give the names of numbers that the operations mention, or what undoes them."""
    ways = [way for operation in migrator.operations for way in (operation, operation.inverse())]
    return {name for way in ways if not isinstance(way, Reason) for name in bind(way, {})[1]}


def _on_model(
    checkpoint: Checkpoint,
    operation: Operation,
    family: Family,
    trail: modules.Trail,
    say: Say,
    lead: str,
    ties: Ties,
) -> None:
    before = checkpoint.model
    groups = operation.match(before)
    accounts.count(checkpoint, groups, lead)
    changes = changes_of(operation, _proven(groups, operation, checkpoint, say), before, say)
    if not changes:
        return
    numbered = any(tensor.id is not None for tensor in before.values())
    changes = [with_ids(change, keeps=operation.traits.keeps_id, numbered=numbered) for change in changes]
    changes = apart(changes, before)
    if not operation.traits.unties:
        check_ties(changes, before, checkpoint.ledger, say if ties == "keep" else None)
    rows = side_by_side(before, changes)
    after = placed(before, changes, rows)
    check_ids(changes, after, say)
    twins = {name: _twin(name, twin, operation, changes, rows, say) for name, twin in checkpoint.twins.items()}
    _settle(checkpoint, operation, family, trail, changes, after, say, lead)
    accounts.section(checkpoint, "model", changes, lead)
    for name, (members, twin_changes) in twins.items():
        checkpoint.twins[name] = members
        accounts.section(checkpoint, f"twins/{name}", twin_changes, lead)


def _proven(groups: list[Group], operation: Operation, checkpoint: Checkpoint, say: Say) -> list[Group]:
    """Give the groups that are what the operation means, where more than names must tell; none at all is a problem."""
    conditional = [group for group in groups if group.fields is not None or group.beside is not None]
    if not conditional:
        return groups
    trained = with_state(checkpoint)
    unproven = {
        group: None
        for group in conditional
        if (group.fields is not None and not has_fields(checkpoint, *group.fields))
        or (group.beside is not None and (group.beside not in trained or trained.intersection(group.sources)))
    }  # in their order
    if len(unproven) == len(conditional) and not operation.optional:
        say(f"nothing proves that {', '.join(name for group in unproven for name in group.sources)} is meant")
    return [group for group in groups if group not in unproven]


def _settle(
    checkpoint: Checkpoint,
    operation: Operation,
    family: Family,
    trail: modules.Trail,
    changes: Sequence[Change],
    after: dict[str, Tensor],
    say: Say,
    lead: str,
) -> None:
    """Put the model's new names in, and let everything that goes by its names follow."""
    before, checkpoint.model = checkpoint.model, after
    trail.follow(changes)
    for index in range(len(checkpoint.optimizers)):
        follow(checkpoint, index, changes, before, family, operation, say, lead)


def _twin(
    name: str,
    twin: dict[str, Tensor],
    operation: Operation,
    changes: Sequence[Change],
    rows: Sequence[tuple[str, ...]],
    say: Say,
) -> tuple[dict[str, Tensor], list[Change]]:
    """Give a twin after the changes of the model. A twin may hold fewer names (parameters only), never part of a group."""
    own = []
    for change in changes:
        group = change.group
        lacking = dict.fromkeys(source for source in group.sources if source not in twin)
        if group.sources and len(lacking) == len(group.sources):
            continue
        if not group.sources and group.near is not None and group.near not in twin:
            continue
        if lacking and not change.stays_without(lacking):
            say(f"twin {name} lacks {', '.join(lacking)}, which {', '.join(group.targets)} needs")
            continue
        made = (
            change.among(twin)
            if lacking
            else change_of(operation, group, twin, lambda message: say(f"twin {name}: {message}"))
        )
        if made is not None:
            ids = {target: tensor.id for target, tensor in zip(group.targets, change.after, strict=True)}
            numbered = any(source.id is not None for source in made.before)
            after = (
                replace(tensor, id=ids[target] if numbered else None)
                for target, tensor in zip(made.group.targets, made.after, strict=True)
            )
            own.append(replace(made, after=tuple(after)))
    own = without_collisions(own, twin, lambda message: say(f"twin {name}: {message}"))
    return placed(twin, own, rows), own


def _on_slots(checkpoint: Checkpoint, operation: Operation, say: Say, lead: str) -> None:
    """Apply an operation to the slots of every parameter; a pattern must match in one of them at least."""
    unmatched: set[str] | None = None
    made: list[tuple[str, Sequence[Change]]] = []
    every: list[Group] = []
    for index, optimizer in enumerate(checkpoint.optimizers):
        for position, param in enumerate(optimizer.params):
            if param.slots is None:
                continue
            values = {name: slot.value for name, slot in param.slots.items()}
            groups = operation.match(slot_names(optimizer, param))
            every += groups
            gaps = {p for g in groups if not (g.sources or g.targets) for p in g.missing}
            unmatched = gaps if unmatched is None else unmatched & gaps
            whom = f"optimizer {index}, {param.name or f'parameter {position}'}"
            groups = [group for group in groups if group.sources or group.targets]
            changes = changes_of(operation, groups, values, functools.partial(_said, say, whom))
            if changes:
                param.slots = {name: Slot(value) for name, value in placed(values, changes).items()}
                made.append((f"optimizers/{index}/{position}/", changes))
    accounts.values(checkpoint, made, lead)
    accounts.count(checkpoint, every, lead)
    if not operation.optional and (unmatched or unmatched is None):
        wanted = ", ".join(map(repr, sorted(unmatched or ()))) or "it"
        say(f"no slot matches {wanted}" if unmatched else "no optimizer has state that it could match")


def _said(say: Say, whom: str, message: str) -> None:
    say(f"{whom}: {message}")


def _on_items(
    checkpoint: Checkpoint,
    operation: Operation,
    family: Family,
    trail: modules.Trail,
    say: Say,
    lead: str,
) -> None:
    """Apply an operation to nodes of the values, or to all items, where a tensor may leave or enter the model."""
    tree = items.Items(checkpoint, whole=operation.on == "items")
    names = tree.names()
    groups = items.outermost(operation.match(names))
    accounts.count(checkpoint, groups, lead)
    changes = changes_of(operation, groups, names, say)
    if not changes:
        return
    before = dict(checkpoint.model)
    tree.apply(changes, say)
    accounts.values(checkpoint, [("", changes)], lead)
    after = checkpoint.model
    if list(before.items()) != list(after.items()):
        checkpoint.model = before
        crossed = items.crossings(changes, before, after)
        _settle(checkpoint, operation, family, trail, crossed, placed(before, crossed), say, lead)
        for name, twin in checkpoint.twins.items():
            own = [found for change in crossed if (found := items.crossed_with(change, twin)) is not None]
            own = without_collisions(own, twin, functools.partial(_said, say, f"twin {name}"))
            checkpoint.twins[name] = placed(twin, own)
            accounts.section(checkpoint, f"twins/{name}", own, lead)
