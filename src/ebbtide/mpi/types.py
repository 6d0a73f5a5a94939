"""What ranks tell each other before an exchange: types of arrays, and numbers of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.mpi.library import library
from ebbtide.mpi.waiting import channel, wait

# The number of a dtype, of axes, and of elements along each of as many axes as NumPy knows.
_LENGTH = 2 + 64


def _written(kind: ArrayType) -> np.ndarray:
    """Return a type as numbers."""
    note = np.zeros(_LENGTH, np.int64)
    note[:2] = kind.dtype.num, kind.ndim
    note[2 : 2 + kind.ndim] = kind.shape
    return note


def _read(note: np.ndarray) -> ArrayType:
    """Return the type that numbers stand for."""
    number, axes, *shape = note.tolist()
    kinds = {np.dtype(letter).num: np.dtype(letter) for letter in np.typecodes["All"] if letter not in "OSUVMm"}
    return ArrayType(tuple(shape[:axes]), kinds[number])


def type_for_all(comm: Any, kind: ArrayType, root: int) -> ArrayType:
    """Return on all ranks the type that one of them has."""
    note = _written(kind)
    there = channel(comm)
    wait([there.Ibcast(note, root)], there)
    return _read(note)


def numbers_for_all(comm: Any, numbers: Sequence[int], root: int) -> tuple[int, ...]:
    """Return on all ranks the numbers, one for each rank, that one of them has."""
    found = np.array(numbers if comm.rank == root else (0,) * comm.size, np.int64)
    there = channel(comm)
    wait([there.Ibcast(found, root)], there)
    return tuple(found.tolist())


def numbers_of_all(comm: Any, number: int) -> tuple[int, ...]:
    """Return the numbers of all ranks."""
    found = np.empty(comm.size, np.int64)
    there = channel(comm)
    wait([there.Iallgather(np.array([number], np.int64), found)], there)
    return tuple(found.tolist())


def numbers_from_all(comm: Any, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return what all ranks have for this one, given what it has for each of them."""
    found = np.empty(comm.size, np.int64)
    there = channel(comm)
    wait([there.Ialltoall(np.array(numbers, np.int64), found)], there)
    return tuple(found.tolist())


def send_type(comm: Any, kind: ArrayType, to: int, tag: int) -> None:
    """Tell another rank a type."""
    there = channel(comm)
    wait([there.Isend(_written(kind), to, tag)], there, [to])


def receive_type(comm: Any, source: int, tag: int) -> ArrayType:
    """Return the type that another rank tells."""
    note = np.empty(_LENGTH, np.int64)
    there = channel(comm)
    wait([there.Irecv(note, source, tag)], there, [source])
    return _read(note)


def pass_type(comm: Any, kind: ArrayType, to: int, source: int, tag: int) -> ArrayType:
    """Tell one rank a type, and return the one that another rank tells; the own one if there is none."""
    mpi = library()
    note = _written(kind)
    there = channel(comm)
    wait([there.Irecv(found := note.copy(), source, tag), there.Isend(note, to, tag)], there, [source, to])
    return kind if source == mpi.PROC_NULL else _read(found)
