"""Convolutions and correlations against the sum that defines them, and their transposes, of any two lengths."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, vjp, vmap
from ebbtide.errors import TraceError
from ebbtide.testing import check_grads

RANDOM = np.random.default_rng(3)
LENGTHS = ((1, 1), (1, 4), (4, 1), (5, 2), (2, 5), (4, 3), (3, 4), (6, 6))


def whole(x, y):
    """The full convolution by its definition."""
    found = np.zeros(len(x) + len(y) - 1, np.result_type(x, y))
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            found[i + j] += a * b
    return found


def matrix_of(function, x, y):
    """The matrix that takes *x* to a convolution, which is linear in it."""
    return np.stack([function(row, y) for row in np.eye(len(x))], axis=1)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize(("m", "n"), LENGTHS)
@pytest.mark.parametrize("function", [np.convolve, np.correlate])
def test_against_the_sum(function, m, n, mode):
    """Values are those of the sum; cotangents are those of the transposed matrix, for both operands."""
    x, y = RANDOM.standard_normal(m), RANDOM.standard_normal(n)
    value, pullback = vjp(lambda x, y: function(x, y, mode), x, y)
    assert value.tobytes() == function(x, y, mode).tobytes()
    full = whole(x, y if function is np.convolve else y[::-1])
    if mode == "full":
        np.testing.assert_allclose(value, full, atol=1e-13)
    elif mode == "valid":
        np.testing.assert_allclose(value, full[min(m, n) - 1 : max(m, n)], atol=1e-13)
    g = RANDOM.standard_normal(value.shape)
    of_x, of_y = pullback(g)
    np.testing.assert_allclose(of_x, matrix_of(lambda a, b: function(a, b, mode), x, y).T @ g, atol=1e-13)
    np.testing.assert_allclose(of_y, matrix_of(lambda b, a: function(a, b, mode), y, x).T @ g, atol=1e-13)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_complex_operands(mode):
    """A correlation conjugates its second operand: derivatives are right to second order, of real and complex ones."""
    x = RANDOM.standard_normal(4) + 1j * RANDOM.standard_normal(4)
    y = RANDOM.standard_normal(3) + 1j * RANDOM.standard_normal(3)
    for function in (np.convolve, np.correlate):
        check_grads(lambda a, b, f=function: f(a, b, mode), x, y)
        check_grads(lambda a, b, f=function: f(a, b, mode), x.real.copy(), y)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_members(mode):
    """Of a batch of either operand, or both, each member has what it has alone."""
    x, y = RANDOM.standard_normal((3, 2)), RANDOM.standard_normal((3, 5))
    for function in (np.convolve, np.correlate):
        def f(a, b, function=function):
            return function(a, b, mode)

        for axes in ((0, 0), (0, None), (None, 0)):
            given = [v if axis == 0 else v[1] for v, axis in zip((x, y), axes, strict=True)]
            pairs = [zip((x, y), axes, strict=True) for _ in range(3)]
            expected = [f(*[v[k] if axis == 0 else v[1] for v, axis in pair]) for k, pair in enumerate(pairs)]
            np.testing.assert_allclose(vmap(f, axes)(*given), expected, atol=1e-13)


def test_refusals():
    """What NumPy does not take, or takes by a name that says nothing, is refused."""
    with pytest.raises(ValueError, match="each must have one axis and an element"):
        grad(lambda x: np.sum(np.convolve(x, np.ones(0))))(np.ones(2))
    with pytest.raises(ValueError, match="each must have one axis and an element"):
        grad(lambda x: np.sum(np.correlate(x, np.ones((2, 2)))))(np.ones(2))
    with pytest.raises(TraceError, match="mode='half' is none of 'full', 'same', 'valid'"):
        grad(lambda x: np.sum(np.convolve(x, x, "half")))(np.ones(2))
