r"""From names to regular expressions: 24 layers are one pattern, and it matches the names it should and no other.

    h.0.attn.c_attn.weight -> h.0.attn.q.weight       (h\.\d+\.attn)\.c_attn\.(weight|bias)  ->  \1.q.\2
    h.1.attn.c_attn.weight -> h.1.attn.q.weight
    h.0.attn.c_attn.bias   -> h.0.attn.q.bias  …

Pairs whose names differ in numbers alone are one shape: a number that varies becomes a slot, one that does not stays as it is. In a
shape what all its names begin and end with is a prefix and a suffix; shapes that are alike between those are one rule. Every rule is
tried on all names before it is given; what would match too much is cut up again, down to the literal names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from .spelling import ALTERNATIVES, Slot, columns, common, dotted, escaped, factored, pattern_of, spelled, template

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

    from .spelling import Piece, Spelling


@dataclass(frozen=True, slots=True)
class Pair:
    """Names that go in together, and names that come out."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """Patterns and templates that say all of its pairs at once; ``back``: the way from a lone target to a lone source."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    back: tuple[str, str] | None
    pairs: tuple[Pair, ...]


def rules(pairs: Sequence[Pair], present: Collection[str], wanted: Collection[str] = ()) -> list[Rule]:
    """Give rules that say these pairs, in their order. ``present``: all names that patterns meet; ``wanted``: all names afterwards."""
    shapes: dict[Hashable, list[Pair]] = {}
    for pair in pairs:
        shapes.setdefault(tuple(template(name) for name in (*pair.sources, *pair.targets)), []).append(pair)
    alike: dict[Hashable, list[_Shape]] = {}
    for members in shapes.values():
        for shape in _shapes(members):
            alike.setdefault(shape.key, []).append(shape)
    found = [rule for group in alike.values() for rule in _exact(group, present, wanted)]
    order = {pair: number for number, pair in enumerate(pairs)}
    return sorted(found, key=lambda rule: min(order[pair] for pair in rule.pairs))


# ── shapes ──


@dataclass(frozen=True, slots=True)
class _Shape:
    """Pairs that one spelling says, with slots for numbers; ``head`` and ``tail``: segments that all its names share."""

    spellings: tuple[Spelling, ...]
    sources: int  # how many of the spellings are sources
    head: int
    tail: int
    pairs: tuple[Pair, ...]
    values: tuple[tuple[str, ...], ...]  # of each slot

    def listed(self) -> _Shape:
        """Give the same shape whose slots stand for their own values only."""
        spellings = tuple(
            tuple(tuple(p if isinstance(p, str) else Slot(p.number, self.values[p.number]) for p in s) for s in each)
            for each in self.spellings
        )
        return replace(self, spellings=spellings)

    @property
    def key(self) -> Hashable:
        """Give what lies between prefix and suffix, with slots counted from the first that stands there."""
        numbered: dict[int, int] = {}
        middles = tuple(
            tuple(
                tuple(p if isinstance(p, str) else numbered.setdefault(p.number, len(numbered)) for p in s)
                for s in middle
            )
            for middle in map(self.middle, range(len(self.spellings)))
        )
        return middles, self.sources

    def middle(self, index: int) -> Spelling:
        """Give what stands between prefix and suffix in one of its names."""
        spelling = self.spellings[index]
        return spelling[self.head : len(spelling) - self.tail]

    @property
    def prefix(self) -> Spelling:
        """Give the segments that all its names begin with."""
        return self.spellings[0][: self.head]

    @property
    def suffix(self) -> Spelling:
        """Give the segments that all its names end with."""
        return self.spellings[0][len(self.spellings[0]) - self.tail :]


