"""Bessel functions and their kin: recurrences at the lowest orders and at zero, and what has no rule."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from ebbtide import grad, jvp
from ebbtide.errors import RuleMissingError
from ebbtide.testing import check_grads

X = np.array([0.3, 1.7, 4.2])
OF_ANY_ORDER = (special.jv, special.yv, special.iv, special.kv, special.ive, special.kve, special.yn, special.kn)
PAIRS = (
    (special.j0, special.jv, 0), (special.j1, special.jv, 1), (special.y0, special.yv, 0), (special.y1, special.yv, 1),
    (special.i0, special.iv, 0), (special.i1, special.iv, 1), (special.k0, special.kv, 0), (special.k1, special.kv, 1),
    (special.i0e, special.ive, 0), (special.i1e, special.ive, 1), (special.k0e, special.kve, 0),
    (special.k1e, special.kve, 1), (np.i0, special.iv, 0),
)  # fmt: skip


def slope(f):
    """The derivative of an elementwise function."""
    return grad(lambda x: np.sum(f(x)))


@pytest.mark.parametrize(("function", "family", "order"), PAIRS)
def test_functions_of_one_order(function, family, order):
    """A function of order 0 or 1 has the derivatives, to third order, that the family has at this order."""
    one, other = function, lambda x: family(float(order), x)
    for _ in range(3):
        one, other = slope(one), slope(other)
        np.testing.assert_allclose(one(X), other(X), rtol=1e-12)


@pytest.mark.parametrize("function", OF_ANY_ORDER)
@pytest.mark.parametrize("order", [0, 1, 2])
def test_recurrences(function, order):
    """The recurrences hold at the orders where the order below is negative, too."""
    check_grads(lambda x: function(order, x), X)


@pytest.mark.parametrize("order", [0, 2.5])
def test_scaled_of_complex_numbers(order):
    """The scale exp(-|Re z|) follows the real part of z, which may be negative, to any order."""
    z = np.array([0.3 - 1.2j, -1.7 + 0.4j, -4.2 - 2j])
    check_grads(lambda z: special.ive(order, z), z, order=3)
    with pytest.raises(RuleMissingError, match="the order of ive"):
        grad(lambda v: abs(special.ive(v, z[0])))(2.0)


def test_at_zero():
    """At zero, where recurrences that divide are nan, the derivatives are those of the power series."""
    zero = np.zeros(1)
    expected = {special.j0: (0, -0.5), special.j1: (0.5, 0), special.i0: (0, 0.5), special.i1: (0.5, 0)}
    for function, slopes in expected.items():
        assert (slope(function)(zero)[0], slope(slope(function))(zero)[0]) == slopes
    assert (grad(np.i0)(0.0), grad(grad(np.i0))(0.0)) == (0, 0.5)


@pytest.mark.parametrize("function", OF_ANY_ORDER)
def test_order(function):
    """The derivative by the order is refused in both modes, and named."""
    message = rf"the order of {function.__name__}"
    with pytest.raises(RuleMissingError, match=message):
        grad(lambda v: function(v, 1.5))(2.0)
    with pytest.raises(RuleMissingError, match=message):
        jvp(lambda v: function(v, 1.5), (2.0,), (1.0,))


@pytest.mark.parametrize(
    ("function", "parameters"),
    [(special.hyp0f1, (1.5,)), (special.hyp1f1, (0.7, 1.5)), (special.hyperu, (0.7, 1.5)),
     (special.hyp2f1, (0.7, 0.4, 1.5))],
)  # fmt: skip
def test_hypergeometric_functions(function, parameters):
    """They are differentiated by the argument, and not by a parameter."""
    check_grads(lambda x: function(*parameters, x), np.array([0.2, 0.6]))
    for k in range(len(parameters)):
        with pytest.raises(RuleMissingError, match=function.__name__):
            grad(lambda p, k=k: function(*parameters[:k], p, *parameters[k + 1 :], 0.3))(parameters[k])


def test_precision():
    """Single precision stays so, and beyond double precision the slope is that of doubles."""
    for dtype in (np.float16, np.float32, np.longdouble):
        found = slope(np.i0)(X.astype(dtype))
        assert found.dtype == dtype
        np.testing.assert_allclose(found.astype(float), special.i1(X.astype(dtype).astype(float)), rtol=2e-3)
    assert slope(special.j1)(X.astype(np.float32)).dtype == np.float32
