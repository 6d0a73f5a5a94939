"""
Durable directories, which are the user's: who has one, and what is removed of it.

A file `owner` says who uses the directory, and a record lock on the file `lock` proves it, to other processes. A
process is never refused its own record locks, and gives one up by closing any descriptor of the file: which directories
it has, it has to know by itself, and opens none of their locks again.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from io import FileIO
from pathlib import Path
from typing import final
from weakref import ref

from ebbtide.errors import StorageError
from ebbtide.storage.failures import StorageLockedError, make_error, unusable_number
from ebbtide.storage.marks import (
    LOCK,
    OWNER,
    SEGMENT,
    find_foreign,
    find_parts,
    is_ours,
    is_written,
    read_record,
    sign_of,
)
from ebbtide.storage.places import Owner, is_in_place, is_lockable, take_lock, this_process
from ebbtide.storage.system import open_file

# So often a directory is taken again that its last user removes: each time, a storage of that process has ended.
_TURNS = 100
# So many times, each a millisecond after the other, one looks for the name of who has the lock.
_LOOKS = 50


@final
class DirectoryLock:
    """
    The right to use a durable directory, from `take` until `release`.

    Args:
        directory: The directory; it is made if its parent exists.

    Whoever made this can always release it, also where an interrupt comes when it has just been taken.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: FileIO | None = None
        # Whose it is while it is locked; who has no descriptor left could not ask for that any more.
        self._owner: Owner | None = None
        self._made: list[Path] = []
        # What tells of a storage while there is a new lock and not yet its owner.
        self._sign: Path | None = None
        self._key: tuple[int, int, int] | None = None
        # An empty file of that name, in a directory of which nothing else tells that it is a storage's, is the user's.
        self._is_lock_theirs = False

    def take(self) -> None:
        """
        Take the directory.

        Raises:
            StorageLockedError: A living process uses it, or one of which nothing can be known.
            StorageError: It cannot be made or written.
        """
        directory = self._directory
        try:
            self._take_what_is_there()
        except BaseException as cause:
            # Interrupted: perhaps the file already says that the directory is ours.
            self.abandon()
            if isinstance(cause, StorageError) or not isinstance(cause, OSError):
                raise
            number = unusable_number(cause)
            raise make_error(
                f"Cannot use the directory {directory} for storage: {os.strerror(number)}. Give a directory that may "
                "be written as directory=.",
                number,
            ) from cause

    def _take_what_is_there(self) -> None:
        """Take the directory again as long as another process, which was the last to use it, removes it meanwhile."""
        for _ in range(_TURNS):
            with suppress(FileNotFoundError, FileExistsError):
                self._take(self._directory)
                return
            self._remove_sign()
            self._close()
        self._take(self._directory)

    def _take(self, directory: Path) -> None:
        lock, me = directory / LOCK, this_process()
        made = [path for path in (lock, directory) if not path.exists()]
        directory.mkdir(exist_ok=True)
        self._enter(me)
        self._made = made
        is_known = is_ours(directory)
        if is_known:
            # Of what a user has put there since, this would be written over.
            foreign = [] if is_written(directory / OWNER) else [OWNER]
        else:
            # At the second look what another process makes at this moment is known by the name of its owner.
            foreign = find_foreign(directory) and find_foreign(directory)
        if foreign:
            raise StorageError(
                f"The directory {directory} has files that no storage has written, with names that one would use: "
                f"{', '.join(foreign)}. Give another directory, or move them."
            )
        owner = read_owner(directory)
        # Also of our own number and start, which a process has that begins anew by exec: what of ours has the directory
        # is refused by now, and where there are locks they tell of all others.
        if owner is not None and not (owner.is_dead() or self._has_locks()):
            raise describe_lock(directory, owner)
        if lock in made:
            # Killed before its name is there, an empty lock alone would be taken for the user's.
            self._sign = sign_of(directory)
            self._sign.touch()
        self._file = file = open_file(lock, "a+")
        if not take_lock(file.fileno()):
            raise describe_lock(directory, _owner_soon(directory))
        if not is_in_place(file, lock):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(lock))
        self._owner, self._is_lock_theirs = me, not is_known and lock not in made
        if is_known:
            remove_parts(directory)
        try:
            write_atomically(directory / OWNER, json.dumps({**asdict(me), "since": time.time()}), self._sign)
            self._sign = None  # it has become that name
        except OSError:
            # On a full disk a run that was killed can be resumed: where there are locks, ours says enough.
            with suppress(OSError):
                (directory / OWNER).unlink(missing_ok=True)
            if not is_lockable(file.fileno()):
                raise
        self._remove_sign()

    def _remove_sign(self) -> None:
        if self._sign is not None:
            with suppress(OSError):
                self._sign.unlink(missing_ok=True)
            self._sign = None

    def _enter(self, me: Owner) -> None:
        """Note that this process has the directory, or is about to; refuse if it does already."""
        self._key = key = _key(self._directory)
        other = _held().setdefault(key, ref(self))()
        if other is not None and other is not self and other.keeps(self._directory):
            raise describe_lock(self._directory, me)
        _held()[key] = ref(self)

    def keeps(self, directory: Path) -> bool:
        """Return whether this is for a directory that had its number when it was taken, or is about to be."""
        return self._file is None or is_in_place(self._file, directory / LOCK)

    def is_valid(self) -> bool:
        """Return whether the directory of this name is the one that was taken, by this process."""
        file, owner = self._file, self._owner
        return (
            file is not None
            and owner is not None
            and owner.pid == os.getpid()
            and is_in_place(file, self._directory / LOCK)
        )

    def erase(self, names: Iterable[str]) -> bool:
        """
        Remove files of the directory, the lock last: from then on another process may have it.

        Args:
            names: The files, beside those of the owner.

        Returns:
            Whether it was still the directory that was taken; of another one that has its name, nothing is removed.

        Raises:
            OSError: The system refuses.
        """
        paths = [self._directory / name for name in names]
        try:
            for path in paths:
                if not self.is_valid():
                    return False
                path.unlink(missing_ok=True)
            if not self.is_valid():
                return False
            self._erase_lock()
        except Exception:
            raise
        except BaseException:
            # Interrupted when all else was gone: the lock would be left alone.
            if self.is_valid() and not any(map(os.path.lexists, paths)):
                self._erase_lock()
            raise
        return True

    def _erase_lock(self) -> None:
        """
        Remove the lock, and whose it was.

        Who finds an empty lock alone has to take it for the user's. So whose it is stays until the lock is gone, as
        this process may be killed, by a name under which no other process has its own.
        """
        owner = self._directory / OWNER
        last = _free_name(owner)
        try:
            with suppress(OSError):  # there is none, or it keeps its name, by which `release` removes it
                owner.rename(last)
            if not self._is_lock_theirs and self.is_valid():
                (self._directory / LOCK).unlink(missing_ok=True)
        finally:
            last.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Give the directory up, and remove what was made for it; entries of others stay, and a file with its lock."""
        lock, made, self._made = self._directory / LOCK, self._made, []
        made = [] if os.path.lexists(self._directory / SEGMENT) else made
        with suppress(OSError):
            if lock in made and self.is_valid():
                self._erase_lock()  # without its owner it would be left alone by a kill
        self._remove_owner()
        with suppress(OSError):
            if lock in made:
                file = self._file = self._file or open_file(lock, "r+")
                if take_lock(file.fileno()) and is_in_place(file, lock):  # else another process was the first
                    lock.unlink()
        self._remove_sign()
        with suppress(OSError):
            if self._directory in made:
                self._directory.rmdir()
        # Not before: the next process may have the directory from now on.
        self._close()

    def release(self) -> None:
        """Give the directory up; may be called again, and in a forked child changes nothing."""
        self._remove_owner()
        self._close()

    def _remove_owner(self) -> None:
        file, owner, self._owner = self._file, self._owner, None
        if file is None or owner is None or owner.pid != os.getpid():
            return
        lock, found = self._directory / LOCK, read_owner(self._directory)
        # Where it cannot be read it is ours as long as our lock is that of the directory. Without a lock it is ours if
        # it says so; with another lock it is that of another storage, perhaps of this process.
        if found in (owner, None) if is_in_place(file, lock) else found == owner and not os.path.lexists(lock):
            with suppress(OSError):
                (self._directory / OWNER).unlink()

    def _has_locks(self) -> bool:
        with suppress(OSError), open_file(self._directory / LOCK, "r+") as file:
            return is_lockable(file.fileno())
        return True

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
        # Not before: a storage of this process that has the directory next would lose its lock with this file.
        key, self._key = self._key, None
        if key is not None and _held().get(key) is ref(self):
            _held().pop(key, None)


def _owner_soon(directory: Path) -> Owner | None:
    """Return whose a directory is; who has taken its lock at this moment says so a little later."""
    for _ in range(_LOOKS):
        owner = read_owner(directory)
        if owner is not None:
            return owner
        time.sleep(0.001)
    return None


@cache
def _held() -> dict[tuple[int, int, int], ref[DirectoryLock]]:
    """Return what this process has, by its number and those of the directory: a forked child has nothing of it."""
    return {}


def _key(directory: Path) -> tuple[int, int, int]:
    found = directory.stat()
    return os.getpid(), found.st_dev, found.st_ino


def is_held(directory: Path) -> bool:
    """Return whether a storage of this process has a directory; to open and close its lock would give that up."""
    with suppress(OSError):
        found = _held().get(_key(directory))
        lock = None if found is None else found()
        return lock is not None and lock.keeps(directory)
    return False


def read_owner(directory: Path) -> Owner | None:
    """Return who used a durable directory last without giving it up; None if nobody did."""
    with suppress(ValueError, KeyError, TypeError, OverflowError):
        found = read_record(directory / OWNER)
        return Owner(str(found["host"]), int(found["pid"]), int(found["start"]))
    return None


def _free_name(path: Path) -> Path:
    """Return the name of a part of a file, which nothing has."""
    number = os.getpid()
    while os.path.lexists(other := path.with_name(f"{path.name}.{number}")):
        number += 1  # somebody else's
    return other


def write_atomically(path: Path, text: str, other: Path | None = None) -> None:
    """Replace a file by one with another text, by way of an *other* one; at no time is there a part of it."""
    other = other or _free_name(path)
    try:
        other.write_text(text, encoding="utf-8")
        other.replace(path)
    except BaseException:
        with suppress(OSError):
            other.unlink(missing_ok=True)
        raise


def describe_lock(directory: Path, owner: Owner | None) -> StorageLockedError:
    """Return the error for a directory that is in use."""
    owner = owner or Owner("an unknown host", 0, 0)  # a disk that was full when it began
    return StorageLockedError(
        f"The directory {directory} is used by the process {owner.pid} on {owner.host}. Wait for its end, give "
        f"another directory, or, if that process is gone, remove the file {directory / OWNER}.",
        owner.host,
        owner.pid,
    )


def remove_parts(directory: Path) -> None:
    """Remove what a process has left that was killed while it wrote its name into a directory of a storage."""
    for part in find_parts(directory):
        part.unlink(missing_ok=True)
