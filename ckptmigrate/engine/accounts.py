"""The ledger of changes: every source and every target of an operation is accounted for, section by section."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.checkpoint import Checkpoint, How, Ledger, Param
    from ckptmigrate.operations import Group

    from .changes import Change
    from .entries import Entry

SHOWN = 5  # names in a warning; the rest is counted


def count(checkpoint: Checkpoint, groups: Sequence[Group], lead: str) -> None:
    """Note how many names are already what the operation would make them, and warn of those that lack what others have."""
    standing = sum(len(group.standing) for group in groups)
    if standing:
        all_of_them = standing + sum(len(group.targets) for group in groups)
        checkpoint.ledger.notes.append(f"{lead}: {standing} of {all_of_them} stood already as it would leave them")
    without = [name for group in groups for name in group.without]
    if without:
        all_of_them = len(without) + sum(len(group.sources) for group in groups)
        some = ", ".join(without[:SHOWN]) + (", …" if len(without) > SHOWN else "")
        checkpoint.ledger.warnings.append(f"{lead}: {len(without)} of {all_of_them} names do not have it: {some}")


def section(checkpoint: Checkpoint, name: str, changes: Sequence[Change], lead: str) -> None:
    """Account for every source and every target of one section."""
    ledger = checkpoint.ledger
    moves: dict[str, tuple[tuple[str, ...], How]] = {}
    derived: list[str] = []
    for change in changes:
        group = change.group
        for source, old, into in zip(group.sources, change.before, change.outcomes(), strict=True):
            item = f"{name}/{source}"
            if not into:
                ledger.drop(item, group.reason or lead)
                continue
            targets = tuple(f"{name}/{target}" for target, _ in into)
            same = all(target.promise == old.promise for _, target in into)
            if targets != (item,):
                moves[item] = (targets, "renamed" if same else "derived")
            derived += [] if same else targets
        if not group.sources:
            for target in group.targets:
                ledger.add(f"{name}/{target}", lead)
    ledger.rename_all(moves)
    for item in dict.fromkeys(derived):
        ledger.derive(item, lead)


def values(checkpoint: Checkpoint, made: Sequence[tuple[str, Sequence[Change]]], lead: str) -> None:
    """Account for changes of values and slots: per prefix of their items the changes below it."""
    ledger = checkpoint.ledger
    moves: dict[str, tuple[tuple[str, ...], How]] = {}
    found = ledger.under_all({prefix + source for prefix, cs in made for c in cs for source in c.group.sources})
    for prefix, change in ((prefix, change) for prefix, changes in made for change in changes):
        group = change.group
        for source, old, into in zip(group.sources, change.before, change.outcomes(), strict=True):
            same = all(value == old for _, value in into)
            crosses = not prefix and any(_section(name) != _section(source) for name, _ in into)
            how: How = "derived" if not same else "moved" if crosses else "renamed"
            for item in found.get(prefix + source, ()):
                tail = item.removeprefix(prefix + source)
                if not into:
                    ledger.drop(item, group.reason or lead)
                else:
                    moves[item] = (tuple(prefix + name + tail for name, _ in into), how)
        if not group.sources:
            for name in group.targets:
                ledger.add(prefix + name, lead)
    ledger.rename_all(moves)


def entries(
    ledger: Ledger, index: int, params: Sequence[Param], standing: Sequence[Entry], lost: Mapping[int, str], lead: str
) -> None:
    """Account for what became of the entries of one optimizer; ``lost``: why nothing carries the state of a position."""
    root = f"optimizers/{index}"
    carriers: dict[int, list[tuple[int, Entry]]] = {}
    for now, entry in enumerate(standing):
        for position in entry.of:
            carriers.setdefault(position, []).append((now, entry))
    moves: dict[str, tuple[tuple[str, ...], How]] = {}
    derived: list[str] = []
    for item in ledger.under(root):
        where, _, rest = item.removeprefix(f"{root}/").partition("/")
        if not where.isdecimal():
            continue
        slot = rest.partition("/")[0]
        kept = [(now, e) for now, e in carriers.get(int(where), ()) if not slot or slot in (e.param.slots or {})]
        if not kept:
            ledger.drop(item, lost.get(int(where), lead))
            continue
        targets = tuple(f"{root}/{now}/{rest}".rstrip("/") for now, _ in kept)
        old = (params[int(where)].slots or {}).get(slot)
        same = old is None or all((e.param.slots or {})[slot].value is old.value for _, e in kept)
        moves[item] = (targets, "kept" if same else "derived")
        derived += [] if same else targets
    ledger.rename_all(moves)
    for item in dict.fromkeys(derived):
        ledger.derive(item, lead)


def _section(item: str) -> str:
    return item.partition("/")[0]
