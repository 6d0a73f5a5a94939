"""A segment file: one file with all entries of a storage, its space, and what can be found in it."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import final

from ebbtide.budget import format_bytes
from ebbtide.errors import StorageError
from ebbtide.quota import Quota
from ebbtide.storage.base import Key
from ebbtide.storage.entries import (
    FIXED_BYTES,
    VERSION,
    EntryRecord,
    decode_header,
    find_other_version,
    header_bytes,
    seems_header,
)
from ebbtide.storage.extents import UNIT, Extents, Free, round_up
from ebbtide.storage.failures import StorageFullError, make_error
from ebbtide.storage.messages import describe_full, describe_need, describe_refusal
from ebbtide.storage.system import write_fully
from ebbtide.storage.transfer import FULL, Target, check_entry

NAME = "segment"
# Punching a hole and cutting a file off make the file system write what waits: small deletions wait for each other.
_SLACK = 1 << 20
_SCAN = 1 << 16


@final
class Segment:
    """
    The space of a segment file: ranges are taken, with blocks behind them, and given back.

    Args:
        target: The file.
        quota: The bytes of disk of which it may take what is left.
        room: The bytes of the part of the file, beyond which is another's; None where there is no other.

    Memory:
        About 100 bytes for each free range.
    """

    def __init__(self, target: Target, quota: Quota, room: int | None = None) -> None:
        self._target = target
        self._quota = quota
        self._room = room
        self._extents = Extents()
        self._reserved = 0
        self._top = 0  # the end of what the file may have blocks for
        # What an earlier storage left is not free, also where an error or an interrupt came before it was known.
        self._is_known = not target.durable
        # Of durable entries that are gone; their places are in use until nobody can find them there.
        self._uncleared: list[EntryRecord] = []

    @property
    def reserved(self) -> int:
        """The bytes that are reserved."""
        return self._reserved

    @property
    def allocated(self) -> int:
        """The bytes of disk that the file takes: entries, the reservation, and less than 1 MiB of free ranges."""
        return max(self._extents.end, self._reserved) - self._extents.clean()

    def reserve(self, nbytes: int) -> None:
        """
        Give the first *nbytes* of the file their blocks, which they keep; those beyond go back when they are free.

        Whole units: what is free is split where the reservation ends, and an entry may begin there.

        Raises:
            StorageFullError: There is no room; the reservation is what it was.
        """
        nbytes = round_up(nbytes)
        if nbytes > self._reserved:
            grown = max(0, nbytes - max(self._extents.end, self._reserved)) + sum(
                max(0, min(free.stop, nbytes) - free.start) for free in self._extents.free if free.clean
            )
            self._check_quota(grown, None)
            self._check_room(nbytes, nbytes, None)
            self._top = max(self._top, nbytes)
            try:
                self._allocate(self._reserved, nbytes - self._reserved, None)
            except BaseException:
                self._cut()  # what blocks were found
                raise
            self._reserved = nbytes
            for free in self._extents.free:
                free.clean = free.clean and free.start >= nbytes
            return
        self._reserved = nbytes
        self.return_space()

    def take(self, planned: EntryRecord, *, ahead: bool = True) -> EntryRecord:
        """
        Return the record with a place.

        Args:
            planned: The record.
            ahead: Whether the place gets its blocks now. What the file system has found blocks for is slow to give
                back: on a disk that is told what is free, deleting 3.2 MB took 3 ms, 0.4 of them work, and the rest
                waiting for the disk and then for a core that others have. What is deleted before the file system
                looks for blocks, as a rule after half a minute, took 0.4 ms, and to write it 0.3 ms more.

        Raises:
            StorageFullError: There is no room.
            StorageError: The operating system refuses.
        """
        nbytes = planned.nbytes
        offset = self._extents.take(nbytes)
        try:
            if self._quota.passed_by() is not None:
                self._quota.whole.return_space()
                self._check_quota(0, planned)
            self._check_room(self._extents.end, nbytes, planned)
            # Not before: what is cleared up to there belongs to this storage.
            self._top = max(self._top, self._extents.end)
            if ahead and offset + nbytes > self._reserved:
                # To the end of the entry only: a file that ends in the middle of a block is a damaged one.
                self._allocate(offset, planned.length, planned)
        except BaseException:
            self._extents.give(offset, nbytes)
            self.return_space()
            raise
        return planned.at(offset)

    def trim(self, planned: EntryRecord, written: EntryRecord) -> None:
        """Give back what an entry did not need in the end."""
        spare = planned.nbytes - written.nbytes
        if spare:
            self._extents.give(written.offset + written.nbytes, spare)
            self._return_slack()

    def give(self, record: EntryRecord) -> None:
        """
        Give the range of an entry back; the file system has it when this returns, but for less than 1 MiB.

        A durable one that could be found again, as its header cannot be cleared, keeps its range; it is tried again
        with the next one, and by `finish`.
        """
        if self._target.durable:
            # First: a process that is killed meanwhile must not leave half an entry.
            before = list(self._uncleared)
            self._uncleared.append(record)
            self._give_cleared(record, punch_first=False)
            for other in before:
                self._give_cleared(other, punch_first=True)
            self._return_slack()
            return
        self._extents.give(record.offset, record.nbytes)
        self._return_slack()
        if not self._extents.is_clean(record.offset):
            self._clear(record.offset)

    def finish(self) -> list[EntryRecord]:
        """Give back all that is free, the reservation too; return deleted entries that the disk refuses to clear."""
        for record in list(self._uncleared):
            self._give_cleared(record, punch_first=True)
        self.reserve(0)
        return self._uncleared

    def _give_cleared(self, record: EntryRecord, *, punch_first: bool) -> None:
        """Give the range of a durable entry back if it is certain that it is not found again."""
        if self._clear(record.offset, punch_first=punch_first):
            self._uncleared.remove(record)
            self._extents.give(record.offset, record.nbytes)

    def _clear(self, offset: int, *, punch_first: bool = False) -> bool:
        """
        Clear the header of an entry that may stay in the file for a while, and must not be found again.

        Args:
            offset: Where it is.
            punch_first: Whether to give its page back and to overwrite it if that fails; else the other way around.

        Returns:
            Whether it is gone, from the disk too if that is durable.
        """
        for punch in (punch_first, not punch_first):
            with suppress(OSError):
                if self._overwrite(offset, punch=punch):
                    if self._target.durable:
                        self._target.system.synchronize(self._target.descriptor)
                    return True
        return False

    def _overwrite(self, offset: int, *, punch: bool) -> bool:
        if (left := self._size() - offset) <= 0:
            return True
        if punch:
            return self._target.system.punch(self._target.descriptor, offset, UNIT)
        write_fully(self._target.system, self._target.descriptor, bytes(min(FIXED_BYTES, left)), offset)
        return True

    def recover(self) -> list[EntryRecord]:
        """
        Take over what an earlier storage left: of each key the newest entry, by generation; the others go.

        Where there are two, the power may have gone while the newer one was written: it has to be whole.

        Raises:
            StorageError: There are only entries of another version, or the file cannot be read; nothing is given up.

        Memory:
            The arrays of one such entry at a time.
        """
        found, _ = scan(self._target.path, self._target.descriptor)
        for record in found:
            self._extents.occupy(record.offset, record.nbytes)
        self._is_known = True
        self._truncate()
        newest: dict[Key, EntryRecord] = {}
        others: list[EntryRecord] = []
        for record in sorted(found, key=lambda record: record.generation):
            old = newest.get(record.key)
            if old is not None and not self._is_whole(record):
                others.append(record)
                continue
            if old is not None:
                others.append(newest.pop(record.key))
            newest[record.key] = record
        for record in others:
            self.give(record)
        return list(newest.values())

    def _is_whole(self, record: EntryRecord) -> bool:
        try:
            check_entry(self._target, record)
        except StorageError as error:
            # What cannot be read now may be whole.
            if error.errno is not None:
                raise
            return False
        return True

    def _return_slack(self) -> None:
        if self._extents.dirty() >= _SLACK:
            self.return_space()

    def return_space(self) -> None:
        """Give all free ranges beyond the reservation back to the file system."""
        if self._is_known:
            self._truncate()
            self._punch()

    def _truncate(self) -> None:
        self._extents.cut()
        with suppress(OSError):
            if self._size() > max(self._extents.end, self._reserved):
                self._cut()

    def _cut(self) -> None:
        """Give back all blocks behind what is in use or reserved."""
        end = max(self._extents.end, self._reserved)
        with suppress(OSError):
            if self._target.shared:
                self._target.system.punch(self._target.descriptor, end, self._top - end)
            else:
                os.ftruncate(self._target.descriptor, end)
            self._top = end

    def _size(self) -> int:
        """Return the size of the file, or of the part of it."""
        return self._top if self._target.shared else os.fstat(self._target.descriptor).st_size

    def _punch(self) -> None:
        kept: list[Free] = []
        for free in self._extents.free:
            if free.start < self._reserved < free.stop:
                kept.append(Free(free.start, self._reserved, clean=False))
                free.start = self._reserved
            if not free.clean and free.start >= self._reserved:
                free.clean = self._target.system.punch(self._target.descriptor, free.start, free.stop - free.start)
            kept.append(free)
        self._extents.free[:] = kept

    def _allocate(self, offset: int, nbytes: int, record: EntryRecord | None) -> None:
        target = self._target
        try:
            target.system.allocate(target.descriptor, offset, nbytes)
        except OSError as error:
            if error.errno in FULL:
                raise describe_full(target.path, target.descriptor, round_up(nbytes), error, record) from error
            shown = record or EntryRecord(NAME, "", 0, offset, nbytes, nbytes, ())
            raise describe_refusal("allocate", target.path, shown, error) from error

    def _check_room(self, end: int, need: int, record: EntryRecord | None) -> None:
        if self._room is None or end <= self._room:
            return
        raise StorageFullError(
            f"Cannot {describe_need(record)}: it takes {need} bytes ({format_bytes(need)}) in one piece, which would "
            f"end {end - self._room} bytes behind this rank's part of {self._target.path}, {self._room} bytes. Delete "
            "other keys, or raise limit=.",
            end - self._room,
            None if record is None else record.key,
        )

    def _check_quota(self, more: int, record: EntryRecord | None) -> None:
        passed = self._quota.passed_by(more)
        if passed is None:
            return
        limit, missing = passed
        need = more if record is None else record.nbytes
        raise StorageFullError(
            f"Cannot {describe_need(record)}: it takes {need} bytes ({format_bytes(need)}), {limit + missing - need} "
            f"bytes are taken, and the limit of this Disk storage is {limit} bytes. Delete other keys, or raise "
            "limit=.",
            missing,
            None if record is None else record.key,
        )


def scan(path: Path, descriptor: int) -> tuple[list[EntryRecord], list[int]]:
    """
    Return the record of each whole header in a segment file, and where others begin, damaged or not of this file.

    Holes are skipped, and so is what a found entry covers. The data are not read.

    Raises:
        StorageError: There are only entries of another version, or the file cannot be read.
    """
    found: list[EntryRecord] = []
    broken: list[int] = []
    others: set[str] = set()
    size = os.fstat(descriptor).st_size
    offset = 0
    while (offset := _next_data(descriptor, offset, size)) < size and (block := _read(path, descriptor, _SCAN, offset)):
        place = 0
        while place < len(block):
            fixed = block[place : place + FIXED_BYTES]
            record = _read_header(path, descriptor, fixed, offset + place, size)
            if record is None:
                others.update(find_other_version(fixed))
                broken += [offset + place] if seems_header(fixed) else []
                place += UNIT
            else:
                found.append(record)
                place += record.nbytes
        offset += place
    if others and not found:
        raise StorageError(
            f"The entries in {path} are of the version {', '.join(sorted(others))} of their format, and this Ebbtide "
            f"reads {VERSION}. Finish what is there with the Ebbtide that wrote it, or name another directory."
        )
    return found, broken


def read_header(path: Path, descriptor: int, offset: int) -> bytes:
    """Return the bytes of the header at an offset; the first ones of it, if how many there are cannot be believed."""
    left = os.fstat(descriptor).st_size - offset
    length = header_bytes(_read(path, descriptor, FIXED_BYTES, offset), left)
    return _read(path, descriptor, length or FIXED_BYTES, offset)


def _next_data(descriptor: int, offset: int, size: int) -> int:
    if not hasattr(os, "SEEK_DATA"):
        return offset
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA) // UNIT * UNIT
    except OSError as error:
        return size if error.errno == errno.ENXIO else offset


def _read(path: Path, descriptor: int, nbytes: int, offset: int) -> bytes:
    try:
        return os.pread(descriptor, nbytes, offset)
    except OSError as cause:
        raise make_error(
            f"Cannot look for entries at offset {offset} of {path}: {cause.strerror or cause}. Nothing in it was "
            "changed. Check the disk and open it again, or copy what can be read to another one.",
            cause.errno,
        ) from cause


def _read_header(path: Path, descriptor: int, fixed: bytes, offset: int, size: int) -> EntryRecord | None:
    length = header_bytes(fixed, size - offset)
    if length is None:
        return None
    header = _read(path, descriptor, length, offset)
    # A header that is damaged where the checksum does not look is none: there are no such bytes.
    with suppress(ValueError, TypeError, KeyError):
        return decode_header(header, offset) if len(header) == length else None
    return None
