"""
Write-behind and read-ahead within a number of bytes.

All decisions are made by the thread that uses the storage, at its calls: the worker runs jobs in order and decides
nothing. So there is no lock but those of a job, and a fork or an interrupt at any point leaves state that is whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.storage.base import Key
from ebbtide.storage.checksum import Bytes, view_bytes, view_plain
from ebbtide.storage.entries import EntryRecord, room_for, shift_of
from ebbtide.storage.extents import UNIT, round_up
from ebbtide.storage.pages import JOINED
from ebbtide.storage.system import write_fully
from ebbtide.storage.transfer import BESIDE_BLOCK, LARGE, Target, write_or_explain
from ebbtide.storage.worker import Job, Worker, has_waited, read_clocks

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
        `resize`. What was written stays in its buffer, to be had from there, until there is a use for the room.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.capacity = 0
        self._worker = Worker()
        # Whether the last large write, whoever made it, waited for the disk; None before the first one has ended.
        self._waits: bool | None = None
        self._spare: list[Bytes] = []
        self._written: dict[Key, Job] = {}
        self._writes: deque[Job] = deque()
        self._settled: list[Job] = []
        self._reads: dict[Key, Job] = {}
        self._wanted: deque[Key] = deque()

    # Writes.

    def stages(self, record: EntryRecord) -> bool:
        """
        Return whether an entry is for `write`, or better written at once.

        At once: what is small, as it is written sooner than it is handed over; what does not fit into the buffer; what
        is large, where the last large write did not wait. What is durable is always written in the order in which it
        was put.
        """
        charge = self._charge(record)
        if charge > self.capacity or (record.length <= JOINED and not self._target.durable):
            return False
        return record.memory < LARGE or self._is_encoded(record) or not self._is_prompt(charge)

    def _is_encoded(self, record: EntryRecord) -> bool:
        return self._target.codecs.of(record.kind) is not None

    def _charge(self, record: EntryRecord) -> int:
        # Encoding takes as much again.
        return max(_LEAST_CHARGE, record.memory * (2 if self._is_encoded(record) else 1))

    def write(self, record: EntryRecord, arrays: Sequence[NDArray[Any]]) -> Job | None:
        """Stage copies of arrays and have them written; None if they are better written at once, as a try has shown."""
        arrays = [view_plain(array) for array in arrays]
        if self._has_tried(record, arrays):
            return None
        charge = self._charge(record)
        buffer = self._buffer(charge, record.memory)
        views: list[NDArray[Any]] = []
        start = 0
        for known, array in zip(record.arrays, arrays, strict=True):
            view = buffer[start : start + known.nbytes].view(array.dtype).reshape(array.shape)
            np.copyto(view, array, casting="no")
            views.append(view)
            start += known.nbytes
        job = Job(self._target, record, views, buffer, max(charge, buffer.nbytes))
        self._writes.append(job)
        if not self._worker.submit(job):
            job.run()
        return job

    def write_at_once(self, record: EntryRecord, arrays: Sequence[NDArray[Any]]) -> EntryRecord:
        """
        Write arrays from their own memory.

        Returns:
            The record as it was written.

        Raises:
            StorageError: The operating system refuses.
        """
        begun = read_clocks()
        written = write_or_explain(self._target, record, [view_plain(array) for array in arrays])
        if record.memory >= LARGE:
            self._waits = has_waited(begun, read_clocks())
        return written

    def _is_prompt(self, charge: int) -> bool:
        """
        Whether a large entry is better written at once.

        Only waiting can be hidden. What goes to the page cache is a copy, as staging is: states of 32 MiB were put one
        after the other at 0.4 of the speed of plain calls by way of the buffer, and at 0.8 without. Each large write
        tells; where none has ended, could be tried, and the buffer is full, so that the caller would wait anyway, it
        finds out.
        """
        if self._target.durable:
            return False
        self._collect()
        if self._waits is None:
            return self._in_work() + charge > self.capacity
        return not self._waits

    def _has_tried(self, record: EntryRecord, arrays: Sequence[NDArray[Any]]) -> bool:
        """
        Find out by a part of the first large entry whether the disk waits; return whether it did and does not.

        A disk that waits has one part more to write, 2 MiB. One that does not had two states of 32 MiB copied in
        vain: without the trial the first writes of six take 1.13 times as long.
        """
        if self._waits is not None or record.memory < LARGE or self._target.durable or self._is_encoded(record):
            return False
        room = record.data
        for array in arrays:
            if array.nbytes >= BESIDE_BLOCK and array.flags.c_contiguous:
                start = room + shift_of(array, room)
                page = round_up(start)
                part = view_bytes(array)[page - start :][: BESIDE_BLOCK - UNIT]
                begun = read_clocks()
                with suppress(OSError):  # the whole entry will meet it
                    write_fully(self._target.system, self._target.descriptor, part, record.offset + page)
                    self._waits = has_waited(begun, read_clocks())
                break
            room += room_for(array.nbytes)
        return self._waits is False

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
        # Where there is no room for another: what was written may be asked for, and the newest stays the longest.
        while self._held() + charge > self.capacity:
            oldest = None if self._spare else next(iter(self._written.values()), None)
            if oldest is not None and oldest.staged is not None and nbytes <= oldest.staged.nbytes <= 2 * nbytes:
                self.forget(oldest.record.key)
                return self._buffer(charge, nbytes)
            if not self._give_up():
                break
        self._make_room(charge)
        return np.empty(nbytes, np.uint8)

    def _in_work(self) -> int:
        """Counted each time: a counter could be wrong after an interrupt."""
        return sum(job.charge for job in self._writes) + sum(job.charge for job in self._reads.values())

    def _held(self) -> int:
        written = sum(job.staged.nbytes for job in self._written.values() if job.staged is not None)
        return self._in_work() + written + sum(spare.nbytes for spare in self._spare)

    def _make_room(self, charge: int) -> None:
        """Give up spare buffers and what was written, wait for writes, give up what was read, until there is room."""
        self._collect()
        while self._held() + charge > self.capacity or len(self._writes) >= _MOST_WRITES:
            if self._give_up():
                continue
            if self._writes:
                self._writes[0].wait()
                self._collect()
            else:
                # What is wanted last goes first, and comes back when there is room again.
                key = next(reversed(self._reads))
                self._drop_read(key)
                self._wanted.appendleft(key)

    def _give_up(self, but: Collection[Key] = ()) -> bool:
        """Give up a spare buffer, or the oldest entry that was written but some; False if there is none."""
        if self._spare:
            del self._spare[0]
            return True
        for key in self._written:
            if key not in but:
                job = self._written.pop(key)
                # Whoever looks after the outcome may still hold the job.
                job.staged = job.arrays = None
                return True
        return False

    def _collect(self) -> None:
        while self._writes and self._writes[0].done:
            self._settle(self._writes.popleft())

    def _settle(self, job: Job) -> None:
        codec = self._target.codecs.of(job.record.kind)
        if codec is None and job.clocks is not None and job.record.memory >= LARGE:
            self._waits = has_waited(*job.clocks)
        if job.error is None and not job.left and (codec is None or not codec.lossy):
            self._written[job.record.key] = job
        else:
            self._spare_buffer(job)
        self._settled.append(job)

    def _spare_buffer(self, job: Job) -> None:
        # A buffer must not be spare twice, whatever comes between.
        buffer, job.staged, job.arrays = job.staged, None, None
        if buffer is not None:
            self._spare.append(buffer)

    def settled(self) -> list[Job]:
        """Return the writes that ended and were not yet taken from this list, in order."""
        self._collect()
        return self._settled

    def abandon(self, planned: EntryRecord) -> None:
        """Cancel the write of an entry whose `put` was interrupted, however far it came."""
        for job in [*self._writes, *self._written.values()]:
            if job.record.generation == planned.generation:
                self.cancel(job)

    def cancel(self, job: Job) -> bool:
        """Stop a write that has not begun, True, or wait for its end, False."""
        cancelled = job.stop()
        self._writes = deque(other for other in self._writes if other is not job)
        if self._written.get(job.record.key) is job:
            del self._written[job.record.key]
        self._spare_buffer(job)
        return cancelled

    def leave(self, job: Job) -> bool:
        """
        Return whether a write is under way, which then goes on with nobody waiting for it.

        Its bytes were had from the buffer, so nobody waits for its end: 20 ms of 8 MiB on a disk of 400 MiB/s. What is
        durable is waited for, as it could be found again.
        """
        job.left = not (self._target.durable or job.done or job.claim("user"))
        return job.left

    def has_left(self) -> bool:
        """Return whether there are such writes."""
        return any(job.left for job in self._writes) or any(job.left for job in self._settled)

    def drain(self) -> None:
        """Wait until all is written."""
        while self._writes:
            self._writes[0].wait()
            self._collect()

    # Reads.

    def want(self, keys: Iterable[Key]) -> None:
        """Note in which order keys will be read; what was read ahead for another order is given up."""
        self._wanted = deque(keys)
        # What is or was written from a buffer was passed over.
        near = set(islice(self._wanted, len(self._reads) + len(self._writes) + len(self._written)))
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
            if record is not None and self._is_held(record):
                place += 1
                continue
            charge = 0 if record is None else max(_LEAST_CHARGE, record.memory)
            if record is not None and charge <= self.capacity:
                self._collect()
                sooner = set(islice(self._wanted, place))
                while self._held() + charge > self.capacity:
                    if not self._give_up(but=sooner):
                        return
                try:
                    job = Job(self._target, record, None, None, charge)
                except MemoryError:
                    return  # whoever asks for it may have more luck
                if not self._worker.submit(job):
                    return
                self._reads[key] = job
            del self._wanted[place]

    def recall(self, record: EntryRecord) -> list[NDArray[Any]] | None:
        """Return copies of an entry that was written and is still in its buffer; None if it is not."""
        if not self._is_held(record):
            return None
        with suppress(ValueError):
            self._wanted.remove(record.key)
        return copy_staged(self._written[record.key])

    def _is_held(self, record: EntryRecord) -> bool:
        job = self._written.get(record.key)
        return job is not None and job.record.generation == record.generation

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
        """Give up what a buffer holds for a key."""
        if key in self._reads:
            self._drop_read(key)
        if key in self._written:
            self._spare_buffer(self._written.pop(key))

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
        self._written.clear()
        self._spare.clear()


def copy_staged(job: Job) -> list[NDArray[Any]]:
    """Return copies of the arrays of a write that are still in its buffer."""
    assert job.arrays is not None
    copies = [np.empty(known.shape, known.dtype) for known in job.record.arrays]
    for copy, array in zip(copies, job.arrays, strict=True):
        view_plain(copy)[...] = array
    return copies
