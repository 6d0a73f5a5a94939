from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ebbtide.storage.extents import UNIT, Extents


def test_random_use_agrees_with_a_map_of_units():
    """5,000 random calls: ranges that are in use never overlap, the lowest fit is taken, neighbors are joined."""
    random = np.random.default_rng(3)
    extents = Extents()
    used = np.zeros(4000, bool)
    held: list[tuple[int, int]] = []
    for _ in range(5000):
        if held and random.random() < 0.5:
            start, count = held.pop(int(random.integers(len(held))))
            extents.give(start * UNIT, count * UNIT)
            used[start : start + count] = False
        else:
            count = int(random.integers(1, 9))
            start = extents.take(count * UNIT) // UNIT
            fits = np.convolve(~used, np.ones(count, int), "valid") == count
            assert start == int(np.argmax(fits))
            used[start : start + count] = True
            held.append((start, count))
        if random.random() < 0.1:
            extents.cut()
            assert extents.end == (int(np.flatnonzero(used)[-1]) + 1 if used.any() else 0) * UNIT
        edges = [(free.start, free.stop) for free in extents.free]
        assert all(start < stop for start, stop in edges)
        assert all(before[1] < after[0] for before, after in pairwise(edges))
        assert extents.dirty() == extents.end - sum(count for _, count in held) * UNIT


def test_what_was_given_back_is_clean_until_it_is_used():
    """A range whose blocks are back with the file system is not counted as dirty; joined to a dirty one it is."""
    extents = Extents()
    for _ in range(4):
        extents.take(UNIT)
    extents.give(0, UNIT)
    extents.free[0].clean = True
    assert (extents.dirty(), extents.clean()) == (0, UNIT)
    extents.give(2 * UNIT, UNIT)
    assert (extents.dirty(), extents.clean()) == (UNIT, UNIT)
    extents.give(UNIT, UNIT)
    assert (extents.dirty(), extents.clean()) == (3 * UNIT, 0)
    assert extents.take(2 * UNIT) == 0
    extents.occupy(8 * UNIT, UNIT)
    assert [(free.start, free.stop) for free in extents.free] == [(2 * UNIT, 3 * UNIT), (4 * UNIT, 8 * UNIT)]


def test_ranges_off_the_grid_are_refused():
    """What is no whole number of units, or begins between two, never becomes a range."""
    extents = Extents()
    extents.take(4 * UNIT)
    for use in (lambda: extents.take(5), lambda: extents.give(5, UNIT), lambda: extents.occupy(0, UNIT + 1)):
        with pytest.raises(AssertionError):
            use()


def test_a_range_beyond_the_end_moves_it():
    """What lies between is free, and has blocks; a byte is clean from where its range begins to where it ends."""
    extents = Extents()
    extents.occupy(0, UNIT)
    assert (extents.free, extents.end, extents.is_clean(0)) == ([], UNIT, False)
    extents.occupy(3 * UNIT, 2 * UNIT)
    assert (extents.end, extents.dirty(), extents.clean()) == (5 * UNIT, 2 * UNIT, 0)
    assert not extents.is_clean(UNIT)
    extents.free[0].clean = True
    assert (extents.dirty(), extents.clean()) == (0, 2 * UNIT)
    places = (0, UNIT - 1, UNIT, 3 * UNIT - 1, 3 * UNIT)
    assert [extents.is_clean(at) for at in places] == [False, False, True, True, False]
    assert extents.take(UNIT) == UNIT
    assert extents.take(2 * UNIT) == 5 * UNIT
