"""States that two steps save, the one after which they come and the one before: held once, and planned once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import Budget, grad, profile, timeloop
from ebbtide.loop.planning import plan
from ebbtide.loop.planning.plan import make_plan
from ebbtide.loop.planning.sizes import Sizes
from ebbtide.schedules import Mixed, StoreAll

U = np.linspace(0.1, 1.0, 100_000)
STEPS, STATE = 40, U.nbytes


def plus(u: Any, i: Any) -> Any:
    """A step that saves its own array beside the one before it, and hands on another one."""
    v = np.tanh(u * u)
    v += 0.1
    return v


def written(u: Any, i: Any) -> Any:
    """A step that writes into its state first."""
    u *= u
    return np.tanh(u)


# The step, how many states, how many of them a step saves and how many of those the next one saves, too.
CASES: dict[str, tuple[Any, int, int, int]] = {
    "before and after": (lambda u, i: np.tanh(u * u), 1, 2, 1),
    "after": (lambda u, i: np.tanh(u), 1, 1, 0),
    "before": (lambda u, i: u * u, 1, 1, 0),
    "written": (written, 1, 2, 1),
    "another array": (plus, 1, 2, 0),
    "a part": (lambda u, i: np.tanh(np.stack([u * u, u])[0]), 1, 2, 1),
    "turned": (lambda u, i: np.tanh(u * u)[::-1], 1, 2, 0),
    "one of two": (lambda s, i: (np.tanh(s[0] * s[0]), s[1] * 0.9), 2, 2, 1),
    "two": (lambda s, i: (np.tanh(s[0] * s[1]), s[0]), 2, 3, 2),
}


def energy(step: Any, leaves: int) -> Any:
    """Return a function of an array that begins as each leaf of a state."""

    def found(u: Any) -> Any:
        last = timeloop(step, u if leaves == 1 else (u,) * leaves, STEPS, progress=False)
        return np.sum(last if leaves == 1 else last[0])

    return found


@pytest.mark.parametrize("name", CASES)
def test_they_are_planned_once(name):
    """What is passed on is found on the first step; a budget that has room for it once keeps all steps."""
    step, leaves, saved, passed_on = CASES[name]
    f = energy(step, leaves)
    alone = peak_bytes(lambda: f(U))
    memory = (STEPS * (saved - passed_on) + 12) * STATE
    call = grad(f, budget=Budget(memory=memory))
    expected = grad(f)(U)
    with profile() as p:
        found = call(U)
    planned = p.loops[0].plan
    assert (planned.sizes.passed_on, planned.schedule, p.steps_forward) == (passed_on * STATE, StoreAll(), STEPS)
    assert saved * STATE <= planned.sizes.saved <= saved * STATE + 8192
    assert found.tobytes() == expected.tobytes()
    measured = peak_bytes(lambda: call(U)) - alone
    assert (STEPS * (saved - passed_on) - 1) * STATE <= measured <= planned.predicted_peak_bytes <= memory


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("states", [16, 24, 32, 40, 44, 48])
def test_budgets_are_kept(name, states):
    """Where not all steps fit, or just all, neither the budget nor the prediction is passed."""
    step, leaves, saved, passed_on = CASES[name]
    f = energy(step, leaves)
    alone = peak_bytes(lambda: f(U))
    call = grad(f, budget=Budget(memory=states * STATE))
    call(U)
    with profile() as p:
        call(U)
    measured = peak_bytes(lambda: call(U)) - alone
    assert measured <= p.loops[0].plan.predicted_peak_bytes <= states * STATE
    assert p.steps_forward == p.loops[0].plan.predicted_steps_forward
    schedule = p.loops[0].schedule
    if isinstance(schedule, Mixed):
        assert (saved - passed_on) * STATE < schedule.saved < (saved - passed_on + 0.25) * STATE


def test_ranks_agree_on_the_least(monkeypatch):
    """Of processes that measured different bytes the one with the fewest that are passed on decides."""
    mib = 2**20
    sizes = Sizes(state=mib, saved=2 * mib, sweep=5 * mib, gradients=0, stored=mib, passed_on=mib)

    def planned() -> Any:
        return make_plan(40, sizes, memory=50 * mib, disk=0, schedule=None, held=0, costs=None).schedule

    assert planned() == StoreAll()
    # The other process has found that nothing is passed on.
    monkeypatch.setattr(plan, "agree", lambda own: tuple(max(x, 0) if x == -mib else x for x in own))
    assert isinstance(planned(), Mixed)
