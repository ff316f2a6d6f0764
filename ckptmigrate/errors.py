"""The one tree of errors; every class carries what it found as attributes.

    CkptError
    ├── UsageError                   the call contradicts itself or names what does not exist; exit 2
    ├── FormatError                  a file is not what it claims to be
    │   ├── UnknownFormatError       no format claims it: empty, a web page, a Git LFS pointer, …
    │   ├── UnsupportedFormatError   recognised and refused by name
    │   ├── TruncatedError           ends before what it claims; also an EOFError
    │   ├── CorruptError             contradicts itself: checksums, overlaps, duplicates, headers
    │   ├── LimitError               claims more than a named limit allows
    │   └── ForeignCallError         asks for a call that this code does not know
    ├── CheckpointError              the parts do not make one checkpoint
    │   ├── AmbiguousError           two readings; both are named
    │   ├── SectionError             a section or key that was asked for is not there
    │   └── OptimizerError           optimizer state that does not fit its parameters
    ├── TensorError                  a tensor that the target, an operation or torch-free code cannot hold
    ├── ChainError                   versions, migrators and plans
    │   ├── VersionError             no place in a chain, or two that contradict each other
    │   ├── MigratorError            a migrator or chain file is wrong
    │   └── PlanError                problems of a plan, all at once
    ├── PluginError                  an installed plugin or a missing optional dependency
    └── OutputError                  the output could not be made whole; nothing is left under its name
        ├── ExistsError              OUT is there already
        ├── ChangedError             a source changed while it was read
        ├── SpaceError               the disk cannot hold output and scratch
        └── VerificationError        what was written is not what was read

Catch ``CkptError`` for everything; ``FormatError`` for bad input; ``OutputError`` for trouble on the way out.
A remedy is a note (``add_note``, or ``hint=``) that the command line shows as "hint:".
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class CkptError(Exception):
    """Anything that ckptmigrate refuses or fails at; ``path`` is the file, ``data`` what was found there."""

    def __init__(self, message: str, *, path: str | None = None, hint: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.data = data
        if hint is not None:
            self.add_note(hint)

    @property
    def hints(self) -> list[str]:
        """The remedies, in the order in which they were added."""
        return list(getattr(self, "__notes__", []))

    def __str__(self) -> str:
        """Give the file and the message in one line."""
        return f"{self.path}: {self.message}" if self.path else self.message


class UsageError(CkptError):
    """The call contradicts itself, or names an option, format, layout or section that does not exist."""


class FormatError(CkptError):
    """A file is not what it claims to be."""


class UnknownFormatError(FormatError):
    """No format claims the file."""


class UnsupportedFormatError(FormatError):
    """A format or a part of one that is recognised and refused by name."""


class TruncatedError(FormatError, EOFError):
    """The file ends before what it claims; data: ``needed``, ``present``."""


class CorruptError(FormatError, ValueError):
    """The file contradicts itself."""


class LimitError(FormatError, ValueError):
    """The file claims more than a named limit allows; data: ``limit``, ``claimed``."""


class ForeignCallError(FormatError):
    """A pickle asks for calls that nobody here knows; data: ``calls``, pairs of key path and global."""


class CheckpointError(CkptError):
    """The parts do not make one checkpoint."""


class AmbiguousError(CheckpointError):
    """Two readings are possible; data: ``candidates``."""


class SectionError(CheckpointError, LookupError):
    """A section or key that was asked for is not there; data: ``present``."""


class OptimizerError(CheckpointError):
    """Optimizer state that does not fit its parameters."""


class TensorError(CkptError, ValueError):
    """A tensor that cannot be held or converted; data: ``tensor``, ``dtype``."""


class ChainError(CkptError):
    """Versions, migrators and plans."""


class VersionError(ChainError):
    """No place in a chain, or two that contradict each other."""


class MigratorError(ChainError):
    """A migrator or chain file is wrong; the message names the file."""


class PlanError(ChainError):
    """The problems of a plan, all at once; ``problems`` has every one, the message the first of those that begin alike."""

    def __init__(self, problems: Sequence[str], *, path: str | None = None, hint: str | None = None) -> None:
        count = len(problems)
        lines = "".join(f"\n  - {line}" for line in first_of_each(problems))
        super().__init__(problems[0] if count == 1 else f"{count} problems:{lines}", path=path, hint=hint)
        self.problems = tuple(problems)


SHOWN = 20  # problems of one kind in a message: more fill a screen and tell nothing


def first_of_each(problems: Sequence[str]) -> Iterator[str]:
    """Give the first of the problems whose texts agree up to the second colon, and how many more there are."""
    counts: dict[str, int] = {}
    for problem in problems:
        pieces = problem.split(": ", 2)
        kind = ": ".join(pieces[:2]) if len(pieces) > 2 else problem
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= SHOWN:
            yield problem
    yield from (f"{kind}: … and {count - SHOWN} more" for kind, count in counts.items() if count > SHOWN)


class PluginError(CkptError, ImportError):
    """An installed plugin does not load, or an optional dependency is absent."""


class OutputError(CkptError):
    """The output could not be made whole; nothing is left under its name."""


class ExistsError(OutputError, FileExistsError):
    """OUT is there already."""


class ChangedError(OutputError):
    """A source changed while it was read."""


class SpaceError(OutputError):
    """The disk cannot hold output and scratch; data: ``needed``, ``free``."""


class VerificationError(OutputError):
    """What was written is not what was read."""


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Name ``path`` in any error of this tree that passes and names no file yet."""
    try:
        yield
    except CkptError as error:
        if error.path is None:
            error.path = path
        raise
