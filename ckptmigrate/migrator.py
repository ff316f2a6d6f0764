"""Chain and Migrator: the two values that a file of a migrations folder declares."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from .errors import MigratorError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        try:
            local = Version(self.version).local
        except InvalidVersion as error:
            raise MigratorError(f"chain {self.chain}: {self.version!r} is no version (PEP 440)") from error
        if local is not None:
            raise MigratorError(f"chain {self.chain}: {self.version!r} has a local part, which no comparison would see")

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
