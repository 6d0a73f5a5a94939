"""The table behind `Hierarchical`: the least cost for each length and each number of slots on disk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from math import inf
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.schedules.costs import Costs
from ebbtide.schedules.revolve import count_forward, count_reach, split
from ebbtide.schedules.splits import MOST_CELLS, MOST_STEPS, Recursion, divide_by_two, sum_up

T = TypeVar("T", float, NDArray[np.float64])

# Up to so many steps a table has all lengths, and beyond at least so many: slots on disk that are more than its cells
# then allow have no row. With one for each of 10,000 it had 419 lengths, and came to 5.7 times the cost of 400 slots.
_ALL_LENGTHS, _LEAST_LENGTHS = 2**14, 2**13


def count_rows(steps: int, disk: int) -> int:
    """Return the number of rows of a table for a loop of so many steps, and so many slots on disk."""
    steps, disk = max(1, steps), max(1, disk)
    return min(disk, steps, MOST_CELLS // (steps if steps <= _ALL_LENGTHS else _LEAST_LENGTHS))


def count_lengths(steps: int, rows: int) -> int:
    """Return the number of lengths of a table of so many rows for a loop of so many steps."""
    return max(1, min(steps, MOST_STEPS, MOST_CELLS // rows))


@final
class HierarchicalTable:
    """
    P(l, m): the least cost of l steps if the initial state is in hand and in one of m slots on disk.

    P(l, m) = min(M(l), min over j of j u + O(l - j, m - 1) + r + P(j, m)), O(l, m) = min(M(l), w + P(l, m)), where M is
    the cost with the slots in memory alone, by the closed form.

    Args:
        steps: The number of steps of the loop.
        memory: Slots in memory.
        disk: Slots on disk, at least 1; see `count_rows`. If that is less, one more row is for as many slots as are of
            use, which tells what to do where there are these.
        costs: What a forward step, a write and a read cost.

    Memory:
        12 bytes for each row and length; at most 50 MB, and 15 MB for lengths beyond these.
    """

    __slots__ = ("_alone", "_enough", "_known", "_splits", "costs", "disk", "memory")

    def __init__(self, steps: int, memory: int, disk: int, costs: Costs) -> None:
        self.memory, self.costs = memory, costs
        self.disk = count_rows(steps, disk)
        length = count_lengths(steps, self.disk)
        alone = self._find_alone(length)
        rows = self.disk + (self.disk < min(disk, steps))
        column = np.empty(rows)

        def alternative(length: int, _: NDArray[np.float64]) -> NDArray[np.float64]:
            """The slots in memory alone, whatever the number of those on disk."""
            column.fill(alone[length])
            return column

        def remainder(length: int, found: NDArray[np.float64]) -> NDArray[np.float64]:
            """What follows: one slot less on disk; nothing is written if that is dearer."""
            after = np.empty(rows)
            after[0], after[1:] = alone[length], np.minimum(alone[length], costs.write + found[:-1])
            if rows > self.disk:
                after[-1] = min(alone[length], costs.write + found[-1])
            return after

        self._splits = Recursion(
            rows=rows,
            single=costs.forward,
            forward=costs.forward,
            again=costs.read,
            alternative=alternative,
            remainder=remainder,
            window=64,
        ).solve(length)
        self._enough = self._find_enough(alone) if rows > self.disk else None
        self._known: dict[tuple[int, int], float] = {}
        # For sums beyond the table.
        self._alone = alone if length < steps else alone[:0]

    def _find_enough(self, alone: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return how many slots are in use at most, for each length, where there are as many as are of use."""
        places: list[int] = self._splits.places[-1].tolist()
        costs: list[float] = (self.costs.write + self._splits.costs[-1]).tolist()
        enough = [1, 1]
        for length in range(2, len(places)):
            place, after = places[length], length - places[length]
            beyond = enough[after] if costs[after] < alone.item(after) else 0
            enough.append(max(1 + beyond, enough[place]) if place else 1)
        return np.array(enough)

    def _find_alone(self, length: int) -> NDArray[np.float64]:
        """The cost with the slots in memory alone, for all lengths."""
        alone = np.full(length + 1, inf)
        if self.memory > 0:
            # Each further step costs itself and the number of repetitions; see `count_forward`.
            reaches = takewhile(lambda reach: reach < length, (count_reach(self.memory, r) for r in range(length)))
            repetitions = np.searchsorted(np.array([*reaches, length], dtype=np.int64), np.arange(1, length + 1))
            alone[1:] = self.costs.forward * np.cumsum(repetitions + 1)
        alone[0], alone[1] = 0.0, self.costs.forward
        return alone

    def alone(self, length: int, memory: int) -> float:
        """Return the cost with so many slots in memory alone."""
        if memory < 1:
            return self.costs.forward if length == 1 else inf
        return self.costs.forward * count_forward(length, memory)

    def serves(self, steps: int, disk: int) -> bool:
        """Return whether it tells of a loop of so many steps what the table of that would."""
        rows = count_rows(steps, disk)
        return self.disk >= rows and self._splits.steps >= count_lengths(steps, rows)

    def _row(self, disk: int, length: int) -> int:
        """Return the row for so many slots on disk and a length of the table."""
        if disk > self.disk and self._enough is not None and self._enough.item(length) <= disk:
            return self.disk
        return min(disk, self.disk) - 1

    def place(self, disk: int, length: int) -> int:
        """Return the distance to the next slot on disk, 0 if the slots in memory do as well alone."""
        if length <= self._splits.steps:
            return self._splits.place(self._row(disk, length), length)
        return split(length, disk)

    def stored(self, disk: int, length: int) -> float:
        """Return P: the state in hand is stored in one of so many slots on disk."""
        if length <= self._splits.steps:
            return self._splits.cost(self._row(disk, length), length)
        row = min(disk, self.disk) - 1
        known = self._known.get((row, length))
        return sum_up((row, length), self._known, self._needs, self._total) if known is None else known

    def all_stored(self, disk: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return `stored` of many intervals at once, of numbers of slots of at least 1."""
        rows = np.minimum(disk, self.disk) - 1
        if self._enough is not None:
            enough = self._enough[np.clip(lengths, 0, self._splits.steps)]
            rows[(disk > self.disk) & (enough <= disk) & (lengths <= self._splits.steps)] = self.disk
        return self._splits.costs_of(rows, lengths, lambda row, length: self.stored(row + 1, length))

    def fresh(self, disk: int, length: int) -> float:
        """Return O: the state in hand is not stored, and so many slots on disk are free."""
        alone = self.alone(length, self.memory)
        return min(alone, self.costs.write + self.stored(disk, length)) if disk > 0 else alone

    def _places(self, key: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Beyond the table yield the lengths and the places, which are those of `Revolve` on disk."""
        row, length = key
        while row > 1 and length > self._splits.steps:
            place = split(length, row + 1)
            yield length, place
            length = place

    def _needs(self, key: tuple[int, int]) -> list[tuple[int, int]]:
        after = [length - place for length, place in self._places(key)]
        return [(key[0] - 1, length) for length in after if key[0] > 0 and length > self._splits.steps]

    def _total(self, key: tuple[int, int]) -> float:
        """P, interval after interval, from the last to the first."""
        total, place, costs = 0.0, key[1], self.costs
        if key[0] == 0:
            return self._run_again(place)
        if key[0] == 1:
            # All at once, as of longer loops with few slots these are thousands, and asked for by hundreds.
            lengths, places = divide_by_two(place, self._splits.steps)
            total = float((costs.forward * places + self._one_left(lengths) + costs.read).sum())
            return total + self.stored(2, int(places[-1]))
        for length, place in self._places(key):
            total += costs.forward * place + self.fresh(key[0], length - place) + costs.read
        return total + self.stored(key[0] + 1, place)

    def _run_again(self, length: T) -> T:
        """Return P beyond the table for one slot on disk, from which each step runs again."""
        whole, costs = self._splits.steps, self.costs
        runs = (length * (length - 1) - whole * (whole - 1)) / 2
        again = self.alone(1, self.memory) + costs.read
        return costs.forward * runs + (length - whole) * again + self._splits.cost(0, whole)

    def _one_left(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return `fresh` of many lengths, the first of them the longest, where one slot on disk is free."""
        if len(self._alone) <= lengths[0]:
            self._alone = self._find_alone(int(lengths[0]))
        whole = self._splits.steps
        within = self._splits.costs[0, np.minimum(lengths, whole)]
        stored = np.where(lengths > whole, self._run_again(lengths.astype(np.float64)), within)
        return np.minimum(self._alone[lengths], self.costs.write + stored)
