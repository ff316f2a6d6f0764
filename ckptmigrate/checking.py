"""Whether a checkpoint is current: at the head of every chain that applies, in a file that today's framework opens, and fit for the model that is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import chains, convert, like, registry, runs, store
from .errors import CkptError, UsageError, reading
from .files import Disk

if TYPE_CHECKING:
    from pathlib import Path

    from .checkpoint import Checkpoint
    from .convert import Options


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a checkpoint stands, for ``check``: ``pending`` (), ``misfits`` () and no ``error`` mean that it is current.

    ``misfits``: why the model that was asked for (``like``) does not load it strictly, once what is pending is done.
    """

    path: str
    epoch: int | None
    format: str | None
    places: tuple[tuple[str, str | None, str], ...] = ()
    pending: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    hints: tuple[str, ...] = ()

    @property
    def current(self) -> bool:
        """Whether it stands at the head, or the named target, of every chain that applies, today's framework opens it, and it fits."""
        return self.error is None and not self.pending and not self.misfits

    def as_dict(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        return {
            "path": self.path,
            "epoch": self.epoch,
            "current": self.current,
            "format": self.format,
            "places": [{"chain": name, "version": version, "by": by} for name, version, by in self.places],
            "pending": list(self.pending),
            "misfits": list(self.misfits),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "error": self.error,
            "hints": list(self.hints),
        }


def check(path: str | Path, options: Options) -> list[Standing]:
    """Give where the checkpoint at a path stands; of a run, each of its epochs. What cannot be read is said, not raised.

    Of ``options`` those count that say what is read, which steps apply and which model it must fit. UsageError for a chain that is
    not here; a model that cannot be read is an error as in ``like.load``.
    """
    options = convert.with_like(options)
    catalog = chains.Catalog.find(options.migrations)
    for name in (*options.chains, *options.said, *options.projected):
        if not catalog.has(name):
            catalog.chain(name)
    try:
        run = runs.at(path, options.read, options.gather.epoch)
    except CkptError as error:
        return [_broken(path, None, error)]
    if run is None or not run.epochs:
        return [_standing(path, options, catalog)]
    return [
        _standing(path, replace(options, gather=replace(options.gather, epoch=epoch.number)), catalog)
        for epoch in run.epochs
    ]


def _standing(path: str | Path, options: Options, catalog: chains.Catalog) -> Standing:
    epoch = options.gather.epoch
    try:
        with Disk(options.scratch) as disk, reading(str(path)):
            checkpoint = store.open_checkpoint(path, options.read, options.gather, disk)
            plan = chains.plan(
                checkpoint,
                catalog,
                named=options.chains,
                said=options.said,
                family=registry.family(checkpoint.family),
                projected=options.projected,
                parameters=options.numbers,
                ties=options.write.ties,
            )
            name = checkpoint.origin.format
            old = () if store.is_current(checkpoint) else (f"today's framework does not open it as it is ({name})",)
            mended, misfits = _fitted(checkpoint, plan, options)
    except UsageError:
        raise
    except CkptError as error:
        return _broken(path, epoch, error)
    return Standing(
        str(path),
        epoch,
        name,
        plan.told,
        (*plan.pending(), *old, *mended),
        misfits,
        (*checkpoint.ledger.notes, *plan.notes, *plan.suggestions),
        (*checkpoint.ledger.warnings, *plan.warnings),
    )


def _fitted(checkpoint: Checkpoint, plan: chains.Plan, options: Options) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Take the pending steps and make the result fit the wanted model; give what had to be mended for that, and what does not fit."""
    wanted = options.gather.like
    if wanted is None or plan.problems:
        return (), ()
    problems = plan.apply(checkpoint, registry.family(checkpoint.family))
    if not checkpoint.model and not problems:
        return (), (f"it holds no model that could be compared with {wanted.name}",)
    names = set(checkpoint.model)
    family = registry.family(checkpoint.family)  # a chain may have led to another
    problems = problems or like.fit(checkpoint, family, options.gather, ties=options.write.ties, said=options.dtype)
    if problems:
        return (), tuple(problems)
    changed = sorted(names ^ set(checkpoint.model))
    # What --like mends (a counter that starts as 0, a number that a name lost), a strict load of the file as it is refuses.
    return ((f"{wanted.name} loads it only with these names mended: {', '.join(changed)}",) if changed else ()), ()


def _broken(path: str | Path, epoch: int | None, error: CkptError) -> Standing:
    if isinstance(error, UsageError):
        raise error
    return Standing(str(path), epoch, None, error=str(error), hints=tuple(error.hints))
