"""What a proposed migrator makes of the old checkpoint, compared with the new one, element by element."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptmigrate import engine, registry
from ckptmigrate.checkpoint import Checkpoint
from ckptmigrate.errors import CkptError
from ckptmigrate.migrator import Migrator
from ckptmigrate.verify import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.tensor import Promise

    from .composing import Spec
    from .derivation import Derivation


@dataclass(frozen=True, slots=True)
class Proof:
    """How far the outcome is the new model: of its ``tensors`` how many are there by name, in dtype and shape, in every byte.

    ``equal`` None: their contents were not compared. ``by``: how many rest on equal elements ("content"), on what is proven of
    siblings ("pattern"), on names ("name"). ``problems``: what the engine refused; ``differing``: names of tensors
    that fit and hold other elements.
    """

    tensors: int = 0
    named: int = 0
    shaped: int = 0
    equal: int | None = 0
    by: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Give it in sentences."""
        shaped = f"{self.shaped} in dtype and shape{'' if self.equal is None else f', {self.equal} in every byte'}"
        rests = {"proven by content": "content", "as proven of their siblings": "pattern", "assumed by name": "name"}
        lines = [
            f"of the {self.tensors} tensors of the new one, the migrated old one has {self.named} by name, {shaped}",
            "; ".join(f"{said}: {self.by.get(by, 0)}" for said, by in rests.items()),
        ]
        if self.equal is None:
            lines.append("contents were not compared: a model that was made a moment ago proves nothing by its values")
        elif not self.by.get("content"):
            lines.append(
                "the contents prove nothing: the two hold other values, so that only names and shapes are left"
            )
        return lines


def prove(
    specs: Sequence[Spec],
    derivations: Sequence[Derivation],
    old: Checkpoint,
    new: Checkpoint,
    digests: dict[Promise, bytes] | None,
) -> Proof:
    """Apply operations to the old model and compare. ``digests``: those that are known; None where contents mean nothing."""
    by: Counter[str] = Counter(
        derivation.by for derivation in derivations for name in derivation.targets if name in new.model
    )
    made = Checkpoint(old.family, dict(old.model))
    try:
        migrator = Migrator("proposed", "1", [spec.made() for spec in specs])
        problems = engine.apply(made, migrator, registry.family(old.family))
    except CkptError as error:
        return Proof(len(new.model), by=by, problems=(error.message,))
    pairs = {name: (made.model[name], tensor) for name, tensor in new.model.items() if name in made.model}
    shaped = {n: (a, b) for n, (a, b) in pairs.items() if (a.dtype, a.shape) == (b.dtype, b.shape)}
    differing: tuple[str, ...] = ()
    if digests is not None:
        known = digests
        differing = tuple(n for n, (a, b) in shaped.items() if _digest(a.promise, known) != _digest(b.promise, known))
    equal = None if digests is None else len(shaped) - len(differing)
    told = tuple(problem.removeprefix("proposed 1: ") for problem in problems)
    return Proof(len(new.model), len(pairs), len(shaped), equal, by, told, differing)


def _digest(promise: Promise, digests: dict[Promise, bytes]) -> bytes:
    known = digests.get(promise)
    if known is None:
        known = digests[promise] = fingerprint(promise).value
    return known
