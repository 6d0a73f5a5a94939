"""How much of what a tape saves finds room on the disk of a budget."""

from __future__ import annotations

from typing import final

from ebbtide.ledger import SAVED, Ledger
from ebbtide.tape.holders import is_pageable, stored_nbytes
from ebbtide.tape.saved import SavedValue


@final
class DiskRoom:
    """
    Follows the room on disk for saved values, also where a budget was passed and nothing is written any more.

    Args:
        ledger: The account, whose quota says how much there is.

    Attributes:
        is_full: Whether the disk itself is full.
    """

    __slots__ = ("_dropped", "_ledger", "is_full")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._dropped, self.is_full = ledger, 0, False

    @property
    def left(self) -> int | None:
        """The bytes of disk that there are; None for any number. Where they may be too few, what is free goes back."""
        if self.is_full:
            return 0
        quota = self._ledger.quota
        if quota is None or (left := quota.left) is None:
            return None
        # Of each file up to 1 MiB waits for that. With its header a value takes less than twice its bytes.
        if left - self._dropped < 2 * self._ledger.held[SAVED]:
            quota.whole.return_space()
            left = quota.left or 0
        return left - self._dropped

    def would_have(self, cell: SavedValue) -> bool:
        """Return whether a saved value that is given up would be there, and count it as if it were."""
        if not is_pageable(cell):
            return False
        stored, left = stored_nbytes(cell.type.nbytes), self.left
        if left is not None and stored > left:
            return False
        self._dropped += stored
        return True
