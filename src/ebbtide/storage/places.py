"""
Processes that use directories, whether they are alive, and the scratch directories that they leave.

A scratch directory is private to one storage and says in its name who made it, `ebbtide-PID-HOST-START-RANDOM`, START
being the time at which the process started, in ticks of the system's clock. Record locks belong to a process and not to
its forked children, and end with it however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import final

from ebbtide.budget import parse_directory
from ebbtide.errors import StorageError
from ebbtide.storage.failures import make_error
from ebbtide.storage.marks import holds_only_entries
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
        TypeError: It is no path.
        StorageError: It is relative, and the working directory is gone; it is empty, or no file system can have it.
    """
    named = parse_directory(path, "directory=", "that of temporary files")
    try:
        return named.absolute()
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

    Where `tempfile` can write in none, it is the first one that is there: who writes into it hears what is wrong.

    Raises:
        StorageError: Only the working directory is left, or none at all.
    """
    named = [name for name in (*(os.environ.get(name) for name in _TEMPORARY), *_USUAL) if name]
    try:
        found = tempfile.gettempdir()
    except OSError as cause:  # it writes a file to try a directory, which a full disk has no room for
        existing = next((name for name in named if _is_directory(name)), None)
        if existing is None:
            raise make_error(
                f"There is no directory for temporary files: {cause.strerror}. Set TMPDIR to one that may be written, "
                "or give directory=.",
                cause.errno,
            ) from cause
        return find_absolute(existing)
    if _is_working(found) and not any(_is_working(name) for name in named):
        raise StorageError(
            f"There is no directory for temporary files but the working directory {found}, which is not for "
            "scratch files. Set TMPDIR, or give directory=."
        )
    return find_absolute(found)


def _is_directory(path: str) -> bool:
    with suppress(OSError):
        return Path(path).is_dir()
    return False


def _is_working(path: str) -> bool:
    """Return whether a path names the working directory, however it is written."""
    with suppress(OSError):
        return Path(path).samefile(".")
    return False


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


def remove_scratch(path: Path, *, with_file: bool = True) -> None:
    """
    Remove a private directory, as far as the system lets us; it takes no descriptor.

    Args:
        path: The directory.
        with_file: Whether the file in it is that of its storage, and goes too.
    """
    with suppress(OSError):
        if with_file:
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
            is_left = owner.is_dead() and path.stat().st_uid == os.getuid() and holds_only_entries(path)
            if is_left and not is_locked(path / SEGMENT):
                remove_scratch(path)
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


def is_lockable(descriptor: int) -> bool:
    """Return whether the file system of an open file has locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _NO_LOCKS
    return True


def is_in_place(file: FileIO, path: Path) -> bool:
    """Return whether an open file is still the one that a path names: a lock of a file that was removed is none."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False
