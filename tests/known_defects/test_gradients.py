"""
Wrong gradients of other systems, D1 to D10: that we do not have them.

They were found in a library that keeps blocks on a tape, clears what a schedule does not need, and falls back to the
live object where something is missing. A test's name has the label, its docstring the defect and our rule.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

from ebbtide import DeterminismError, MutationError, ReleasedValueError, grad, jvp, primitive, timeloop, vjp
from ebbtide.optimize import Control, ReducedFunctional, minimize, taylor_test
from ebbtide.schedules import (
    Costs,
    Hierarchical,
    Mixed,
    Online,
    Periodic,
    Revolve,
    StoreAll,
    from_checkpoint_schedules,
)
from ebbtide.storage import Memory

STEPS = 12
DT = 0.1
U0 = np.linspace(0.2, 1.3, 5)
U1 = np.linspace(1.1, 0.1, 5)
C0, C1 = np.float64(0.7), np.float64(1.4)
SCHEDULES = (
    StoreAll(), StoreAll("disk"), Revolve(1), Revolve(3), Mixed(4), Mixed(8, restart=1, saved=3),
    Hierarchical(2, 2, Costs(write=1.0, read=1.0)), Periodic(4, 2), Online(3),
)  # fmt: skip
RECOMPUTING = SCHEDULES[2:]


def multistage() -> Any:
    """A schedule of the package that the other library takes its schedules from."""
    package = pytest.importorskip("checkpoint_schedules", reason="the schedules of checkpoint_schedules")
    return from_checkpoint_schedules(package.MultistageCheckpointSchedule(STEPS, 1, 2))


def in_place(u: Any, i: Any, c: Any = C0) -> Any:
    """An explicit nonlinear step that writes into its state: its derivative needs the state before it."""
    u += DT * np.sin(c * u) * np.roll(u, 1)
    return u


def new_object(u: Any, i: Any, c: Any = C0) -> Any:
    """The same step, with a new object for each state."""
    return u + DT * np.sin(c * u) * np.roll(u, 1)


def misfit(u: Any, c: Any = C0, step: Any = new_object, schedule: Any = None, **options: Any) -> Any:
    """A scalar of the final state."""
    return np.sum(timeloop(lambda u, i: step(u, i, c), u, STEPS, schedule=schedule, **options) ** 2)


def by_hand(u: Any, c: Any) -> Any:
    """The same scalar, by a plain loop that complex numbers pass through."""
    for i in range(STEPS):
        u = new_object(u, i, c)
    return np.sum(u**2)


def complex_step(u: Any, c: Any) -> tuple[Any, Any]:
    """The derivatives with respect to state and coefficient, exact to rounding and by no rule of ours."""
    h = 1e-30
    rows = [by_hand(u + 1j * h * e, c).imag / h for e in np.eye(len(u))]
    return np.array(rows), by_hand(u.astype(complex), c + 1j * h).imag / h


def functional(schedule: Any, step: Any = new_object) -> ReducedFunctional:
    """The scalar as a functional of state and coefficient."""
    return ReducedFunctional(partial(misfit, step=step, schedule=schedule), [Control(U0), Control(C0)])


def assert_right(found: Any, u: Any, c: Any) -> None:
    """Assert that derivatives are those of the complex step."""
    for one, right in zip(found, complex_step(u, c), strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-12)


@pytest.mark.parametrize("schedule", [*SCHEDULES, multistage], ids=lambda value: getattr(value, "__name__", str(value)))
def test_d1_explicit_step_in_place(schedule):
    """D1: replay clears the inputs of a step, and the live state takes their place. A step's inputs are kept for it."""
    J = functional(multistage() if schedule is multistage else schedule, in_place)
    assert_right(J.derivative([U0, C0]), U0, C0)
    assert taylor_test(J, [U0, C0], [np.cos(U0), np.float64(0.5)]).passed


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_d2_new_object_and_new_control(schedule):
    """D2: after J(new) the derivative is that about the old state. Each derivative belongs to the control given."""
    J = functional(schedule)
    assert_right(J.derivative([U0, C0]), U0, C0)
    J.value([U1, C1])
    assert_right(J.derivative([U1, C1]), U1, C1)
    assert_right(J.derivative([U0, C0]), U0, C0)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_d3_the_control_is_the_initial_state(schedule):
    """D3: clearing a step's values wipes a control. What the caller gives is read, never cleared and never written."""
    u, new = U0.copy(), U1.copy()
    J = ReducedFunctional(partial(misfit, step=in_place, schedule=schedule), Control(u))
    J.derivative(u)
    J.value(new)
    np.testing.assert_allclose(J.derivative(new), complex_step(U1, C0)[0], rtol=1e-12)
    misfit(u, step=in_place, schedule=schedule)
    assert (u.tobytes(), new.tobytes()) == (U0.tobytes(), U1.tobytes())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_d4_a_dependency_over_many_steps(schedule):
    """D4: with all kept in memory a value first used far from where it was made is lost. None is, at any control."""

    def f(u, c):
        first = u * c

        def step(state, i):
            now, kept = state
            return new_object(now, i, c) + (first * kept if i == STEPS - 1 else 0.0), (now * 1.0 if i == 0 else kept)

        now, kept = timeloop(step, (u, u), STEPS, schedule=schedule)
        return np.sum(now * kept * first)

    def plain(u, c):
        now, kept = u, u
        for i in range(STEPS):
            more = u * c * kept if i == STEPS - 1 else 0.0
            now, kept = new_object(now, i, c) + more, (now if i == 0 else kept)
        return np.sum(now * kept * u * c)

    J = ReducedFunctional(f, [Control(U0), Control(C0)])
    J.derivative([U0, C0])
    found, h = J.derivative([U1, C1]), 1e-30
    right = [plain(U1 + 1j * h * e, C1).imag / h for e in np.eye(5)]
    np.testing.assert_allclose(found[0], right, rtol=1e-12)
    np.testing.assert_allclose(found[1], plain(U1.astype(complex), C1 + 1j * h).imag / h, rtol=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 1, 0, 0, 1)])
