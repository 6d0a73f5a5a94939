"""Time loops without derivatives, of few steps, with bars and collections."""

from __future__ import annotations

import gc
import io
import sys
from typing import Any

import numpy as np
import pytest

from ebbtide import Budget, grad, jvp, timeloop, value_and_grad
from ebbtide.schedules import Revolve, StoreAll

U0 = np.linspace(0.2, 1.1, 5)
SCHEDULES = (None, StoreAll(), Revolve(1), Revolve(3))


def step(u: Any, i: Any) -> Any:
    """A nonlinear step that depends on its number."""
    return u + 0.1 * np.sin(u * (1 + i))


def test_plain_loop_returns_what_the_step_returned():
    """Without a trace: the values, types and outputs of the `for` loop, and the caller's array as it was."""
    before = U0.copy()
    seen = []

    def one(state, x):
        seen.append(x)
        u, n = state
        u *= x["a"]
        return (u, n + 1), {"u": u, "n": n}

    (u, n), out = timeloop(one, (U0, 0), 3, inputs=[{"a": 2.0}, {"a": 3.0}, {"a": 4.0}], outputs=True)
    np.testing.assert_array_equal(u, before * 24)
    assert n == 3
    assert type(n) is int
    assert seen == [{"a": 2.0}, {"a": 3.0}, {"a": 4.0}]
    np.testing.assert_array_equal(out["u"], np.stack([before * 2, before * 6, before * 24]))
    np.testing.assert_array_equal(out["n"], [0, 1, 2])
    np.testing.assert_array_equal(U0, before)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_no_steps(schedule):
    """A loop of no steps returns a copy of its state, whose gradient is that of the identity."""
    assert timeloop(step, U0, 0, schedule=schedule) is not U0
    np.testing.assert_array_equal(timeloop(step, U0, 0, schedule=schedule), U0)
    np.testing.assert_array_equal(grad(lambda u: np.sum(timeloop(step, u, 0, schedule=schedule) ** 2))(U0), 2 * U0)
    found = grad(lambda u: np.sum(timeloop(step, u, 0, inputs=[], schedule=schedule)))(U0)
    np.testing.assert_array_equal(found, np.ones(5))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("steps", [1, 2])
def test_few_steps(steps, schedule):
    """Loops of one and two steps: each step once, the last one never twice."""
    calls = []

    def counted(u, i):
        calls.append(i)
        return step(u, i)

    def plain(u):
        for i in range(steps):
            u = step(u, i)
        return np.sum(u**2)

    value, found = value_and_grad(lambda u: np.sum(timeloop(counted, u, steps, schedule=schedule) ** 2))(U0)
    np.testing.assert_allclose(found, grad(plain)(U0), rtol=1e-14)
    assert value == plain(U0)
    again = steps - 1 if isinstance(schedule, Revolve) else 0
    assert len(calls) == steps + again


def test_loop_of_constants_is_no_operation():
    """A loop under a tape that depends on nothing traced returns plain arrays, and keeps no snapshot."""

    def f(u):
        plain, out = timeloop(lambda v, i: (step(v, i), np.sum(v)), U0, 4, outputs=True, schedule=Revolve(2))
        assert type(plain) is np.ndarray
        assert type(out) is np.ndarray
        return np.sum(u * plain) + out[0]

    np.testing.assert_array_equal(grad(f)(U0), timeloop(step, U0, 4))


