"""Read every checkpoint that Burn and PyTorch have ever written, upgrade it, write a current one.

    with ckptmigrate.open("checkpoint.pt") as checkpoint:
        weight = checkpoint.model["fc.weight"].numpy()

    ckptmigrate.migrate("old.pth", "model.safetensors")

Importing this imports no torch, no numpy and no command line library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import batch as _batch
from . import checking as _checking
from . import convert as _convert
from . import doctor as _doctor
from . import errors
from . import inspection as _inspection
from . import planning as _planning
from . import propose as _propose
from . import registry as _registry
from . import runs as _runs
from . import stamping as _stamping
from . import store as _store
from . import verify as _verify
from .batch import RunReport
from .checking import Standing
from .checkpoint import Checkpoint, Optimizer, Param, Progress, Slot, Stamp
from .convert import Report
from .doctor import Finding
from .format import GatherOptions, ReadOptions, WriteOptions
from .marks import Absent, Dtype, Either, Fact, Fields, Present, Shape, Untrained, Value
from .migrator import Chain, Migrator
from .operations import (
    Add,
    Apply,
    Cast,
    Concat,
    Drop,
    Move,
    Order,
    Reindex,
    Rename,
    Reorder,
    Reshape,
    Split,
    Stack,
    Tie,
    Transpose,
    Unstack,
    Untie,
)
from .planning import Forecast
from .propose import Written
from .runs import Run
from .stamping import Stamped, stamp_for
from .tensor import Tensor
from .upgrading import upgrade
from .values import Known
from .verify import Diff, Difference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__version__ = "0.1.0"

__all__ = [
    "Absent",
    "Add",
    "Apply",
    "Cast",
    "Chain",
    "Checkpoint",
    "Concat",
    "Diff",
    "Difference",
    "Drop",
    "Dtype",
    "Either",
    "Fact",
    "Fields",
    "Finding",
    "Forecast",
    "GatherOptions",
    "Known",
    "Migrator",
    "Move",
    "Optimizer",
    "Order",
    "Param",
    "Present",
    "Progress",
    "ReadOptions",
    "Reindex",
    "Rename",
    "Reorder",
    "Report",
    "Reshape",
    "Run",
    "RunReport",
    "Shape",
    "Slot",
    "Split",
    "Stack",
    "Stamp",
    "Stamped",
    "Standing",
    "Tensor",
    "Tie",
    "Transpose",
    "Unstack",
    "Untie",
    "Untrained",
    "Value",
    "WriteOptions",
    "Written",
    "check",
    "diff",
    "doctor",
    "epochs",
    "errors",
    "inspect",
    "migrate",
    "new",
    "open",
    "plan",
    "stamp",
    "stamp_for",
    "stamp_of",
    "upgrade",
    "verify",
]


def open(  # noqa: A001 - the word every user looks for: ckptmigrate.open
    path: str | Path, *, read: ReadOptions | None = None, gather: GatherOptions | None = None
) -> Checkpoint:
    """Give the checkpoint at ``path``: names, dtypes, shapes; bytes only when a tensor is drawn.

    A context manager: closing it closes the files that its tensors are drawn from.
    """
    return _store.open_checkpoint(path, read, gather)


def inspect(
    path: str | Path, *, digests: bool = False, read: ReadOptions | None = None, gather: GatherOptions | None = None
) -> dict[str, Any]:
    """Give what a checkpoint holds, in the shape of ``ckptmigrate inspect --json``."""
    with open(path, read=read, gather=gather) as checkpoint:
        return _inspection.describe(checkpoint, str(path), digests=digests)


def migrate(path: str | Path, out: str | Path | None = None, **options: Any) -> Report | RunReport:
    """Convert and upgrade ``path`` into ``out`` and give the report; of the folder of a run with several epochs, one for each of them.

    ``options`` are the fields of ``ckptmigrate.convert.Options``; in place: ``out`` None and ``in_place=True``. An epoch that cannot
    be converted is in ``RunReport.refused`` and the others go on; PlanError where none can. ``GatherOptions(epoch=3)`` takes one.
    """
    return _batch.migrate(path, out, _convert.Options(**options))


def plan(path: str | Path, out: str | Path | None = None, **options: Any) -> list[Forecast]:
    """Give what ``migrate`` would do, and write nothing: one forecast for a checkpoint, one for each epoch of a run.

    ``options`` as for ``migrate``. What stands against it is in ``problems``; an error is raised only where nothing can be planned.
    """
    return _planning.forecast(path, out, _convert.Options(**options))


def new(
    chain: str, version: str, old: str | Path | None = None, new: str | Path | None = None, **options: Any
) -> Written:
    """Write the file of a migrator into ``migrations/`` and give what it says: a skeleton, or operations proposed from two checkpoints.

    ``old``, ``new``: a checkpoint before the step and one after it, or ``"module:callable"`` that gives its model. ``options``:
    ``into`` another folder, ``folders`` where further steps lie, ``force`` to replace the file, ``read``, ``gather``.
    """
    said = [None if path is None else str(path) for path in (old, new)]
    return _propose.new(chain, version, *said, **options)


def check(path: str | Path, **options: Any) -> list[Standing]:
    """Give where a checkpoint stands and what is pending, or each epoch of a run; a file that cannot be read is said to be broken.

    Of the options of ``migrate`` those count that say what is read and which chains apply, and ``like``: the model that must load it
    strictly once the pending steps are taken. UsageError for a chain that is not here.
    """
    return _checking.check(path, _convert.Options(**options))


def stamp(path: str | Path, versions: Mapping[str, str], *, beside: bool = False, **options: Any) -> Stamped:
    """Write down where a checkpoint stands, ``{chain: version}``: inside it, with a backup, or in a file beside it.

    ``beside``: leave the checkpoint as it is. VersionError where the checkpoint itself says something else.
    """
    return _stamping.stamp(path, versions, _convert.Options(**options), beside=beside)


def stamp_of(path: str | Path, **options: Any) -> dict[str, str]:
    """Give the stamp of a checkpoint, wherever it lies, as ``stamp_for`` would give it: what ``upgrade`` takes as ``stamp``."""
    return _stamping.stamp_of(path, _convert.Options(**options))


def verify(a: str | Path, b: str | Path, *, read: ReadOptions | None = None) -> list[Difference]:
    """Give what differs between two checkpoints, by digest; [] when both hold the same tensors and values."""
    with open(a, read=read) as left, open(b, read=read) as right:
        return _verify.compare(left, right, _identify(left, right))


def diff(a: str | Path, b: str | Path, *, read: ReadOptions | None = None) -> Diff:
    """Give all that sets two checkpoints apart, the renames that their contents prove included; formats and families may differ.

    Tensors with how far their elements lie apart; values, order, ties, roles, ids and stamps.
    """
    with open(a, read=read) as left, open(b, read=read) as right:
        return _verify.diff(left, right, _identify(left, right))


def _identify(left: Checkpoint, right: Checkpoint) -> Callable[[int | str], int] | None:
    """Give what tells ids that mean the same on both sides."""
    return _registry.family(left.family).identify if left.family == right.family else None


def epochs(path: str | Path) -> list[Run]:
    """Give the runs at and below a folder: their epochs, which are whole, and the ``newest`` of each that can be resumed."""
    return _runs.find(path)


def doctor(path: str | Path) -> list[Finding]:
    """Give what the framework of a file or run would say of it, or silently do wrong with it; [] when there is no symptom."""
    return _doctor.examine(path)
