"""Solutions of equations as functions of what the equations are made from."""

from __future__ import annotations

import tracemalloc
import weakref

import numpy as np
import pytest
import scipy.optimize
from tests.measure import peak_bytes

from ebbtide import (
    Budget,
    BudgetError,
    SolutionError,
    TraceError,
    checkpoint,
    grad,
    hvp,
    jit,
    jvp,
    linearize,
    timeloop,
    value_and_grad,
    vjp,
    vmap,
)
from ebbtide.schedules import Costs, Revolve, StoreAll
from ebbtide.scipy.optimize import bisect, brenth, brentq, fixed_point, newton, ridder, root, toms748
from ebbtide.testing import check_grads

A = np.array([[3.0, 1, 0], [0, 4, 1], [1, 0, 5]])
POINT = {"a": np.array([0.3, 0.2, 0.5]), "b": np.float64(1.3), "q": np.array([1.0, 2, 3])}


def closed(p):
    """Equations that use arrays of a dictionary outside, of a variable outside, and of their arguments."""
    scale = p["b"]

    def equations(x, q):
        return A @ x + 0.1 * x**3 * p["a"] - q * scale

    return np.sum(np.sin(root(equations, np.zeros(3), args=(p["q"],)).x))


def given(p):
    """The same with arguments only."""
    x = root(lambda x, p: A @ x + 0.1 * x**3 * p["a"] - p["q"] * p["b"], np.zeros(3), args=(p,)).x
    return np.sum(np.sin(x))


def same(found, expected, rtol=1e-10):
    """Assert that two dictionaries of arrays are equal to rounding."""
    assert set(found) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=rtol, atol=1e-14)


@pytest.mark.parametrize("f", [closed, given])
def test_root_derivatives(f):
    """The derivative of a solution is right in both modes and to second order, and is one number in all of them."""
    check_grads(f, POINT, order=2)
    gradient = grad(f)(POINT)
    expected = sum(np.sum(gradient[key] * POINT[key]) for key in POINT)
    assert np.isclose(jvp(f, (POINT,), (POINT,))[1], expected, rtol=1e-12)
    assert np.isclose(linearize(f, POINT)[1](POINT), expected, rtol=1e-12)
    twice = {key: 2 * value for key, value in POINT.items()}
    assert np.isclose(linearize(f, POINT)[1](twice), 2 * expected, rtol=1e-12)


@pytest.mark.parametrize("f", [closed, given])
def test_root_transforms(f):
    """Programs, batches and checkpoints of a solution give its value and its derivatives, in any order."""
    gradient, product = grad(f)(POINT), hvp(f)(POINT, POINT)
    assert jit(f)(POINT) == f(POINT)
    same(jit(grad(f))(POINT), gradient)
    same(grad(jit(f))(POINT), gradient)
    same(grad(checkpoint(f))(POINT), gradient)
    same(jit(hvp(f))(POINT, POINT), product)
    same(hvp(jit(f))(POINT, POINT), product)
    members = {key: np.stack([value, 1.1 * value]) for key, value in POINT.items()}
    first, second = (grad(f)({key: value[k] for key, value in members.items()}) for k in range(2))
    expected = {key: np.stack([first[key], second[key]]) for key in POINT}
    same(vmap(grad(f))(members), expected)
    same(grad(lambda members: np.sum(vmap(f)(members)))(members), expected)
    same(jit(vmap(grad(f)))(members), expected)


def test_root_result():
    """The result is SciPy's, with its bits, also where a derivative is taken; in a program there are x and success."""

    def equations(x):
        return [x[0] + 0.5 * (x[0] - x[1]) ** 3 - 1.0, 0.5 * (x[1] - x[0]) ** 3 + x[1]]

    expected = scipy.optimize.root(equations, [0.0, 0.0])
    plain = root(equations, [0.0, 0.0])
    assert plain.x.tobytes() == expected.x.tobytes()
    assert plain.nfev == expected.nfev
    seen = []

    def f(c):
        seen.append(root(lambda x: [c * part for part in equations(x)], [0.0, 0.0]))
        return seen[-1].x

    value, _ = vjp(f, 1.0)
    assert value.tobytes() == expected.x.tobytes()
    assert seen[-1].success
    jit(f)(1.0)
    assert set(seen[-1]) == {"x", "success"}