def test_numpy_integer_for_steps():
    """The number of steps may be a NumPy integer."""
    np.testing.assert_array_equal(timeloop(step, U0, np.int64(3)), timeloop(step, U0, 3))


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2)], ids=str)
def test_collect_every_collects_as_often(schedule):
    """Garbage is collected once for so many runs of steps, forward and reverse together, and never without it."""
    calls = []

    def count(phase, info):
        if phase == "start" and info["generation"] == 2:
            calls.append(info)

    taken = [0]

    def counted(u, i):
        taken[0] += 1
        return step(u, i)

    def run(every, state=U0, **options):
        calls.clear()
        taken[0] = 0
        gc.disable()
        gc.callbacks.append(count)
        try:
            f = lambda u: np.sum(timeloop(counted, u, 11, schedule=schedule, collect_every=every))
            grad(f, **options)(state)
        finally:
            gc.callbacks.remove(count)
            gc.enable()
        return len(calls)

    assert run(None) == 0
    for every in (1, 3, 100):
        assert run(every) == schedule.forward_steps(11) // every
    # Those that are run to be measured, for a budget, are steps like any other.
    bounded = run(2, budget=Budget(memory="2 MiB"), state=np.ones(20_000))
    assert bounded == taken[0] // 2 > 11 // 2
    calls.clear()
    gc.disable()
    gc.callbacks.append(count)
    try:
        timeloop(step, U0, 11, collect_every=4)
    finally:
        gc.callbacks.remove(count)
        gc.enable()
    assert len(calls) == 2


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2)], ids=str)
def test_bars_count_forward_and_reverse_steps(schedule, capsys):
    """With progress=True there is a bar for each sweep, which ends full; without it there is none."""
    grad(lambda u: np.sum(timeloop(step, u, 11, schedule=schedule, progress=True)))(U0)
    text = capsys.readouterr().err
    for label in ("forward", "reverse"):
        lines = [line for line in text.replace("\r", "\n").split("\n") if line.startswith(label)]
        assert "11/11" in lines[-1]
    grad(lambda u: np.sum(timeloop(step, u, 11, schedule=schedule)))(U0)
    timeloop(step, U0, 3, progress=False)
    assert capsys.readouterr().err == ""
    timeloop(step, U0, 3, progress=True)
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize("error", [OSError(28, "full"), RuntimeError("it is closed"), TypeError("gone")], ids=repr)
def test_a_bar_that_cannot_be_shown_costs_no_gradient(error, monkeypatch):
    """Whatever the stream of a notebook raises: the gradient is there."""

    class Gone(io.StringIO):
        def write(self, _):
            raise error

    monkeypatch.setattr(sys, "stderr", Gone())
    found = grad(lambda u: np.sum(timeloop(step, u, 11, schedule=Revolve(2), progress=True)))(U0)
    assert found.tobytes() == grad(lambda u: np.sum(timeloop(step, u, 11)))(U0).tobytes()


def test_bar_is_closed_after_an_exception(capsys):
    """A bar of a loop that fails is closed, and the next loop has one of its own."""

    def fails(u, i):
        if i == 2:
            raise ValueError("here")
        return u

    with pytest.raises(ValueError, match="here"):
        timeloop(fails, U0, 5, progress=True)
    capsys.readouterr()
    timeloop(step, U0, 5, progress=True)
    assert "5/5" in capsys.readouterr().err


def test_forward_mode_with_outputs_of_all_kinds():
    """The tangent of an output is its derivative; of an output that is no floating-point number it is zero."""

    def f(u):
        return timeloop(lambda u, i: (u * 2.0, (u[0], i, 0.5, u[:2])), u, 3, outputs=True)

    (final, out), (dfinal, dout) = jvp(f, (U0,), (np.ones(5),))
    np.testing.assert_array_equal(final, U0 * 8)
    np.testing.assert_array_equal(dfinal, np.full(5, 8.0))
    np.testing.assert_array_equal(out[1], [0, 1, 2])
    np.testing.assert_array_equal(dout[0], [1.0, 2.0, 4.0])
    np.testing.assert_array_equal(dout[2], np.zeros(3))
    np.testing.assert_array_equal(dout[3], np.array([1.0, 2.0, 4.0])[:, None] * np.ones(2))

    def scalar(u):
        final, out = jvp(f, (u,), (u,))[1]
        return np.sum(final) + np.sum(out[0]) + np.sum(out[2]) + np.sum(out[3])

    np.testing.assert_allclose(grad(scalar)(U0), [22.0, 15.0, 8.0, 8.0, 8.0])
