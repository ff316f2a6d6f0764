"""A mark that tells the old checkpoint from the new one: it holds for the one, and does not for the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate import marks

from .spelling import covering, escaped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.marks import Mark

    from .composing import Spec

WEIGHT = {"Split": 0, "Unstack": 0, "Concat": 0, "Stack": 0, "Rename": 1, "Drop": 2}  # what tells most about the step
LATER = {"Add", "Tie"}  # their names are those of the new checkpoint


@dataclass(frozen=True, slots=True)
class MarkSpec:
    """A mark as it will be written."""

    operation: str
    positional: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...] = ()

    def made(self) -> Mark:
        """Give the mark itself."""
        made: Mark = getattr(marks, self.operation)(*self.positional)
        return made


def mark(specs: Sequence[Spec], old: Checkpoint, new: Checkpoint) -> MarkSpec | None:
    """Give the first mark that holds for the old checkpoint and not for the new one: a name, else a shape, a dtype, an absence."""
    for candidate in _candidates(specs, old, new):
        made = candidate.made()
        if made.holds(old) and not made.holds(new):
            return candidate
    return None


def _candidates(specs: Sequence[Spec], old: Checkpoint, new: Checkpoint) -> Iterator[MarkSpec]:
    earlier = sorted((s for s in specs if s.operation not in LATER), key=lambda s: WEIGHT.get(s.operation, 3))
    names = {*old.model, *new.model}
    for spec in earlier:
        gone = [name for name in spec.sources if name in old.model and name not in new.model]
        if gone:
            yield MarkSpec("Present", (covering(gone, names),))
    patterns = [(pattern, spec) for spec in earlier for pattern in spec.patterns]
    for pattern, spec in patterns:
        for name in (n for n in spec.sources if n in old.model and n in new.model):
            shape, after = old.model[name].shape, new.model[name].shape
            if len(shape) != len(after):
                yield MarkSpec("Shape", (pattern, ["*"] * len(shape)))
            yield MarkSpec("Shape", (pattern, list(shape)))
            yield MarkSpec("Dtype", (pattern, old.model[name].dtype.name))
            break
    yield from (MarkSpec("Absent", (escaped(name),)) for name in new.model if name not in old.model)
