"""Models that the tests of `ebbtide.optimize` share."""

from __future__ import annotations

import numpy as np

from ebbtide import primitive, timeloop

CELLS, STEPS, TIME_STEP = 16, 20, 0.4
PLACES = np.linspace(0.0, np.pi, CELLS)
# Small enough to be recovered from observations in the middle of the run.
TRUTH = np.sin(PLACES) + 0.3 * np.sin(3.0 * PLACES)


def heat_step(u, k):
    """One explicit step of u_t = (k u_x)_x in place, with fixed ends; k is one number, or one for each face."""
    flux = k * (u[1:] - u[:-1])
    u[1:-1] += TIME_STEP * (flux[1:] - flux[:-1])
    return u


def heat(u, k, **kwargs):
    """Return all states of the heat equation, by a time loop."""

    def step(v, _):
        v = heat_step(v, k)
        return v, v + 0.0

    return timeloop(step, u, STEPS, outputs=True, **kwargs)[1]


def misfit(u, k, observed, **kwargs):
    """Return half the squared distance from observations of all states."""
    return 0.5 * np.sum((heat(u, k, **kwargs) - observed) ** 2)


def nonlinear(u, c):
    """An explicit nonlinear chain in place, which needs the inputs of its steps: pyadjoint's defect D1."""

    def step(v, _):
        v += 0.1 * np.sin(c * v)
        return v

    return np.sum(timeloop(step, u, 12) ** 2)


def rosenbrock(x):
    """The valley of Rosenbrock, with the minimum 0 at 1."""
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def exp(x):
    """Return the exponential, as a function that `primitive` can look into."""
    return np.exp(x)


def faulty_exp(vjp_error, jvp_error):
    """Return exp with rules that are wrong by relative errors."""
    reverse, forward = 1.0 + vjp_error, 1.0 + jvp_error
    return primitive(exp, vjp=(lambda g, out: g * out * reverse,), jvp=(lambda t, out: t * out * forward,))
