"""Differential equations: derivatives by the adjoint equation, as exact as the tolerances."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from scipy import integrate as original
from tests.measure import find_least, peak_bytes

from ebbtide import Budget, TraceError, grad, hvp, jit, jvp, vjp, vmap
from ebbtide.scipy import integrate
from ebbtide.testing import check_grads

START, TIMES = np.array([1.0, 0.5]), np.array([0.1, 0.5, 1.3])
DAMPING, STIFFNESS = np.array(0.7), {"springs": np.array([1.2, 0.3])}
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def oscillator(y, t, damping, stiffness):
    """Return the slopes of position and velocity, with a force that grows with time."""
    one, other = stiffness["springs"]
    return [y[1], damping * (1 - y[0] ** 2) * y[1] - one * y[0] - other * y[0] ** 3 + 0.1 * t]


def in_front(t, y, damping, stiffness):
    """Return the same, with time in front."""
    return np.stack(oscillator(y, t, damping, stiffness))


def by_odeint(y0, t, damping, stiffness):
    """Return the states at all times."""
    return integrate.odeint(oscillator, y0, t, (damping, stiffness), **TIGHT)


def by_solve_ivp(y0, t, damping, stiffness):
    """Return the states at all times."""
    return integrate.solve_ivp(in_front, (0.1, 1.5), y0, t_eval=t, args=(damping, stiffness), **TIGHT).y.T


@pytest.mark.parametrize("mode", ["fwd", "rev"])
@pytest.mark.parametrize("solution", [by_odeint, by_solve_ivp])
def test_derivatives(solution, mode):
    """Derivatives by the first state, the times, and arguments in containers are those of finite differences."""
    times = TIMES if solution is by_odeint else TIMES[1:]  # the first is not moved from the beginning of the span
    check_grads(solution, START, times, DAMPING, STIFFNESS, order=1, modes=(mode,))


def test_modes_agree():
    """Forward and reverse mode agree to the tolerances, and no further: each solves an equation of its own."""
    args = (START, TIMES, DAMPING, STIFFNESS)
    value, pullback = vjp(by_odeint, *args)
    gradients = pullback(np.ones_like(value))
    for k, one in enumerate(args[:3]):
        tangents = [np.ones_like(x) if j == k else np.zeros_like(x) for j, x in enumerate(args[:3])]
        slope = jvp(by_odeint, args, (*tangents, {"springs": np.zeros(2)}))[1]
        assert np.sum(gradients[k] * np.ones_like(one)) == pytest.approx(np.sum(slope), rel=1e-8)


@pytest.mark.parametrize("solution", [by_odeint, by_solve_ivp])
def test_values_are_scipys(solution):
    """Values are those of SciPy on plain arrays, to the bit, in both modes."""
    args = (START, TIMES, DAMPING, STIFFNESS)
    expected = solution(*args)
    np.testing.assert_array_equal(vjp(solution, *args)[0], expected)
    np.testing.assert_array_equal(jvp(solution, args, args)[0], expected)


def decay(rate, t, method=None):
    """Return the solution of y' = -rate y, which is exp(-rate t)."""
    if method is None:
        return integrate.odeint(lambda y, t, rate: -rate * y, [1.0], t, args=(rate,), rtol=1e-8, atol=1e-8)[:, 0]
    span = float(t[0]), float(t[-1])
    return integrate.solve_ivp(
        lambda t, y, rate: -rate * y, span, [1.0], method, t, args=(rate,), rtol=1e-8, atol=1e-8
    ).y[0]


@pytest.mark.parametrize("method", [None, "RK45"])
def test_higher_derivatives(method):
    """Second derivatives are those of the exact solution, forward over reverse, reverse over reverse, and so on."""
    t, rate = np.array([0.0, 0.4, 1.0]), np.array(0.8)

    def total(rate):
        return np.sum(decay(rate, t, method))

    first, second = -np.sum(t * np.exp(-0.8 * t)), np.sum(t**2 * np.exp(-0.8 * t))
    tolerance = 1e-6
    assert grad(total)(rate) == pytest.approx(first, rel=tolerance)
    assert hvp(total)(rate, np.ones(())) == pytest.approx(second, rel=tolerance)
    if method is None:
        assert grad(grad(total))(rate) == pytest.approx(second, rel=tolerance)
        assert jvp(lambda r: jvp(total, (r,), (1.0,))[1], (rate,), (1.0,))[1] == pytest.approx(second, rel=tolerance)


def test_backwards_in_time():
    """Times may go down, and be repeated."""
    t = np.array([1.0, 0.4, 0.4, 0.0])
    gradient = grad(lambda rate: np.sum(decay(rate, t)))(np.array(0.8))
    assert gradient == pytest.approx(np.sum((1 - t) * np.exp(0.8 * (1 - t))), rel=1e-6)