def _shapes(pairs: Sequence[Pair]) -> Iterator[_Shape]:
    """Give the fewest shapes for pairs that are alike but for numbers: a target's number is a source's, or the same in all."""
    count = len(pairs[0].sources)
    lists = list(zip(*((*pair.sources, *pair.targets) for pair in pairs), strict=True))
    varying = [columns(names) for names in lists]
    known = [column for each in varying[:count] for column in each]
    for column in (column for each in varying[count:] for column in each):
        if len(set(column)) > 1 and column not in known:
            yield from _cut(pairs, known, column)
            return
    slots: dict[tuple[str, ...], int] = {}
    found = []
    for names, own in zip(lists, varying, strict=True):
        numbers = [c[0] if len(set(c)) == 1 else Slot(slots.setdefault(c, len(slots))) for c in own]
        found.append(spelled(names[0], numbers))
    head, tail = common(found)
    values = tuple(tuple(dict.fromkeys(column)) for column in slots)
    yield _Shape(tuple(found), count, head, tail, tuple(pairs), values)


def _cut(pairs: Sequence[Pair], known: Sequence[tuple[str, ...]], column: tuple[str, ...]) -> Iterator[_Shape]:
    """Part pairs by the number that decides another one (0 -> 0, 2 -> 1, 4 -> 2), each then literal."""
    deciding = [each for each in known if len(set(zip(each, column, strict=True))) == len(set(each)) > 1]
    by = min(deciding, key=lambda each: len(set(each)), default=None)
    parts: dict[Hashable, list[Pair]] = {}
    for number, pair in enumerate(pairs):
        parts.setdefault(column[number] if by is None else by[number], []).append(pair)
    for part in parts.values():
        yield from _shapes(part)


# ── patterns ──


class _Writing:
    """A pattern and a template in the making: the group of each slot is counted as it is written."""

    def __init__(self) -> None:
        self.groups: dict[Hashable, int] = {}
        self.pattern: list[str] = []

    def put(self, spelling: Spelling) -> None:
        """Write segments with a group for each slot; a slot that stands there again refers to it."""
        for segment in spelling:
            text = ""
            for piece in segment:
                if isinstance(piece, str):
                    text += escaped(piece)
                elif piece in self.groups:
                    text += f"(?:\\{self.groups[piece]})"
                else:
                    self.groups[piece] = len(self.groups) + 1
                    text += f"({piece.pattern})"
            self.pattern.append(text)

    def group(self, name: str, pattern: str) -> None:
        """Write one group under a name of its own."""
        self.groups[name] = len(self.groups) + 1
        self.pattern.append(f"({pattern})")

    def template(self, spelling: Spelling) -> list[str]:
        """Give segments as a template spells them."""
        return ["".join(self._piece(p) for p in segment) for segment in spelling]

    def _piece(self, piece: Piece) -> str:
        return piece.replace("\\", r"\\") if isinstance(piece, str) else self.reference(piece)

    def reference(self, name: Hashable) -> str:
        """Give the template's word for a group."""
        return f"\\g<{self.groups[name]}>"


def _tidy(template: Iterable[str]) -> str:
    r"""Join a template's segments; ``\g<1>`` is spelled ``\1`` where no digit follows."""
    return re.sub(r"\\g<(\d+)>(?![0-9])", r"\\\1", ".".join(part for part in template if part))


def _exact(shapes: Sequence[_Shape], present: Collection[str], wanted: Collection[str]) -> Iterator[Rule]:
    """Give one rule for shapes that are alike where it says just their pairs, else the rules of their parts."""
    pairs = tuple(pair for shape in shapes for pair in shape.pairs)
    listed = [shape.listed() for shape in shapes]
    for given, ends in ((each, ends) for each in (shapes, listed) for ends in _ends(each)):
        rule = _rule(given, pairs, ends)
        if rule is not None and _says(rule.sources, rule.targets, pairs, present):
            back = rule.back
            if back is not None:
                ways = [Pair(pair.targets, pair.sources) for pair in pairs]
                if not _says((back[0],), (back[1],), ways, wanted or [t for p in pairs for t in p.targets]):
                    back = None
            yield Rule(rule.sources, rule.targets, back, pairs)
            return
    if len(shapes) > 1:
        for by in ("suffix", "prefix"):
            parts: dict[Hashable, list[_Shape]] = {}
            for shape in shapes:
                parts.setdefault(getattr(shape, by), []).append(shape)
            if len(parts) > 1:
                for part in parts.values():
                    yield from _exact(part, present, wanted)
                return
    for pair in pairs:
        sources, targets = tuple(map(escaped, pair.sources)), tuple(t.replace("\\", r"\\") for t in pair.targets)
        yield Rule(sources, targets, None, (pair,))


