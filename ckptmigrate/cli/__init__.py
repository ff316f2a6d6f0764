"""The command line: one file a verb. Prints, and turns errors into one readable message and an exit code.

Exit codes: 0 done, nothing pending, equal, a plan or dry run without problems; 1 (check, verify, diff, epochs, doctor) behind, different, broken, a symptom; 2 wrong usage;
3 refused or failed, and a plan or dry run with problems; 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import gc
import signal
import sys
from typing import NoReturn

from . import chains, check, diff, doctor, epochs, inspect, installed, migrate, new, plan, stamp, verify  # noqa: F401 - registers the verbs
from .app import DONE, INTERRUPTED, TERMINATED, app

__all__ = ["app", "main"]

# A checkpoint of 20,000 tensors is a million objects that live until the end, and make no cycles. Python's collector goes through all
# of them again and again, a third of the time of a plan; so it is asked less often. The price: what a cycle holds is freed later.
COLLECT = (200_000, 50, 100)


def main() -> NoReturn:
    """Run the command line."""
    gc.set_threshold(*COLLECT)

    def terminate(*_: object) -> NoReturn:
        raise SystemExit(TERMINATED)  # unwinds, so that the scratch is removed

    signal.signal(signal.SIGTERM, terminate)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    raise SystemExit(DONE)
