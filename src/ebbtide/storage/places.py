"""
Directories of storages: whose they are, whether their owner is alive, and how they go away.

A scratch directory is private to one storage and says in its name who made it, `ebbtide-PID-HOST-START-RANDOM`, START
being the time at which the process started, in ticks of the system's clock. A durable directory is the user's; a file
`owner` says who uses it, and a record lock on the file `lock` proves it. Record locks belong to a process and not to
its forked children, and end with it however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import final

from ebbtide.errors import StorageError
from ebbtide.storage.failures import StorageLockedError, make_error
from ebbtide.storage.marks import LOCK, OWNER, PART, find_foreign, holds_only_ours, read_record
from ebbtide.storage.segment import NAME as SEGMENT
from ebbtide.storage.system import open_file

_FOREIGN = re.compile(r"[^A-Za-z0-9.]")
_NAME = re.compile(r"ebbtide-(\d+)-(.+)-(\d+)-([a-z0-9_]+)")
RANK = "rank-"
"""How the durable directories begin that the ranks of a run have in one directory."""
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_USUAL = ("/tmp", "/var/tmp", "/usr/tmp")
# There is nothing left of what the system has for open files.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# So often a directory is taken again that its last user removes: each time, a storage of that process has ended.
_TURNS = 100
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@final
@dataclass(frozen=True, slots=True)
class Owner:
    """The process that uses a directory: its machine, its number there, and when it started (0 if not known)."""

    host: str
    pid: int
    start: int

    def is_dead(self) -> bool:
        """Return True if the process ran on this machine and is gone; of other machines nothing is known."""
        if self.host != host_name():
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):  # no process has such a number
            return True
        except OSError:
            return False
        return bool(self.start) and start_of(self.pid) not in {0, self.start}


def this_process() -> Owner:
    """
    Return the owner that this process is.

    Raises:
        StorageError: The system has no descriptor or no memory left to say when it started, as names have to.
    """
    pid = os.getpid()
    try:
        return Owner(host_name(), pid, _read_start(pid))
    except OSError as cause:
        if cause.errno in _EXHAUSTED:
            raise make_error(
                f"Cannot read when the process {pid} started: {cause.strerror}. Close files, or raise the limit of the "
                "process (`ulimit -n`).",
                cause.errno,
            ) from cause
        return Owner(host_name(), pid, 0)


def host_name() -> str:
    """Return the name of this machine, without what a file's name cannot have."""
    return _FOREIGN.sub("_", socket.gethostname()) or "localhost"


def start_of(pid: int) -> int:
    """Return when a process started, in ticks of the system's clock; 0 where the system does not say."""
    with suppress(OSError):
        return _read_start(pid)
    return 0


def _read_start(pid: int) -> int:
    # Not by `open`, whose buffers of 12 KB are a fourth of what a loop on a few numbers takes.
    with open_file(f"/proc/{pid}/stat", "r") as file:
        status = os.read(file.fileno(), 1024)
    with suppress(ValueError, IndexError):
        # The name of the program, in parentheses, may hold anything.
        return int(status.rpartition(b")")[2].split()[19])
    return 0


def find_absolute(path: str | Path) -> Path:
    """
    Return a path that names the same place wherever the working directory is later.

    Raises:
        StorageError: It is relative, and the working directory is gone.
    """
    try:
        return Path(path).absolute()
    except OSError as cause:
        raise make_error(
            f"Cannot find the directory {path}, which is relative to the working directory: {cause.strerror}. Give an "
            "absolute one.",
            cause.errno,
        ) from cause


# Scratch directories.


def scratch_parent() -> Path:
    """
    Return the system's directory for temporary files, by the rules of `tempfile`, but never the working directory.

    Raises:
        StorageError: Only the working directory is left.
    """
    found = Path(tempfile.gettempdir())
    named = {*(os.environ.get(name, "") for name in _TEMPORARY), *_USUAL}
    if str(found) not in named and found.resolve() == Path.cwd():
        raise StorageError(
            f"There is no directory for temporary files but the working directory {found}, which is not for "
            "scratch files. Set TMPDIR, or give directory=."
        )
    return found.absolute()


def name_scratch(parent: Path) -> Path:
    """Return a path in *parent* for a private directory of this process; nobody else has it."""
    owner = this_process()
    return parent / f"ebbtide-{owner.pid}-{owner.host}-{owner.start}-{secrets.token_hex(8)}"


def make_scratch(path: Path) -> None:
    """
    Make a private directory, after removing those of dead processes beside it.

    Raises:
        StorageError: It cannot be made.
    """
    sweep(path.parent)
    try:
        path.mkdir(mode=0o700)
    except OSError as cause:
        raise make_error(
            f"Cannot make a directory for storage in {path.parent}: {cause.strerror}. Give an existing directory that "
            "may be written as directory=.",
            cause.errno,
        ) from cause


def remove_scratch(path: Path) -> None:
    """Remove a private directory with its file, as far as the system lets us; it takes no descriptor."""
    with suppress(OSError):
        (path / SEGMENT).unlink(missing_ok=True)
        path.rmdir()


def owner_in_name(path: Path) -> Owner | None:
    """Return the owner of a scratch directory; None if it is none."""
    match = _NAME.fullmatch(path.name)
    return Owner(match.group(2), int(match.group(1)), int(match.group(3))) if match else None


