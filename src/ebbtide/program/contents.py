"""What arrays around a traced function held, of which the trace has made something that stands in the program."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np

from ebbtide.arrays.array_type import owner_of
from ebbtide.program.program import Program
from ebbtide.storage import compute_crc32c

# An array of 1 MiB is looked at in 30 microseconds; of a larger one so many bytes are, evenly spaced.
_LOOKED_AT = 2**20


@final
class Content(NamedTuple):
    """
    What an array held.

    Args:
        name: What it is called.
        array: A reference to it.
        checksum: That of its elements, or of some of them.
    """

    name: str
    array: weakref.ref[np.ndarray]
    checksum: int


def contents_of(arrays: Iterable[tuple[str, np.ndarray]]) -> list[Content]:
    """
    Return what arrays that a function reaches by name hold now.

    Args:
        arrays: What each of them is called, and the array. One that cannot be written is left out, as are memory maps.

    Memory:
        Weak references and checksums.
    """
    return [Content(name, weakref.ref(array), _sum_of(array)) for name, array in arrays if _may_change(array)]


def find_written(contents: Iterable[Content]) -> str | None:
    """Return the name of the first array that holds something else than it did; None if there is none."""
    for name, reference, known in contents:
        array = reference()
        if array is not None and _sum_of(array) != known:
            return name
    return None


def has_folded(program: Program, arrays: Iterable[np.ndarray]) -> bool:
    """
    Return whether a program has constants, numbers of NumPy's among them, that are not in the memory of these arrays.

    What is in their memory is read in each run. What is not may have been made of them when the function was traced:
    the derivative of `x * k` is made of k alone, and so are masks and indices.
    """
    owners = {id(owner_of(array)) for array in arrays}
    return any(id(owner_of(value)) not in owners for value in _constants_in(program))


def _constants_in(value: Any) -> Iterator[Any]:
    """Yield the arrays and numbers of NumPy's that stand in a program, in its parts and what these are given."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Program):
            waiting += [part for e in one.equations for part in (e.function, e.arguments, e.params)]
            waiting += one.outputs
        elif isinstance(one, (tuple, list)):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, slice):
            waiting += (one.start, one.stop, one.step)
        elif isinstance(one, partial):
            waiting += (one.func, one.args, one.keywords)
        elif isinstance(one, (np.ndarray, np.generic)):
            yield one
        elif isinstance(part := getattr(one, "program", None), Program):
            waiting.append(part)


def _may_change(array: np.ndarray) -> bool:
    return array.flags.writeable and not array.dtype.hasobject and not isinstance(array, np.memmap)


def _sum_of(array: np.ndarray) -> int:
    """Return the crc32c of an array, or of some of its elements."""
    step = array.nbytes // _LOOKED_AT
    return compute_crc32c(array.flat[:: step + 1] if step else array)
