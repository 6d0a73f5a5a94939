"""What a storage of the user has in memory, and what it has on disk, is in the plan of a loop and in its prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes as traced_peak
from tests.measure import traced

from ebbtide import Budget, BudgetError, grad, profile, timeloop
from ebbtide.ledger import Ledger
from ebbtide.loop.holding.disk_part import DiskPart
from ebbtide.schedules import Hierarchical, Online, Periodic, Position, Recorded, Revolve, StoreAll
from ebbtide.storage import Disk, Memory, Storage, Tiered

# A state of 1.25 MiB, of which the interpreter's share is a small part.
POINTS, STEPS = 160_000, 20
STATE = 8 * POINTS


def step(u: np.ndarray, i: Any) -> np.ndarray:
    """Return u after a step that saves two arrays."""
    return u + 0.1 * np.sin(u) * u


def recorded() -> Recorded:
    """Return the trace of a schedule with states in both tiers."""
    schedule, actions, position = Hierarchical(2, 4), list[Any](), Position(steps=STEPS)
    while (action := schedule.next_action(position)) is not None:
        actions.append(action)
        position = position.after(action)
    return Recorded(STEPS, tuple(actions))


STORAGES: dict[str, Callable[[], Storage]] = {
    "memory": Memory,
    "disk": Disk,
    "buffer": lambda: Disk(buffer=2 * STATE + 2**14),
    "tiered": lambda: Tiered(4 * STATE, Disk()),
    "roomy": lambda: Tiered(64 * STATE, Disk()),
}
SCHEDULES: dict[str, Callable[[], Any]] = {
    "all-on-disk": lambda: StoreAll("disk"),
    "periodic": lambda: Periodic(4, 2),
    "hierarchical": lambda: Hierarchical(2, 4),
    "revolve": lambda: Revolve(5),
    "online": lambda: Online(4),
    "recorded": recorded,
}


def looping(schedule: Any, storage: Callable[[], Storage]) -> Callable[[Any], Any]:
    """Return a function with a loop that has a storage of its own in each call."""
    return lambda u: np.sum(timeloop(step, u, STEPS, schedule=schedule, storage=storage()) ** 2)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_is_refused_once(schedule, storage):
    """The first refusal names a budget in which a loop follows its schedule: steps, bits, and a peak as predicted."""
    u, f = np.linspace(0.0, 1.0, POINTS), looping(SCHEDULES[schedule](), STORAGES[storage])
    expected = grad(f)(u)
    with pytest.raises(BudgetError) as refused:
        grad(f, budget=Budget(memory=1, disk=2**30))(u)
    with profile() as p:
        found = grad(f, budget=Budget(memory=refused.value.least, disk=2**30))(u)
    assert np.array_equal(found, expected)
    plan = p.loops[0].plan
    assert plan.schedule == SCHEDULES[schedule]()
    assert p.steps_forward == p.predicted_steps_forward
    assert p.peak_bytes <= p.predicted_whole_bytes <= 1.05 * p.peak_bytes
    assert plan.predicted_peak_bytes <= refused.value.least


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_peak_is_predicted_without_a_budget(schedule, storage):
    """Snapshots that a storage has on disk are in no prediction, and those in memory are, whatever their tier."""
    u, f = np.linspace(0.0, 1.0, POINTS), looping(SCHEDULES[schedule](), STORAGES[storage])
    with profile() as p:
        grad(f)(u)
    assert p.peak_bytes <= p.predicted_whole_bytes <= 1.05 * p.peak_bytes


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("memory", "disk"), [(8, 0), (8, 10), (8, 1000), (14, 10)])
def test_a_planned_loop_takes_what_is_predicted(memory, disk, storage):
    """A schedule that is chosen is predicted for where its snapshots come to lie."""
    u, f = np.linspace(0.0, 1.0, POINTS), looping(None, STORAGES[storage])
    budget = Budget(memory=memory * STATE, disk=disk * STATE)
    with profile() as p:
        grad(f, budget=budget)(u)
    assert p.steps_forward == p.predicted_steps_forward
    # Of a storage in two tiers an entry is in one of them as a whole, and the initial state may not be kept. What is in
    # a buffer a thread may have written by then.
    assert p.peak_bytes <= p.predicted_whole_bytes <= (1.15 if storage in ("tiered", "buffer") else 1.05) * p.peak_bytes
    alone = traced_peak(lambda: f(u))
    with traced():
        assert traced_peak(lambda: grad(f, budget=budget)(u)) <= memory * STATE + alone


def test_what_comes_to_be_in_memory():
    """A restart state is in memory by its tier without a storage of the user, and else by that."""
    ledger = Ledger(watched=True)
    assert [DiskPart(ledger, None, None, is_own=False).bytes_here(80, tier) for tier in ("memory", "disk")] == [80, 0]
    with Disk() as disk, Memory() as memory, Tiered(100, Disk()) as tiered:
        parts = [DiskPart(ledger, None, storage, is_own=False) for storage in (disk, memory, tiered)]
        assert [part.bytes_here(80, "disk") for part in parts] == [0, 80, 80]
        tiered.put(0, [np.zeros(5)])
        assert [part.bytes_here(80, "memory") for part in parts] == [0, 80, 60]
