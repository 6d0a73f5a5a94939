"""What the code before a loop saved, and how much of it waits on disk while the loop runs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ebbtide.agree import is_alone
from ebbtide.arrays.context import current
from ebbtide.errors import BudgetError
from ebbtide.loop.planning.candidates import forget_table
from ebbtide.loop.planning.plan import Plan
from ebbtide.loop.stepping.given import in_region
from ebbtide.storage import StorageFullError, entry_nbytes

# Parts of what could wait on disk that are tried, each for the price of one more plan.
_PARTS = (0.5, 1.0)


def _pager_of(region: Any) -> Any:
    """Return the pager of the code around the steps of a loop, if that may write to disk; else None."""
    pager: Any = region.outer.pager
    may_page = pager is not None and pager.on_disk and not in_region(current().capture)
    return pager if may_page else None


def page_half(region: Any, limit: int | None) -> None:
    """Let what was saved before a loop wait on disk until half of the budget is there, if that is allowed."""
    pager = _pager_of(region)
    if pager is not None and limit is not None:
        pager.reserve(limit // 2)


def may_page_more(region: Any) -> bool:
    """Return whether `page_more` is of use; of many processes each would find that otherwise, and none does it."""
    pager = _pager_of(region)
    return pager is not None and pager.ledger.limit is not None and is_alone()


def page_more(region: Any, plan: Plan, disk: int, make: Callable[[int, int], Plan]) -> int:
    """
    Let more of what was saved before a loop wait on disk, where the loop is the faster for it; return the bytes freed.

    Such a value is written once and read once, and a restart state in its place may save many steps. What has gone to
    disk by now did so for the first step to run, value by value: with some bytes more it can be one less, and less
    is left to the loop.

    Args:
        region: The region of the steps, of which `may_page_more` holds.
        plan: The plan without that.
        disk: Bytes of disk that are left.
        make: Makes the plan for so many bytes more of memory, and so many less of disk.
    """
    pager: Any = region.outer.pager
    able, freed = _fitting(pager.pageable, disk), pager.paged
    parts = [bisect_left(able, (part * (able[-1][0] + freed) - freed, 0)) for part in _PARTS]
    if not any(parts):
        return 0
    forget_table(plan.schedule)  # before those of others are made

    def judged(place: int) -> tuple[float, int]:
        """Return the time of the plan with so many values more on disk, and of their transfers; and their bytes."""
        more, stored = able[place]
        try:
            found = make(more, stored)
        except BudgetError:
            return math.inf, more
        transfers = -(-stored // plan.sizes.stored)
        return found.predicted_time + plan.costs.time(forward=0, writes=transfers, reads=transfers), more

    time, more = min([judged(place) for place in parts if place])
    if time >= plan.predicted_time - plan.measuring_time:
        return 0
    with suppress(StorageFullError):  # what others hold as well frees nothing, and more goes
        pager.reserve(pager.ledger.limit - pager.ledger.live + more)
    return int(pager.paged) - freed


def _fitting(values: list[Any], disk: int) -> list[tuple[int, int]]:
    """Return what is freed with so many of some values on disk, as many as fit, and what they take there."""
    found = [(0, 0)]
    for value in values:
        nbytes, stored = found[-1][0] + value.nbytes, found[-1][1] + entry_nbytes([value])
        if stored > disk:
            break
        found.append((nbytes, stored))
    return found