@pytest.mark.parametrize("method", ["hybr", "lm", "krylov", "df-sane"])
def test_root_methods(method):
    """Whatever the method is, the derivative is that of the solution; a Jacobian is for the solver alone."""

    def f(q):
        return np.sum(root(lambda x: A @ x + 0.1 * x**3 - q, np.zeros(3), method=method, tol=1e-12).x ** 2)

    def with_slope(q):
        def both(x, q):
            return A @ x + 0.1 * x**3 - q, A + np.diag(0.3 * x**2)

        return np.sum(root(both, np.zeros(3), args=q, jac=True).x ** 2)

    def with_function(q):
        def slope(x, q):
            return A + np.diag(0.3 * x**2)

        return np.sum(root(lambda x, q: A @ x + 0.1 * x**3 - q, np.zeros(3), (q,), jac=slope).x ** 2)

    q = np.array([1.0, 2.0, 3.0])
    expected = grad(with_slope)(q)
    np.testing.assert_allclose(grad(f)(q), expected, rtol=1e-6)
    np.testing.assert_allclose(grad(with_function)(q), expected, rtol=1e-10)
    check_grads(with_slope, q, order=2)


def test_start_has_no_influence():
    """The derivative with respect to where the solver begins is zero."""
    f = lambda x0: np.sum(root(lambda x: A @ x - 1.0, x0).x)
    assert np.array_equal(grad(f)(np.ones(3)), np.zeros(3))
    assert jvp(f, (np.ones(3),), (np.ones(3),))[1] == 0


def test_many_unknowns():
    """More unknowns than a matrix is made of: the adjoint is solved by GMRES, with derivatives of second order."""
    n = 100
    u0 = np.sin(np.linspace(0, 3, n))

    def f(k):
        def step(u):
            return u - u0 - k * (np.roll(u, 1) - 2 * u + np.roll(u, -1)) + 0.1 * u**3

        return np.sum(root(step, u0).x ** 2)

    check_grads(f, 0.3, order=2)


def test_memory_of_a_record():
    """A record of a solution keeps no vector of the iterations: x, and the arguments by reference."""
    n = 20000
    given = np.linspace(1, 2, n)

    def f(q):
        return fixed_point(lambda x: np.cos(x) * 0.5 + q, np.ones(n), xtol=1e-12, method="iteration")

    vjp(f, given)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    value, pullback = vjp(f, given)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held < 1.2 * value.nbytes
    alive = weakref.ref(value)
    del value
    pullback(np.ones(n))
    assert alive() is None


def test_memory_of_records_in_a_batch():
    """Nor in `vmap`: what the solver returned last stayed, a matrix of n x n numbers for each step, in no budget."""
    n, steps = 60, 20

    def f(u, k):
        step = lambda u, _: root(lambda v: v - u + 0.1 * k * v**3, u).x
        return np.sum(timeloop(step, u, steps, costs=Costs()) ** 2)

    u, k = np.stack([np.linspace(1, 2, n), np.linspace(2, 3, n)]), np.array([0.7, 0.8])
    budget = Budget(1_000_000)
    gradient = lambda: vmap(grad(f, budget=budget))(u, k)
    gradient()
    assert peak_bytes(gradient) - peak_bytes(lambda: vmap(f)(u, k)) <= budget.memory


def test_fixed_point():
    """A fixed point of any method has the derivatives of the closed form, for numbers and arrays."""
    for method in ("del2", "iteration"):
        f = lambda c: fixed_point(lambda x, c: np.cos(x) * c, np.full(3, 0.5), args=(c,), xtol=1e-14, method=method)
        check_grads(lambda c: np.sum(f(c) ** 2), np.array([0.5, 0.7, 0.9]), order=2)
    wide = lambda c: np.sum(fixed_point(lambda x: (x + c / x) / 2, 1.0))
    np.testing.assert_allclose(grad(wide)(np.array([4.0, 9.0])), [1 / 4, 1 / 6])
    np.testing.assert_allclose(jit(grad(wide))(np.array([4.0, 9.0])), [1 / 4, 1 / 6])


