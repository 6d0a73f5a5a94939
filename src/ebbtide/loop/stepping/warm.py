"""Seconds that code takes where the memory is there that it works in."""

from __future__ import annotations

import mmap
import resource
import time
from types import TracebackType
from typing import Self, final

import numpy as np

# So many pages are taken to time a page fault. Private ones, as arrays have: a fault of shared ones, which Python's
# `mmap` has unless it is told, took 2.4 microseconds in place of 1.6, and a step of 2 ms then seemed to take none.
_PAGES = 64
# As little of a time may be left when its faults are taken off; where it is less, they took not as long as that.
_LEAST = 4


@final
class Timed:
    """
    Times a block, and counts how often the system had to give it a page of memory.

    A loop's steps and sweeps have the memory of those before them. Those that are run first, to be measured, have to be
    given some: a Runge-Kutta step of 5 ms took 11 ms.

    Attributes:
        seconds: What it took.
        faults: How often it was given a page.

    Memory:
        Two numbers.
    """

    __slots__ = ("faults", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.faults = 0

    def __enter__(self) -> Self:
        self.faults, self.seconds = count_faults(), time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds, self.faults = time.perf_counter() - self.seconds, count_faults() - self.faults

    def warm(self, fault: float) -> float:
        """
        Return what it takes where no page has to be given, each of which takes so many seconds.

        Huge ones, which arrays of 4 MiB and more may have, count as one each and take longer: some of it is left.
        """
        return max(self.seconds / _LEAST, self.seconds - self.faults * fault)


def count_faults() -> int:
    """Return how often the system has given this thread a page of memory that was there, or was made."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_minflt


def time_fault() -> float:
    """
    Return the seconds that the system takes to give a page of memory: of three times of some, the middle one.

    Where it has none to give it is 0.
    """
    times: list[float] = []
    for _ in range(3):
        try:
            block = mmap.mmap(-1, _PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            return 0.0
        firsts = np.frombuffer(block, np.uint8)[:: mmap.PAGESIZE]
        start = time.perf_counter()
        firsts[:] = 1
        times.append((time.perf_counter() - start) / _PAGES)
        del firsts
        block.close()
    return sorted(times)[1]
