"""Arrays that are made like traced ones: constants that take traced values."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import checkpoint, grad, hvp, jvp, timeloop, vjp, vmap
from ebbtide.schedules import Revolve

X = np.linspace(0.5, 2.0, 4)
LIKE = {
    "zeros": lambda x: np.zeros(4, like=x),
    "ones": lambda x: np.ones((2, 4), like=x),
    "empty": lambda x: np.empty(4, np.float64, like=x),
    "full": lambda x: np.full(4, 3.0, like=x),
    "arange": lambda x: np.arange(4.0, like=x),
    "eye": lambda x: np.eye(4, like=x),
    "identity": lambda x: np.identity(4, like=x),
    "zeros_like": np.zeros_like,
    "ones_like": lambda x: np.ones_like(x, shape=(2, 4)),
    "empty_like": np.empty_like,
    "full_like": lambda x: np.full_like(x, 2.0),
}


@pytest.mark.parametrize("make", LIKE.values(), ids=LIKE)
def test_takes_traced_values(make):
    """An array made like a traced one can be written with traced values, in both modes and in an inner gradient."""

    def f(x):
        made = make(x)
        made[...] = 1.0
        made[..., 1:3] = x[:2] * x[2:]
        return np.sum(made * made)

    plain = make(X)
    rows = plain.size // 4
    expected = rows * np.array([2 * X[0] * X[2] ** 2, 2 * X[1] * X[3] ** 2, 2 * X[2] * X[0] ** 2, 2 * X[3] * X[1] ** 2])
    np.testing.assert_allclose(grad(f)(X), expected, rtol=1e-14)
    np.testing.assert_allclose([jvp(f, (X,), (e,))[1] for e in np.eye(4)], expected, rtol=1e-14)
    inner = grad(lambda x: np.sum(grad(f)(x) * x))(X)
    np.testing.assert_allclose(inner, 4 * expected, rtol=1e-14)


@pytest.mark.parametrize("make", LIKE.values(), ids=LIKE)
def test_takes_traced_values_where_a_step_runs_again(make):
    """With another derivative or a batch around it took none there: `like=` is not among what a function is given."""

    def step(u, _=None):
        made = make(u)
        made[...] = 1.0
        made[..., :2] += u[:2] * u[2:]
        return u + 0.1 * np.sum(made) * u

    def repeated(u):
        return np.sum(step(step(step(u))) ** 2)

    def loop(u):
        return np.sum(timeloop(step, u, 3, schedule=Revolve(1)) ** 2)

    def region(u):
        return np.sum(checkpoint(step)(checkpoint(step)(step(u))) ** 2)

    direction = np.cos(X)
    for f in (loop, region):
        np.testing.assert_allclose(hvp(f)(X, direction), hvp(repeated)(X, direction), rtol=1e-13)
        np.testing.assert_allclose(vmap(grad(f))(X[None])[0], grad(repeated)(X), rtol=1e-13)


@pytest.mark.parametrize("make", LIKE.values(), ids=LIKE)
def test_is_a_constant(make):
    """What is made like a traced array has NumPy's shape and dtype and no derivative of its own."""
    x = X.astype(np.float32)
    kinds = []

    def f(x):
        made = make(x)
        made[...] = 2.0
        kinds.append((made.shape, made.dtype))
        return np.sum(made) * np.sum(x)

    assert np.array_equal(grad(f)(x), np.full(4, 2.0 * make(x).size, np.float32))
    assert kinds == [(make(x).shape, make(x).dtype)]


def test_filled_with_a_traced_value():
    """`full_like` passes the derivative of its fill value on, and casts it to the dtype of the array."""
    assert grad(lambda s: np.sum(np.full_like(s, s, shape=(2, 3))))(2.0) == 6.0
    value, pullback = vjp(np.full_like, np.ones(3, np.float32), np.float64(0.1))
    assert value.dtype == np.float32
    zeros, slope = pullback(np.ones(3, np.float32))
    assert np.array_equal(zeros, np.zeros(3, np.float32))
    assert (slope, slope.dtype) == (3.0, np.float64)


def test_linspace_ends_are_exact():
    """The last number between traced ends is the end itself, with its whole derivative."""
    a, b = 0.1, 0.7
    assert vjp(lambda a, b: np.linspace(a, b, 7), a, b)[0].tobytes() == np.linspace(a, b, 7).tobytes()
    assert grad(lambda a, b: np.linspace(a, b, 7)[-1], (0, 1))(a, b) == (0.0, 1.0)
    assert grad(lambda a, b: np.linspace(a, b, 5)[1], (0, 1))(a, b) == (0.75, 0.25)
