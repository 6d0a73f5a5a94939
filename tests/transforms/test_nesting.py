"""Any nesting of transforms is the derivative of that order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.nestings import along
from tests.scale import bar, sample

import ebbtide as eb


def back(f):
    """Take a derivative in reverse mode."""
    return lambda x: eb.vjp(f, x)[1](1.0)[0]


def pushed(f):
    """Take a derivative by a linearization."""
    return lambda x: eb.linearize(f, x)[1](1.0)


def looped(f):
    """Run a function as the one step of a time loop, and so that the derivative of the loop has its own."""
    return lambda x: eb.timeloop(lambda u, _: f(u), x, 1)


# How each changes the order of the derivative, and what it makes of a function of one number.
TRANSFORMS = {
    "grad": (1, eb.grad),
    "value_and_grad": (1, lambda f: lambda x: eb.value_and_grad(f)(x)[1]),
    "elementwise_grad": (1, eb.elementwise_grad),
    "deriv": (1, eb.deriv),
    "jvp": (1, along),
    "vjp": (1, back),
    "linearize": (1, pushed),
    "jacobian by rows": (1, lambda f: eb.jacobian(f, mode="reverse")),
    "jacobian by columns": (1, lambda f: eb.jacobian(f, mode="forward")),
    "hvp": (2, lambda f: lambda x: eb.hvp(f)(x, 1.0)),
    "hessian": (2, eb.hessian),
    "checkpoint": (0, eb.checkpoint),
    "jit": (0, eb.jit),
    "vmap": (0, lambda f: lambda x: np.sum(eb.vmap(f)(np.reshape(x, (1,))))),
    "timeloop": (0, looped),
}
CASES = list(itertools.product(TRANSFORMS, repeat=3))
POINT = 0.7


def exact(order):
    """Return a derivative of exp(2 x) + sin(x)."""
    return 2**order * np.exp(2 * POINT) + np.sin(POINT + order * np.pi / 2)


def nested(names, f=lambda x: np.exp(2 * x) + np.sin(x)):
    """Return a function with these transforms around it, and the order of the derivative that this is."""
    order = 0
    for name in reversed(names):
        more, transform = TRANSFORMS[name]
        f, order = transform(f), order + more
    return f, order


@pytest.mark.parametrize("outer", TRANSFORMS)
def test_every_nesting(outer):
    """Three transforms in each other, whichever they are, give the derivative of the sum of their orders."""
    for names in bar(sample([case for case in CASES if case[0] == outer], 31), outer):
        f, order = nested(names)
        found = f(POINT)
        assert np.shape(found) == (), names
        np.testing.assert_allclose(found, exact(order), rtol=1e-12, err_msg=" of ".join(names))


AROUND = {
    "grad": eb.grad,
    "jvp": along,
    "linearize": pushed,
    "jit of grad": lambda f: eb.jit(eb.grad(f)),
    "grad of jit": lambda f: eb.grad(eb.jit(f)),
}


@pytest.mark.parametrize("around", AROUND)
def test_arrays_from_outside_that_meet_first(around):
    """Two arrays from outside may meet before either meets an array of the transforms, whichever they are."""
    for names in bar(sample(CASES, 97), around):

        def value(c, names=names):
            return nested(names, lambda x: np.exp(2 * x) * (c * c) + np.sin(x) * np.cos(c))[0](POINT)

        order, c = sum(TRANSFORMS[name][0] for name in names), 1.3
        expected = 2 * c * 2**order * np.exp(2 * POINT) - np.sin(c) * np.sin(POINT + order * np.pi / 2)
        np.testing.assert_allclose(AROUND[around](value)(c), expected, rtol=1e-12, err_msg=" of ".join(names))


WITH_LINEARIZE = [("linearize", "grad"), ("linearize", "hvp"), ("linearize", "linearize"), ("vjp", "linearize")]


@pytest.mark.parametrize("names", WITH_LINEARIZE)
def test_linearized_loops(names):
    """A time loop is linearized together with other derivatives of it."""
    f, order = nested((*names, "timeloop"))
    np.testing.assert_allclose(f(POINT), exact(order), rtol=1e-12)


@pytest.mark.parametrize("outer", [eb.grad, along, pushed])
def test_a_loop_whose_budget_would_not_hold(outer):
    """A linearized derivative of a time loop keeps all steps: a budget of the loop alone is refused, and says so."""
    loop = lambda x: eb.timeloop(lambda u, _: np.sin(u), x, 9, budget=eb.Budget(memory=10**6))
    transforms = [pushed, outer] if outer is not eb.grad else [outer, pushed]
    f = transforms[0](transforms[1](loop))
    with pytest.raises(eb.TraceError, match="Give the budget to linearize"):
        f(POINT)


def test_a_linearized_derivative_of_a_loop_keeps_the_budget_of_the_call():
    """The steps that are kept count in the budget of linearize, which is refused or holds."""
    x = np.linspace(0.1, 1.0, 1000)
    gradient = eb.grad(lambda x: np.sum(eb.timeloop(lambda u, _: np.sin(u), x, 50)))
    with pytest.raises(eb.BudgetError, match="Give at least"):
        eb.linearize(gradient, x, budget=eb.Budget(memory=20 * x.nbytes))
    assert peak_bytes(lambda: eb.linearize(gradient, x, budget=eb.Budget(memory=300 * x.nbytes))) < 310 * x.nbytes
