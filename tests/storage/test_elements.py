"""What elements may be: subclasses of arrays, fields with gaps, in any order and on top of each other, no bytes."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide.errors import StorageError
from ebbtide.storage import Disk, Memory
from ebbtide.storage.checksum import compute_crc32c_in_order

MIB = 1 << 20
ALIGNED = np.dtype([("a", "u1"), ("b", "f8"), ("c", "u1", (3,))], align=True)
DTYPES = [
    ALIGNED,
    np.dtype([("outer", ALIGNED), ("z", "i4")], align=True),
    np.dtype([(("title", "x"), "u1"), ("y", "f8", (2, 2))], align=True),
    np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [3, 16], "itemsize": 40}),
    np.dtype({"names": ["a", "b"], "formats": ["f8", "i4"], "offsets": [8, 0], "itemsize": 16}),
    np.dtype({"names": ["a", "b"], "formats": [("i4", (2,)), ALIGNED], "offsets": [4, 0], "titles": ["s", "t"]}),
    np.dtype([("a", "V0"), ("b", "f8")]),
    np.dtype([]),
    np.dtype("V0"),
    np.dtype("S0"),
]


def make(kind, directory):
    """A storage of a kind."""
    if kind == "memory":
        return Memory()
    return Disk(directory, durable=kind != "disk", buffer=MIB << 5 if kind == "buffer" else 0)


KINDS = ["memory", "disk", "durable", "buffer"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3, 1024])
def test_of_a_matrix_the_plain_array_is_stored(kind, size, tmp_path):
    """Of a subclass, small or of 8 MiB, the elements are stored, and a plain array comes back."""
    array = np.ones((size, size))
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(array)
    with make(kind, tmp_path) as storage:
        storage.put(0, [matrix, array.view(np.recarray)])
        for found in storage.get(0):
            assert (type(found), found.shape, found.sum()) == (np.ndarray, (size, size), size**2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_refused(kind, tmp_path):
    """A mask would be lost: the array is refused, and nothing is stored."""
    with make(kind, tmp_path) as storage:
        with pytest.raises(StorageError, match=r"array 1 of key 'm'.* masked.*mask as two arrays"):
            storage.put("m", [np.zeros(3), np.ma.masked_less(np.arange(3), 1)])
        assert storage.keys() == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fields_come_back_as_they_were(kind, dtype, tmp_path):
    """Fields have their names, places and titles, elements their size and bytes, also in a storage opened again."""
    array = np.zeros((5, 4), dtype)
    if dtype.itemsize:
        content = np.random.default_rng(0).integers(0, 128, array.nbytes, np.uint8)
        array = content.view(f"V{dtype.itemsize}").view(dtype).reshape(5, 4)
    with make(kind, tmp_path) as storage:
        storage.put(0, [array, array.T, array[::2]])
        check(storage, array)
        if isinstance(storage, Disk):
            storage.flush()
            check(storage, array)
    if kind in {"durable", "buffer"}:
        with Disk(tmp_path, durable=True) as storage:
            check(storage, array)


def check(storage, array):
    """What is stored is an array and parts of it."""
    for found, expected in zip(storage.get(0), [array, array.T, array[::2]], strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.dtype.fields == expected.dtype.fields
        for name in found.dtype.names or ():
            assert (found[name] == expected[name]).all()
        if isinstance(storage, Disk) and found.dtype.itemsize:
            assert bytes_of(found) == bytes_of(expected)


def bytes_of(array):
    """All bytes, those between fields too."""
    return array.view(f"V{array.itemsize}").tobytes()


@pytest.mark.parametrize("shape", [(64, 64), (600, 600)])
@pytest.mark.parametrize("kind", ["durable", "buffer"])
def test_nothing_else_of_the_memory_is_stored(kind, shape, tmp_path):
    """Between fields lies in the file what lies there in memory, however the array lies, and so for checksums."""
    dtype = np.dtype([("a", "u1"), ("b", "f8")], align=True)
    array = np.zeros(shape[0] * shape[1] * 16, np.uint8).view(dtype).reshape(shape)
    array["a"], array["b"] = 1, 2.0
    for turn, given in enumerate([array, array.T, array[::2, ::2]]):
        dirt = [np.full(array.nbytes, 0xEE, np.uint8) for _ in range(3)]
        del dirt
        with make(kind, tmp_path / str(turn)) as storage:
            storage.put(0, [given])
            assert b"\xee" not in bytes_of(storage.get(0)[0])
        assert b"\xee\xee" not in (tmp_path / str(turn) / "segment").read_bytes()
        copy = np.frombuffer(bytes_of(given), np.uint8).view(dtype).reshape(given.shape)
        assert compute_crc32c_in_order(given) == compute_crc32c_in_order(copy)