def test_d5_two_functionals_of_one_run(order, schedule):
    """D5: what is kept is revised for the first functional only. Any of several has its gradient, in any order."""

    def both(u):
        final, energies = timeloop(lambda u, i: (new_object(u, i), np.sum(u**3)), u, STEPS, outputs=True,
                                   schedule=schedule)  # fmt: skip
        return np.sum(np.cos(final)), np.sum(energies)

    def by_complex_step(k):
        def plain(u):
            energy = 0.0
            for i in range(STEPS):
                energy += np.sum(u**3)
                u = new_object(u, i)
            return (np.sum(np.cos(u)), energy)[k]

        return np.array([plain(U0 + 1e-30j * e).imag / 1e-30 for e in np.eye(5)])

    alone = [by_complex_step(k) for k in (0, 1)]
    _, pullback = vjp(both, U0, retain=True)
    for k in order:
        (found,) = pullback((np.float64(k == 0), np.float64(k == 1)))
        np.testing.assert_allclose(found, alone[k], rtol=1e-12)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("schedule", RECOMPUTING[:4], ids=str)
def test_d6_interrupted_in_any_step(schedule, retain):
    """D6: an interrupted sweep leaves a schedule cut short. The next call has the whole gradient, or is an error."""
    right = grad(partial(misfit, schedule=schedule))(U0).tobytes()
    calls, stop = [0], [0]

    def step(u, i, c):
        calls[0] += 1
        if calls[0] == stop[0]:
            raise KeyboardInterrupt
        return new_object(u, i, c)

    f = partial(misfit, step=step, schedule=schedule)
    for at in range(1, schedule.forward_steps(STEPS) - STEPS + 1):
        _, pullback = vjp(f, U0, retain=retain)
        stop[0] = calls[0] + at
        with pytest.raises(KeyboardInterrupt):
            pullback(np.float64(1))
        try:
            again = pullback(np.float64(1))[0].tobytes()
        except (MutationError, ReleasedValueError):
            again = right
        assert again == right
        assert grad(f)(U0).tobytes() == right


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_d7_second_derivatives_follow_the_schedule(schedule):
    """D7: tangents and Hessians loop over all steps and read old states. They follow the schedule, at any control."""
    runs, held = [0], [0]
    storage = Memory()

    def f(u):
        def step(u, i):
            runs[0] += 1
            held[0] = max(held[0], len(storage.keys()))
            return new_object(u, i)

        return np.sum(timeloop(step, u, STEPS, schedule=schedule, storage=storage) ** 2)

    J, d, h = ReducedFunctional(f, Control(U0)), np.cos(U0), 1e-6
    J.value(U1)
    difference = (J.derivative(U1 + h * d) - J.derivative(U1 - h * d)) / (2 * h)
    for second in (lambda: J.hessian(U1, d), lambda: grad(lambda u: jvp(f, (u,), (d,))[1])(U1)):
        runs[0] = held[0] = 0
        np.testing.assert_allclose(second(), difference, rtol=1e-7)
        assert runs[0] == schedule.forward_steps(STEPS)
        assert held[0] <= schedule.peak_snapshots(STEPS)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("where", ["coefficient", "forcing"])
