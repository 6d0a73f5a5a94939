"""However a pullback or a gradient is called, no caller keeps more than a cotangent alive."""

from __future__ import annotations

import functools
import gc
import operator
import sys
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator

import numpy as np
import pytest
from tests.measure import peak_bytes

import ebbtide
from ebbtide import CotangentError, ReleasedValueError, grad, jit, vjp

DEPTH, SIZE = 16, 150
# Bytes of what is no array: 17 KiB of lists, frames and accumulators were measured.
OBJECTS = 24 << 10
MATRIX = np.linalg.qr(np.random.default_rng(0).standard_normal((SIZE, SIZE)))[0]


def power(a):
    """Square a matrix again and again."""
    for _ in range(DEPTH):
        a = a @ a
    return a


def layers(x, *weights):
    """Multiply by one matrix after the other; each has a gradient, which is kept."""
    for w in weights:
        x = x @ w
    return x


FUNCTIONS = {
    "power": (power, 1),
    "layers": (layers, 1 + DEPTH),
    "jitted power": (jit(power), 1),
    "jitted layers": (jit(layers), 1 + DEPTH),
}


def passing(f):
    """A wrapper that passes on what it is given."""

    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs)

    return wrapper


class Passing(ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def in_thread(f, cotangent):
    """Call in another thread, and wait."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(f, cotangent()).result()


def profiled(f, cotangent):
    """Call with a profile function set, for which the interpreter makes frames into objects."""
    seen = []
    sys.setprofile(lambda frame, *_: seen.append(frame.f_code) if len(seen) < 10 else None)
    try:
        return f(cotangent())
    finally:
        sys.setprofile(None)


def held(f, cotangent):
    """Call with a cotangent that has a name."""
    named = cotangent()
    return f(named)


# How a function is called with one array that `cotangent()` makes.
CALLS = {
    "direct": lambda f, cotangent: f(cotangent()),
    "named": held,
    "three wrappers": lambda f, cotangent: passing(passing(passing(f)))(cotangent()),
    "partial": lambda f, cotangent: functools.partial(f, cotangent())(),
    "map": lambda f, cotangent: next(map(f, [cotangent()])),
    "starred": lambda f, cotangent: f(*[cotangent()]),
    "operator.call": lambda f, cotangent: operator.call(f, cotangent()),
    "context decorator": lambda f, cotangent: Passing()(f)(cotangent()),
    "thread pool": in_thread,
    "profile": profiled,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_pullback_takes_few_arrays(name, call):
    """The pullback of 16 products takes at most four arrays beside what it holds, the given cotangent included."""
    f, count = FUNCTIONS[name]
    args = [MATRIX.copy() for _ in range(count)]

    def extra():
        _, pullback = vjp(f, *args)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        gradients = CALLS[call](pullback, lambda: np.ones((SIZE, SIZE)))
        assert len(gradients) == count
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        extra()
        assert extra() <= 4 * MATRIX.nbytes + OBJECTS
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("planned", [False, True])
def test_gradient_takes_few_arrays(planned, call):
    """A gradient, jitted or not, takes at most four arrays beside the 15 products that it needs."""
    slope = grad(lambda a: np.sum(power(a)))
    if planned:
        slope = jit(slope)
        slope.program(MATRIX)
    assert peak_bytes(lambda: CALLS[call](slope, MATRIX.copy)) <= (DEPTH - 1 + 4) * MATRIX.nbytes + OBJECTS


def test_cotangent_that_is_given_away():
    """A cotangent that is given in a list is gone when the second operation is pulled back; a named one is not."""
    dead = []

    def rule(g, x):
        dead.append(reference() is None)
        return g * np.cos(x)

    sine = ebbtide.primitive(lambda x: np.sin(x * 1.0), vjp=(rule,))
    for give in (True, False):
        _, pullback = vjp(lambda x: sine(sine(sine(x))), np.ones(5))
        cotangent = np.ones(5)
        reference = weakref.ref(cotangent)
        given = [cotangent]
        if give:
            del cotangent
        pullback.pull(given)
        assert given == []
        assert dead == [False, give, give]
        dead.clear()


def test_pull_is_the_call():
    """Cotangents given away have the result of a call, None stands for zeros, and a wrong one consumes nothing."""
    f = lambda x, y: {"b": x * y, "a": [np.sin(x), 2.0]}
    x, y = np.linspace(0, 1, 4), np.linspace(1, 2, 4)
    _, pullback = vjp(f, x, y, retain=True)
    expected = pullback({"b": y, "a": [x, 0.0]})
    for retain in (None, True, False):
        given = [x, None, y]  # in the order of the keys
        found = pullback.pull(given, retain=retain)
        assert given == []
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert pullback.depends == []
    with pytest.raises(ReleasedValueError, match="test_calling"):
        pullback.pull([x, None, y])

    _, pullback = vjp(f, x, y)
    assert pullback.depends == [True, False, True]
    given = [x, None, y[:2]]
    with pytest.raises(CotangentError, match=r"float64\[2\]"):
        pullback.pull(given)
    assert len(given) == 3
    with pytest.raises(CotangentError, match="for each of the 3 arrays of the value, and was given"):
        pullback.pull([x])
    assert pullback.pull([None, None, y])[0].tolist() == (y * y).tolist()
