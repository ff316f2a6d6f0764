"""Python's search for garbage, put off while a reader makes its nodes.

A reader makes millions of containers and throws none away. Each time their number has grown by a quarter Python looks through all of
them for rings that nobody holds, which takes as long as the reading itself (100,000 tensors: 7 s with, 4 s without). Limits bound what
can be made meanwhile, and what is dropped without being part of a ring is freed at once in any case.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def paused_collector() -> Iterator[None]:
    """Put the search off, and let it go on afterwards if it was going on before."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
