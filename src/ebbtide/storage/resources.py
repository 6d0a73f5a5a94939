"""What a disk storage holds of the operating system: a directory, a file, a lock, a thread; and how it lets go."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, final

from ebbtide.errors import StorageError
from ebbtide.quota import Quota
from ebbtide.storage.base import reserved_nbytes
from ebbtide.storage.codecs import Codecs
from ebbtide.storage.durable import DirectoryLock
from ebbtide.storage.entries import EntryRecord
from ebbtide.storage.failures import StorageFullError, make_error
from ebbtide.storage.pipeline import Pipeline
from ebbtide.storage.places import (
    find_absolute,
    is_in_place,
    is_locked,
    make_scratch,
    name_scratch,
    remove_scratch,
    scratch_parent,
    take_lock,
)
from ebbtide.storage.segment import NAME, Segment
from ebbtide.storage.sharing import Part, fill_template, is_shared, made_in, make_part, remove_parents, together
from ebbtide.storage.system import System, open_file
from ebbtide.storage.transfer import LARGE, Target
from ebbtide.storage.worker import Entry, Job


@final
class Resources:
    """
    An open segment file in its directory.

    Args:
        directory: The durable directory, or where to make a scratch directory; None for the system's.
        quota: The bytes of disk of which it may take what is left.
        durable: Which of both.
        codecs: How arrays are encoded.
        system: The operating system.
        comm: The communicator whose ranks share the file; None for a process alone.

    Raises:
        TypeError: `comm` is no communicator.
        ValueError: A durable directory is not named, or ranks would share it.

    Nothing is there before `open`, so that whoever made this can always `finish` it.
    """

    def __init__(
        self,
        directory: str | Path | None,
        quota: Quota,
        *,
        durable: bool,
        codecs: Codecs,
        system: System,
        comm: Any = None,
    ) -> None:
        if durable and (directory is None or is_shared(comm)):
            raise ValueError(
                "A durable Disk storage needs a directory=, where it can be found again, and one for each rank."
            )
        self.pid = os.getpid()
        self.ready, self._opening = False, threading.Lock()
        self.directory: Path | None = None
        self._named = None if directory is None else find_absolute(directory)
        self._comm = comm
        self._part: Part | None = None
        self._durable = durable
        self._quota = quota
        self._codecs = codecs
        self._system = system
        self._file: FileIO | None = None
        self._uncleared: list[EntryRecord] = []
        self.lock: DirectoryLock | None = None
        """That of a durable directory, from `open` on."""

    def open(self) -> None:
        """
        Make the directory and the file, and lock them, unless another thread does so at the same time.

        Raises:
            StorageError: The directory or the file cannot be made, or another storage uses it.
        """
        with self._opening:
            if not self.ready:
                self._open()

    def _open(self) -> None:
        # An earlier attempt may have been interrupted.
        self.finish()
        parent = self._find_parent()
        if is_shared(self._comm):
            self._part = make_part(self._comm, parent, self._quota.limit)
            self.directory = self._part.directory
            together(self._comm, self._open_file, undo=self.finish)
            return
        if self._comm is None:
            self._make_directory(parent)
        else:
            made_in(parent, lambda: self._make_directory(parent))
        self._open_file()

    def _make_directory(self, parent: Path) -> None:
        if self._durable:
            self.lock = DirectoryLock(parent)
            self.lock.take()
            self.directory = parent
        else:
            try:
                # The name is known before there is anything to remove.
                self.directory = name_scratch(parent)
                make_scratch(self.directory)
            except StorageError:
                # It is not there, which who may not look could not tell later.
                self.directory = None
                if self._comm is not None:
                    remove_parents(parent)
                raise

    def _find_parent(self) -> Path:
        if self._named is None:
            return scratch_parent()
        if self._comm is None:
            return self._named
        return fill_template(self._named, self._comm)

    def _open_file(self) -> None:
        """Open the file in the directory, and lock it or the part of it."""
        assert self.directory is not None
        path, part, system = self.directory / NAME, self._part, self._system
        try:
            self._file = file = open_file(path, "r+" if part is not None or (self._durable and path.exists()) else "x+")
        except OSError as cause:
            self._let_go()
            raise make_error(
                f"Cannot make the file {path}: {cause.strerror}. Give a directory that may be written as directory=.",
                cause.errno,
            ) from cause
        descriptor = file.fileno()
        if part is not None:
            take_lock(descriptor, part.offset)
            system = system.within(part.offset)
        elif not self._durable:
            take_lock(descriptor)
        self.target = Target(path, descriptor, system, self._codecs, self._durable, shared=part is not None)
        self.segment = Segment(self.target, self._quota, None if part is None else part.nbytes)
        self._quota.add(self.segment)
        self.pipeline = Pipeline(self.target)
        self.ready = True

    # The places of entries.

    def reserve(self, slots: int, nbytes: int) -> None:
        """
        Reserve room for entries as `Segment.reserve` does; where ranks share the file, on all of them or on none.

        Raises:
            StorageError: There is no room, here or on another rank, or a number is none.
        """
        whole = reserved_nbytes(slots, nbytes)
        if not whole:
            self.segment.reserve(0)  # each by itself, when it ends
            return
        before = self.segment.reserved
        together(self._comm, lambda: self.segment.reserve(whole), undo=lambda: self.segment.reserve(before))

    def take(self, planned: EntryRecord, *, ahead: bool) -> EntryRecord:
        """
        Return a record with its place; if there is none, wait for those of deleted entries that are still written to.

        Args:
            planned: The record.
            ahead: Whether the place has to have its blocks, as what is written later must find them.

        Raises:
            StorageError: As `Segment.take`.
        """
        # Where there are writes to wait for, a full disk is found here.
        ahead = ahead or self._durable or planned.memory >= LARGE or self.pipeline.has_left()
        try:
            return self.segment.take(planned, ahead=ahead)
        except StorageFullError:
            if not self.pipeline.has_left():
                raise
        self.pipeline.drain()
        self.settled()
        return self.segment.take(planned, ahead=ahead)

    def drop(self, entry: Entry) -> int:
        """Give up an entry, its place too, unless that is being written to; return the bytes that were now written."""
        self.pipeline.forget(entry.record.key)
        written, job = 0, entry.job
        if job is not None:
            if self.pipeline.leave(job):
                return entry.record.length
            written = 0 if self.pipeline.cancel(job) or job.error is not None else job.record.length
        self.segment.give(entry.record)
        return written

    def settled(self) -> list[Job]:
        """Return the writes that ended and were not yet taken from this list, less those of deleted entries."""
        settled = self.pipeline.settled()
        for job in [job for job in settled if job.left]:
            # Never twice, whatever comes between.
            settled.remove(job)
            self.segment.give(job.planned)
        return settled

    def finish(self) -> None:
        """
        End the thread, close the file, and remove a scratch directory; may be called again, and never raises.

        Writes that wait are finished if they are to last. In a forked child the files and the thread are its parent's.
        """
        if self.ready and self._file is not None and self.pid == os.getpid():
            self.pipeline.close(write=self._durable)
            if self._durable:
                self._uncleared = self.segment.finish()
            self._quota.remove(self.segment)
        file, self._file = self._file, None
        is_ours = file is None or self.directory is None or is_in_place(file, self.directory / NAME)
        if file is not None:
            with suppress(OSError):
                file.close()
        self._let_go(with_file=is_ours)

    def check_gone(self) -> None:
        """
        Do nothing if `finish` has removed what it had to remove.

        Raises:
            StorageError: A scratch directory is still there, or a durable entry that was deleted.
        """
        for record in self._uncleared:
            raise StorageError(
                f"Cannot delete key {record.key!r} in {self.target.path}: its header at offset {record.offset} could "
                "be neither overwritten nor given back to the file system, and the next storage will find it. Check "
                "the disk, and delete the key again there."
            )
        if self._durable or self._part is not None or self.pid != os.getpid() or self.directory is None:
            return  # where others share the directory, the last of them removes it
        try:
            is_there = self.directory.exists()
        except OSError:
            is_there = True  # it was made, and then became out of reach
        if is_there:
            raise StorageError(
                f"Cannot remove the directory {self.directory} of a closed Disk storage. Check its rights, and remove "
                "it by hand."
            )

    def _let_go(self, *, with_file: bool = False) -> None:
        if self.pid != os.getpid():
            return
        if self.lock is not None:
            # Without a file beside it, a lock that stays would be taken for the user's.
            (self.lock.release if self.ready else self.lock.abandon)()
        elif self.directory is not None and not self._durable and not self._is_shared():
            remove_scratch(self.directory, with_file=with_file)
            if self._comm is not None:
                remove_parents(self.directory.parent)

    def _is_shared(self) -> bool:
        """Return whether another process has its part open still; the one that has no lock any more asks it."""
        return self._part is not None and self.directory is not None and is_locked(self.directory / NAME)
