"""The room on disk for saved values, while they are written and where sizes alone are left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ebbtide.arrays.array_type import type_of
from ebbtide.ledger import SAVED, Ledger
from ebbtide.quota import Quota
from ebbtide.tape.disk_room import DiskRoom
from ebbtide.tape.holders import stored_nbytes
from ebbtide.tape.saved import SavedValue

VALUE = np.ones(1 << 14)


class Part:
    """A file with bytes in use, and others that it gives back when it is asked."""

    def __init__(self, used: int, free: int) -> None:
        self.used, self.free = used, free

    @property
    def allocated(self) -> int:
        return self.used + self.free

    def return_space(self) -> None:
        self.free = 0


def room(limit: int | None) -> tuple[Ledger, Quota, DiskRoom]:
    """The room in an account with a quota."""
    ledger = Ledger(watched=True)
    ledger.quota = quota = Quota(limit)
    return ledger, quota, DiskRoom(ledger)


def cell(value: Any) -> SavedValue:
    """A saved value."""
    made = SavedValue(value, None)
    made.type = type_of(value)
    return made


@pytest.mark.parametrize("limit", [None, 10 * VALUE.nbytes])
def test_what_there_is(limit: int | None) -> None:
    """The quota says it; where the disk itself is full there is nothing, whatever that says."""
    _, _, found = room(limit)
    assert found.left == limit
    found.is_full = True
    assert found.left == 0
    assert not found.would_have(cell(VALUE))


def test_what_is_free_goes_back_where_there_may_be_too_little() -> None:
    """Of a file with free bytes they count as taken until saved values might need them."""
    ledger, quota, found = room(10_000)
    part = Part(3000, 2000)
    quota.add(part)
    assert found.left == 5000
    ledger.add(SAVED, 2501)
    assert (found.left, part.free) == (7000, 0)


def test_what_would_be_there_is_counted_and_no_more_than_fits() -> None:
    """Three values find room, the fourth and what is too small for a page do not."""
    _, _, found = room(3 * stored_nbytes(VALUE.nbytes) + 1)
    assert [found.would_have(cell(VALUE)) for _ in range(4)] == [True, True, True, False]
    assert not found.would_have(cell(np.ones(4)))
    assert found.left == 1
