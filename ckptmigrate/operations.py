"""One change inside a migrator: a frozen value that knows neither slots nor twins nor order.

    match(names)      which names it takes and which it gives, as groups
    tensors(sources)  what the targets of one group are, from its sources: the same function for weights, twins and slots
    inverse()         the operation that undoes it, or the reason why there is none

The engine walks the groups; everything that follows a parameter follows because of the engine. What every operation shares is
here too: whole-name patterns, one-to-many and many-to-one groups, the spelling for digests, and named numbers.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args

from .errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .values import Tree

On = Literal["model", "slots", "values", "items"]
"""Where an operation's names are those of: the model (and its twins), the slots of one parameter, the nodes of values and
schedulers by their item (``values/config/heads``), or all items of the checkpoint, which lets a move cross sections."""


@dataclass(frozen=True, slots=True)
class Group:
    """Names that go in together and names that come out. No sources: an added one; no targets: dropped, ``reason`` says why.

    ``near``: the name that an added target follows. ``missing``: patterns that should have given a source and did not.
    ``fields``, ``beside``: what names alone do not tell, and the engine looks up before it takes the group: the module that must
    have exactly these fields; the name that an optimizer must have state of, while it has none of the source.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    near: str | None = None
    missing: tuple[str, ...] = ()
    reason: str | None = None
    fields: tuple[str, tuple[str, ...]] | None = None
    beside: str | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an operation has no inverse."""

    text: str


@dataclass(frozen=True, slots=True)
class Traits:
    """What the engine must know of an operation beyond its groups and tensors.

    ``keeps_id``: a lone target is still the same parameter. ``slots``: what becomes of optimizer values that have the parameter's
    axes: they follow, stay as they are, are dropped, or forbid the operation. ``unties``: one of two equal names may change alone.
    ``numbers``: the fields in which text names a number that the checkpoint or the caller gives.
    """

    keeps_id: bool = False
    slots: Literal["follow", "keep", "drop", "refuse"] = "follow"
    unties: bool = False
    numbers: tuple[str, ...] = ()


class Operation(Protocol):
    """What every operation answers; all of it pure."""

    @property
    def on(self) -> On:
        """Tell what its names are names of."""

    @property
    def optional(self) -> bool:
        """Say whether a pattern that matches nothing is fine; nothing else is excused."""

    @property
    def traits(self) -> Traits:
        """Give what the engine must know."""

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give the groups among these names, in the order of the names; every name is in one group at most."""

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give a group's targets from its sources: Tensors, or on slots and values whatever lies there.

        TensorError says what does not fit; nothing is drawn.
        """

    def inverse(self) -> Operation | Reason:
        """Give the operation that undoes this one."""

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for the digest, the plan and the report."""

    def describe(self) -> str:
        """Give one line, as an author would write it."""


