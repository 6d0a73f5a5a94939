"""Time loops in what solvers solve and integrals integrate: any derivative is that of the loop written out."""

from __future__ import annotations

import numpy as np
import pytest
from tests.nestings import WAYS, check_ways

from ebbtide.scipy.integrate import quad
from ebbtide.scipy.optimize import brentq, fixed_point, newton, root
from ebbtide.scipy.sparse.linalg import LinearOperator, cg


def damped(loop, y, q):
    """Two steps that depend on a parameter."""
    return loop(lambda a, i: 0.5 * a + 0.1 * np.sin(a) * q, y, 2)


def by_root(loop, q):
    """The parameter is an argument."""
    return np.sum(root(lambda y, q: damped(loop, y, q) - q, np.ones(2), args=(q,), tol=1e-13).x ** 2)


def by_root_of_a_closure(loop, q):
    """The parameter is closed over."""
    return np.sum(root(lambda y: damped(loop, y, q) - q, np.ones(2), tol=1e-13).x ** 2)


def by_root_of_a_parameter(loop, q):
    """The loop knows nothing of the unknowns."""
    return np.sum(root(lambda y, q: y**3 + y - loop(lambda a, i: np.sin(a) + a, q, 2), np.ones(2), args=(q,)).x ** 2)


def by_root_of_unknowns(loop, q):
    """The loop knows nothing of the parameter."""
    return np.sum(root(lambda y, q: loop(lambda a, i: np.sin(a) * 0.2 + a, y, 2) - q * q, np.ones(2), args=(q,)).x ** 2)


def by_fixed_point(loop, q):
    """The parameter is an argument."""
    return np.sum(fixed_point(lambda y, q: damped(loop, y, q) + q, np.ones(2), args=(q,), xtol=1e-12) ** 2)


def by_fixed_point_of_a_closure(loop, q):
    """The parameter is closed over."""
    return np.sum(fixed_point(lambda y: damped(loop, y, q) + q, np.ones(2), xtol=1e-12) ** 2)


def by_brentq(loop, q):
    """The parameter is an argument."""
    return brentq(lambda t, q: damped(loop, t, q[0]) - q[1], -9.0, 9.0, args=(q,), xtol=1e-14)


def by_brentq_of_a_closure(loop, q):
    """The parameter is closed over."""
    return brentq(lambda t: damped(loop, t, q[0]) - q[1], -9.0, 9.0, xtol=1e-14)


def by_newton(loop, q):
    """The parameter is an argument."""
    return newton(lambda t, q: damped(loop, t, q[0]) - q[1], 1.0, args=(q,), tol=1e-13)


def by_newton_of_a_closure(loop, q):
    """The parameter is closed over."""
    return newton(lambda t: damped(loop, t, q[0]) - q[1], 1.0, tol=1e-13)


def by_quad(loop, q):
    """The parameter is an argument."""
    return quad(lambda t, q: np.sum(damped(loop, t * np.ones(2), q)), 0.0, 1.0, args=(q,))[0]


def by_quad_of_a_closure(loop, q):
    """The parameter is closed over."""
    return quad(lambda t: np.sum(damped(loop, t * np.ones(2), q)), 0.0, 1.0)[0]


def by_cg(loop, q):
    """A matrix that a loop multiplies by."""
    operator = LinearOperator((2, 2), lambda v: loop(lambda a, i: a * q, v, 2))
    return np.sum(cg(operator, np.ones(2), rtol=1e-14)[0] ** 2)


FUNCTIONS = (
    by_root, by_root_of_a_closure, by_root_of_a_parameter, by_root_of_unknowns, by_fixed_point,
    by_fixed_point_of_a_closure, by_brentq, by_brentq_of_a_closure, by_newton, by_newton_of_a_closure, by_quad,
    by_quad_of_a_closure, by_cg,
)  # fmt: skip

# Of those whose functions are called hundreds of times the longest are left out.
MANY_CALLS = (by_quad, by_quad_of_a_closure)
LONG = ("hessian", "jvp of jvp", "grad of vmap of jvp", "vmap of grad", "jvp of jit of grad")


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_any_derivative(function):
    """Of any order and mode, with the parameter in args= and closed over, it is a plain array with the same numbers."""
    ways = [name for name in WAYS if function not in MANY_CALLS or name not in LONG]
    check_ways(function, ways, rtol=1e-6, atol=1e-9)
