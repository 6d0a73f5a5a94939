"""The largest of windows of images, against explicit loops."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, hvp, jit, jvp
from ebbtide.nn.pooling import max_pool2d
from ebbtide.testing import check_grads


def by_loops(x, window, strides):
    """Return the largest elements of windows, and where in the images each of them is."""
    rows = range(0, x.shape[1] - window[0] + 1, strides[0])
    columns = range(0, x.shape[2] - window[1] + 1, strides[1])
    values = np.empty((len(x), len(rows), len(columns), x.shape[3]))
    places = np.zeros(x.shape)
    for n, i, j, c in np.ndindex(values.shape):
        part = x[n, rows[i] : rows[i] + window[0], columns[j] : columns[j] + window[1], c]
        values[n, i, j, c] = part.max()
        row, column = np.unravel_index(np.argmax(part), part.shape)
        places[n, rows[i] + row, columns[j] + column, c] += 1.0
    return values, places


@pytest.mark.parametrize("strides", [(2, 2), (1, 1), (3, 2)], ids=str)
@pytest.mark.parametrize("window", [(2, 2), (3, 1)], ids=str)
def test_windows(window, strides):
    """Windows may overlap, leave gaps and not reach the margins; what is in no window has no derivative."""
    x = np.random.default_rng(0).standard_normal((2, 7, 6, 3))
    values, places = by_loops(x, window, strides)
    assert np.array_equal(max_pool2d(x, window, strides), values)
    assert np.array_equal(grad(lambda x: np.sum(max_pool2d(x, window, strides)))(x), places)
    assert np.array_equal(jit(grad(lambda x: np.sum(max_pool2d(x, window, strides))))(x), places)
    tangent = np.random.default_rng(1).standard_normal(x.shape)
    found = jvp(lambda x: np.sum(max_pool2d(x, window, strides)), (x,), (tangent,))[1]
    assert np.isclose(found, np.sum(places * tangent))
    check_grads(lambda x: np.sin(max_pool2d(x, window, strides)), x[:1, :, :, :1], order=2)


def test_the_first_of_equal_elements_has_the_derivative():
    """Of a window whose elements are all the same, the first one."""
    found = grad(lambda x: np.sum(max_pool2d(x, 2) ** 2))(np.ones((1, 2, 4, 1)))
    assert np.array_equal(found[0, :, :, 0], [[2.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


def test_second_derivatives_are_where_the_largest_are():
    """The Hessian of half the sum of squares picks the chosen elements out of a vector."""
    x, v = np.random.default_rng(2).standard_normal((2, 1, 4, 4, 2))
    _, places = by_loops(x, (2, 2), (2, 2))
    assert np.array_equal(hvp(lambda x: 0.5 * np.sum(max_pool2d(x) ** 2))(x, v), places * v)
