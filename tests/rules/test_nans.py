"""Reductions that leave out nan: of all nan, of none, and with a mask of the user's; and the nan of cotangents."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ebbtide import grad, hvp, vjp
from ebbtide.testing import check_grads

NAN = np.nan
X = np.array([[1.5, NAN, -0.7, 2.0], [NAN, NAN, NAN, NAN], [0.3, 0.9, -1.1, 0.4]])
FUNCTIONS = (np.nansum, np.nanprod, np.nanmean, np.nanvar, np.nanstd, np.nanmax, np.nanmin, np.nanmedian)
PLAIN = {
    np.nansum: np.sum, np.nanprod: np.prod, np.nanmean: np.mean, np.nanvar: np.var, np.nanstd: np.std,
    np.nanmax: np.max, np.nanmin: np.min, np.nanmedian: np.median,
}  # fmt: skip


def quietly(call):
    """What NumPy warns of, rows of nan, is what is asked for."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        return call()


def slope_of_first(function):
    """The derivative of the result of the first row."""
    return grad(lambda x: function(x, axis=1)[0])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_row_of_nan(function):
    """A row of nan has NumPy's value, and the derivative zero, which no nan from there comes into."""
    value, found = quietly(lambda: (vjp(lambda x: function(x, axis=1), X)[0], slope_of_first(function)(X)))
    assert value.tobytes() == quietly(lambda: function(X, axis=1)).tobytes()
    assert np.all(found[1:] == 0)
    assert found[0, 1] == 0
    assert np.all(np.isfinite(found[0]))
    of_all = quietly(lambda: grad(lambda x: np.sum(function(x, axis=1)))(X))
    assert np.all(of_all[1] == 0)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_left(function):
    """The derivative is that of the plain reduction of the numbers, and zero at nan."""
    numbers = ~np.isnan(X[0])
    found = grad(function)(X[0])
    assert np.all(found[~numbers] == 0)
    np.testing.assert_allclose(found[numbers], grad(PLAIN[function])(X[0][numbers]), rtol=1e-14)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_second_derivatives(function):
    """Derivatives are right to second order of rows with nan and without."""
    check_grads(lambda x: function(np.where(np.isnan(X[[0, 2]]), NAN, x), axis=1), np.nan_to_num(X[[0, 2]]))


@pytest.mark.parametrize("function", [np.nansum, np.nanprod, np.nanmean, np.nanvar, np.nanstd])
def test_chosen_elements(function):
    """`where=` leaves out more than nan does."""
    where = np.array([True, True, False, True])
    found = grad(lambda x: function(x, where=where))(X[0])
    left = X[0][[0, 3]]
    np.testing.assert_allclose(found, [*grad(PLAIN[function])(left)[:1], 0, 0, *grad(PLAIN[function])(left)[1:]])


def test_an_infinite_element():
    """Infinity is a number: the extremum is there, and so is its derivative."""
    x = np.array([NAN, np.inf, 1.0])
    assert grad(np.nanmax)(x).tolist() == [0, 1, 0]
    assert grad(np.nansum)(x).tolist() == [0, 1, 1]


@pytest.mark.parametrize("spread", [np.var, np.std, np.nanvar, np.nanstd])
def test_a_column_of_which_none_is_chosen(spread):
    """Its spread is nan; its elements have derivatives of zero, also second ones, in both modes, and others theirs."""
    x, v = np.array([[1.5, 0.2, -0.7], [0.3, 0.9, -1.1], [0.8, 1.0, 2.0]]), np.array([[0.3], [0.1], [-0.5]])
    chosen = np.ones((3, 3), bool)
    chosen[:, 1] = False

    def loss(function):
        return lambda x: np.nansum(function(x) ** 3)

    part = loss(lambda x: spread(x, axis=0, where=chosen))
    rest = loss(lambda x: spread(x[:, ::2], axis=0))
    ways = (
        lambda f: grad(f)(x), lambda f: grad(lambda x: np.sum(grad(f)(x) * v))(x), lambda f: hvp(f)(x, v + 0 * x),
    )  # fmt: skip
    for way in ways:
        found = quietly(lambda way=way: way(part))
        assert np.array_equal(found[:, 1], np.zeros(3))
        assert np.allclose(found, way(rest), rtol=1e-14, atol=1e-15)
