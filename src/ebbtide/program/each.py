"""The members of a batch one after the other, by the source of one member."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

import numpy as np


def each_member(
    run: Callable[..., Any],
    lay_out: Callable[..., Any],
    each: Sequence[np.ndarray],
    into: Sequence[np.ndarray],
    shared: Sequence[Any],
    space: np.ndarray,
    constants: Sequence[Any],
) -> None:
    """
    Run a program for each member of a batch.

    Args:
        run: The function of one member: of its inputs, the arrays of its workspace, and constants.
        lay_out: Makes these arrays of a row of the workspace.
        each: Operands that have the members on their first axis.
        into: Arrays with the members on their first axis, into which results are put.
        shared: Operands that are the same for all.
        space: The workspace: as many rows as there are threads, each of which does members that follow each other.
        constants: What else `run` takes.

    Raises:
        Exception: That of the first member that failed, with its number in the message.
    """
    count, threads = len((*each, *into)[0]), len(space)
    failures: list[tuple[int, BaseException]] = []
    parts = []
    for row, number in zip(space, range(threads), strict=True):
        members = range(count * number // threads, count * (number + 1) // threads)
        parts.append((run, lay_out(row), each, into, shared, constants, members, failures))
    others = [threading.Thread(target=copy_context().run, args=(_run_some, *part)) for part in parts[1:]]
    for thread in others:
        thread.start()
    _run_some(*parts[0])
    for thread in others:
        thread.join()
    if failures:
        member, error = min(failures, key=lambda pair: pair[0])
        failures.clear()
        if error.args and type(error.args[0]) is str:
            error.args = (f"{error.args[0]}, in member {member}", *error.args[1:])
        try:
            raise error
        finally:
            del error  # whose traceback has this frame


def _run_some(
    run: Callable[..., Any],
    arrays: Sequence[Any],
    each: Sequence[np.ndarray],
    into: Sequence[np.ndarray],
    shared: Sequence[Any],
    constants: Sequence[Any],
    members: range,
    failures: list[tuple[int, BaseException]],
) -> None:
    """Run a program for some members, up to the first one that fails."""
    for member in members:
        rows = [x[member] for x in each]
        # Of numbers arrays of one element, which can be written.
        rows += [x[member] if x.ndim > 1 else x[member : member + 1] for x in into]
        try:
            run([*rows, *shared], arrays, constants)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread of the caller
            failures.append((member, error))
            return


def run_members(
    machine: Any, arrays: Sequence[np.ndarray], strides: Sequence[int], members: int, threads: int
) -> None:
    """
    Run a machine for each member of a batch.

    Args:
        machine: The machine.
        arrays: Its buffers, for all members.
        strides: How far apart the members are in each, in bytes; 0 where they share it.
        members: How many there are.
        threads: How many threads run.
    """
    if all(array.flags.aligned for array in arrays):
        machine.run(arrays, strides, members, threads)
        return
    held = [array if array.flags.aligned else _aligned(array) for array in arrays]
    machine.run(held, strides, members, threads)
    for array, copy in zip(arrays, held, strict=True):
        if copy is not array and array.flags.writeable:
            array[...] = copy


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy of an array that is strided as it is, at an address that is one for its type."""
    ends = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    start = -sum(min(end, 0) for end in ends)
    memory = np.empty(start + sum(max(end, 0) for end in ends) + array.itemsize + array.dtype.alignment, np.uint8)
    start += -(memory.ctypes.data + start) % array.dtype.alignment
    copy = np.ndarray(array.shape, array.dtype, memory, start, array.strides)
    copy[...] = array
    return copy
