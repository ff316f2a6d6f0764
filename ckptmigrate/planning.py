"""What a conversion would do, before anything is written: the dry run of ``convert``, with all that a person decides by.

Steps, names before and after, bytes, memory, scratch, and every problem at once. Nothing is drawn but tensors of one element.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import convert, runs, space
from .errors import UsageError, reading
from .files import Disk

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .tensor import Tensor

PLANNED = ".planned"  # what stands behind PATH where no OUT is named: the suffix of no format, so that --to or the family decides


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the names a tensor had, the name it gets, and its dtype and shape before and after.

    ``before`` () is an added one; ``after`` None one that is dropped, for ``reason``.
    """

    before: tuple[str, ...]
    after: str | None
    what: str
    was: tuple[str, tuple[int, ...]] | None
    becomes: tuple[str, tuple[int, ...]] | None
    reason: str | None = None

    @property
    def changes(self) -> bool:
        """Whether name, dtype or shape is another, or the elements are."""
        return self.what != "kept"


@dataclass(frozen=True, slots=True)
class Step:
    """One step that would be taken: what it is called, where it lies, which way, and the numbers it is given."""

    chain: str
    version: str
    direction: str
    where: str
    operations: tuple[str, ...]
    numbers: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a conversion would do. ``problems`` () means that it can be done.

    ``nbytes``: of the output; ``scratch``: what decoded sources will spill; ``memory``: the windows that are held while drawing,
    beside what the process itself takes. All in bytes.
    """

    source: str
    epoch: int | None
    target: str | None
    format: str
    layout: str
    family: str
    places: tuple[tuple[str, str | None, str], ...]  # chain, version or None, what tells it
    steps: tuple[Step, ...]
    stamps: tuple[tuple[str, str], ...]
    table: tuple[Row, ...]
    files: tuple[tuple[str, int], ...]
    nbytes: int
    memory: int
    scratch: int
    pending: bool
    problems: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        return {
            "source": self.source,
            "epoch": self.epoch,
            "target": self.target,
            "format": self.format,
            "layout": self.layout,
            "family": self.family,
            "places": [{"chain": name, "version": version, "by": by} for name, version, by in self.places],
            "steps": [
                {
                    "chain": step.chain,
                    "version": step.version,
                    "direction": step.direction,
                    "where": step.where,
                    "operations": list(step.operations),
                    "numbers": dict(step.numbers),
                }
                for step in self.steps
            ],
            "stamps": dict(self.stamps),
            "tensors": [_row_dict(row) for row in self.table],
            "files": dict(self.files),
            "nbytes": self.nbytes,
            "memory": self.memory,
            "scratch": self.scratch,
            "pending": self.pending,
            "problems": list(self.problems),
            "left_out": [{"path": path, "reason": reason} for path, reason in self.left_out],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def _row_dict(row: Row) -> dict[str, Any]:
    shown: dict[str, Any] = {"before": list(row.before), "after": row.after, "fate": row.what}
    for key, looks in (("was", row.was), ("becomes", row.becomes)):
        shown[key] = None if looks is None else {"dtype": looks[0], "shape": list(looks[1])}
    return shown | ({"reason": row.reason} if row.reason else {})


def forecast(path: str | Path, out: str | Path | None, options: convert.Options) -> list[Forecast]:
    """Give what ``convert.migrate`` would do with the checkpoint at a path; of a run, with each of its epochs.

    Problems of the plan are in it; an error is raised only for what cannot be planned at all.
    """
    if options.in_place and out is not None:
        raise UsageError("in place takes no OUT")
    run = runs.at(path, options.read, options.gather.epoch)
    if run is None or len(run.epochs) <= 1:
        return [_one(path, out, options)]
    return [
        _one(path, out, replace(options, gather=replace(options.gather, epoch=epoch.number))) for epoch in run.epochs
    ]


def _one(path: str | Path, out: str | Path | None, options: convert.Options) -> Forecast:
    named = None if options.in_place else out if out is not None else f"{str(path).rstrip('/')}{PLANNED}"
    with Disk(options.scratch) as disk, reading(str(path)):
        made = convert.prepare(disk, path, named, replace(options, dry_run=True))
        return _told(made, str(path), out, options)


def _told(made: convert.Prepared, path: str, out: str | Path | None, options: convert.Options) -> Forecast:
    checkpoint, plan, blueprint = made.checkpoint, made.plan, made.blueprint
    ledger = checkpoint.ledger
    lost = tuple((f.source, f.reason or "") for f in ledger.rows() if f.what == "left out")
    return Forecast(
        source=path,
        epoch=options.gather.epoch,
        target=path if options.in_place else None if out is None else str(out),
        format=made.target.format.name,
        layout=made.target.layout.name if made.target.layout else "keep",
        family=checkpoint.family,
        places=plan.told,
        steps=tuple(
            Step(
                step.migrator.chain,
                step.migrator.version,
                step.direction,
                step.where,
                tuple(operation.describe() for operation in step.migrator.operations),
                tuple(step.parameters.items()),
            )
            for step in plan.steps
        ),
        stamps=tuple(plan.stamps.items()),
        table=tuple(_table(made)),
        files=tuple(blueprint.sizes.items()),
        nbytes=sum(blueprint.sizes.values()),
        memory=space.memory(blueprint),
        scratch=space.scratch(blueprint),
        pending=not made.nothing_pending,
        problems=made.problems,
        left_out=(*lost, *blueprint.left_out),
        notes=(*ledger.notes, *plan.notes, *plan.suggestions, *blueprint.notes),
        warnings=(*(caveat.text for caveat in made.caveats), *ledger.warnings, *plan.warnings),
    )


def _table(made: convert.Prepared) -> Iterable[Row]:
    """Give a row for each tensor that the model has or had, in the order in which it has them afterwards; dropped ones last."""
    ledger, model = made.checkpoint.ledger, made.checkpoint.model
    came = ledger.came_from()
    fates = {f"model/{name}": ledger.fates.get(f"model/{name}") for name in made.before}
    for name, tensor in model.items():
        origins = [item.removeprefix("model/") for item in came.get(f"model/{name}", ()) if item.startswith("model/")]
        first = made.before.get(origins[0]) if origins else None
        fate = fates.get(f"model/{origins[0]}") if origins else None
        what = "added" if fate is None else fate.what
        yield Row(tuple(origins), name, what, None if first is None else _looks(first), _looks(tensor))
    for item, fate in fates.items():
        name = item.removeprefix("model/")
        if fate is not None and not fate.targets:
            yield Row((name,), None, fate.what, _looks(made.before[name]), None, fate.reason)


def _looks(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype.name, tuple(tensor.dtype.spelled_shape(tensor.shape))
