"""One peak in a process, and several who measure it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ebbtide import profile
from ebbtide.profiling.peak import measured_peak

UNIT = 4 << 20


def take(units: int) -> None:
    """Allocate so many units for a moment."""
    np.empty(units * UNIT, np.uint8)


def fail_after(units: int) -> None:
    """Allocate so many units, and fail."""
    take(units)
    raise ZeroDivisionError


def units(nbytes: int) -> int:
    """Return whole units of bytes; objects are small beside one."""
    return round(nbytes / UNIT)


def test_measurements_in_each_other():
    """Each block has its own peak, wherever the larger one is: before, in, or after the inner block."""
    with measured_peak() as outer:
        take(5)
        with measured_peak() as first:
            take(2)
            kept = np.empty(UNIT, np.uint8)
        with profile() as second:
            take(7)
        with measured_peak() as third:
            take(1)
        del kept
    assert [units(p) for p in (outer.nbytes, first.nbytes, second.peak_bytes, third.nbytes)] == [8, 2, 7, 1]
    assert not tracemalloc.is_tracing()


def test_whoever_measures_around():
    """A user's own tracemalloc goes on with its peak, of before a block and of in it."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        take(5)
        with measured_peak() as small:
            take(2)
        assert units(tracemalloc.get_traced_memory()[1] - before) == 5
        with measured_peak() as large:
            take(6)
        assert units(tracemalloc.get_traced_memory()[1] - before) == 6
    finally:
        tracemalloc.stop()
    assert (units(small.nbytes), units(large.nbytes)) == (2, 6)


def test_the_peak_around_stays_to_the_byte():
    """However often a block is measured in it."""
    tracemalloc.start()
    try:
        take(2)
        peak = tracemalloc.get_traced_memory()[1]
        for _ in range(20):
            with measured_peak():
                take(1)
        assert tracemalloc.get_traced_memory()[1] == peak
    finally:
        tracemalloc.stop()


def test_peak_of_a_block_that_raises():
    """A block that raises has its peak, and the one around it too."""
    with measured_peak() as outer:
        take(3)
        with pytest.raises(ZeroDivisionError), measured_peak() as inner:
            fail_after(2)
    assert (units(outer.nbytes), units(inner.nbytes)) == (3, 2)
    assert not tracemalloc.is_tracing()
