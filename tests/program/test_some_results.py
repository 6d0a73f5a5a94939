"""Functions with several results of which a derivative uses some: each choice, under each budget, whatever is saved."""

from __future__ import annotations

import itertools
import sys
import threading

import numpy as np
import pytest
from tests.scale import SEED, bar, sample

from ebbtide import Budget, BudgetError, grad, jit

UNARY = (
    np.sin, np.cos, np.exp, np.tanh, np.square, np.negative, lambda x: x[::-1], lambda x: x.reshape(2, -1).T.ravel()
)  # fmt: skip
BINARY = (np.multiply, np.add)
CHOICES = [which for count in (1, 2) for which in itertools.combinations(range(3), count)]


def random_function(seed):
    """Return a function of two arrays with three results, which have parts in common."""
    def f(*arrays):
        random, values = np.random.default_rng([SEED, seed]), list(arrays)
        for _ in range(8):
            k, one, other = random.integers(len(UNARY) + len(BINARY)), *random.integers(len(values), size=2)
            pair = values[one], values[other]
            values.append(UNARY[k](pair[0]) if k < len(UNARY) else BINARY[k - len(UNARY)](*pair))
        return values[-3:]

    return f


@pytest.mark.parametrize("size", [4, 20_000])
def test_each_choice(size):
    """The reverse program of some cotangents finds all that it needs in what was saved for those of all results."""
    points = np.random.default_rng(SEED).uniform(0.1, 0.4, (2, size))
    budgets = [None] if size == 4 else [None, *[Budget(memory=int(count * points[0].nbytes)) for count in (6.5, 9, 14)]]
    refused = 0
    for seed in bar(sample(range(400), 20), f"{size} elements"):
        f = random_function(seed)
        jitted = jit(f)
        for which in CHOICES:
            def loss(x, y, function, which=which):
                results = function(x, y)
                return sum(np.sum(np.cos(results[k])) for k in which)

            wanted = grad(loss, (0, 1))(*points, f)
            for budget in budgets:
                try:
                    found = grad(loss, (0, 1), budget=budget)(*points, jitted)
                except BudgetError:
                    assert budget is not None
                    refused += 1
                    continue
                np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12, err_msg=f"{seed} {which} {budget}")
    assert refused < len(sample(range(400), 20)) * len(CHOICES)


def test_a_derivative_that_is_a_saved_value():
    """The slope of cos is -sin, which is a value of the program already, saved where the sine's own result is used."""
    f = jit(lambda x, c: (np.sin(x) * np.cos(c), np.cos(x) * np.cos(c)))
    x, c = np.linspace(0.1, 1.0, 5), np.linspace(1.0, 2.0, 5)
    np.testing.assert_allclose(grad(lambda x: np.sum(f(x, c)[1]))(x), -np.sin(x) * np.cos(c), rtol=1e-14)
    np.testing.assert_allclose(grad(lambda x: np.sum(f(x, c)[0]))(x), np.cos(x) * np.cos(c), rtol=1e-14)


def test_sweeps_in_several_threads():
    """Threads that take the first derivative of a function by some results at the same time have its gradient."""
    x = np.linspace(0.1, 1.0, 20)
    expected = np.sin(x) + np.cos(x) * x
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(10):
            f = jit(lambda u: (np.sin(u) @ u, np.cumsum(u)))
            f.reversed(x)  # one for all threads
            found = together(lambda f=f: grad(lambda u: f(u)[0])(x), 6)
            assert len(found) == 6
            for one in found:
                np.testing.assert_allclose(one, expected, rtol=1e-13)
    finally:
        sys.setswitchinterval(before)


def together(run, count):
    """What a function gives in so many threads that begin at the same time."""
    barrier, found = threading.Barrier(count), []

    def work():
        barrier.wait()
        found.append(run())

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
