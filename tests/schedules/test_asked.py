"""What schedules are asked: numbers of NumPy are numbers, and what is none is refused by all of them alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ebbtide import ScheduleError
from ebbtide.schedules import (
    Costs,
    EndForward,
    EndReverse,
    Forward,
    Hierarchical,
    Mixed,
    NoReverse,
    Online,
    Periodic,
    Recorded,
    Reverse,
    Revolve,
    StoreAll,
    action_to_json,
)

STEPS = 10
TRACE = (Forward(start=0, stop=10, save=True), EndForward(), Reverse(start=10, stop=0), EndReverse())
SCHEDULES = (
    StoreAll(), StoreAll("disk"), Revolve(5), Online(5), Mixed(5), Hierarchical(3, 3), Periodic(5, 3), NoReverse(),
    Recorded(STEPS, TRACE),
)  # fmt: skip
# Each question as a function of a schedule and a number of steps.
QUESTIONS = {
    "forward_steps": lambda schedule, steps: schedule.forward_steps(steps),
    "peak_snapshots": lambda schedule, steps: schedule.peak_snapshots(steps),
    "peak": lambda schedule, steps: schedule.peak(steps),
    "peak on disk": lambda schedule, steps: schedule.peak(steps, "disk", restart=3, saved=7),
    "predicted_time": lambda schedule, steps: schedule.predicted_time(steps, Costs(write=2, read=2)),
}
of_each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: type(one).__name__)


@of_each_schedule
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_steps_are_a_whole_number(schedule: Any, question: Any):
    """A number of NumPy gives the answer, and its type, of Python's; what is no number of steps is refused with it."""
    expected = question(schedule, STEPS)
    for steps in (np.int64(STEPS), np.uint8(STEPS), np.array(STEPS)):
        found = question(schedule, steps)
        assert found == expected
        assert type(found) is type(expected)
    for steps in (-1, 2.5, 10.0, "10", None, True, np.nan, [10], np.array([10])):
        with pytest.raises(ScheduleError, match="number of steps of a loop cannot be") as raised:
            question(schedule, steps)
        assert repr(steps) in str(raised.value)


@of_each_schedule
def test_sizes_and_tiers(schedule: Any):
    """A size is a number of at least 0, of NumPy too; an unknown tier is no tier in which nothing is held."""
    for wrong in (-1, "a", None, np.nan, np.inf, True):
        for name, what in (("restart", "a restart state"), ("saved", "what a step saves")):
            with pytest.raises(ScheduleError, match=f"The size of {what} cannot be {wrong!r}"):
                schedule.peak(STEPS, **{name: wrong})
    for tier in ("disc", "RAM", None, 3, ["disk"]):
        with pytest.raises(ScheduleError, match=r"no tier .*memory.*disk"):
            schedule.peak(STEPS, tier)
    # So large that the products do not fit their own type.
    sizes = {"restart": np.uint8(200), "saved": np.uint8(100)}
    assert schedule.peak(STEPS, **sizes) == schedule.peak(STEPS, restart=200, saved=100)


@of_each_schedule
@pytest.mark.parametrize("wrong", [3, None, "costs", {}])
def test_costs_and_positions(schedule: Any, wrong: Any):
    """A time needs costs, and what is left a position; another object is refused with what it is."""
    with pytest.raises(ScheduleError, match=f"costs of a loop cannot be {wrong!r}.*Give Costs"):
        schedule.predicted_time(STEPS, wrong)
    with pytest.raises(ScheduleError, match=f"{wrong!r} is no position.*Give a Position"):
        schedule.forward_steps_left(wrong)
    with pytest.raises(ScheduleError, match=f"{wrong!r} is no position.*Give a Position"):
        schedule.next_action(wrong)
    if isinstance(schedule, Revolve):
        with pytest.raises(ScheduleError, match=f"{wrong!r} is no position.*Give a Position"):
            schedule.find_surplus(wrong)


def test_steps_of_a_loop_with_an_open_end():
    """The number of steps after which a loop ends is one, too."""
    assert Online(5).forward_steps_open(np.int64(100)) == Online(5).forward_steps_open(100)
    for steps in (-1, 2.5, "10", None):
        with pytest.raises(ScheduleError, match="number of steps of a loop cannot be"):
            Online(5).forward_steps_open(steps)  # pyright: ignore[reportArgumentType]


def test_actions_are_actions():
    """What is no action has no form in JSON, and a trace is a sequence of them."""
    for wrong in (3, None, {"action": "Copy"}):
        with pytest.raises(ScheduleError, match=r"is no action\. Those are"):
            action_to_json(wrong)  # pyright: ignore[reportArgumentType]
    for wrong in (3, None):
        with pytest.raises(ScheduleError, match="actions of Recorded cannot be"):
            Recorded(2, wrong)  # pyright: ignore[reportArgumentType]
