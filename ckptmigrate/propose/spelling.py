"""How a name is spelled: segments between dots, with slots for numbers; and one pattern for many names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Slot:
    """A number that varies: any, or one of those ``listed`` where other names go on with others."""

    number: int
    listed: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        """Give what matches it."""
        return "|".join(self.listed) or r"\d+"


Piece: TypeAlias = "str | Slot"
Segment: TypeAlias = "tuple[Piece, ...]"  # what stands between two dots
Spelling: TypeAlias = "tuple[Segment, ...]"

NUMBER = re.compile(r"([0-9]+)")
ALTERNATIVES = 4  # more of them read worse than "anything"


def covering(names: Sequence[str], present: Collection[str]) -> str:
    """Give one pattern that matches these of the names that are present, and no other."""
    others = set(present) - set(names)
    if not others and len(names) > 1:
        return ".*"
    templates: dict[Hashable, list[str]] = {}
    for name in names:
        templates.setdefault(template(name), []).append(name)
    found = [s for members in templates.values() for s in _spellings(members, others)]
    loose = dotted(".*", _either([pattern_of(s[-1:]) for s in found]))
    tried = [loose, factored(found)] if len(found) > ALTERNATIVES else [factored(found)]
    for pattern in map(re.compile, tried):
        if all(map(pattern.fullmatch, names)) and not any(map(pattern.fullmatch, others)):
            return pattern.pattern
    return _either(map(escaped, names))  # names with nothing between two dots, which no segment spells


def escaped(text: str) -> str:
    """Give a pattern that matches just this text; only what means something is escaped."""
    return re.sub(r"([\\.^$*+?{}\[\]|()])", r"\\\1", text)


def template(name: str) -> tuple[str, ...]:
    """Give a name without its numbers: what stands between them."""
    return tuple(NUMBER.split(name)[::2])


def columns(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Give the numbers of names that are alike but for them: one column for each place."""
    return list(zip(*(NUMBER.split(name)[1::2] for name in names), strict=True))


def spelled(name: str, numbers: Sequence[Piece]) -> Spelling:
    """Give a name's segments with these pieces where its numbers stand."""
    segments: list[list[Piece]] = [[]]
    for index, text in enumerate(NUMBER.split(name)):
        if index % 2:
            segments[-1].append(numbers[index // 2])
            continue
        first, *others = text.split(".")
        segments[-1] += [first] if first else []
        segments += [[each] if each else [] for each in others]
    return tuple(tuple(_fused(segment)) for segment in segments)


def _fused(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join neighbouring texts, so that equal segments are equal values."""
    held = ""
    for piece in pieces:
        if isinstance(piece, str):
            held += piece
            continue
        if held:
            yield held
        held = ""
        yield piece
    if held:
        yield held


def common(spellings: Sequence[Spelling]) -> tuple[int, int]:
    """Give how many segments all begin with, and how many more all end with."""
    shortest = min(map(len, spellings))
    first = spellings[0]
    head = next((i for i in range(shortest) if any(s[i] != first[i] for s in spellings)), shortest)
    head = min(head, shortest - 1) if len(set(spellings)) == 1 else head
    left = shortest - head
    tail = next((i for i in range(left) if any(s[-1 - i] != first[-1 - i] for s in spellings)), left)
    return head, tail


def _spellings(names: Sequence[str], others: Collection[str]) -> list[Spelling]:
    """Give spellings that match names which are alike but for numbers, and none of the others: one where it can be."""
    varying = columns(names)
    for listed in (False, True):
        numbers = [
            c[0] if len(set(c)) == 1 else Slot(i, tuple(dict.fromkeys(c)) * listed) for i, c in enumerate(varying)
        ]
        one = spelled(names[0], numbers)
        pattern = re.compile(pattern_of(one))
        if not any(map(pattern.fullmatch, others)):
            return [one]
    return [spelled(name, NUMBER.split(name)[1::2]) for name in names]


def pattern_of(spelling: Spelling) -> str:
    """Give a pattern without groups."""
    return dotted(*("".join(_matching(piece) for piece in segment) for segment in spelling))


def _matching(piece: Piece) -> str:
    if isinstance(piece, str):
        return escaped(piece)
    return f"(?:{piece.pattern})" if piece.listed else piece.pattern


def factored(spellings: Iterable[Spelling], *, outer: bool = False) -> str:
    """Give a pattern without groups for one or several spellings, with what they share written once. ``outer``: it is a group's."""
    different = list(dict.fromkeys(spellings))
    if len(different) == 1:
        return pattern_of(different[0])
    head, tail = common(different)
    middles = [s[head : len(s) - tail] for s in different]
    if (head or tail) and () not in middles:
        ends = [pattern_of(different[0][:head]), pattern_of(different[0][len(different[0]) - tail :])]
        return dotted(ends[0], factored(middles), ends[1])
    lasts: dict[Spelling, list[Spelling]] = {}
    for spelling in different:
        lasts.setdefault(spelling[-1:], []).append(spelling[:-1])
    firsts = {tuple(sorted(each, key=str)) for each in lasts.values()}
    if len(lasts) > 1 and len(firsts) == 1 and () not in next(iter(firsts)):
        return dotted(factored(next(iter(lasts.values()))), factored(lasts))
    patterns = list(map(pattern_of, different))
    return "|".join(patterns) if outer else _either(patterns)


def dotted(*parts: str) -> str:
    """Join patterns with dots between them; what is empty is not there."""
    return r"\.".join(part for part in parts if part)


def _either(patterns: Iterable[str]) -> str:
    different = list(dict.fromkeys(patterns))
    return different[0] if len(different) == 1 else f"(?:{'|'.join(different)})"
