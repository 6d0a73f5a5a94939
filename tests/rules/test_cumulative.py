"""Running products, extrema and logarithms of sums: recurrences that never divide, to third order."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from ebbtide import grad, jvp
from ebbtide.testing import check_grads

X = np.array([1.5, -0.5, 2.0, 0.7])
WEIGHTS = np.array([0.3, -1.1, 0.7, 1.9])


def third(f, x, direction):
    """The third derivative of *f* along a direction."""

    def along(f):
        return lambda x: jvp(f, (x,), (direction,))[1]

    return along(along(along(f)))(x)


@pytest.mark.parametrize("zeros", [zeros for count in range(5) for zeros in combinations(range(4), count)])
def test_products_to_third_order(zeros):
    """With any elements zero the third derivative of a running product is that of the polynomial that it is."""
    x = X.copy()
    x[list(zeros)] = 0.0
    direction = np.array([0.9, 1.3, -0.4, 0.8])
    found = third(lambda x: np.sum(WEIGHTS * np.cumprod(x)), x, direction)
    total = np.poly1d([0.0])
    running = np.poly1d([1.0])
    for weight, a, b in zip(WEIGHTS, x, direction, strict=True):
        running = running * np.poly1d([b, a])
        total = total + weight * running
    np.testing.assert_allclose(found, np.polyder(total, 3)(0.0), atol=1e-12)
    reverse = grad(lambda x: jvp(grad(lambda x: np.sum(WEIGHTS * np.cumprod(x))), (x,), (direction,))[1] @ direction)
    np.testing.assert_allclose(reverse(x) @ direction, found, atol=1e-12)


@pytest.mark.parametrize("function", [np.maximum.accumulate, np.minimum.accumulate, np.logaddexp.accumulate])
def test_running_extrema(function):
    """A running extremum or logarithm of a sum is differentiated along either axis, and backwards."""
    x = np.array([[0.3, 1.2, -0.7, 0.9], [2.0, -1.0, 0.4, 0.1]])
    for axis in (0, 1, -1):
        check_grads(lambda x, axis=axis: function(x, axis), x)
        check_grads(lambda x, axis=axis: function(x[::-1, ::-1], axis), x)


def test_an_extremum_belongs_to_who_reached_it():
    """The cotangents of a running maximum go to the element that is the maximum there."""
    found = grad(lambda x: WEIGHTS @ np.maximum.accumulate(x))(np.array([1.0, 0.0, 3.0, 2.0]))
    np.testing.assert_allclose(found, [WEIGHTS[:2].sum(), 0.0, WEIGHTS[2:].sum(), 0.0])


def test_sums_are_transposed():
    """The transpose of a running sum is the running sum from the other end."""
    assert grad(lambda x: WEIGHTS @ np.cumsum(x))(X).tolist() == np.cumsum(WEIGHTS[::-1])[::-1].tolist()


@pytest.mark.parametrize("function", [np.cumsum, np.cumprod, np.maximum.accumulate])
def test_one_element_and_none(function):
    """One element is itself, and of none there is none."""
    assert grad(lambda x: np.sum(function(x)))(np.array([2.5])).tolist() == [1.0]
    assert grad(lambda x: np.sum(function(x)))(np.zeros(0)).shape == (0,)


def test_products_beyond_all_numbers():
    """Elements after which a running product overflows have no part in the derivative of what comes before."""
    x = np.array([2.0, 3.0, 1e200, 1e200, 0.5])
    with np.errstate(over="ignore", invalid="ignore"):
        assert grad(lambda x: np.cumprod(x)[1])(x)[:4].tolist() == [3.0, 2.0, 0.0, 0.0]
        assert jvp(np.cumprod, (x,), (np.array([1.0, 0.0, 0.0, 0.0, 0.0]),))[1][:3].tolist() == [1.0, 3.0, 3e200]
