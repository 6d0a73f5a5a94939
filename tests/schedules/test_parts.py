"""Schedules in parts: a loop whose restart states lie elsewhere is reversed from any position, with all the room."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.schedules import (
    Costs,
    Forward,
    Hierarchical,
    Mixed,
    Online,
    Periodic,
    Position,
    Reverse,
    Revolve,
    Snapshot,
    StoreAll,
)
from ebbtide.schedules.parts import Parts
from ebbtide.schedules.revolve import count_forward
from ebbtide.testing import check_schedule

SCHEDULES = (
    StoreAll(), StoreAll("disk"), Revolve(1), Revolve(3), Mixed(6), Hierarchical(1, 2, Costs(write=1.0, read=1.0)),
    Periodic(5, 2), Online(3),
)  # fmt: skip
STARTS = st.sets(st.integers(1, 39), max_size=6).map(sorted).map(tuple)


def follow(schedule, position):
    """Follow a schedule to the end: the forward steps, and the most snapshots in memory."""
    ran = most = 0
    while (action := schedule.next_action(position)) is not None:
        position = position.after(action)
        ran += action.stop - action.start if isinstance(action, Forward) else 0
        most = max(most, sum(kept.tier == "memory" for kept in position.snapshots))
        assert ran < 10_000
    assert position.finished
    return ran, most


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(SCHEDULES), STARTS, st.integers(0, 40), st.booleans(), st.integers(0, 39))
def test_any_place_of_a_killed_run_can_be_completed(schedule, starts, state, ended, lost):
    """From any place in either sweep, with any restart states up to it and one of them lost, the loop is completed."""
    kept = tuple(Snapshot(step, "restart", "disk") for step in (0, *starts) if step <= min(state, 39))
    kept = tuple(one for one in kept if one.step in {0} or one.step != lost)
    position = Position(steps=40, state=state, snapshots=kept)
    if ended:
        position = replace(position, state=None, forward_ended=True, reversed=40 - max(state, 1))
        position = replace(position, snapshots=tuple(one for one in kept if one.step < position.end))
    follow(Parts(schedule, starts), position)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_without_states_elsewhere_it_is_the_schedule(schedule):
    """Where no state lies elsewhere the trace is that of the schedule."""
    assert check_schedule(Parts(schedule, ()), 40) == check_schedule(schedule, 40)


def test_each_part_has_all_slots():
    """The forward steps are the sum of those of the parts, each by the closed form of a loop of its own."""
    starts = (100, 250, 600)
    kept = tuple(Snapshot(step, "restart", "disk") for step in (0, *starts))
    position = Position(steps=1000, state=None, forward_ended=True, snapshots=kept)
    ran, most = follow(Parts(Revolve(10), starts), position)
    assert ran == sum(count_forward(stop - start, 10) for start, stop in pairwise((0, *starts, 1000)))
    assert most == 9


def test_steps_that_are_saved_are_not_cut():
    """While saved values at hand reach below a start, the part goes on below it."""
    kept = Snapshot(0), Snapshot(5, "restart", "disk")
    position = Position(steps=9, state=9, saved=(3, 9), forward_ended=True, snapshots=kept)
    assert Parts(StoreAll(), (5,)).next_action(position) == Reverse(start=9, stop=3)
