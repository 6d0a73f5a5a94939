"""Solvers and integrals within transforms within transforms have the derivatives of what they find."""

from __future__ import annotations

import numpy as np
import pytest
from tests.nestings import check_nestings

from ebbtide.scipy.integrate import odeint, quad
from ebbtide.scipy.optimize import brentq, newton, root
from ebbtide.scipy.sparse.linalg import LinearOperator, cg


def by_root(x, c):
    """A cube root."""
    return root(lambda v: v**3 * (c * c) - x * (c * c), np.array([1.0]), tol=1e-13).x[0]


def by_brentq(x, c):
    """Another one, in brackets."""
    return brentq(lambda v: v**3 * (c * c) - x * (c * c) * np.exp(c * c), 0.01, 9.0, xtol=1e-14, rtol=1e-14)


def by_newton(x, c):
    """A square root."""
    return newton(lambda v: v * v * (c * c) - x, 1.0, tol=1e-13)


def by_quad(x, c):
    """The integral of an exponential."""
    return quad(lambda t: np.exp(t * (c * c) / 3) * (c * c), 0.0, x, epsabs=1e-13, epsrel=1e-13)[0]


def by_odeint(x, c):
    """Decay."""
    times = np.array([0.0, 0.5])
    return odeint(lambda y, t, k: -y * (k * k), np.stack([x, x]), times, args=(c,), rtol=1e-12, atol=1e-13)[1][0]


def by_cg(x, c):
    """A quotient."""
    return cg(LinearOperator((2, 2), lambda v: v * (c * c)), np.stack([x * c, x]), rtol=1e-14)[0][1]


# What each of them finds. What they close over meets itself before it meets an argument.
FOUND = {
    by_root: lambda x, c: x ** (1 / 3),
    by_brentq: lambda x, c: (x * np.exp(c * c)) ** (1 / 3),
    by_newton: lambda x, c: np.sqrt(x) / c,
    by_quad: lambda x, c: 3 * (np.exp(x * (c * c) / 3) - 1),
    by_odeint: lambda x, c: x * np.exp(-c * c / 2),
    by_cg: lambda x, c: x / (c * c),
}


@pytest.mark.parametrize("function", FOUND)
def test_any_nesting(function):
    """Whatever is around and between, the derivative by what the function closes over is that of what it finds."""
    check_nestings(function, FOUND[function], 61, rtol=1e-5, atol=1e-7)
