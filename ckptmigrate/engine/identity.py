"""Which tensors are one and the same: ids through a change, and ties, of which one name may not change without the other.

A tensor made of others has an id made of theirs, and so has one that was changed away from the name it was tied to: two tensors
of one id would be one parameter to a framework that goes by ids.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.operations.ties import is_look

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.checkpoint import Ledger
    from ckptmigrate.tensor import Promise, Tensor

    from .changes import Change, Say


def with_ids(change: Change, *, keeps: bool, numbered: bool) -> Change:
    """Give targets the ids of the law: their source's, or one made of all source ids and the name, or, in a model with ids, of the name."""
    after = []
    for name, target, origin in zip(change.group.targets, change.after, change.origins, strict=True):
        sources = [change.before[i] for i in origin]
        if len(sources) == 1 and (keeps or sources[0].promise == target.promise):
            identity = sources[0].id
        elif not sources:
            identity = made_id((), name) if numbered else None
        else:
            ids = [source.id for source in sources if source.id is not None]
            identity = made_id(ids, name) if ids else None
        after.append(replace(target, id=identity))
    return replace(change, after=tuple(after))


def made_id(ids: Sequence[int | str], name: str) -> int:
    """Give the id of a tensor made of others: xxh64 of the source ids and the name, each ended by a zero byte; of the name alone."""
    import xxhash  # noqa: PLC0415 - a hash is needed only where a source had an id

    text = "".join(f"{each}\0" for each in (*ids, name)) if ids else name
    return int(xxhash.xxh64_intdigest(text.encode()))


def check_ids(changes: Sequence[Change], after: Mapping[str, Tensor], say: Say) -> None:
    """Refuse a new id that another tensor has too, unless the two are one tensor under two names."""
    fresh = {
        target.id
        for change in changes
        for target, origin in zip(change.after, change.origins, strict=True)
        if target.id is not None and target.id not in {change.before[i].id for i in origin}
    }
    holders: dict[int | str, tuple[str, Promise]] = {}
    for name, tensor in after.items():
        if tensor.id is None or tensor.id not in fresh:
            continue
        other, promise = holders.setdefault(tensor.id, (name, tensor.promise))
        if promise != tensor.promise:
            say(f"{other} and {name} would both have the id {tensor.id}")


def apart(changes: Sequence[Change], before: Mapping[str, Tensor]) -> list[Change]:
    """Give an id of its own to what is changed while another name of the same parameter stays as it was.

    The same parameter are tensors of one id that are alike: tied, or written twice by a framework that has no ties.
    """
    same: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in before.items():
        if tensor.id is not None:
            same.setdefault((tensor.id, tensor.dtype, tensor.shape), []).append(name)
    same = {key: names for key, names in same.items() if len(names) > 1}
    if not same:
        return list(changes)
    outcomes = _outcomes(changes)
    fresh: dict[str, int] = {}
    for (identity, *_), names in same.items():
        changed = [n for n in names if outcomes.get(n, (before[n].promise,)) != (before[n].promise,)]
        made: dict[tuple[Promise, ...], int] = {}  # those that stay tied to one another stay one parameter
        for name in changed if len(changed) < len(names) else ():
            fresh[name] = made.setdefault(outcomes[name], made_id([identity], name))
    return [_renumbered(change, fresh) for change in changes]


def _renumbered(change: Change, fresh: Mapping[str, int]) -> Change:
    after = []
    for target, origin in zip(change.after, change.origins, strict=True):
        source = change.group.sources[origin[0]] if len(origin) == 1 else ""
        kept = source in fresh and target.id == change.before[origin[0]].id
        after.append(replace(target, id=fresh[source]) if kept else target)
    return replace(change, after=tuple(after))


def check_ties(changes: Sequence[Change], before: Mapping[str, Tensor], ledger: Ledger, refuse: Say | None) -> None:
    """Say where one of two equal promises is changed and not the other, as a problem or, where nobody is to refuse it, as a note.

    A dropped name is no change of the one that stays.
    """
    tied: dict[Promise, list[str]] = {}
    for name, tensor in before.items():
        if is_look(tensor.promise):
            tied.setdefault(tensor.promise, []).append(name)
    outcomes = _outcomes(changes)
    for promise, names in tied.items():
        staying = {name: outcomes.get(name, (promise,)) for name in names if outcomes.get(name, (promise,))}
        if len(set(staying.values())) < 2:
            continue
        changed = next(name for name, outcome in staying.items() if outcome != (promise,))
        other = next(name for name, outcome in staying.items() if outcome != staying[changed])
        if refuse is not None:
            refuse(f"{changed} and {other} are tied, and would no longer be equal; --ties duplicate allows it")
        else:
            ledger.notes.append(f"{changed} and {other} were tied and are two tensors now")


def _outcomes(changes: Sequence[Change]) -> dict[str, tuple[Promise, ...]]:
    """Give what each source becomes; a tie gives the same twice."""
    return {
        name: tuple(dict.fromkeys(target.promise for _, target in into))
        for change in changes
        for name, into in zip(change.group.sources, change.outcomes(), strict=True)
    }
