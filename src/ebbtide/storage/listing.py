"""What storages have left in a directory: to list it, to check it, and to remove it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from ebbtide.budget import format_bytes
from ebbtide.errors import StorageError
from ebbtide.storage.checksum import extend_crc32c
from ebbtide.storage.codecs import Codecs
from ebbtide.storage.entries import ArrayRecord, EntryRecord, is_damaged
from ebbtide.storage.failures import make_error
from ebbtide.storage.marks import is_special
from ebbtide.storage.places import Owner, find_scratch
from ebbtide.storage.removal import (
    in_use,
    is_of_rank,
    is_storage,
    maker_of_scratch,
    owner_of_storage,
    remove_storage,
)
from ebbtide.storage.segment import NAME, read_header, scan
from ebbtide.storage.system import POSIX, open_file
from ebbtide.storage.transfer import Target, check_entry

_CLOSED = frozenset({errno.EACCES, errno.EPERM})


@final
@dataclass(frozen=True, slots=True)
class Listing:
    """
    What lies in the directory of a storage.

    Args:
        path: The directory.
        durable: Whether its entries are to outlive the storage.
        owner: Who uses it, None if nobody does.
        used: Whether the owner is alive, as far as can be known.
        disk_nbytes: The bytes of disk that the file takes.
        entries: Its entries, by generation.
        damaged: What is wrong with those that are damaged, if they were checked.
    """

    path: Path
    durable: bool
    owner: Owner | None
    used: bool
    disk_nbytes: int
    entries: tuple[EntryRecord, ...]
    damaged: tuple[str, ...]

    def __str__(self) -> str:
        kind = "durable" if self.durable else "scratch"
        if self.owner is None:
            user = "not in use"
        else:
            state = "in use by" if self.used else "left by the dead"
            user = f"{state} process {self.owner.pid} on {self.owner.host}"
        total = format_bytes(self.disk_nbytes)
        lines = [f"{self.path}: {kind}, {user}; {total} on disk, {len(self.entries)} entries"]
        lines += [_describe(record) for record in self.entries]
        return "\n".join([*lines, *(f"  DAMAGED {reason}" for reason in self.damaged)])


def find_storages(directory: Path) -> Iterator[Path]:
    """
    Yield the directory if it is one of a storage, else those of storages in it.

    Raises:
        StorageError: It is no directory that can be read.
    """
    if is_storage(directory):
        yield directory
        return
    yield from (path for path in _inside(directory) if is_storage(path))


def _inside(directory: Path) -> list[Path]:
    """Return what is in a directory but for links; of one that cannot be looked at nobody may say it was empty."""
    try:
        return sorted(path for path in directory.iterdir() if not path.is_symlink())
    except OSError as cause:
        raise make_error(
            f"Cannot list {directory}: {cause.strerror}. Name a directory of a storage, or one with such directories.",
            cause.errno,
        ) from cause


def list_storage(directory: Path, *, check: bool = False) -> Listing:
    """
    Return what lies in the directory of a storage, whether or not it is in use.

    Args:
        directory: One of those that `find_storages` yields.
        check: Whether to read all data and compare their checksums.

    Raises:
        StorageError: The file cannot be read, is none, or is of another version.
    """
    path = directory / NAME
    if is_special(path):  # a pipe might never give any byte
        raise StorageError(f"Cannot list {path}: it is no regular file, so no storage has made it. Move it elsewhere.")
    used = in_use(directory)
    try:
        file = open_file(path, "r")
    except FileNotFoundError:
        return _listing(directory, used, 0, (), ())
    except OSError as cause:
        raise make_error(f"Cannot open {path}: {cause.strerror}. Check its rights.", cause.errno) from cause
    with file:
        descriptor = file.fileno()
        found, broken = scan(path, descriptor)
        entries = tuple(sorted(found, key=lambda record: record.generation))
        target = Target(path, descriptor, POSIX, Codecs(), durable=False)
        damaged = (*_find_damage(target, entries, used), *_find_damaged_headers(target, broken, used)) if check else ()
        return _listing(directory, used, os.fstat(descriptor).st_blocks * 512, entries, damaged)


def clean(directory: Path, tell: Callable[[StorageError], None] | None = None) -> list[Path]:
    """
    Remove a directory of a storage, or in a directory the scratch ones of dead processes and what ranks kept of a run.

    Args:
        directory: The directory.
        tell: What to do with the error of each directory in it that cannot be removed, while the others are; None to
            raise the first one.

    Returns:
        What was removed.

    Raises:
        StorageLockedError: The directory is in use.
        StorageError: There is no such directory that can be read, or it cannot be removed.
    """
    if is_storage(directory):
        remove_storage(directory)
        return [directory]
    removed: list[Path] = []
    of_ranks = [path for path in _inside(directory) if is_of_rank(path)]
    for path in sorted([*of_ranks, *(path for path, _ in find_scratch(directory))]):
        try:
            if not in_use(path):
                remove_storage(path)
                removed += [] if path.exists() else [path]
        except StorageError as error:
            if is_of_another_user(path, error):
                continue
            if tell is None:
                raise
            tell(error)
    if of_ranks:
        with suppress(OSError):  # there is something else in it
            directory.rmdir()
    return removed


def is_of_another_user(path: Path, error: StorageError) -> bool:
    """Return whether an error is that a directory, which nobody has named, is another user's and closed to this one."""
    with suppress(OSError):
        return error.errno in _CLOSED and path.stat().st_uid != os.getuid()
    return False


def _listing(
    directory: Path, used: bool, nbytes: int, entries: tuple[EntryRecord, ...], damaged: tuple[str, ...]
) -> Listing:
    durable = maker_of_scratch(directory) is None
    return Listing(directory, durable, owner_of_storage(directory), used, nbytes, entries, damaged)


def _find_damage(target: Target, entries: tuple[EntryRecord, ...], used: bool) -> Iterator[str]:
    for record in entries:
        reason = _damage_of(target, record)
        if reason and used:
            # Its user may have been writing it, or has written another one there, whose header is another one.
            reason = _damage_of(target, record)
            header = read_header(target.path, target.descriptor, record.offset)
            reason = reason if extend_crc32c(0, header) == record.checksum else ""
        if reason:
            yield reason


def _damage_of(target: Target, record: EntryRecord) -> str:
    try:
        check_entry(target, record)
    except StorageError as error:
        return str(error)
    return ""


def _find_damaged_headers(target: Target, offsets: list[int], used: bool) -> Iterator[str]:
    for offset in offsets:
        header = read_header(target.path, target.descriptor, offset)
        # Its user may be writing it.
        is_changing = used and header != read_header(target.path, target.descriptor, offset)
        if is_damaged(header) and not is_changing:
            yield (
                f"The header at offset {offset} of the file {target.path} is damaged, so that its entry is not found: "
                "something else changed the file, the disk is faulty, or its writer was killed meanwhile. Recompute "
                "what it held."
            )


def _describe(record: EntryRecord) -> str:
    # Whatever a program has called it, it stays in its line.
    kind = f" ({repr(record.kind)[1:-1]})" if record.kind else ""
    arrays = ", ".join(_describe_array(array) for array in record.arrays) or "no arrays"
    place = f"generation {record.generation}, {record.length} bytes at {record.offset}"
    return f"  {record.key!r}{kind}: {place}: {arrays}"


def _describe_array(array: ArrayRecord) -> str:
    codec = "" if array.codec == "raw" else f" as {array.codec}"
    error = f", relative error {array.error:.1e}" if array.error else ""
    return f"{array.dtype}{list(array.shape)}{codec}{error}"
