"""Storage in main memory, and on disk for what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from numpy.typing import NDArray

from ebbtide.budget import parse_bytes
from ebbtide.storage.base import (
    Key,
    Storage,
    check_new,
    describe_closed,
    describe_present,
    find_held,
    reserved_nbytes,
)
from ebbtide.storage.disk import Disk
from ebbtide.storage.memory import Memory


@final
class Tiered(Storage):
    """
    Storage in main memory; when that is full, what is needed last goes to disk.

    What is needed when is known from `prefetch`; beside that, what was put first is needed last, as a reverse sweep
    goes back in time. An entry never comes back to memory but by `get` and `take`.

    Args:
        memory: The most bytes of entries in memory, an int or a text such as `"2 GiB"`.
        disk: The storage for the rest; it is closed with this one, and nothing else may use it.

    Raises:
        TypeError: `disk` is no storage.
        ValueError: `memory` is no number of bytes.
        StorageError: The disk holds entries already.

    Memory:
        At most `memory` bytes of entries; while an entry moves to disk, what `disk` needs for that.

    Example:
        >>> import numpy as np
        >>> with Tiered(80, Disk()) as storage:
        ...     for key in range(3):
        ...         _ = storage.put(key, [np.full(5, key)])
        ...     storage.memory_nbytes, storage.get(0)[0].tolist()
        (80, [0, 0, 0, 0, 0])
    """

    def __init__(self, memory: int | str, disk: Disk) -> None:
        self._most = parse_bytes(memory)
        if not isinstance(disk, Storage):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"The storage for what does not fit into memory is one such as Disk(), not {disk!r}.")
        self._memory = Memory()
        self._disk = disk
        self._closed = False
        # The order of `put`; the value says whether the entry is in memory.
        self._here: dict[Key, bool] = {}
        self._kinds: dict[Key, str] = {}
        self._ranks: dict[Key, int] = {}
        disk.check_open()
        if disk.keys():
            raise describe_present(disk.keys()[0])

    def put(self, key: Key, arrays: Sequence[NDArray[Any]], *, kind: str = "") -> int:
        """See `Storage.put`; entries that move to disk for it count there with header and alignment."""
        self.check_open()
        check_new(key, arrays, kind, self._here)
        before = self.nbytes
        need = sum(array.nbytes for array in arrays)
        here = need <= self._most
        while here and self._memory.nbytes + need > self._most:
            last = max((key, *self._memory.keys()), key=self._need)
            here = last != key
            if here:
                self._move(last)
        (self._memory if here else self._disk).put(key, arrays, kind=kind)
        self._here[key] = here
        self._kinds[key] = kind
        return self.nbytes - before

    def _need(self, key: Key) -> tuple[int, int]:
        """When a key will be needed: by the order of `prefetch`, after that what was put last first."""
        places = list(self._here)
        age = len(places) - places.index(key) if key in self._here else 0
        return self._ranks.get(key, len(self._ranks)), age

    def _move(self, key: Key) -> None:
        # Both copies are there until the second one is safe.
        arrays = self._memory.take(key)
        try:
            self._disk.put(key, arrays, kind=self._kinds[key])
        except BaseException:
            self._memory.put(key, arrays)
            raise
        self._here[key] = False

    def get(self, key: Key) -> list[NDArray[Any]]:
        """See `Storage.get`."""
        return self._tier(key).get(key)

    def take(self, key: Key) -> list[NDArray[Any]]:
        """See `Storage.take`."""
        arrays = self._tier(key).take(key)
        self._forget(key)
        return arrays

    def delete(self, key: Key) -> None:
        """See `Storage.delete`."""
        self._tier(key).delete(key)
        self._forget(key)

    def prefetch(self, keys: Iterable[Key]) -> None:
        """See `Storage.prefetch`; it also says what goes to disk first."""
        self.check_open()
        order = list(keys)
        self._ranks = {}
        for place, key in enumerate(order):
            self._ranks.setdefault(key, place)
        self._disk.prefetch(key for key in order if not self._here.get(key, True))

    def reserve(self, slots: int, nbytes: int) -> None:
        """See `Storage.reserve`; what memory cannot hold is reserved on disk."""
        self.check_open()
        reserved_nbytes(slots, nbytes)
        self._disk.reserve(max(0, slots - self._most // max(1, nbytes)), nbytes)

    def flush(self) -> None:
        """See `Storage.flush`."""
        self.check_open()
        self._disk.flush()

    def keys(self) -> tuple[Key, ...]:
        """See `Storage.keys`."""
        return tuple(self._here)

    def close(self) -> None:
        """See `Storage.close`; closes the disk as well."""
        self._closed = True
        self._here.clear()
        self._kinds.clear()
        self._ranks.clear()
        self._memory.close()
        self._disk.close()

    @property
    def nbytes(self) -> int:
        """See `Storage.nbytes`."""
        return self._memory.nbytes + self._disk.nbytes

    @property
    def memory_nbytes(self) -> int:
        """See `Storage.memory_nbytes`; what is not on disk."""
        return self._memory.nbytes

    @property
    def buffer_nbytes(self) -> int:
        """See `Storage.buffer_nbytes`; that of the disk."""
        return self._disk.buffer_nbytes

    @property
    def bytes_read(self) -> int:
        """See `Storage.bytes_read`; that of the disk."""
        return self._disk.bytes_read

    def is_lossy(self, kind: str) -> bool:
        """See `Storage.is_lossy`; on disk only."""
        return self._disk.is_lossy(kind)

    @property
    def relative_error(self) -> float:
        """See `Storage.relative_error`."""
        return self._disk.relative_error

    def check_open(self) -> None:
        """See `Storage.check_open`."""
        if self._closed:
            raise describe_closed("Tiered")

    def _tier(self, key: Key) -> Storage:
        self.check_open()
        return self._memory if find_held(self._here, key) else self._disk

    def _forget(self, key: Key) -> None:
        del self._here[key]
        self._kinds.pop(key, None)
