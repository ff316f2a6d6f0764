r"""training_state.json: what a checkpoint folder of ours says besides tensors, as one JSON object.

    0     {"ckptmigrate":1        the mark and the major version of this object; sniffed, so it comes first
          ,"stamp":{...}          versions by chain, and the history of migrators applied
          ,"record":{...}         what has no tensor and no file of its own: progress, groups, value trees (values._codec)
          }\n                     the last byte; a text editor may add spaces anywhere

Strict JSON (RFC 8259) in ASCII: no NaN, no name twice, nothing behind the object but white space. Its tensors lie in the files
beside it, under the names that the record gives. A newer major version is refused by its number; within one, names that are
new are carried and not read. A whole file is small: 16 MiB (``limits.text``) hold the groups of a million parameters.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import LimitError, reading
from ckptmigrate.format import Blueprint, Format, Match, Parts, ReadOptions, WriteOptions
from ckptmigrate.notes import MAJOR, MARK, parsed, spelled
from ckptmigrate.values import NOTHING, brief

if TYPE_CHECKING:
    from ckptmigrate.files import Source

HEAD = 256  # bytes in which the mark must appear: the object's first name, after whatever spaces an editor put there
MARKED = re.compile(rb'\s*\{\s*"ckptmigrate"\s*:')


def sniff(source: Source) -> Match | None:
    """Claim a JSON object whose first name is "ckptmigrate"."""
    if source.is_folder() or not MARKED.match(source.read(0, min(HEAD, source.size))):
        return None
    return Match(FORMAT)


def read(source: Source, options: ReadOptions) -> Parts:
    """Give the object as ``notes``; no tensors.

    LimitError beyond ``limits.text`` bytes; CorruptError where it is no such object; UnsupportedFormatError of a newer version.
    """
    with reading(source.name):
        limit = options.limits.text
        if source.size > limit:
            raise LimitError(f"{source.size:,} bytes of text, limit is {limit:,}", limit=limit, claimed=source.size)
        return Parts(tensors={}, notes=parsed(source.read(0, source.size), "the object", options.limits))


def lay_out(parts: Parts, options: WriteOptions, name: str) -> Blueprint:  # noqa: ARG001 - every writer has this face
    """Give the blueprint of one file: the mark, then ``notes`` in their order. Tensors and trees are problems."""
    notes: dict[str, Any] = {MARK: MAJOR} | {key: value for key, value in parts.notes.items() if key != MARK}
    blueprint = Blueprint(last=name)
    text = spelled(notes, blueprint).encode("ascii") + b"\n"
    blueprint.files[name], blueprint.sizes[name] = [(0, text)], len(text)
    blueprint.problems += [f'"{tensor}" is a tensor, and {name} holds none' for tensor in parts.tensors or {}]
    if parts.tree is not NOTHING:
        blueprint.problems.append(f"{brief(parts.tree)} is a tree, and {name} holds one record only")
    return blueprint


FORMAT = Format(
    "state_json",
    sniff=sniff,
    read=read,
    lay_out=lay_out,
    suffixes=(".json",),
    current=True,
    about="our folder's training_state.json: stamp, progress and values",
)
