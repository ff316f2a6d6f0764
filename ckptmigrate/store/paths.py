"""Where things stand in a file's tree: the node at a path, a tree without some nodes, and paths that people type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import SectionError
from ckptmigrate.values import NOTHING, Ordered, spell
from ckptmigrate.values.tree import spell_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckptmigrate.values import Path, Tree

AROUND = "around"  # fact of an origin: the containers above the sections, as they were, by path
SHOWN = 20  # keys in a message
SEPARATORS = "./"  # between the keys of a typed path; "/" is how messages spell one
TRIES = 10_000  # nodes that the reading of one typed path looks at: keys that are prefixes of each other multiply


def at(tree: Tree, path: Path) -> Tree:
    """Give the node at a path of keys and indices, NOTHING where there is none."""
    for key in path:
        if isinstance(tree, dict):
            tree = tree.get(key, NOTHING)
        elif isinstance(tree, list | tuple) and isinstance(key, int) and 0 <= key < len(tree):
            tree = tree[key]
        else:
            return NOTHING
    return tree


def resolve(tree: Tree, said: Path | str) -> Path:
    """Give the path that a caller means: one of keys as it is, or text, "trainer.net.0", read against the keys that are there.

    Keys may hold the separators themselves, or be numbers: the longest key that fits is tried first, then shorter ones.
    SectionError tells how far it leads and which keys stand there.
    """
    if not isinstance(said, str):
        if at(tree, tuple(said)) is NOTHING:
            raise _missing(tree, spell(tuple(said)), tree, ())
        return tuple(said)
    deepest: tuple[Path, Tree] = ((), tree)
    stack: list[tuple[Path, Tree, str]] = [((), tree, said)]
    tries = 0
    while stack and tries < TRIES:
        tries += 1
        path, node, rest = stack.pop()
        if not rest:
            return path
        if len(path) > len(deepest[0]):
            deepest = (path, node)
        found = [(key, text, below) for key, text, below in _spelled(node) if _leads(rest, text)]
        found.sort(key=lambda each: len(each[1]))  # the longest lies on top
        stack.extend(((*path, key), below, rest[len(text) + 1 :]) for key, text, below in found)
    raise _missing(tree, said, deepest[1], deepest[0])


def _spelled(node: Tree) -> Iterator[tuple[Any, str, Tree]]:
    return ((key, spell_step(key), below) for key, below in members(node))


def _leads(rest: str, text: str) -> bool:
    return rest == text or (rest.startswith(text) and rest[len(text)] in SEPARATORS and len(rest) > len(text) + 1)


def _missing(tree: Tree, said: str, node: Tree, path: Path) -> SectionError:
    where = f" at {spell(path)}" if path else ""
    return SectionError(f"nothing at {said}; there are{where}: {keys(node)}", present=names(node), root=names(tree))


def members(tree: Tree) -> Iterator[tuple[Any, Tree]]:
    """Give the keys and nodes right below a dict or list; nothing for a leaf."""
    if isinstance(tree, dict):
        yield from tree.items()
    elif isinstance(tree, list | tuple):
        yield from enumerate(tree)


def names(tree: Tree) -> list[str]:
    """Give the keys of a node as people read them."""
    return [spell_step(key) for key, _ in members(tree)]


def keys(tree: Tree) -> str:
    """Give the keys of a node as a message lists them."""
    found = names(tree)
    if not found:
        return f"none (a {type(tree).__name__})"
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def without(tree: Tree, paths: Sequence[Path]) -> Tree:
    """Give a tree without the nodes at ``paths``: keys are gone, list items None, containers that are empty then are gone too."""
    if () in paths:
        return NOTHING
    below: dict[Any, list[Path]] = {}
    for path in paths:
        below.setdefault(path[0], []).append(path[1:])
    if isinstance(tree, dict):
        kept = Ordered() if isinstance(tree, Ordered) else {}
        if isinstance(kept, Ordered) and isinstance(tree, Ordered):
            kept.attributes = tree.attributes
        for key, value in tree.items():
            rest = without(value, below[key]) if key in below else value
            if rest is not NOTHING:
                kept[key] = rest
        return kept or NOTHING
    items = [without(value, below[i]) if i in below else value for i, value in enumerate(tree)]
    return NOTHING if all(item is NOTHING for item in items) else [None if item is NOTHING else item for item in items]