@pytest.mark.parametrize("find", [bisect, brentq, brenth, ridder, toms748])
def test_bracketed(find):
    """Roots in an interval, whose ends have no influence, with the report of the solver where that is asked for."""
    f = lambda c: find(lambda x, c: x**3 - c, 0.0, 10.0, args=(c,))
    assert f(8.0) == getattr(scipy.optimize, find.__name__)(lambda x: x**3 - 8.0, 0.0, 10.0)
    assert np.isclose(grad(f)(8.0), 1 / 12, rtol=1e-9)
    assert np.isclose(grad(grad(f))(8.0), -2 / 9 * 8 ** (-5 / 3), rtol=1e-8)
    assert np.isclose(jit(grad(f))(8.0), 1 / 12, rtol=1e-9)
    assert grad(lambda b: find(lambda x: x**3 - 8.0, 0.0, b))(10.0) == 0
    seen = []

    def reported(c):
        x, report = find(lambda x: x**3 - c, 0.0, 10.0, full_output=True)
        seen.append(report)
        return x

    assert np.isclose(grad(reported)(8.0), 1 / 12, rtol=1e-9)
    assert seen[0].converged
    with pytest.raises(TraceError, match="full_output"):
        jit(reported)(8.0)


def test_newton():
    """Newton's method and the method of secants, of numbers and of each element of an array."""
    f = lambda c: newton(lambda x: x**2 - c, 1.0)
    assert np.isclose(grad(f)(4.0), 1 / 4)
    sloped = lambda c: newton(lambda x, c: x**2 - c, 1.0, fprime=lambda x, c: 2 * x, args=(c,))
    check_grads(sloped, 4.0, order=2)
    each = lambda c: newton(lambda x, c: x**2 - c, np.array([1.0, 2.0]), args=(c,))
    np.testing.assert_allclose(grad(lambda c: np.sum(each(c)))(np.array([4.0, 9.0])), [1 / 4, 1 / 6], rtol=1e-7)


def test_no_solution():
    """Where the solver fails there is no derivative; without one the result says so, as SciPy's does."""
    assert not root(lambda x: x**2 + 1.0, 1.0).success
    with pytest.raises(SolutionError, match="found no solution"):
        grad(lambda c: root(lambda x: x**2 + c, 1.0).x[0])(1.0)
    with pytest.raises(SolutionError, match="found no solution"):
        jit(lambda x0: root(lambda x: x**2 + 1.0, x0).x)(1.0)
    with pytest.raises(RuntimeError, match="converge"):
        grad(lambda c: fixed_point(lambda x: x + c, 1.0, maxiter=10))(1.0)
    with pytest.raises(SolutionError, match="singular"):
        grad(lambda c: root(lambda x: np.stack([x[0] + x[1] - c, 2 * (x[0] + x[1] - c)]), [0.5, 0.5]).x[0])(1.0)


def test_other_number_of_equations():
    """Least squares, which SciPy has among its methods, are no solution of the equations."""
    _, pullback = vjp(lambda c: root(lambda x: np.concatenate([c * x, x[:1]]), np.zeros(2), method="lm").x, 1.0)
    with pytest.raises(TraceError, match="3 equations for 2 unknowns"):
        pullback(np.ones(2))


def test_later_values_of_variables():
    """What a function closes over is what it stands for at the call, whatever the variable stands for afterwards."""

    def f(c):
        total = 0.0
        for k in range(1, 4):
            total = total + brentq(lambda x: x**3 - k * c, 0.0, 10.0)
        return total

    expected = sum(k ** (1 / 3) / 3 * 2.0 ** (-2 / 3) for k in range(1, 4))
    assert np.isclose(grad(f)(2.0), expected)


def test_changed_argument():
    """An array that was changed between the forward run and the sweep is an error, and no wrong gradient."""
    q = np.array([1.0, 2.0, 3.0])
    _, pullback = vjp(lambda c: root(lambda x, q: A @ x * c - q, np.zeros(3), args=(q,)).x, 1.0)
    q[0] = 5.0
    with pytest.raises(RuntimeError, match="was changed"):
        pullback(np.ones(3))


