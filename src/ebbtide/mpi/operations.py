"""Differentiable communication, by the names that it has in MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.mpi.collectives import (
    Broadcast,
    Copies,
    Gathering,
    GatheringForAll,
    Reduction,
    Scattering,
    Sum,
    Total,
    Transposition,
)
from ebbtide.mpi.exchange import exchange, given_array
from ebbtide.mpi.extremes import extreme
from ebbtide.mpi.library import library
from ebbtide.mpi.messages import Passing, Receiving, Sending
from ebbtide.mpi.types import (
    numbers_for_all,
    numbers_from_all,
    numbers_of_all,
    pass_type,
    receive_type,
    send_type,
    type_for_all,
)


def allreduce(array: Any, comm: Any, op: str = "sum") -> Any:
    """
    Return the sum, the least or the largest of the arrays of all ranks, elementwise, on each of them.

    A sum counts on each rank that uses it: the cotangent of each array is the sum of the cotangents on all ranks. For a
    value of a whole run, such as a functional that each rank returns, see `total`.

    Args:
        array: Of the same shape and dtype on all ranks.
        comm: The communicator.
        op: "sum", "max" or "min". Where several ranks have the extreme, its derivative is shared equally by them. Of
            booleans there are extremes (any, all) and no sum.

    Memory:
        The result. A tape saves nothing for a sum; for an extreme the array and the result.
    """
    array = given_array(array)
    if op != "sum":
        return extreme(array, comm, op)
    kind = _type_of_sum(array)
    return exchange(Sum(comm, kind, kind), array)


def total(array: Any, comm: Any) -> Any:
    """
    Return the sum of the arrays of all ranks as one value of which each rank has a copy.

    It is what a functional of a distributed state is: each rank returns the same number, and that counts once. In a
    derivative its cotangent is taken to be the same on all ranks, and nothing is communicated.

    Args:
        array: Of the same shape and dtype on all ranks.
        comm: The communicator.

    Memory:
        The result.
    """
    array = given_array(array)
    kind = _type_of_sum(array)
    return exchange(Total(comm, kind, kind), array)


def replicated(tree: Any, comm: Any) -> Any:
    """
    Return a value of which each rank has a copy, as one variable.

    Its derivative, on each rank, is the sum over all ranks of what each of them does with it. A coefficient that all
    ranks use in their parts of a problem is such a value.

    Args:
        tree: An array, or a container of arrays; the same on all ranks.
        comm: The communicator.

    Memory:
        A copy of each array.
    """
    given, structure = flatten(tree)
    leaves = [given_array(leaf) for leaf in given]
    kinds = [type_of(leaf) for leaf in leaves]
    return unflatten(structure, [exchange(Copies(comm, k, k), x) for x, k in zip(leaves, kinds, strict=True)])


def reduce(array: Any, comm: Any, root: int = 0, op: str = "sum") -> Any:
    """
    Return on one rank the sum, the least or the largest of the arrays of all ranks, elementwise; None on the others.

    Args:
        array: Of the same shape and dtype on all ranks.
        comm: The communicator.
        root: The rank that gets it.
        op: As for `allreduce`.

    Memory:
        As `allreduce`.
    """
    array = given_array(array)
    if op == "sum":
        kind = _type_of_sum(array)
        result = exchange(Reduction(comm, kind, kind, root), array)
    else:
        result = extreme(array, comm, op)
    return result if comm.rank == root else None


def bcast(array: Any, comm: Any, root: int = 0) -> Any:
    """
    Return the array of one rank on all of them.

    Args:
        array: What *root* gives; of the other ranks any array, or None.
        comm: The communicator.
        root: The rank whose array it is.

    Memory:
        The result.
    """
    array = given_array(np.zeros(0) if array is None else array)
    taken = type_of(array)
    given = type_for_all(comm, taken, root)
    return exchange(Broadcast(comm, taken, given, root), array)


def gather(array: Any, comm: Any, root: int = 0) -> Any:
    """
    Return on one rank the arrays of all ranks, one after the other along the first axis; None on the others.

    Args:
        array: Alike on all ranks but for the length of the first axis, which may be 0; numbers count as one row.
        comm: The communicator.
        root: The rank that gets them.

    Memory:
        The result.
    """
    array = _rows(array)
    taken = type_of(array)
    counts = numbers_of_all(comm, taken.shape[0])
    rows = sum(counts) if comm.rank == root else 0
    given = ArrayType((rows, *taken.shape[1:]), taken.dtype)
    result = exchange(Gathering(comm, taken, given, root, counts), array)
    return result if comm.rank == root else None


def allgather(array: Any, comm: Any) -> Any:
    """
    Return the arrays of all ranks, one after the other along the first axis, on each of them.

    Args:
        array: As for `gather`.
        comm: The communicator.

    Memory:
        The result.
    """
    array = _rows(array)
    taken = type_of(array)
    counts = numbers_of_all(comm, taken.shape[0])
    given = ArrayType((sum(counts), *taken.shape[1:]), taken.dtype)
    return exchange(GatheringForAll(comm, taken, given, counts), array)


def scatter(array: Any, comm: Any, root: int = 0, counts: Sequence[int] | None = None) -> Any:
    """
    Return the part of this rank of the array of one rank.

    Args:
        array: What *root* gives, in parts along the first axis; of the other ranks any array, or None.
        comm: The communicator.
        root: The rank whose array it is.
        counts: How many rows each rank gets; as equal as can be if None.

    Raises:
        ValueError: The counts are not those of the rows.

    Memory:
        The result.
    """
    array = _rows(np.zeros(0) if array is None else array)
    taken = type_of(array)
    whole = type_for_all(comm, taken, root)
    rows = whole.shape[0]
    parts = _equal(rows, comm.size) if counts is None else tuple([int(count) for count in counts])
    # All ranks look at the counts of the root, so that all of them refuse, or none.
    fits = comm.rank != root or _fit(parts, rows, comm)
    parts = numbers_for_all(comm, parts if fits else (-1,) * comm.size, root)
    if parts[0] < 0:
        raise ValueError(
            f"scatter got {rows} rows and counts={counts} on rank {comm.rank}; those of rank {root} do not fit. Give "
            f"one number of rows for each of the {comm.size} ranks there, all rows together."
        )
    given = ArrayType((parts[comm.rank], *whole.shape[1:]), whole.dtype)
    return exchange(Scattering(comm, taken, given, root, parts), array)


def alltoall(array: Any, comm: Any, counts: Sequence[int] | None = None) -> Any:
    """
    Return what all ranks have for this one: a part, along the first axis, of the array of each, one after the other.

    Args:
        array: What this rank has for all of them.
        comm: The communicator.
        counts: How many rows each rank gets of it; as equal as can be if None.

    Raises:
        ValueError: The counts are not those of the rows.

    Memory:
        The result.
    """
    array = _rows(array)
    taken = type_of(array)
    sent = _equal(taken.shape[0], comm.size) if counts is None else tuple([int(count) for count in counts])
    if not _fit(sent, taken.shape[0], comm):
        raise ValueError(f"alltoall was given {taken.shape[0]} rows, and counts={sent} for {comm.size} ranks.")
    received = numbers_from_all(comm, sent)
    given = ArrayType((sum(received), *taken.shape[1:]), taken.dtype)
    return exchange(Transposition(comm, taken, given, sent, received), array)


def send(array: Any, comm: Any, dest: int, tag: int = 0) -> None:
    """
    Send an array to another rank, which calls `recv`.

    In a reverse sweep its cotangent comes back in the same way; the ranks wait for each other in the opposite order.

    Args:
        array: The array.
        comm: The communicator.
        dest: The rank that gets it.
        tag: What tells it from other messages between the two.

    Memory:
        Nothing; a tape holds one node of it until the sweep has passed.
    """
    array = given_array(array)
    taken = type_of(array)
    send_type(comm, taken, dest, tag)
    exchange(Sending(comm, taken, ArrayType((0,), taken.dtype), dest, tag), array)


def recv(comm: Any, source: int, tag: int = 0) -> Any:
    """
    Return the array that another rank sends.

    Args:
        comm: The communicator.
        source: The rank that calls `send`.
        tag: As there.

    Raises:
        ValueError: The rank or the tag is any one: the cotangent would not know the way back. Or the rank is none.

    Memory:
        The result.
    """
    _check_sender(source, tag)
    if source == library().PROC_NULL:
        raise ValueError("recv was given PROC_NULL, which sends nothing that the result could be like: see sendrecv.")
    given = receive_type(comm, source, tag)
    return exchange(Receiving(comm, ArrayType((0,), given.dtype), given, source, tag), np.zeros(0, given.dtype))


def sendrecv(array: Any, comm: Any, dest: int, source: int, tag: int = 0) -> Any:
    """
    Send an array to one rank, and return the one that another rank sends.

    Args:
        array: The array.
        comm: The communicator.
        dest: The rank that gets it; `MPI.PROC_NULL` for none.
        source: The rank whose array is returned; for `MPI.PROC_NULL` zeros like *array* are.
        tag: What tells it from other messages.

    Raises:
        ValueError: The source or the tag is any one: the cotangent would not know the way back.

    Memory:
        The result.
    """
    array = given_array(array)
    taken = type_of(array)
    _check_sender(source, tag)
    given = pass_type(comm, taken, dest, source, tag)
    return exchange(Passing(comm, taken, given, dest, source, tag), array)


def _rows(array: Any) -> Any:
    """Return an array with a first axis."""
    array = given_array(array)
    return array if array.shape else np.reshape(array, (1,))


def _type_of_sum(array: Any) -> ArrayType:
    """Return the type of an array, of which MPI has sums."""
    kind = type_of(array)
    if kind.dtype.kind == "b":
        raise TypeError('A sum of booleans: write x.astype(int) for their number, op="max" for any, "min" for all.')
    return kind


def _check_sender(source: int, tag: int) -> None:
    """Refuse a message of which it is not said whose it is."""
    mpi = library()
    if source == mpi.ANY_SOURCE or tag == mpi.ANY_TAG:
        raise ValueError(
            "A message from any rank, or with any tag, has no way back for its cotangent. Name the rank and the tag."
        )


def _fit(counts: Sequence[int], rows: int, comm: Any) -> bool:
    """Return whether so many rows have a part for each rank, of such numbers of rows."""
    return len(counts) == comm.size and sum(counts) == rows and min(counts) >= 0


def _equal(rows: int, parts: int) -> tuple[int, ...]:
    """Return rows in parts as equal as can be, the larger ones first."""
    return tuple([rows // parts + (part < rows % parts) for part in range(parts)])
