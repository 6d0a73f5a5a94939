"""The vector space of PETSc's `Vec`: to the library the array of this rank, and how it lies on the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from ebbtide import mpi
from ebbtide.arrays.spaces import SPACES, VectorKind, register_space
from ebbtide.arrays.vectors import operand
from ebbtide.errors import TraceError
from ebbtide.petsc.library import library


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """
    All that is to be known of a `Vec` beside its numbers.

    Args:
        kind: Its type, such as "mpi".
        local: How many of its numbers this rank has.
        size: How many there are.
        block: How many belong together.
        comm: The communicator, as mpi4py knows it.
    """

    kind: str
    local: int
    size: int
    block: int
    comm: Any = field(repr=False, hash=False)


def layout_of(vector: Any) -> Layout:
    """Return the layout of a `Vec`."""
    local, size = vector.getSizes()
    return Layout(vector.getType(), local, size, vector.getBlockSize(), vector.getComm().tompi4py())


def _pack(vector: Any) -> tuple[np.ndarray, Layout]:
    # A copy: a `Vec` whose memory is lent cannot be written by PETSc.
    return np.array(vector.array_r), layout_of(vector)


def _unpack(array: np.ndarray, layout: Layout) -> Any:
    vector = library().Vec().create(comm=layout.comm)
    vector.setSizes((layout.local, layout.size), bsize=layout.block)
    vector.setType(layout.kind)
    vector.setArray(array)
    return vector


register_space(library().Vec, pack=_pack, unpack=_unpack)


@contextmanager
def held(*objects: Any) -> Iterator[Any]:
    """
    Give objects of PETSc to the block, and destroy them after it, on all ranks at the same place.

    One that is dropped is kept by petsc4py until `PETSc.garbage_cleanup`, as ranks may drop it at different times.
    """
    with ExitStack() as stack:
        for one in objects:
            stack.callback(one.destroy)
        yield objects


def packed(vector: Any, name: str) -> tuple[Any, VectorKind]:
    """
    Return the array of a `Vec`, traced or not, and its kind.

    Raises:
        TypeError: It is something else.
    """
    array, kind = operand(vector)
    if kind is None or not isinstance(kind.form, Layout):
        raise TypeError(f"petsc.{name} takes a petsc4py.PETSc.Vec, not a {type(vector).__name__}.")
    return array, kind


def kind_of(layout: Layout) -> VectorKind:
    """Return the kind of a `Vec`."""
    return VectorKind(SPACES[library().Vec], layout)


def total(vector: Any) -> Any:
    """
    Return the sum of the numbers of a `Vec` on all ranks, as one value that each of them has.

    For an inner product of the whole: `total` of what is multiplied. `ebbtide.inner` is that of the part of a rank.

    Args:
        vector: A `Vec`, traced or not, or a number of each rank.

    Raises:
        TraceError: A number was given, which does not say on which ranks it is.
    """
    array, kind = operand(vector)
    if kind is None:
        raise TraceError("petsc.total takes a Vec: of a number it does not know the ranks, ebbtide.mpi.total does.")
    return mpi.total(np.sum(array), kind.form.comm)
