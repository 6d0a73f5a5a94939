from __future__ import annotations

import pickle

import pytest

from ebbtide.errors import ScheduleError
from ebbtide.schedules import Costs, Forward, Move, Periodic, Position, Revolve, Snapshot
from ebbtide.testing import check_schedule


@pytest.mark.parametrize("interval", [1, 2, 3, 7])
@pytest.mark.parametrize("snapshots", [1, 2, 10])
def test_counts(interval, snapshots):
    """For n < 40 the steps, the transfers and the snapshots of both tiers are those that were predicted."""
    schedule = Periodic(interval, snapshots)
    for steps in range(40):
        count = check_schedule(schedule, steps, slots={"memory": snapshots})
        assert count.forward_steps == schedule.forward_steps(steps)
        assert count.peak_snapshots == schedule.peak_snapshots(steps)
        assert count.writes["disk"] == count.reads["disk"] == count.used["disk"] == schedule.peak(steps, "disk")
        assert count.snapshots_left == 0


def test_the_work_for_a_step_is_constant():
    """F/n at 1,000, 10,000 and 100,000 steps differs by less than 2%, and grows without periods on disk."""
    ratios = [Periodic(50, 10).forward_steps(steps) / steps for steps in (1_000, 10_000, 100_000)]
    assert max(ratios) < 1.02 * min(ratios)
    binomial = [Revolve(10).forward_steps(steps) / steps for steps in (1_000, 100_000)]
    assert binomial[1] > 1.5 * binomial[0]


def test_each_interval_is_binomial():
    """Within an interval no schedule takes fewer steps: the sum over them is that of Revolve, plus the first sweep."""
    within = Revolve(4).forward_steps(30)
    assert Periodic(30, 4).forward_steps(300) == 9 * (30 + within) + within


def test_transfers_are_hidden_behind_steps():
    """Transfers that take less time than the steps beside them add nothing; slower ones are what is waited for."""
    schedule = Periodic(20, 5)
    free = schedule.predicted_time(200, Costs())
    assert free == schedule.forward_steps(200) + 200
    assert schedule.predicted_time(200, Costs(write=20, read=20)) == free
    assert schedule.predicted_time(200, Costs(write=30)) == free + 9 * 10
    exposed = Costs(write=20, read=20, write_exposed=2, read_exposed=3)
    assert schedule.predicted_time(200, exposed) == free + 9 * (2 + 3)


def test_the_length_need_not_be_known():
    """While the loop is open the state is stored every interval; ended anywhere, the sweep is completed."""
    for length in (1, 9, 10, 11, 37, 40):
        position = Position(steps=1000, open=True)
        while position.open:
            action = Periodic(10, 3).next_action(position)
            assert action.start % 10 == 0
            assert action.snapshot
            assert action.tier == "disk"
            stop = min(action.stop, length)
            position = position.after(Forward(start=action.start, stop=stop, snapshot=True, tier="disk"))
            if stop == length:
                position = position.ended(length)
        count = check_schedule(Periodic(10, 3), length, start=position, slots={"memory": 3})
        assert count.forward_steps <= Periodic(10, 3).forward_steps(length)
        assert count.snapshots_left == 0


def test_a_lost_snapshot_is_stored_again():
    """When the sweep runs through an interval whose snapshot was lost, it stores it where it was."""
    held = (Snapshot(0, tier="disk"), Snapshot(20, tier="disk"))
    position = Position(steps=60, state=None, forward_ended=True, snapshots=held)
    count = check_schedule(Periodic(10, 3), 60, start=position, slots={"memory": 3})
    # At 30 and 40; from 50 and from 10 memory alone takes care of the rest.
    assert count.writes["disk"] == 2
    assert count.forward_steps == 30 + 10 + Periodic(10, 3).forward_steps(60) - 50


def test_a_snapshot_on_disk_is_moved():
    """The slot on disk of an interval is free as soon as its reversal begins."""
    held = (Snapshot(0, tier="disk"), Snapshot(10, tier="disk"))
    position = Position(steps=20, state=None, forward_ended=True, snapshots=held)
    assert Periodic(10, 3).next_action(position) == Move(step=10)


def test_it_is_a_value():
    """Equal, hashable and picklable."""
    assert Periodic(5, 2) == pickle.loads(pickle.dumps(Periodic(5, 2))) != Periodic(5, 3)
    assert len({Periodic(5, 2), Periodic(5, 2)}) == 1


@pytest.mark.parametrize(("interval", "snapshots"), [(0, 1), (1, 0), (-2, 3)])
def test_at_least_one_of_both(interval, snapshots):
    """Numbers below 1 are an error that names both."""
    with pytest.raises(ScheduleError, match=f"not {interval} and {snapshots}"):
        Periodic(interval, snapshots)


@pytest.mark.parametrize(("interval", "snapshots"), [(7, 3), (10, 6), (1, 1), (40, 5), (2, 1)])
@pytest.mark.parametrize("steps", [1, 5, 7, 8, 40, 57, 60])
def test_a_loop_that_may_end_takes_no_more_than_the_longest(interval, snapshots, steps):
    """At its upper bound it takes the disk, the memory and the steps of a known length; before, no more disk."""
    schedule = Periodic(interval, snapshots)
    found = check_schedule(schedule, steps, start=Position(steps=steps, open=True))
    assert found.forward_steps == schedule.forward_steps(steps)
    assert found.used.get("disk", 0) == schedule.peak(steps, "disk")
    for ends in range(1, steps):
        before = check_schedule(schedule, steps, start=Position(steps=steps, open=True), ends=ends)
        assert before.used.get("disk", 0) <= schedule.peak(steps, "disk")
        assert before.used.get("memory", 0) <= snapshots


def test_the_last_step_is_not_stored_where_others_took_all_slots():
    """It is saved as it runs: no state has to lie on disk for one step."""
    held = (Snapshot(0), Snapshot(3), Snapshot(5, "restart", "disk"))
    action = Periodic(4, 1).next_action(Position(steps=10, state=9, snapshots=held))
    assert action == Forward(start=9, stop=10, save=True)
