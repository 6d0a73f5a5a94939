"""How the directories of storages go away: scratch ones that are left, and durable ones by their user's word."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ebbtide.errors import StorageError
from ebbtide.storage.durable import describe_lock, is_held, read_owner, remove_parts
from ebbtide.storage.failures import StorageLockedError, make_error
from ebbtide.storage.marks import LOCK, NEWEST, OWNER, has_only_name, holds_only_ours, is_ours, is_segment, is_written
from ebbtide.storage.places import RANK, Owner, is_in_place, is_locked, owner_in_name, take_lock, this_process
from ebbtide.storage.segment import NAME as SEGMENT
from ebbtide.storage.system import open_file

# A directory stays that has something else in it, is a link or a mounted disk; or another process has removed it.
_KEPT = frozenset({errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY, errno.ENOENT})


def remove_empty(path: Path) -> None:
    """
    Remove a directory, if nothing is in it, and it is no link, no mounted disk and not the working directory.

    Raises:
        OSError: The system refuses.
    """
    try:
        if not path.samefile(os.curdir):
            path.rmdir()
    except OSError as error:
        if error.errno not in _KEPT:
            raise


def is_storage(path: Path) -> bool:
    """Return whether a directory is one of a storage, scratch or durable; a kill may have left it without entries."""
    with suppress(OSError):
        if path.is_dir():
            return _is_scratch(path) or (is_ours(path) if (path / SEGMENT).is_file() else _has_no_entries(path))
    return False


def _is_scratch(path: Path) -> bool:
    return maker_of_scratch(path) is not None


def maker_of_scratch(path: Path) -> Owner | None:
    """Return who made a directory that is a scratch one, by its own name, which `.` and links have not; else None."""
    return owner_in_name(Path(os.path.realpath(path)))


def _has_no_entries(path: Path) -> bool:
    return ((path / LOCK).exists() or has_only_name(path)) and holds_only_ours(path)


def is_of_rank(path: Path) -> bool:
    """Return whether a path is the directory of one rank of a run, in the one that the run is resumed from."""
    begin, _, rank = path.name.rpartition(RANK)
    return not begin and rank.isdecimal() and not path.is_symlink() and is_storage(path)


def owner_of_storage(path: Path) -> Owner | None:
    """Return the owner of a directory of a storage; None if nobody uses it."""
    return maker_of_scratch(path) or (this_process() if is_held(path) else read_owner(path))


def in_use(path: Path) -> bool:
    """Return whether a living process, or one of which nothing is known, uses the directory of a storage."""
    if is_held(path):
        return True
    owner, is_scratch = owner_of_storage(path), _is_scratch(path)
    # A durable one that is not held, and was by this process, which has begun anew by exec.
    if owner is None or (owner == this_process() and not is_scratch):
        return is_locked(path / LOCK)
    return not owner.is_dead() or is_locked(path / (SEGMENT if is_scratch else LOCK))


def remove_storage(path: Path) -> None:
    """
    Remove what a storage has left in a directory, and the directory if nothing else is in it.

    Raises:
        StorageLockedError: It is in use.
        StorageError: It cannot be removed.
    """
    if in_use(path):
        raise _describe_use(path)
    try:
        with _locked(path) as is_locked_now:
            if not is_locked_now:
                raise _describe_use(path)
            if not _is_scratch(path):
                remove_parts(path)
            for name in _names_in(path):
                (path / name).unlink(missing_ok=True)
        # A link to a durable directory stays, as does that; a scratch one goes. Else the name that was given is within
        # reach, and what is above it may not be.
        remove_empty(path.resolve() if path.is_symlink() and _is_scratch(path) else path)
    except StorageError:
        raise
    except OSError as cause:
        raise make_error(f"Cannot remove {path}: {cause.strerror}. Check its rights.", cause.errno) from cause


def _describe_use(path: Path) -> StorageLockedError:
    """Return the error for a directory that is in use, as far as is known; a scratch one has no file of its owner."""
    made = maker_of_scratch(path)
    if made is None:
        return describe_lock(path, owner_of_storage(path))
    return StorageLockedError(
        f"The scratch directory {path} is used by the process {made.pid} on {made.host}. Wait for its end, or, if that "
        "process is gone, remove the directory by hand.",
        made.host,
        made.pid,
    )


def _names_in(path: Path) -> tuple[str, ...]:
    """Return the files that a storage has in a directory, in the order in which they go."""
    if _is_scratch(path):
        return (SEGMENT,) if is_segment(path / SEGMENT) else ()
    return tuple([name for name in (NEWEST, SEGMENT, OWNER, LOCK) if name == SEGMENT or is_written(path / name)])


@contextmanager
def _locked(path: Path) -> Generator[bool]:
    """Hold the lock of a durable directory if nobody else does; where there is none that can be opened, nobody does."""
    try:
        file = open_file(path / LOCK, "r+")
    except OSError:
        yield True
        return
    with file:
        yield take_lock(file.fileno()) and is_in_place(file, path / LOCK)
