"""What the tests of files open: bytes in files, encoded or not."""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from ckptmigrate.limits import MiB

if TYPE_CHECKING:
    from ckptmigrate.files import Disk, Source


def deflated(data: bytes) -> bytes:
    machine = zlib.compressobj(6, zlib.DEFLATED, -15)
    return machine.compress(data) + machine.flush()


def content(nbytes: int, seed: int = 0) -> bytes:
    """Bytes that compress a little, and differ everywhere."""
    made = random.Random(seed)
    return b"".join(made.randbytes(3) + b"\0\0\0\0\0" for _ in range(-(-nbytes // 8)))[:nbytes]


def open_bytes(disk: Disk, folder: Path, data: bytes, name: str = "data") -> Source:
    path = folder / name
    path.write_bytes(data)
    return disk.open(path)


def scratch_size(disk: Disk) -> int:
    """Bytes that the scratch file takes, 0 before there is one."""
    return os.fstat(disk.scratch.descriptor()).st_blocks * 512 if disk.scratch._opened else 0


DATA = content(3 * MiB)
