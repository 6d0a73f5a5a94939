"""What a pushforward holds: within its budget, until it is freed, and nothing of the caller's."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ebbtide import Budget, BudgetError, ReleasedValueError, linearize

X = np.linspace(0.2, 1.3, 20_000)


def deep(x):
    """Ten derivatives of the size of x."""
    for _ in range(10):
        x = np.sin(x) * 1.01
    return x


def test_the_least_of_a_refusal_does():
    """A budget that is too small is refused with the least, at which it runs with the same bits and holds no more."""
    with pytest.raises(BudgetError, match="the derivatives that the pushforward keeps take") as refused:
        linearize(deep, X, budget=Budget(memory=3 * X.nbytes))
    least = refused.value.least
    assert 10 * X.nbytes <= least <= 12 * X.nbytes
    with pytest.raises(BudgetError):
        linearize(deep, X, budget=Budget(memory=least - 1))
    _, free = linearize(deep, X)
    expected = free(X).tobytes()
    free.free()
    linearize(deep, X, budget=Budget(memory=least))[1].free()  # what the first such call keeps for later ones
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        bounded = linearize(deep, X, budget=Budget(memory=least))[1]
        held = tracemalloc.get_traced_memory()[0] - before
        found = bounded(X).tobytes()
    finally:
        tracemalloc.stop()
    assert found == expected
    assert 10 * X.nbytes <= held <= least


def test_a_budget_with_disk_pages(tmp_path):
    """With disk the derivatives wait there, the pushes have the same bits, and freed it leaves no file."""
    budget = Budget(memory=6 * X.nbytes, disk="64 MiB", directory=tmp_path)
    _, pushforward = linearize(deep, X, budget=budget)
    assert [path for path in tmp_path.rglob("*") if path.is_file()]
    expected = linearize(deep, X)[1](X).tobytes()
    assert [pushforward(X).tobytes() for _ in range(3)] == [expected] * 3
    pushforward.free()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ReleasedValueError, match="gave them up"):
        pushforward(X)


def test_freed_bytes_are_free():
    """After `free` none of the derivatives is there, though the pushforward is."""
    tracemalloc.start()
    try:
        _, pushforward = linearize(deep, X)
        held = tracemalloc.get_traced_memory()[0]
        pushforward.free()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held - left > 10 * X.nbytes
    with pytest.raises(ReleasedValueError):
        pushforward(X)


def test_tangents_of_constants_are_the_callers():
    """What depends on no input has a tangent of zeros, which may be written: the next call has its own."""
    c = np.ones(3)
    _, pushforward = linearize(lambda x: (x * 2.0, c, 3.0, np.arange(3)), X[:3])
    for _ in range(2):
        _, *constant = pushforward(X[:3])
        assert [np.asarray(tangent).tolist() for tangent in constant] == [[0.0] * 3, 0.0, [0.0] * 3]
        constant[0][:] = np.nan
    assert c.tolist() == [1.0] * 3
