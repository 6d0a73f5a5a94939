"""Writing and reading one entry of a segment file; what a thread needs for it and nothing else."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import StorageError
from ebbtide.storage.checksum import BLOCK_BYTES, Bytes, begin_checksums, extend_crc32c, iterate_blocks, view_bytes
from ebbtide.storage.codecs import Codecs, decode, stopwatch
from ebbtide.storage.entries import ArrayRecord, EntryRecord, encode_header, room_for, shift_of
from ebbtide.storage.failures import EntryLostError, StorageFullError, make_error
from ebbtide.storage.pages import JOINED, Pages
from ebbtide.storage.system import System, count_processors, free_bytes, read_fully, write_fully

if TYPE_CHECKING:
    from ebbtide.storage._crc32c import ChecksumsBeside

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
LARGE_BLOCK = 8 << 20
"""The most bytes that are handed over at a time where two threads have to take turns in the interpreter after each."""
BESIDE_BLOCK = 2 << 20
"""The same where a thread beside takes checksums: what one of both has read is in the cache that all cores share."""
LARGE = 4 << 20
"""From this size on, bytes in memory, an entry is worth a thread: to start one takes 0.1 ms, its checksums 0.15 ms."""


@final
@dataclass(frozen=True, slots=True)
class Target:
    """
    Where entries are written.

    Args:
        path: The segment file, for errors.
        descriptor: Its descriptor.
        system: The operating system.
        codecs: How arrays are encoded.
        durable: Whether an entry is on the disk before its write ends. Where the power goes before that, the header may
            be there without the data, which their checksums tell.
        shared: Whether other processes have parts of the file; offsets are those in the part then.
    """

    path: Path
    descriptor: int
    system: System
    codecs: Codecs
    durable: bool
    shared: bool = False


def write_entry(
    target: Target,
    planned: EntryRecord,
    arrays: Sequence[NDArray[Any]],
    block_bytes: int = BLOCK_BYTES,
    *,
    alone: bool = True,
) -> EntryRecord:
    """
    Write an entry, its header last, so that an entry which was not written to its end is none.

    Args:
        target: Where to.
        planned: The record with its place.
        arrays: Those of the record.
        block_bytes: The most bytes that are handed over at a time.
        alone: False to have the checksums of a large entry taken by a second thread meanwhile, if there is a core
            for it.

    Returns:
        The record as it was written.

    Raises:
        OSError: The operating system refuses.

    Memory:
        Arrays in C order are written from their own memory, but for two pages; a buffer of at most 1 MiB serves the
        others, and the encoded bytes of one array if there is a codec. Small entries are copied as a whole, 64 KiB.
    """
    codec = target.codecs.of(planned.kind)
    seconds = 0.0

    def write(block: Bytes, place: int) -> None:
        write_fully(target.system, target.descriptor, block, planned.offset + place)

    pages = Pages(planned, write, durable=target.durable)
    records: list[ArrayRecord] = []
    shifts = bytearray()
    room = planned.data
    pairs = list(zip(planned.arrays, arrays, strict=True))
    worth = not alone and codec is None and _is_worth_a_thread(planned, arrays)
    beside = begin_checksums(arrays) if worth else None
    if beside is not None:
        records, pairs = _write_beside(pages, planned, arrays, beside, shifts), []
    for known, array in pairs:
        encoded = None if codec is None else codec.encode(array)
        content, name, error = (
            (array, "raw", 0.0) if encoded is None else (encoded.content, encoded.codec, encoded.error)
        )
        begun = stopwatch()
        pages.begin(room, content.nbytes)
        shifts.append(shift_of(content, room))
        place, checksum = room + shifts[-1], 0
        for block in _blocks_to_write(content, planned.offset + place, block_bytes):
            # While the block is in the cache of the processor.
            checksum = extend_crc32c(checksum, block)
            pages.write(block, place)
            place += block.size
        seconds += stopwatch() - begun
        room += room_for(content.nbytes)
        records.append(ArrayRecord(known.dtype, known.shape, content.nbytes, checksum, name, error))
    header = encode_header(planned, records, shifts)
    begun = stopwatch()
    pages.finish(header, is_exact=codec is None)
    if target.durable:
        target.system.synchronize(target.descriptor)
    if codec is not None:
        codec.wrote(room - planned.data, seconds + stopwatch() - begun)
    return planned.written(tuple(records), bytes(shifts), extend_crc32c(0, header))


def write_or_explain(target: Target, planned: EntryRecord, arrays: Sequence[NDArray[Any]]) -> EntryRecord:
    """
    Write an entry as `write_entry` does.

    Raises:
        StorageError: The operating system refuses.
    """
    try:
        return write_entry(target, planned, arrays, alone=False)
    except OSError as cause:
        if cause.errno in FULL:
            # What was written of it is no entry, and counts as free.
            target.system.punch(target.descriptor, planned.offset, planned.nbytes)
            raise describe_full(target.path, target.descriptor, planned.nbytes, cause, planned) from cause
        raise describe_refusal("write", target.path, planned, cause) from cause


def _is_worth_a_thread(planned: EntryRecord, arrays: Sequence[NDArray[Any]]) -> bool:
    contiguous = all(array.flags.c_contiguous for array in arrays)
    return contiguous and planned.memory >= LARGE and count_processors() > 1


def _write_beside(
    pages: Pages, planned: EntryRecord, arrays: Sequence[NDArray[Any]], beside: ChecksumsBeside, shifts: bytearray
) -> list[ArrayRecord]:
    """Write arrays, with the checksums that a thread takes meanwhile; note the shifts and return the records."""
    room = planned.data
    with beside:
        for array in arrays:
            pages.begin(room, array.nbytes)
            shifts.append(shift_of(array, room))
            place = room + shifts[-1]
            for block in _blocks_of_file(view_bytes(array), planned.offset + place, BESIDE_BLOCK):
                beside.begin(block.size)
                pages.write(block, place)
                place += block.size
            room += room_for(array.nbytes)
        given = zip(planned.arrays, arrays, beside.wait(), strict=True)
        return [ArrayRecord(known.dtype, known.shape, array.nbytes, found, "raw", 0.0) for known, array, found in given]


def _blocks_to_write(array: NDArray[Any], offset: int, nbytes: int) -> Iterator[Bytes]:
    if array.nbytes > JOINED and not array.flags.c_contiguous:
        return iterate_blocks(array, nbytes)
    return _blocks_of_file(view_bytes(np.ascontiguousarray(array)), offset, nbytes)


def _blocks_of_file(content: Bytes, offset: int, nbytes: int) -> Iterator[Bytes]:
    """Yield bytes in blocks that end where those of the file do, whose pages may be large there."""
    start = 0
    while start < content.size:
        block = content[start : start + nbytes - (offset + start) % nbytes]
        yield block
        start += block.size


def empty_for(record: EntryRecord) -> list[NDArray[Any]]:
    """Return arrays that what is stored of an entry is read into: its own, or bytes of those that are encoded."""
    return [
        np.empty(known.shape, known.dtype) if known.codec == "raw" else np.empty(known.stored, np.uint8)
        for known in record.arrays
    ]


def read_entry(
    target: Target,
    record: EntryRecord,
    nbytes: int = BLOCK_BYTES,
    *,
    alone: bool = True,
    buffers: list[NDArray[Any]] | None = None,
) -> list[NDArray[Any]]:
    """
    Read an entry and check every byte of it.

    Args:
        target: Where from.
        record: What `write_entry` returned.
        nbytes: The most bytes that are asked for at a time.
        alone: False to have the checksums of a large entry taken by a second thread meanwhile, as in `write_entry`.
        buffers: What `empty_for` returned, to read into; None to have it done here.

    Returns:
        Writable, C-contiguous arrays.

    Raises:
        StorageError: It was changed or cut off, or cannot be read.

    Memory:
        The arrays themselves, as the operating system reads into them; of an encoded array the stored bytes too.
    """
    found = read_stored(target, record, nbytes, alone=alone, buffers=buffers)
    return [
        buffer if known.codec == "raw" else _decode(target, record, known, buffer)
        for known, buffer in zip(record.arrays, found, strict=True)
    ]


def read_stored(
    target: Target,
    record: EntryRecord,
    nbytes: int = BLOCK_BYTES,
    *,
    alone: bool = True,
    buffers: list[NDArray[Any]] | None = None,
) -> list[NDArray[Any]]:
    """
    Read and check an entry as `read_entry` does; what is encoded is returned as it is stored.

    Raises:
        StorageError: It was changed or cut off, without `errno`; or it cannot be read, with that.
    """
    buffers = empty_for(record) if buffers is None else buffers
    views = [view_bytes(buffer) for buffer in buffers]
    header = np.empty(record.data, np.uint8)
    if record.length <= JOINED:
        _fill(target, record, [header, *views], record.offset)
        checksums = [extend_crc32c(0, view) for view in views]
    else:
        _fill(target, record, [header], record.offset)
        beside = None if alone or not _is_worth_a_thread(record, views) else begin_checksums(views)
        if beside is not None:
            checksums = _read_beside(target, record, views, beside)
        else:
            checksums = _read_blocks(target, record, views, nbytes)
    if extend_crc32c(0, header) != record.checksum:
        raise describe_damage(target.path, record, record.offset, "its header is not the one that was written")
    _check(target, record, checksums)
    return buffers


def _read_blocks(target: Target, record: EntryRecord, views: Sequence[Bytes], nbytes: int) -> list[int]:
    """Read arrays and return their checksums."""
    checksums: list[int] = []
    for start, view in zip(record.starts(), views, strict=True):
        offset, checksum = record.offset + start, 0
        for block in _blocks_of_file(view, offset, nbytes):
            _fill(target, record, [block], offset)
            checksum = extend_crc32c(checksum, block)
            offset += block.size
        checksums.append(checksum)
    return checksums


def _read_beside(target: Target, record: EntryRecord, views: Sequence[Bytes], beside: ChecksumsBeside) -> list[int]:
    """Read arrays and return their checksums, which a thread takes of each block while the next one is read."""
    with beside:
        for start, view in zip(record.starts(), views, strict=True):
            offset = record.offset + start
            for block in _blocks_of_file(view, offset, BESIDE_BLOCK):
                _fill(target, record, [block], offset)
                beside.begin(block.size)
                offset += block.size
        return beside.wait()


def _fill(target: Target, record: EntryRecord, buffers: Sequence[NDArray[Any]], offset: int) -> None:
    try:
        done = read_fully(target.system, target.descriptor, buffers, offset)
    except OSError as error:
        raise describe_refusal("read", target.path, record, error) from error
    if done < sum(buffer.nbytes for buffer in buffers):
        reason = f"the file ends there, but {record.length} bytes were written from {record.offset} on"
        raise describe_damage(target.path, record, offset + done, reason)


def _check(target: Target, record: EntryRecord, checksums: Sequence[int]) -> None:
    for place, (known, found) in enumerate(zip(record.arrays, checksums, strict=True)):
        if found != known.checksum:
            reason = (
                f"the {known.stored} bytes of array {place} have the CRC-32C {found:#010x}, but "
                f"{known.checksum:#010x} was written"
            )
            raise describe_damage(target.path, record, record.offset + record.starts()[place], reason)


def _decode(target: Target, record: EntryRecord, known: ArrayRecord, content: NDArray[Any]) -> NDArray[Any]:
    try:
        return decode(content, known.codec, known.dtype, known.shape)
    except ImportError as error:
        raise StorageError(
            f"Cannot decode key {record.key!r} in {target.path}: it is compressed by {known.codec}, and {error}. What "
            "is stored is whole. Install ebbtide[compress], and read it again."
        ) from error
    except (ValueError, RuntimeError) as error:
        raise describe_damage(target.path, record, record.offset, f"it cannot be decoded: {error}") from error


def describe_refusal(verb: str, path: Path, record: EntryRecord, cause: OSError) -> StorageError:
    """Return the error for a call that the operating system refused."""
    return make_error(
        f"Cannot {verb} key {record.key!r} ({record.length} bytes) at offset {record.offset} of {path}: "
        f"{cause.strerror or cause}. Check the disk and the rights of the directory.",
        cause.errno,
    )


def describe_full(
    path: Path, descriptor: int, needed: int, cause: OSError, record: EntryRecord | None
) -> StorageFullError:
    """Return the error for a disk without room for *needed* more bytes."""
    is_limited = cause.errno == errno.EFBIG  # however much is free
    free = free_bytes(descriptor)
    missing = needed if is_limited or free is None or free >= needed else needed - free
    what = "reserve room" if record is None else f"store key {record.key!r}"
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
        f"Cannot {what} in {path}: {needed} bytes more are needed, {why}",
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
