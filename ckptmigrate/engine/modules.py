"""What a checkpoint says of modules follows their tensors: entries of ``modules``, and what in a state dict is no tensor.

A module's entry is renamed when all tensors under it, at any depth, moved by one replacement of its prefix; where none of its
own moved and those of its children still lie under it, it stays; otherwise it is left out, because what it says (a version, its
fields) is about names that are gone.
A module without tensors goes where its nearest ancestor went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ckptmigrate.checkpoint import Checkpoint, How

    from .changes import Change

REASON = "its tensors were not moved by one replacement of the module's name"
EXTRA = "_extra_state"


class Trail:
    """Where the model's names went, over all operations of one step."""

    def __init__(self, names: Iterable[str]) -> None:
        self.now: dict[str, tuple[str, ...]] = {name: (name,) for name in names}

    def follow(self, changes: Sequence[Change]) -> None:
        """Note what the changes of one operation did; names that were added have no trail."""
        into: dict[str, tuple[str, ...]] = {}
        for change in changes:
            for i, source in enumerate(change.group.sources):
                into[source] = tuple(name for name, _ in change.into(i))
        self.now = {
            name: tuple(dict.fromkeys(t for n in now for t in into.get(n, (n,)))) for name, now in self.now.items()
        }

    @property
    def moved(self) -> bool:
        """Say whether any name is not where it was."""
        return any(now != (name,) for name, now in self.now.items())


def settle(checkpoint: Checkpoint, trail: Trail) -> None:
    """Rename, keep or leave out every module's entry, and every value that stands in the state dict under a module."""
    if not trail.moved:
        return
    went = _prefixes(trail)
    modules, ledger = checkpoint.modules, checkpoint.ledger
    goals = {path: _goal(path, went) for path in modules}
    staying = {path for path, goal in goals.items() if goal == path}
    settled: dict[str, dict[str, Any]] = {}
    moves: dict[str, tuple[tuple[str, ...], How]] = {}
    for path, entry in modules.items():
        goal = goals[path]
        clash = goal is not None and goal != path and (goal in staying or goal in settled)
        if goal is None or clash:
            reason = f"module {goal!r} has an entry of its own" if clash else REASON
            ledger.drop_under(f"modules/{path}", reason, "left out")
            continue
        settled[goal] = entry
        if goal != path:
            for item in ledger.under(f"modules/{path}"):
                moves[item] = ((f"modules/{goal}" + item.removeprefix(f"modules/{path}"),), "renamed")
    ledger.rename_all(moves)
    checkpoint.modules = settled
    _settle_values(checkpoint, went)


def _settle_values(checkpoint: Checkpoint, went: dict[str, str | None]) -> None:
    values, ledger = checkpoint.values.get("model"), checkpoint.ledger
    if not isinstance(values, dict):
        return
    settled: dict[Any, Any] = {}
    moves: dict[str, tuple[tuple[str, ...], How]] = {}
    for name, value in values.items():
        path, _, leaf = str(name).rpartition(".")
        goal = _goal(path, went)
        item = f"values/model/{name}"
        if goal is None and leaf == EXTRA:
            ledger.drop_under(item, REASON, "left out")
            continue
        target = name if goal in (None, path) else f"{goal}.{leaf}" if goal else leaf
        if target in settled or (
            target != name and target in values and _goal(str(target).rpartition(".")[0], went) == goal
        ):
            ledger.drop_under(item, f"{target} exists already", "left out")
            continue
        settled[target] = value
        if target != name:
            for under in ledger.under(item):
                moves[under] = ((f"values/model/{target}" + under.removeprefix(item),), "renamed")
    ledger.rename_all(moves)
    values.clear()
    values.update(settled)


def _prefixes(trail: Trail) -> dict[str, str | None]:
    """Give for every module that has tensors the prefix that all of them have now, None where they have no one prefix.

    A module whose own tensors stayed keeps its prefix while its children's still lie under it, unless another took its place.
    """
    found: dict[str, set[str | None]] = {}
    holds: dict[str, bool] = {}
    for name, now in trail.now.items():
        parts = name.split(".")
        for depth in range(len(parts)):
            path, rest = ".".join(parts[:depth]), ".".join(parts[depth:])
            found.setdefault(path, set()).add(_replaced(path, rest, now))
            inside = now == (name,) if depth == len(parts) - 1 else all(_under(path, target) for target in now)
            holds[path] = holds.get(path, True) and inside
    went = {path: next(iter(ways)) if len(ways) == 1 else None for path, ways in found.items()}
    taken = set(went.values())
    return {path: path if goal is None and holds[path] and path not in taken else goal for path, goal in went.items()}


def _under(path: str, name: str) -> bool:
    return not path or name.startswith(f"{path}.")


def _replaced(path: str, rest: str, now: tuple[str, ...]) -> str | None:
    if len(now) != 1:
        return None
    (target,) = now
    if target == (f"{path}.{rest}" if path else rest):
        return path
    if target == rest:
        return ""
    return target.removesuffix(f".{rest}") if target.endswith(f".{rest}") else None


def _goal(path: str, went: dict[str, str | None]) -> str | None:
    """Tell where a module went; one without tensors goes with its nearest ancestor, and stays where that has no one place."""
    if path in went:
        return went[path]
    tail, ancestor = "", path
    while ancestor:
        ancestor, _, leaf = ancestor.rpartition(".")
        tail = f".{leaf}{tail}"
        if ancestor in went:
            goal = went[ancestor]
            return path if goal is None else (goal + tail).lstrip(".")
    return path
