"""Optimizer state follows its parameter: entries, groups, order and slots, after one operation on the model.

An entry that is named goes where its name goes. Where a target is made of its sources' bytes, so are its slots: by their name in
the family's table, by shape only where the name is unknown and the shape tells. What cannot follow is refused, never skipped.

    rename            the entry, under the new name
    split             its parts in its group, in the model's order, each with the scalars
    join              at the first part's place; equal scalars, one group, state in all or none
    added             after its neighbour in the model, in its group, without state
    dropped           gone; the state of a tied name goes to the one that stays
    tied, untied      one entry, under the first name that the model has; one more, without state
    nameless          may stay while the model's parameters are the same bytes in the same order

Where entries stand is the business of ``entries.py``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ckptmigrate.checkpoint import Param
from ckptmigrate.errors import CkptError
from ckptmigrate.format import SHARED
from ckptmigrate.operations.ties import is_look
from ckptmigrate.tensor import Tensor

from . import accounts
from .changes import side_by_side
from .entries import Entries, Entry
from .slots import slots_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptmigrate.checkpoint import Checkpoint, Optimizer
    from ckptmigrate.format import Family
    from ckptmigrate.operations import Operation
    from ckptmigrate.tensor import Promise
    from ckptmigrate.values import Tree

    from .changes import Change, Say

WAYS_OUT = "name its parameters with --params FILE or --like FILE, or leave its state out with --drop optimizer"


def follow(
    checkpoint: Checkpoint,
    index: int,
    changes: Sequence[Change],
    before: Mapping[str, Tensor],
    family: Family,
    operation: Operation,
    say: Say,
    lead: str,
) -> None:
    """Let one optimizer follow the changes from ``before`` to the model as it stands, in place; say what cannot."""
    optimizer, after = checkpoint.optimizers[index], checkpoint.model
    whose = f"optimizer {index}"
    nameless = any(param.name is None for param in optimizer.params)
    stuck = _whole_model(optimizer, family)
    if (nameless or stuck) and _entries(before, family) != _entries(after, family):
        if nameless:
            say(
                f"{whose} does not tell which of its {len(optimizer.params)} entries is whose, so it cannot follow; {WAYS_OUT}"
            )
        else:
            say(
                f"{whose} keeps {', '.join(stuck)} of all parameters at once, which cannot follow; leave it out with --drop optimizer"
            )
        return
    _Walk(checkpoint, index, before, after, family, operation, say, lead).run(changes)


def _entries(model: Mapping[str, Tensor], family: Family) -> list[Promise]:
    """Give what an optimizer over the whole model has entries of: no buffers, a tied set once; order is meaning."""
    found: dict[Any, Promise] = {}
    for name, tensor in model.items():
        if not family.is_buffer(name, tensor):
            found.setdefault(tensor.promise if is_look(tensor.promise) else name, tensor.promise)
    return list(found.values())


def _whole_model(optimizer: Optimizer, family: Family) -> list[str]:
    """Name the values that are laid out by all parameters together: they belong to none, and hold more than numbers."""
    shared = [name for name, value in optimizer.shared.items() if _holds_tensor(value)]
    own = (
        n
        for p in optimizer.params
        for n, s in (p.slots or {}).items()
        if family.slots.get(n) == SHARED and _holds_tensor(s.value)
    )
    return list(dict.fromkeys([*shared, *own]))


def _holds_tensor(tree: Tree) -> bool:
    if isinstance(tree, Tensor):
        return bool(tree.promise.numel > 1)
    if isinstance(tree, dict):
        return any(map(_holds_tensor, tree.values()))
    return isinstance(tree, list | tuple) and any(map(_holds_tensor, tree))


class _Walk:
    """One optimizer through the changes of one operation."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        index: int,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        family: Family,
        operation: Operation,
        say: Say,
        lead: str,
    ) -> None:
        self.checkpoint, self.index, self.optimizer = checkpoint, index, checkpoint.optimizers[index]
        self.before, self.after = before, after
        self.family, self.operation = family, operation
        self.say, self.lead = say, lead
        self.line = Entries(self.optimizer.params, before, after)
        self.position = self.line.position
        self.lost: dict[int, str] = {}  # position -> why nothing carries its state
        self.held = {before[n].promise: n for n in self.position if n in before and is_look(before[n].promise)}
        self.sharing: dict[Promise, list[str]] = {}  # bytes -> the names that have them after the operation
        for name, tensor in after.items():
            if is_look(tensor.promise):
                self.sharing.setdefault(tensor.promise, []).append(name)

    def run(self, changes: Sequence[Change]) -> None:
        """Follow every change, then write entries and ledger down."""
        added: list[tuple[str, str | None]] = []
        for change in changes:
            if not change.group.sources:
                added += [(name, None) for name in change.group.targets]
            elif not any(name in self.position for name in change.group.sources):
                added += self._untied(change)
            elif not change.group.targets:
                self._drop(change)
            elif change.moved:
                self._move(change)
            else:
                added += self._left(change) or self._remake(change)
        self._keep(self.line.stand_as_the_model_has(side_by_side(self.before, changes)))
        if added:
            self._add(added)
        self._write()

    def _untied(self, change: Change) -> list[tuple[str, str | None]]:
        """Give the targets that were one with a parameter of this optimizer and are parameters of their own now."""
        found: list[tuple[str, str | None]] = []
        for name, target, origin in zip(change.group.targets, change.after, change.origins, strict=True):
            owners = {self.held.get(change.before[i].promise) for i in origin}
            owner = owners.pop() if len(owners) == 1 else None
            if owner is not None and target.promise != change.before[origin[0]].promise:
                found.append((name, owner))
        return found

    def _left(self, change: Change) -> list[tuple[str, str | None]]:
        """Let the state of a name that is untied stay with those that it was tied to; give what has none now."""
        if not self.operation.traits.unties:
            return []
        (source,), (tensor,), (target,) = change.group.sources, change.before, change.group.targets
        heir = self._partner(tensor)
        if heir is None:
            return []
        self._hand_over(self.position[source], source, heir)
        return [(target, heir)]

    def _partner(self, tensor: Tensor) -> str | None:
        """Give the first name that still has these bytes, where no name that has them has an entry."""
        names = self.sharing.get(tensor.promise, ())
        return None if any(self.line.named[name] for name in names) else next(iter(names), None)

    def _hand_over(self, position: int, source: str, heir: str) -> None:
        """Give the entry of a name to another that has the same bytes, where the model has that."""
        entry = Entry(self._renamed(position, source, heir), (position,))
        self.line.set(position, [])
        self.line.stand(entry, position)
        self.checkpoint.ledger.notes.append(f"the optimizer state of {source} goes to {heir}, which is tied to it")

    def _drop(self, change: Change) -> None:
        for source, tensor in zip(change.group.sources, change.before, strict=True):
            position = self.position.get(source)
            if position is None:
                continue
            heir = next(iter(self.sharing.get(tensor.promise, ())), None)
            if heir is None or heir in self.position:
                self.line.set(position, [])
                self.lost[position] = change.group.reason or self.lead
            else:
                self._hand_over(position, source, heir)

    def _move(self, change: Change) -> None:
        """Move entries whose bytes stay: a rename, a new order, a tie. Several at once stand in the order of the targets."""
        entries: list[Entry] = []
        taken: dict[int, Entry] = {}
        for name, target, origin in zip(change.group.targets, change.after, change.origins, strict=True):
            source = change.group.sources[origin[0]]
            position = self.position.get(source)
            if position is None:
                continue
            if self.family.is_buffer(name, target):
                self.line.set(position, [])
                self.lost[position] = f"{name} is a buffer"
            elif position not in taken or not is_look(target.promise):  # two that look at nothing are two
                taken[position] = Entry(self._renamed(position, source, name), (position,))
                entries.append(taken[position])
            elif self.line.rank[name] < self.line.rank[str(taken[position].param.name)]:
                taken[position].param = self._renamed(position, source, name)
        positions = sorted(self.position[source] for source in change.group.sources if source in self.position)
        for position in positions:
            if position not in taken:
                self.lost.setdefault(position, self.lead)
        if len(entries) > 1:
            entries, kept = self.line.in_order(entries)
            self._keep(kept)
        self.line.place(positions, entries)

    def _keep(self, groups: Iterable[int]) -> None:
        """Warn of groups whose order says nothing of the model's."""
        self.checkpoint.ledger.warnings += [
            f"{self.lead}: optimizer {self.index}, group {group} was not in the order of the model and keeps its own"
            for group in groups
        ]

    def _remake(self, change: Change) -> list[tuple[str, str | None]]:
        """Make the entries of targets whose bytes are new from those of all their sources; give names that are left without one."""
        sources = change.group.sources
        positions = [self.position[name] for name in sources if name in self.position]
        whom = f"optimizer {self.index}: {', '.join(change.group.targets)}"
        params = [self.optimizer.params[position] for position in positions]
        without = [name for name in sources if name not in self.position]
        if without:
            self.say(
                f"{whom}: {sources[0] if sources[0] not in without else params[0].name} has an entry, and {without[0]} has none"
            )
            return []
        groups = sorted({param.group for param in params})
        if len(groups) > 1:
            self.say(
                f"{whom}: the parts lie in groups {', '.join(map(str, groups))}, and only one can hold what they become"
            )
            return []
        stateless = [name for name, param in zip(sources, params, strict=True) if param.slots is None]
        if stateless and len(stateless) < len(params):
            having = next(name for name in sources if name not in stateless)
            self.say(f"{whom}: {having} has state, and {stateless[0]} has none yet")
            return []
        try:
            slots = slots_of(change, params, self.family, self.operation)
        except CkptError as error:
            self.say(f"{whom}: {error.message}")
            return []
        entries = []
        for i, (name, target) in enumerate(zip(change.group.targets, change.after, strict=True)):
            if self.family.is_buffer(name, target) or self._counted(name, target):
                continue
            by = next((way for way in ("order", "like") if any(p.by == way for p in params)), params[0].by)
            key = (
                self._key(params[0], change.before[0], sources[0], name, target)
                if len(params) == len(change.after) == 1
                else None
            )
            if (
                key is None
                and target.id is not None
                and all(p.key == b.id for p, b in zip(params, change.before, strict=True))
            ):
                key = target.id
            entries.append(Entry(Param(name, by, key, params[0].group, slots[i]), tuple(positions)))
        if not entries:
            self.lost.update(dict.fromkeys(positions, f"{', '.join(change.group.targets)} is no parameter of its own"))
        self.line.place(sorted(positions), entries)
        left = dict.fromkeys(heir for tensor in change.before if (heir := self._partner(tensor)) is not None)
        return [(heir, str(entries[0].param.name)) for heir in left if entries]

    def _counted(self, name: str, tensor: Tensor) -> bool:
        """Say whether another name with an entry is tied to this one: a tied set is counted once."""
        return any(other != name and self.line.named[other] for other in self.sharing.get(tensor.promise, ()))

    def _add(self, added: Sequence[tuple[str, str | None]]) -> None:
        """Give added parameters an entry after their neighbour's: the given one, else the parameter beside them in the model."""
        at = {e.param.name: (p, e.param) for p, entries in enumerate(self.line.out) for e in entries}
        names = list(self.after)
        index = {name: i for i, name in enumerate(names)}
        for name, given in added:
            tensor = self.after[name]
            if self.family.is_buffer(name, tensor) or self._counted(name, tensor) or not self.optimizer.params:
                continue
            beside = given if given is not None else self._neighbour(names, index[name])
            owner = beside if beside in at or beside is None else self._owner(beside)
            if owner not in at:
                if beside is not None and len(self.checkpoint.optimizers) == 1:
                    self.checkpoint.ledger.notes.append(
                        f"{name} joins no optimizer: neither does its neighbour {beside}"
                    )
                continue
            position, other = at[owner]
            entry = Entry(Param(name, other.by, tensor.id, other.group, None), ())
            if given is None and owner == beside:
                position = self.line.behind(entry, position, str(owner))
            else:  # its neighbour's entry stands where another name of the same bytes does
                position = self.line.stand(entry, position, str(owner))
            at[name] = position, entry.param

    def _owner(self, name: str) -> str | None:
        """Give the name under which the bytes of this one have an entry."""
        return next((n for n in self.sharing.get(self.after[name].promise, ()) if self.line.named[n]), None)

    def _neighbour(self, names: Sequence[str], at: int) -> str | None:
        """Give the parameter that stands before a place in the model, else the one after it; buffers are not asked."""
        for i in itertools.chain(range(at - 1, -1, -1), range(at + 1, len(names))):
            if not self.family.is_buffer(names[i], self.after[names[i]]):
                return names[i]
        return None

    def _renamed(self, position: int, source: str, name: str) -> Param:
        param = self.optimizer.params[position]
        key = self._key(param, self.before[source], source, name, self.after[name])
        return Param(name, param.by, key, param.group, param.slots)

    def _key(self, param: Param, old: Tensor, source: str, name: str, new: Tensor) -> Any:
        """Give what the file calls the entry: its name and its id follow, an index or address means what it meant."""
        if isinstance(param.key, str) and param.key == source:
            return name
        return new.id if param.key is not None and param.key == old.id else param.key

    def _write(self) -> None:
        entries = self.line.standing()
        old = self.optimizer.params
        if len(entries) != len(old) or any(
            e.of != (p,) or e.param.slots is not old[p].slots for p, e in enumerate(entries)
        ):
            accounts.entries(self.checkpoint.ledger, self.index, old, entries, self.lost, self.lead)
        self.optimizer.params = [entry.param for entry in entries]
