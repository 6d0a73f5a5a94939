"""The thread of a storage: it writes and reads one entry after the other, and owns nothing."""

from __future__ import annotations

import mmap
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, final

from numpy.typing import NDArray

from ebbtide.storage.checksum import Bytes
from ebbtide.storage.entries import EntryRecord
from ebbtide.storage.failures import without_frames
from ebbtide.storage.transfer import LARGE_BLOCK, Target, empty_for, read_entry, write_entry

# How long the end of a process waits for a file system that does not answer.
_PATIENCE = 10.0
# What a thread begins with, beside its stack: a piece of the interpreter's memory, and a stack of that.
_FIRST_BYTES = 2 << 20


def read_clocks() -> tuple[float, float]:
    """Return the time and the time that this thread had a processor, in seconds."""
    return time.perf_counter(), time.thread_time()


def has_waited(begin: tuple[float, float], end: tuple[float, float]) -> bool:
    """Whether a thread spent more than half of the time between two readings of its clocks waiting, as for a disk."""
    return end[0] - begin[0] > 2 * (end[1] - begin[1])


@final
class Job:
    """
    One entry to write, or to read if there are no arrays to write.

    Args:
        target: The file.
        record: The entry.
        arrays: Views of the staged bytes for a write, None for a read.
        staged: The staged bytes; None for a read.
        charge: The bytes of memory that it is counted with.
    """

    __slots__ = (
        "_ended", "_finished", "_owner", "arrays", "buffers", "charge", "clocks", "error", "left", "planned", "record",
        "staged", "target", "writes",
    )  # fmt: skip

    def __init__(
        self,
        target: Target,
        record: EntryRecord,
        arrays: Sequence[NDArray[Any]] | None,
        staged: Bytes | None,
        charge: int,
    ) -> None:
        self.target = target
        self.planned = self.record = record
        # Whether it goes on though its entry is gone.
        self.left = False
        self.arrays = arrays
        self.staged = staged
        self.charge = charge
        self.writes = arrays is not None
        # Made here, where arrays have the memory of others: what the thread makes takes fresh pages.
        self.buffers = None if self.writes else empty_for(record)
        # The clocks of the thread that ran it, before and after; None of a job that did not succeed.
        self.clocks: tuple[tuple[float, float], tuple[float, float]] | None = None
        self.error: BaseException | None = None
        self._owner: dict[str, str] = {}
        self._ended = False
        self._finished = threading.Lock()
        self._finished.acquire()

    def claim(self, who: str) -> bool:
        """Return True to whoever asks first, "worker" or "user", each time; one call, so that nothing comes between."""
        mine = self._owner.setdefault("owner", who) == who
        if mine and who == "user":
            self.buffers = None  # it may stay in the queue for a while
        return mine

    def run(self) -> None:
        """Do it, unless it was cancelled; an error waits in `error`."""
        if not self.claim("worker"):
            return
        begun = read_clocks()
        try:
            if self.writes and self.arrays is not None:
                self.record = write_entry(self.target, self.record, self.arrays, LARGE_BLOCK)
            else:
                buffers, self.buffers = self.buffers, None
                self.arrays = read_entry(self.target, self.record, LARGE_BLOCK, buffers=buffers)
            self.clocks = begun, read_clocks()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the thread that waits for it
            self.error = without_frames(error)
        finally:
            self._ended = True
            self._finished.release()

    def stop(self) -> bool:
        """Keep the job from running, True, or wait for its end, False."""
        if self.claim("user"):
            return True
        self.wait()
        return False

    @property
    def done(self) -> bool:
        """Whether it ran, or never will."""
        return self._ended or self._owner.get("owner") == "user"

    def wait(self) -> None:
        """Return when it ran; an interrupt comes through, and does no harm to a later call."""
        while not self.done:
            # The lock only wakes: an interrupt may leave it taken.
            if self._finished.acquire(timeout=1.0):
                self._finished.release()


@final
class Entry:
    """What is known of a key: its record, and the job that has not yet been seen to end."""

    __slots__ = ("job", "record")

    def __init__(self, record: EntryRecord, job: Job | None) -> None:
        self.record = record
        self.job = job


@final
class Worker:
    """A thread that starts with the first job and ends with `stop`; it never keeps the interpreter from exiting."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> bool:
        """Have a job run after those before it; False if no thread can be started any more."""
        # A thread without a number was not started: an interrupt came before.
        if self._thread is None or self._thread.ident is None:
            self._thread = threading.Thread(target=_serve, args=(self._jobs,), name="ebbtide-storage", daemon=True)
            try:
                # `start` waits for ever for a thread that has no memory to begin with.
                mmap.mmap(-1, _FIRST_BYTES).close()
                self._thread.start()
            except (RuntimeError, OSError, MemoryError):
                # The interpreter is about to exit, or there are too many threads, or there is no memory.
                self._thread = None
                return False
        self._jobs.put(job)
        return True

    def stop(self) -> None:
        """End the thread after the jobs that are not cancelled; no more jobs may come."""
        thread = self._thread
        if thread is not None:
            # First of all, so that an interrupt leaves no thread that waits; also to one that may just be starting.
            self._jobs.put(None)
            if thread.ident is not None:
                thread.join(_PATIENCE)
            self._thread = None


def _serve(jobs: queue.SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        # The next job may be long in coming; what this one holds must not wait for it.
        del job
    # An interrupt at the wrong moment may have led to two threads: the next one is to end as well.
    jobs.put(None)
