"""The dynamic programme behind schedules without a closed form: where to place the next snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

# Up to this length all places are searched. The best place may also jump later on: once in so many lengths, too.
FULL, REFRESH = 768, 64
# A table has so many lengths and so many cells at most; longer loops are split as Revolve does until they fit.
MOST_STEPS, MOST_CELLS = 2**15, 2**22
# Sums beyond a table that are remembered, of 180 bytes each. One question asks for a few thousand.
MOST_SUMS = 2**16


@final
@dataclass(frozen=True, slots=True)
class Splits:
    """
    For each length and each number of free slots, the least cost and what to do first.

    Args:
        costs: The least cost, of shape (rows, lengths + 1) and dtype float64; infinite where nothing can be done.
        places: The distance from this snapshot to the next, of the same shape and dtype int32; 0 where the
            alternative to a snapshot is at least as good.

    Memory:
        12 bytes for each row and length.
    """

    costs: NDArray[np.float64]
    places: NDArray[np.int32]

    @property
    def steps(self) -> int:
        """The largest length."""
        return self.costs.shape[1] - 1

    def cost(self, row: int, length: int) -> float:
        """Return one cost."""
        return self.costs.item(row, length)

    def place(self, row: int, length: int) -> int:
        """Return one place."""
        return self.places.item(row, length)

    def costs_of(
        self, rows: NDArray[np.int64], lengths: NDArray[np.int64], beyond: Callable[[int, int], float]
    ) -> NDArray[np.float64]:
        """Return many costs at once, nothing for lengths below 1; `beyond` gives one of a length beyond the table."""
        found = self.costs[rows, np.clip(lengths, 0, self.steps)]
        for place in np.flatnonzero(lengths > self.steps).tolist():
            found[place] = beyond(int(rows[place]), int(lengths[place]))
        return found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Recursion:
    """
    C(k, n) = min(A(k, n), min over j of forward * j + again + C(k, j) + R(k, n - j)), for 1 <= j < n.

    Args:
        rows: The number of rows k.
        single: C(k, 1), the cost of one step, whatever the row.
        forward: The cost of a forward step.
        again: What loading the snapshot costs.
        alternative: A(., n), of shape (rows,), from n and the costs of all smaller lengths.
        remainder: R(., n), of shape (rows,), from n and C(., n), of shape (rows,).
        window: Places that are searched for a length, half of them on each side of the last best one. Tests compare the
            results with a search over all places.
    """

    rows: int
    single: float
    forward: float
    again: float
    alternative: Callable[[int, NDArray[np.float64]], NDArray[np.float64]]
    remainder: Callable[[int, NDArray[np.float64]], NDArray[np.float64]]
    window: int

    def solve(self, steps: int) -> Splits:
        """
        Return the table for all lengths up to `steps`.

        The best place moves by few steps from one length to the next, so that a window around the last one is
        searched, for all rows at once, and all places now and then.

        Args:
            steps: The largest length; at least 1.

        Memory:
            Holds 16 bytes for each row and length beside the table, until it returns.
        """
        rows, window = self.rows, self.window
        width = steps + 1 + 2 * window
        costs = np.full((rows, steps + 1), np.inf)
        places = np.zeros((rows, steps + 1), np.int32)
        # Infinite columns on both sides let a window reach beyond the lengths that there are.
        left, right = np.full((rows, width), np.inf), np.full((rows, width), np.inf)
        search = _Search(left, right, window)
        costs[:, 0], costs[:, 1] = 0.0, self.single
        for length in range(1, steps + 1):
            if length > 1:
                best, place = search.all(length) if length <= FULL or length % REFRESH == 0 else search.near(length)
                other = self.alternative(length, costs)
                costs[:, length] = np.minimum(other, best)
                places[:, length] = np.where(other <= best, 0, place)
            found = costs[:, length]
            left[:, window + length] = found + (self.forward * length + self.again)
            right[:, window + length] = self.remainder(length, found)
        return Splits(costs, places)


@final
class _Search:
    """The least left[k, j] + right[k, n - j] for each row k, and the j of it."""

    __slots__ = ("_left", "_left_windows", "_right", "_right_windows", "_rows", "_start", "_window")

    def __init__(self, left: NDArray[np.float64], right: NDArray[np.float64], window: int) -> None:
        self._left, self._right, self._window = left, right, window
        # Windows are views; the second runs down, as n - j does.
        self._left_windows = sliding_window_view(left, window, axis=1)
        self._right_windows = sliding_window_view(right, window, axis=1)[:, :, ::-1]
        self._rows: NDArray[np.int64] = np.arange(left.shape[0])
        self._start = np.ones(left.shape[0], np.int64)

    def near(self, length: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Search the window."""
        rows, start = self._rows, self._start
        total = self._left_windows[rows, start + self._window]
        total += self._right_windows[rows, length - start + 1]
        offset = total.argmin(axis=1)
        place = start + offset
        self._start = np.maximum(place - self._window // 2, 1)
        return total[rows, offset], place

    def all(self, length: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Search all places."""
        last = self._window + length - 1
        total = self._left[:, self._window + 1 : last + 1] + self._right[:, last:self._window:-1]
        offset = total.argmin(axis=1)
        self._start = np.maximum(offset + 1 - self._window // 2, 1)
        return total[self._rows, offset], offset + 1


def leave_out_each(
    here: NDArray[np.float64], more: NDArray[np.float64], joined: NDArray[np.float64]
) -> NDArray[np.float64]:
    """
    Return the costs of all intervals without one snapshot, for each but the first.

    Args:
        here: The costs of the intervals that begin at each snapshot.
        more: The same with the room of one snapshot more.
        joined: The costs of those that begin at each but the last, each joined with the one after it.
    """
    before, after = np.cumsum(here) - here, np.cumsum(more[::-1])[::-1] - more
    return before[:-1] + joined + after[1:]


def divide_by_two(length: int, rest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """
    Return the intervals that `split` makes of a length with two states, from the last to the first, and their places.

    Each is shorter by one than the one behind it, but for one that is left out where the length is no sum of all.

    Args:
        length: The number of steps, more than the rest.
        rest: The last place is the first one that is at most so large; at least 2.

    Example:
        >>> divide_by_two(9, 2)
        (array([4, 3]), array([5, 2]))
    """
    last = (isqrt(8 * length - 7) + 1) // 2
    intervals = np.arange(last, 0, -1)
    intervals[length - last * (last - 1) // 2 :] -= 1
    places = length - np.cumsum(intervals)
    count = int(np.count_nonzero(places > rest)) + 1
    return intervals[:count], places[:count]


def sum_up(
    key: tuple[int, int],
    known: dict[tuple[int, int], float],
    needs: Callable[[tuple[int, int]], list[tuple[int, int]]],
    total: Callable[[tuple[int, int]], float],
) -> float:
    """
    Return a sum of sums, each of which is made once; they go deeper than calls may.

    Args:
        key: What it is of.
        known: Those that have been made; extended, and emptied before if they are more than `MOST_SUMS`.
        needs: Returns of what other ones a sum is made.
        total: Makes it, when they are known.
    """
    if len(known) > MOST_SUMS:
        known.clear()
    waiting, found = [key], 0.0
    while waiting:
        missing = [other for other in needs(waiting[-1]) if other not in known]
        if missing:
            waiting += missing
        else:
            last = waiting.pop()
            known[last] = found = total(last)
    return found
