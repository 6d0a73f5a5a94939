from __future__ import annotations

import pickle

import pytest

from ebbtide.errors import ScheduleError
from ebbtide.schedules import Costs, EndForward, Forward, NoReverse, Position
from ebbtide.testing import check_schedule


@pytest.mark.parametrize("steps", [0, 1, 7])
@pytest.mark.parametrize("still_open", [False, True])
def test_the_trace(steps, still_open):
    """One run of all steps that stores and saves nothing, and the end."""
    position, trace = Position(steps=steps, open=still_open), []
    while not position.forward_ended:
        trace.append(NoReverse().next_action(position))
        position = position.after(trace[-1])
        assert position.snapshots == ()
        assert position.saved is None
    assert trace == [*([Forward(start=0, stop=steps)] if steps else []), EndForward()]


def test_a_loop_that_ends_early():
    """Of unknown length, it ends where it ends."""
    position = Position(steps=10**9, open=True).after(Forward(start=0, stop=12)).ended(12)
    assert NoReverse().next_action(position) == EndForward()


def test_it_goes_on_from_the_middle():
    """A run in parts is completed."""
    position = Position(steps=10, state=4)
    assert NoReverse().next_action(position) == Forward(start=4, stop=10)
    assert NoReverse().forward_steps_left(position) == 6


def test_reversing_is_refused():
    """Asked for what comes after the forward sweep, it says that nothing was kept, and what to give instead."""
    with pytest.raises(ScheduleError, match=r"loop of 5 steps.*nothing was kept.*Revolve"):
        check_schedule(NoReverse(), 5)
    with pytest.raises(ScheduleError, match="no working state"):
        NoReverse().next_action(Position(steps=5, state=None))


def test_predictions():
    """Each step runs once, and no tier holds anything."""
    assert NoReverse().forward_steps(100) == 100
    assert NoReverse().forward_steps_left(Position(steps=3, state=3, forward_ended=True)) == 0
    assert NoReverse().peak_snapshots(100) == NoReverse().peak(100, restart=8, saved=9) == 0
    assert NoReverse().peak(100, "disk") == 0
    assert NoReverse().predicted_time(10, Costs(forward=2.0, reverse=5.0)) == 20.0


def test_it_is_a_value():
    """Equal, hashable and picklable."""
    assert NoReverse() == pickle.loads(pickle.dumps(NoReverse()))
    assert len({NoReverse(), NoReverse()}) == 1
