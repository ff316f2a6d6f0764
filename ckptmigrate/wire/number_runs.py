"""Numbers of several widths, one after the other: crossed a window at a time, run by run, when they are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from ckptmigrate.tensor import Promise

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Starts = slice | np.ndarray[Any, Any]
    Groups = Callable[[Bytes, int], Iterator[tuple[Starts, int, int]]]
    """Of a window and how many numbers are left: where the numbers of a run start, how many, and where the run ends."""


def runs(packed: Promise, count: int, groups: Groups, window: int, what: str) -> Iterator[tuple[Bytes, Starts, int]]:
    """Give each run of ``count`` numbers: the window it lies in, where its numbers start, how many.

    CorruptError where they are not all there, or something follows; ``what`` says of whom, and since when.
    """
    import numpy as np  # noqa: PLC0415 - numbers are needed only when they are drawn

    left, rest = count, b""
    for start in range(0, packed.numel, window):
        read = packed.read(start, min(start + window, packed.numel))
        raw = np.frombuffer(rest + read if rest else read, "u1")
        end = 0
        for starts, number, end in groups(raw, left):  # noqa: B007 - the last end is what follows
            left -= number
            yield raw, starts, number
        rest = raw[end:].tobytes()
    if left or rest:
        raise CorruptError(f"{left:,} {what}")
