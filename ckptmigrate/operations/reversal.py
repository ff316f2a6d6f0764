r"""The way back of a pattern and its template, where the two together tell every name.

    (.*)\.qkv\.(weight|bias)  →  \1.q.\2         back:  (.*)\.q\.(weight|bias)  →  \1.qkv.\2

A pattern can be turned round when it is literal text and plain groups, one after the other, and the template names every group.
``{}`` in a template is a number that the operation counts itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMBER = 0  # the piece that ``{}`` stands for: group 0 is the whole match and never a piece
COUNTED = r"(\d+)"

Piece = str | int


@dataclass(frozen=True, slots=True)
class _Pattern:
    pieces: tuple[Piece, ...]  # literal text, or the number of a group
    groups: dict[int, str]  # number -> what it matches
    names: dict[str, int]


def turned(pattern: str, template: str, *, named: bool = False, counts: bool = False) -> tuple[str, str] | None:
    r"""Give the pattern of the names that come out and the template of those that went in; None where they do not tell.

    ``named``: give groups names, so that several patterns can share one template whatever their order. ``counts``: one group of
    digits that the template leaves out is the number that is counted, ``{}`` in the template back.
    """
    read = _read(pattern)
    pieces = None if read is None else _read_template(template, read.names, counts=counts)
    if read is None or pieces is None:
        return None
    groups = dict(read.groups)
    source = read.pieces
    if NUMBER in pieces:
        groups[NUMBER] = COUNTED
    unnamed = groups.keys() - set(pieces)
    if counts and NUMBER not in pieces and len(unnamed) == 1 and groups[min(unnamed)] in {r"(\d+)", r"([0-9]+)"}:
        source = tuple(NUMBER if piece in unnamed else piece for piece in source)
    elif unnamed:
        return None
    order = list(dict.fromkeys(piece for piece in pieces if isinstance(piece, int)))
    named = named or len(order) < sum(isinstance(piece, int) for piece in pieces)
    return _as_pattern(pieces, groups, named=named), _as_template(source, order, named=named)


def fanned(pattern: str, templates: Sequence[str]) -> tuple[tuple[str, ...], str] | None:
    """Give the patterns of the names that one name becomes, and the one template that leads back from any of them."""
    for named in (False, True):
        ways = [turned(pattern, template, named=named) for template in templates]
        found = [way for way in ways if way is not None]
        if len(found) == len(ways) and len({whole for _, whole in found}) == 1:
            return tuple(part for part, _ in found), found[0][1]
    return None


def gathered(patterns: Sequence[str], template: str) -> tuple[str, tuple[str, ...]] | None:
    """Give the pattern of the name that several names become, and the templates that lead back to each of them."""
    for named in (False, True):
        ways = [turned(pattern, template, named=named) for pattern in patterns]
        found = [way for way in ways if way is not None]
        if len(found) == len(ways) and len({whole for whole, _ in found}) == 1:
            return found[0][0], tuple(part for _, part in found)
    return None


def _as_pattern(pieces: tuple[Piece, ...], groups: dict[int, str], *, named: bool) -> str:
    out, seen = [], set[int]()
    for piece in pieces:
        if isinstance(piece, str):
            out.append(re.escape(piece))
        elif piece in seen:
            out.append(f"(?P=g{piece})")
        else:
            seen.add(piece)
            out.append(f"(?P<g{piece}>{groups[piece][1:]}" if named else groups[piece])
    return "".join(out)


def _as_template(pieces: tuple[Piece, ...], order: list[int], *, named: bool) -> str:
    out = []
    for index, piece in enumerate(pieces):
        if isinstance(piece, str):
            out.append(piece.replace("\\", r"\\"))
        elif piece not in order:
            out.append("{}")
        elif named:
            out.append(rf"\g<g{piece}>")
        else:
            following = pieces[index + 1] if index + 1 < len(pieces) else ""
            digit = isinstance(following, str) and following[:1].isdecimal()
            out.append(rf"\g<{order.index(piece) + 1}>" if digit else rf"\{order.index(piece) + 1}")
    return "".join(out)


def _read(pattern: str) -> _Pattern | None:
    """Take a pattern apart into text and plain groups; None where it is more than that."""
    pieces: list[Piece] = []
    groups: dict[int, str] = {}
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            escaped = pattern[at + 1 : at + 2]
            if not escaped or escaped.isalnum() or escaped == "_":
                return None
            pieces.append(escaped)
            at += 2
        elif char == "(":
            end = _group_end(pattern, at)
            if end is None or pattern[end : end + 1] in {"*", "+", "?", "{"}:
                return None
            groups[len(groups) + 1] = _unnamed(pattern[at:end])
            pieces.append(len(groups))
            at = end
        elif char in ".^$*+?{}[]|)":
            return None
        else:
            pieces.append(char)
            at += 1
    return _Pattern(_merged(pieces), groups, dict(re.compile(pattern).groupindex))


def _group_end(pattern: str, at: int) -> int | None:
    """Give the place after a group that begins here and holds no other numbered one; None where there is none."""
    body = at + 1
    if pattern.startswith("?", body):
        if not pattern.startswith("?P<", body):
            return None
        body = pattern.index(">", body) + 1
    depth, index = 1, body
    while index < len(pattern):
        char = pattern[index]
        if char == "\\":
            if pattern[index + 1 : index + 2].isdecimal():
                return None  # a look back at another group, which has another number afterwards
            index += 1
        elif char == "[":
            index = pattern.index("]", index + (3 if pattern.startswith("^", index + 1) else 2))
        elif char == "(":
            if not pattern.startswith("?:", index + 1):
                return None
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return index + 1
        index += 1
    return None


def _unnamed(group: str) -> str:
    return re.sub(r"^\(\?P<\w+>", "(", group)


def _read_template(template: str, names: dict[str, int], *, counts: bool) -> tuple[Piece, ...] | None:
    pieces: list[Piece] = []
    for part in re.findall(r"\\g<\w+>|\\[1-9][0-9]?|\\.|\{\}|[^\\]", template, re.DOTALL):
        if part.startswith(r"\g<"):
            name = part[3:-1]
            pieces.append(int(name) if name.isdecimal() else names[name])
            if pieces[-1] == NUMBER:
                return None  # the whole match: what went in stands in what comes out
        elif part == "{}" and counts:
            pieces.append(NUMBER)
        elif part.startswith("\\") and part[1:].isdecimal():
            pieces.append(int(part[1:]))
        elif part == r"\\":
            pieces.append("\\")
        elif part.startswith("\\"):
            return None
        else:
            pieces.append(part)
    return _merged(pieces)


def _merged(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Put neighbouring text together."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, str) and isinstance(last, str):
            merged[-1] = last + piece
        else:
            merged.append(piece)
    return tuple(merged)
