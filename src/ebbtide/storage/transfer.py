"""Writing and reading one entry of a segment file; what a thread needs for it and nothing else."""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import StorageError
from ebbtide.storage.checksum import BLOCK_BYTES, Bytes, begin_checksums, extend_crc32c, iterate_blocks, view_bytes
from ebbtide.storage.codecs import Codec, Codecs, decode
from ebbtide.storage.entries import ArrayRecord, EntryRecord, encode_header, room_for, shift_of
from ebbtide.storage.messages import describe_damage, describe_full, describe_refusal
from ebbtide.storage.pages import JOINED, Pages
from ebbtide.storage.system import System, count_processors, read_fully, write_fully

if TYPE_CHECKING:
    from ebbtide.storage._crc32c import ChecksumsBeside

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
TROUBLE = FULL | {errno.EIO}
"""What the system says of a disk that has no room, or works no more; anything else is a mistake in the directory."""
LARGE_BLOCK = 8 << 20
"""The most bytes that are handed over at a time where two threads have to take turns in the interpreter after each."""
BESIDE_BLOCK = 2 << 20
"""The same where a thread beside takes checksums: what one of both has read is in the cache that all cores share."""
LARGE = 4 << 20
"""From this size on, bytes in memory, an entry is worth a thread: to start one takes 0.1 ms, its checksums 0.15 ms."""


# Before each frame of an encoded array: its length, and its checksum, without which nothing is given to a decoder.
_FRAME = struct.Struct("<II")


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
        others, and with a codec `SCRATCH`. Small entries are copied as a whole, 64 KiB.
    """
    codec = target.codecs.of(planned.kind)
    seconds = 0.0

    def write(block: Bytes, place: int) -> None:
        nonlocal seconds
        begun = time.perf_counter()  # what a codec takes is none of the disk's
        write_fully(target.system, target.descriptor, block, planned.offset + place)
        seconds += time.perf_counter() - begun

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
        record, shift = None if codec is None else _write_encoded(pages, codec, known, array, room), 0
        if record is None:
            record, shift = _write_raw(pages, planned, known, array, room, block_bytes)
        room += room_for(record.stored)
        records.append(record)
        shifts.append(shift)
    header = encode_header(planned, records, shifts)
    pages.finish(header, is_exact=codec is None)
    begun = time.perf_counter()
    if target.durable:
        target.system.synchronize(target.descriptor)
    if codec is not None:
        codec.wrote(room - planned.data, seconds + time.perf_counter() - begun)
    return planned.written(tuple(records), bytes(shifts), extend_crc32c(0, header))


def _write_raw(
    pages: Pages, planned: EntryRecord, known: ArrayRecord, array: NDArray[Any], room: int, block_bytes: int
) -> tuple[ArrayRecord, int]:
    """Write the bytes of an array as they are; return its record, and how far in its room it begins."""
    pages.begin(room, array.nbytes)
    shift, checksum = shift_of(array, room), 0
    place = room + shift
    for block in _blocks_to_write(array, planned.offset + place, block_bytes):
        # While the block is in the cache of the processor.
        checksum = extend_crc32c(checksum, block)
        pages.write(block, place)
        place += block.size
    return ArrayRecord(known.dtype, known.shape, array.nbytes, checksum), shift


def _write_encoded(
    pages: Pages, codec: Codec, known: ArrayRecord, array: NDArray[Any], room: int
) -> ArrayRecord | None:  # fmt: skip
    """
    Write the frames of an array, each behind its length and its checksum.

    Returns:
        Its record; None if it is to be stored as it is, and nothing of it is there.
    """
    frames = codec.encode(array)
    if frames is None:
        return None
    mark = pages.mark()
    pages.begin(room, array.nbytes)
    place, checksum, error, largest = room, 0, 0.0, 0.0
    for frame in frames:
        if frame is None or place + _FRAME.size + frame.content.size - room >= array.nbytes:
            pages.back(mark, room)
            return None
        before = np.frombuffer(_FRAME.pack(frame.content.size, extend_crc32c(0, frame.content)), np.uint8)
        for part in (before, frame.content):
            checksum = extend_crc32c(checksum, part)
            pages.write(part, place)
            place += part.size
        error, largest = max(error, frame.error), max(largest, frame.largest)
    relative = float(error / largest) if largest else 0.0
    return ArrayRecord(known.dtype, known.shape, place - room, checksum, codec.name, relative)


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
        return iterate_blocks(array)
    return _blocks_of_file(view_bytes(np.ascontiguousarray(array)), offset, nbytes)


def _blocks_of_file(content: Bytes, offset: int, nbytes: int) -> Iterator[Bytes]:
    """Yield bytes in blocks that end where those of the file do, whose pages may be large there."""
    start = 0
    while start < content.size:
        block = content[start : start + nbytes - (offset + start) % nbytes]
        yield block
        start += block.size


def empty_for(record: EntryRecord) -> list[NDArray[Any]]:
    """Return arrays that those of an entry are read into."""
    return [np.empty(known.shape, known.dtype) for known in record.arrays]


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
        StorageError: It was changed or cut off, without `errno`; or it cannot be read, with that.

    Memory:
        The arrays themselves, as the operating system reads into them; of encoded ones a frame, and what it is
        decoded to.
    """
    arrays = empty_for(record) if buffers is None else buffers
    if all(known.codec == "raw" for known in record.arrays):
        _read_stored(target, record, arrays, nbytes, alone=alone)
        return arrays
    header, checksums = np.empty(record.data, np.uint8), list[int]()
    _fill(target, record, [header], record.offset)
    for place, (known, start, array) in enumerate(zip(record.arrays, record.starts(), arrays, strict=True)):
        if known.codec == "raw":
            checksums.append(_read_blocks(target, record, start, view_bytes(array), nbytes))
        else:
            frames = _Frames(target, record, place, start)
            _decode(target, record, known, array, frames)
            checksums.append(frames.checksum)
    _check(target, record, header, checksums)
    return arrays


