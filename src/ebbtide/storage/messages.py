"""What is said where an entry of a segment file cannot be written or read."""

from __future__ import annotations

import errno
from pathlib import Path

from ebbtide.errors import StorageError
from ebbtide.storage.entries import EntryRecord
from ebbtide.storage.failures import EntryLostError, StorageFullError, make_error
from ebbtide.storage.system import free_bytes


def describe_refusal(verb: str, path: Path, record: EntryRecord, cause: OSError) -> StorageError:
    """Return the error for a call that the operating system refused."""
    return make_error(
        f"Cannot {verb} key {record.key!r} ({record.length} bytes) at offset {record.offset} of {path}: "
        f"{cause.strerror or cause}. Check the disk and the rights of the directory.",
        cause.errno,
    )


def describe_need(record: EntryRecord | None) -> str:
    """Return what there is no room for: an entry, or a reservation."""
    return "reserve room" if record is None else f"store key {record.key!r}"


def describe_full(
    path: Path, descriptor: int, needed: int, cause: OSError, record: EntryRecord | None
) -> StorageFullError:
    """Return the error for a disk without room for *needed* more bytes."""
    is_limited = cause.errno == errno.EFBIG  # however much is free
    free = free_bytes(descriptor)
    missing = needed if is_limited or free is None or free >= needed else needed - free
    if is_limited:
        why = (
            f"and a file may not become as large as that there ({cause.strerror or cause}). Raise the limit of the "
            "process (`ulimit -f`), or, if it has none, give a directory= on a file system with larger files."
        )
    else:
        told = "an unknown number of" if free is None else str(free)
        why = (
            f"and {told} bytes are free there ({cause.strerror or cause}; {missing} bytes are missing). Free some "
            "space, or give another directory=."
        )
    return StorageFullError(
        f"Cannot {describe_need(record)} in {path}: {needed} bytes more are needed, {why}",
        missing,
        None if record is None else record.key,
        cause.errno or 0,
    )


def describe_damage(path: Path, record: EntryRecord, offset: int, reason: str) -> StorageError:
    """Return the error for bytes that are not those that were written."""
    return StorageError(
        f"Key {record.key!r} in the file {path} is damaged at offset {offset}: {reason}. Something else changed "
        "the file, or the disk is faulty. Recompute what it held."
    )


def describe_loss(record: EntryRecord, cause: BaseException, path: Path) -> EntryLostError:
    """Return the error for an entry that was to be written later and could not be."""
    number = cause.errno if isinstance(cause, OSError) else None
    reason = (cause.strerror or str(cause)) if isinstance(cause, OSError) else f"{type(cause).__name__}: {cause}"
    error = EntryLostError(
        f"Key {record.key!r} ({record.length} bytes) is lost: it could not be written at offset {record.offset} of "
        f"{path} ({reason}). Free some space or check the disk, and recompute what it held.",
        record.key,
        record.length,
        number,
    )
    error.__cause__ = cause
    return error
