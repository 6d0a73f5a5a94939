"""Which parts of a file are free: plain numbers, no file."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import final

UNIT = 4096
"""Every entry begins at a multiple of this many bytes, so that holes between entries are whole blocks."""


def round_up(nbytes: int, unit: int = UNIT) -> int:
    """
    Return the least multiple of *unit* that is not less than *nbytes*.

    Example:
        >>> round_up(1), round_up(4096), round_up(4097)
        (4096, 4096, 8192)
    """
    return -(-nbytes // unit) * unit


@final
@dataclass(slots=True)
class Free:
    """A free range; `clean` says that its blocks are back with the file system."""

    start: int
    stop: int
    clean: bool


@final
class Extents:
    """
    The ranges of a file that are in use and free, in bytes.

    Entries of one size find the place of an earlier one; others take the lowest range that is large enough, or
    the end of the file.

    Memory:
        About 100 bytes for each free range; none for what is in use.

    Example:
        >>> extents = Extents()
        >>> extents.take(8192), extents.take(4096), extents.give(0, 8192), extents.take(4096), extents.end
        (0, 8192, None, 0, 12288)
        >>> extents.give(8192, 4096), extents.cut(), extents.end
        (None, None, 4096)
    """

    __slots__ = ("end", "free")

    def __init__(self) -> None:
        self.end = 0
        self.free: list[Free] = []

    def take(self, nbytes: int) -> int:
        """Return the offset of a range of *nbytes*, a multiple of `UNIT`, that is in use from now on."""
        assert nbytes % UNIT == 0
        for place, free in enumerate(self.free):
            if free.stop - free.start >= nbytes:
                start = free.start
                free.start += nbytes
                if free.start == free.stop:
                    del self.free[place]
                return start
        start = self.free.pop().start if self.free and self.free[-1].stop == self.end else self.end
        self.end = start + nbytes
        return start

    def give(self, start: int, nbytes: int) -> None:
        """Free a range that is in use; neighbors are joined."""
        assert start % UNIT == nbytes % UNIT == 0
        stop = start + nbytes
        place = bisect_left(self.free, start, key=lambda free: free.start)
        if place < len(self.free) and self.free[place].start == stop:
            stop = self.free.pop(place).stop
        if place and self.free[place - 1].stop == start:
            place -= 1
            start = self.free.pop(place).start
        self.free.insert(place, Free(start, stop, clean=False))

    def cut(self) -> None:
        """Move the end down over what is free."""
        while self.free and self.free[-1].stop == self.end:
            self.end = self.free.pop().start

    def occupy(self, start: int, nbytes: int) -> None:
        """Mark a range beyond the end as in use; what lies between is free."""
        assert start % UNIT == nbytes % UNIT == 0
        if start > self.end:
            self.free.append(Free(self.end, start, clean=False))
        self.end = start + nbytes

    def dirty(self) -> int:
        """Return the free bytes whose blocks the file still has."""
        return sum(free.stop - free.start for free in self.free if not free.clean)

    def is_clean(self, start: int) -> bool:
        """Return whether a byte is free and its block is back with the file system."""
        place = bisect_right(self.free, start, key=lambda free: free.start) - 1
        return place >= 0 and start < self.free[place].stop and self.free[place].clean

    def clean(self) -> int:
        """Return the free bytes whose blocks are back with the file system."""
        return sum(free.stop - free.start for free in self.free if free.clean)
