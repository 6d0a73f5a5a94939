"""Controls that are vectors of a registered type."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fields import Field, pack, product, random_field, same_bits, sine, unpack

from ebbtide import axpy, inner, timeloop
from ebbtide.optimize import Control, ReducedFunctional, minimize, taylor_test
from ebbtide.schedules import Revolve

TARGET = random_field(5)
V, D = random_field(1), random_field(2)


def misfit(v, schedule=None):
    """How far the end of a loop, started from the control, is from a target."""
    last = timeloop(lambda s, i: axpy(-0.1, product(sine(s), s), s), v, 8, schedule=schedule)
    return 0.5 * inner(last - TARGET, last - TARGET)


def test_taylor_test():
    """The Taylor test of a functional of a vector passes for value, derivative and Hessian, along a vector."""
    test = taylor_test(ReducedFunctional(lambda v: misfit(v, Revolve(2)), Control(V)), V, D)
    assert test.orders == 3
    assert test.passed


def test_derivatives_are_vectors():
    """Derivative, gradient and Hessian action are vectors of the control, also beside controls that are arrays."""
    functional = ReducedFunctional(lambda v, k: k * misfit(v), [Control(V), Control(np.float64(2.0))])
    cotangent, slope = functional.derivative([V, 2.0])
    action, _ = functional.hessian([V, 2.0], [D, 0.0])
    assert type(cotangent) is type(action) is Field
    assert np.isclose(slope, misfit(V), rtol=1e-14)
    assert same_bits(functional.derivative([V, 2.0], riesz=True)[0], cotangent)


def test_inner_product_of_the_space():
    """A Riesz map is given vectors and returns them: here that of a mass matrix which weighs the cells."""
    mass = Field(np.full((3, 4), 0.5), np.full((2, 5), 0.25))
    functional = ReducedFunctional(misfit, Control(V, riesz=lambda c: Field(c.u / mass.u, c.p / mass.p)))
    plain, riesz = functional.derivative(V), functional.derivative(V, riesz=True)
    assert np.array_equal(riesz.u, plain.u * 2)
    assert np.array_equal(riesz.p, plain.p * 4)


def test_minimize():
    """The minimum is a vector, and the target is reached."""
    found = minimize(ReducedFunctional(misfit, Control(V)), V, options={"gtol": 1e-9, "ftol": 1e-16})
    assert type(found.m) is Field
    assert misfit(found.m) < 1e-12


def test_another_form():
    """A value of another form than the control is refused."""
    with pytest.raises(ValueError, match="Field"):
        ReducedFunctional(misfit, Control(V)).value(random_field(1, rows=5))
    assert same_bits(unpack(*pack(V)), V)
