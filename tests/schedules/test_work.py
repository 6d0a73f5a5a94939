"""How much a schedule looks at for an answer: not all that is stored, for each of its actions."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.loop.holding import ahead
from ebbtide.loop.holding.less import give_up_one
from ebbtide.schedules import (
    Action,
    Costs,
    Delete,
    Forward,
    Hierarchical,
    Mixed,
    Online,
    Periodic,
    Position,
    Revolve,
    Schedule,
    Snapshot,
    StoreAll,
)
from ebbtide.schedules.revolve import keep_best, split
from ebbtide.schedules.snapshots import Stack
from ebbtide.schedules.splits import divide_by_two


def count_calls(work: Callable[[], object]) -> int:
    """The calls of Python functions, and the turns of generators, in some work."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def follow(schedule: Schedule, position: Position, most: int) -> None:
    """Take so many actions, or all up to the end."""
    while most and (action := schedule.next_action(position)) is not None:
        position, most = position.after(action), most - 1


@pytest.fixture
def looked(monkeypatch):
    """The numbers of snapshots that were gone through one by one, where there are too many for a tuple."""
    found, through, back = list[int](), Stack.__iter__, Stack.__reversed__
    monkeypatch.setattr(Stack, "__iter__", lambda me: found.append(len(me)) or through(me))
    monkeypatch.setattr(Stack, "__reversed__", lambda me: found.append(len(me)) or back(me))
    return found


@pytest.mark.parametrize(
    ("schedule", "position"),
    [
        (Online(2000), Position(steps=10**6, open=True)),
        (Mixed(2000), Position(steps=900)),
        (Mixed(9000, 2, 3), Position(steps=900)),
        (StoreAll("disk"), Position(steps=900)),
        (Periodic(1, 1), Position(steps=900)),
    ],
    ids=repr,
)
def test_no_action_goes_through_all_that_is_stored(schedule, position, looked):
    """Where hundreds of slots fill and empty again, no answer looks at each snapshot."""
    follow(schedule, position, 1900 if position.open else -1)
    assert looked == []


@pytest.mark.parametrize("schedule", [StoreAll("disk"), Periodic(1, 1), Revolve(900)], ids=repr)
def test_counting_ahead_goes_through_nothing_for_each_action(schedule, looked):
    """What following a schedule takes is counted by what each action says that it changes."""
    Schedule.forward_steps_left(schedule, Position(steps=900))
    assert looked == []


@dataclass
class Plan:
    """What giving up asks of a plan."""

    schedule: Schedule


def left_without(position: Position, kept: Snapshot) -> int:
    """The steps that make a snapshot again from the restart state below it."""
    below = [one.step for one in position.snapshots if one.kind == "restart" and one.step < kept.step]
    return kept.step - max(below, default=0) + (kept.kind == "saved")


