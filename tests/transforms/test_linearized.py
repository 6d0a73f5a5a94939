"""What a pushforward holds: within its budget, until it is freed, and nothing of the caller's."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from tests.measure import find_least, peak_bytes

from ebbtide import Budget, BudgetError, ReleasedValueError, checkpoint, jvp, linearize, timeloop

X = np.linspace(0.2, 1.3, 20_000)
TURNED = np.arange(X.size)[::-1]


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


def checkpoints(x):
    """Functions that run again in each push, on twelve arrays."""
    for _ in range(12):
        x = checkpoint(lambda x: np.sin(np.sin(x) * x))(x)
    return x


def one_checkpoint(x):
    """A function that uses an array from outside."""
    made = np.cos(np.arange(X.size))
    return checkpoint(lambda x: np.sin(x * made))(np.sin(x))


def loops(x):
    """Loops whose steps close over two arrays each."""
    for k in range(3):
        made, other = np.cos(np.arange(X.size) + k), np.sin(np.arange(X.size) + k)
        x = timeloop(lambda u, i, a=made, b=other: np.sin(u * a) + b if i else 0.9 * u, x, 6)
    return np.sum(timeloop(lambda u, i: 0.9 * np.tanh(u), x, 12))


def indices(x):
    """A loop whose steps have an index array each."""
    return timeloop(lambda u, i: 0.9 * np.tanh(u[TURNED + 0]), x, 20)


def loop_of_checkpoints(x):
    """A loop of steps that run again in parts, on an array that the step makes, and that the part uses from outside."""

    def step(u, i):
        made = np.cos(u)
        return 0.5 * u + checkpoint(lambda v: np.sin(v * made))(np.sin(u))

    return timeloop(step, x, 12)


def few(x):
    """Hardly anything but views."""
    return np.concatenate([x[5:], -x[:5]])[::-1]


@pytest.mark.parametrize("disk", [0, 1 << 28])
@pytest.mark.parametrize("f", [deep, checkpoints, one_checkpoint, loops, indices, loop_of_checkpoints, few])
def test_a_budget_is_passed_neither_when_it_is_made_nor_in_pushes(f, disk):
    """At the least and above, whatever is kept for pushes and runs again in them; one byte less is refused, at once."""
    twice = lambda memory: linearize(f, X, budget=Budget(memory=memory, disk=disk))[1]
    least = find_least(twice)
    with pytest.raises(BudgetError) as refused:
        twice(least - 1)
    assert refused.value.least >= least  # loops may have kept steps by then that they can do without
    expected = jvp(f, (X,), (X,))[1].tobytes()

    def run(memory):
        pushforward = twice(memory)
        for _ in range(2):
            assert pushforward(X).tobytes() == expected

    alone = peak_bytes(lambda: jvp(f, (X,), (X,)))
    for memory in (least, least + 2 * X.nbytes, 2 * least, 4 * least, 8 * least):
        assert peak_bytes(lambda memory=memory: run(memory)) - alone <= memory


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
