"""Storage in main memory, and on disk for what does not fit."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Any, final

from numpy.typing import NDArray

from ebbtide.budget import parse_bytes
from ebbtide.errors import StorageError
from ebbtide.storage.base import (
    Key,
    Storage,
    check_new,
    describe_closed,
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
        self._order = _Order()
        disk.check_open()
        if disk.keys():
            raise StorageError(
                f"The disk storage of a Tiered one has to be empty, and has entries, {disk.keys()[0]!r:.60} among "
                "them: it is not known when they will be needed. Give a new one, such as Disk(), or delete them first."
            )

    def put(self, key: Key, arrays: Sequence[NDArray[Any]], *, kind: str = "") -> int:
        """See `Storage.put`; entries that move to disk for it count there with header and alignment."""
        self.check_open()
        if self._is_lost(key):
            self._forget(key)
        check_new(key, arrays, kind, self._here)
        need, grown = sum(array.nbytes for array in arrays), 0
        here = need <= self._most
        while here and self._memory.nbytes + need > self._most:
            last = self._order.find_last(key)
            here = last != key
            if here:
                grown += self._move(last)
        grown += (self._memory if here else self._disk).put(key, arrays, kind=kind)
        self._here[key] = here
        self._kinds[key] = kind
        if here:
            self._order.add(key)
        return grown

    def _move(self, key: Key) -> int:
        """Move an entry to disk; return the bytes by which the storage grew."""
        number = self._order.remove(key)
        # Both copies are there until the second one is safe.
        arrays = self._memory.take(key)
        try:
            grown = self._disk.put(key, arrays, kind=self._kinds[key])
        except BaseException:
            self._memory.put(key, arrays)
            self._order.add(key, number)
            raise
        self._here[key] = False
        return grown - sum(array.nbytes for array in arrays)

    def get(self, key: Key) -> list[NDArray[Any]]:
        """See `Storage.get`."""
        return self._tier(key).get(key)

    def take(self, key: Key) -> list[NDArray[Any]]:
        """See `Storage.take`."""
        tier = self._tier(key)
        self._order.remove(key)
        arrays = tier.take(key)
        self._forget(key)
        return arrays

    def delete(self, key: Key) -> None:
        """See `Storage.delete`."""
        tier = self._tier(key)
        self._order.remove(key)
        tier.delete(key)
        self._forget(key)

    def prefetch(self, keys: Iterable[Key]) -> None:
        """See `Storage.prefetch`; it also says what goes to disk first."""
        self.check_open()
        order = list(keys)
        self._order.rank(order)
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
        there = set(self._disk.keys())
        return tuple([key for key, here in self._here.items() if here or key in there])

    def close(self) -> None:
        """See `Storage.close`; closes the disk as well."""
        self._closed = True
        self._here.clear()
        self._kinds.clear()
        self._order = _Order()
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
    def memory_limit(self) -> int:
        """See `Storage.memory_limit`; as given."""
        return self._most

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

    def _is_lost(self, key: Any) -> bool:
        """Return whether it is the key of an entry that the disk could not write."""
        return isinstance(key, (int, str)) and self._here.get(key) is False and key not in self._disk.keys()

    def _forget(self, key: Key) -> None:
        del self._here[key]
        self._kinds.pop(key, None)


@final
class _Order:
    """
    When the entries in memory will be needed: by the order of `prefetch`, after that what was put last first.

    Kept in order, so that no `put` looks at all of them. An interrupt leaves no entry in it that is not in memory.
    """

    __slots__ = ("_numbers", "_puts", "_ranks", "_sorted")

    def __init__(self) -> None:
        self._ranks: dict[Key, int] = {}
        # Which `put` it was, of each entry.
        self._numbers: dict[Key, int] = {}
        self._puts = 0
        self._sorted: list[tuple[int, int, Key]] = []

    def find_last(self, new: Key) -> Key:
        """Return which one will be needed last, a new one among them."""
        last = self._sorted[-1:]
        return last[0][2] if last and last[0] > self._need(new, self._puts + 1) else new

    def add(self, key: Key, number: int | None = None) -> None:
        """Take in an entry; it is put now, unless an earlier number is given."""
        if number is None:
            self._puts += 1
            number = self._puts
        self._numbers[key] = number
        insort(self._sorted, self._need(key, number))

    def remove(self, key: Key) -> int | None:
        """Leave out an entry, if it is in memory; return its number."""
        number = self._numbers.get(key)
        if number is not None:
            need = self._need(key, number)
            place = bisect_left(self._sorted, need)
            if self._sorted[place : place + 1] == [need]:
                del self._sorted[place]
            del self._numbers[key]
        return number

    def rank(self, keys: Iterable[Key]) -> None:
        """Hear in which order keys will be read from now on."""
        ranks = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        moved = [(key, self.remove(key)) for key in {**self._ranks, **ranks}]
        self._ranks = ranks
        for key, number in moved:
            if number is not None:
                self.add(key, number)

    def _need(self, key: Key, number: int) -> tuple[int, int, Key]:
        rank = self._ranks.get(key)
        return (1, -number, key) if rank is None else (0, rank, key)
