"""What arrays cover of memory together: views of one array have it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import axes_in_memory, owner_of

# Memory of NumPy's is aligned to so many bytes at most; a part of it keeps its place in that.
_ALIGNMENT = 64


@final
class View:
    """
    How one array lies in a stretch of memory.

    Args:
        array: The array, which is not kept.
        number: That of the stretch among others.
        offset: The bytes before its first element.
    """

    __slots__ = ("_dtype", "_offset", "_shape", "_strides", "_writeable", "number")

    def __init__(self, array: np.ndarray, number: int, offset: int) -> None:
        self.number, self._offset = number, offset
        self._shape, self._strides, self._dtype = array.shape, array.strides, array.dtype
        self._writeable = array.flags.writeable

    def of(self, stretches: Sequence[np.ndarray]) -> np.ndarray:
        """Return the array in a stretch that is contiguous; results of reductions and products depend on strides."""
        memory = stretches[self.number].reshape(-1).view(np.uint8)
        array = np.ndarray(self._shape, self._dtype, memory, self._offset, self._strides)
        if not self._writeable:
            array.flags.writeable = False
        return array


@final
class _Memory:
    """Shows bytes of memory to NumPy as an array, as long as the arrays live that they are of."""

    __slots__ = ("__array_interface__", "_arrays")

    def __init__(self, low: int, high: int, arrays: list[np.ndarray]) -> None:
        self._arrays = arrays
        self.__array_interface__ = {"data": (low, True), "shape": (high - low,), "typestr": "|u1", "version": 3}


def cover(arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[View]]:
    """
    Return the stretches of memory that arrays cover, and how each array lies in them.

    Arrays that overlap are in one stretch. What lies between their elements is in it, too, so that no stretch is more
    than the array that owns its memory, and its views are as they were, strides and all.

    Args:
        arrays: Any, also views of the same memory; without Python objects.

    Returns:
        (contiguous arrays that share memory with them, a view for each of them).

    Memory:
        The stretches hold the arrays; the views do not.
    """
    bounds = [_bounds_of(array) for array in arrays]
    stretches: list[np.ndarray] = []
    views: list[Any] = [None] * len(arrays)
    together: list[int] = []
    start = stop = 0
    for k in sorted(range(len(arrays)), key=lambda k: bounds[k][0]):
        low, _, high = bounds[k]
        if together and low >= stop:
            stretches.append(_stretch([arrays[n] for n in together], start, stop))
            together = []
        start, stop = (start, max(stop, high)) if together else (low, high)
        together.append(k)
        views[k] = View(arrays[k], len(stretches), bounds[k][1] - start)
    if together:
        stretches.append(_stretch([arrays[n] for n in together], start, stop))
    return stretches, views


def _bounds_of(array: np.ndarray) -> tuple[int, int, int]:
    """Return where the memory of an array begins, aligned as that of its owner, its first element, and its end."""
    first, low, high = _extent(array)
    base = _extent(owner)[1] if (owner := owner_of(array)) is not array else low
    return low - (low - base) % _ALIGNMENT, first, high


def _extent(array: np.ndarray) -> tuple[int, int, int]:
    """Return the addresses of the first element of an array, of the lowest, and of the end of the highest."""
    first = int(array.__array_interface__["data"][0])
    return (first, *np.lib.array_utils.byte_bounds(array)) if array.size else (first, first, first)


def _stretch(arrays: list[np.ndarray], start: int, stop: int) -> np.ndarray:
    """Return the memory from one address to another: as an array that has all of it, or else in one dimension."""
    for array in arrays:
        packed = array.transpose(axes_in_memory(array))
        if packed.nbytes == stop - start and packed.flags.c_contiguous:
            return packed
    memory, dtype = np.asarray(_Memory(start, stop, arrays)), arrays[0].dtype
    # Elements as they are, so that compression knows them, unless arrays of several types share the memory.
    shifts = [shift for array in arrays for shift in (_extent(array)[0] - start, stop - start, *array.strides)]
    are_alike = all(array.dtype == dtype for array in arrays) and not any(shift % dtype.itemsize for shift in shifts)
    return memory.view(dtype) if are_alike else memory
