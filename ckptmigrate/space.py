"""What a conversion takes: room for the output, scratch, memory; known from lengths, before anything is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import SpaceError
from .files.sink import free_space
from .tensor import Joined, Made, View
from .tensor.rules import Array, Fill

if TYPE_CHECKING:
    from .files import Disk
    from .format import Blueprint
    from .target import Target
    from .tensor import Promise

BUFFERS = 2  # windows that are in memory at once: one is drawn while the one before it is written


def check(blueprint: Blueprint, target: Target, disk: Disk) -> None:
    """Compare the output, and what decoded sources and looks at them will spill, with the free space before anything is written."""
    output, folder = sum(blueprint.sizes.values()), target.path.parent
    spilled = scratch(blueprint)
    needs = [("the output", output, free_space(folder), "write elsewhere")]
    if spilled:
        needs.append(("scratch", spilled, disk.free_scratch(), "name another folder with --scratch"))
        if disk.shares_space(folder):
            both = "the output and its scratch, both on one disk,"
            needs.append((both, output + spilled, free_space(folder), "name a folder on another disk with --scratch"))
    for what, needed, free, remedy in needs:
        if needed > free:
            raise SpaceError(
                f"{what} needs {needed:,} bytes, and {free:,} are free",
                path=str(target.path), needed=needed, free=free, hint=f"free some space, or {remedy}",
            )  # fmt: skip


def scratch(blueprint: Blueprint) -> int:
    """Give the bytes that decoded sources and looks at them will spill when the blueprint is drawn."""
    return sum(file.awaited for file in {r.file for promise in blueprint.names for r in promise.sources()})


def memory(blueprint: Blueprint) -> int:
    """Give the bytes of the windows that are held while the blueprint is drawn, beside what the process itself takes."""
    pieces = {
        piece for laid in blueprint.files.values() for _, piece in laid if isinstance(piece, View | Joined | Made)
    }
    return BUFFERS * max(map(_window, pieces), default=0)


def _window(promise: Promise) -> int:
    """Give the bytes that drawing one window of a promise holds: it, and the windows of what it is made of."""
    own = min(promise.window, promise.numel) * promise.itemsize
    if isinstance(promise, View):
        return own
    if isinstance(promise, Joined):
        return own + max(map(_window, promise.parts))
    if isinstance(promise.rule, Fill | Array):
        return own
    if promise.rule.elementwise:
        return own + sum(map(_window, promise.inputs))
    whole = sum(
        each.nbytes for each in promise.inputs
    )  # a rule that looks at all of its inputs holds them, and its output
    return own + whole + promise.nbytes
