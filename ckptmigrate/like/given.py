"""What a wanted model makes of a checkpoint, as operations: so that optimizers, twins, ids and ledger follow as in any step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ckptmigrate.operations import Add, Drop, Group, On, Operation, Reason, Rename, Tie, Traits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.format import Wanted
    from ckptmigrate.values import Tree


def renamed(moves: Mapping[str, str]) -> Rename:
    """Give the renaming of these names, all at once."""
    return Rename({re.escape(old): _template(new) for old, new in moves.items()})


def dropped(names: Sequence[str], reason: str) -> Drop:
    """Give the drop of exactly these names."""
    return Drop("|".join(map(re.escape, names)), reason)


def added(name: str, near: str, value: int, wanted: Wanted) -> Add:
    """Give a tensor that is one value everywhere, after the name that it belongs to."""
    role = wanted.role or "buffer"
    return Add(_template(name), re.escape(near), value, wanted.shape, wanted.dtype.name, role)


def tied(name: str, to: str) -> Tie:
    """Give one tensor a second name."""
    return Tie(re.escape(to), _template(name), adds=True)


def _template(name: str) -> str:
    return name.replace("\\", r"\\")


@dataclass(frozen=True, slots=True)
class Arranged:
    """All names of a model in this order. An Order that lists a thousand names would say them all in every message."""

    names: tuple[str, ...]
    optional: bool = False
    on: ClassVar[On] = "model"
    traits: ClassVar[Traits] = Traits(keeps_id=True)

    def match(self, names: Mapping[str, Tree]) -> list[Group]:  # noqa: ARG002 - the face; they are the same names
        """Give one group of all names."""
        return [Group(self.names, self.names)]

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give the sources themselves."""
        return sources

    def inverse(self) -> Operation | Reason:
        """Say that there is none."""
        return Reason("the order that the names had is not known")

    def as_dict(self) -> dict[str, Any]:
        """Give the order."""
        return {"operation": type(self).__name__, "names": list(self.names)}

    def describe(self) -> str:
        """Give one line without the names."""
        return "the order of the model"
