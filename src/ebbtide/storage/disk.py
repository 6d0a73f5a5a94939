"""Storage on a local disk: one file for each key, in a directory of its own."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from numpy.typing import NDArray

from ebbtide.budget import format_bytes, parse_bytes
from ebbtide.errors import StorageError
from ebbtide.storage.base import (
    Key,
    Storage,
    check_arrays,
    describe_closed,
    describe_missing,
    describe_present,
)
from ebbtide.storage.files import FileRecord, describe_file, read_file, write_file


@final
class Disk(Storage):
    """
    Storage on a local disk.

    It makes a private directory at the first `put` and removes it when it is closed or dropped, or when the
    process exits. Two storages, and two processes, may share `directory`. Files are for the process that
    wrote them: they are not synchronized to the disk, and only that process may change them, also after a
    fork.

    Args:
        directory: Where to make the private directory; the system's directory for temporary files if None.
        limit: The most bytes of disk to take, an int or a text such as `"2 GiB"`; None for no limit.

    Raises:
        ValueError: `limit` is no number of bytes.

    Memory:
        Holds about 100 bytes and the key for each array that is stored. `put` and `get` work in blocks of at
        most 1 MiB and take no buffer, but for one block in `put` for an array that is not C-contiguous.

    Example:
        >>> import numpy as np
        >>> with Disk() as storage:
        ...     _ = storage.put("a", [np.arange(3)])
        ...     storage.take("a")[0].tolist()
        [0, 1, 2]
    """

    def __init__(self, directory: str | Path | None = None, limit: int | str | None = None) -> None:
        self._parent = Path(tempfile.gettempdir() if directory is None else directory)
        self._limit = None if limit is None else parse_bytes(limit)
        self._files: dict[Key, FileRecord] = {}
        self._nbytes = 0
        self._bytes_written = 0
        self._bytes_read = 0
        self._serial = 0
        self._pid = os.getpid()
        self._closed = False
        self._directory: Path | None = None
        self._finalizer: weakref.finalize[[Path, int], Disk] | None = None

    def put(self, key: Key, arrays: Sequence[NDArray[Any]]) -> int:
        """See `Storage.put`; the bytes are those of the file, its header included."""
        self._check_owner()
        if key in self._files:
            raise describe_present(key)
        check_arrays(key, arrays)
        directory = self._make_directory()
        # A name of its own for each put: a key may be any text.
        planned = describe_file(directory / f"{self._serial}.arrays", key, arrays)
        self._check_room(directory, planned)
        self._serial += 1
        record = write_file(planned, arrays)
        self._files[key] = record
        self._nbytes += record.nbytes
        self._bytes_written += record.nbytes
        return record.nbytes

    def get(self, key: Key) -> list[NDArray[Any]]:
        """See `Storage.get`; every byte is checked against its CRC-32C."""
        self.check_open()
        record = self._find(key)
        arrays = read_file(record)
        self._bytes_read += record.nbytes
        return arrays

    def take(self, key: Key) -> list[NDArray[Any]]:
        """See `Storage.take`."""
        self._check_owner()
        arrays = self.get(key)
        self.delete(key)
        return arrays

    def delete(self, key: Key) -> None:
        """See `Storage.delete`; a file that is gone already counts as deleted."""
        self._check_owner()
        record = self._find(key)
        try:
            with suppress(FileNotFoundError):
                record.path.unlink()
        except OSError as cause:
            raise _make_error(
                f"Cannot delete the file {record.path} of key {key!r}: {cause.strerror}. Check the rights of "
                "its directory.",
                cause.errno,
            ) from cause
        del self._files[key]
        self._nbytes -= record.nbytes

    def keys(self) -> tuple[Key, ...]:
        """See `Storage.keys`."""
        return tuple(self._files)

    def close(self) -> None:
        """
        See `Storage.close`; removes the private directory.

        Raises:
            StorageError: The directory cannot be removed.
        """
        self._closed = True
        self._files.clear()
        self._nbytes = 0
        if self._finalizer is None or not self._finalizer.alive:
            return
        self._finalizer()
        if self._directory is not None and self._pid == os.getpid() and self._directory.exists():
            raise StorageError(
                f"Cannot remove the directory {self._directory} of a closed Disk storage. Check its rights, "
                "and remove it by hand."
            )

    @property
    def directory(self) -> Path | None:
        """The private directory, None before the first `put`."""
        return self._directory

    @property
    def nbytes(self) -> int:
        """See `Storage.nbytes`; the bytes of all files, headers included."""
        return self._nbytes

    @property
    def memory_nbytes(self) -> int:
        """See `Storage.memory_nbytes`; 0."""
        return 0

    @property
    def bytes_written(self) -> int:
        """The bytes of all files that were ever written."""
        return self._bytes_written

    @property
    def bytes_read(self) -> int:
        """The bytes of all files that were ever read, each as often as it was."""
        return self._bytes_read

    def check_open(self) -> None:
        """See `Storage.check_open`."""
        if self._closed:
            raise describe_closed("Disk")

    def _check_owner(self) -> None:
        """A forked child sees its parent's files; it may read them, but the parent still needs them."""
        self.check_open()
        if os.getpid() != self._pid:
            raise StorageError(
                f"This Disk storage belongs to the process {self._pid}, and the forked process {os.getpid()} "
                "may only read from it. Make a new storage in this process."
            )

    def _find(self, key: Key) -> FileRecord:
        record = self._files.get(key)
        if record is None:
            raise describe_missing(key, len(self._files))
        return record

    def _make_directory(self) -> Path:
        if self._directory is None:
            try:
                self._directory = Path(tempfile.mkdtemp(prefix=f"ebbtide-{self._pid}-", dir=self._parent))
            except OSError as cause:
                raise _make_error(
                    f"Cannot make a directory for storage in {self._parent}: {cause.strerror}. Give an "
                    "existing directory that may be written as directory=.",
                    cause.errno,
                ) from cause
            self._finalizer = weakref.finalize(self, _remove_directory, self._directory, self._pid)
        return self._directory

    def _check_room(self, directory: Path, planned: FileRecord) -> None:
        """Refuse before anything is written."""
        need = planned.nbytes
        if self._limit is not None and self._nbytes + need > self._limit:
            message = (
                f"Cannot store key {planned.key!r}: it takes {need} bytes ({format_bytes(need)}), "
                f"{self._nbytes} bytes are taken, and the limit of this Disk storage is {self._limit} bytes. "
                "Delete other keys, or raise limit=."
            )
            raise _make_error(message, errno.ENOSPC)
        try:
            system = os.statvfs(directory)
        except OSError as cause:
            raise _make_error(
                f"Cannot store key {planned.key!r}: the directory {directory} cannot be used any more "
                f"({cause.strerror}). Something removed it while this Disk storage was open; make a new "
                "storage.",
                cause.errno,
            ) from cause
        free = system.f_bavail * system.f_frsize
        # A file system without a size, such as an unlimited tmpfs, has no count of free blocks.
        if system.f_blocks > 0 and need > free:
            message = (
                f"Cannot store key {planned.key!r}: it takes {need} bytes ({format_bytes(need)}), and {free} "
                f"bytes ({format_bytes(free)}) are free in {directory}. Free some space, or give another "
                "directory=."
            )
            raise _make_error(message, errno.ENOSPC)


def _make_error(message: str, number: int | None) -> StorageError:
    """An error with a number of the operating system, which tells a full disk from a broken one."""
    error = StorageError(message)
    error.errno = number
    return error


def _remove_directory(directory: Path, pid: int) -> None:
    # The finalizer also runs in a forked child, which must leave the files of its parent alone.
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