# An implicit time step: the use that these are made for.
N, STEPS = 8, 6
START = np.sin(np.linspace(0, np.pi, N))


def implicit(u, k):
    """A step of the backward Euler method for u' = k u'' - u³, with the diffusion from outside."""

    def equations(v, before):
        left, right = np.concatenate([v[:1] * 0, v[:-1]]), np.concatenate([v[1:], v[:1] * 0])
        return v - before - 0.1 * (k * (left - 2 * v + right) - v**3)

    return root(equations, u, args=(u,)).x


def energy(u, k, **options):
    """The energy at the end of a time loop of implicit steps."""
    return np.sum(timeloop(lambda u, _: implicit(u, k), u, STEPS, **options) ** 2)


def test_implicit_time_steps():
    """The gradient of a loop of implicit steps is right, and one number for all schedules, storages and budgets."""
    expected = grad(energy, argnums=(0, 1))(START, 2.0, schedule=StoreAll())
    plain = START
    for _ in range(STEPS):
        plain = implicit(plain, 2.0)
    assert energy(START, 2.0) == np.sum(plain**2)
    check_grads(lambda u, k: energy(u, k, schedule=Revolve(3)), START, np.float64(2.0))
    for options in ({"schedule": Revolve(2)}, {"schedule": Revolve(5)}, {}):
        found = grad(energy, argnums=(0, 1))(START, 2.0, **options)
        assert [np.asarray(x).tobytes() for x in found] == [np.asarray(x).tobytes() for x in expected]
    value, found = value_and_grad(energy, argnums=(0, 1), budget=Budget(1 << 20))(START, 2.0)
    assert value == np.sum(plain**2)
    assert [np.asarray(x).tobytes() for x in found] == [np.asarray(x).tobytes() for x in expected]


@pytest.mark.parametrize("n", [64, 4000])
def test_least_budget(n):
    """With the least budget, which the refusal of a smaller one says, the gradient is the same and the budget holds."""

    def f(u, k):
        def step(u, _):
            return fixed_point(lambda v: u + 0.01 * k * np.cos(v) * v, u, xtol=1e-12, method="iteration")

        return np.sum(timeloop(step, u, 4) ** 2)

    u = np.linspace(0.0, 1.0, n)
    expected = grad(f, (0, 1))(u, 2.0)
    with pytest.raises(BudgetError) as refused:
        grad(f, (0, 1), budget=Budget(1000))(u, 2.0)
    call = grad(f, (0, 1), budget=Budget(refused.value.least))
    assert [x.tobytes() for x in call(u, 2.0)] == [x.tobytes() for x in expected]
    alone = peak_bytes(lambda: f(u, 2.0))
    assert peak_bytes(lambda: call(u, 2.0)) - alone <= refused.value.least


def test_implicit_time_steps_of_second_order():
    """Products with the Hessian of a loop of implicit steps are those of a loop in Python."""

    def by_hand(u, k):
        for _ in range(4):
            u = implicit(u, k)
        return np.sum(u**2)

    def looped(u, k):
        return np.sum(timeloop(lambda u, _: implicit(u, k), u, 4, schedule=Revolve(2)) ** 2)

    along = np.cos(START)
    np.testing.assert_allclose(
        hvp(lambda u: looped(u, 2.0))(START, along), hvp(lambda u: by_hand(u, 2.0))(START, along), rtol=1e-9
    )
    np.testing.assert_allclose(grad(looped, 1)(START, 2.0), grad(by_hand, 1)(START, 2.0), rtol=1e-12)
    np.testing.assert_allclose(jit(grad(looped, 1))(START, 2.0), grad(by_hand, 1)(START, 2.0), rtol=1e-12)


def test_jitted_implicit_step():
    """A jitted step in a loop, and a loop in a jitted function, give the same."""
    expected = grad(energy, 1)(START, 2.0)
    step = jit(implicit)
    f = lambda k: np.sum(timeloop(lambda u, _: step(u, k), START, STEPS) ** 2)
    np.testing.assert_allclose(grad(f)(2.0), expected, rtol=1e-12)
