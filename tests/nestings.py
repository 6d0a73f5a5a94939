"""Transforms in transforms around a function of two numbers: derivatives by what all but the outermost close over."""

from __future__ import annotations

import itertools

import numpy as np
from tests.scale import bar, sample

import ebbtide as eb


def along(f):
    """The derivative in forward mode."""
    return lambda x: eb.jvp(f, (x,), (1.0,))[1]


def unchanged(f):
    """What does not change a function."""
    return f


# What differs from member to member of a batch.
MEMBERS = (1.0, 0.8, 1.1)
# Each transform, and what it is of a function without a solver.
TRANSFORMS = {
    "checkpoint": (eb.checkpoint, unchanged),
    "timeloop": (
        lambda f: lambda x: eb.timeloop(lambda u, _: 0.5 * u + f(u), x, 2),
        lambda f: lambda x: 0.5 * (0.5 * x + f(x)) + f(0.5 * x + f(x)),
    ),
    "jit": (eb.jit, unchanged),
    "vmap": (
        lambda f: lambda x: np.sum(eb.vmap(f)(x * np.array(MEMBERS))),
        lambda f: lambda x: sum(f(x * factor) for factor in MEMBERS),
    ),
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
    """Return the derivative by *c* of a function of *x* and *c* under transforms by *x*, the first outermost."""
    def value(c):
        f = lambda x: function(x, c)
        for name in reversed(names):
            f = TRANSFORMS[name][which](f)
        return f(0.7)

    return AROUND[around][which](value)(1.1)


def check_nestings(function, plain, every, **tolerances):
    """Check the derivatives of a function under any two transforms against those of what it computes in plain NumPy."""
    for around, names in bar(sample(CASES, every), function.__name__):
        found, wanted = derivative(function, around, names, 0), derivative(plain, around, names, 1)
        np.testing.assert_allclose(found, wanted, err_msg=f"{around} of {' of '.join(names)}", **tolerances)


# Ways to differentiate a function of an array: each takes it, a point and a direction.
WAYS = {
    "grad": lambda f, x, d: eb.grad(f)(x),
    "jvp": lambda f, x, d: eb.jvp(f, (x,), (d,))[1],
    "linearize": lambda f, x, d: eb.linearize(f, x)[1](d),
    "hvp": lambda f, x, d: eb.hvp(f)(x, d),
    "hessian": lambda f, x, d: eb.hessian(f)(x),
    "grad of jvp": lambda f, x, d: eb.grad(lambda x: eb.jvp(f, (x,), (d,))[1])(x),
    "jvp of jvp": lambda f, x, d: eb.jvp(lambda x: eb.jvp(f, (x,), (d,))[1], (x,), (d,))[1],
    "grad of grad": lambda f, x, d: eb.grad(lambda x: np.sum(eb.grad(f)(x) * d))(x),
    "linearize of grad": lambda f, x, d: eb.linearize(eb.grad(f), x)[1](d),
    "grad of linearize": lambda f, x, d: eb.grad(lambda x: eb.linearize(f, x)[1](d))(x),
    "jvp of linearize": lambda f, x, d: eb.jvp(lambda x: eb.linearize(f, x)[1](d), (x,), (d,))[1],
    "vmap of grad": lambda f, x, d: eb.vmap(eb.grad(f))(np.stack([x, d])),
    "vmap of jvp": lambda f, x, d: eb.vmap(lambda x: eb.jvp(f, (x,), (d,))[1])(np.stack([x, d])),
    "grad of vmap": lambda f, x, d: eb.grad(lambda x: np.sum(eb.vmap(f)(x)))(np.stack([x, d])),
    "grad of vmap of jvp": lambda f, x, d: eb.grad(
        lambda x: np.sum(eb.vmap(lambda x: eb.jvp(f, (x,), (d,))[1])(x))
    )(np.stack([x, d])),
    "jit of grad": lambda f, x, d: eb.jit(eb.grad(f))(x),
    "jvp of jit of grad": lambda f, x, d: eb.jvp(eb.jit(eb.grad(f)), (x,), (d,))[1],
}  # fmt: skip


def loop_in_python(step, state, steps, *, inputs=None):
    """The same as a time loop."""
    for i in range(steps):
        state = step(state, i if inputs is None else inputs[i])
    return state


def check_ways(function, ways, **tolerances):
    """
    Check that each way gives the same plain array for a function with a time loop as for that with a loop in Python.

    Args:
        function: `function(loop, x)` returns a number.
        ways: Names of the ways.
        **tolerances: Of the comparison.
    """
    x, direction = np.array([0.4, 0.9]), np.array([0.6, -0.3])
    for name in ways:
        found = WAYS[name](lambda x: function(eb.timeloop, x), x, direction)
        wanted = WAYS[name](lambda x: function(loop_in_python, x), x, direction)
        assert type(found) is type(wanted), name
        np.testing.assert_allclose(found, wanted, err_msg=name, **tolerances)
