"""Loops whose steps come to save more than planned, or whose memory others take: the budget is kept, and the bits."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.scale import sample
from tests.storages import OutOfOrder

import ebbtide
from ebbtide import Budget, BudgetError, grad, profile, timeloop, vjp
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
    for _ in range(6 if u[0] > 0.215 else 1):
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


@pytest.mark.parametrize(
    ("kind", "states", "where"), sample(list(product(KINDS, [26, 36, 42, 48, 70, 110], ["grad", "loop"])), 5)
)
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


@pytest.mark.parametrize("costs", [None, Costs(forward=1.0, reverse=3.0)], ids=["measured", "given"])
@pytest.mark.parametrize("states", [36, 70, 110])
def test_a_plan_that_is_made_again_is_one_of_the_whole_run(states, costs):
    """Made anew midway, it predicts the steps and the time of the whole run: what was run for another plan is in it."""
    plans: list[Any] = []
    with ebbtide.profile(on_plan=plans.append) as p:
        grad(lambda u: objective(u, "growing", costs=costs), budget=Budget(memory=states * STATE))(U0)
    first, last = plans[0], plans[-1]
    assert last.schedule != first.schedule
    assert last.sizes.saved > first.sizes.saved
    assert (last.least, last.measuring_steps, last.measuring_time) == (
        first.least, first.measuring_steps, first.measuring_time
    )  # fmt: skip
    assert last.predicted_steps_forward == p.steps_forward
    work = last.costs.time(forward=p.steps_forward - last.measuring_steps, reverse=STEPS)
    assert last.predicted_time == pytest.approx(work + last.measuring_time)
    assert (last.measuring_steps > 0) == (costs is None and states == 36)


SCHEDULES: tuple[Schedule, ...] = (
    StoreAll(), Revolve(12), Mixed(24 * STATE, STATE, 3 * STATE), Periodic(6, 5), Online(12),
    Hierarchical(10, 3, Costs(write=2, read=2)),
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
    """Where even one step alone is too large, the error says how much it takes; in the end that is enough."""
    memory, refused = 7 * STATE, []

    def attempt(memory: int) -> np.ndarray | None:
        try:
            return grad(lambda u: objective(u, kind), budget=Budget(memory=memory))(U0)
        except BudgetError as error:
            refused.append(error.least)
            return None

    while (found := attempt(memory)) is None:
        assert refused[-1] > memory
        memory = refused[-1]
    assert refused
    assert found.tobytes() == right(kind)
    assert memory < 24 * STATE  # the longest step saves 11 states, and takes 14 with its cotangents


def test_disk_takes_what_one_step_saves_beyond_the_budget(tmp_path):
    """With disk, a step that alone saves more than fits is paged."""
    budget = Budget(memory=13 * STATE, disk=400 * STATE, directory=tmp_path)
    f = grad(lambda u: objective(u, "jumping"), budget=budget)
    found: list[Any] = []
    measured = peak_bytes(lambda: found.append(f(U0))) - alone("jumping")
    assert found[0].tobytes() == right("jumping")
    assert measured <= 13 * STATE
    assert list(tmp_path.iterdir()) == []


# What all steps share.


@pytest.mark.parametrize("kind", ["plain", "argument", "made", "view"])
def test_what_all_steps_share_is_held_once(kind):
    """A large static array, plain or traced, is no part of what each step saves; the peak of many steps shows it."""
    big = np.linspace(0.9, 1.0, 100_000)

    def f(x: Any, big: Any) -> Any:
        if kind == "made":
            big = np.sqrt(big)
        part = big[10:] if kind == "view" else big
        return timeloop(lambda x, i: x * 0.999 + 1e-9 * np.sum(x * part), x, 50)

    with ebbtide.profile() as p:
        if kind == "plain":
            grad(lambda x: f(x, big))(2.0)
        else:
            grad(f, (0, 1))(2.0, big)
    sizes = p.loops[-1].plan.sizes
    assert sizes.saved < 16 * 1024
    assert p.predicted_peak_bytes < 8 * big.nbytes
    assert p.held_bytes <= p.predicted_peak_bytes


def test_what_a_step_makes_itself_is_its_own():
    """A plain array that each step makes anew is part of what each step saves."""
    with ebbtide.profile() as p:
        grad(lambda x: timeloop(lambda x, i: x * 0.999 + 1e-9 * np.sum(x * np.full(100_000, 0.5)), x, 20))(2.0)
    assert p.loops[-1].plan.sizes.saved > 800_000
    assert p.held_bytes <= p.predicted_peak_bytes


@pytest.mark.parametrize("states", [42, 45, 49, 60])
def test_a_retained_sweep_makes_room(states):
    """What a retained sweep does not begin again with is given up like that of others; each sweep keeps the budget."""

    def pulled() -> list[bytes]:
        budget = Budget(memory=states * STATE)
        _, pullback = vjp(lambda u: objective(u, "growing"), U0, retain=True, budget=budget)
        found = [pullback(1.0)[0].tobytes() for _ in range(2)]
        pullback.free()
        return found

    assert pulled() == [right("growing")] * 2
    # Its bytes twice, and the gradient, are the test's.
    assert peak_bytes(pulled) <= states * STATE + alone("growing") + 3 * STATE


@pytest.mark.parametrize("schedule", [Revolve(2), Mixed(8), StoreAll()], ids=repr)
def test_steps_that_are_never_swept_leave_nothing_in_the_ledger(schedule):
    """A loop that is not used, and one that fails in a function that goes on, take nothing from what comes after."""
    live = []

    def f(u: Any) -> Any:
        def step(x: Any, i: Any, *, last: int) -> Any:
            if i == last:
                raise ZeroDivisionError
            return x + 0.1 * np.sin(x) * np.cos(x)

        for last in (0, 3, 9, 3, 0, 9):
            with suppress(ZeroDivisionError):
                timeloop(partial(step, last=last), u, 9, schedule=schedule)
            live.append(current().ledger.live)
        return np.sum(u * u)

    grad(f, budget=Budget(memory=10**7))(U0[:10])
    assert live == [0] * 6


@pytest.mark.filterwarnings("ignore:The restart values:RuntimeWarning")
@pytest.mark.parametrize("states", [20, 25, 30])
def test_the_initial_state_is_kept_where_the_storage_fails(states):
    """The state from which saved values that are given up run again is there, whatever becomes of the storage."""

    def f(u: Any, storage: Any = None) -> Any:
        x = timeloop(lambda x, i: x + 0.1 * np.sin(x) * np.cos(x), u, 6, storage=storage)
        y = np.sin(np.exp(np.sin(np.exp(np.sin(np.exp(u))))))
        return np.sum(x * x * (y * np.cos(y) * np.sin(y) * np.exp(y)))

    with OutOfOrder(broken=True) as storage:
        found = grad(lambda u: f(u, storage), budget=Budget(memory=states * STATE))(U0)
    assert found.tobytes() == grad(f)(U0).tobytes()


@pytest.mark.parametrize("states", [40, 46])
def test_no_fewer_bytes_are_predicted_than_a_step_takes(states):
    """What is given up of steps that grew is more than was planned, and the prediction stays one of bytes."""

    def f(u: Any) -> Any:
        y = timeloop(growing, u, STEPS)
        for _ in range(6):
            y = np.sin(y) * np.cos(y)
        return np.sum(y * y)

    with profile() as report:
        grad(f, budget=Budget(memory=states * STATE))(U0)
    (loop,) = report.loops
    assert loop.plan.sizes.sweep < loop.plan.predicted_peak_bytes <= states * STATE
