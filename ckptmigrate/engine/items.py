"""The items of a checkpoint as one tree of names, for operations on values and for those that cross sections.

An item's name is its path, joined by ``/``: ``values/config/heads``, ``schedulers/0/last_epoch``, ``progress/epoch``,
``optimizers/0/groups/1/lr``; with ``whole`` also ``model/fc.weight`` and ``twins/ema/fc.weight``. Inner nodes have names too, so
a pattern can take a whole dictionary.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ckptmigrate.checkpoint import Progress
from ckptmigrate.operations import Group
from ckptmigrate.tensor import Tensor

from .changes import Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.values import Tree

    from .changes import Say

_FLAT = {"model": 1, "twins": 2}  # how many keys lead to a name, which is one key whatever it holds


class Items:
    """The tree, seen through the checkpoint's own containers: what is changed here is changed there."""

    def __init__(self, checkpoint: Checkpoint, *, whole: bool) -> None:
        self.checkpoint = checkpoint
        self.progress = {
            field.name: value
            for field in fields(Progress)
            if (value := getattr(checkpoint.progress, field.name)) is not None
        }
        self.root: dict[str, Any] = {
            "values": checkpoint.values,
            "schedulers": checkpoint.schedulers,
            "progress": self.progress,
            "optimizers": [{"groups": each.groups, "shared": each.shared} for each in checkpoint.optimizers],
        }
        if whole:
            self.root = {"model": checkpoint.model, "twins": checkpoint.twins, **self.root}
        self.paths: dict[str, tuple[Any, ...]] = {}

    def names(self) -> dict[str, Tree]:
        """Give every node below a section's root by its name. Two nodes that are spelled alike: the first has the name."""
        found: dict[str, Tree] = {}
        for path, value in _walk((), self.root):
            name = "/".join(map(str, path))
            if len(path) > 1 and name not in found:
                found[name], self.paths[name] = value, path
        return found

    def apply(self, changes: Sequence[Change], say: Say) -> None:
        """Take all sources out, then put all targets in."""
        taken = [self.paths[source] for change in changes for source in change.group.sources]
        for path in sorted(taken, key=_backwards, reverse=True):  # the later ones of a list first: indices shift
            self._take(path, say)
        for change in changes:
            for name, value in zip(change.group.targets, change.after, strict=True):
                self._put(name, value, say)
        for field in fields(Progress):
            setattr(self.checkpoint.progress, field.name, self.progress.get(field.name))

    def _node(self, path: tuple[Any, ...]) -> Any:
        node: Any = self.root
        for key in path:
            node = node[key]
        return node

    def _take(self, path: tuple[Any, ...], say: Say) -> None:
        parent = self._node(path[:-1])
        if isinstance(parent, dict | list):
            del parent[path[-1]]
        else:
            say(f"{'/'.join(map(str, path))}: lies in a tuple, out of which nothing can be taken")

    def _put(self, name: str, value: Tree, say: Say) -> None:
        section, *rest = name.split("/")
        flat = _FLAT.get(section)
        keys = rest if flat is None else [*rest[: flat - 1], "/".join(rest[flat - 1 :])]
        if section not in self.root or not keys or not all(keys):
            say(f"{name}: is no item; items begin with {', '.join(f'{each}/' for each in self.root)}")
            return
        if flat is not None and not isinstance(value, Tensor):
            say(f"{name}: takes a tensor, and this is a {type(value).__name__}")
            return
        if section == "progress" and (len(keys) > 1 or keys[0] not in {field.name for field in fields(Progress)}):
            say(f"{name}: progress has {', '.join(field.name for field in fields(Progress))}")
            return
        node: Any = self.root[section]
        for key in keys[:-1]:
            node = node.setdefault(key, {}) if isinstance(node, dict) else self._member(node, key)
        last = keys[-1]
        if isinstance(node, dict) and last not in node:
            node[last] = value
        elif isinstance(node, list) and last == str(len(node)):
            node.append(value)
        else:
            say(f"{name}: cannot be put there")

    def _member(self, node: Any, key: str) -> Any:
        return node[int(key)] if isinstance(node, list) and key.isdecimal() and int(key) < len(node) else None


def outermost(groups: Sequence[Group]) -> list[Group]:
    """Give the groups without those that take a node out of another that is taken: the larger node is meant."""
    taken = {source for group in groups for source in group.sources}

    def inside(name: str) -> bool:
        parts = name.split("/")
        return any("/".join(parts[:depth]) in taken for depth in range(1, len(parts)))

    return [group for group in groups if not any(map(inside, group.sources))]


def crossings(changes: Sequence[Change], before: dict[str, Tensor], after: dict[str, Tensor]) -> list[Change]:
    """Give what these changes are to the model: its own names among the sources and the targets, nothing else."""
    found = []
    for change in changes:
        group = change.group
        sources = [i for i, name in enumerate(group.sources) if name.startswith("model/")]
        targets = [
            (j, own)
            for j, name in enumerate(group.targets)
            if (own := name.removeprefix("model/")) in after and own != name
        ]
        if not sources and not targets:
            continue
        names = tuple(group.sources[i].removeprefix("model/") for i in sources)
        elsewhere = ", ".join(name for name in group.targets if not name.startswith("model/"))
        reason = group.reason or (f"moved to {elsewhere}" if elsewhere else None)
        found.append(
            Change(
                Group(names, tuple(own for _, own in targets), reason=reason),
                tuple(before[name] for name in names),
                tuple(after[own] for _, own in targets),
                tuple(tuple(sources.index(i) for i in change.origins[j] if i in sources) for j, _ in targets),
            )
        )
    return found


def _walk(path: tuple[Any, ...], tree: Tree) -> Iterator[tuple[tuple[Any, ...], Tree]]:
    if path:
        yield path, tree
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _walk((*path, key), value)
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _walk((*path, index), value)


def _backwards(path: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    return tuple((isinstance(key, int), key if isinstance(key, int) else str(key)) for key in path)
