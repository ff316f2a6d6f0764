"""A place in a source that moves forward: what a walk over a file reads from, in windows, keeping nothing.

The size of a decoded stream is not known before its end, and asking for it would decode all of it: ``size`` None reads on until
nothing comes. Windows start small behind every jump, because what follows a jump is mostly the next thing to jump over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import TruncatedError
from ckptmigrate.limits import KiB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptmigrate.errors import CkptError
    from ckptmigrate.files import Range, Source

SMALL, LARGE = 4 * KiB, 64 * KiB
NODES = 1_000_000  # values of a record beside its payloads: today's readers take 100,000 tensors, and 150 MB hold these


def add_keys(error: CkptError, around: Iterable[tuple[Any, str | None]]) -> None:
    """Put the keys before a message that lead to where it was found: of each container around it, with the key whose value came next."""
    steps = [str(len(held)) if isinstance(held, list) else key for held, key in around]
    if place := ".".join(step for step in steps if step is not None):
        error.message = f"{place}: {error.message}"


class Cursor:
    """``at`` is the offset of the next byte; ``size`` None: a stream whose end nobody knows yet."""

    def __init__(self, source: Source, size: int | None) -> None:
        self.source, self.size = source, size
        self.at = 0
        self._base, self._held, self._window = 0, b"", SMALL

    def look(self, nbytes: int) -> bytes:
        """Give the next ``nbytes`` bytes, fewer only at the end, and stay."""
        skip = self.at - self._base
        if skip < 0 or skip + nbytes > len(self._held):
            follows = 0 <= skip <= len(self._held)
            self._window = min(LARGE, 2 * self._window) if follows else SMALL
            kept = self._held[skip:] if follows else b""
            start = self.at + len(kept)
            wanted = max(nbytes - len(kept), self._window)
            if self.size is not None:
                wanted = max(0, min(wanted, self.size - start))
            self._base, self._held = self.at, kept + (self.source.read(start, wanted) if wanted else b"")
            skip = 0
        return self._held[skip : skip + nbytes]

    def take(self, nbytes: int) -> bytes:
        """Give exactly ``nbytes`` bytes and move behind them; TruncatedError gives both numbers."""
        found = self.look(nbytes)
        if len(found) < nbytes:
            raise self.short(nbytes)
        self.at += nbytes
        return found

    def leave(self, nbytes: int) -> Range:
        """Give the range of the next ``nbytes`` bytes, checked to be there, and move behind it; none of them is read."""
        found = self.source.range(self.at, nbytes)
        self.at += nbytes
        return found

    def left(self) -> int | None:
        """Give the bytes that follow, where that is known."""
        return None if self.size is None else self.size - self.at

    def short(self, nbytes: int) -> TruncatedError:
        """Give the error of a file that ends within the next ``nbytes`` bytes."""
        present = self.at + len(self.look(nbytes))
        message = f"ends at byte {present:,}, {self.at + nbytes - present:,} bytes before what it claims"
        return TruncatedError(message, needed=self.at + nbytes, present=present)
