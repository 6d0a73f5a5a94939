"""When a loop saves where it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np


@final
@dataclass(frozen=True, slots=True)
class Every:
    """
    When to save: after a number of steps, or else so that saving takes a small part of the time.

    Args:
        steps: Save each time that so many steps were done, whatever the time; None to go by the time.
        seconds: The least time between two saves.
        share: The part of the time that saving may take.
    """

    steps: int | None = None
    seconds: float = 0.0
    share: float = 0.02

    def is_due(self, steps: int, seconds: float, cost: float) -> bool:
        """
        Return whether to save now.

        Args:
            steps: Those done since the last save.
            seconds: The time since the last save; for many processes an agreed one.
            cost: The seconds that the last save took, 0 if there was none; agreed too.

        Example:
            >>> Every(steps=10).is_due(9, 1e6, 0.0), Every().is_due(1, 4.0, 0.1), Every().is_due(1, 6.0, 0.1)
            (False, False, True)
        """
        if self.steps is not None:
            return steps >= self.steps
        return steps > 0 and seconds >= max(self.seconds, cost / self.share)

    def count(self, each: float, cost: float, before: int) -> int:
        """
        Return after how many steps the next save is due, where they are all that processes have in common.

        Args:
            each: The seconds that a step takes.
            cost: The seconds that a save takes.
            before: After how many the last one was: the first of a run may tell little, so it grows by steps.

        Example:
            >>> Every().count(0.01, 0.02, 40), Every().count(0.01, 0.02, 1), Every(seconds=1.0).count(0.1, 0.0, 8)
            (100, 4, 10)
        """
        wanted = max(self.seconds, cost / self.share) / max(each, 1e-9)
        return max(1, math.ceil(min(wanted, 4 * before)))


def every(interval: float | None = None) -> Every:
    """
    Return the policy that an int (steps), a float (seconds) or None (at most 2% of the time) stands for.

    Raises:
        ValueError: It is neither, or not greater than 0.

    Example:
        >>> every(10).steps, every(30.0).seconds, every().share
        (10, 30.0, 0.02)
    """
    if interval is None:
        return Every()
    if isinstance(interval, bool) or not isinstance(interval, (int, float, np.integer)) or not 0 < interval < np.inf:
        raise ValueError(
            "The interval between saves is a number of steps (an int) or of seconds (a float), greater than 0, or None "
            f"to let saving take at most 2% of the time; not {interval!r}."
        )
    return Every(seconds=interval) if isinstance(interval, float) else Every(steps=int(interval))
