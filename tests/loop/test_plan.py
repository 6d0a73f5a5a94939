"""The planner: what does not depend on arrays, and budgets in which the interpreter's own bytes dominate."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ebbtide
from ebbtide import Budget, BudgetError, grad, timeloop
from ebbtide.loop.plan import Sizes, make_plan
from ebbtide.schedules import Revolve, StoreAll

MIB = 2**20
SIZES = Sizes(state=MIB, saved=3 * MIB, sweep=5 * MIB, gradients=0, stored=MIB + 4096)
NUMBERS = Sizes(state=8, saved=400, sweep=500, gradients=0, stored=200)


def test_without_a_bound_every_step_runs_once():
    """Without a budget the saved values of all steps are kept."""
    plan = make_plan(1000, SIZES, None, 0, None, 0)
    assert plan.schedule == StoreAll()
    assert plan.predicted_steps_forward == 1000


@pytest.mark.parametrize("sizes", [SIZES, NUMBERS])
def test_more_memory_never_means_more_steps(sizes):
    """The predicted peak keeps the budget, and the predicted steps fall as it grows."""
    counts = []
    bounds = np.geomspace(sizes.sweep + sizes.state + 64 * 1024, 6000 * sizes.sweep, 200)
    for available in bounds.astype(int).tolist():
        try:
            plan = make_plan(1000, sizes, available, 0, None, 0)
        except BudgetError:
            assert not counts
            continue
        assert plan.predicted_peak_bytes <= available
        counts.append(plan.predicted_steps_forward)
    assert counts[0] > counts[-1] == 1000
    assert all(more >= fewer for more, fewer in pairwise(counts))


def test_snapshots_on_disk_take_memory_too():
    """A large disk does not fill the memory with entries of snapshots."""
    small = replace(NUMBERS, state=8192, stored=9000)
    for available in range(64 * 1024, 2 * MIB, 100 * 1024):
        plan = make_plan(10**6, small, available, 10**12, None, 0)
        assert plan.predicted_peak_bytes <= available
    assert plan.on_disk
    assert plan.snapshots > 1000


def test_least_is_the_least():
    """The refusal names the smallest budget for which there is a plan."""
    with pytest.raises(BudgetError) as error:
        make_plan(100, SIZES, MIB, 0, None, 0)
    least = error.value.least
    assert make_plan(100, SIZES, least, 0, None, 0).schedule == Revolve(1)
    with pytest.raises(BudgetError):
        make_plan(100, SIZES, least - 1, 0, None, 0)


@pytest.mark.parametrize("kib", [48, 96, 256, 768])
def test_budgets_in_which_no_array_counts(kib):
    """A loop on one number keeps a budget of a few KiB, where all bytes are the interpreter's own."""

    def objective(x: Any) -> Any:
        return timeloop(lambda u, i: u + 0.1 * np.sin(u), x, 800)

    def peak(call: Any) -> int:
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            call()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    x = np.array(0.3)
    gradient = grad(objective, budget=Budget(memory=kib * 1024))
    expected = grad(objective)(x)
    objective(x)
    alone = peak(lambda: objective(x))
    assert peak(lambda: gradient(x)) - alone <= kib * 1024
    assert gradient(x) == expected
    with ebbtide.profile() as p:
        gradient(x)
    assert p.steps_forward == p.predicted_steps_forward
