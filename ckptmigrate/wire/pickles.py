r"""Pickles, protocols 0 to 5, read as data: nothing is imported, nothing is called.

    80 02           PROTO 2              a pickle is a program for a stack machine: an opcode, its argument, the next
    7D              EMPTY_DICT           pushes
    71 00           BINPUT 0             remembers the top under a number; 68 00, BINGET, pushes it again
    28              MARK                 opens a run of items, which SETITEMS, APPENDS, TUPLE take off together
    58 01 00 00 00 61  BINUNICODE "a"
    63 "m\nF\n"     GLOBAL m F           pushes the name "m.F", and never what an import would give
    4B 06 85        BININT1 6, TUPLE1
    52              REDUCE               "the value of m.F(6)": asked of the table of meanings, else an inert call
    75 2E           SETITEMS, STOP

A name that the table lists gets its meaning by our own code (`names.Meaning`); any other stays an inert node: an object where
the pickle makes one (NEWOBJ, OBJ, INST, copyreg), a call where it calls (REDUCE). The machine is a loop over a table, without
recursion; every claimed length is compared with the bytes that are left before anything is read. Containers within containers
are measured once, on the finished value. Opcodes and their arguments: CPython's pickletools.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError, LimitError
from ckptmigrate.limits import LIMITS, Limits
from ckptmigrate.values import Inert, Known, Ordered

from .machine import STRIDE, Machine, Reader
from .opcodes import FIXED, HANDLERS, STOP, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .names import Meaning


@dataclass(frozen=True, slots=True)
class Loaded:
    """One pickle's value, the offset behind its STOP, and every call that nobody makes, by the offset of its opcode.

    ``calls`` also holds those that the pickle took off its stack again, so that no walk over ``value`` would find them.
    """

    value: Any
    end: int
    calls: tuple[tuple[int, Inert], ...] = ()


@dataclass(frozen=True, slots=True)
class _Memory:
    data: bytes | bytearray | memoryview

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, nbytes: int, /) -> bytes:
        return bytes(self.data[offset : offset + nbytes])


def load(
    source: Reader | bytes | bytearray | memoryview,
    offset: int = 0,
    *,
    limits: Limits = LIMITS,
    meanings: Mapping[str, Meaning],
    persistent: Callable[[Any], Any] | None = None,
    encoding: str = "utf-8",
) -> Loaded:
    """Read the one pickle that begins at ``offset``; what follows its STOP is not looked at.

    ``persistent`` gives the value of a persistent id (a tuple; text at protocol 0). A class it is handed (an inert name) may be
    its answer. ``encoding``: Python 2's byte strings become text where they decode with it, else stay bytes. A name that is
    not in ``meanings`` is one Inert("name", path) object throughout the load.
    TruncatedError, CorruptError, LimitError name the offset.
    """
    reader = _Memory(source) if isinstance(source, (bytes, bytearray, memoryview)) else source
    machine = Machine(reader, offset, limits, meanings, persistent, encoding, FIXED)
    run(machine)
    value = machine.pop()
    check_nesting(value, limits.nesting)
    return Loaded(value, machine.base + machine.at, tuple(machine.calls))


def run(machine: Machine) -> None:
    """Work through the opcodes up to STOP."""
    handlers = HANDLERS
    try:
        while True:
            for _ in repeat(None, STRIDE):
                if machine.at >= machine.fence:
                    machine.slide()
                at = machine.at
                code = machine.window[at]
                machine.op = at
                machine.at = at + 1
                if code == STOP:
                    machine.look()
                    return
                handlers[code](machine)
            machine.look()
    except IndexError as error:
        raise CorruptError(
            f"the pickle takes more off its stack at byte {machine.where()} than it has put on"
        ) from error


def check_nesting(root: Any, limit: int) -> None:
    """Measure containers within containers, each once, whatever refers to it; LimitError above ``limit``.

    Values may refer to each other in rings and hold one container in a billion places. What walks them later may be
    recursive because this has been asked.
    """
    if type(root) not in CONTAINERS:
        return
    heights: dict[int, int] = {}  # levels of what is finished, itself included
    path = [root]  # from the root to the container at work, with the children that each has left, and its height so far
    rest, tallest, open_ = [children(root)], [1], {id(root)}
    while path:
        if rest[-1]:
            child = rest[-1].pop()
            height = heights.get(id(child), 0)
            if len(path) + max(height, 1) > limit:
                claimed = len(path) + max(height, 1)
                message = f"containers lie within containers {claimed} deep, more than the limit of {limit}"
                raise LimitError(message, limit=limit, claimed=claimed)
            if height:
                tallest[-1] = max(tallest[-1], 1 + height)
            elif id(child) not in open_:
                path.append(child)
                rest.append(children(child))
                tallest.append(1)
                open_.add(id(child))
        else:
            done = id(path.pop())
            rest.pop()
            open_.discard(done)
            heights[done] = tallest.pop()
            if tallest:
                tallest[-1] = max(tallest[-1], 1 + heights[done])


CONTAINERS = frozenset({list, tuple, dict, Ordered, Inert, Known})


def children(node: Any) -> list[Any]:
    """Give the containers that lie directly in one."""
    kind = type(node)
    parts: list[Any] = []
    if kind is dict or kind is Ordered:
        parts = [*node.values(), *node]
        if kind is Ordered:
            parts.append(node.attributes)
    elif kind is Inert:
        parts = [node.args, node.state, node.items]
    elif kind is Known:
        parts = [node.args]
    else:
        parts = node
    return [part for part in parts if type(part) in CONTAINERS]


def first_int(head: bytes) -> int | None:
    """Give the integer that the pickle at the head of a file is, in any protocol's spelling, or None; looks at 8 opcodes."""
    found: int | None = None
    for name, value in scan(head):
        if isinstance(value, int) and name not in ("PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT"):
            if found is not None:
                return None
            found = value
        elif name == "STOP":
            return found
        elif name not in ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            return None
    return None
