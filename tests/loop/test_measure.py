"""What the measuring steps find, by a clock that the steps themselves move on."""

from __future__ import annotations

import itertools
import time
from typing import Any, final

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import Budget, grad, primitive, profile, timeloop
from ebbtide.loop.measuring import first, timing, transfers
from ebbtide.loop.measuring.transfers import with_transfers
from ebbtide.loop.stepping import warm
from ebbtide.quota import Quota
from ebbtide.schedules import Costs, StoreAll

U0 = np.linspace(0.2, 1.3, 40_000)
STEPS = 40


@final
class Clock:
    """
    A clock of which a step takes 1 s and its sweep 3 s, and one of each ten times as long.

    Args:
        slow: Which step and which sweep, the first ones if nothing else is said.
    """

    def __init__(self, slow: tuple[int, int] = (0, 0)) -> None:
        self.now = 0.0
        self.steps = self.sweeps = 0
        self.slow_step, self.slow_sweep = slow

    def step(self, u: Any) -> Any:
        """Return the result of a step."""
        self.now += 10.0 if self.steps == self.slow_step else 1.0
        self.steps += 1
        return u + 0.1 * np.sin(u)

    def sweep(self, g: Any, u: Any) -> Any:
        """Return the cotangent of a step."""
        self.now += 30.0 if self.sweeps == self.slow_sweep else 3.0
        self.sweeps += 1
        return g * (1.0 + 0.1 * np.cos(u))


