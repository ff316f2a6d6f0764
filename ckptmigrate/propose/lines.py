"""A table of all lines of all tensors, and how another tensor's lines are covered by runs of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np

    from .evidence import Trace

    Array = np.ndarray[Any, Any]

WHOLE = -1  # stands for an axis where the whole tensor is one line
TRIED = 16  # places that a run is looked for at; zeros of a million rows stand at a million of them
GLANCE = 64  # lines compared first: most runs end there


@dataclass(frozen=True, slots=True)
class Run:
    """Lines [start, start + length) of one tensor along one axis; the whole tensor is one line of axis -1."""

    name: str
    axis: int
    start: int
    length: int


class Table:
    """Lines of many tensors, sorted by their bags: 17 bytes each."""

    def __init__(self, entries: Iterable[tuple[str, int, Array]]) -> None:
        """Take the lines of (name, axis, bags)."""
        import numpy as np  # noqa: PLC0415 - lines are arrays

        self.entries = list(entries)
        lengths = np.array([len(lines) for _, _, lines in self.entries], np.int64)
        keys = np.concatenate([lines for _, _, lines in self.entries]) if self.entries else np.zeros(0, np.uint64)
        order = np.argsort(keys, kind="stable")
        begins = np.cumsum(lengths) - lengths
        self.keys = keys[order]
        self.whose = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[order]
        self.places = (np.arange(len(keys)) - np.repeat(begins, lengths))[order]

    @classmethod
    def of(cls, traces: Mapping[str, Trace]) -> Table:
        """Take all axes of all tensors, and each tensor as one line."""
        import numpy as np  # noqa: PLC0415 - same

        def entries() -> Iterable[tuple[str, int, Array]]:
            for name, trace in traces.items():
                yield name, WHOLE, np.array([trace.bag], np.uint64)
                yield from ((name, axis, lines) for axis, lines in enumerate(trace.lines) if len(lines) > 1)

        return cls(entries())

    def cover(self, lines: Array) -> list[Run] | None:
        """Give the fewest runs, greedily, that are these lines one after the other; None where one of them is nowhere."""
        import numpy as np  # noqa: PLC0415 - same

        low, high = (np.searchsorted(self.keys, lines, side) for side in ("left", "right"))
        if (low == high).any():
            return None
        runs: list[Run] = []
        at = 0
        while at < len(lines):
            found = [self._run(index, lines, at) for index in range(low[at], min(high[at], low[at] + TRIED))]
            last = (runs[-1].name, runs[-1].axis) if runs else None
            best = max(found, key=lambda run: (run.length, (run.name, run.axis) == last))
            runs.append(best)
            at += best.length
        return runs

    def _run(self, index: int, lines: Array, at: int) -> Run:
        name, axis, own = self.entries[self.whose[index]]
        start = int(self.places[index])
        length, most = 0, min(len(own) - start, len(lines) - at)
        step = GLANCE
        while length < most:
            stop = min(length + step, most)
            differ = (own[start + length : start + stop] != lines[at + length : at + stop]).nonzero()[0]
            if len(differ):
                length += int(differ[0])
                break
            length, step = stop, step * 4
        return Run(name, axis, start, length)


def covered(trace: Trace, table: Table) -> tuple[int, list[Run]] | None:
    """Give the axis along which a tensor is covered by others, or -1 where it is a line of one, and the runs."""
    import numpy as np  # noqa: PLC0415 - same

    single = table.cover(np.array([trace.bag], np.uint64))
    if single is not None and single[0].axis != WHOLE:
        return WHOLE, single
    for axis, lines in enumerate(trace.lines):
        runs = table.cover(lines) if len(lines) > 1 else None
        if runs is not None:
            return axis, runs
    return None


def aligned(parts: Sequence[Sequence[Array]], whole: Sequence[Array]) -> list[int] | None:
    """Give for each axis of the parts which axis of the whole it is: the one whose lines are the sums of theirs."""
    import numpy as np  # noqa: PLC0415 - same

    if any(len(part) != len(whole) for part in parts):
        return None
    found: list[int] = []
    for axis in range(len(whole)):
        lines = [part[axis] for part in parts]
        if len({len(each) for each in lines}) > 1:
            return None
        total = np.sum(lines, axis=0, dtype=np.uint64)
        same = next((i for i, each in enumerate(whole) if i not in found and np.array_equal(total, each)), None)
        if same is None:
            return None
        found.append(same)
    return found
