"""Whole-name patterns, the groups that they make of names, and what is refused when a migrator is written."""

from __future__ import annotations

import functools
import itertools
import re
from typing import TYPE_CHECKING, Any, get_args

from ckptmigrate.errors import UsageError

from .contract import Group, On

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence


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


def check_place(on: str, allowed: Sequence[str] = get_args(On)) -> None:
    """Refuse, when the migrator is written, names of something that does not exist, or that the operation has no use for."""
    if on not in allowed:
        raise UsageError(f"on={on!r}: expected {', '.join(allowed)}")


def several(given: str | Sequence[str]) -> tuple[str, ...]:
    """Give what an author wrote as one text or as a list as a tuple, which nobody can change later."""
    return (given,) if isinstance(given, str) else tuple(given)


def check_looks(on: str, *pairs: tuple[str, str]) -> None:
    """Refuse a condition on modules or on state where names are not those of the model, or its groups are not there."""
    if on != "model":
        raise UsageError(f"on={on!r}: modules and state are looked up for names of the model only")
    check_patterns(*pairs)


def beside(where: str | Mapping[str, str] | None, patterns: Iterable[str]) -> dict[str, str]:
    """Give the template of what must stand beside a name, by pattern; UsageError where ``where`` speaks of a pattern that is none of them."""
    if where is None or isinstance(where, str):
        return dict.fromkeys(patterns, where) if where is not None else {}
    if unknown := set(where) - set(patterns):
        raise UsageError(f"where= speaks of {', '.join(sorted(unknown))}, which is none of its patterns")
    return dict(where)


def stands_beside(found: re.Match[str], where: str | Sequence[str] | None, names: Container[str]) -> bool:
    """Say whether the names that a template, or each of several, expands to are all there."""
    return all(found.expand(template) in names for template in several(where or ()))


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


def in_place(names: Iterable[str], pattern: str) -> list[Group]:
    """Give one group a matching name, whose target is that name; a lone gap where nothing matches."""
    return one_to_many(names, pattern, (r"\g<0>",))


def many_to_one(names: Iterable[str], patterns: Sequence[str], into: str, first: int | None = None) -> list[Group]:
    """Give one group a target: the sources whose template expands to the same name; see ``many_to_many``."""
    return many_to_many(names, patterns, (into,), first)


def many_to_many(
    names: Iterable[str], patterns: Sequence[str], into: Sequence[str], first: int | None = None
) -> list[Group]:
    """Give one group a set of targets: the sources whose templates expand to the same names.

    Sources stand in the order of the patterns, then of the numbers in their names. A pattern that gives a group nothing, and a
    number that is skipped (with ``first``, from that on), are members that are missing.
    """
    members: dict[tuple[str, ...], list[tuple[int, list[Any], str]]] = {}
    places = {pattern: index for index, pattern in reversed([*enumerate(patterns)])}
    for name, pattern, found in matches(names, patterns):
        members.setdefault(tuple(map(found.expand, into)), []).append((places[pattern], numeral(name), name))
    groups = []
    for targets, found_members in members.items():
        found_members.sort()
        given = {index for index, _, _ in found_members}
        missing = [pattern for index, pattern in enumerate(patterns) if index not in given]
        for _, same in itertools.groupby(found_members, key=lambda member: member[0]):
            missing += skipped([name for _, _, name in same], first)
        groups.append(Group(tuple(name for _, _, name in found_members), targets, missing=tuple(missing)))
    return groups or [Group((), (), missing=tuple(patterns))]


def numeral(name: str) -> list[Any]:
    """Give a key that sorts names by their numbers: ``h.2.w`` before ``h.10.w``. Text and numbers alternate.

    A run of more than eighteen digits counts as several numbers: Python reads no number of thousands of digits.
    """
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]{1,18})", name))]


SKIPPED = 100  # more would tell nobody anything


def skipped(names: Sequence[str], first: int | None = None) -> list[str]:
    """Give the first names that a run of names, alike but for one number, leaves out between its lowest and its highest.

    ``first``: the number that the run begins with, where that is known.
    """
    keys = [numeral(name) for name in names]
    if len(keys) < 2 or len({len(key) for key in keys}) > 1:
        return []
    varying = [i for i in range(len(keys[0])) if len({str(key[i]) for key in keys}) > 1]
    if len(varying) != 1 or varying[0] % 2 == 0:
        return []
    (at,) = varying
    present = {key[at] for key in keys}
    lowest = min(present) if first is None else first
    missing = (n for n in range(lowest, max(present)) if n not in present)
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
