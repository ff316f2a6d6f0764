"""Read every checkpoint that Burn and PyTorch have ever written, upgrade it, write a current one.

    with ckptmigrate.open("checkpoint.pt") as checkpoint:
        weight = checkpoint.model["fc.weight"].numpy()

    ckptmigrate.migrate("old.pth", "model.safetensors")

Importing this imports no torch, no numpy and no command line library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import convert as _convert
from . import doctor as _doctor
from . import errors
from . import inspection as _inspection
from . import runs as _runs
from . import store as _store
from . import verify as _verify
from .checkpoint import Checkpoint, Optimizer, Param, Progress, Slot, Stamp
from .convert import Report
from .doctor import Finding
from .format import GatherOptions, ReadOptions, WriteOptions
from .marks import Absent, Dtype, Fact, Fields, Present, Shape, Untrained, Value
from .migrator import Chain, Migrator
from .operations import Drop, Rename
from .runs import Run
from .tensor import Tensor
from .verify import Difference

if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.1.0"

__all__ = [
    "Absent",
    "Chain",
    "Checkpoint",
    "Difference",
    "Drop",
    "Dtype",
    "Fact",
    "Fields",
    "Finding",
    "GatherOptions",
    "Migrator",
    "Optimizer",
    "Param",
    "Present",
    "Progress",
    "ReadOptions",
    "Rename",
    "Report",
    "Run",
    "Shape",
    "Slot",
    "Stamp",
    "Tensor",
    "Untrained",
    "Value",
    "WriteOptions",
    "doctor",
    "epochs",
    "errors",
    "inspect",
    "migrate",
    "open",
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


def migrate(path: str | Path, out: str | Path | None = None, **options: Any) -> Report:
    """Convert and upgrade ``path`` into ``out`` and give the report.

    ``options`` are the fields of ``ckptmigrate.convert.Options``; in place: ``out`` None and ``in_place=True``.
    """
    return _convert.migrate(path, out, _convert.Options(**options))


def verify(a: str | Path, b: str | Path, *, read: ReadOptions | None = None) -> list[Difference]:
    """Give what differs between two checkpoints, by digest; [] when both hold the same tensors and values."""
    with open(a, read=read) as left, open(b, read=read) as right:
        return _verify.compare(left, right)


def epochs(path: str | Path) -> list[Run]:
    """Give the runs at and below a folder: their epochs, which are whole, and the ``newest`` of each that can be resumed."""
    return _runs.find(path)


def doctor(path: str | Path) -> list[Finding]:
    """Give what the framework of a file or run would say of it, or silently do wrong with it; [] when there is no symptom."""
    return _doctor.examine(path)
