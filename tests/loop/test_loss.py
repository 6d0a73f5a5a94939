"""Snapshots that are stored with loss: the gradient is near the exact one, and how near is estimated."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest

from ebbtide import Budget, grad, profile, timeloop, vjp
from ebbtide.loop import loss
from ebbtide.schedules import Periodic, Revolve, StoreAll
from ebbtide.storage import Disk, Zfp

STEPS = 60
GRID = np.linspace(0, 2 * np.pi, 200, endpoint=False)


def burgers(u, nu):
    """Upwind advection by itself, and diffusion."""
    left, right = np.roll(u, 1), np.roll(u, -1)
    return u - 0.05 * u * (right - left) + nu * (right - 2 * u + left)


def lorenz(u, rho):
    """Many Lorenz systems: errors grow."""
    x, y, z = u[0], u[1], u[2]
    return u + 0.005 * np.stack([10 * (y - x), x * (rho - z) - y, x * y - 8 / 3 * z])


def pendulum(u, k):
    """Pendulums that are coupled to one another."""
    q, p = u[0], u[1]
    p = p - 0.1 * (np.sin(q) + k * (2 * q - np.roll(q, 1) - np.roll(q, -1)))
    return np.stack([q + 0.1 * p, p])


PROBLEMS = {
    "burgers": (burgers, 2 + np.sin(GRID), 0.1 + 0.05 * np.cos(GRID)),
    "lorenz": (lorenz, 5 + np.random.default_rng(0).standard_normal((3, 100)), 28 + np.linspace(-1, 1, 100)),
    "pendulum": (pendulum, np.random.default_rng(1).standard_normal((2, 150)), np.linspace(0.2, 0.4, 150)),
}
SCHEDULES = {"revolve": Revolve(6), "periodic": Periodic(10, 2)}


def loss_of(problem, schedule, which, storage):
    """A function of the control that runs the loop, and the control: the coefficients or the initial state."""
    step, start, coefficient = PROBLEMS[problem]

    def run(m):
        state, k = (start, m) if which == "coefficient" else (m, coefficient)
        final = timeloop(lambda u, i: step(u, k), state, STEPS, schedule=schedule, storage=storage)
        return np.sum(final**2 * np.arange(final.size).reshape(final.shape))

    return run, (coefficient if which == "coefficient" else start)


@pytest.mark.parametrize("compression", ["float32", "zfp"])
@pytest.mark.parametrize("which", ["coefficient", "state"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_estimate_is_within_a_factor_of_ten(tmp_path, problem, schedule, which, compression):
    """What the profile says of the gradient's relative error is a tenth to ten times what is measured."""
    if compression == "zfp":
        pytest.importorskip("zfpy", reason="needs the extra `compress`")
    chosen = Zfp(1e-5) if compression == "zfp" else "float32"
    exact_run, m = loss_of(problem, StoreAll(), which, None)
    exact = grad(exact_run)(m)
    with Disk(tmp_path, compression={"restart": chosen}) as storage:
        run, _ = loss_of(problem, SCHEDULES[schedule], which, storage)
        with profile() as p:
            found = grad(run)(m)
    measured = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert 0 < measured < 1e-2
    assert measured / 10 <= p.gradient_error <= measured * 10
    assert f"{p.gradient_error:.1e}  of the gradient, estimated" in str(p)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_estimate_for_one_number_is_not_too_small(tmp_path, problem):
    """In a gradient of one number errors cancel: the estimate may be larger than what is measured, not far below."""
    found = []
    for storage in (None, Disk(tmp_path, compression={"restart": "float32"})):
        run, m = loss_of(problem, StoreAll() if storage is None else SCHEDULES["revolve"], "coefficient", storage)
        with profile() as p:
            found.append(grad(lambda factor, run=run, m=m: run(m * factor))(1.0))
    storage.close()
    assert 0 < abs(found[1] - found[0]) / abs(found[0]) <= 10 * p.gradient_error


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_generator_in_the_state_draws_the_same(tmp_path, schedule):
    """A step that draws from a generator is swept twice with the same numbers: the estimate is right there, too."""

    def run(u, storage=None):
        step = lambda s, i: {"u": s["u"] + 0.1 * np.sin(s["u"]) * s["draw"].standard_normal(200), "draw": s["draw"]}
        start = {"u": u, "draw": np.random.default_rng(5)}
        return np.sum(timeloop(step, start, STEPS, schedule=SCHEDULES[schedule], storage=storage)["u"] ** 2)

    exact = grad(run)(GRID)
    with Disk(tmp_path, compression={"restart": "float32"}) as storage, profile() as p:
        found = grad(lambda u: run(u, storage))(GRID)
    measured = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert measured > 0
    assert measured / 10 <= p.gradient_error <= measured * 10


