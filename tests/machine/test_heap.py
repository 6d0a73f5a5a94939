"""The heap: memory that arrays of a block give up is that of those to come."""

from __future__ import annotations

import contextvars
import gc
import random
import resource
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

from ebbtide import grad, timeloop
from ebbtide.machine import Heap, Meter
from ebbtide.schedules import Revolve

SIZE = 100_000
HEADER, NUMBERS = 16, 64  # bytes before those of an array, and of numbers that NumPy makes arrays of for a moment


def address(array: np.ndarray) -> int:
    """Return where the memory of an array begins."""
    return array.__array_interface__["data"][0]


def test_an_array_takes_the_memory_of_one_that_died():
    """The last one of its size, and zeros are zero there; one that is a little smaller does as well."""
    with Heap() as heap:
        first, second = np.full(SIZE, 7.0), np.full(SIZE, 8.0)
        places = address(first), address(second)
        del first
        del second
        third = np.zeros(SIZE)
        fourth = np.empty(SIZE - 2)
        assert (address(third), address(fourth)) == places[::-1]
        assert not third.any()
        assert 0 <= heap.held - 2 * (8 * SIZE + HEADER) < NUMBERS
        assert 0 <= heap.peak - 2 * (8 * SIZE + HEADER) < NUMBERS


def test_no_more_is_held_than_arrays_held_at_a_time():
    """Memory that is kept goes where arrays of other sizes need room, the oldest first."""
    with Heap() as heap:
        many = [np.ones(SIZE) for _ in range(8)]
        many.clear()
        most = heap.peak
        assert 0 <= most - 8 * (8 * SIZE + HEADER) < NUMBERS
        assert most - NUMBERS < heap.held <= most
        large = np.ones(5 * SIZE)
        assert heap.held <= heap.peak == most
        small = [np.ones(SIZE // 2) for _ in range(7)]
        assert heap.held <= heap.peak
        larger = np.ones(9 * SIZE)
        assert heap.peak - NUMBERS < heap.held <= heap.peak
        assert heap.peak >= 8 * (14 * SIZE + 7 * SIZE // 2)
    assert large.sum() + larger.sum() + sum(x.sum() for x in small) == 14 * SIZE + 7 * (SIZE // 2)


def test_small_arrays_and_the_many_are_not_kept():
    """Of small arrays nothing is kept, and of 300 large ones the 256 that died last."""
    with Heap() as heap:
        small = [np.ones(1000) for _ in range(10)]
        small.clear()
        assert heap.held == 0
        large = [np.ones(5000 + k) for k in range(300)]
        large.clear()
        assert heap.held == sum(8 * (5000 + k) + HEADER for k in range(256))  # a list drops its last one first


def test_nothing_is_kept_after_the_block():
    """What was made in it lives as long as it is used, in any thread, and then goes to the C library."""
    with Heap() as heap:
        kept = [np.full(SIZE, 3.0) for _ in range(3)]
        np.ones(SIZE)
        assert heap.held > 3 * (8 * SIZE + HEADER)
    assert heap.held == 0
    reference = weakref.ref(kept[0])
    del heap
    gc.collect()
    assert get_handler_name(kept[1]) == "ebbtide_heap"
    assert all(x.sum() == 3.0 * SIZE for x in kept)
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    assert reference() is None


def test_memory_of_others_stays_theirs():
    """Within the block of another heap it has the memory of that; where others allocate, a heap does nothing."""
    name = get_handler_name()
    with Heap() as outer:
        first = np.ones(SIZE)
        with Heap() as inner:
            second = np.ones(SIZE)
            assert inner.held == outer.held
        assert inner.held == 0
        assert get_handler_name() == "ebbtide_heap"
        assert outer.held == 2 * (8 * SIZE + HEADER)
        del first, second
    with Meter() as meter, Heap():
        np.ones(SIZE)
        assert get_handler_name() == "ebbtide_meter"
    assert 8 * SIZE <= meter.peak < 8 * SIZE + 100
    assert get_handler_name() == name


def test_a_meter_within_measures_what_arrays_take():
    """Whether memory is new or was there: what a plan is made of does not depend on it."""
    with Heap():
        np.ones(SIZE)
        with Meter() as meter:
            x = np.ones(SIZE)
            y = np.zeros(SIZE)
            x.sum()
        assert 0 <= meter.peak - 16 * SIZE < 100
        assert address(x) != address(y)


def test_an_array_that_changes_its_size_keeps_what_it_holds():
    """Smaller and larger, and its memory is counted as it is."""
    with Heap() as heap:
        x = np.arange(float(SIZE))
        x.resize(3 * SIZE, refcheck=False)
        assert np.array_equal(x[:SIZE], np.arange(float(SIZE)))
        assert not x[SIZE:].any()
        x.resize(SIZE // 2, refcheck=False)
        assert np.array_equal(x, np.arange(SIZE / 2))
        del x
        assert np.ones(3 * SIZE).sum() == 3 * SIZE
        assert 8 * (3 * SIZE) < heap.held <= heap.peak < 8 * (6 * SIZE)


def test_an_error_ends_the_block():
    """The way NumPy allocates is what it was before."""
    name = get_handler_name()

    def fail() -> None:
        with Heap():
            np.ones(SIZE)
            raise ValueError("meant")

    with pytest.raises(ValueError, match="meant"):
        fail()
    assert get_handler_name() == name


@pytest.mark.parametrize("seed", range(5))
def test_no_array_has_the_memory_of_another(seed):
    """Of arrays of many sizes, made, changed and dropped in any order, each keeps what was written into it."""
    draw = random.Random(seed)
    held: dict[int, np.ndarray] = {}
    sizes = [draw.randrange(1, 60_000) for _ in range(12)]
    with Heap() as heap:
        for number in range(3000):
            if held and draw.random() < 0.5:
                key = draw.choice(list(held))
                assert (held.pop(key) == key).all()
            make = np.zeros if draw.random() < 0.3 else np.empty
            x = make(draw.choice(sizes) - draw.randrange(2) * draw.randrange(40) % 7 + 7)
            if make is np.zeros:
                assert not x.any()
            x.fill(number)
            if draw.random() < 0.1:
                x.resize(draw.choice(sizes), refcheck=False)
                x.fill(number)
            held[number] = x
            if len(held) > 30:
                del held[min(held)]
            assert heap.held <= heap.peak
        assert all((x == key).all() for key, x in held.items())


def test_a_heap_takes_nothing_from_run_to_run():
    """A hundred blocks leave as many bytes as one, by `tracemalloc` and of the process."""

    def run() -> None:
        with Heap():
            for _ in range(3):
                np.ones(SIZE) + np.ones(SIZE)

    run()
    tracemalloc.start()
    try:
        run()
        before, resident = tracemalloc.get_traced_memory()[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(100):
            run()
        assert tracemalloc.get_traced_memory()[0] - before < 1000
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 4096  # KiB, of 80 MB for each
    finally:
        tracemalloc.stop()


def test_what_steps_do_not_take_goes():
    """Memory that was free for two steps goes back; steps in steps do not count, nor do blocks without steps."""
    with Heap(steps=False) as around, Heap() as loop:
        np.ones(SIZE)
        with Heap() as inner:
            for _ in range(5):
                inner.passed()
        around.passed()
        assert around.held >= 8 * SIZE
        for _ in range(4):
            pair = np.ones(SIZE), np.ones(2 * SIZE)
            del pair
            loop.passed()
        assert around.held >= 24 * SIZE
        for _ in range(3):
            np.ones(SIZE)
            loop.passed()
        assert 8 * SIZE <= around.held < 9 * SIZE


def test_whoever_comes_late_changes_nothing():
    """A heap that is left in a place where another handler is, as after an interrupt, or whose block is over."""
    name = get_handler_name()
    late = Heap()
    late.__enter__()
    with Meter() as meter:
        late.__exit__(None, None, None)
        np.ones(SIZE)
        assert get_handler_name() == "ebbtide_meter"
    assert 8 * SIZE <= meter.peak < 8 * SIZE + 100
    with Heap() as heap:  # in the place of the one whose block is over
        np.ones(SIZE)
        assert heap.held >= 8 * SIZE
    with Heap() as heap:
        copied = contextvars.copy_context()
    assert copied.run(lambda: np.ones(SIZE).sum()) == SIZE

    def again() -> int:
        with Heap() as heap:
            np.ones(SIZE)
            return heap.held

    assert copied.run(again) >= 8 * SIZE
    assert contextvars.Context().run(get_handler_name) == name


def test_steps_of_a_loop_have_the_memory_of_those_before():
    """Where the states of a sweep lie does not depend on the number of steps, and after a sweep nothing is kept."""

    def places_of(steps: int) -> tuple[int, bytes]:
        places = set()

        def step(u, _):
            after = u - 0.1 * np.sin(u)
            places.add(address(after._value if hasattr(after, "_value") else after))
            return after

        found = grad(lambda u: np.sum(timeloop(step, u, steps, schedule=Revolve(3))))(np.linspace(0.0, 1.0, SIZE))
        return len(places), found[:10].tobytes()

    name = get_handler_name()
    few, many = places_of(20), places_of(200)
    assert few[0] <= 20
    assert many[0] <= few[0] + 6
    assert get_handler_name() == name


def test_a_plain_loop_has_it_too():
    """A loop that nothing is recorded of runs in the memory of two states."""
    places = set()

    def step(u, _):
        places.add(address(u))
        return u - 0.1 * u

    timeloop(step, np.linspace(0.0, 1.0, SIZE), 50)
    assert len(places) <= 4
