"""Chain and Migrator: the two values that a file of a migrations folder declares."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from .errors import MigratorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .marks import Mark
    from .operations import Operation


@dataclass(frozen=True, slots=True)
class Chain:
    """A named line of versions of one thing.

    ``automatic``: its steps are what today's framework requires and the file proves, so that nobody need name it. ``crosses``:
    the family that a bridge leads to.
    """

    name: str
    family: str | None = None
    automatic: bool = False
    crosses: str | None = None
    about: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name)


@dataclass(frozen=True, slots=True)
class Migrator:
    """One step of one chain: how a checkpoint below ``version`` becomes it.

    ``needs``: numbers that tensors do not carry, by name: where they lie among the checkpoint's values
    (``{"heads": "config/num_attention_heads"}``); what the caller sets comes first.
    """

    chain: str
    version: str
    operations: Sequence[Operation] = ()
    marks: Sequence[Mark] = ()
    needs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name(self.chain)
        lead = f"chain {self.chain}"
        if not isinstance(self.version, str):
            raise MigratorError(f"{lead}: version {self.version!r} is no text; write version={str(self.version)!r}")
        try:
            version = Version(self.version)
        except InvalidVersion as error:
            raise MigratorError(f"{lead}: {self.version!r} is no version (PEP 440)") from error
        if version.local is not None:
            raise MigratorError(f"{lead}: {self.version!r} has a local part, which no comparison would see")
        if version <= Version("0"):
            raise MigratorError(f"{lead}: {self.version!r} is not above 0, the place before the first step")
        for field_name, method in (("operations", "match"), ("marks", "holds")):
            object.__setattr__(self, field_name, self._members(field_name, method))
        if not isinstance(self.needs, Mapping) or not all(isinstance(t, str) for p in self.needs.items() for t in p):
            raise MigratorError(f"{self.name}: needs maps the name of a number to the path where it lies")

    def _members(self, field_name: str, method: str) -> tuple[Any, ...]:
        """Give a field's members as a tuple that nobody can change later; what is none of them is refused where it is written."""
        given = getattr(self, field_name)
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise MigratorError(f"{self.name}: {field_name} is a {type(given).__name__}, expected a list")
        members = tuple(given)
        for member in members:
            if isinstance(member, type) or not hasattr(member, method):
                raise MigratorError(f"{self.name}: {member!r} stands among its {field_name}")
        return members

    @property
    def release(self) -> Version:
        """Give the version to compare by."""
        return Version(self.version)

    @property
    def name(self) -> str:
        """Give what messages call it: ``acme.vit 2.0``."""
        return f"{self.chain} {self.version}"

    @property
    def optional(self) -> bool:
        """Say whether all its operations are content with matching nothing."""
        return all(operation.optional for operation in self.operations)

    @property
    def digest(self) -> str:
        """Give the SHA-256, in hex, of chain, version and operations as canonical JSON: two that agree do the same."""
        said = {"chain": self.chain, "version": self.version, "operations": [o.as_dict() for o in self.operations]}
        return hashlib.sha256(
            json.dumps(said, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()
        ).hexdigest()


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise MigratorError(f"{name!r} is no name of a chain: letters, digits, dots, dashes and underscores")