def find_scratch(parent: Path) -> Iterator[tuple[Path, Owner]]:
    """Yield the scratch directories in *parent* with their owners."""
    with suppress(OSError), os.scandir(parent) as places:
        for place in places:
            owner = owner_in_name(Path(place.path)) if place.name.startswith("ebbtide-") else None
            if owner is not None and place.is_dir(follow_symlinks=False):
                yield Path(place.path), owner


def sweep(parent: Path) -> list[Path]:
    """Remove the scratch directories of dead processes of this machine and user from *parent*; return their paths."""
    removed: list[Path] = []
    for path, owner in find_scratch(parent):
        with suppress(OSError):
            is_left = owner.is_dead() and path.stat().st_uid == os.getuid() and holds_only_ours(path)
            if is_left and not is_locked(path / SEGMENT):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
    return removed


def is_locked(path: Path) -> bool:
    """Return whether another process holds the record lock of a file, seen also from another process namespace."""
    with suppress(OSError), open_file(path, "r+") as file:
        return not take_lock(file.fileno())
    return False


def take_lock(descriptor: int, part: int | None = None) -> bool:
    """
    Take the record lock of a file, or of its byte *part* alone, and return False if another process has it.

    A file system without locks has none to be refused: what the owner's name says is all that is known there.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, *(() if part is None else (1, part)))
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True


def is_in_place(file: FileIO, path: Path) -> bool:
    """Return whether an open file is still the one that a path names: a lock of a file that was removed is none."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


# Durable directories.


def _is_lockable(descriptor: int) -> bool:
    """Return whether the file system of an open file has locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _NO_LOCKS
    return True


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
            raise make_error(
                f"Cannot use the directory {directory} for storage: {cause.strerror}. Give a directory that may be "
                "written as directory=.",
                cause.errno,
            ) from cause

    def _take_what_is_there(self) -> None:
        """Take the directory again as long as another process, which was the last to use it, removes it meanwhile."""
        for _ in range(_TURNS):
            with suppress(FileNotFoundError, FileExistsError):
                self._take(self._directory)
                return
            self._close()
        self._take(self._directory)

    def _take(self, directory: Path) -> None:
        lock, me = directory / LOCK, this_process()
        made = [path for path in (lock, directory) if not path.exists()]
        directory.mkdir(exist_ok=True)
        # At the second look what another process makes at this moment is known by the name of its owner.
        if find_foreign(directory) and (foreign := find_foreign(directory)):
            raise StorageError(
                f"The directory {directory} has files that no storage has written, with names that one would use: "
                f"{', '.join(foreign)}. Give another directory, or move them."
            )
        self._made = [path for path in made if path != lock]
        owner = read_owner(directory)
        # The lock would not refuse the process that holds it.
        if owner is not None and (owner == me or not (owner.is_dead() or self._has_locks())):
            raise describe_lock(directory, owner)
        self._file = file = open_file(lock, "a+")
        if not take_lock(file.fileno()):
            raise describe_lock(directory, read_owner(directory))
        if not is_in_place(file, lock):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(lock))
        self._made, self._owner = made, me
        remove_parts(directory)
        try:
            write_atomically(directory / OWNER, json.dumps({**asdict(me), "since": time.time()}))
        except OSError:
            # On a full disk a run that was killed can be resumed: where there are locks, ours says enough.
            with suppress(OSError):
                (directory / OWNER).unlink(missing_ok=True)
            with suppress(OSError):
                remove_parts(directory)
            if not _is_lockable(file.fileno()):
                raise

    def abandon(self) -> None:
        """Give the directory up, and remove what was made for it; entries of others stay."""
        self._remove_owner()
        made, self._made = self._made, []
        for path in made:
            with suppress(OSError):
                path.rmdir() if path == self._directory else path.unlink()
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
        found = read_owner(self._directory)
        # Where it cannot be read it is ours as long as our lock is that of the directory.
        if found == owner or (found is None and is_in_place(file, self._directory / LOCK)):
            with suppress(OSError):
                (self._directory / OWNER).unlink()

    def _has_locks(self) -> bool:
        with suppress(OSError), open_file(self._directory / LOCK, "r+") as file:
            return _is_lockable(file.fileno())
        return True

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def read_owner(directory: Path) -> Owner | None:
    """Return who used a durable directory last without giving it up; None if nobody did."""
    with suppress(ValueError, KeyError, TypeError, OverflowError):
        found = read_record(directory / OWNER)
        return Owner(str(found["host"]), int(found["pid"]), int(found["start"]))
    return None


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by one with another text; at no time is there a part of it."""
    other = path.with_name(f"{path.name}.{os.getpid()}")
    other.write_text(text, encoding="utf-8")
    other.replace(path)


def describe_lock(directory: Path, owner: Owner | None) -> StorageLockedError:
    """Return the error for a directory that is in use."""
    owner = owner or Owner("an unknown host", 0, 0)  # a disk that was full when it began
    return StorageLockedError(
        f"The directory {directory} is used by the process {owner.pid} on {owner.host}. Wait for its end, give "
        f"another directory, or, if that process is gone, remove the file {directory / OWNER}.",
        owner.host,
        owner.pid,
    )


def remove_parts(path: Path) -> None:
    """Remove what a process has left that was killed while it wrote its name into a durable directory."""
    for place in list(path.iterdir()):
        if PART.fullmatch(place.name):
            place.unlink(missing_ok=True)
