"""What a Taylor test says where the numbers say little: no wrong derivative passes, and no right one fails."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ebbtide.optimize import taylor_remainders, taylor_test

X = np.array([0.3, -1.2, 0.7])
D = np.array([1.0, 0.5, -0.3])


@pytest.mark.parametrize(
    ("f", "m", "text"),
    [
        (lambda x: np.sum(np.sqrt(x)), np.array([0.0, 1.0, 2.0]), "derivative of order 1 .* is inf, .* is 2.41421"),
        (lambda x: np.sum(np.sqrt(x) - np.log1p(x)) + x[0], np.zeros(3), "derivative of order 1 .* is (inf|nan)"),
        (lambda x: np.sum(x**1.5), np.array([0.0, 1.0, 2.0]), "derivative of order 2 .* is inf, .* is 3.82843"),
        (lambda x: np.sum(x * 0.0) + np.inf, X, "functional is inf at m"),
    ],
)
def test_derivatives_that_are_not_finite(f, m, text):
    """An infinite derivative is told as one, with its order and the value, and not as rounding."""
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=text):
        taylor_test(f, m, np.array([1.0, 0.5, 0.3]))


def test_values_that_are_not_finite():
    """At a given distance where the functional is not finite, that is told, with the distance."""
    f = lambda x: np.sum(np.where(x > 1.25, np.nan, 1.0) * np.exp(x))
    with pytest.raises(ValueError, match=r"functional is nan at the distance 0\.3, and finite at m"):
        taylor_test(f, np.ones(2), np.ones(2), distances=[0.3, 0.2, 0.1])
    with pytest.raises(ValueError, match=r"functional is inf at the distance 0\.1"):
        taylor_remainders(lambda e: 1.0 / (0.05 - e) if e < 0.1 else math.inf, 20.0, [400.0], [0.1, 0.01])
    with pytest.raises(ValueError, match=r"derivative of order 1 .* is nan"):
        taylor_remainders(math.exp, 1.0, [math.nan], [0.1, 0.01])
    with pytest.raises(ValueError, match="functional is inf at m"):
        taylor_remainders(math.exp, math.inf, [1.0], [0.1, 0.01])
