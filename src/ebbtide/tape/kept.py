"""What an operation keeps alive to be run again, beside what it saves: inputs, static values, what its code reaches."""

from __future__ import annotations

from collections.abc import Iterable
from mmap import mmap
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.reach import arrays_of
from ebbtide.tape.saved import SavedValue, parts_of

# Of each array but a few, which are in the share of a loop: its cell, its ticket in the ledger, and what tells that it
# does not change; and in one more operation that keeps it, too, no cell and no ticket. Measured of 100 to 800 arrays,
# with tables that double: 690 to 990 in the first of some operations, and 50 to 290 in each of the others.
_KEPT_BYTES, _SHARED_BYTES, _FEW = 992, 288, 8
# Of each of the caller's: what tells that it does not change.
_NOTED_BYTES = 240


@final
class Kept:
    """
    Counts what a time loop or a checkpointed function keeps, for as long as it lives, from its first run on.

    The function alone holds as much while it runs, and lets it go then: of several operations it holds the largest part
    at a time, which is in no budget (`Ledger.alone`), and not all of it. Nor is what the caller holds.

    Args:
        pager: That of the tape that the operation is going to be on; None where nobody looks.
        outlives: Whether all of it counts, as it is held beside what the function takes elsewhere.

    Attributes:
        cells: The holders in the ledger, which are never on disk: to page a part of such an array frees nothing.
        nbytes: Bytes of all arrays that are counted.
        unseen: Bytes of those that no tape saw when they were made.

    Memory:
        The arrays, which the operation keeps anyway.
    """

    __slots__ = ("_known", "_outlives", "_pager", "_theirs", "cells", "nbytes", "unseen")

    def __init__(self, pager: Any, *, outlives: bool = False) -> None:
        self._pager, self._outlives = pager, outlives
        self._known = set[int]()
        self.cells: list[SavedValue] = []
        self.nbytes = self.unseen = self._theirs = 0

    def reach(self, function: Any) -> None:
        """Count the arrays that code reaches, by closure or by name; see `arrays_of`."""
        if self._pager is not None:
            self.unseen += self._count(arrays_of(function))
            self._count(arrays := arrays_of(function, traced=True))
            theirs = len({id(owner) for array in arrays if self._pager.is_callers(owner := owner_of(array))})
            self._pager.overhead.count(theirs * _NOTED_BYTES)
            self._theirs += theirs

    def settle(self) -> None:
        """Count what tells of arrays of the caller's to the last byte: the reserve of a loop has no room for one."""
        if self._theirs:
            self._pager.overhead.settle()

    def add(self, values: Iterable[Any]) -> None:
        """Count the arrays that values of any level of tracing consist of."""
        if self._pager is not None:
            values = list(values)
            self.unseen += self._count([value for value in values if isinstance(value, np.ndarray)])
            self._count([part for value in values for part in parts_of(value)])

    def end_forward(self, statics: Iterable[Any]) -> None:
        """
        Count the static values that no code reaches, and leave room for what may come to be held again.

        The code after an operation may make such arrays for another one: on a tape that makes room for them, and plain
        NumPy does not. Time loops give up as much, as far as they can.
        """
        self.add(statics)
        if self.unseen and self._pager.ledger.limit is not None:
            self._pager.ledger.relieve(self._pager.ledger.live + self.unseen - self._pager.ledger.limit)

    def _count(self, arrays: list[np.ndarray]) -> int:
        """Count arrays; return the bytes of those that are new."""
        owners = {id(owner): owner for array in arrays if _is_own(owner := owner_of(array))}
        new = {key: one for key, one in owners.items() if key not in self._known and not self._pager.is_callers(one)}
        nbytes = sum([owner.nbytes for owner in new.values()])
        known, ledger = len(self._known), self._pager.ledger
        many = max(_FEW, known + len(new)) - max(_FEW, known)
        first = min(many, sum([not ledger.keeps(key) for key in new]))
        self._pager.overhead.count(first * _KEPT_BYTES + (many - first) * _SHARED_BYTES)
        self._known.update(new)
        self.nbytes += nbytes
        alone = 0 if self._outlives else self.nbytes
        self.cells += ledger.keep(new, _cell_of, alone, self._pager.counted_as)
        return nbytes


def _cell_of(owner: np.ndarray) -> SavedValue:
    return SavedValue(owner, None)


def _is_own(owner: np.ndarray) -> bool:
    """Return whether an array has memory, which is not that of a file."""
    return owner.nbytes > 0 and not owner.dtype.hasobject and not isinstance(owner.base, mmap)
