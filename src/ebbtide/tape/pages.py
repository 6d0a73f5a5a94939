"""Saved values on disk: written behind and read ahead, in a buffer that is part of the budget and can be given up."""

from __future__ import annotations

import time
import warnings
import weakref
from collections import deque
from typing import Any, final

from ebbtide.agree import own_communicator
from ebbtide.arrays.array_type import owner_of
from ebbtide.budget import Budget
from ebbtide.errors import StorageError
from ebbtide.ledger import BUFFERS, SAVED, Ledger
from ebbtide.quota import Quota
from ebbtide.storage import Disk, EntryLostError, StorageFullError
from ebbtide.storage.checksum import as_it_lay, in_memory_order
from ebbtide.storage.failures import close_or_warn
from ebbtide.storage.transfer import TROUBLE
from ebbtide.tape.saved import SavedValue, Size

# Two values hide the disk behind the work of the caller: one is on its way while the other one waits.
_VALUES = 2
# No more of the budget goes into a buffer: with few bytes each is worth more as a value that stays in memory.
_PART = 8
# So many values are named to the thread that reads ahead; what fits into the buffer is read.
_AHEAD = 4
# What the storage itself holds beside the arrays that it writes and reads: 10 KB measured with 8 values.
STORAGE_BYTES = 12 * 1024


