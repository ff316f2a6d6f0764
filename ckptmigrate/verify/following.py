"""Names of one checkpoint as the other calls them: renames of tensors, followed into everything that is named after one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from ckptmigrate.checkpoint import Checkpoint

    from .contents import Contents

_DISPLACED = " (displaced)"


@dataclass(frozen=True, slots=True)
class Names:
    """What the right calls the tensors and modules of the left; ``renamed``: the tensors that have another name there."""

    renamed: Mapping[str, str]
    modules: Mapping[str, str]
    taken: frozenset[str]

    @classmethod
    def of(cls, renamed: Mapping[str, str], left: Checkpoint, right: Checkpoint) -> Self:
        """Follow renames of the left's tensors to modules: each with all its tensors, or with the nearest module that has some."""
        moved = _moves({name: renamed.get(name, name) for name in left.model})
        there = {name: _under(name, moved) for name in left.modules}
        count = Counter(there.values())  # two modules that became one have no versions to compare
        modules = {n: now for n, now in there.items() if now != n and now in right.modules and count[now] == 1}
        return cls(renamed, modules, frozenset((*renamed.values(), *modules.values())))

    def label(self, name: str) -> str:
        """Give a tensor's name on the right. One whose own name another took there gets one that nothing has: see ``own``."""
        return self.renamed.get(name) or self._kept(name)

    def module(self, name: str) -> str:
        """Give a module's name on the right."""
        return self.modules.get(name) or self._kept(name)

    def _kept(self, name: str) -> str:
        return f"{name}{_DISPLACED}" if name in self.taken else name


def followers(renamed: Mapping[str, str], old: Contents, new: Contents) -> dict[str, str]:
    """Give the renames of tensors whose contents prove nothing, and whose module moved as those of its tensors say that do.

    Only where the right has the same content there.
    """
    proven = {name: renamed.get(name, name) for name in old.of if name in renamed or _stays(name, old, new)}
    moved, taken = _moves(proven), set(renamed.values())
    found: dict[str, str] = {}
    for name, content in old.of.items():
        now = name if name in renamed else _under(name, moved)
        if now != name and now not in taken and new.of.get(now) == content and old.of.get(now) != content:
            found[name] = now
    return {name: now for name, now in found.items() if new.of.get(name) != old.of[name]}


def _stays(name: str, old: Contents, new: Contents) -> bool:
    return old.of[name] in old.proofs and new.of.get(name) == old.of[name]


def _moves(names: Mapping[str, str]) -> dict[str, str | None]:
    """Give the new name of every module of these tensors, with a dot before it (the root is ""); None where they went several ways."""
    found: dict[str, str | None] = {}
    for name, now in names.items():
        before, after = f".{name}", f".{now}"
        at = before.rfind(".")
        while at >= 0:
            module, suffix = before[:at], before[at:]
            stem = after.removesuffix(suffix) if after.endswith(suffix) else None
            found[module] = stem if found.get(module, stem) == stem else None
            at = before.rfind(".", 0, at)
    return found


def _under(name: str, moved: Mapping[str, str | None]) -> str:
    """Give a name as the nearest module around it that has moved says; itself where that went several ways, or nowhere."""
    before = f".{name}"
    at = len(before)
    while at >= 0 and before[:at] not in moved:
        at = before.rfind(".", 0, at)
    stem = moved.get(before[:at]) if at >= 0 else None
    return name if stem is None else (stem + before[at:]).removeprefix(".")


def own(item: str) -> str:
    """Give an item as its own side calls it."""
    return item.replace(_DISPLACED, "")
