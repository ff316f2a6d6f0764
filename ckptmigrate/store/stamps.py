"""Stamps that a format does not carry by itself: under our key in a dictionary, and in a file beside the file.

    {"ckptmigrate": '{"stamp": {"versions": {"acme.vit": "2.0"}}}', "model": …}     what ``stamp_for`` gives a library; text or the object
    old.mpk.ckptmigrate.json   {"ckptmigrate": 1, "stamp": {…}, "of": {"size": 4711, "sha256": "…"}}     of old.mpk and no other file

A file, its key and the file beside it may tell of different chains; of one chain they must say the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptmigrate import values
from ckptmigrate.checkpoint import Stamp
from ckptmigrate.errors import CheckpointError, CorruptError, SectionError, TensorError, reading
from ckptmigrate.files import SIDECAR
from ckptmigrate.notes import MAJOR, MARK, parsed
from ckptmigrate.values import Ordered, brief

from . import record

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.format import Parts
    from ckptmigrate.limits import Limits
    from ckptmigrate.values import Tree

KEYED = "keyed"  # fact of a file: whether its tree had the stamp as text, and at which position among its keys
BESIDE = "beside"  # fact of a file: where its stamp stands beside it
PIECE = 1 << 20  # bytes that are hashed at once


def completed(parts: Parts, source: Source, limits: Limits) -> Parts:
    """Give the parts with all stamps of a file: its own, that of its tree, that of the file beside it, which is compared with it.

    CheckpointError where two of them disagree, or where the file beside it is of other bytes.
    """
    parts = lifted(parts, limits)
    beside = source.beside(SIDECAR)
    if beside is None:
        return parts
    with reading(beside.name):
        said = parsed(beside.read(0, min(beside.size, limits.text + 1)), "the file", limits)
    of = said.get("of")
    if not isinstance(of, dict) or type(of.get("size")) is not int or not isinstance(of.get("sha256"), str):
        raise CorruptError("tells neither size nor digest of the file that it stamps", path=beside.name)
    size, sha256 = measured(source, of["size"])
    if (size, sha256) != (of["size"], of["sha256"]):
        found = f"{size:,} bytes" if size != of["size"] else f"sha256 {sha256}"
        wanted = f"{of['size']:,} bytes" if size != of["size"] else f"sha256 {of['sha256'][:64]}"
        raise CheckpointError(
            f"stamps a file of {wanted}, and {_last(source.name)} has {found}",
            path=beside.name,
            hint="it was changed or replaced since: remove the stamp beside it, and stamp it again where it still holds",
        )
    note = f"its stamp stands beside it, in {_last(beside.name)}"
    return replace(_joined(parts, said, f"the stamp in {_last(beside.name)}"), facts={**parts.facts, BESIDE: note})


def lifted(parts: Parts, limits: Limits) -> Parts:
    """Give the parts with the stamp that lies under our key at the top of their tree among the notes, and the tree without it."""
    tree = parts.tree
    if not isinstance(tree, dict) or MARK not in tree:
        return parts
    value, where = tree[MARK], f"the key {MARK!r}"
    if not isinstance(value, str | dict):
        raise CorruptError(f"{where} is {brief(value)}, expected the text that stamp_for gives")
    try:
        text = value if isinstance(value, str) else values.dumps(value)
    except (CorruptError, SectionError, TensorError, TypeError, ValueError) as error:
        raise CorruptError(f"{where} is {brief(value)}, expected what stamp_for gives: {error}") from error
    said = parsed(text, where, limits)
    rest = without(tree)
    facts = {**parts.facts, KEYED: (isinstance(value, str), list(tree).index(MARK))}
    return replace(_joined(parts, said, where), tree=rest, facts=facts)


def without(tree: dict[Any, Tree]) -> dict[Any, Tree]:
    """Give a dictionary without our key, of the same class."""
    rest: dict[Any, Tree] = Ordered() if isinstance(tree, Ordered) else {}
    if isinstance(rest, Ordered) and isinstance(tree, Ordered):
        rest.attributes = tree.attributes
    rest.update((key, value) for key, value in tree.items() if key != MARK)
    return rest


def keyed(tree: Tree, stamp: Stamp, form: tuple[bool, int] | None) -> Tree:
    """Give a tree with the stamp under our key, in the form and at the position where it was; as it is where there is nothing to say."""
    notes = record.stamp_notes(stamp)
    if form is None or not notes or not isinstance(tree, dict):
        return tree
    as_text, position = form
    made = without(tree)
    items = list(made.items())
    made.clear()
    made.update([*items[:position], (MARK, values.dumps(notes) if as_text else notes), *items[position:]])
    return made


def measured(source: Source, expected: int | None = None) -> tuple[int, str]:
    """Give size and SHA-256 of a file; of a folder, of the names, sizes and bytes of all its files.

    With another size than ``expected`` nothing is read and the digest is "".
    """
    if not source.is_folder():
        return (source.size, "") if expected not in {None, source.size} else (source.size, _hashed(source).hexdigest())
    total, whole = 0, hashlib.sha256()
    stack = [("", source)]
    while stack:
        at, place = stack.pop()
        for name in place.children():
            below = place.child(name)
            if below.is_folder():
                stack.append((f"{at}{name}/", below))
                continue
            total += below.size
            whole.update(f"{at}{name}\0{below.size}\0".encode())
            whole.update(_hashed(below).digest())
    return total, whole.hexdigest()


def _hashed(source: Source) -> Any:
    made = hashlib.sha256()
    for offset in range(0, source.size, PIECE):
        made.update(source.read(offset, min(PIECE, source.size - offset)))
    return made


def spelled_beside(stamp: Stamp, source: Source) -> bytes:
    """Give the text of the file that stamps a file from beside it."""
    size, sha256 = measured(source)
    said = {MARK: MAJOR, **record.stamp_notes(stamp), "of": {"size": size, "sha256": sha256}}
    return values.dumps(said).encode("ascii") + b"\n"


def _joined(parts: Parts, said: dict[str, Any], where: str) -> Parts:
    """Give the parts with another stamp among their notes; of one chain both must say the same."""
    mine, theirs = record.stamp_of(parts.notes), record.stamp_of(said)
    for chain, version in theirs.versions.items():
        if mine.versions.get(chain, version) != version:
            raise CheckpointError(
                f"{where} says {chain} {version}, the file's own stamp {mine.versions[chain]}",
                candidates=[version, mine.versions[chain]],
            )
    history = mine.history or theirs.history
    both = Stamp({**theirs.versions, **mine.versions}, history)
    return replace(parts, notes={**parts.notes, **record.stamp_notes(both)})


def joined(parts: Parts, text: str, where: str, limits: Limits) -> Parts:
    """Give the parts with the stamp of a text that lay elsewhere; errors as ``completed``."""
    return _joined(parts, parsed(text, where, limits), where)


def _last(name: str) -> str:
    return name.rpartition("/")[2]
