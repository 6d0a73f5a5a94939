"""Storage on a local disk: one file with all entries, in a directory of its own."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from numpy.typing import NDArray

from ebbtide.budget import parse_bytes
from ebbtide.quota import Quota
from ebbtide.storage.base import Key, Storage, check_key, check_new, describe_closed, describe_fork, find_held
from ebbtide.storage.codecs import Codecs, Compression
from ebbtide.storage.durable import DirectoryLock
from ebbtide.storage.entries import EntryRecord, plan_entry
from ebbtide.storage.failures import EntryLostError
from ebbtide.storage.messages import describe_loss
from ebbtide.storage.pipeline import copy_staged
from ebbtide.storage.resources import Resources
from ebbtide.storage.sharing import is_shared
from ebbtide.storage.system import POSIX, System
from ebbtide.storage.transfer import read_entry
from ebbtide.storage.worker import Entry, Job


@final
class Disk(Storage):
    """
    Storage on a local disk, in one file.

    A scratch storage makes a private directory at the first `put` and removes it when it is closed or dropped, or
    when the process exits; what a killed process leaves is removed by the next storage there. Two storages, and two
    processes, may share `directory`. Nothing is synchronized to the disk.

    A durable storage uses `directory` itself and leaves its entries there, for a later storage of this or another
    process; one at a time may use it. When `put` returns, or with a buffer when `flush` returns, the entry survives
    also the loss of power. Only the process that made a storage may change it; a forked child may read.

    Args:
        directory: Where to make the private directory, or the durable directory itself; the system's directory for
            temporary files if None.
        limit: The most bytes of disk, an int or a text such as `"2 GiB"`; a `Quota` that storages share; None for any.
        compression: None, `"lossless"` (if it is measured to be faster on the first four entries), or, by name,
            one that loses digits: `"float32"`, or `Zfp(tolerance)`. A dict has one for each kind of entry: those of a
            time loop are `"restart"` (states) and `"saved"` (saved values of a step).
        buffer: The most bytes of memory for copies that wait to be written by a thread of the storage and for
            entries that it read ahead; with 0 no thread stays. Two entries are enough to hide the disk behind
            the work of the caller; a larger one is written at once, as are 4 MiB and more after a write that did not
            wait for the disk: there is nothing to hide.
        durable: Whether entries outlive the storage.
        comm: A communicator of mpi4py, whose ranks make the storage together and share one file: each has a part of its
            own, of at most `limit` bytes, which it reads and writes without the others. With `COMM_SELF` each rank has
            its own file. What does not exist of *directory* is made and goes with the storage, and `{hostname}` and
            `{rank}`, that in `COMM_WORLD`, stand for these names in it.
        system: How to reach the operating system; for tests.

    Raises:
        TypeError: `comm` is no communicator.
        ValueError: `limit` or `buffer` is no number of bytes, there is no such compression, or ranks would share a
            durable file.
        StorageLockedError: Another storage uses the durable directory.
        StorageError: The durable directory cannot be used.

    Memory:
        About 350 bytes and the key for each entry, 180 for each array, and at most `buffer` bytes; compression takes
        1 MiB, which `buffer_nbytes` counts. `put` takes 1 MiB for an array that is not C-contiguous.

    Example:
        >>> import numpy as np
        >>> with Disk() as storage:
        ...     _ = storage.put("a", [np.arange(3)])
        ...     storage.take("a")[0].tolist()
        [0, 1, 2]
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        limit: int | str | Quota | None = None,
        compression: Compression | Mapping[str, Compression] = None,
        *,
        buffer: int | str = 0,
        durable: bool = False,
        comm: Any = None,
        system: System = POSIX,
    ) -> None:
        quota = limit if isinstance(limit, Quota) else Quota(None if limit is None else parse_bytes(limit))
        self._codecs, self._buffer, self._durable = Codecs(compression), parse_bytes(buffer), durable
        self._entries: dict[Key, Entry] = {}
        self._lost: dict[Key, EntryLostError] = {}
        self._errors: deque[EntryLostError] = deque()
        self._generation = self._bytes_written = self._bytes_read = 0
        self._relative_error, self._closed, self._pid = 0.0, False, os.getpid()
        self._resources = Resources(directory, quota, durable=durable, codecs=self._codecs, system=system, comm=comm)
        self._finalizer = weakref.finalize(self, self._resources.finish)
        if is_shared(comm):
            self._open()
        for record in self._open().segment.recover() if durable else ():
            self._entries[record.key] = Entry(record, None)
            self._generation = record.generation

    def put(self, key: Key, arrays: Sequence[NDArray[Any]], *, kind: str = "") -> int:
        """
        See `Storage.put`; the bytes are those of the file, header and alignment included.

        With a buffer the entry is written later. If that fails, the next call that stores or returns anything raises
        `EntryLostError` and does nothing else, unless the entry was deleted; the storage goes on without it.
        """
        self._check_owner()
        self._settle()
        check_new(key, arrays, kind, self._entries)
        return self._put(key, arrays, kind, at_once=False)

    def replace(self, key: Key, arrays: Sequence[NDArray[Any]], *, kind: str = "") -> int:
        """
        Store other arrays under a key, at once: at any time, also after a kill, the old or the new ones are there.

        Args:
            key: A key, in use or not.
            arrays: As for `put`.
            kind: As for `put`.

        Returns:
            The number of bytes that the new entry takes.

        Raises:
            StorageError: As for `put`; the old arrays are still there.
        """
        self.flush()
        check_key(key)
        self._open().pipeline.forget(key)
        return self._put(key, arrays, kind, at_once=True)

    def _put(self, key: Key, arrays: Sequence[NDArray[Any]], kind: str, *, at_once: bool) -> int:
        resources = self._open()
        planned = plan_entry(key, kind, self._generation + 1, arrays)
        at_once = at_once or not resources.pipeline.stages(planned)
        planned = resources.take(planned, ahead=not at_once)
        try:
            job = None if at_once else resources.pipeline.write(planned, arrays)
            record = resources.pipeline.write_at_once(planned, arrays) if job is None else planned
        except BaseException:
            resources.pipeline.abandon(planned)
            resources.segment.give(planned)
            raise
        self._generation += 1
        old = self._entries.pop(key, None)
        self._lost.pop(key, None)
        self._entries[key] = Entry(record, job)
        if old is not None:
            resources.segment.give(old.record)
        if job is None:
            self._count(resources, planned, record)
        return record.nbytes

    def _count(self, resources: Resources, planned: EntryRecord, record: EntryRecord) -> None:
        """Note that an entry was written."""
        self._bytes_written += record.length
        self._relative_error = max([self._relative_error, *(array.error for array in record.arrays)])
        resources.segment.trim(planned, record)

    def get(self, key: Key) -> list[NDArray[Any]]:
        """See `Storage.get`; every byte is checked against its CRC-32C."""
        self.check_open()
        if os.getpid() != self._pid:
            return self._read(self._find(key))
        self._settle()
        entry = self._find(key)
        if entry.job is not None and self.is_lossy(entry.record.kind):
            # Which digits are lost must not depend on how far the thread is.
            entry.job.wait()
            entry = self._find(key)
        resources = self._open()
        if entry.job is None:
            held = resources.pipeline.recall(entry.record)
            arrays = resources.pipeline.take_read(key) if held is None else held
            resources.pipeline.read_ahead(self._readable)
            if arrays is not None:
                self._bytes_read += entry.record.length if held is None else 0
                return arrays
        return self._read(entry)

    def _read(self, entry: Entry) -> list[NDArray[Any]]:
        if entry.job is not None and entry.job.arrays is not None:
            return copy_staged(entry.job)
        arrays = read_entry(self._open().target, entry.record, alone=False)
        self._bytes_read += entry.record.length
        return arrays

    def take(self, key: Key) -> list[NDArray[Any]]:
        """See `Storage.take`."""
        self._check_owner()
        arrays = self.get(key)
        self.delete(key)
        return arrays

    def prefetch(self, keys: Iterable[Key]) -> None:
        """See `Storage.prefetch`; entries are read ahead as far as they fit into the buffer."""
        self._check_owner()
        self._settle()
        if self._buffer and self._resources.ready:
            self._resources.pipeline.want(keys)
            self._resources.pipeline.read_ahead(self._readable)

    def _readable(self, key: Key) -> EntryRecord | Job | None:
        return None if (entry := self._entries.get(key)) is None else entry.job or entry.record

    def delete(self, key: Key) -> None:
        """
        See `Storage.delete`; of deleted entries less than 1 MiB waits to be given back to the file system.

        The place of one that is being written is given back by the first call after that.
        """
        self._check_owner()
        try:
            entry = self._find(key)
        except EntryLostError:  # it could not be written, as may have been seen only now: nobody asks for it any more
            del self._lost[key]
            return
        resources = self._open()
        # First of all, so that an interrupt does not leave a key with half an entry.
        del self._entries[key]
        self._bytes_written += resources.drop(entry)
        resources.pipeline.read_ahead(self._readable)

    def reserve(self, slots: int, nbytes: int) -> None:
        """
        See `Storage.reserve`; blocks of the disk are allocated now, and kept until less is reserved.

        Ranks that share the file reserve together, each what it needs: if one finds no room, all raise.
        """
        self._check_owner()
        self._settle()
        self._open().reserve(slots, nbytes)

    def resize(self, buffer: int | str) -> None:
        """Have a buffer of another size; what does not fit any more is written, or given up if it was read ahead."""
        self._check_owner()
        self._buffer = parse_bytes(buffer)
        if self._resources.ready:
            self._resources.pipeline.resize(self._buffer)

    def flush(self) -> None:
        """See `Storage.flush`; a durable entry is on the disk when this returns."""
        self._check_owner()
        if self._resources.ready:
            self._resources.pipeline.drain()
        self._settle()

    def _settle(self) -> None:
        """Take note of what the thread has written, and raise for what it could not write."""
        resources = self._resources
        if resources.ready:
            settled = resources.settled()
            while settled:
                entry = self._entries.get(settled[0].record.key)
                if entry is not None and entry.job is settled[0]:
                    self._learn(resources, entry, settled[0])
                del settled[0]
        if self._errors:
            error = self._errors.popleft()  # which is kept, and with frames would keep this storage and its files
            raise EntryLostError(str(error), error.key, error.missing, error.errno) from error.__cause__

    def _learn(self, resources: Resources, entry: Entry, job: Job) -> None:
        """Take note of how a write ended."""
        planned = entry.record
        if job.error is None:
            entry.record, entry.job = job.record, None
            self._count(resources, planned, job.record)
            return
        error = describe_loss(planned, job.error, resources.target.path)
        self._lost[planned.key] = error
        self._errors.append(error)
        del self._entries[planned.key]
        resources.segment.give(planned)

    def keys(self) -> tuple[Key, ...]:
        """See `Storage.keys`; of an opened durable storage in the order of their generations."""
        return tuple(self._entries)

    def generation(self, key: Key) -> int:
        """
        Return the place of an entry's `put` among all that a storage has seen, from 1 on, across processes if durable.

        Raises:
            StorageError: The key is not in use.
        """
        self.check_open()
        return self._find(key).record.generation

    def close(self) -> None:
        """
        See `Storage.close`; removes the private directory, or leaves a durable one with all that was put.

        Raises:
            StorageError: The directory cannot be removed, or an entry that was to last not written, or one not deleted.
        """
        self._closed = True
        resources = self._resources
        try:
            if self._durable and resources.ready and self._pid == os.getpid():
                resources.pipeline.close(write=True)
                self._settle()
        finally:
            resources.finish()
            self._finalizer.detach()
            for held in (self._entries, self._lost, self._errors):
                held.clear()
        resources.check_gone()

    @property
    def directory(self) -> Path | None:
        """The directory with the file, None before the first `put` of a scratch storage."""
        return self._resources.directory

    @property
    def lock(self) -> DirectoryLock | None:
        """The right to use a durable directory, None for a scratch one."""
        return self._resources.lock

    @property
    def nbytes(self) -> int:
        """See `Storage.nbytes`; header and alignment included."""
        return sum(entry.record.nbytes for entry in self._entries.values())

    @property
    def reserved_nbytes(self) -> int:
        """The bytes at the beginning of the file for which `reserve` keeps room."""
        return self._resources.segment.reserved if self._resources.ready else 0

    @property
    def memory_nbytes(self) -> int:
        """See `Storage.memory_nbytes`; 0, as buffers are counted apart."""
        return 0

    @property
    def memory_limit(self) -> int:
        """See `Storage.memory_limit`; 0."""
        return 0

    @property
    def buffer_nbytes(self) -> int:
        """See `Storage.buffer_nbytes`; what compression takes at work included."""
        return self._buffer + self._codecs.scratch

    @property
    def bytes_written(self) -> int:
        """The bytes of all entries that were ever written, headers included."""
        return self._bytes_written

    @property
    def bytes_read(self) -> int:
        """The bytes of all entries that were ever read from the file, headers included."""
        return self._bytes_read

    def is_lossy(self, kind: str) -> bool:
        """See `Storage.is_lossy`."""
        codec = self._codecs.of(kind)
        return codec is not None and codec.lossy

    @property
    def relative_error(self) -> float:
        """See `Storage.relative_error`."""
        return self._relative_error

    def check_open(self) -> None:
        """See `Storage.check_open`."""
        if self._closed:
            raise describe_closed("Disk")

    def _check_owner(self) -> None:
        """A forked child sees its parent's file; it may read it, but the parent still needs it."""
        self.check_open()
        if os.getpid() != self._pid:
            raise describe_fork(self._pid)

    def __reduce__(self) -> Any:
        raise TypeError("A Disk storage has files of its own, and can be neither copied nor pickled. Make another one.")

    def _find(self, key: Key) -> Entry:
        check_key(key)
        entry = self._entries.get(key)
        if entry is not None and entry.job is not None and entry.job.done and self._pid == os.getpid():
            self._learn(self._open(), entry, entry.job)
        lost = self._lost.get(key)
        if lost is not None and key not in self._entries:
            self._errors = deque(error for error in self._errors if error is not lost)
            raise EntryLostError(str(lost), key, lost.missing, lost.errno)
        return find_held(self._entries, key)

    def _open(self) -> Resources:
        if not self._resources.ready:
            self._resources.open()
            self._resources.pipeline.resize(self._buffer)
        return self._resources
