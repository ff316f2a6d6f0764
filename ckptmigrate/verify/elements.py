"""Elements of one tensor: their digest, and their fingerprint, which tells equal elements without keeping any.

    digest          SHA-256, where a digest is shown or stored
    fingerprint     xxh3-128, where elements are only compared: as fast as memory, and nobody stores it

Both are of the elements row-major and little-endian, drawn once in the windows that the promise asks for. A view of a tensor
(``promise.transpose(…)``, ``promise.slice(…)``, a cast) has its own; a reshape has that of what it reshapes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xxhash import xxh3_128

from ckptmigrate.tensor import windows

if TYPE_CHECKING:
    from ckptmigrate.tensor import Promise, Tensor


def digest(tensor: Tensor) -> str:
    """Give the SHA-256 of the tensor's elements, row-major and little-endian, as 64 hex digits."""
    sha = hashlib.sha256()
    for window in windows(tensor.promise):
        sha.update(window)
    return sha.hexdigest()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The xxh3-128 of some elements; ``constant``: all are equal bit by bit (none and one are), so that it proves nothing."""

    value: bytes
    constant: bool


class Fingerprinting:
    """The fingerprint of elements that come window by window, for who has other uses for them too."""

    def __init__(self, itemsize: int) -> None:
        self._itemsize, self._hashed = itemsize, xxh3_128()
        self._element: bytes | None = None
        self._constant = True

    def add(self, window: memoryview) -> None:
        """Take the next elements, in their order."""
        element = self._element = self._element or bytes(window[: self._itemsize])
        self._constant = self._constant and _is_repeated(window, element)
        self._hashed.update(window)

    def done(self) -> Fingerprint:
        """Give the fingerprint of all that came."""
        return Fingerprint(self._hashed.digest(), self._constant)


def fingerprint(promise: Promise) -> Fingerprint:
    """Give the fingerprint of all elements: one draw, one window of memory."""
    running = Fingerprinting(promise.itemsize)
    for window in windows(promise):
        running.add(window)
    return running.done()


def _is_repeated(piece: memoryview, element: bytes) -> bool:
    """Tell whether the bytes are one element again and again; of other bytes the first few tell it."""
    few = piece[: 64 * len(element)]
    if few != element * (len(few) // len(element)):
        return False
    import numpy as np  # noqa: PLC0415 - reached by constants only; memoryviews compare one byte at a time

    flat = np.frombuffer(piece, "u1")
    return bool(np.array_equal(flat[len(element) :], flat[: -len(element)]))
