"""What a chain does to a checkpoint, said by lists and numpy alone: nothing of ckptmigrate is known here.

A world is a model and its twin (names and arrays, in order), the names of its buffers, what is tied, and the optimizer's
entries (name, moments or None). A deed is a kind, the names that it is done to, and what else it needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


class Deed(NamedTuple):
    kind: str
    names: tuple[str, ...]  # what it is done to
    into: tuple[str, ...] = ()  # what comes out
    argument: Any = None


@dataclass
class World:
    model: Arrays
    twin: Arrays
    entries: list[tuple[str, Arrays | None]]
    buffers: set[str]
    ties: dict[str, str]  # second name -> first

    def state(self, name: str) -> str:
        """Give what the optimizer has of a name: nothing, an entry, an entry with moments."""
        entry = [slots for other, slots in self.entries if other == name]
        return "nothing" if not entry else "entry" if entry[0] is None else "moments"

    def do(self, deed: Deed) -> None:
        """Do a deed to everything that it concerns."""
        kind, names, into, argument = deed
        if kind == "order":
            self.order(names)
        elif kind == "reindex":
            numbers = sorted(int(name[1:-2]) for name in self.model if re.fullmatch(r"p[0-9]+\.w", name))
            renamed = {f"p{number}.w": f"p{dense}.w" for dense, number in enumerate(numbers)}
            self.rename(renamed)
        elif kind == "rename":
            self.rename(dict(zip(names, into, strict=True)))
        elif kind in {"add", "add buffer"}:
            self.add(names[0], into[0], buffer=kind == "add buffer")
        elif kind == "tie":
            for members in (self.model, self.twin):
                members[names[1]] = members[names[0]]
            earlier = next(name for name in self.model if name in names)
            kept = [slots for name, slots in self.entries if name == names[0]]
            if kept:  # once, where the model has it first
                self.entries = list(replaced(dict(self.entries), names, {earlier: kept[0]}).items())
            self.ties[names[1]] = names[0]
        elif kind == "untie":
            self.untie(names[0], self.ties.pop(names[0]))
        elif kind == "fan":
            self.fan(names, into)
        elif kind == "drop" and names[0] in {*self.ties, *self.ties.values()}:
            self.drop_tied(names[0])
        else:
            self.make(names, into, lambda arrays: made(kind, arrays, argument))

    def make(self, names: Sequence[str], into: Sequence[str], make: Callable[[list[Array]], list[Array]]) -> None:
        """Put new arrays at the place of the first of the old ones, in model, twin and moments alike."""
        self.model, self.twin = (
            replaced(members, names, dict(zip(into, make([members[n] for n in names]), strict=True)))
            for members in (self.model, self.twin)
        )
        old = dict(self.entries)
        if set(names) & old.keys():
            new: dict[str, Arrays | None] = dict.fromkeys(into)
            slots = [old[name] for name in names]
            if None not in slots:
                parts = {key: make([each[key] for each in slots if each]) for key in ("exp_avg", "exp_avg_sq")}
                new = {name: {key: part[i] for key, part in parts.items()} for i, name in enumerate(into)}
            self.entries = list(replaced(old, names, new).items())
        if set(names) & self.buffers:
            self.buffers = (self.buffers - set(names)) | set(into)

    def fan(self, names: Sequence[str], into: Sequence[str]) -> None:
        """Make two halves of each, at its place; of those that stand in a row in one module, module by module."""
        rows = rows_of(list(self.model), names)
        targets = {name: into[2 * i : 2 * i + 2] for i, name in enumerate(names)}
        parts = {name: dict(zip(targets[name], np.split(self.model[name], 2), strict=True)) for name in names}
        halves = {name: dict(zip(targets[name], np.split(self.twin[name], 2), strict=True)) for name in names}
        self.model, self.twin = fanned(self.model, parts, rows), fanned(self.twin, halves, rows)
        old = dict(self.entries)
        moments = {}
        for name in set(names) & old.keys():
            cut = {key: np.split(value, 2) for key, value in (old[name] or {}).items()}
            slots = [None if old[name] is None else {key: value[n] for key, value in cut.items()} for n in (0, 1)]
            moments[name] = dict(zip(targets[name], slots, strict=True))
        line = list(old)
        here = [[name for name in row if name in old] for row in rows]
        alike = [row for row in here if row and line[line.index(row[0]) :][: len(row)] == row]
        self.entries = list(
            fanned(old, moments, [*alike, *([n] for row in here if row not in alike for n in row)]).items()
        )
        self.buffers = {part for name in self.buffers for part in targets.get(name, [name])}

    def untie(self, name: str, first: str) -> None:
        """Take two names apart; the state stays with the first of the tie."""
        at = [each for each, _ in self.entries].index(name) if name in dict(self.entries) else None
        if at is not None:
            _, slots = self.entries.pop(at)
            self.stand((first, slots), at=at)
        self.stand((name, None), behind=first)

    def rename(self, renamed: dict[str, str]) -> None:
        self.model, self.twin = (
            {renamed.get(n, n): v for n, v in members.items()} for members in (self.model, self.twin)
        )
        self.entries = [(renamed.get(name, name), slots) for name, slots in self.entries]
        self.buffers = {renamed.get(name, name) for name in self.buffers}
        self.ties = {renamed.get(n, n): renamed.get(first, first) for n, first in self.ties.items()}

    def order(self, names: Sequence[str]) -> None:
        before = list(self.model)
        ordered = iter(names)
        after = [next(ordered) if name in names else name for name in before]
        self.model, self.twin = ({name: members[name] for name in after} for members in (self.model, self.twin))
        ranks = [before.index(name) for name, _ in self.entries]
        if ranks == sorted(ranks):  # else the group keeps an order of its own
            self.entries.sort(key=lambda entry: after.index(entry[0]))

    def drop_tied(self, name: str) -> None:
        """Take one of two names out; its entry goes to the other."""
        heir = next(
            (second if first == name else first for second, first in self.ties.items() if name in (second, first))
        )
        self.ties = {second: first for second, first in self.ties.items() if name not in (second, first)}
        at = [each for each, _ in self.entries].index(name) if name in dict(self.entries) else None
        for members in (self.model, self.twin):
            del members[name]
        if at is not None:
            _, slots = self.entries.pop(at)
            self.stand((heir, slots), at=at)

    def stand(self, entry: tuple[str, Arrays | None], *, behind: str | None = None, at: int = 0) -> None:
        """Put an entry where the model has its name; behind another, or at a place, where the others are in no such order."""
        ranks = {name: rank for rank, name in enumerate(self.model)}
        line = [ranks[name] for name, _ in self.entries]
        if line == sorted(line):
            at = sum(rank < ranks[entry[0]] for rank in line)
        elif behind is not None:
            at = [name for name, _ in self.entries].index(behind) + 1
        self.entries.insert(at, entry)

    def add(self, near: str, name: str, *, buffer: bool) -> None:
        for members in (self.model, self.twin):
            value = np.zeros((), "i8") if buffer else np.full(members[near].shape[:1], 2, members[near].dtype)
            items = [each for old in members.items() for each in ([old, (name, value)] if old[0] == near else [old])]
            members.clear()
            members.update(items)
        if buffer:
            self.buffers.add(name)
        else:
            self.entries.insert([other for other, _ in self.entries].index(near) + 1, (name, None))


def rows_of(line: Sequence[str], names: Sequence[str]) -> list[list[str]]:
    """Give the names as they stand in rows: next to each other, in one module."""
    rows: list[list[str]] = []
    for before, name in zip(["", *line], line, strict=False):
        if name in names:
            if rows and rows[-1][-1] == before and before.split(".")[:-1] == name.split(".")[:-1]:
                rows[-1].append(name)
            else:
                rows.append([name])
    return rows


def fanned(members: dict[str, Any], parts: dict[str, dict[str, Any]], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in members.items():
        if name not in parts:
            found[name] = value
        for row in rows:
            if name == row[0]:
                given = {n: v for each in row for n, v in parts[each].items()}
                order = walked([n.split(".") for n in given]) if len(row) > 1 else [n.split(".") for n in given]
                found.update((".".join(path), given[".".join(path)]) for path in order)
    return found


def walked(paths: list[list[str]], depth: int = 0) -> list[list[str]]:
    """Give names as one meets them who walks through modules, each whole, in the order in which they are first heard of."""
    inside: dict[str | None, list[list[str]]] = {}
    for path in paths:
        inside.setdefault(path[depth] if depth < len(path) - 1 else None, []).append(path)
    return [path for module, each in inside.items() for path in (each if module is None else walked(each, depth + 1))]


def replaced(members: dict[str, Any], names: Sequence[str], new: dict[str, Any]) -> dict[str, Any]:
    first = next(name for name in members if name in names)
    found: dict[str, Any] = {}
    for name, value in members.items():
        if name == first:
            found.update(new)
        if name not in names:
            found[name] = value
    return found


def made(kind: str, arrays: list[Array], argument: Any) -> list[Array]:
    """Give new arrays from old ones."""
    value = arrays[0]
    if kind == "transpose":
        return [value.transpose(argument)]
    if kind == "split":
        axis, sizes = argument
        return np.split(value, np.cumsum(sizes)[:-1], axis)
    if kind == "concat":
        return [np.concatenate(arrays, argument)]
    if kind == "stack":
        return [np.stack(arrays, argument)]
    if kind == "unstack":
        return [np.take(value, n, argument) for n in range(value.shape[argument])]
    if kind == "reorder":
        return [np.concatenate([np.split(value, len(argument))[block] for block in argument])]
    if kind == "fold":
        return [value.reshape(len(value) // argument, argument, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)]
    if kind == "reshape":
        return [value.reshape(argument)]
    if kind == "cast":
        return [value.astype(argument)]
    if kind == "apply":
        return [value * 2]
    assert kind in {"drop", "move"}
    return []