@dataclass(frozen=True, slots=True)
class Rename:
    r"""Give names a new spelling: a regular expression over the whole name, and a template for what it becomes.

        Rename(r"features\.(\d+)\.(.*)", r"stem.\1.\2", back=(r"stem\.(\d+)\.(.*)", r"features.\1.\2"))
        Rename({r"a\.(.*)": r"b.\1", r"b\.(.*)": r"a.\1"})          # at once, so a swap works

    Of several patterns the first that matches a name counts. A literal one (no group, no class, every dot escaped) has its
    inverse in itself; any other needs ``back``: one pair, or as many as there are patterns.

    ``fields``: take only names below a module that has exactly these, in a record that lists them; the pattern's first group
    is the module's path, with its last dot or without.
    """

    pattern: str | Mapping[str, str]
    into: str | None = None
    back: tuple[str, str] | Mapping[str, str] | None = None
    optional: bool = False
    on: On = "model"
    fields: Sequence[str] | None = None
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def __post_init__(self) -> None:
        if isinstance(self.pattern, str) == (self.into is None):
            raise UsageError("Rename takes a pattern and what it becomes, or one mapping of them")
        check_patterns(*self.pairs.items(), *self.ways_back.items())
        check_place(self.on)
        if self.fields is not None:
            check_looks(self.on, *((pattern, r"\1") for pattern in self.pairs))

    @property
    def pairs(self) -> dict[str, str]:
        """Give what each pattern becomes."""
        return {self.pattern: self.into or ""} if isinstance(self.pattern, str) else dict(self.pattern)

    @property
    def ways_back(self) -> dict[str, str]:
        """Give what ``back`` says each pattern becomes on the way down."""
        return dict([self.back]) if isinstance(self.back, tuple) else dict(self.back or {})

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a name, and one for each pattern that matches none."""
        groups, used = [], set()
        for name, pattern, found in matches(names, self.pairs):
            used.add(pattern)
            module = None if self.fields is None else ((found[1] or "").removesuffix("."), tuple(self.fields))
            groups.append(Group((name,), (found.expand(self.pairs[pattern]),), fields=module))
        return groups + [Group((), (), missing=(pattern,)) for pattern in self.pairs if pattern not in used]

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the source itself."""
        return sources

    def inverse(self) -> Rename | Reason:
        """Turn literal renames round, or take ``back``."""
        pairs = self.ways_back
        if not pairs:
            for pattern, into in self.pairs.items():
                old, new = literal(pattern), literal(into, template=True)
                if old is None or new is None:
                    return Reason(f"{pattern!r} is a regular expression, and no back= says what its names were")
                pairs[re.escape(new)] = old.replace("\\", r"\\")
            if len(pairs) < len(self.pairs):
                return Reason("several patterns become one name")
        if len(pairs) > 1:
            return Rename(pairs, optional=self.optional, on=self.on)
        ((pattern, into),) = pairs.items()
        return Rename(pattern, into, optional=self.optional, on=self.on)

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Drop:
    """Take names out, and say why: the reason stands in the ledger of every checkpoint that loses one.

    ``beside``: take only what was never trained although its neighbour was: an optimizer has state of the name that this template
    expands to, and none has any of the name itself.
    """

    pattern: str
    reason: str
    optional: bool = False
    on: On = "model"
    beside: str | None = None
    traits: ClassVar[Traits] = Traits()

    def __post_init__(self) -> None:
        check_patterns((self.pattern, self.beside))
        check_place(self.on)
        if self.beside is not None:
            check_looks(self.on, (self.pattern, self.beside))
        if not self.reason.strip():
            raise UsageError(f"Drop of {self.pattern!r} does not say why")

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group without targets a name."""
        groups = [
            Group((name,), (), reason=self.reason, beside=None if self.beside is None else found.expand(self.beside))
            for name, _, found in matches(names, (self.pattern,))
        ]
        return groups or [Group((), (), missing=(self.pattern,))]

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:  # noqa: ARG002 - the face
        """Give nothing."""
        return ()

    def inverse(self) -> Reason:
        """Say that what is gone cannot come back."""
        return Reason(f"what was dropped is gone ({self.reason})")

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


# What all operations share.


def check_patterns(*pairs: tuple[str, str | None]) -> None:
    """Refuse, when the migrator is written, a pattern or a template that could only fail in somebody's checkpoint."""
    for pattern, template in pairs:
        try:
            compiled = re.compile(pattern)
            if template is not None:
                named = {index: name for name, index in compiled.groupindex.items()}
                groups = (f"(?P<{named[i]}>)" if i in named else "()" for i in range(1, compiled.groups + 1))
                probe = re.match("".join(groups), "")  # a match with the pattern's groups, whatever the pattern takes
                assert probe is not None
                probe.expand(template)
        except (re.error, IndexError, TypeError) as error:
            said = f"pattern {pattern!r}" if template is None else f"pattern {pattern!r} with template {template!r}"
            raise UsageError(
                f"{said}: {error}", hint="patterns and templates are those of Python's re module"
            ) from error


def check_place(on: str) -> None:
    """Refuse, when the migrator is written, names of something that does not exist."""
    if on not in get_args(On):
        raise UsageError(f"on={on!r}: expected {', '.join(get_args(On))}")


def check_looks(on: str, *pairs: tuple[str, str]) -> None:
    """Refuse a condition on modules or on state where names are not those of the model, or its groups are not there."""
    if on != "model":
        raise UsageError(f"on={on!r}: modules and state are looked up for names of the model only")
    check_patterns(*pairs)


def matches(names: Iterable[str], patterns: Iterable[str]) -> Iterator[tuple[str, str, re.Match[str]]]:
    """Give every name that a pattern matches as a whole: (name, pattern, match), the first pattern that does."""
    compiled = [(pattern, re.compile(pattern)) for pattern in patterns]
    texts = [literal(pattern) for pattern, _ in compiled]
    exact = {
        text: number for number, text in reversed([*enumerate(texts)]) if text is not None
    }  # a thousand of them cost one look
    others = [number for number, text in enumerate(texts) if text is None]
    for name in names:
        candidates = others if name not in exact else sorted((*others, exact[name]))
        for pattern, expression in map(compiled.__getitem__, candidates):
            found = expression.fullmatch(name)
            if found is not None:
                yield name, pattern, found
                break