def timed(monkeypatch: pytest.MonkeyPatch, slow: tuple[int, int] = (0, 0), **options: Any) -> tuple[Clock, Any]:
    """Return a clock and the function whose loop it times."""
    clock = Clock(slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    moved = primitive(clock.step, vjp=(clock.sweep,))
    return clock, lambda u: np.sum(timeloop(lambda u, _: moved(u), u, STEPS, **options) ** 2)


@pytest.mark.parametrize("slow", [(0, 0), (0, 1), (1, 2), (2, 2)], ids=["rule", "first", "second", "plain"])
@pytest.mark.parametrize("states", [10, 14, 20])
def test_the_predicted_time_is_what_the_loop_takes(states, slow, monkeypatch):
    """Where steps take the time of those measured, so does the loop; what is slow once counts once, as it was."""
    clock, energy = timed(monkeypatch, slow)
    with profile() as p:
        found = grad(energy, budget=Budget(memory=states * U0.nbytes))(U0)
    (loop,) = p.loops
    assert loop.schedule != StoreAll()
    assert loop.plan.costs == Costs(forward=1.0, reverse=3.0)
    assert loop.seconds == loop.plan.predicted_time == clock.now
    assert loop.steps_forward == loop.plan.predicted_steps_forward == clock.steps
    assert clock.sweeps == STEPS + 3  # two that are timed, and one for what it takes, as the rule is the user's
    assert found.tobytes() == grad(timed(monkeypatch, schedule=StoreAll())[1])(U0).tobytes()


def test_pages_that_measured_steps_are_given_are_not_counted(monkeypatch):
    """The time of page faults is no part of that of a step or a sweep; but a part of each is."""
    faults = itertools.count()
    monkeypatch.setattr(warm, "count_faults", lambda: 5 * next(faults))
    for fault, costs in ((0.05, Costs(forward=0.75, reverse=2.75)), (0.5, Costs(forward=0.25, reverse=0.75))):
        monkeypatch.setattr(timing, "time_fault", lambda fault=fault: fault)
        _, energy = timed(monkeypatch, (1, 1))
        with profile() as p:
            grad(energy, budget=Budget(memory=14 * U0.nbytes))(U0)
        assert p.loops[0].plan.costs == costs


def test_page_faults_are_counted():
    """Pages that are touched for the first time, as those that are taken to time a fault, count."""
    before = warm.count_faults()
    warm.time_fault()
    assert warm.count_faults() > before


@pytest.mark.parametrize(("times", "usual"), [([2.0], 2.0), ([2.0, 2.25], 2.125), ([2.0, 9.0], 2.0), ([9.0, 2.0], 2.0)])
def test_of_two_times_the_mean_counts_unless_one_is_far_off(times, usual):
    """What varies a little is averaged, what was slow once is not."""
    assert timing.usual_time(times) == usual


def test_without_room_for_two_steps_one_is_measured_at_a_time(monkeypatch):
    """In a budget of little more than a step the only sweep counts, and the budget holds."""
    budget = Budget(memory=int(5.5 * U0.nbytes))
    _, energy = timed(monkeypatch)
    alone = peak_bytes(lambda: energy(U0))
    _, energy = timed(monkeypatch)
    assert peak_bytes(lambda: grad(energy, budget=budget)(U0)) - alone <= budget.memory
    clock, energy = timed(monkeypatch, (0, 1))
    with profile() as p:
        grad(energy, budget=budget)(U0)
    (loop,) = p.loops
    assert loop.plan.costs == Costs(forward=1.0, reverse=30.0)
    assert loop.steps_forward == loop.plan.predicted_steps_forward == clock.steps
    assert clock.sweeps == STEPS + 2


def test_transfers_are_measured_with_what_is_exposed_of_them():
    """Of a way to the disk and back the parts that no thread takes over are known apart, and a part of the whole."""
    costs = with_transfers(Costs(), [U0], None, Quota(2**24))
    assert 0 < costs.write_exposed <= costs.write
    assert 0 < costs.read_exposed < costs.read


@pytest.mark.parametrize("waited", [False, True])
@pytest.mark.parametrize("size", [40_000, 1_000_000])
def test_only_what_waits_for_the_disk_is_hidden(size, waited, monkeypatch):
    """The write of a large state that did not wait is made by the loop itself, and all of it is exposed."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(transfers, "has_waited", lambda *clocks: waited)
    costs = with_transfers(Costs(), [np.zeros(size)], None, Quota(2**24))
    assert costs.write_exposed == (costs.write if size == 1_000_000 and not waited else 1.0)
    assert costs.write > 1.0
    assert costs.prompt != waited


@pytest.mark.parametrize("waited", [False, True])
def test_nothing_is_hidden_behind_steps_that_have_all_processors(waited, monkeypatch):
    """Where a step leaves no processor to the threads of a storage, what does not wait for the disk takes its time."""
    monkeypatch.setattr(transfers, "has_waited", lambda *clocks: waited)
    costs = with_transfers(Costs(), [U0], None, Quota(2**24), is_busy=True)
    assert (costs.write_exposed == costs.write, costs.read_exposed == costs.read) == (not waited, not waited)


@pytest.mark.parametrize(("threads", "is_hidden"), [(2.0, False), (1.8, False), (1.4, True), (1.0, True)])
def test_the_processors_that_steps_have_are_counted(threads, is_hidden, monkeypatch, tmp_path):
    """Of two processors steps of two threads leave none to those of a storage, and steps of one thread one."""
    clock, energy = timed(monkeypatch)
    monkeypatch.setattr(time, "process_time", lambda: threads * clock.now)
    monkeypatch.setattr(first, "count_processors", lambda: 2)
    monkeypatch.setattr(transfers, "_time_transfers", lambda *_: ([0.25, 0.25, 0.0, 0.125], False))
    with profile() as p:
        grad(energy, budget=Budget(memory=14 * U0.nbytes, disk=2**30, directory=tmp_path))(U0)
    costs = p.loops[0].plan.costs
    assert (costs.write_exposed, costs.read_exposed) == ((0.125, 0.0) if is_hidden else (costs.write, costs.read))


def test_a_transfer_that_was_slow_once_is_not_what_is_predicted(monkeypatch):
    """A state goes to the disk and back twice: what varies a little is averaged, what was slow once is not."""
    rounds = iter([([8.0, 4.0, 9.0, 1.0], True), ([7.0, 5.0, 1.0, 1.0], False)])
    monkeypatch.setattr(transfers, "_time_transfers", lambda *_: next(rounds))
    costs = with_transfers(Costs(), [U0], None, Quota(2**24))
    assert costs == Costs(write=7.5, read=5.5, write_exposed=1.0, read_exposed=1.0, prompt=True)


def test_a_time_that_was_not_measured_is_not_predicted():
    """A profile has no time beside the measured one where there were no costs: what keeps all steps is not timed."""
    with profile() as p:
        grad(lambda u: np.sum(timeloop(lambda u, _: u * u, u, 3)))(U0)
    (loop,) = p.loops
    assert not loop.plan.has_costs
    assert str(loop).splitlines()[-1].split()[:2] == ["time", "unknown"]
    assert "time            unknown" in str(loop.plan)


def test_what_others_give_up_is_no_part_of_a_step() -> None:
    """While the second loop's first step runs the first loop gives up states; both steps take the same."""
    u = np.linspace(0.2, 1.1, 1 << 17)

    def step(u: Any, i: int) -> Any:
        return u + 0.1 * np.sin(u) * np.cos(u)

    def f(u: Any) -> Any:
        return np.sum(np.cos(timeloop(step, np.sin(timeloop(step, u, 12)), 12)))

    with profile() as p:
        grad(f, budget=Budget(memory=30 * u.nbytes))(u)
    before, after = [loop.plan.sizes for loop in p.loops]
    assert before.run == after.run
    assert before.saved == after.saved