Ends: TypeAlias = "tuple[str | None, str | None]"
"""What stands for several prefixes, and for several suffixes: a pattern, or None where there is only one."""


def _ends(shapes: Sequence[_Shape]) -> Iterator[Ends]:
    """Give what may stand for the prefixes and suffixes of shapes, what reads best first."""
    options: list[list[str | None]] = []
    for given in ([s.prefix for s in shapes], [s.suffix for s in shapes]):
        different = set(given)
        if len(different) == 1:
            options.append([None])
        elif () in different:
            options.append([])  # a dot that may be missing is no group: these shapes are told apart
        else:
            either = factored(given, outer=True)
            long = len(different) > ALTERNATIVES or any(len(spelling) > 1 for spelling in different)
            options.append([".*", either] if long else [either, ".*"])
    yield from ((prefix, suffix) for prefix in options[0] for suffix in options[1])


def _rule(shapes: Sequence[_Shape], pairs: tuple[Pair, ...], ends: Ends) -> Rule | None:
    """Write the rule of alike shapes; None where its sources do not bear the same groups."""
    shape = shapes[0]
    count = len(shape.spellings)
    written = [_written(shape, index, ends) for index in range(count)]
    groups = written[0].groups
    if any(each.groups != groups for each in written[: shape.sources]):
        return None
    sources = tuple(dotted(*each.pattern) for each in written[: shape.sources])
    targets = tuple(_templated(shape, index, ends, written[0]) for index in range(shape.sources, count))
    back = None
    if (shape.sources, count) == (1, 2) and set(written[1].groups) == set(groups):
        back = (dotted(*written[1].pattern), _templated(shape, 0, ends, written[1]))
    return Rule(sources, targets, back, pairs)


def _written(shape: _Shape, index: int, ends: Ends) -> _Writing:
    writing = _Writing()
    for name, spelling, pattern in _parts(shape, index, ends):
        if pattern is None:
            writing.put(spelling)
        else:
            writing.group(name, pattern)
    return writing


def _templated(shape: _Shape, index: int, ends: Ends, writing: _Writing) -> str:
    segments: list[str] = []
    for name, spelling, pattern in _parts(shape, index, ends):
        segments += writing.template(spelling) if pattern is None else [writing.reference(name)]
    return _tidy(segments)


def _parts(shape: _Shape, index: int, ends: Ends) -> Iterator[tuple[str, Spelling, str | None]]:
    """Give prefix, middle and suffix of one name, and for each the pattern of the one group that it is, if it is one."""
    middles = {p for i in range(len(shape.spellings)) for s in shape.middle(i) for p in s if isinstance(p, Slot)}
    for name, spelling, end in (("prefix", shape.prefix, ends[0]), ("suffix", shape.suffix, ends[1])):
        if name == "suffix":
            yield "", shape.middle(index), None
        slots = {p for segment in spelling for p in segment if isinstance(p, Slot)}
        one = pattern_of(spelling) if slots and not slots & middles else None
        yield name, spelling, end or one


def _says(sources: Sequence[str], targets: Sequence[str], pairs: Sequence[Pair], present: Collection[str]) -> bool:
    """Say whether patterns match these sources of all that is present, no other, and become these targets."""
    for place, pattern in enumerate(map(re.compile, sources)):
        due = {pair.sources[place]: pair.targets for pair in pairs}
        for name in {*present, *due}:
            found = pattern.fullmatch(name)
            if (found is not None) != (name in due):
                return False
            if found is not None and tuple(map(found.expand, targets)) != due[name]:
                return False
    return True
