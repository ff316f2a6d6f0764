"""What a checkpoint says of modules follows their tensors: entries of ``modules``, and what in a state dict is no tensor.

A module's entry is renamed when all tensors under it, at any depth, moved by one replacement of its prefix; where none of its
own moved and those of its children still lie under it, it stays; otherwise it is left out, because what it says (a version, its
fields) is about names that are gone.
A module without tensors goes where its nearest ancestor went.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptmigrate.values import Ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ckptmigrate.checkpoint import Checkpoint, How, Ledger

    from .changes import Change

REASON = "its tensors were not moved by one replacement of the module's name"
DROPPED = "all its tensors were dropped"
EXTRA, METADATA = "_extra_state", "_metadata"


class Trail:
    """Where the model's names went, over all operations of one step."""

    def __init__(self, names: Iterable[str]) -> None:
        self.now: dict[str, tuple[str, ...]] = {name: (name,) for name in names}

    def follow(self, changes: Sequence[Change]) -> None:
        """Note what the changes of one operation did; names that were added have no trail."""
        into: dict[str, tuple[str, ...]] = {}
        for change in changes:
            for source, outcome in zip(change.group.sources, change.outcomes(), strict=True):
                into[source] = tuple(name for name, _ in outcome)
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
    went = _Went.of(trail)
    checkpoint.modules = _settled(checkpoint.modules, "modules", went, checkpoint)
    values = checkpoint.values
    members = [("values/model", values.get("model"))]
    members += [(f"values/twins/{name}", others) for name, others in values.get("twins", {}).items()]
    for item, others in members:
        if isinstance(others, dict):
            _settle_values(others, item, went, checkpoint)
        versions = others.attributes.get(METADATA) if isinstance(others, Ordered) else None
        if isinstance(others, Ordered) and versions:
            others.attributes[METADATA] = Ordered(_settled(versions, f"{item}/@{METADATA}", went, checkpoint))


def _settled(
    modules: dict[str, dict[str, Any]], prefix: str, went: _Went, checkpoint: Checkpoint
) -> dict[str, dict[str, Any]]:
    goals = {path: went.goal(path) for path in modules}
    staying = {path for path, goal in goals.items() if goal == path}
    settled: dict[str, dict[str, Any]] = {}
    lost: dict[str, str] = {}
    moved: dict[str, str] = {}
    for path, entry in modules.items():
        goal = goals[path]
        clash = goal is not None and goal != path and (goal in staying or goal in settled)
        if goal is None or clash:
            lost[f"{prefix}/{path}"] = f"module {goal!r} has an entry of its own" if clash else went.why(path)
            continue
        settled[goal] = entry
        if goal != path:
            moved[f"{prefix}/{path}"] = f"{prefix}/{goal}"
    _account(checkpoint.ledger, lost, moved)
    return settled


def _settle_values(values: dict[Any, Any], prefix: str, went: _Went, checkpoint: Checkpoint) -> None:
    settled: dict[Any, Any] = {}
    lost: dict[str, str] = {}
    moved: dict[str, str] = {}
    for name, value in values.items():
        path, _, leaf = str(name).rpartition(".")
        goal = went.goal(path)
        item = f"{prefix}/{name}"
        if goal is None and leaf == EXTRA:
            lost[item] = went.why(path)
            continue
        target = name if goal in (None, path) else f"{goal}.{leaf}" if goal else leaf
        if target in settled or (
            target != name and target in values and went.goal(str(target).rpartition(".")[0]) == goal
        ):
            lost[item] = f"{target} exists already"
            continue
        settled[target] = value
        if target != name:
            moved[item] = f"{prefix}/{target}"
    _account(checkpoint.ledger, lost, moved)
    values.clear()
    values.update(settled)


def _account(ledger: Ledger, lost: Mapping[str, str], moved: Mapping[str, str]) -> None:
    """Write down what was left out and what is under another name now: one walk over the ledger for all of them."""
    found = ledger.under_all({*lost, *moved})
    moves: dict[str, tuple[tuple[str, ...], How]] = {
        item: ((goal + item.removeprefix(source),), "renamed")
        for source, goal in moved.items()
        for item in found.get(source, ())
    }
    ledger.drop_all_under(lost, "left out")
    ledger.rename_all(moves)


@dataclass(frozen=True, slots=True)
class _Went:
    """Where modules went: for each that has tensors the prefix that all of them have now, None where they have no one prefix."""

    prefixes: dict[str, str | None]
    gone: set[str]  # modules of which no tensor is left

    @classmethod
    def of(cls, trail: Trail) -> _Went:
        """Ask the names. A module whose own tensors stayed keeps its prefix while its children's still lie under it, unless another took its place."""
        found: dict[str, set[str | None]] = {}
        holds: dict[str, bool] = {}
        left: set[str] = set()
        for name, now in trail.now.items():
            parts = name.split(".")
            for depth in range(len(parts)):
                path, rest = ".".join(parts[:depth]), ".".join(parts[depth:])
                found.setdefault(path, set()).add(_replaced(path, rest, now))
                inside = now == (name,) if depth == len(parts) - 1 else all(_under(path, target) for target in now)
                holds[path] = holds.get(path, True) and inside
                if now:
                    left.add(path)
        went = {path: next(iter(ways)) if len(ways) == 1 else None for path, ways in found.items()}
        taken = set(went.values())
        candidates = left - taken
        stays = {path for path, goal in went.items() if goal is None and holds[path] and path in candidates}
        return cls({path: path if path in stays else goal for path, goal in went.items()}, went.keys() - left)

    def goal(self, path: str) -> str | None:
        """Tell where a module went; one without tensors goes with its nearest ancestor, and stays where that has no one place."""
        if path in self.prefixes:
            return self.prefixes[path]
        tail, ancestor = "", path
        while ancestor:
            ancestor, _, leaf = ancestor.rpartition(".")
            tail = f".{leaf}{tail}"
            if ancestor in self.prefixes:
                goal = self.prefixes[ancestor]
                return path if goal is None else (goal + tail).lstrip(".")
        return path

    def why(self, path: str) -> str:
        """Give the reason why a module's entry has no place any more."""
        return DROPPED if path in self.gone else REASON


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
