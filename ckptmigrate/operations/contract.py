"""What an operation is, and what it tells the engine: groups of names, traits, an inverse or the reason for none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.values import Tree

On = Literal["model", "slots", "values", "items"]
"""Where an operation's names are those of: the model (and its twins), the slots of one parameter, the nodes of values and
schedulers by their item (``values/config/heads``), or all items of the checkpoint, which lets a move cross sections."""


@dataclass(frozen=True, slots=True)
class Group:
    """Names that go in together and names that come out. No sources: an added one; no targets: dropped, ``reason`` says why.

    ``near``: the name that an added target follows. ``stays``: a target stands where the source of its name stood, and not beside
    the first source. ``missing``: patterns that should have given a source and did not.
    ``standing``: names that are left alone because they are already what the operation would make them; the engine counts them.
    ``without``: names that do not have what all others of their kind have; the report warns of them.
    ``fields``, ``beside``: what names alone do not tell, and the engine looks up before it takes the group: the module that must
    have exactly these fields; the name that an optimizer must have state of, while it has none of the source.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    near: str | None = None
    stays: bool = False
    missing: tuple[str, ...] = ()
    reason: str | None = None
    fields: tuple[str, tuple[str, ...]] | None = None
    beside: str | None = None
    standing: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an operation has no inverse."""

    text: str


Slots = Literal["follow", "keep", "drop", "refuse"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What the engine must know of an operation beyond its groups and tensors.

    ``keeps_id``: a lone target is still the same parameter. ``slots``: what becomes of optimizer values that have the parameter's
    axes: they follow, stay as they are, are dropped, or forbid the operation. ``unties``: one of two equal names may change alone.
    ``numbers``: the fields in which text names a number that the checkpoint or the caller gives.
    """

    keeps_id: bool = False
    slots: Slots = "follow"
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

        A group without sources that has a ``near`` gets that one, to take shape and dtype from. TensorError says what does not
        fit; nothing is drawn but numbers of one element.
        """

    def inverse(self) -> Operation | Reason:
        """Give the operation that undoes this one."""

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for the digest, the plan and the report."""

    def describe(self) -> str:
        """Give one line, as an author would write it."""
