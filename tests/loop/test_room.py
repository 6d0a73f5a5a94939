"""Loops whose steps come to save more than planned, or whose memory others take: the budget is kept, and the bits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes

import ebbtide
from ebbtide import Budget, BudgetError, grad, timeloop
from ebbtide.arrays.context import current
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, Schedule, StoreAll

SIZE = 16384
STATE = SIZE * 8
STEPS = 36
U0 = np.linspace(0.2, 1.1, SIZE)


def growing(u: Any, i: Any) -> Any:
    """A step with an inner loop, longer from step to step."""
    for _ in range(1 + i // 4):
        u = u + 0.01 * np.sin(u)
    return u


def jumping(u: Any, i: Any) -> Any:
    """A step that once saves ten times as much as before."""
    for _ in range(11 if i == STEPS - 5 else 1):
        u = u + 0.01 * np.sin(u)
    return u


def branching(u: Any, i: Any) -> Any:
    """A step whose branch depends on the data, and more often is the long one as time goes on."""
    values = u._value if hasattr(u, "_value") else u
    for _ in range(6 if float(values[0]) > 0.215 else 1):
        u = u + 0.01 * np.sin(u)
    return u


KINDS = {"growing": growing, "jumping": jumping, "branching": branching}


def objective(u: Any, kind: str, **options: Any) -> Any:
    """A scalar of the final state."""
    return np.sum(timeloop(KINDS[kind], u, STEPS, **options) ** 2)


@cache
def alone(kind: str) -> int:
    """The peak of the function without derivatives."""
    objective(U0, kind)
    return peak_bytes(lambda: objective(U0, kind))


@cache
def right(kind: str) -> bytes:
    """The gradient that keeps everything."""
    return grad(lambda u: objective(u, kind, schedule=StoreAll()))(U0).tobytes()


@pytest.mark.parametrize("where", ["grad", "loop"])
@pytest.mark.parametrize("states", [26, 36, 48, 70, 110])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_save_more_keep_the_budget(kind, states, where):
    """However much later steps save, the budget is kept, with the same bits; the steps of the last plan are run."""
    budget = Budget(memory=states * STATE)
    if where == "grad":
        f = grad(lambda u: objective(u, kind), budget=budget)
    else:
        f = grad(lambda u: objective(u, kind, budget=budget))
    found: list[Any] = []
    measured = peak_bytes(lambda: found.append(f(U0))) - alone(kind)
    assert found.pop().tobytes() == right(kind)
    assert measured <= states * STATE
    with ebbtide.profile() as p:
        f(U0)
    assert p.steps_forward == p.predicted_steps_forward


def test_a_loop_that_kept_everything_goes_on_with_snapshots():
    """If not all saved values turn out to fit, those that are there are given up, and the schedule is another one."""
    plans: list[Any] = []
    with ebbtide.profile(on_plan=plans.append) as p:
        grad(lambda u: objective(u, "growing"), budget=Budget(memory=110 * STATE))(U0)
    assert plans[0].schedule == StoreAll()
    assert plans[-1].schedule != StoreAll()
    assert p.steps_forward > STEPS


SCHEDULES: tuple[Schedule, ...] = (
    StoreAll(), Revolve(12), Mixed(24 * STATE, STATE, 3 * STATE), Periodic(6, 5), Hierarchical(10, 3, Costs(write=2, read=2)),
    Online(12),
)  # fmt: skip


@pytest.mark.parametrize("at", [3, STEPS // 2, STEPS - 1])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_memory_that_is_taken_midway(schedule, at, tmp_path):
    """A budget that is lowered in a step is kept from there on, with the same bits, whatever the schedule."""
    lowered: list[int] = []
    most: list[int] = []

    def step(u: Any, i: Any) -> Any:
        ledger = current().ledger
        if i == at and not lowered and ledger.limit is not None:
            lowered.append(ledger.limit - 40 * STATE)
            ledger.limit = lowered[0]
        if lowered and i != at:
            most.append(ledger.live)
        return u + 0.01 * np.sin(u)

    def f(u: Any, **options: Any) -> Any:
        return np.sum(timeloop(step, u, STEPS, **options) ** 2)

    budget = Budget(memory=50 * STATE, disk=200 * STATE, directory=tmp_path)
    expected = grad(lambda u: f(u, schedule=StoreAll()))(U0)
    found = grad(lambda u: f(u, schedule=schedule), budget=budget)(U0)
    assert found.tobytes() == expected.tobytes()
    assert most
    assert max(most) <= lowered[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("states", [40, 60])
def test_what_comes_after_the_loop_takes_from_it(states):
    """Code after the loop that saves much gets the room of snapshots and of saved values."""

    def f(u: Any) -> Any:
        u = timeloop(lambda u, i: u + 0.01 * np.sin(u), u, 20)
        for _ in range(24):
            u = np.sin(u)
        return np.sum(u)

    f(U0)
    base = peak_bytes(lambda: f(U0))
    expected = grad(f)(U0)
    found: list[Any] = []
    bounded = grad(f, budget=Budget(memory=states * STATE))
    measured = peak_bytes(lambda: found.append(bounded(U0)))
    assert found[0].tobytes() == expected.tobytes()
    assert measured - base <= states * STATE
    with ebbtide.profile() as p:
        bounded(U0)
    assert p.steps_forward == p.predicted_steps_forward


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_cannot_fit_is_refused_with_the_least(kind):
    """Where even one step alone is too large, the error says how much it takes, and that is enough."""
    memory = 9 * STATE
    for _ in range(8):
        try:
            found = grad(lambda u: objective(u, kind), budget=Budget(memory=memory))(U0)  # noqa: B023
        except BudgetError as error:
            assert error.least > memory
            memory = error.least
        else:
            break
    else:
        pytest.fail(f"{memory} bytes are not enough, and the error before said they were.")
    assert found.tobytes() == right(kind)


def test_disk_takes_what_one_step_saves_beyond_the_budget(tmp_path):
    """With disk, a step that alone saves more than fits is paged."""
    budget = Budget(memory=13 * STATE, disk=400 * STATE, directory=tmp_path)
    f = grad(lambda u: objective(u, "jumping"), budget=budget)
    found: list[Any] = []
    measured = peak_bytes(lambda: found.append(f(U0))) - alone("jumping")
    assert found[0].tobytes() == right("jumping")
    assert measured <= 13 * STATE
    assert list(tmp_path.iterdir()) == []
