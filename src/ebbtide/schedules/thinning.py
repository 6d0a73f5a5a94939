"""Which snapshot to do without, and when: the sums of closed forms behind `Online`."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import final

from ebbtide.schedules.revolve import count_forward


def count(length: int, slots: int) -> int:
    """Forward steps to reverse `length` steps from a snapshot before them, with `slots` states in all, at least one."""
    if length <= 1:
        return length
    if slots <= 1:
        return length * (length + 1) // 2
    # Without and with up to three repetitions, where nearly all intervals are, by hand.
    if length <= slots + 1:
        return 2 * length - 1
    if 2 * length <= (slots + 1) * (slots + 2):
        return 3 * length - slots - 2
    if 6 * length <= (slots + 1) * (slots + 2) * (slots + 3):
        return 4 * length - (slots + 2) * (slots + 3) // 2
    if slots == 2:
        # The least number of repetitions r with (r + 1)(r + 2)/2 >= length.
        repetitions = (isqrt(8 * length - 7) - 1) // 2
        return length * (repetitions + 1) - repetitions * (repetitions + 1) * (repetitions + 2) // 6
    return count_forward(length, slots)


@final
class Thinned:
    """
    What it takes to reverse the intervals between snapshots, with all of these or without one.

    Sums over intervals, from the first one on, are kept, as a sweep asks again and again after one snapshot was given
    up or stored: only the intervals from there on are added up again.

    Args:
        steps: The steps of the snapshots, two or more.
        slots: The largest number of snapshots.

    Memory:
        Holds a few numbers for each snapshot.
    """

    __slots__ = ("_early", "_gap", "_kept", "_last", "_near", "_slots", "_sums", "_tail", "spare", "steps")

    def __init__(self, steps: list[int], slots: int) -> None:
        self.steps = steps
        self._slots = slots
        # Of so many first intervals: forward steps with as many states as there are, and with one more; those without
        # one snapshot, less all intervals with one state more: the least, and the place of that snapshot, 0 for none.
        self._sums = [(0, 0, 0, 0)]
        self._near = 1
        self._add()

    def store(self, step: int) -> None:
        """Store a snapshot of a later step than all others."""
        self.steps.append(step)
        self._add()

    def give_up(self, place: int) -> None:
        """Give up the snapshot at a place, not the first; two or more are left."""
        del self.steps[place]
        del self._sums[place:]
        self._add()

    def replace(self, place: int, step: int) -> None:
        """Give up the snapshot at a place, not the first, and store one of a later step than all others."""
        del self.steps[place]
        del self._sums[place:]
        self.store(step)

    def _add(self) -> None:
        """Add up all intervals that are not yet in the sums."""
        steps, sums, slots = self.steps, self._sums, self._slots
        first, whole = len(sums) - 1, len(steps) - 1
        end, start = steps[-1], steps[first]
        here, one_more, least, spare = sums[-1]
        # The interval before, and the sum up to it.
        length, earlier = (start - steps[first - 1], sums[-2][0]) if first > 0 else (0, 0)
        for interval in range(first, whole):
            before, length, states = length, steps[interval + 1] - start, slots - interval
            if before + length <= states + 1:
                # What `count` returns for each of them: nearly all intervals are short.
                kept = shorter = 2 * length - 1
                joined = kept + 2 * before
            else:
                kept, shorter = count(length, states), count(length, states + 1)
                joined = count(before + length, states + 1)
            one_more += shorter
            # Two intervals join, and all later ones have one state more. Of equal ones the first: early intervals have
            # the most states, and bear it best to become longer.
            if before and (spare == 0 or earlier + joined - one_more < least):
                least, spare = earlier + joined - one_more, interval
            earlier, here = here, here + kept
            sums.append((here, one_more, least, spare))
            if before and end - start + before == whole - interval + 1:
                # From here on each interval is one step, and it is the same without any of these snapshots.
                break
            start += length
        rest = whole + 1 - len(sums)
        self._gap = end - steps[-2]
        self._last = here + rest - 1 if rest else earlier
        # The states of the steps behind the latest snapshot if another one is given up.
        self._tail = slots - whole + 1
        self._kept = self._last + count(self._gap, self._tail)
        self._early, self.spare = least + one_more + rest, spare

    def find_least(self, count_tail: Callable[[int, int], int]) -> tuple[int, int, int]:
        """
        Return the place, not the first, of the snapshot without which the fewest forward steps are left.

        Args:
            count_tail: Forward steps from a snapshot, the last one, to the end, with so many states.

        Returns:
            The place, the number of steps without it, and the number with all.
        """
        latest, states = self.steps[-1], self._tail
        kept = self._kept + count_tail(latest, states - 1)
        last, early = self._last + count_tail(self.steps[-2], states), self._early + count_tail(latest, states)
        if self.spare > 0 and early <= last:
            return self.spare, early, kept
        return len(self.steps) - 1, last, kept

    def pays(self, length: int) -> bool:
        """
        Return whether to store a snapshot so many steps after the latest.

        All slots are taken. If the loop ended one step later: that step is all that follows the new snapshot, and the
        others follow the latest that is left, with two states.
        """
        if length <= 0:
            return False
        bound = self._kept + (length + 1) * (length + 2) // 2
        # The latest, or another one, gives its slot.
        if self._last + count(self._gap + length, 2) < bound:
            return True
        return self.spare > 0 and self._early + count(length, 2) < bound

    def find_place(self, most: int) -> int:
        """Return after how many steps it first pays, at most so many."""
        # It changes little from one snapshot to the next.
        self._near = find_first(self.pays, most, self._near)
        return self._near

    def find_spare(self, length: int) -> int:
        """Return the place of the snapshot to do without so many steps after the latest."""
        if self.spare > 0 and self._early + count(length, 2) <= self._last + count(self._gap + length, 2):
            return self.spare
        return len(self.steps) - 1


def find_first(holds: Callable[[int], bool], most: int, near: int = 1) -> int:
    """
    The least number from 1 on for which a condition holds, once and for all from there; `most` if there is none.

    Args:
        holds: The condition.
        most: The largest number to return.
        near: Where to begin, at least 1.
    """
    low, high, width = 0, near, 1
    if holds(high):
        while high > width and holds(high - width):
            high, width = high - width, 2 * width
        low = max(0, high - width)
    else:
        while high < most and not holds(high):
            low, high, width = high, high + width, 2 * width
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
