"""Open files, few at a time: a pool of descriptors, each of which stays open for as long as somebody holds it."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ckptmigrate.errors import CkptError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

POOL = 64  # descriptors kept open: a folder of a thousand shards stays under the usual limit of 1,024

KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class Descriptor(int):
    """A descriptor that closes when nobody holds it, so that the pool may forget one through which a thread still reads."""

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        _close(int(self))


class Pool:
    """The descriptors used last; what falls out is opened again when it is wanted."""

    def __init__(self) -> None:
        self._held: OrderedDict[Hashable, Descriptor] = OrderedDict()
        self._lock = Lock()
        self._closed = False

    def get(self, key: Hashable, name: str, opening: Callable[[], Descriptor]) -> Descriptor:
        """Give the descriptor held for ``key``, or what ``opening`` gives; ``name`` is for the message after ``close``."""
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
                return held
            if self._closed:
                raise CkptError("cannot be read: its checkpoint was left", path=name)
            opened = self._held[key] = opening()
            if len(self._held) > POOL:
                self._held.popitem(last=False)
            return opened

    def close(self) -> None:
        """Forget every descriptor, and give none from here on."""
        with self._lock:
            self._closed = True
            self._held.clear()


def open_regular(name: str) -> Descriptor:
    """Open a regular file for reading, without waiting for the other end of a FIFO."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    opened = Descriptor(os.open(name, flags))
    mode = os.fstat(opened).st_mode
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "a folder")
        raise UnsupportedFormatError(f"{kind}, expected a regular file", path=name)
    return opened


def identity_of(found: os.stat_result) -> tuple[int, ...]:
    """Give what changes when somebody writes to a file or puts another in its place."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def identity_now(name: str) -> tuple[int, ...] | None:
    """Give the identity of what lies under a name; None where nothing does."""
    try:
        return identity_of(Path(name).stat())
    except OSError:
        return None
