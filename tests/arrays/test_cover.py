"""What arrays cover of memory is stored once, and they come back from a copy of it as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.cover import cover

V = np.linspace(0.2, 1.1, 240)
M = V.reshape(12, 20).copy()
Z = V[:120] + 1j * V[120:]
RECORDS = np.zeros(30, [("a", np.float32), ("b", np.float64), ("c", np.int16)])
RECORDS["b"] = V[:30]
FROZEN = V.copy()
FROZEN.flags.writeable = False

# What is saved, and how many bytes that covers at most, in how many stretches.
CASES: dict[str, tuple[list[np.ndarray], int, int]] = {
    "slices": ([V[1:-1], V[2:], V[:-2]], V.nbytes, 1),
    "the whole and a part": ([V[10:20], V], V.nbytes, 1),
    "parts that lie apart": ([V[:16], V[-16:]], 32 * 8, 2),
    "a part": ([V[100:110]], 10 * 8 + 56, 1),
    "the same part": ([V[8:20], V[8:20], V[8:20]], 12 * 8, 1),
    "interiors": ([M[1:-1, 1:-1], M[2:, 1:-1], M[1:-1, :-2]], M.nbytes, 1),
    "every second": ([V[::2], V[1::2]], V.nbytes, 1),
    "columns": ([M[:, 3], M[:, 7]], M.nbytes, 1),
    "backwards": ([V[::-1], M[::-1, ::-1], M[:, ::-2]], V.nbytes + M.nbytes, 2),
    "transposed": ([M.T, M, M.T[3:5]], M.nbytes, 1),
    "in Fortran's order": ([np.asfortranarray(M)], M.nbytes, 1),
    "broadcast": ([np.broadcast_to(V, (50, 240)), np.broadcast_to(V[:1], (9, 9))], V.nbytes, 1),
    "windows": ([sliding_window_view(V, 5), as_strided(V[10:], (40, 3), (32, 8))], V.nbytes, 1),
    "read-only": ([FROZEN[1:], FROZEN[:-1]], V.nbytes, 1),
    "parts of complex numbers": ([Z.real, Z.imag], Z.nbytes, 1),
    "complex numbers and a part": ([Z, Z.imag], Z.nbytes, 1),
    "fields": ([RECORDS["b"], RECORDS["c"]], RECORDS.nbytes, 1),
    "masks": ([V > 0.5, (V > 0.7)[3:]], 480, 2),
    "other bytes": ([V.astype(">f4")[2:9]], 64, 1),
    "a buffer": ([np.frombuffer(V.tobytes(), offset=16)[1:9], np.ndarray((3, 2), np.int32, bytearray(96), 4)], 128, 2),
    "a number, and nothing": ([np.array(3.0), V[4:4], M[:, :0], V[5:6].reshape(())], 128, 9),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_arrays_come_back_as_they_were(case: str) -> None:
    """Shapes, strides, dtypes, order and writeability are as before, and what shared memory does so again."""
    arrays, most, number = CASES[case]
    before = [(a.shape, a.strides, a.dtype, a.flags.writeable, a.flags.c_contiguous, a.tobytes()) for a in arrays]
    stretches, views = cover(arrays)
    assert len(stretches) <= number
    assert sum(one.nbytes for one in stretches) <= most
    assert all(one.flags.c_contiguous for one in stretches)
    copies = [np.array(one, order="C") for one in stretches]
    back = [view.of(copies) for view in views]
    after = [(a.shape, a.strides, a.dtype, a.flags.writeable, a.flags.c_contiguous, a.tobytes()) for a in back]
    assert after == before
    assert all(type(array) is np.ndarray for array in back)
    for k, array in enumerate(back):
        for n, other in enumerate(back):
            if np.shares_memory(arrays[k], arrays[n]):
                assert owner_of(array) is owner_of(other)
                start = other.__array_interface__["data"][0] - array.__array_interface__["data"][0]
                expected = arrays[n].__array_interface__["data"][0] - arrays[k].__array_interface__["data"][0]
                assert start == expected


def test_elements_keep_their_type_for_compression() -> None:
    """A stretch has the dtype of its views where they have one, and the shape of an array that is all of it."""
    assert [one.dtype for one in cover([V[1:-1], V[2:]])[0]] == [V.dtype]
    assert [one.shape for one in cover([M[1:], M])[0]] == [M.shape]
    assert [one.dtype for one in cover([Z, Z.real])[0]] == [Z.dtype]
    assert [one.dtype for one in cover([Z[1:], Z[:-1].real])[0]] == [np.uint8]


def test_parts_keep_their_place_in_the_alignment() -> None:
    """A part begins as far from a multiple of 64 bytes of what is stored as of its array."""
    for first in range(20):
        stretches, (view,) = cover([V[first : first + 40]])
        back = view.of([np.array(one, order="C") for one in stretches])
        base = owner_of(back).__array_interface__["data"][0]
        assert (back.__array_interface__["data"][0] - base) % 64 == 8 * first % 64


def test_a_file_in_memory_is_covered_as_an_array_is(tmp_path: Path) -> None:
    """Views of a memmap are rebuilt in memory."""
    held: Any = np.memmap(tmp_path / "held", np.float64, "w+", shape=300)
    held[:] = np.arange(300)
    arrays = [np.asarray(held)[1:-1], np.asarray(held)[2:]]
    stretches, views = cover(arrays)
    assert sum(one.nbytes for one in stretches) <= held.nbytes
    back = [view.of([one.copy() for one in stretches]) for view in views]
    assert [a.tobytes() for a in back] == [a.tobytes() for a in arrays]


def test_stretches_hold_the_arrays_and_views_do_not() -> None:
    """What a stretch shows of memory stays there as long as the stretch."""
    array = V + 1
    expected = array[2:-1].tobytes()
    stretches, views = cover([array[2:-2], array[3:-1]])
    del array
    noise = [np.zeros(240) for _ in range(8)]
    assert stretches[0].tobytes()[-len(expected) :] == expected
    del noise
    assert [view.of([one.copy() for one in stretches]).shape for view in views] == [(236,), (236,)]
