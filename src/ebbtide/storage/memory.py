"""Storage in main memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.storage.base import Key, Storage, check_new, describe_closed, find_held


@final
class Memory(Storage):
    """
    Storage in main memory.

    Memory:
        Holds one copy of each stored array, until it is deleted or taken, or the storage is closed or
        dropped.

    Example:
        >>> storage = Memory()
        >>> storage.put(0, [np.zeros(3)])
        24
        >>> storage.take(0)
        [array([0., 0., 0.])]
    """

    def __init__(self) -> None:
        self._held: dict[Key, list[NDArray[Any]]] = {}
        self._nbytes = 0
        self._closed = False

    def put(self, key: Key, arrays: Sequence[NDArray[Any]], *, kind: str = "") -> int:
        """See `Storage.put`; *kind* is not kept."""
        self.check_open()
        check_new(key, arrays, kind, self._held)
        # A copy with subok=False: a subclass may refer to more than its elements.
        copies = [np.array(array, order="C", subok=False) for array in arrays]
        count = _count_bytes(copies)
        self._held[key] = copies
        self._nbytes += count
        return count

    def get(self, key: Key) -> list[NDArray[Any]]:
        """See `Storage.get`."""
        return [array.copy() for array in self._find(key)]

    def take(self, key: Key) -> list[NDArray[Any]]:
        """See `Storage.take`; returns the stored copies themselves."""
        arrays = self._find(key)
        del self._held[key]
        self._nbytes -= _count_bytes(arrays)
        return arrays

    def delete(self, key: Key) -> None:
        """See `Storage.delete`."""
        self.take(key)

    def keys(self) -> tuple[Key, ...]:
        """See `Storage.keys`."""
        return tuple(self._held)

    def close(self) -> None:
        """See `Storage.close`."""
        self._closed = True
        self._held.clear()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """See `Storage.nbytes`."""
        return self._nbytes

    @property
    def memory_nbytes(self) -> int:
        """See `Storage.memory_nbytes`; all of it."""
        return self._nbytes

    def check_open(self) -> None:
        """See `Storage.check_open`."""
        if self._closed:
            raise describe_closed("Memory")

    def _find(self, key: Key) -> list[NDArray[Any]]:
        self.check_open()
        return find_held(self._held, key)


def _count_bytes(arrays: Sequence[NDArray[Any]]) -> int:
    return sum(array.nbytes for array in arrays)
