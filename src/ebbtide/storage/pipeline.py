"""
Write-behind and read-ahead within a number of bytes.

All decisions are made by the thread that uses the storage, at its calls: the worker runs jobs in order and decides
nothing. So there is no lock but those of a job, and a fork or an interrupt at any point leaves state that is whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.storage.base import Key
from ebbtide.storage.checksum import Bytes
from ebbtide.storage.entries import EntryRecord
from ebbtide.storage.transfer import Target
from ebbtide.storage.worker import Job, Worker

# A job is some Python objects beside its bytes.
_LEAST_CHARGE = 4096
_MOST_WRITES = 64


@final
class Pipeline:
    """
    The jobs of a storage and the memory that they hold.

    Args:
        target: The file.

    Memory:
        At most `capacity` bytes for staged writes, entries read ahead and spare buffers together, none before
        `resize`; a write ends with its buffer kept for the next one.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.capacity = 0
        self._worker = Worker()
        self._spare: list[Bytes] = []
        self._writes: deque[Job] = deque()
        self._settled: list[Job] = []
        self._reads: dict[Key, Job] = {}
        self._wanted: deque[Key] = deque()

    # Writes.

    def write(self, record: EntryRecord, arrays: Sequence[NDArray[Any]]) -> Job | None:
        """
        Stage copies of arrays and have them written.

        Returns:
            The job, or None if they do not fit into the buffer and have to be written at once.
        """
        # Encoding takes as much again.
        charge = max(_LEAST_CHARGE, record.memory * (1 if self._target.codecs.of(record.kind) is None else 2))
        if charge > self.capacity:
            return None
        buffer = self._buffer(charge, record.memory)
        views: list[NDArray[Any]] = []
        start = 0
        for known, array in zip(record.arrays, arrays, strict=True):
            view = buffer[start : start + known.nbytes].view(known.dtype).reshape(known.shape)
            np.copyto(view, array, casting="no")
            views.append(view)
            start += known.nbytes
        job = Job(self._target, record, views, buffer, max(charge, buffer.nbytes))
        self._writes.append(job)
        if not self._worker.submit(job):
            job.run()
        return job

    def resize(self, capacity: int) -> None:
        """Go on with another capacity."""
        self.capacity = capacity
        self._make_room(0)

    def _buffer(self, charge: int, nbytes: int) -> Bytes:
        for place, spare in enumerate(self._spare):
            if nbytes <= spare.nbytes <= 2 * nbytes:
                del self._spare[place]
                self._make_room(max(charge, spare.nbytes))
                return spare
        self._make_room(charge)
        return np.empty(nbytes, np.uint8)

    def _held(self) -> int:
        """Counted each time: a counter could be wrong after an interrupt."""
        jobs = sum(job.charge for job in self._writes) + sum(job.charge for job in self._reads.values())
        return jobs + sum(spare.nbytes for spare in self._spare)

    def _make_room(self, charge: int) -> None:
        """Wait for writes, give up spare buffers and what was read ahead, in this order, until there is room."""
        self._collect()
        while self._held() + charge > self.capacity or len(self._writes) >= _MOST_WRITES:
            if self._spare:
                del self._spare[0]
            elif self._writes:
                self._wait()
            else:
                # What is wanted last goes first, and comes back when there is room again.
                key = next(reversed(self._reads))
                self._drop_read(key)
                self._wanted.appendleft(key)

    def _collect(self) -> None:
        while self._writes and self._writes[0].done:
            self._settle(self._writes.popleft())

    def _settle(self, job: Job) -> None:
        buffer, job.staged, job.arrays = job.staged, None, None
        if buffer is not None:
            self._spare.append(buffer)
        self._settled.append(job)

    def settled(self) -> list[Job]:
        """Return the writes that ended and were not yet taken from this list, in order."""
        self._collect()
        return self._settled

    def abandon(self, planned: EntryRecord) -> None:
        """Cancel the write of an entry whose `put` was interrupted, however far it came."""
        for job in list(self._writes):
            if job.record.generation == planned.generation:
                self.cancel(job)

    def cancel(self, job: Job) -> bool:
        """Stop a write that has not begun, True, or wait for its end, False."""
        cancelled = job.stop()
        self._writes = deque(other for other in self._writes if other is not job)
        # A buffer must not be spare twice, whatever comes between.
        buffer, job.staged, job.arrays = job.staged, None, None
        if buffer is not None:
            self._spare.append(buffer)
        return cancelled

    def drain(self) -> None:
        """Wait until all is written."""
        while self._writes:
            self._wait()

    def _wait(self) -> None:
        """Wait for the first write; who waits helps, and takes the checksums of the next one."""
        any(job.check() for job in self._writes)
        self._writes[0].wait()
        self._collect()

    # Reads.

    def want(self, keys: Iterable[Key]) -> None:
        """Note in which order keys will be read; what was read ahead for another order is given up."""
        self._wanted = deque(keys)
        # What is being written was passed over.
        near = set(islice(self._wanted, len(self._reads) + len(self._writes)))
        for key in list(self._reads):
            if key in near:
                self._wanted.remove(key)
            else:
                self._drop_read(key)

    def read_ahead(self, find: Callable[[Key], EntryRecord | Job | None]) -> None:
        """Start the reads that are wanted next, as far as there is room; *find* tells what there is to read."""
        place = 0
        while place < len(self._wanted):
            key = self._wanted[place]
            if key in self._reads:
                return
            record = find(key)
            if isinstance(record, Job):
                # It is being written, and can be had without reading it if its turn comes before that ends.
                place += 1
                continue
            charge = 0 if record is None else max(_LEAST_CHARGE, record.memory)
            if record is not None and charge <= self.capacity:
                self._collect()
                while self._spare and self._held() + charge > self.capacity:
                    del self._spare[0]
                if self._held() + charge > self.capacity:
                    return
                job = Job(self._target, record, None, None, charge)
                if not self._worker.submit(job):
                    return
                self._reads[key] = job
            del self._wanted[place]

    def take_read(self, key: Key) -> list[NDArray[Any]] | None:
        """
        Return what was read ahead for a key, waiting for it; None if nothing was.

        Raises:
            BaseException: What reading it raised.
        """
        job = self._reads.get(key)
        if job is None:
            # Read out of turn, or too large to be read ahead.
            if self._wanted:
                with suppress(ValueError):
                    self._wanted.remove(key)
            return None
        self._drop_read(key)
        if job.error is not None:
            raise job.error
        return None if job.arrays is None else list(job.arrays)

    def forget(self, key: Key) -> None:
        """Give up what was read ahead for a key."""
        if key in self._reads:
            self._drop_read(key)

    def _drop_read(self, key: Key) -> None:
        job = self._reads[key]
        job.stop()
        del self._reads[key]

    # The end.

    def close(self, *, write: bool) -> None:
        """Stop the thread, after all writes or, if they are not worth it, after the present one."""
        if not write:
            for job in self._writes:
                job.claim("user")
        for job in self._reads.values():
            job.claim("user")
        self._worker.stop()
        if write:
            self._collect()
        else:
            self._settled.clear()
        self._writes.clear()
        self._reads.clear()
        self._wanted.clear()
        self._spare.clear()


def copy_staged(job: Job) -> list[NDArray[Any]]:
    """Return copies of the arrays of a write that has not ended."""
    assert job.arrays is not None
    return [np.array(array, order="C") for array in job.arrays]
