"""The meter: bytes of arrays that a block allocates and holds at a time."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

from ebbtide.machine import Meter

SIZE = 1000
NUMBERS = 64  # bytes of numbers that NumPy makes arrays of for a moment


def test_the_most_that_is_held_at_a_time_is_counted():
    """What dies gives its bytes back; zeros and empty arrays count as others do, views do not."""
    before = np.ones(SIZE)
    with Meter() as meter:
        first = before + before
        second = first * first
        del first
        third = np.zeros((3, SIZE))
        view = third[1:]
        del second, view
        np.empty(SIZE)
    assert 0 <= meter.peak - 4 * 8 * SIZE < NUMBERS
    del before
    assert third.sum() == 0


def test_temporaries_of_expressions_count_as_numpy_makes_them():
    """A sum of large arrays reuses the memory of a temporary."""
    x = np.ones(100_000)
    with Meter() as meter:
        y = 0.5 * (x + x + x)
    assert 0 <= meter.peak - x.nbytes < NUMBERS
    assert y[0] == 1.5


def test_what_numpy_gives_back_and_never_had_is_not_taken_off():
    """NumPy's sorts by order give back, by its size, a copy of the values that they had no need of."""
    x = np.linspace(0.0, 1.0, SIZE)[::-1].copy()
    for sort in (np.argsort, lambda x: np.argsort(x, kind="stable"), lambda x: np.argpartition(x, 3)):
        with Meter() as meter:
            order = sort(x)
            small = order.astype(np.uint16)
        assert 0 <= meter.peak - order.nbytes - small.nbytes < NUMBERS


def test_arrays_of_other_threads_are_not_counted():
    """What is made meanwhile, by a thread that began before the block or in it, is theirs."""
    begin, done = threading.Event(), threading.Event()
    made: list[object] = []

    def make() -> None:
        begin.wait()
        made.append(np.ones(100 * SIZE))
        done.set()

    thread = threading.Thread(target=make)
    thread.start()
    with Meter() as meter:
        begin.set()
        done.wait()
        other = threading.Thread(target=make)
        other.start()
        other.join()
        np.ones(SIZE)
    thread.join()
    assert 0 <= meter.peak - 8 * SIZE < NUMBERS
    assert len(made) == 2


def test_an_array_that_changes_its_size_makes_the_peak_a_bound():
    """NumPy does not say by how much: the array counts in both sizes, also when it is gone."""
    with Meter() as meter:
        x = np.zeros(SIZE)
        x.resize(2 * SIZE, refcheck=False)
        assert x.sum() == 0
        del x
        np.ones(SIZE)
    assert not meter.exact
    assert 0 <= meter.peak - 3 * 8 * SIZE < NUMBERS
    with Meter() as meter:
        np.ones(SIZE)
    assert meter.exact


def test_blocks_may_be_within_each_other_and_end_by_an_error():
    """Both count, and the way NumPy allocates is afterwards what it was before."""
    name = get_handler_name()
    outer, inner = Meter(), Meter()
    kept: list[object] = []

    def fail() -> None:
        with inner:
            kept.append(np.ones(SIZE))
            raise ValueError("meant")

    with outer:
        np.ones(2 * SIZE)
        with pytest.raises(ValueError, match="meant"):
            fail()
        assert get_handler_name() == "ebbtide_meter"
        kept.append(np.ones(2 * SIZE))
        kept.clear()
        np.ones(2 * SIZE)
    assert get_handler_name() == name
    assert 0 <= inner.peak - 8 * SIZE < NUMBERS
    assert 0 <= outer.peak - 24 * SIZE < NUMBERS


def test_a_block_within_another_counts_its_own():
    """What was there before the inner one is no part of it."""
    with Meter() as outer:
        first = np.ones(2 * SIZE)
        with Meter() as inner:
            second = np.ones(SIZE)
        del first
        third = second + 1
    assert 0 <= inner.peak - 8 * SIZE < NUMBERS
    assert 0 <= outer.peak - 24 * SIZE < NUMBERS
    assert third[0] == 2


def test_what_is_counted_elsewhere_is_told_apart():
    """The most that is in no other account at a time need not be where most is held."""
    with Meter() as meter:
        temporary = np.ones(2 * SIZE) + np.ones(2 * SIZE)
        del temporary
        kept = []
        for _ in range(10):
            kept.append(np.ones(SIZE))
            meter.count(kept[-1].nbytes)
        meter.count(-kept.pop().nbytes)
    assert 0 <= meter.peak - 10 * 8 * SIZE < NUMBERS
    assert 0 <= meter.beyond - 6 * 8 * SIZE < NUMBERS
    meter.count(1)  # of no consequence after the block


def test_what_was_made_in_the_block_lives_as_long_as_it_is_used():
    """An array outlives the block and its meter, in any thread, and nothing is left of it."""
    with Meter() as meter:
        kept = [np.full(SIZE, 3.0) for _ in range(3)]
    reference = weakref.ref(kept[0])
    del meter
    gc.collect()
    assert get_handler_name(kept[1]) == "ebbtide_meter"
    assert all(x.sum() == 3.0 * SIZE for x in kept)
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    assert reference() is None


def test_a_meter_takes_nothing_from_run_to_run():
    """A hundred blocks leave as many bytes as one."""

    def measure() -> None:
        with Meter():
            np.ones(SIZE) + np.ones(SIZE)

    measure()
    tracemalloc.start()
    try:
        measure()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            measure()
        assert tracemalloc.get_traced_memory()[0] - before < 1000
    finally:
        tracemalloc.stop()
