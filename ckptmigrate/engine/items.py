"""What operations on values, and those that cross sections, do to the tree of a checkpoint's items."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.checkpoint import Progress, items_of, named
from ckptmigrate.operations import Group
from ckptmigrate.tensor import Tensor

from .changes import Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.values import Tree

    from .changes import Say

_FLAT = {"model": 1, "twins": 2}  # how many keys lead to a name, which is one key whatever it holds


class Items:
    """The tree, seen through the checkpoint's own containers: what is changed here is changed there."""

    def __init__(self, checkpoint: Checkpoint, *, whole: bool) -> None:
        self.checkpoint = checkpoint
        self.root = items_of(checkpoint, whole=whole)
        self.progress = self.root["progress"]
        self.paths: dict[str, tuple[Any, ...]] = {}

    def names(self) -> dict[str, Tree]:
        """Give every node below a section's root by its name. Two nodes that are spelled alike: the first has the name."""
        found: dict[str, Tree] = {}
        for path, name, value in named(self.root):
            if name not in found:
                found[name], self.paths[name] = value, path
        return found

    def apply(self, changes: Sequence[Change], say: Say) -> None:
        """Take all sources out, then put all targets in; what keeps its name keeps its place."""
        staying = [change for change in changes if change.group.sources == change.group.targets]
        changes = [change for change in changes if change.group.sources != change.group.targets]
        for change in staying:
            for name, value in zip(change.group.targets, change.after, strict=True):
                self._replace(self.paths[name], value, say)
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

    def _replace(self, path: tuple[Any, ...], value: Tree, say: Say) -> None:
        parent = self._node(path[:-1])
        if isinstance(parent, dict | list):
            parent[path[-1]] = value
        else:
            say(f"{'/'.join(map(str, path))}: lies in a tuple, in which nothing can be replaced")

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


def crossed_with(change: Change, twin: Mapping[str, Tensor]) -> Change | None:
    """Give what a crossing is to a twin: its names move where the model's do, and leave it where they leave the model."""
    group = change.group
    kept = [i for i, name in enumerate(group.sources) if name in twin]
    if not kept:
        return None
    targets = [(j, origin[0]) for j, origin in enumerate(change.origins) if len(origin) == 1 and origin[0] in kept]
    names = tuple(group.sources[i] for i in kept)
    return Change(
        replace(group, sources=names, targets=tuple(group.targets[j] for j, _ in targets)),
        tuple(twin[name] for name in names),
        tuple(twin[group.sources[i]] for _, i in targets),
        tuple((kept.index(i),) for _, i in targets),
    )


def _backwards(path: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    return tuple((isinstance(key, int), key if isinstance(key, int) else str(key)) for key in path)