def one_to_many(names: Iterable[str], pattern: str, into: Sequence[str]) -> list[Group]:
    """Give one group a matching name, with every template of ``into`` expanded; a lone gap where nothing matches."""
    groups = [Group((name,), tuple(map(found.expand, into))) for name, _, found in matches(names, (pattern,))]
    return groups or [Group((), (), missing=(pattern,))]


def many_to_one(names: Iterable[str], patterns: Sequence[str], into: str) -> list[Group]:
    """Give one group a target: the sources whose template expands to the same name.

    Sources stand in the order of the patterns, then of the numbers in their names. A pattern that gives a group nothing, and a
    number that is skipped, are members that are missing.
    """
    members: dict[str, list[tuple[int, list[Any], str]]] = {}
    for name, pattern, found in matches(names, patterns):
        members.setdefault(found.expand(into), []).append((patterns.index(pattern), numeral(name), name))
    groups = []
    for target, found_members in members.items():
        found_members.sort()
        given = {index for index, _, _ in found_members}
        missing = [pattern for index, pattern in enumerate(patterns) if index not in given]
        for _, same in itertools.groupby(found_members, key=lambda member: member[0]):
            missing += skipped([name for _, _, name in same])
        groups.append(Group(tuple(name for _, _, name in found_members), (target,), missing=tuple(missing)))
    return groups or [Group((), (), missing=tuple(patterns))]


def numeral(name: str) -> list[Any]:
    """Give a key that sorts names by their numbers: ``h.2.w`` before ``h.10.w``. Text and numbers alternate.

    A run of more than eighteen digits counts as several numbers: Python reads no number of thousands of digits.
    """
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]{1,18})", name))]


SKIPPED = 100  # more would tell nobody anything


def skipped(names: Sequence[str]) -> list[str]:
    """Give the first names that a run of names, alike but for one number, leaves out between its lowest and its highest."""
    keys = [numeral(name) for name in names]
    if len(keys) < 2 or len({len(key) for key in keys}) > 1:
        return []
    varying = [i for i in range(len(keys[0])) if len({str(key[i]) for key in keys}) > 1]
    if len(varying) != 1 or varying[0] % 2 == 0:
        return []
    (at,) = varying
    present = {key[at] for key in keys}
    missing = (n for n in range(min(present), max(present)) if n not in present)
    absent = itertools.islice(missing, SKIPPED)  # a file may claim members 0 and 10**17
    return ["".join(str(n if i == at else part) for i, part in enumerate(keys[0])) for n in absent]


@functools.lru_cache(4096)
def literal(pattern: str, *, template: bool = False) -> str | None:
    """Give the one text that a pattern matches (or a template expands to), None where it is more than that."""
    if template:
        return None if "\\" in pattern else pattern
    if not re.fullmatch(r"(?:\\\W|[^\\.^$*+?{}\[\]|()])*", pattern, re.DOTALL):
        return None
    return re.sub(r"\\(\W)", lambda found: found[1], pattern)


def declared(operation: Any) -> dict[str, Any]:
    """Give an operation's class and the fields that differ from their default, so that a new field changes no old digest."""
    found = {"operation": type(operation).__name__}
    for field in fields(operation):
        value = getattr(operation, field.name)
        if field.default is MISSING or value != field.default:
            found[field.name] = _plain(value)
    return found


def spelled(operation: Any) -> str:
    """Give an operation as an author would write it: ``Rename('a', 'b', optional=True)``."""
    parts, positional = [], True
    for number, field in enumerate(fields(operation)):
        value = getattr(operation, field.name)
        if field.default is not MISSING and value == field.default:
            positional = False
            continue
        positional = positional and (number < 2 or field.default is MISSING)
        parts.append(repr(value) if positional else f"{field.name}={value!r}")
    return f"{type(operation).__name__}({', '.join(parts)})"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[str(key), _plain(each)] for key, each in value.items()]  # pairs: the first pattern that matches counts
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


Bound = TypeVar("Bound", bound=Operation)


def bind(operation: Bound, numbers: Mapping[str, Any]) -> tuple[Bound, list[str]]:
    """Put numbers where an operation names them; also give the names that nobody resolves."""
    unresolved: list[str] = []

    def filled(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(filled(each) for each in value)
        if isinstance(value, str) and value != "*":
            if value not in numbers:
                unresolved.append(value)
                return value
            return numbers[value]
        return value

    changes = {name: filled(getattr(operation, name)) for name in operation.traits.numbers}
    if not changes or unresolved:
        return operation, unresolved
    return replace(operation, **changes), []  # type: ignore[type-var] # every operation is a dataclass; a Protocol cannot say so