@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize("kind", [None, "saved", "restart"])
def test_what_is_given_up_is_what_the_fewest_steps_make_again(tier, kind):
    """Of all spare snapshots the first of those that take the fewest steps, one after the other, until none is left."""
    rows = [(k * k // 7 + k, ("restart", "saved")[k % 3 == 2], ("memory", "disk")[k % 5 == 3]) for k in range(60)]
    position = Position(steps=1000, snapshots=tuple([Snapshot(*row) for row in rows]))
    cheapest = ahead.Cheapest(tier, kind)
    spare = [one for one in ahead.find_spare(position, tier) if kind in (None, one.kind)]
    while spare:
        expected = min(spare, key=lambda kept: left_without(position, kept))
        assert cheapest.take(position) == expected
        spare.remove(expected)
        position = position.after(Delete(step=expected.step))
    assert cheapest.take(position) is None


def test_all_are_given_up_by_one_look():
    """What a loop gives up for the code after it is found by one look at all snapshots, not by one for each of them."""
    position = Position(steps=900, state=None, forward_ended=True, snapshots=tuple(map(Snapshot, range(800))))

    def give_up_all() -> None:
        nonlocal position
        rule = SimpleNamespace(position=position, plan=Plan(Online(800)), delete=lambda action: None)
        one = ahead.Cheapest()
        while give_up_one(rule, one):
            pass
        assert len(rule.position.snapshots) == 1

    assert count_calls(give_up_all) <= 800 * 100


def test_one_of_many_snapshots_is_given_up_by_few_sums():
    """With one slot less, or far fewer, a schedule compares each of hundreds of snapshots a few times."""
    position = Position(steps=3000, state=None, forward_ended=True, snapshots=tuple(map(Snapshot, range(0, 3000, 10))))
    for schedule in (Revolve(299), Revolve(100), Online(200), Hierarchical(100, 0), Periodic(5000, 100)):
        assert count_calls(lambda one=schedule: one.next_action(position)) <= 300 * 7


def surplus_of(schedule: Schedule, position: Position) -> Action | None:
    """The first action, the table of the schedule already made."""
    follow(schedule, Position(steps=position.steps), 1)
    count = count_calls(lambda: schedule.next_action(position))
    assert count <= len(position.snapshots) * 10
    return schedule.next_action(position)


@pytest.mark.parametrize(
    ("schedule", "tier"),
    [(Mixed(399), "memory"), (Mixed(1000, 3, 2), "memory"), (Hierarchical(2, 399, Costs(write=2, read=2)), "disk")],
    ids=str,
)
def test_one_of_many_snapshots_is_given_up_by_one_look_at_the_table(schedule, tier):
    """What is left without each of hundreds of snapshots is found for all of them at once."""
    held = tuple([Snapshot(10 * k, tier=tier) for k in range(400)])
    action = surplus_of(schedule, Position(steps=4100, state=4000, snapshots=held))
    assert isinstance(action, Delete)


def test_a_length_that_becomes_known_takes_few_sums_for_each_action():
    """With hundreds of snapshots the rest of the forward sweep looks at what changed, not at all that is stored."""
    schedule, held = Online(600), tuple([Snapshot(20 * k) for k in range(400)])
    position = Position(steps=20_000, state=8000, snapshots=held)
    while not isinstance(schedule.next_action(position), Forward):
        position = position.after(schedule.next_action(position))

    def go_on() -> None:
        nonlocal position
        for _ in range(150):
            position = position.after(schedule.next_action(position))

    assert count_calls(go_on) <= 150 * 80
    assert len(position.snapshots) > 500


@pytest.mark.parametrize("snapshots", [55, 52, 28, 10])
def test_one_snapshot_less_of_many_costs_about_the_least(snapshots):
    """What is given up one by one leaves no more than 1.02 times the steps that the best choice leaves each time."""
    schedule, held = Revolve(snapshots), tuple([Snapshot(k * k) for k in range(57)])
    position = best = Position(steps=3249, state=None, forward_ended=True, snapshots=held)
    while len(best.snapshots) > snapshots:
        steps = [kept.step for kept in best.snapshots]
        places = keep_best(steps, best.end, None, snapshots)
        best = best.after(Delete(step=next(step for place, step in enumerate(steps) if place not in places)))
    assert schedule.forward_steps_left(position) <= 1.02 * schedule.forward_steps_left(best)
    assert len(schedule.find_surplus(position)) >= 57 - snapshots


class Contested(list[Any]):
    """The tables of a schedule, where a shorter loop of another thread puts its own as soon as others are there."""

    def __init__(self, theirs: list[Any]) -> None:
        self.theirs = theirs

    def __setitem__(self, place: Any, tables: Any) -> None:
        super().__setitem__(slice(None), self.theirs)

    def append(self, table: Any) -> None:
        super().__setitem__(slice(None), self.theirs)


@pytest.mark.parametrize(
    "schedule", [Mixed(5), Hierarchical(2, 3, Costs(write=2, read=2))], ids=["Mixed", "Hierarchical"]
)
def test_loops_of_two_threads_may_share_a_schedule(schedule: Any) -> None:
    """A loop follows the table that it has made, whatever another one, of other steps, has put in its place."""
    steps = schedule.forward_steps(90)
    ours, theirs = copy.deepcopy(schedule), copy.deepcopy(schedule)
    theirs.predicted_time(9, Costs(write=2, read=2))
    object.__setattr__(ours, "_tables", Contested(list(theirs._tables)))
    assert ours.forward_steps(90) == steps


@pytest.mark.parametrize("schedule", [Mixed(3), Mixed(9, 4, 1), Hierarchical(2, 3), Hierarchical(0, 2)], ids=repr)
def test_first_actions_of_the_longest_loops_with_few_slots(schedule, monkeypatch):
    """Beyond the table thousands of places are found at once, not one by one for each of hundreds of sums."""
    for table in ("mixed_table", "hierarchical_table"):
        monkeypatch.setattr(f"ebbtide.schedules.{table}.MOST_STEPS", 2**10)
    # 348 thousand places at 1e8 steps with three slots, one by one.
    assert count_calls(lambda: follow(schedule, Position(steps=10**8), 2)) < 300_000


def test_places_found_at_once():
    """They are those that are found one by one, and what is in front of the last is no more than the rest."""
    for length in range(7, 600):
        lengths, places = divide_by_two(length, 2 + length % 5)
        expected, last = list[int](), length
        while last > 2 + length % 5:
            expected.append(last := split(last, 2))
        assert places.tolist() == expected
        assert lengths.tolist() == [before - after for before, after in pairwise([length, *expected])]
