"""Division and fits of polynomials: derivatives where shapes depend on values, warnings and errors."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import TraceError, grad, vjp
from ebbtide.testing import check_grads

U, X = np.array([3.0, -1.0, 0.5, 2.0]), np.array([0.1, 0.5, 1.2, 1.9, 2.3])


@pytest.mark.parametrize("v", [[1.5, 0.3], [-0.7, 1.0, 0.4, 2.0], [0.9, 1.0, 0.1, 0.2, 2.0]])
def test_division(v):
    """Quotient and remainder have derivatives by both polynomials, and put together are the dividend with slope 1."""
    v = np.array(v)
    check_grads(np.polydiv, U, v)

    def together(u, v):
        quotient, remainder = np.polydiv(u, v)
        return np.sum(np.polyadd(np.convolve(quotient, v), remainder)[-4:] * np.arange(1.0, 5.0))

    by_u, by_v = grad(together, (0, 1))(U, v)
    np.testing.assert_allclose(by_u, np.arange(1.0, 5.0), atol=1e-13)
    np.testing.assert_allclose(by_v, 0, atol=1e-13)


def test_fit_of_a_line():
    """The slope of a line moves with a point as the closed form says; weights that are equal change nothing."""
    shares = (X - X.mean()) / np.sum((X - X.mean()) ** 2)
    for weights in (None, np.full(5, 0.3)):
        by_y = grad(lambda y, weights=weights: np.polyfit(X, y, 1, w=weights)[0])(np.sin(X))
        np.testing.assert_allclose(by_y, shares, rtol=1e-12, atol=1e-14)
    check_grads(lambda x, y, w: np.polyfit(x, y, 2, w=w), X, np.sin(X), 1 + X)


def test_fit_without_full_rank():
    """Too few different points are warned of, as by NumPy, at the line of the user."""
    with pytest.warns(np.exceptions.RankWarning, match="poorly conditioned") as caught:
        vjp(lambda y: np.polyfit(np.ones(3), y, 1), np.ones(3))
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda y: np.polyfit(X, y, -1), TraceError, r"degree -1 through points of shapes \(5,\) and \(5,\)"),
        (lambda y: np.polyfit(X[:4], y, 1), TraceError, r"shapes \(4,\) and \(5,\)"),
        (lambda y: np.polyfit(X, y, 1, w=np.ones(4)), TraceError, r"weights of shape \(4,\)"),
        (lambda y: np.polyfit(X, y, 4, cov=True), ValueError, r"5 points with 5 coefficients.*unscaled"),
    ],
)
def test_refusals(call, error, message):
    """What cannot be fitted says why, with the shapes."""
    with pytest.raises(error, match=message):
        vjp(call, np.sin(X))
