"""Optimizer state follows its parameter: entries, groups, order and slots, after one operation on the model.

An entry that is named goes where its name goes. Where a target is made of its sources' bytes, so are its slots: by their name in
the family's table, by shape only where the name is unknown and the shape tells. What cannot follow is refused, never skipped.

    rename            the entry, under the new name
    split             its parts side by side, in its group, each with the scalars
    join              at the first part's place; equal scalars, one group, state in all or none
    added             after its neighbour in the model, in its group, without state
    dropped           gone; the state of a tied name goes to the one that stays
    nameless          may stay while the model's parameters are the same bytes in the same order
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate.checkpoint import Param
from ckptmigrate.errors import CkptError
from ckptmigrate.format import SHARED
from ckptmigrate.operations.ties import is_look
from ckptmigrate.tensor import Tensor

from .slots import slots_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.checkpoint import Checkpoint, How, Optimizer
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


@dataclass(slots=True)
class _Entry:
    """A parameter's entry on its way, and the positions whose state it carries."""

    param: Param
    of: tuple[int, ...]


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
        params = self.optimizer.params
        self.position = {param.name: position for position, param in enumerate(params) if param.name is not None}
        self.out = [[_Entry(param, (position,))] for position, param in enumerate(params)]
        self.lost: dict[int, str] = {}  # position -> why nothing carries its state
        self.held = {before[n].promise: n for n in self.position if n in before and is_look(before[n].promise)}
        self.sharing: dict[Promise, list[str]] = {}  # bytes -> the names that have them after the operation
        for name, tensor in after.items():
            if is_look(tensor.promise):
                self.sharing.setdefault(tensor.promise, []).append(name)
        self.named = Counter(param.name for param in params)  # the names that have an entry as it stands
        self.rank = {name: rank for rank, name in enumerate(before)}

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
                self._remake(change)
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

    def _drop(self, change: Change) -> None:
        for source, tensor in zip(change.group.sources, change.before, strict=True):
            position = self.position.get(source)
            if position is None:
                continue
            heir = next(iter(self.sharing.get(tensor.promise, ())), None)
            if heir is None or heir in self.position:
                self._set(position, [])
                self.lost[position] = change.group.reason or self.lead
            else:
                entry = _Entry(self._renamed(position, source, heir), (position,))
                self._set(position, [])
                self._stand(entry, position)
                self.checkpoint.ledger.notes.append(
                    f"the optimizer state of {source} goes to {heir}, which is tied to it"
                )

    def _move(self, change: Change) -> None:
        """Move entries whose bytes stay: a rename, a new order, a tie. Several at once stand in the order of the targets."""
        entries: list[_Entry] = []
        taken: dict[int, str] = {}
        for name, target, origin in zip(change.group.targets, change.after, change.origins, strict=True):
            source = change.group.sources[origin[0]]
            position = self.position.get(source)
            if position is None:
                continue
            if self.family.is_buffer(name, target):
                self._set(position, [])
                self.lost[position] = f"{name} is a buffer"
            elif position not in taken or not is_look(target.promise):  # two that look at nothing are two
                entries.append(_Entry(self._renamed(position, source, name), (position,)))
                taken[position] = name
        positions = sorted(self.position[source] for source in change.group.sources if source in self.position)
        for position in positions:
            if position not in taken:
                self.lost.setdefault(position, self.lead)
        if len(entries) > 1:
            entries = self._in_order(entries)
        self._place(positions, entries)

    def _in_order(self, entries: list[_Entry]) -> list[_Entry]:
        """Keep a group's own order where it was not the model's before: the new order then says nothing about it."""
        kept: list[_Entry] = []
        for group in dict.fromkeys(entry.param.group for entry in entries):
            own = [entry for entry in entries if entry.param.group == group]
            ranks = [self.rank[self.optimizer.params[p].name or ""] for p in sorted(e.of[0] for e in own)]
            if ranks != sorted(ranks):
                own.sort(key=lambda entry: entry.of)
                self.checkpoint.ledger.warnings.append(
                    f"{self.lead}: optimizer {self.index}, group {group} was not in the order of the model and keeps its own"
                )
            kept += own
        return kept

    def _remake(self, change: Change) -> None:
        """Make the entries of targets whose bytes are new from those of all their sources."""
        sources = change.group.sources
        positions = [self.position[name] for name in sources if name in self.position]
        whom = f"optimizer {self.index}: {', '.join(change.group.targets)}"
        params = [self.optimizer.params[position] for position in positions]
        without = [name for name in sources if name not in self.position]
        if without:
            self.say(
                f"{whom}: {sources[0] if sources[0] not in without else params[0].name} has an entry, and {without[0]} has none"
            )
            return
        groups = sorted({param.group for param in params})
        if len(groups) > 1:
            self.say(
                f"{whom}: the parts lie in groups {', '.join(map(str, groups))}, and only one can hold what they become"
            )
            return
        stateless = [name for name, param in zip(sources, params, strict=True) if param.slots is None]
        if stateless and len(stateless) < len(params):
            having = next(name for name in sources if name not in stateless)
            self.say(f"{whom}: {having} has state, and {stateless[0]} has none yet")
            return
        try:
            slots = slots_of(change, params, self.family, self.operation)
        except CkptError as error:
            self.say(f"{whom}: {error.message}")
            return
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
            entries.append(_Entry(Param(name, by, key, params[0].group, slots[i]), tuple(positions)))
        if not entries:
            self.lost.update(dict.fromkeys(positions, f"{', '.join(change.group.targets)} is no parameter of its own"))
        self._place(sorted(positions), entries)

    def _counted(self, name: str, tensor: Tensor) -> bool:
        """Say whether another name with an entry is tied to this one: a tied set is counted once."""
        return any(other != name and self.named[other] for other in self.sharing.get(tensor.promise, ()))

    def _add(self, added: Sequence[tuple[str, str | None]]) -> None:
        """Give added parameters an entry after their neighbour's: the given one, else the parameter beside them in the model."""
        at = {e.param.name: (p, e.param) for p, entries in enumerate(self.out) for e in entries}
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
            entry = _Entry(Param(name, other.by, tensor.id, other.group, None), ())
            if given is None and owner == beside:
                position = self._behind(entry, position, str(owner))
            else:  # its neighbour's entry stands where another name of the same bytes does
                position = self._stand(entry, position, str(owner))
            at[name] = position, entry.param

    def _owner(self, name: str) -> str | None:
        """Give the name under which the bytes of this one have an entry."""
        return next((n for n in self.sharing.get(self.after[name].promise, ()) if self.named[n]), None)

    def _behind(self, entry: _Entry, position: int, name: str) -> int:
        """Put an entry behind that of a name; give its position."""
        place = [e.param.name for e in self.out[position]].index(name) + 1
        self._set(position, [*self.out[position][:place], entry, *self.out[position][place:]])
        return position

    def _stand(self, entry: _Entry, position: int, name: str | None = None) -> int:
        """Put an entry where the model has it among those of its group; at a position, or behind a name, where the group has its own order."""
        rank = {n: i for i, n in enumerate(self.after)}
        line = [
            (rank[str(e.param.name)], p, str(e.param.name))
            for p, entries in enumerate(self.out)
            for e in entries
            if e.param.group == entry.param.group and e.param.name in rank
        ]
        earlier = [each for each in line if each[0] < rank[str(entry.param.name)]]
        if line == sorted(line) and earlier:
            return self._behind(entry, *earlier[-1][1:])
        if line == sorted(line) and line:
            position = line[0][1]
            self._set(position, [entry, *self.out[position]])
        elif name is not None:
            self._behind(entry, position, name)
        else:
            self._set(position, [*self.out[position], entry])
        return position

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

    def _place(self, positions: list[int], entries: list[_Entry]) -> None:
        """Put entries at the earliest of the positions that lie in their own group."""
        first: dict[int, int] = {}
        for position in positions:
            first.setdefault(self.optimizer.params[position].group, position)
            self._set(position, [])
        for group, position in first.items():
            self._set(position, [entry for entry in entries if entry.param.group == group])

    def _set(self, position: int, entries: list[_Entry]) -> None:
        """Let these entries stand where one stood."""
        self.named.subtract(entry.param.name for entry in self.out[position])
        self.named.update(entry.param.name for entry in entries)
        self.out[position] = entries

    def _write(self) -> None:
        entries = [entry for slot in self.out for entry in slot]
        old = self.optimizer.params
        if len(entries) != len(old) or any(
            e.of != (p,) or e.param.slots is not old[p].slots for p, e in enumerate(entries)
        ):
            self._account(entries)
        self.optimizer.params = [entry.param for entry in entries]

    def _account(self, entries: Sequence[_Entry]) -> None:
        ledger = self.checkpoint.ledger
        root = f"optimizers/{self.index}"
        carriers: dict[int, list[tuple[int, _Entry]]] = {}
        for now, entry in enumerate(entries):
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
                ledger.drop(item, self.lost.get(int(where), self.lead))
                continue
            targets = tuple(f"{root}/{now}/{rest}".rstrip("/") for now, _ in kept)
            old = (self.optimizer.params[int(where)].slots or {}).get(slot)
            same = old is None or all((e.param.slots or {})[slot].value is old.value for _, e in kept)
            moves[item] = (targets, "kept" if same else "derived")
            derived += [] if same else targets
        ledger.rename_all(moves)
        for item in dict.fromkeys(derived):
            ledger.derive(item, self.lead)
