"""Solvers and integrals within transforms within transforms have the derivatives of what they find."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.scale import bar, sample

import ebbtide as eb
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


def along(f):
    """The derivative in forward mode."""
    return lambda x: eb.jvp(f, (x,), (1.0,))[1]


def unchanged(f):
    """What does not change a function."""
    return f


# Each transform, and what it is of a function without a solver.
TRANSFORMS = {
    "checkpoint": (eb.checkpoint, unchanged),
    "timeloop": (
        lambda f: lambda x: eb.timeloop(lambda u, _: 0.5 * u + f(u), x, 2),
        lambda f: lambda x: 0.5 * (0.5 * x + f(x)) + f(0.5 * x + f(x)),
    ),
    "jit": (eb.jit, unchanged),
    "vmap": (lambda f: lambda x: np.sum(eb.vmap(f)(np.reshape(x, (1,)))), unchanged),
    "grad": (eb.grad, eb.grad),
    "jvp": (along, along),
    "linearize": (lambda f: lambda x: eb.linearize(f, x)[1](1.0), along),
}
AROUND = {
    "grad": (eb.grad, eb.grad),
    "jvp": (along, eb.grad),
    "linearize": (lambda f: lambda c: eb.linearize(f, c)[1](1.0), eb.grad),
    "jit of grad": (lambda f: eb.jit(eb.grad(f)), eb.grad),
    "grad of jit": (lambda f: eb.grad(eb.jit(f)), eb.grad),
    "hvp": (lambda f: lambda c: eb.hvp(f)(c, 1.0), lambda f: lambda c: eb.hvp(f)(c, 1.0)),
}
NAMES = [names for depth in (0, 1, 2) for names in itertools.product(TRANSFORMS, repeat=depth)]
CASES = list(itertools.product(AROUND, NAMES))


def derivative(function, around, names, which):
    """The derivative by *c* of a function of *x* and *c* under transforms by *x*, the first of them outermost."""
    def value(c):
        f = lambda x: function(x, c)
        for name in reversed(names):
            f = TRANSFORMS[name][which](f)
        return f(0.7)

    return AROUND[around][which](value)(1.1)


@pytest.mark.parametrize("function", FOUND)
def test_any_nesting(function):
    """Whatever is around and between, the derivative by what the function closes over is that of what it finds."""
    for around, names in bar(sample(CASES, 61), function.__name__):
        found, wanted = derivative(function, around, names, 0), derivative(FOUND[function], around, names, 1)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7, err_msg=f"{around} of {' of '.join(names)}")
