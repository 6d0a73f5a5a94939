"""What the record itself takes."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import product
from statistics import median

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.scale import FULL, sample_of_each

from ebbtide import Budget, BudgetError, grad, primitive, vjp

STEPS = 2000


def held(f, *args):
    """Return the bytes that vjp holds after the forward run, and what vjp returned."""
    gc.collect()  # the interpreter keeps some thousand freed tuples for the next to come, unseen by tracemalloc
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = vjp(f, *args)
        return tracemalloc.get_traced_memory()[0] - before, kept
    finally:
        tracemalloc.stop()


# An array of ten numbers as tracemalloc sees it: object and data.
ARRAY = np.zeros(10).__sizeof__()
NUMBER = np.float64(0).__sizeof__()


@pytest.mark.parametrize(
    ("step", "x", "saved"),
    [
        (np.sin, np.ones(10), ARRAY),
        (np.tanh, np.ones(10), ARRAY),
        (lambda x: x * 0.999, np.ones(10), 0),
        (lambda x: x + 1.0, np.ones(10), 0),
        (lambda x: -x, np.ones(10), 0),
        (lambda x: x * x, np.ones(10), ARRAY),
        (np.sin, np.float64(1.0), NUMBER),
        (lambda x: x * 0.999, np.float64(1.0), 0),
    ],
    ids=["sin", "tanh", "scaled", "shifted", "negative", "squared", "sin of number", "scaled number"],
)
def test_node_size(step, x, saved):
    """A node takes at most 320 bytes without the values that its rule saves."""
    def chain(x):
        for _ in range(STEPS):
            x = step(x)
        return x

    nbytes, kept = held(chain, x)
    assert nbytes / STEPS <= 320 + saved
    assert nbytes / STEPS >= saved + 80, "the measure sees nothing"
    kept[1].free()


def test_nodes_go_one_by_one():
    """The sweep gives the nodes back too: its peak on a long chain of small arrays is that of the forward run."""
    def chain(x):
        for _ in range(STEPS):
            x = np.sin(x)
        return np.sum(x)

    more = []
    for _ in range(5):  # the first, by what the interpreter has at hand of freed objects, is 300 bytes more or less
        nbytes, kept = held(chain, np.ones(10))
        more.append(peak_bytes(lambda: grad(chain)(np.ones(10))) - nbytes)
        kept[1].free()
    assert median(more) <= 8192


def test_long_chain_is_freed_without_recursion():
    """A tape of 100,000 nodes can be dropped unused: no recursion is as deep as the tape is long."""
    def chain(x):
        for _ in range(100_000):
            x = x * 1.0
        return x

    for end in ("drop", "free", "call"):
        _, pullback = vjp(chain, 1.0)
        if end == "free":
            pullback.free()
        elif end == "call":
            assert pullback(1.0) == (1.0,)
        del pullback


def test_record_is_counted_by_a_budget():
    """A budget bounds the record too: a long chain of tiny arrays is refused by a small one, and its least runs."""
    def chain(x):
        for _ in range(STEPS):
            x = np.sin(x)
        return np.sum(x)

    x = np.ones(10)
    with pytest.raises(BudgetError) as caught:
        grad(chain, budget=Budget("64 KiB"))(x)
    call = grad(chain, budget=Budget(caught.value.least))
    gc.collect()
    tracemalloc.start()
    try:
        call(x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= caught.value.least


TINY = {
    "sin": np.sin,
    "square": lambda x: x * x,
    "mask": lambda x: np.maximum(x, 0.1),
    "reshape": lambda x: np.reshape(np.reshape(x, (3, 1)), (3,)),
    "view": lambda x: x[::-1],
    "taken": lambda x: x[np.array([2, 1, 0])],
    "where": lambda x: np.where(x > 0.5, x, 0.5),
    "joined": lambda x: np.concatenate([x[:1], x[1:]]),
    "split": lambda x: np.concatenate(np.split(x, 3)),
    "matrix": lambda x: np.eye(3) @ x,
    "sum": lambda x: x - 0.1 * np.sum(x),
    "constant": lambda x: x * np.full(3, 0.9),
    "sort": np.sort,
    "einsum": lambda x: np.einsum("ij,j->i", np.eye(3), x),
    "primitive": primitive(lambda x: 0.9 * x, vjp=lambda g, out, x: 0.9 * g),
}


@pytest.mark.parametrize(("name", "disk"), sample_of_each(list(product(TINY, [0, 1 << 30])), 3))
def test_record_of_each_kind_is_counted(name, disk):
    """The least of a long chain of tiny operations of any kind is a bound of what it takes."""
    def chain(x):
        for _ in range(STEPS // 2 if FULL else STEPS // 4):
            x = TINY[name](x)
        return np.sum(x)

    x = np.full(3, 0.7)
    with pytest.raises(BudgetError) as caught:
        grad(chain, budget=Budget(1000, disk))(x)
    least = caught.value.least
    call = grad(chain, budget=Budget(least, disk))
    assert peak_bytes(lambda: call(x)) - peak_bytes(lambda: chain(x)) <= least