def test_tolerances_are_those_of_the_call():
    """A derivative is as exact as the tolerances that are given."""
    t = np.array([0.0, 1.0])

    def error(tolerance):
        def last(rate):
            both = {"rtol": tolerance, "atol": tolerance}
            return integrate.odeint(lambda y, t, r: -r * y, np.ones(1), t, (rate,), **both)[1, 0]

        return abs(grad(last)(np.array(0.8)) + np.exp(-0.8))

    assert error(1e-11) < 1e-9 < error(1e-4) < 1e-2


def test_memory_does_not_grow_with_the_steps():
    """What is held between the passes is the solution at the asked times, however many steps the solver takes."""
    t = np.array([0.0, 3.0])

    def record(rate):
        return vjp(lambda r: integrate.odeint(lambda y, t, r: -r * y, np.ones(2000), t, (r,), mxstep=10**5), rate)

    few, many = (peak_bytes(lambda rate=rate: record(np.array(rate))) for rate in (0.01, 3.0))
    assert many < few + 64 * 2000


def test_programs_and_batches():
    """A solution goes into a program, and under vmap, with the same bits."""
    t = np.array([0.0, 1.0])
    gradient = grad(lambda rate: decay(rate, t)[1])
    rates = np.array([0.5, 0.8])
    expected = [gradient(rate) for rate in rates]
    assert vmap(gradient)(rates).tolist() == expected
    program = jit(lambda rate: decay(rate, t)[1])
    assert program(rates[0]) == decay(rates[0], t)[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y: integrate.odeint(oscillator, y, TIMES, (1.0, STIFFNESS), full_output=True), r"full_output"),
        (lambda y: integrate.solve_ivp(in_front, (0, 1), y, args=(1.0, STIFFNESS)), r"t_eval"),
        (lambda y: integrate.solve_ivp(in_front, (0, y[0]), y, t_eval=TIMES), r"plain numbers in t_span"),
        (lambda y: integrate.solve_ivp(in_front, (0, 1), y, t_eval=TIMES, dense_output=True), r"dense_output"),
        (lambda y: integrate.odeint(lambda y, t, z: y, y, TIMES, (y * 1j,)), r"real arrays"),
        (lambda y: integrate.solve_ivp(lambda t, y: y**2, (0, 3), y, t_eval=[3.0]).y, r"did not reach t = 3\.0"),
    ],
)
def test_refusals(call, message):
    """What has no derivative says so."""
    with pytest.raises(TraceError, match=message):
        vjp(call, START)


def test_arguments_from_elsewhere_are_refused():
    """A right-hand side that takes a traced array that is not in args is an error, and no wrong gradient."""
    with pytest.raises(TraceError):
        grad(lambda rate: integrate.odeint(lambda y, t: -rate * y, START, TIMES)[-1, 0])(np.array(0.8))


def test_plain_calls_are_scipys():
    """Without traced arrays the call is SciPy's own, with all its results."""
    found = integrate.odeint(oscillator, START, TIMES, (DAMPING, STIFFNESS), full_output=True)
    expected = original.odeint(oscillator, START, TIMES, (DAMPING, STIFFNESS), full_output=True)
    np.testing.assert_array_equal(found[0], expected[0])
    assert integrate.solve_ivp(in_front, (0, 1), START, args=(DAMPING, STIFFNESS)).nfev > 0


def test_samples():
    """Integrals of samples refuse what they cannot do."""
    with pytest.raises(ValueError, match="initial"):
        vjp(lambda y: integrate.cumulative_trapezoid(y, initial=1.0), START)
    with pytest.raises(TraceError, match="one dtype"):
        vjp(lambda y: integrate.trapezoid(y, x=START), START.astype(np.float32))


@pytest.mark.parametrize("method", ["RK45", "RK23", "DOP853", "BDF", "Radau"])
def test_solvers_die_at_once(method):
    """What a solution took for one interval is free for the next: SciPy's solvers refer to themselves."""
    x = np.linspace(0.5, 1, 20)

    def solution(k):
        return integrate.solve_ivp(lambda t, y, k: -k * y, (0, 1), x, method, [0.5, 1], args=(k,))

    def call():
        return grad(lambda k: np.sum(solution(k).y))(x)

    call()
    gc.collect()
    gc.disable()
    try:
        call()
        found = solution(0.7).y
        assert gc.collect() == 0
        expected = original.solve_ivp(lambda t, y: -0.7 * y, (0, 1), x, method, [0.5, 1]).y
        assert found.tobytes() == expected.tobytes()
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["RK45", "RK23", "DOP853"])
def test_budgets_have_room_for_the_solver(method):
    """A gradient takes no more than the least that its refusal names, in which is what SciPy's solver takes."""
    x = np.linspace(0.5, 1, 300)

    def f(k):
        solution = integrate.solve_ivp(lambda t, y, k: np.sin(y) - k * y, (0, 0.1), x, method, [0.05, 0.1], args=(k,))
        return np.sum(solution.y)

    least = find_least(lambda memory: grad(f, budget=Budget(memory))(x))
    alone = peak_bytes(lambda: f(x))
    assert peak_bytes(lambda: grad(f, budget=Budget(least))(x)) - alone <= least
