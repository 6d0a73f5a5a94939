"""Any nesting of transforms is the derivative of that order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.scale import bar, sample

import ebbtide as eb


def along(f):
    """Take a derivative in forward mode."""
    return lambda x: eb.jvp(f, (x,), (1.0,))[1]


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
DERIVATIVES = [name for name, (order, _) in TRANSFORMS.items() if order]
# A pushforward keeps steps that no other derivative of the loop has room for: these are refused.
REFUSED = [("linearize", name, "timeloop") for name in DERIVATIVES] + [
    (name, "linearize", "timeloop")
    for name in DERIVATIVES
    if name not in ("deriv", "jvp", "jacobian by columns", "linearize")
]
CASES = [names for names in itertools.product(TRANSFORMS, repeat=3) if names not in REFUSED]
POINT = 0.7


def exact(order):
    """Return a derivative of exp(2 x) + sin(x)."""
    return 2**order * np.exp(2 * POINT) + np.sin(POINT + order * np.pi / 2)


def nested(names):
    """Return a function with these transforms around it, and the order of the derivative that this is."""
    f, order = lambda x: np.exp(2 * x) + np.sin(x), 0
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


def test_linearized_derivatives_of_loops_are_refused():
    """Another derivative of a linearized time loop is an error that says why, and no wrong number."""
    for names in REFUSED:
        with pytest.raises(eb.TraceError, match="linearized in which another derivative of a time loop"):
            nested(names)[0](POINT)