def test_d8_a_change_behind_the_tape(where, schedule):
    """D8: an input changed in place gives another number without a word. It is an error, or it does not matter."""
    c, forcing = np.full(5, 0.7), np.outer(np.ones(STEPS), U1)

    def f(u):
        return np.sum(timeloop(lambda u, x: new_object(u, 0, c) * (1 + DT * x), u, STEPS, inputs=forcing,
                               schedule=schedule) ** 2)  # fmt: skip

    right = grad(f)(U0)
    _, pullback = vjp(f, U0)
    (c if where == "coefficient" else forcing)[...] *= 1.5
    try:
        (found,) = pullback(np.float64(1))
    except (MutationError, DeterminismError):
        return
    assert found.tobytes() == right.tobytes()


def test_d9_one_cotangent_for_two_operands():
    """D9: a cotangent that is passed on to two operands is added to in place for both. Each operand has its own sum."""
    add = primitive(lambda x, y: x + y, vjp=(lambda g: g, lambda g: g))

    def f(x, y):
        z = add(x, y)
        return z + x * 5.0, z  # x is used once more: its sum must not reach y

    _, pullback = vjp(f, U0, U1, retain=True)
    seed = np.full(5, 6.0)
    for _ in range(2):
        x, y = pullback((seed, np.full(5, 6.0)))
        assert (x.tolist(), y.tolist()) == ([42.0] * 5, [12.0] * 5)
        assert not any(np.shares_memory(a, b) for a, b in ((x, y), (x, seed), (y, seed)))
        x[:], y[:] = np.nan, np.nan  # the caller's: the next pull does not see it
    assert seed.tolist() == [6.0] * 5


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_d10_derivatives_in_any_order(schedule):
    """D10: a second derivative() fails, a Hessian needs one first, tests and optimisers leave traces. No call does."""
    J, m, d = functional(schedule), [U0.copy(), C0], [np.cos(U0), np.float64(0.3)]
    hessian = J.hessian(m, d)
    first = J.derivative(m)
    taylor_test(J, m, d)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is stopped on its way
        minimize(J, m, options={"maxiter": 2})
    for _ in range(2):
        value = J.value(m)
        assert (value, J.value_and_derivative(m)[0]) == (misfit(U0, C0), value)
        again, bent = J.derivative(m), J.hessian(m, d)
        assert [x.tobytes() for x in again] == [x.tobytes() for x in first]
        assert [np.asarray(x).tobytes() for x in bent] == [np.asarray(x).tobytes() for x in hessian]
    assert m[0].tobytes() == U0.tobytes()
    assert J.all_controls[0].value.tobytes() == U0.tobytes()
