"""Errors of a storage that carry more than a message: no room, a lost entry, a directory in use."""

from __future__ import annotations

import errno
import warnings
from typing import TYPE_CHECKING, TypeVar, final

from ebbtide.errors import StorageError

if TYPE_CHECKING:
    from ebbtide.storage.base import Key, Storage

E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """Return an error without tracebacks, as are its causes: their frames would keep what was to be stored."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error


def close_or_warn(storage: Storage) -> None:
    """Close a storage that is of no use any more; a directory that cannot be removed is told, and costs no result."""
    try:
        storage.close()
    except StorageError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=3)


@final
class StorageFullError(StorageError):
    """
    There is no room: the disk is full, a quota or the limit of the storage is reached.

    Args:
        message: What is wrong, because of what, and what to do.
        missing: The number of bytes that are missing, as far as it is known; at least 1.
        key: The key whose entry found no room, None for a reservation.
        number: What the operating system said, `errno.ENOSPC` for a limit of our own.
    """

    def __init__(self, message: str, missing: int, key: Key | None = None, number: int = errno.ENOSPC) -> None:
        super().__init__(message)
        self.missing = max(1, missing)
        self.key = key
        self.errno = number

    def __reduce__(self) -> tuple[type, tuple[str, int, Key | None, int]]:
        return type(self), (str(self), self.missing, self.key, self.errno or errno.ENOSPC)


@final
class EntryLostError(StorageError):
    """
    An entry was accepted, but writing it failed later: it is lost, and the storage goes on without it.

    Args:
        message: What is wrong, because of what, and what to do.
        key: The key whose entry is lost.
        missing: The number of bytes that could not be written.
        number: What the operating system said, None if it was not the operating system.
    """

    def __init__(self, message: str, key: Key, missing: int, number: int | None) -> None:
        super().__init__(message)
        self.key = key
        self.missing = missing
        self.errno = number

    def __reduce__(self) -> tuple[type, tuple[str, Key, int, int | None]]:
        return type(self), (str(self), self.key, self.missing, self.errno)


@final
class StorageLockedError(StorageError):
    """
    Another storage uses the directory.

    Args:
        message: What is wrong, because of what, and what to do.
        host: The name of the machine on which it runs.
        pid: Its process number there.
    """

    def __init__(self, message: str, host: str, pid: int) -> None:
        super().__init__(message)
        self.host = host
        self.pid = pid
        self.errno = errno.EBUSY

    def __reduce__(self) -> tuple[type, tuple[str, str, int]]:
        return type(self), (str(self), self.host, self.pid)


def unusable_number(cause: OSError) -> int:
    """Return the system's number of why a directory cannot be used: of a file or a broken link, that it is none."""
    return errno.ENOTDIR if isinstance(cause, FileExistsError) else cause.errno or errno.EIO


def make_error(message: str, number: int | None) -> StorageError:
    """Return an error with a number of the operating system, which tells a full disk from a broken one."""
    error = StorageError(message)
    error.errno = number
    return error
