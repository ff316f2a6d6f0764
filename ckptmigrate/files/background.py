"""The second core: one thread that writes what was drawn and compares what was written, window by window, while pages are warm."""

from __future__ import annotations

from queue import Queue, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from ckptmigrate.limits import MiB

if TYPE_CHECKING:
    from collections.abc import Callable

    Job = Callable[[memoryview], None]

P = ParamSpec("P")

WINDOW = (
    MiB  # bytes of one job: large enough that the two calls into the kernel cost nothing, small enough for the caches
)
AHEAD = 2  # windows drawn while one is written
BEHIND = 64  # windows the thread may lag: 64 MiB are still warm, and a fault is found soon


class Background:
    """Runs jobs in the order in which they were given, each with one reused buffer of ``WINDOW`` bytes.

    The first failure stops all further jobs; ``check`` and ``settle`` raise it in the thread that asks.
    """

    def __init__(self) -> None:
        self._jobs: Queue[tuple[Job | None, memoryview | None]] = Queue(BEHIND)
        self._spare: SimpleQueue[memoryview] = SimpleQueue()
        self._thread: Thread | None = None
        self._failure: BaseException | None = None

    def do(self, job: Callable[Concatenate[memoryview, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have ``job(buffer, *args)`` run; waits while the thread is too far behind."""
        self._give(lambda buffer: job(buffer, *args, **kwargs), None)

    def hand(
        self, held: memoryview, job: Callable[Concatenate[memoryview, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> memoryview:
        """Have ``job(buffer, *args)`` run on what is in ``held``, and give another window to fill; waits while there is none."""
        self._give(lambda buffer: job(buffer, *args, **kwargs), held)
        return self._spare.get()

    def _give(self, job: Job, held: memoryview | None) -> None:
        if self._thread is None:
            for _ in range(AHEAD):
                self._spare.put(memoryview(bytearray(WINDOW)))
            # A daemon: a sink that nobody closed must not keep the interpreter from ending.
            thread = Thread(target=self._run, name="ckptmigrate-compare", daemon=True)
            thread.start()
            self._thread = thread  # only now: a signal that comes between must find nothing to join
        self._jobs.put((job, held))

    def check(self) -> None:
        """Raise what a job has failed with, if one has."""
        if self._failure is not None:
            raise self._failure

    def settle(self) -> None:
        """Wait until every job is done; raise what one failed with."""
        if self._thread is not None:
            self._jobs.join()
        self.check()

    def close(self) -> None:
        """Let the jobs run out and end the thread; failures stay unsaid."""
        if self._thread is not None:
            self._jobs.put((None, None))
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        buffer = memoryview(bytearray(WINDOW))
        while True:
            job, held = self._jobs.get()
            try:
                if job is None:
                    return
                if self._failure is None:
                    job(buffer)
            except BaseException as failure:  # noqa: BLE001 - whatever it is belongs to the thread that writes
                self._failure = failure
            finally:
                if held is not None:  # also when its job was passed over: somebody may wait for it
                    self._spare.put(held)
                self._jobs.task_done()