def test_nobody_asks_nothing_is_measured(tmp_path):
    """Without a profile no step is run for the estimate, and the gradient is the same."""
    counts, found = [], []
    for asked in (False, True):
        with Disk(tmp_path, compression={"restart": "float32"}) as storage:
            calls = []

            def step(u, i, calls=calls):
                """A step that counts itself."""
                calls.append(i)
                return np.sin(u) + 0.1 * u

            run = grad(lambda u, storage=storage: np.sum(timeloop(step, u, 20, schedule=Revolve(4), storage=storage)))
            with profile() if asked else nullcontext():
                found.append(run(GRID))
            counts.append(len(calls))
    assert counts[0] < counts[1]
    assert np.array_equal(*found)


def test_without_loss_there_is_no_error(tmp_path):
    """Without compression, and with one that loses nothing, the estimate is 0, and the report says nothing of it."""
    for compression in (None, "lossless", {"saved": "lossless"}):
        with Disk(tmp_path, compression=compression) as storage:
            run, m = loss_of("burgers", SCHEDULES["revolve"], "state", storage)
            with profile() as p:
                found = grad(run)(m)
            assert p.gradient_error == 0
            assert "rounded" not in str(p)
            assert np.array_equal(found, grad(loss_of("burgers", StoreAll(), "state", None)[0])(m))


def test_rounded_saved_values_have_no_estimate(tmp_path):
    """Where saved values are rounded themselves the error is said to be unknown."""
    with Disk(tmp_path, compression="float32") as storage:
        run, m = loss_of("burgers", StoreAll("disk"), "state", storage)
        with profile() as p:
            grad(run)(m)
    assert math.isnan(p.gradient_error)
    assert "nan  of the gradient" in str(p)


def test_each_sweep_has_its_own_estimate(tmp_path):
    """A pullback that is called twice gives the same cotangents, and its errors count as those of two gradients."""
    with Disk(tmp_path, compression={"restart": "float32"}) as storage, profile() as p:
        run, m = loss_of("burgers", SCHEDULES["revolve"], "state", storage)
        _, pull = vjp(run, m, retain=True)
        errors, found = [], []
        for _ in range(2):
            found.append(pull(1.0))
            errors.append(p.gradient_error)
    assert np.allclose(found[0], found[1], rtol=1e-5)
    assert 0 < errors[0] < errors[1] < 3 * errors[0]


def test_a_budget_without_room_for_the_estimate_has_none(tmp_path, monkeypatch):
    """Where a budget has no room for a second sweep there is none: the estimate is unknown, the gradient the same."""
    room = loss.Loss.__init__
    found, errors = [], []
    for sweep in (1 << 20, 1 << 32):
        monkeypatch.setattr(
            loss.Loss, "__init__", lambda me, stepper, ledger, _, sweep=sweep: room(me, stepper, ledger, sweep)
        )
        with Disk(tmp_path, compression={"restart": "float32"}) as storage:
            run, m = loss_of("burgers", SCHEDULES["revolve"], "state", storage)
            with profile() as p:
                found.append(grad(run, budget=Budget("1 GiB"))(m))
            errors.append(p.gradient_error)
    assert errors[0] > 0
    assert math.isnan(errors[1])
    assert np.array_equal(*found)


def test_a_step_that_refuses_the_estimate_goes_on_without(tmp_path):
    """Where a step raises at a state that is off by a rounding error, the gradient is there and the estimate is not."""

    def step(x, i):
        if np.any(x < 0.0):
            raise ValueError("This step is for densities.")
        return 0.9 * x

    u = np.maximum(np.linspace(-1.0, 1.0, 50), 0.0)
    with Disk(tmp_path, compression={"restart": "float32"}) as storage, profile() as report:
        found = grad(lambda u: np.sum(timeloop(step, u, 12, schedule=Revolve(3), storage=storage) ** 2))(u)
    np.testing.assert_allclose(found, grad(lambda u: np.sum(timeloop(step, u, 12) ** 2))(u), rtol=1e-5)
    assert math.isnan(report.gradient_error)


@pytest.mark.parametrize("amplitude", [1e-4, 1e-6])
def test_states_that_are_rounded_to_nothing_have_no_estimate(tmp_path, amplitude):
    """A tolerance that is larger than the state leaves zeros of it: the profile says that nothing is known."""
    pytest.importorskip("zfpy", reason="needs the extra `compress`")
    u = amplitude * (1 + 0.5 * np.sin(np.linspace(0, 3, 4000)))

    def functional(u, storage=None):
        step = lambda u, i: u * (1 - 0.05 * u / amplitude)
        return np.sum(timeloop(step, u, 20, schedule=Revolve(3), storage=storage) ** 2)

    with Disk(tmp_path, compression={"restart": Zfp(1e-3)}) as storage, profile() as p:
        found = grad(lambda u: functional(u, storage))(u)
    expected = grad(functional)(u)
    assert np.linalg.norm(found - expected) > 0.5 * np.linalg.norm(expected)
    assert np.isnan(p.gradient_error)
    assert "rounded                nan" in str(p)
