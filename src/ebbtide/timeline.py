"""What is held over time, for a picture of it."""

from __future__ import annotations

import time
from typing import final

import numpy as np

# A timeline of more points than this is thinned: a picture has some thousand columns.
_MOST_POINTS = 4096


@final
class Timeline:
    """
    Bytes held by kind over time, thinned so that a million steps need no more room than a thousand.

    Args:
        kinds: The number of kinds.

    Attributes:
        most: For each kind the most bytes that were held of it, exactly.
        most_held: The most bytes that were held of all kinds together, exactly.

    Memory:
        200 KiB, allocated when it is made: to watch does not change what is watched.
    """

    __slots__ = (
        "_count", "_held", "_largest", "_phases", "_skipped", "_start", "_stride", "_times", "most", "most_held",
    )  # fmt: skip

    def __init__(self, kinds: int) -> None:
        self._times = np.zeros(_MOST_POINTS)
        self._held = np.zeros((_MOST_POINTS, kinds), np.int64)
        self._phases = np.zeros(_MOST_POINTS, bool)
        self._start = time.perf_counter()
        self._count = 0
        self._stride = 1
        self._skipped = 0
        self.most = [0] * kinds
        self.most_held = 0
        self._largest: tuple[float, list[int], bool] | None = None

    def record(self, held: list[int], phase: str) -> None:
        """Add a point; of the points that are thinned out, the one with most bytes stays."""
        total = sum(held)
        if self._largest is None or total >= sum(self._largest[1]):
            self._largest = (time.perf_counter() - self._start, held, phase == "reverse")
        self.most_held = max(self.most_held, total)
        self.most = list(map(max, self.most, held))
        self._skipped += 1
        if self._skipped < self._stride:
            return
        k = self._count
        self._times[k], self._held[k], self._phases[k] = self._largest
        self._count += 1
        self._largest, self._skipped = None, 0
        if self._count == _MOST_POINTS:
            self._thin()

    def _thin(self) -> None:
        """Keep of each two points the one with more bytes."""
        total = self._held.sum(axis=1)
        pairs = np.arange(0, _MOST_POINTS, 2)
        kept = pairs + (total[pairs + 1] > total[pairs])
        self._count = len(kept)
        for column in (self._times, self._held, self._phases):
            column[: self._count] = column[kept]
        self._stride *= 2

    @property
    def points(self) -> list[tuple[float, tuple[int, ...], str]]:
        """The points: (seconds since the start, bytes by kind, "forward" or "reverse")."""
        rows = [(self._times[k], self._held[k].tolist(), self._phases[k]) for k in range(self._count)]
        if self._largest is not None:
            rows.append(self._largest)  # of the last ones, which were too few for a point
        return [(float(when), tuple(held), "reverse" if back else "forward") for when, held, back in rows]
