"""How much of what a tape saves finds room on the disk of a budget."""

from __future__ import annotations

from typing import final

from ebbtide.ledger import Ledger
from ebbtide.tape.holders import is_pageable, stored_nbytes
from ebbtide.tape.saved import SavedValue


@final
class DiskRoom:
    """
    Follows the room on disk for saved values, also where a budget was passed and nothing is written any more.

    Args:
        ledger: The account, whose quota says how much there is.
    """

    __slots__ = ("_dropped", "_ledger")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._dropped = ledger, 0

    @property
    def left(self) -> int | None:
        """The bytes of disk that there are, when what is free in each file has gone back; None for any number."""
        if (quota := self._ledger.quota) is None:
            return None
        quota.whole.return_space()
        return None if (left := quota.left) is None else left - self._dropped

    def would_have(self, cell: SavedValue) -> bool:
        """Return whether a saved value that is given up would be there, and count it as if it were."""
        if not is_pageable(cell):
            return False
        stored, left = stored_nbytes(cell.type.nbytes), self.left
        if left is not None and stored > left:
            return False
        self._dropped += stored
        return True
