"""Rebuilding of trees from the leaves up, and the taking out of what nobody can carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ckptmigrate.errors import LimitError
from ckptmigrate.limits import LIMITS, Limits

from .tree import (
    LEAVES,
    ROOT,
    Inert,
    Known,
    Ordered,
    Path,
    Tree,
    check_count,
    children,
    put_child,
    reason,
    spell,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Opened: TypeAlias = "tuple[Sequence[tuple[Any, Any]], Callable[[list[Any]], Any]] | tuple[None, Any]"
"""What ``fold`` needs of a node: steps and children and how to build from theirs, or (None, what becomes of a leaf)."""

_GONE = object()


def fold(
    tree: Any,
    opened: Callable[[Path, Any], Opened],
    cycle: Callable[[Path], Any],
    limits: Limits = LIMITS,
    room: int = 0,
) -> Any:
    """Build a new tree from the leaves up, without recursion, in order.

    ``cycle`` says what becomes of a container that lies within itself. LimitError beyond ``limits.nodes``, and beyond
    ``limits.nesting`` less ``room`` levels.
    """
    done: list[Any] = []
    count = 0
    active: set[int] = set()
    frames: list[tuple[Path, int, Iterator[tuple[Any, Any]], Any, list[Any]]] = [
        ((), 0, iter([(ROOT, tree)]), None, done)
    ]
    while frames:
        path, ident, rest, build, built = frames[-1]
        for step, node in rest:
            count += 1
            check_count(count, limits)
            place = path if step is ROOT else (*path, step)
            if id(node) in active:
                built.append(cycle(place))
                continue
            below, made = opened(place, node)
            if below is None:
                built.append(made)
                continue
            if len(frames) > limits.nesting - room:
                msg = f"{spell(place[:8])}/...: nested deeper than the {limits.nesting - room} levels allowed"
                raise LimitError(msg, limit=limits.nesting - room)
            active.add(id(node))
            frames.append((place, id(node), iter(below), made, []))
            break
        else:
            frames.pop()
            active.discard(ident)
            if frames:
                frames[-1][4].append(build(built))
    return done[0]


def prune(tree: Tree, predicate: Callable[[Inert], bool] = lambda _node: True) -> tuple[Tree, list[tuple[Path, str]]]:
    """Take out the Inert nodes that ``predicate`` names: a key goes, an item becomes None. Gives the tree, and path and reason of each.

    The tree that is passed stays as it is; parts without such nodes are shared with the result. A container that holds itself
    goes too, as nothing that writes could end.
    """
    removed: list[tuple[Path, str]] = []

    def gone(path: Path, why: str) -> Any:
        removed.append((path, why))
        return _GONE

    def opened(path: Path, node: Any) -> Opened:
        if isinstance(node, Inert):
            return None, gone(path, reason(node)) if predicate(node) else node
        if not isinstance(node, (dict, list, tuple, Known)):
            return None, node
        kept: list[tuple[Any, Any]] = []
        before = len(removed)
        for step, child in children(node):
            bad = next((n for n in _inert_of(step) if predicate(n)), None) if isinstance(node, dict) else None
            if bad is None:
                kept.append((step, child))
            else:
                gone((*path, step), f"a key that is {reason(bad)}")
        whole = len(removed) == before
        return kept, lambda built: _pruned(node, kept, built, whole=whole)

    pruned = fold(tree, opened, lambda path: gone(path, "a container that holds itself"))
    return (None if pruned is _GONE else pruned), removed


def _inert_of(key: Any) -> Iterator[Inert]:
    if type(key) not in LEAVES:
        yield from (node for _, node in walk(key) if isinstance(node, Inert))


def _pruned(node: Any, kept: Sequence[tuple[Any, Any]], built: list[Any], *, whole: bool) -> Any:
    if whole and all(new is old for new, (_, old) in zip(built, kept, strict=True)):
        return node
    if not isinstance(node, dict):
        items = [None if new is _GONE else new for new in built]
        if isinstance(node, Known):
            return Known(node.path, tuple(items))
        return items if isinstance(node, list) else tuple(items)
    made: dict[Any, Any] = Ordered() if isinstance(node, Ordered) else {}
    for (step, _), new in zip(kept, built, strict=True):
        if new is not _GONE:
            put_child(made, step, new)
    return made
