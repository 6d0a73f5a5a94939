"""The bytes that a gradient takes, case by case; one unit is one array of the problem."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from tests.measure import peak_bytes

import ebbtide
from ebbtide import grad

# Sizes at which a case takes some seconds at most; the overheads of nodes and blocks (32 KiB, 128 KiB) count against a
# unit of 2 MB here, four times as much as at the 1000 x 1000 of the README's table.
N = 500
UNIT = N * N * 8
STEPS = 100


def chain(x, z):
    """Multiply *z* by *x* from the left a hundred times."""
    for _ in range(STEPS):
        z = np.dot(x, z)
    return np.sum(z)


def factors(n=N):
    """Return two matrices whose powers neither grow nor vanish."""
    rng = np.random.default_rng(0)
    return np.linalg.qr(rng.standard_normal((n, n)))[0], rng.standard_normal((n, n))


@pytest.mark.parametrize(("argnum", "units", "n"), [(0, 102.1, 500), (1, 2.2, 300)])
def test_chain_of_dots(argnum, units, n):
    """The left factor needs each product once, and no factor is kept for its type: by hand it is 102 and 2 units."""
    x, z = factors(n)
    call = grad(chain, argnum)
    assert peak_bytes(lambda: call(x, z)) <= units * x.nbytes


def test_chain_of_dots_gives_bytes_back_as_it_goes():
    """At step i of the sweep at most i + 2 units are live: the saved values below, the cotangent and the gradient."""
    x, z = factors(200)
    unit = x.nbytes
    live = {}

    def marked(k):
        def vjp(g):
            live[k] = tracemalloc.get_traced_memory()[0] - before
            return g

        return ebbtide.primitive(lambda z: z, vjp=(vjp,))

    marks = [marked(k) for k in range(STEPS)]

    def f(x, z):
        for mark in marks:
            z = mark(np.dot(x, z))
        return np.sum(z)

    before = 0
    grad(f)(x, z)  # what the library works out once for each primitive
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        grad(f)(x, z)
    finally:
        tracemalloc.stop()
    # Beside arrays there are two nodes a step.
    assert {k: live[k] / unit for k in live if live[k] > (k + 2) * unit + 2 * 320 * (k + 1) + 16384} == {}
    assert len(live) == STEPS
    assert live[STEPS - 1] > 0.9 * STEPS * unit


def test_deep_net():
    """A layer x <- tanh(x W) keeps its output only: 20 layers take 20 units, the gradients, and two for the sweep."""
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal((N, N)) / np.sqrt(N) for _ in range(20)]
    x = rng.standard_normal((N, N))

    def net(weights, x):
        for w in weights:
            x = np.tanh(x @ w)
        return np.sum(x)

    assert peak_bytes(lambda: grad(net)(weights, x)) <= 22.2 * UNIT


def test_recurrent_net():
    """A recurrent net keeps one state a step and one gradient of its weights, into which BLAS adds; all in float32."""
    rng = np.random.default_rng(2)
    width, batch = 1024, 16
    shapes = ((batch, width), (width, width), (width,), (width, 1), (1,))
    h, *weights = [0.03 * rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def net(weights, h):
        w1, b1, w2, b2 = weights
        for _ in range(50):
            h = np.tanh(np.dot(h, w1) + b1)
        return np.sum(np.dot(h, w2) + b2)

    gradients = []
    assert peak_bytes(lambda: gradients.extend(grad(net)(weights, h))) <= 8 * 2**20
    assert [(g.dtype, g.shape) for g in gradients] == [(np.float32, w.shape) for w in weights]


@pytest.mark.parametrize("uses", [2, 10, 100, 1000])
def test_fan_out(uses):
    """The gradient of a value that is used k times takes two units, whatever k is."""
    n = 1000 if uses <= 100 else 300
    rng = np.random.default_rng(3)
    x = rng.standard_normal((n, n))
    constants = [float(c) for c in rng.standard_normal(uses)]

    def f(x):
        h = x * 1.0
        return sum(np.sum(h * c) for c in constants)

    # The record of 1000 terms is real memory, and no array: about 1.2 KB a term, beside a unit of 720 KB.
    records = 1200 * uses if uses > 100 else 0
    assert peak_bytes(lambda: grad(f)(x)) <= 2.2 * x.nbytes + records


@pytest.mark.parametrize("uses", [2, 10, 100])
def test_fan_out_to_arrays(uses):
    """Also where the factors are arrays, of which the tape keeps a reference, a use more takes no array more."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((N, N))
    constants = [rng.standard_normal((N, N)) for _ in range(uses)]

    def f(x):
        h = x * 1.0
        return sum(np.sum(h * c) for c in constants)

    assert peak_bytes(lambda: grad(f)(x)) <= 2.2 * UNIT


def test_chain_of_relus():
    """Of a relu a mask of one byte an element is kept, an eighth of the array."""
    x = np.random.default_rng(5).standard_normal((1000, 1000))

    def f(x):
        h = x
        for _ in range(STEPS):
            h = np.maximum(h, 0.0)
        return np.sum(h)

    assert peak_bytes(lambda: grad(f)(x)) <= 14.6 * x.nbytes


@pytest.mark.parametrize(
    "step",
    [
        lambda h: h * 3.0,
        lambda h: h + 1.0,
        lambda h: -h,
        lambda h: h.reshape(-1)[::-1].reshape(h.shape),
        lambda h: h.T,
        lambda h: np.roll(h, 1, axis=0),
        lambda h: h.astype(np.float64) + 0.0,
    ],
    ids=["scaled", "shifted", "negative", "reversed", "transposed", "rolled", "cast"],
)
def test_linear_chains_save_nothing(step):
    """A linear operation saves nothing, not even for a shape or dtype: a chain of a hundred takes the working set."""
    x = np.random.default_rng(6).standard_normal((N, N))

    def f(x):
        h = x
        for _ in range(STEPS):
            h = step(h)
        return np.sum(h)

    assert peak_bytes(lambda: grad(f)(x)) <= 3.2 * UNIT
