"""What a storage asks of the operating system, in one place: tests inject faults here, benches a slow disk."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

# Linux: linux/falloc.h. A hole is punched without a change of the file's size.
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
# The highest number of a standard stream.
_STANDARD = 2
# preadv takes at most 1024 buffers on Linux, and 16 are granted anywhere.
_MOST_BUFFERS = 16


def _allocate(descriptor: int, offset: int, nbytes: int) -> None:
    try:
        os.posix_fallocate(descriptor, offset, nbytes)
    except OSError as error:
        # A file system without preallocation: a full disk is found when it is written.
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return the function of the C library, which Python has not; found once, as each search leaves a cycle."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function


_fallocate = _find_fallocate()


def _punch(descriptor: int, offset: int, nbytes: int) -> bool:
    return _fallocate is not None and _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, nbytes) == 0


def _synchronize(descriptor: int) -> None:
    # Not every system has fdatasync.
    getattr(os, "fdatasync", os.fsync)(descriptor)


@final
@dataclass(frozen=True, slots=True)
class System:
    """
    The calls of a storage to the operating system.

    Args:
        pwrite: Write bytes at an offset of a file; returns how many were taken.
        preadv: Read into buffers from an offset of a file; returns how many bytes were read.
        allocate: Give a range of a file its blocks, or raise `OSError`.
        punch: Return the blocks of a range to the file system; False where it cannot.
        synchronize: Return when all that was written to a file is on the disk.
    """

    pwrite: Callable[[int, Any, int], int] = os.pwrite
    preadv: Callable[[int, Sequence[Any], int], int] = os.preadv
    allocate: Callable[[int, int, int], None] = _allocate
    punch: Callable[[int, int, int], bool] = _punch
    synchronize: Callable[[int], None] = _synchronize

    def within(self, base: int) -> System:
        """Return the same calls on a part of each file, of which the first byte is that at *base*."""
        return System(
            pwrite=lambda descriptor, content, offset: self.pwrite(descriptor, content, base + offset),
            preadv=lambda descriptor, buffers, offset: self.preadv(descriptor, buffers, base + offset),
            allocate=lambda descriptor, offset, nbytes: self.allocate(descriptor, base + offset, nbytes),
            punch=lambda descriptor, offset, nbytes: self.punch(descriptor, base + offset, nbytes),
            synchronize=self.synchronize,
        )


POSIX = System()


def open_file(path: str | Path, mode: str, access: int = 0o600) -> FileIO:
    """
    Open a file without a buffer; it is closed when nobody has it any more, and Ctrl-C leaves none open.

    Args:
        path: The file.
        mode: As for `open`.
        access: The rights of a file that is made.

    Raises:
        OSError: The system refuses.
    """
    # No instruction of Python's is between the system's call and the object, where an interrupt would lose the number.
    file = FileIO(path, mode, opener=partial(os.open, mode=access))
    if file.fileno() > _STANDARD:
        return file
    with file:  # of a process without standard streams: what others write to these would be in the file
        return open_file(path, mode if mode[0] in "ra" else "r+", access)


def write_fully(system: System, descriptor: int, content: NDArray[Any] | bytes, offset: int) -> None:
    """
    Write all bytes, however few the operating system takes at a time.

    Raises:
        OSError: It refuses, or takes nothing.
    """
    view = content.data if isinstance(content, np.ndarray) else memoryview(content)
    done, size = 0, view.nbytes
    while done < size:
        count = system.pwrite(descriptor, view[done:] if done else view, offset + done)
        if count == 0:
            raise OSError(errno.EIO, "the operating system took 0 bytes")
        done += count


def read_fully(system: System, descriptor: int, buffers: Sequence[NDArray[Any]], offset: int) -> int:
    """Fill buffers of bytes one after the other; return the number of bytes read, fewer at the end of the file."""
    waiting = [buffer.data for buffer in buffers if buffer.nbytes]
    first = done = 0
    while first < len(waiting):
        count = system.preadv(descriptor, waiting[first : first + _MOST_BUFFERS], offset + done)
        if count == 0:
            return done
        done += count
        while first < len(waiting) and count >= waiting[first].nbytes:
            count -= waiting[first].nbytes
            first += 1
        if count:
            waiting[first] = waiting[first][count:]
    return done


def count_processors() -> int:
    """Return how many processors the threads of this process may have."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_bytes(descriptor: int) -> int | None:
    """Return the bytes that are free on the file system of a file; None where they are not counted."""
    with suppress(OSError):
        found = os.fstatvfs(descriptor)
        # A file system without a size, such as an unlimited tmpfs, has no count of free blocks.
        if found.f_blocks > 0:
            return found.f_bavail * found.f_frsize
    return None
