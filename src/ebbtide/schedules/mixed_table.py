"""The tables behind `Mixed`: forward steps for each length and each number of free units that can occur."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from math import inf
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.schedules.revolve import split
from ebbtide.schedules.splits import MOST_CELLS, MOST_STEPS, Recursion, Splits, divide_by_two, sum_up

T = TypeVar("T", float, NDArray[np.float64])

# No table tells more numbers of free units apart; those between two of them count as the lower one.
MOST_LEVELS = 512
# Places that are searched for a length. `Hierarchical` does with fewer.
WINDOW = 128


@final
class MixedTable:
    """
    The least numbers of forward steps by the recursion of Maddison (2024), for sizes of any ratio.

    That recursion stores the saved values of a step wherever they fit. It is enough to do so where those of all steps
    up to the end fit: if a restart state came after them, it could as well come first. Let j steps lie between the two,
    and m steps come last: then 1 + j + C(f - saved - restart, m) + C(f - saved, j) is at least
    j + 1 + C(f - restart, m) + C(f, j + 1), as the room for saved values spares one of the m steps a second run; if
    none of them is run twice, j + C(f - restart, m + 1) + C(f, j) is no more, with m + 1 saved steps at the end. So
    stored steps are neighbors, and what two of them share is held once.

    Args:
        steps: The number of steps of the loop.
        units: The size of the memory for snapshots.
        restart: The size of one restart state.
        saved: The size of what one step saves.

    Memory:
        12 bytes for each row (a number of free units that can occur) and length; at most 50 MB, and 15 MB for lengths
        beyond these.
    """

    __slots__ = ("_known", "_levels", "_restart", "_splits", "exact", "steps")

    def __init__(self, steps: int, units: int, restart: int, saved: int) -> None:
        self._levels, thinned = _find_levels(units, restart, saved)
        self._restart = restart
        rows = len(self._levels)
        length = max(1, min(steps, MOST_STEPS, MOST_CELLS // rows))
        self._splits = _solve(self._levels, restart, saved, length)
        self._known: dict[tuple[int, int], float] = {}
        self.steps = steps
        self.exact = not thinned and length >= steps

    def row(self, free: int) -> int:
        """Return the row for a number of free units; less than none is none."""
        return max(0, bisect_right(self._levels, free) - 1)

    def level(self, row: int) -> int:
        """Return the number of free units that a row is for."""
        return self._levels[row]

    def place(self, row: int, length: int) -> int:
        """Return the distance to the next snapshot, 0 to store saved values, for `length >= 2`."""
        if length <= self._splits.steps:
            return self._splits.place(row, length)
        return split(length, max(1, self._levels[row] // self._restart))

    def cost(self, row: int, length: int) -> float:
        """Return the number of forward steps, infinite if nothing can be stored and more than one step is left."""
        if length <= self._splits.steps:
            return self._splits.cost(row, length)
        known = self._known.get((row, length))
        return sum_up((row, length), self._known, self._needs, self._total) if known is None else known

    def costs_of(self, free: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return many costs at once for numbers of free units, where nothing can be stored those of `run_each`."""
        rows = np.maximum(0, np.searchsorted(self._levels, free, side="right") - 1)
        found = self._splits.costs_of(rows, lengths, self.cost)
        return np.where(found < inf, found, run_each(lengths.astype(np.float64)))

    def _places(self, key: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Beyond the table yield the lengths and the places, which are those of `Revolve`."""
        row, length = key
        states = self._levels[row] // self._restart
        while states > 2 and length > self._splits.steps:
            place = split(length, states)
            yield length, place
            length = place

    def _needs(self, key: tuple[int, int]) -> list[tuple[int, int]]:
        above, after = self._above(key[0]), [length - place for length, place in self._places(key)]
        return [(above, length) for length in after if length > self._splits.steps]

    def _total(self, key: tuple[int, int]) -> float:
        """Forward steps, interval after interval, from the last to the first."""
        row, place = key
        states, whole, total, above = self._levels[row] // self._restart, self._splits.steps, 0.0, self._above(row)
        if states == 0:
            return inf
        if states == 1:
            return self._run_again(row, place)
        if states == 2:
            # All at once, as of longer loops with few states these are thousands, and asked for by hundreds.
            lengths, places = divide_by_two(place, whole)
            beyond = self._run_again(above, lengths[lengths > whole]).sum()
            within = self._splits.costs[above, lengths[lengths <= whole]].sum()
            return float(places.sum() + beyond + within) + self.cost(row, int(places[-1]))
        for length, place in self._places(key):
            total += place + self.cost(above, length - place)
        return total + self.cost(row, place)

    def _run_again(self, row: int, length: Any) -> Any:
        """Return the cost beyond the table where one state is stored, the first."""
        whole = self._splits.steps
        return (length * (length + 1) - whole * (whole + 1)) // 2 + self.cost(row, whole)

    def _above(self, row: int) -> int:
        """Return the row that is left when a restart state is stored."""
        return self.row(self._levels[row] - self._restart)


def count_rows(units: int, restart: int, saved: int) -> int:
    """Return the number of rows of a table, before it is made."""
    return len(_find_levels(units, restart, saved)[0])


def run_each(length: T) -> T:
    """Return the number of forward steps if each step is run from the first one on."""
    return length * (length + 1) / 2


def count_bytes(steps: int, rows: int) -> tuple[int, int]:
    """
    Return the bytes of a table of all lengths, and the largest number of bytes while it is made.

    Args:
        steps: The number of steps of the loop, at most `MOST_STEPS` and such that there are at most `MOST_CELLS` cells.
        rows: The numbers of free units that can occur: at most one more than there are units.

    Returns:
        (bytes held, bytes while it is made).

    Example:
        >>> count_bytes(1000, 21)
        (257188, 997020)
    """
    # Costs and places; while they are made, two more tables of costs with windows on both sides, and sums of them;
    # `Hierarchical` has one more row.
    held = 12 * rows * (steps + 1) + 40 * rows + 2**12
    return held, held + rows * (24 * (steps + 1) + 48 * WINDOW) + 8 * steps + 2**16 + 2**15


def _find_levels(units: int, restart: int, saved: int) -> tuple[list[int], bool]:
    """
    Return the numbers of free units that have rows, ascending, and whether a sweep meets others.

    They are the same for all lengths of loops, so that an answer does not depend on what was asked before.
    """
    least, levels = min(restart, saved), {0}
    most = units // restart
    for count in range(min(most, MOST_LEVELS) + 1):
        rest = units - count * restart
        levels.update(rest - other * saved for other in range(min(rest // saved, MOST_LEVELS) + 1))
        if len(levels) > MOST_LEVELS:
            break
    else:
        return sorted({level if level >= least else 0 for level in levels}), False
    # Saved values are stored last: as long as there is a choice, what is not free holds restart states.
    few, half = most < MOST_LEVELS - 1, MOST_LEVELS // 2
    counts = set(range(max(0, most + 1 - (MOST_LEVELS if few else half)), most + 1))
    if not few:
        # Where little is free, each state counts: all of these, and of the others as many.
        counts.update((most - half) * k // (half - 2) for k in range(half - 1))
    found = {units - count * restart for count in counts}
    return sorted({0} | {level for level in found if level >= least}), not few


def _solve(levels: list[int], restart: int, saved: int, length: int) -> Splits:
    """The recursion: save the values of all steps, or store the first one's restart state and split."""
    free = np.array(levels)
    # Row -1 is the appended one, for what does not fit.
    after_restart = np.where(free >= restart, np.searchsorted(free, free - restart, side="right") - 1, -1)
    column = np.full(len(levels) + 1, np.inf)
    # What the last step saves is at hand.
    most_saved = free // saved + 1

    def alternative(steps: int, _: NDArray[np.float64]) -> NDArray[np.float64]:
        """The saved values of all steps are stored."""
        return np.where(steps <= most_saved, float(steps), np.inf)

    def remainder(_: int, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """What follows a restart state."""
        column[:-1] = costs
        return column[after_restart]

    return Recursion(
        rows=len(levels),
        single=1.0,
        forward=1.0,
        again=0.0,
        alternative=alternative,
        remainder=remainder,
        window=WINDOW,
    ).solve(length)
