"""The peak of memory of a block, by `tracemalloc`, whoever else measures around it."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

# What an object of bytes takes beside them, with the number that says how many.
_OBJECT_BYTES = sys.getsizeof(b"") + sys.getsizeof(2**31)


@final
class Peak:
    """
    What was allocated in a block.

    Attributes:
        nbytes: The peak less what was allocated at the start of the block; known after it.
    """

    __slots__ = ("_before", "nbytes")

    def __init__(self) -> None:
        self._before = tracemalloc.get_traced_memory()[0]
        self.nbytes = 0

    @property
    def held(self) -> int:
        """Bytes that are allocated now and were not at the start of the block."""
        return tracemalloc.get_traced_memory()[0] - self._before

    @property
    def so_far(self) -> int:
        """The peak, in the block."""
        return tracemalloc.get_traced_memory()[1] - self._before


@contextmanager
def measured_peak() -> Iterator[Peak]:
    """
    Measure the block.

    Where `tracemalloc` runs already, it goes on after the block with the peak that it would have had without: there is
    one peak in a process, and measurements inside of each other share it.

    Yields:
        The peak, complete after the block.

    Memory:
        That of `tracemalloc`, which runs in the block and makes small operations slower.
    """
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    around = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    peak = Peak()
    try:
        yield peak
    finally:
        if tracemalloc.is_tracing():
            peak.nbytes = tracemalloc.get_traced_memory()[1] - peak._before
            if running:
                _raise_peak(around)
            else:
                tracemalloc.stop()


def _raise_peak(nbytes: int) -> None:
    """
    Have `tracemalloc` know of a peak of so many bytes: by memory that nobody touches, and that takes no room so.

    It is no array, which whoever meters what NumPy allocates would count: a loop in the step of another one so took
    three states more than without `tracemalloc`, and budgets were refused.
    """
    missing = nbytes - tracemalloc.get_traced_memory()[0] - _OBJECT_BYTES
    if missing > 0:
        bytes(missing)
