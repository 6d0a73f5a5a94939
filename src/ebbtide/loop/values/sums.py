"""Checksums of what steps read or gave, few however many steps there are, that are compared when these run again."""

from __future__ import annotations

from array import array
from copy import copy
from typing import final

import numpy as np

# Of this many sums those of neighboring steps become one.
_MOST = 512


@final
class Sums:
    """
    Checksums of steps, by which is told which have changed when they run again.

    A short loop has one for each step. In one of 512 steps or more, a sum of those of neighboring steps is kept. It is
    compared when the reverse sweep has passed all of these, each of which it has once, whatever runs again.

    Attributes:
        total: A sum of the checksums of all steps.
        spacing: How many steps share a sum.

    Memory:
        8 bytes for each sum, at most 4 KiB.
    """

    __slots__ = ("_begin", "_end", "_in_order", "_sum", "_sums", "spacing", "total")

    def __init__(self) -> None:
        self._in_order = False  # whether the steps run again one after the other, from the first
        self._sum: int | None = None  # of the steps of a row that the sweep has passed
        self._begin = self._end = 0  # the steps of which there are checksums
        self._sums, self.spacing = array("q"), 1
        self.total = 0

    def again(self, first: int, total: int) -> Sums:
        """
        Return those of steps that run again in their order; others may run meanwhile.

        Args:
            first: The first of them.
            total: The sum of the checksums of the steps before it.
        """
        made = copy(self)
        passed = np.frombuffer(self._sums, np.int64)[: (first - self._begin) // self.spacing]
        made._in_order, made._sum = True, total ^ int(np.bitwise_xor.reduce(passed))
        return made

    def meet(self, index: int, found: int) -> tuple[int, int] | None:
        """
        Note the checksum of a step that runs, or check it.

        Args:
            index: The step.
            found: Its checksum.

        Returns:
            The first and the last of the steps of which one has changed; None where no change is known.
        """
        if self._in_order:
            return self._compare(index, found)
        if index < self._end:
            is_known = self.spacing == 1 and index >= self._begin
            return (index, index) if is_known and self._sums[index - self._begin] != found else None
        if index > self._end:  # a run that was resumed begins later
            self._begin, self._sums, self.spacing, self.total = index, array("q"), 1, 0
        self._end = index + 1
        place = (index - self._begin) // self.spacing
        if place == len(self._sums):
            self._sums.append(0)
        self._sums[place] ^= found
        self.total ^= found
        if len(self._sums) == _MOST and (self._end - self._begin) % self.spacing == 0:
            before = np.frombuffer(self._sums, np.int64)
            self._sums = array("q", (before[::2] ^ before[1::2]).tobytes())
            self.spacing *= 2
        return None

    def _compare(self, index: int, found: int) -> tuple[int, int] | None:
        """Check steps that share a sum, when the last of them runs again."""
        place, rest = divmod(index - self._begin, self.spacing)
        self._sum = found ^ (self._sum or 0)
        if rest == self.spacing - 1 or index == self._end - 1:
            passed, self._sum = self._sum, 0
            if passed != self._sums[place]:
                return index - rest, index
        return None

    def swept(self, index: int, found: int) -> tuple[int, int] | None:
        """
        Check steps that share a sum, when the last of them has been swept.

        Args:
            index: The step that was swept.
            found: Its checksum when it was taped.

        Returns:
            The first and the last of the steps of which one has changed; None where no change is known.
        """
        if index < self._begin:
            return None
        place, rest = divmod(index - self._begin, self.spacing)
        if rest == self.spacing - 1 or index == self._end - 1:
            self._sum = 0
        if self._sum is not None:  # else the sweep was taken up among them
            self._sum ^= found
            if not rest:
                passed, self._sum = self._sum, None
                if passed != self._sums[place]:
                    return index, min(index + self.spacing, self._end) - 1
        return None
