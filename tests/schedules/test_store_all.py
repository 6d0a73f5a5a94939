from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from ebbtide.errors import ScheduleError
from ebbtide.schedules import Costs, EndForward, EndReverse, Forward, Position, Reverse, Snapshot, StoreAll
from ebbtide.testing import check_schedule


def test_the_trace():
    """One run of all steps, and one reversal of all."""
    position, trace = Position(steps=4), []
    while (action := StoreAll().next_action(position)) is not None:
        trace.append(action)
        position = position.after(action)
    assert trace == [
        Forward(start=0, stop=4, save=True),
        EndForward(),
        Reverse(start=4, stop=0),
        EndReverse(),
    ]


@pytest.mark.parametrize("steps", [0, 1, 2, 100])
def test_counts(steps):
    """Each step runs once, all saved values are held at the end of the forward sweep, and no snapshot is stored."""
    count = check_schedule(StoreAll(), steps)
    assert count.forward_steps == StoreAll().forward_steps(steps) == steps
    assert count.peak_saved == steps
    assert sum(count.writes.values()) == count.peak_snapshots == StoreAll().peak_snapshots(steps) == 0


def test_it_goes_on_from_the_middle():
    """A sweep that was run in parts, forward and in reverse, is completed."""
    position = Position(steps=10).after(Forward(start=0, stop=3, save=True))
    assert StoreAll().next_action(position) == Forward(start=3, stop=10, save=True)
    assert check_schedule(StoreAll(), 10, start=position).forward_steps == 7
    position = position.after(Forward(start=3, stop=10, save=True)).after(EndForward())
    position = position.after(Reverse(start=10, stop=6))
    assert StoreAll().next_action(position) == Reverse(start=6, stop=0)


def test_it_refuses_what_it_cannot_complete():
    """Without the saved values of all earlier steps the error names those that are held."""
    with pytest.raises(ScheduleError, match="working state is that of step 3"):
        StoreAll().next_action(Position(steps=10, state=3))
    with pytest.raises(ScheduleError, match=r"at hand for \(4, 10\)"):
        StoreAll().next_action(Position(steps=10, state=None, saved=(4, 10), forward_ended=True))


def test_it_is_a_value():
    """Equal, hashable and picklable."""
    assert StoreAll() == pickle.loads(pickle.dumps(StoreAll()))
    assert len({StoreAll(), StoreAll()}) == 1


@pytest.mark.parametrize("steps", [0, 1, 2, 60])
def test_on_disk(steps):
    """With the tier disk each step but the last has a snapshot there, and one step's saved values are in memory."""
    schedule = StoreAll("disk")
    count = check_schedule(schedule, steps, slots={"memory": 0})
    assert count.forward_steps == steps
    assert count.writes["disk"] == count.reads["disk"] == schedule.peak_snapshots(steps) == max(0, steps - 1)
    assert count.peak_saved == min(1, steps)
    assert schedule.predicted_time(steps, Costs(write=3, read=4)) == 2 * steps + 7 * max(0, steps - 1)


def test_what_is_lost_on_disk_is_made_again():
    """With a state to run from, the steps up to a lost snapshot run again, and it is stored again."""
    held = tuple(Snapshot(step, "saved", "disk") for step in range(9) if step not in {2, 5})
    position = Position(steps=9, state=0, forward_ended=True, reversed=1, snapshots=held[:-1])
    count = check_schedule(StoreAll("disk"), 9, start=position)
    # Step 2 is stored on the way to step 5, whose saved values stay at hand.
    assert count.forward_steps == 6
    assert count.writes["disk"] == 1
    with pytest.raises(ScheduleError, match="Step 0 cannot be run again"):
        StoreAll("disk").next_action(replace(position, state=None))


def test_a_tier_is_memory_or_disk():
    """Another name is an error that lists both."""
    with pytest.raises(ScheduleError, match=r"'tape'.*'memory', 'disk'"):
        StoreAll("tape")
