"""
Files of arrays: one header, then the bytes of each array in C order.

The header is 16 bytes (magic number, length of the description, its CRC-32C; little-endian) and a description
in JSON: for each array its dtype, its shape and the CRC-32C of its bytes. It is written last, so a file that
was not written to its end starts with zeros.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import StorageError
from ebbtide.storage.base import Key
from ebbtide.storage.checksum import BLOCK_BYTES, Bytes, extend_crc32c, iterate_blocks, view_bytes

_HEAD = struct.Struct("<8sII")
_MAGIC = b"EBBTIDE1"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRecord:
    """What is known of a stored array: dtype, shape, bytes and the CRC-32C of its bytes in C order."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    checksum: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What is known of a file: its path, its key, its size in bytes and its arrays."""

    path: Path
    key: Key
    nbytes: int
    arrays: tuple[ArrayRecord, ...]


def describe_file(path: Path, key: Key, arrays: Sequence[NDArray[Any]]) -> FileRecord:
    """
    Return the record of a file that is to be written; its checksums are not yet known, and 0.

    Args:
        path: The path of the file.
        key: The key, for errors.
        arrays: What is to be written.
    """
    records = tuple(
        ArrayRecord(dtype=array.dtype, shape=array.shape, nbytes=array.nbytes, checksum=0) for array in arrays
    )
    size = len(_make_header(records)) + sum(record.nbytes for record in records)
    return FileRecord(path=path, key=key, nbytes=size, arrays=records)


def write_file(planned: FileRecord, arrays: Sequence[NDArray[Any]]) -> FileRecord:
    """
    Write a new file; remove it again if anything goes wrong, an interrupt included.

    Args:
        planned: What `describe_file` returned for these arrays.
        arrays: Any shapes, strides and dtypes without Python objects.

    Returns:
        The record with the checksums.

    Raises:
        StorageError: The operating system refuses; `errno` says why.

    Memory:
        Contiguous arrays are written from their own memory; a buffer of at most 1 MiB serves the others.
    """
    path = planned.path
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _describe_refusal("create", planned, 0, error) from error
    try:
        try:
            return _write_content(descriptor, planned, arrays)
        finally:
            os.close(descriptor)
    except BaseException as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise _describe_refusal("write", planned, 0, error) from error
        raise


def read_file(record: FileRecord) -> list[NDArray[Any]]:
    """
    Read a file into fresh arrays and check every byte of it.

    Args:
        record: What `write_file` returned.

    Returns:
        Writable, C-contiguous arrays.

    Raises:
        StorageError: The file is missing, has another size, was changed, or cannot be read.

    Memory:
        The arrays themselves: the operating system reads into them.
    """
    try:
        descriptor = os.open(record.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _describe_refusal("open", record, 0, error) from error
    try:
        return _read_content(descriptor, record)
    finally:
        os.close(descriptor)


def _make_header(records: Sequence[ArrayRecord]) -> bytes:
    # Checksums of fixed width keep the length of the header known before the data are written.
    rows = [[record.dtype.str, record.shape, f"{record.checksum:08x}"] for record in records]
    description = json.dumps(rows).encode()
    return _HEAD.pack(_MAGIC, len(description), extend_crc32c(0, description)) + description


def _write_content(descriptor: int, planned: FileRecord, arrays: Sequence[NDArray[Any]]) -> FileRecord:
    offset = len(_make_header(planned.arrays))
    written: list[ArrayRecord] = []
    for known, array in zip(planned.arrays, arrays, strict=True):
        checksum = 0
        for block in iterate_blocks(array):
            checksum = extend_crc32c(checksum, block)
            _write_block(descriptor, block, offset, planned)
            offset += block.size
        written.append(
            ArrayRecord(dtype=known.dtype, shape=known.shape, nbytes=known.nbytes, checksum=checksum),
        )
    header = np.frombuffer(_make_header(written), dtype=np.uint8)
    _write_block(descriptor, header, 0, planned)
    return FileRecord(path=planned.path, key=planned.key, nbytes=planned.nbytes, arrays=tuple(written))


def _write_block(descriptor: int, block: Bytes, offset: int, planned: FileRecord) -> None:
    done = 0
    while done < block.size:
        try:
            count = os.pwrite(descriptor, block[done:].data, offset + done)
        except OSError as error:
            raise _describe_refusal("write", planned, offset + done, error) from error
        if count == 0:
            raise StorageError(
                f"Cannot write the file {planned.path} of key {planned.key!r} at offset {offset + done}: the "
                "operating system took 0 bytes. Check the file system."
            )
        done += count


def _read_content(descriptor: int, record: FileRecord) -> list[NDArray[Any]]:
    size = os.fstat(descriptor).st_size
    if size != record.nbytes:
        raise _describe_damage(
            record, min(size, record.nbytes), f"it has {size} bytes, but {record.nbytes} were written"
        )
    expected = _make_header(record.arrays)
    header = np.empty(len(expected), dtype=np.uint8)
    _read_block(descriptor, header, 0, record)
    if header.tobytes() != expected:
        raise _describe_damage(record, 0, "its header is not the one that was written")
    offset = len(expected)
    arrays: list[NDArray[Any]] = []
    for place, known in enumerate(record.arrays):
        array = np.empty(known.shape, dtype=known.dtype)
        content = view_bytes(array)
        checksum = 0
        for start in range(0, content.size, BLOCK_BYTES):
            block = content[start : start + BLOCK_BYTES]
            _read_block(descriptor, block, offset + start, record)
            # While the block is still in the cache.
            checksum = extend_crc32c(checksum, block)
        if checksum != known.checksum:
            raise _describe_damage(
                record,
                offset,
                f"the {known.nbytes} bytes of array {place} have the CRC-32C {checksum:#010x}, "
                f"but {known.checksum:#010x} was written",
            )
        offset += content.size
        arrays.append(array)
    return arrays


def _read_block(descriptor: int, block: Bytes, offset: int, record: FileRecord) -> None:
    done = 0
    while done < block.size:
        try:
            count = os.preadv(descriptor, [block[done:].data], offset + done)
        except OSError as error:
            raise _describe_refusal("read", record, offset + done, error) from error
        if count == 0:
            raise _describe_damage(
                record, offset + done, f"it ends there, but {record.nbytes} bytes were written"
            )
        done += count


def _describe_refusal(verb: str, record: FileRecord, offset: int, cause: OSError) -> StorageError:
    error = StorageError(
        f"Cannot {verb} the file {record.path} ({record.nbytes} bytes) of key {record.key!r} at offset "
        f"{offset}: {cause.strerror or cause}. Check that its directory still exists, that it may be "
        "written, and that there is room."
    )
    error.errno = cause.errno
    return error


def _describe_damage(record: FileRecord, offset: int, reason: str) -> StorageError:
    return StorageError(
        f"The file {record.path} of key {record.key!r} is damaged at offset {offset}: {reason}. Something "
        "else changed it, or the disk is faulty. Recompute what it held."
    )
