"""
What lies in a segment file: entries, each of a header and the bytes of its arrays in C order.

An entry begins at a multiple of 4096 bytes. Its header says all that there is to know, so that a file can be
listed without any other file: a fixed part (magic number, CRC-32C of the whole header, lengths, the
entry's own offset and its generation; little-endian), what is known before the data are written, in JSON (key, kind,
and of each array dtype and shape), what is known after that, in one row of 32 bytes for each array (stored bytes,
their CRC-32C, shift, codec, and the relative error of a lossy one), and zeros up to the data. Where the checksum or the
offset is another one, there is no entry.

The arrays follow each other; one that is encoded is a row of frames, each behind its length and its CRC-32C. A large
one has 64 bytes of room more, in which one that is not encoded is shifted so that it begins in the file as many bytes
after a multiple of 64 as in memory: NumPy's begin 16 after one, and where that differs a copy to and from the page
cache has to put each piece together from two. So 32 MiB are written in 3.2 ms and read in 5.5, and in 3.6
and 7.5 from the beginning of a page.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import eq
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import StorageError
from ebbtide.storage.base import Key, check_arrays
from ebbtide.storage.checksum import extend_crc32c
from ebbtide.storage.extents import round_up

_FIXED = struct.Struct("<8sIIQQQQ")
_ROW = struct.Struct("<QIB11sd")
NAME = b"EBBTIDE"
"""How an entry begins."""
VERSION = "5"
"""That of what is described here."""
MOST_HEADER = 1 << 28
"""The most bytes of a header: those of some millions of arrays."""
_MAGIC = NAME + VERSION.encode()
# The checksum is that of all that follows it.
_CHECKED_FROM = 12
# Data of this size and more are written by whole pages.
_PAGED = 1 << 16
# What lies like this in the file and in memory is copied without shifting.
_ALIGNMENT = 64
FIXED_BYTES = _FIXED.size


@final
@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """
    What is known of a stored array.

    Args:
        dtype: Its dtype.
        shape: Its shape.
        stored: The number of bytes that are stored.
        checksum: The CRC-32C of the stored bytes.
        codec: How they are encoded, "raw" for the bytes of the array in C order.
        error: The largest absolute error relative to the largest value; 0 unless the codec is lossy.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stored: int
    checksum: int = 0
    codec: str = "raw"
    error: float = 0.0

    @property
    def nbytes(self) -> int:
        """The bytes of the array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


@final
@dataclass(frozen=True, slots=True)
class EntryRecord:
    """
    What is known of an entry.

    Args:
        key: Its key.
        kind: What it is, for people.
        generation: The place of its `put` among all of the storage.
        offset: Where it begins in the file.
        data: The number of bytes of its header, zeros before the data included.
        length: The number of bytes that are written: header and data.
        arrays: Its arrays.
        checksum: The CRC-32C of its header, 0 as long as it was not written.
        description: The JSON of its header, as long as it was not written.
        shifts: Of each array, how far in its room it begins; empty as long as it was not written, and where none is
            shifted.
    """

    key: Key
    kind: str
    generation: int
    offset: int
    data: int
    length: int
    arrays: tuple[ArrayRecord, ...]
    checksum: int = 0
    description: bytes = b""
    shifts: bytes = b""

    def at(self, offset: int) -> EntryRecord:
        """Return the record of the same entry at another place."""
        return replace(self, offset=offset)

    def written(self, arrays: tuple[ArrayRecord, ...], shifts: bytes, checksum: int) -> EntryRecord:
        """Return the record of the same entry with what is known after writing."""
        length = length_of(self.data, arrays)
        shifts = shifts if any(shifts) else b""
        return replace(self, length=length, arrays=arrays, checksum=checksum, description=b"", shifts=shifts)

    def starts(self) -> list[int]:
        """Return where in the entry each array begins; it must be written."""
        rooms = list(accumulate([room_for(array.stored) for array in self.arrays], initial=self.data))[:-1]
        return [room + shift for room, shift in zip(rooms, self.shifts, strict=True)] if self.shifts else rooms

    @property
    def nbytes(self) -> int:
        """The bytes that the entry takes from the file: whole units."""
        return round_up(self.length)

    @property
    def memory(self) -> int:
        """The bytes of its arrays in memory."""
        return sum([array.nbytes for array in self.arrays])


def length_of(data: int, arrays: Sequence[ArrayRecord]) -> int:
    """Return the bytes of an entry with a header of *data* bytes; they do not depend on where its arrays begin."""
    # A list, as a generator takes three times as long.
    return data + sum([room_for(array.stored) for array in arrays])


def room_for(stored: int) -> int:
    """Return the bytes of an entry in which those of an array lie."""
    return stored + _ALIGNMENT if stored >= _PAGED else stored


def shift_of(array: NDArray[Any], room: int) -> int:
    """
    Return how far in its room an array begins: 1 to 64 bytes, or 0 for a small one.

    Args:
        array: What is stored.
        room: Where in the entry its room begins.
    """
    if array.nbytes < _PAGED:
        return 0
    # What is packed for writing is so at the beginning of a page.
    address = array.__array_interface__["data"][0] if array.flags.c_contiguous else 0
    return _ALIGNMENT - (room - address) % _ALIGNMENT


def plan_entry(key: Key, kind: str, generation: int, arrays: Sequence[NDArray[Any]]) -> EntryRecord:
    """
    Return the record of an entry that is to be written at a place that is not yet known.

    Args:
        key: Its key.
        kind: What it is, for people.
        generation: The place of its `put` among all of the storage.
        arrays: Any shapes, strides and dtypes without Python objects.

    Raises:
        StorageError: As `check_arrays`, or the header would be too long to be found again.
    """
    check_arrays(key, arrays, kind)
    records = tuple([ArrayRecord(array.dtype, array.shape, array.nbytes) for array in arrays])
    description = json.dumps([key, kind, [[_format_dtype(array.dtype), array.shape] for array in arrays]]).encode()
    size = FIXED_BYTES + len(description) + _ROW.size * len(records)
    # Large entries end with a page.
    stored, rooms = sum([array.nbytes for array in arrays]), length_of(0, records)
    data = round_up(size, 64) if stored < _PAGED else round_up(size + rooms) - rooms
    if data > MOST_HEADER:
        raise StorageError(
            f"Cannot store {len(records)} arrays under one key: to describe them and the key takes {data} bytes, and "
            f"{MOST_HEADER} are the most. Use several keys, or a shorter one."
        )
    return EntryRecord(key, kind, generation, 0, data, length_of(data, records), records, 0, description)


def entry_nbytes(arrays: Sequence[NDArray[Any]], key: Key = "") -> int:
    """
    Return the bytes that arrays take from a disk: header, data, and what is lost to alignment.

    Args:
        arrays: What is to be stored; only shapes and dtypes matter.
        key: The key; a long one takes more.

    Example:
        >>> entry_nbytes([np.zeros(1000)])
        8192
    """
    return plan_entry(key, "", 0, arrays).nbytes


def encode_header(planned: EntryRecord, arrays: Sequence[ArrayRecord], shifts: Sequence[int]) -> bytes:
    """
    Return the header of an entry, `planned.data` bytes, its checksum included.

    Args:
        planned: The record with its place.
        arrays: What is known of its arrays after they were written.
        shifts: Of each array, how far in its room it begins.
    """
    rows = [
        _ROW.pack(array.stored, array.checksum, shift, array.codec.encode(), array.error)
        for array, shift in zip(arrays, shifts, strict=True)
    ]
    body = b"".join([planned.description, *rows])
    fixed = (planned.data, planned.offset, planned.generation, length_of(planned.data, arrays))
    rest = (_FIXED.pack(_MAGIC, 0, len(body), *fixed)[_CHECKED_FROM:] + body).ljust(planned.data - _CHECKED_FROM, b"\0")
    return _MAGIC + extend_crc32c(0, rest).to_bytes(4, "little") + rest


def header_bytes(fixed: bytes, left: int) -> int | None:
    """
    Return the length of the header that begins with some bytes; None if none begins there.

    Args:
        fixed: The first `FIXED_BYTES` of it.
        left: The bytes of the file from there on: a length that was changed is not believed.
    """
    if len(fixed) < FIXED_BYTES or not fixed.startswith(_MAGIC):
        return None
    _, _, body, data, *_ = _FIXED.unpack(fixed[:FIXED_BYTES])
    return data if FIXED_BYTES + body <= data <= min(left, MOST_HEADER) else None


def find_other_version(fixed: bytes) -> list[str]:
    """Return the version of the header that begins with these bytes, if it is another one; else nothing."""
    version = fixed[len(NAME) : len(_MAGIC)]
    is_other = fixed.startswith(NAME) and version.isdigit() and version != VERSION.encode()
    return [version.decode()] if is_other else []


def seems_header(begin: bytes) -> bool:
    """Return whether bytes begin as a header does, of which one byte may be another one."""
    return sum(map(eq, begin, _MAGIC)) >= len(_MAGIC) - 1


def is_damaged(header: bytes) -> bool:
    """
    Return whether bytes that begin as a header does are none that was written, at this place or another one.

    Args:
        header: As many bytes as `header_bytes` said, or the first ones if it said nothing.
    """
    checksum = int.from_bytes(header[len(_MAGIC) : _CHECKED_FROM], "little")
    is_whole = header.startswith(_MAGIC) and extend_crc32c(0, header[_CHECKED_FROM:]) == checksum
    return seems_header(header) and not is_whole


def decode_header(header: bytes, offset: int) -> EntryRecord | None:
    """
    Return the record of a whole header; None if it is not one of this place.

    Args:
        header: As many bytes as `header_bytes` said.
        offset: Where they were found.
    """
    _, checksum, body, data, place, generation, length = _FIXED.unpack(header[:FIXED_BYTES])
    if extend_crc32c(0, header[_CHECKED_FROM:]) != checksum or place != offset or data != len(header):
        return None
    # The rows follow the text; the number of arrays is in the text, which ends where the rows begin.
    end = FIXED_BYTES + body
    (key, kind, described), size = json.JSONDecoder().raw_decode(header[FIXED_BYTES:end].decode("latin-1"))
    rows = list(_ROW.iter_unpack(header[FIXED_BYTES + size : end]))
    arrays = tuple([
        ArrayRecord(_parse_dtype(dtype), tuple(shape), stored, check, codec.rstrip(b"\0").decode(), error)
        for (dtype, shape), (stored, check, _, codec, error) in zip(described, rows, strict=True)
    ])  # fmt: skip
    if length_of(data, arrays) != length:
        return None
    planned = EntryRecord(key, kind, generation, offset, data, length, arrays)
    return planned.written(arrays, bytes([row[2] for row in rows]), extend_crc32c(0, header))


def _format_dtype(dtype: np.dtype[Any]) -> Any:
    if dtype.names is None:
        return dtype.str
    with suppress(ValueError):
        return np.lib.format.dtype_to_descr(dtype)
    # Fields that overlap, or lie in another order.
    fields = [cast("Any", dtype.fields)[name] for name in dtype.names]
    return {
        "names": dtype.names,
        "formats": [_format_dtype(field[0].base) for field in fields],
        "shapes": [field[0].shape for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
    }


def _parse_dtype(description: Any) -> np.dtype[Any]:
    if isinstance(description, dict):
        found = cast("dict[str, Any]", description)
        inner = [_parse_dtype(inner) for inner in found["formats"]]
        formats = [np.dtype((base, tuple(shape))) for base, shape in zip(inner, found.pop("shapes"), strict=True)]
        return np.dtype(cast("Any", {**found, "formats": formats}))
    return np.lib.format.descr_to_dtype(_restore_tuples(description))


def _restore_tuples(description: Any) -> Any:
    """JSON makes lists of tuples, which NumPy takes for something else."""
    if isinstance(description, str):
        return description
    return [
        (tuple(cast("list[str]", name)) if isinstance(name, list) else name, _restore_tuples(inner), *map(tuple, shape))
        for name, inner, *shape in cast("list[Any]", description)
    ]
