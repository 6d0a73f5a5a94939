"""Forward and reverse programs: what is saved between them, and in whose memory the reverse one works."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.program.test_budgets import bits

from ebbtide import grad, jit, vjp
from ebbtide.demo.burgers import Problem, guess, step
from ebbtide.program.equation import Variable
from ebbtide.testing import check_grads

SIZE = 1 << 15


def flux(u):
    """A product of a difference and a value: the difference is one operation on what is saved anyway."""
    return (u[1:] - u[:-1]) * u[1:]


def saved_by(f, x):
    """What the forward program of a function gives beside its result."""
    forward, _ = jit(f).reversed(x)
    return [variable for variable in forward.program.outputs[1:] if type(variable) is Variable]


def test_what_is_one_operation_away_is_not_saved():
    """A large value that a sum, a difference or a product makes of what is saved is made again."""
    x = np.linspace(0, 1, SIZE)
    assert saved_by(flux, x) == []
    assert [variable.type.shape for variable in saved_by(flux, x[:100])] == [(99,)]  # not worth a call
    f = lambda g: lambda u: np.sum(np.sin(g(u)))
    np.testing.assert_allclose(grad(f(jit(flux)))(x), grad(f(flux))(x), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("f", "count"),
    [
        (lambda u: np.exp(u) * np.sin(u), 2),  # two functions, neither of which is as cheap
        (lambda u: (np.tanh(u) + 1.0) * np.cos(u), 2),  # the sum is made of the one that is saved
        (lambda u: (u * 2.0 + 1.0) * np.cos(u), 2),  # two operations away
        (lambda u: (u[::-1] * 2.0)[1:] * u[1:], 0),  # of a view, and used by one
    ],
)
def test_what_is_further_away_is_saved(f, count):
    """What takes a function, or two operations, is saved; views on the way cost nothing."""
    x = np.linspace(0, 1, SIZE)
    assert len(saved_by(f, x)) == count
    loss = lambda g: lambda u: np.sum(g(u) ** 2)
    assert bits(grad(loss(jit(f)))(x)) == bits(grad(loss(f))(x))
    check_grads(loss(jit(f)), np.linspace(0.1, 1, 7))


def test_a_reverse_program_works_in_the_memory_of_its_cotangent():
    """The sweep gives a cotangent that is its own up to a program that clears part of it; the user's stays."""
    problem = Problem(201, 4)
    x = guess(problem)
    plain = partial(step, viscosity=0.01, spacing=problem.spacing, time_step=problem.time_step)
    jitted = jit(plain, donate_argnums=0)

    def chain(u, f):
        u = np.copy(u)
        for _ in range(3):
            u = f(u)
        return u

    expected = grad(lambda u: np.sum(chain(u, plain) * x))(x)
    for first, owned in ((True, True), (True, False), (False, True), (False, False)):
        if owned:
            _, pullback = vjp(lambda u: np.sum(chain(u, jitted) * x), x)
            g = np.ones(())
        else:
            _, pullback = vjp(lambda u: chain(u, jitted), x)
            g = x.copy()
        before, found = g.copy(), []
        peak = peak_bytes(lambda p=pullback, g=g, found=found: found.append(p(g)))
        assert first or peak <= 1.5 * x.nbytes  # in the first of each kind the block is made
        assert np.array_equal(g, before)
        np.testing.assert_allclose(found[0][0], expected, rtol=1e-12, atol=1e-14)


def test_results_of_one_cotangent():
    """A cotangent that a program passes on to two operands, or keeps as a result, is right in both."""
    two = jit(lambda u, v: (u + v) * 1.0)
    x = np.linspace(0, 1, SIZE)

    def loss(u, v, f):
        for _ in range(3):
            u, v = f(u, v), f(v, u)
        return np.sum(u * v)

    found = grad(lambda u, v: loss(u, v, two), (0, 1))(x, x[::-1].copy())
    assert bits(found) == bits(grad(lambda u, v: loss(u, v, lambda u, v: (u + v) * 1.0), (0, 1))(x, x[::-1].copy()))