def check_entry(target: Target, record: EntryRecord) -> None:
    """
    Read an entry for nothing but to check it.

    Raises:
        StorageError: As `read_entry`, but for what cannot be decoded.
    """
    _read_stored(target, record, [np.empty(known.stored, np.uint8) for known in record.arrays], BLOCK_BYTES, alone=True)


def _read_stored(target: Target, record: EntryRecord, buffers: list[NDArray[Any]], nbytes: int, *, alone: bool) -> None:
    """Read the bytes of an entry as they are stored, and check them."""
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
            starts = zip(record.starts(), views, strict=True)
            checksums = [_read_blocks(target, record, start, view, nbytes) for start, view in starts]
    _check(target, record, header, checksums)


@final
class _Frames:
    """
    The frames of an encoded array, each read and checked before it is handed out.

    Args:
        target: Where from.
        record: The entry.
        place: Which array of it.
        start: Where in the entry the array begins.

    Attributes:
        checksum: That of what has been read.
    """

    def __init__(self, target: Target, record: EntryRecord, place: int, start: int) -> None:
        self._target, self._record, self._place = target, record, place
        self._offset, self._left, self.checksum = record.offset + start, record.arrays[place].stored, 0

    def __iter__(self) -> Iterator[Bytes]:
        while self._left:
            size, checksum = _FRAME.unpack(self._read(min(_FRAME.size, self._left)).tobytes().ljust(_FRAME.size))
            begin = self._offset
            content = self._read(min(size, self._left))
            if content.size != size or extend_crc32c(0, content) != checksum:
                reason = f"a frame of array {self._place} has not the CRC-32C before it, {checksum:#010x}"
                raise describe_damage(self._target.path, self._record, begin, reason)
            yield content

    def _read(self, nbytes: int) -> Bytes:
        found = np.empty(nbytes, np.uint8)
        _fill(self._target, self._record, [found], self._offset)
        self.checksum = extend_crc32c(self.checksum, found)
        self._offset, self._left = self._offset + nbytes, self._left - nbytes
        return found


def _read_blocks(target: Target, record: EntryRecord, start: int, view: Bytes, nbytes: int) -> int:
    """Read an array and return its checksum."""
    offset, checksum = record.offset + start, 0
    for block in _blocks_of_file(view, offset, nbytes):
        _fill(target, record, [block], offset)
        checksum = extend_crc32c(checksum, block)
        offset += block.size
    return checksum


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


def _check(target: Target, record: EntryRecord, header: Bytes, checksums: Sequence[int]) -> None:
    if extend_crc32c(0, header) != record.checksum:
        raise describe_damage(target.path, record, record.offset, "its header is not the one that was written")
    for place, (known, found) in enumerate(zip(record.arrays, checksums, strict=True)):
        if found != known.checksum:
            reason = (
                f"the {known.stored} bytes of array {place} have the CRC-32C {found:#010x}, but "
                f"{known.checksum:#010x} was written"
            )
            raise describe_damage(target.path, record, record.offset + record.starts()[place], reason)


def _decode(target: Target, record: EntryRecord, known: ArrayRecord, array: NDArray[Any], frames: _Frames) -> None:
    try:
        decode(known.codec, array, iter(frames))
    except ImportError as error:
        raise StorageError(
            f"Cannot decode key {record.key!r} in {target.path}: it is compressed by {known.codec}, and {error}. What "
            "is stored is whole. Install ebbtide[compress], and read it again."
        ) from error
    except (ValueError, RuntimeError) as error:
        raise describe_damage(target.path, record, record.offset, f"it cannot be decoded: {error}") from error
