"""The model that a result must fit: read from a checkpoint or from a callable that a caller names, and laid on the result.

    load   FILE | module:callable | a module, a mapping ──► Like: names, shapes, dtypes, roles, order, what its optimizers call theirs
    fit    checkpoint, after its steps ── mended ── compared ── roles, dtypes, order ──► the problems; none means: loads strictly

This is the only room but ``chains`` that runs other people's Python: the callable that somebody named on the command line.
"""

from __future__ import annotations

from .fitting import fit, unsaid
from .loading import load

__all__ = ["fit", "load", "unsaid"]
