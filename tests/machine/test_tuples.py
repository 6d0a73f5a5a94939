"""Dead tuples, which the interpreter keeps, are freed when they are not wanted."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import Budget, grad, timeloop
from ebbtide.machine import free_dead_tuples
from ebbtide.schedules import Revolve


@pytest.fixture
def _traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("_traced")
def test_dead_tuples_are_freed() -> None:
    """Tuples that are made of iterators, as NumPy makes them in `roll`, leave none behind."""
    x = np.ones(9)
    np.roll(x, 1)
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(3000):
        for length in (1, 2, 3, 9):
            tuple(k for k in range(length))
        np.roll(x, 1)
    assert tracemalloc.get_traced_memory()[0] - before > 300_000
    free_dead_tuples()
    assert tracemalloc.get_traced_memory()[0] - before < 8000  # 80 dicts are kept, too


@pytest.mark.usefixtures("_traced")
def test_tuples_that_live_are_left_alone() -> None:
    """What is in use stays, and where nothing is dead nothing is taken."""
    kept = [tuple([k] * length) for length in range(25) for k in range(100)]
    free_dead_tuples()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(100):
        free_dead_tuples()
    assert tracemalloc.get_traced_memory()[0] - before < 200
    assert kept == [tuple([k] * length) for length in range(25) for k in range(100)]
    dead = len(gc.get_objects())
    free_dead_tuples()
    assert len(gc.get_objects()) <= dead


def test_a_bounded_loop_frees_them() -> None:
    """Steps that leave dead tuples, and run many times, leave none to the peak of a loop with a budget."""

    def f(x: np.ndarray) -> np.ndarray:
        return np.sum(timeloop(lambda u, i: u + 0.1 * np.roll(np.sin(u), 1), x, 400, schedule=Revolve(3)))

    x, peaks = np.linspace(0.0, 1.0, 100), []
    for budget in (None, Budget(memory="1 MiB")):
        gradient = grad(f, budget=budget)
        gradient(x)
        peaks.append(peak_bytes(lambda gradient=gradient: gradient(x)))
    assert peaks[1] < peaks[0] - 50_000