@final
class Pages:
    """
    The saved values of one tape that are on disk.

    Args:
        ledger: Where the buffer is counted, and each value from when it is back in memory.
        budget: How much disk there is, and where; its quota is the ledger's, if that has one.

    Attributes:
        back: The values that are in memory again.
        buffer_nbytes: Bytes of the buffer, counted in the ledger.
        storage_nbytes: Bytes of the storage itself, counted there, too.
        freed: Bytes of values that were counted and left memory, whether they came back or not.
        is_full: Whether the disk itself had no room for one, or works no more.

    Memory:
        A buffer for the two largest values that were paged, if there is room and that is at most an eighth of the
        budget. The storage itself from the first value on. About 200 bytes for each value.
    """

    __slots__ = (
        "_budget", "_keys", "_largest", "_ledger", "_most", "_storage", "_waiting", "back", "buffer_nbytes",
        "freed", "is_full", "storage_nbytes",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, budget: Budget) -> None:
        self._ledger = ledger
        self._budget = budget
        self._storage: Disk | None = None
        self._keys = 0
        # Values that may come back, the oldest first.
        self._waiting: dict[int, weakref.ref[SavedValue]] = {}
        self.back: deque[weakref.ref[SavedValue]] = deque()
        self._largest = 0
        self._most = budget.memory // _PART
        self.buffer_nbytes = self.storage_nbytes = self.freed = 0
        self.is_full = False

    @property
    def is_needed(self) -> bool:
        """Whether a value may come back."""
        return any(one() is not None for one in self._waiting.values())

    def returned(self) -> list[weakref.ref[SavedValue]]:
        """Return the values that are in memory again, or elsewhere as well, and forget them."""
        for key in [key for key, one in self._waiting.items() if (cell := one()) is not None and cell.page is None]:
            self.back.append(self._waiting.pop(key))
            self._open().delete(key)
        found = [*self.back]
        self.back.clear()
        return found

    @property
    def nbytes(self) -> int:
        """The bytes that the values take on disk."""
        return 0 if self._storage is None else self._storage.nbytes

    def put(self, cell: SavedValue) -> bool:
        """
        Page a value: it leaves memory, and comes back when the cell is opened.

        Args:
            cell: The saved value, one plain array.

        Returns:
            Whether there was room on disk, if need be after loops had given up some; else it is as it was.

        Raises:
            StorageError: There is no such directory, or an earlier one could not be written; as it was, the value is in
                memory then.
        """
        storage = self._open()
        self._keys += 1
        key = self._keys
        # In the order of memory, which it has again when it is read: its checksum and results of products depend on it.
        packed, whole, strides = in_memory_order(cell.value), cell.value.shape, cell.value.strides
        start, report = time.perf_counter(), self._ledger.report
        if not (written := self._store(storage, key, packed)):
            return False
        if report is not None:
            report.wrote(written, start)
        self._waiting[key] = weakref.ref(cell)
        shape, nbytes = packed.shape, packed.nbytes
        del packed
        cell.size = Size(cell.value.nbytes)
        before = self._ledger.held[SAVED]
        self._ledger.let_go(cell)
        self.freed += before - self._ledger.held[SAVED]
        cell.value = None
        self._largest = max(self._largest, nbytes)

        back = self.back

        def load(waiting: SavedValue) -> Any:
            array = as_it_lay(self._load(key).reshape(shape), whole, strides)
            waiting.page = waiting.size = None
            self._ledger.hold(waiting, owner_of(array))
            back.append(weakref.ref(waiting))
            return array

        cell.page = load
        return True

    def _store(self, storage: Disk, key: int, packed: Any) -> int:
        """
        Return the bytes that an array takes on disk; 0 if that has no room, or fails, with one warning of such a disk.

        Raises:
            StorageError: There is no such directory, or an earlier array was lost.
        """
        while True:
            try:
                return storage.put(key, [packed], kind="saved")
            except StorageError as error:
                if isinstance(error, EntryLostError) or error.errno not in TROUBLE:
                    raise
                text, self.is_full = str(error), error.__cause__ is not None
                lacks_room = isinstance(error, StorageFullError)
            # Not while that error is handled, as what a loop loses meanwhile would keep its frames, and files, alive.
            if lacks_room and (quota := self._ledger.quota) is not None and quota.relieve():
                continue
            if self.is_full and not self._ledger.warned:
                self._ledger.warned = True
                text = f"{text} The values stay in memory, as far as the budget of {self._budget} allows."
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            return 0

    def _load(self, key: int) -> Any:
        assert self._storage is not None
        start, before, report = time.perf_counter(), self._storage.bytes_read, self._ledger.report
        if self.buffer_nbytes:
            self._storage.prefetch(self._next_keys(self._storage))
        array = self._storage.take(key)[0]
        del self._waiting[key]
        if report is not None:
            report.read(self._storage.bytes_read - before, start)
        return array

    def _next_keys(self, storage: Disk) -> list[int]:
        """Return the keys of the values that a sweep needs next, the newest, and remove those that nobody needs."""
        found: list[int] = []
        dead: list[int] = []
        for key in reversed(self._waiting):
            (dead if self._waiting[key]() is None else found).append(key)
            if len(found) == _AHEAD:
                break
        for key in dead:
            del self._waiting[key]
            storage.delete(key)
        return found

    def _open(self) -> Disk:
        if self._storage is None:
            quota = self._ledger.quota or Quota(self._budget.disk)
            self._storage = Disk(self._budget.directory, limit=quota, comm=own_communicator())
            self.storage_nbytes = STORAGE_BYTES
            self._ledger.add(BUFFERS, STORAGE_BYTES)
        return self._storage

    @property
    def wish(self) -> int:
        """Bytes that a buffer would take, or a larger one; 0 if they are too many or nothing has been paged."""
        wanted = _VALUES * self._largest
        return wanted - self.buffer_nbytes if self.buffer_nbytes < wanted <= self._most else 0

    def take_buffer(self, room: int) -> None:
        """Take the buffer that is wished for if there is room for it."""
        more = self.wish
        if self._storage is not None and 0 < more <= room:
            self.buffer_nbytes += more
            self._storage.resize(self.buffer_nbytes)
            self._ledger.add(BUFFERS, more)

    def give_up(self) -> int:
        """Give up the buffer for good; return the bytes that this frees."""
        freed, self.buffer_nbytes, self._most = self.buffer_nbytes, 0, 0
        if freed and self._storage is not None:
            self._ledger.add(BUFFERS, -freed)
            self._storage.resize(0)
        return freed

    def close(self) -> None:
        """Remove the file and forget the values."""
        self._waiting.clear()
        self.back.clear()
        self._ledger.add(BUFFERS, -self.buffer_nbytes - self.storage_nbytes)
        self.buffer_nbytes = self.storage_nbytes = self._most = 0
        if self._storage is not None:
            close_or_warn(self._storage)
