from __future__ import annotations

import functools
import math
import pickle
import random

import pytest
from tests.scale import FULL, sample

from ebbtide.errors import ScheduleError
from ebbtide.schedules import (
    Copy,
    EndForward,
    Forward,
    Move,
    Position,
    Reverse,
    Revolve,
    Snapshot,
    StoreAll,
)
from ebbtide.testing import check_schedule


def closed_form(steps, snapshots):
    """F = n + r n - C(s + r, s + 1) with r found by counting up."""
    repetitions = 0
    while math.comb(snapshots + repetitions, snapshots) < steps:
        repetitions += 1
    return steps + repetitions * steps - math.comb(snapshots + repetitions, snapshots + 1)


@functools.cache
def best(steps, snapshots):
    """The fewest unsaved runs by trying every place for the second snapshot."""
    if steps <= 1:
        return 0
    if snapshots == 1:
        return steps * (steps - 1) // 2
    return min(
        place + best(place, snapshots) + best(steps - place, snapshots - 1) for place in range(1, steps)
    )


def check(steps, snapshots):
    """Follow the schedule; all that is promised of it holds."""
    schedule = Revolve(snapshots)
    count = check_schedule(schedule, steps)
    assert count.forward_steps == schedule.forward_steps(steps) == closed_form(steps, snapshots)
    assert count.peak_snapshots == schedule.peak_snapshots(steps) <= snapshots
    assert count.snapshots_left == 0
    assert count.peak_saved <= 1


@pytest.mark.parametrize("low", range(0, 80, 20))
def test_every_small_case_takes_the_closed_form(low):
    """For every n < 80 and every s <= n the sweep takes exactly F forward steps and never more than s snapshots."""
    for steps in sample(range(low, low + 20), 3):
        for snapshots in range(1, max(2, steps + 1)):
            check(steps, snapshots)


@pytest.mark.parametrize("steps", range(80, 301) if FULL else [*range(80, 127, 9), *range(127, 300, 19), 300])
def test_larger_cases_take_the_closed_form(steps):
    """For n up to 300 the same, for s in all parts of 1 to n + 2; in a campaign for all of them."""
    parts = (1, 2, 3, 5, 8, 13, 30, steps // 2, steps - 1, steps, steps + 2)
    for snapshots in range(1, steps + 3) if FULL else parts:
        check(steps, snapshots)


def test_the_closed_form_is_the_optimum():
    """F is the result of a search over all places of all snapshots, for n <= 40 and s <= n + 1."""
    for steps in range(1, 41):
        for snapshots in range(1, steps + 2):
            assert Revolve(snapshots).forward_steps(steps) == steps + best(steps, snapshots)


def test_the_closed_form_for_all_larger_cases():
    """`forward_steps` finds the repetitions by bisection as counting up does, for every n <= 300, s <= n + 1."""
    for steps in range(301):
        for snapshots in range(1, steps + 2):
            assert Revolve(snapshots).forward_steps(steps) == closed_form(steps, snapshots)


@pytest.mark.parametrize(
    ("steps", "snapshots", "expected"),
    [(100, 5, 416), (1000, 5, 7284), (1000, 10, 4636), (10_000, 10, 67_624), (10_000, 50, 38_622)],
)
def test_published_values(steps, snapshots, expected):
    """The counts of other implementations of the algorithm."""
    assert check_schedule(Revolve(snapshots), steps).forward_steps == expected


@pytest.mark.parametrize("snapshots", [1, 2, 3, 10, 1000, 10**6, 10**9, 10**10])
def test_a_billion_steps(snapshots, monkeypatch):
    """An action for 1e9 steps takes few binomial coefficients, at the beginning and in the middle of a sweep."""
    calls = []

    def count(*arguments):
        """Count the calls."""
        calls.append(arguments)
        return math.comb(*arguments)

    monkeypatch.setattr("ebbtide.schedules.revolve.comb", count)
    schedule, position = Revolve(snapshots), Position(steps=10**9)
    for _ in range(5):
        action = schedule.next_action(position)
        assert isinstance(action, Forward)
        position = position.after(action)
        if position.state >= position.steps - 1:
            break
    schedule.next_action(Position(steps=10**9, state=None, snapshots=(Snapshot(0), Snapshot(10**8))))
    assert len(calls) < 6 * 70


def test_it_is_a_value():
    """Equal, hashable and picklable, and without state: the same position gives the same action."""
    schedule = Revolve(3)
    assert schedule == pickle.loads(pickle.dumps(schedule)) != Revolve(4)
    assert len({Revolve(3), schedule}) == 1
    position = Position(steps=20)
    assert schedule.next_action(position) == schedule.next_action(position)


def test_a_snapshot_is_moved_at_its_last_use():
    """The slot of a snapshot is free as soon as only its own step is left to run from it."""
    held = (Snapshot(0), Snapshot(4))
    position = Position(steps=6, reversed=1, state=None, forward_ended=True, snapshots=held)
    assert Revolve(2).next_action(position) == Move(step=4)
    earlier = Position(steps=6, state=None, forward_ended=True, snapshots=held)
    assert Revolve(2).next_action(earlier) == Copy(step=4)


def test_the_last_step_is_saved_in_the_forward_sweep():
    """The first sweep runs each step once: its last step is run with its values saved, then it ends."""
    position, total = Position(steps=50), 0
    while not isinstance(action := Revolve(4).next_action(position), EndForward):
        total += action.stop - action.start
        position = position.after(action)
    assert total == 50
    assert action == EndForward()
    assert position.saved == (49, 50)


def lose(position, generator):
    """The position after some of its snapshots but that of step 0, and perhaps the working state, are lost."""
    held = tuple(kept for kept in position.snapshots if kept.step == 0 or generator.random() < 0.6)
    # With the last step saved and its result lost the forward sweep has to be repeated; that is not predicted.
    keep = position.saved is not None or not held or generator.random() < 0.5
    state = position.state if keep else None
    record = position.to_json() | {
        "state": state,
        "snapshots": [[kept.step, kept.kind, kept.tier] for kept in held],
    }
    return Position.from_json(record)


@pytest.mark.parametrize("seed", range(30))
def test_lost_snapshots(seed):
    """From any position of a sweep, snapshots lost, it is completed in exactly the steps that were predicted."""
    generator = random.Random(seed)
    steps, snapshots = generator.randint(2, 150), generator.randint(1, 12)
    schedule, position = Revolve(snapshots), Position(steps=steps)
    for _ in range(generator.randint(1, 4 * steps)):
        action = schedule.next_action(position)
        if action is None:
            break
        position = position.after(action)
        damaged = lose(position, generator)
        if generator.random() < 0.1:
            count = check_schedule(schedule, steps, start=damaged)
            assert count.peak_snapshots <= snapshots
            assert count.forward_steps == schedule.forward_steps_left(damaged)
            assert count.snapshots_left == 0


@pytest.mark.parametrize("snapshots", [1, 2, 4, 9])
def test_an_interrupted_action_goes_on_at_no_cost(snapshots):
    """A working state anywhere on the way, as after a stop, leads to the same total as if nothing had happened."""
    schedule, steps = Revolve(snapshots), 60
    position, done = Position(steps=steps), 0
    while (action := schedule.next_action(position)) is not None:
        if isinstance(action, Forward):
            if action.stop - action.start > 1:
                action = Forward(start=action.start, stop=action.start + 1, snapshot=action.snapshot)
            done += 1
        position = position.after(action)
        assert done + schedule.forward_steps_left(position) == schedule.forward_steps(steps)


@pytest.mark.parametrize(("before", "after"), [(12, 4), (12, 1), (4, 12), (2, 3), (100, 5)])
def test_another_number_of_snapshots_midway(before, after):
    """A sweep begun with one number of snapshots ends with another, writes none above it, and leaves none."""
    position, taken = Position(steps=60), 0
    while (action := Revolve(before).next_action(position)) is not None:
        if taken % 7 == 0:
            count = check_schedule(Revolve(after), 60, start=position)
            assert count.peak_snapshots <= max(after, len(position.snapshots))
            assert count.snapshots_left == 0
        position, taken = position.after(action), taken + 1


def test_surplus_is_given_up_at_once():
    """Without the snapshots that `find_surplus` names the sweep keeps to the lower number from there on."""
    position = Position(steps=1000)
    while position.reversed < 100:
        position = position.after(Revolve(20).next_action(position))
    surplus = Revolve(10).find_surplus(position)
    assert len(position.snapshots) - len(surplus) == 10
    record = position.to_json()
    record["snapshots"] = [row for row in record["snapshots"] if row[0] not in surplus]
    lowered = Position.from_json(record)
    count = check_schedule(Revolve(10), 1000, start=lowered)
    assert count.peak_snapshots == 10
    assert count.forward_steps == Revolve(10).forward_steps_left(lowered)


def test_a_snapshot_beyond_the_end_is_given_up():
    """A snapshot of a step that is reversed already is deleted when the working state is replaced."""
    held = (Snapshot(0), Snapshot(7))
    position = Position(steps=10, reversed=4, state=None, forward_ended=True, snapshots=held)
    assert Revolve(2).find_surplus(position) == (7,)
    count = check_schedule(Revolve(2), 10, start=position)
    assert count.forward_steps == closed_form(6, 2)
    assert count.snapshots_left == 0


def test_store_all_can_be_left_midway():
    """Saved values that StoreAll left behind are used, in the forward and in the reverse sweep."""
    position = Position(steps=20).after(Forward(start=0, stop=8, save=True))
    assert check_schedule(Revolve(3), 20, start=position).forward_steps == 12
    while not position.forward_ended:
        position = position.after(StoreAll().next_action(position))
    position = position.after(Reverse(start=20, stop=13))
    assert check_schedule(Revolve(3), 20, start=position).forward_steps == 0


def test_the_initial_state_in_hand_is_not_lost():
    """If only the snapshot of step 0 is lost while its state is in hand, it is stored before another is loaded."""
    position = Position(steps=20, state=0, snapshots=(Snapshot(12),))
    assert Revolve(3).next_action(position) == Forward(start=0, stop=1, snapshot=True)
    assert check_schedule(Revolve(3), 20, start=position).peak_snapshots <= 3


@pytest.mark.parametrize(
    "position",
    [
        Position(steps=9, state=None),
        Position(steps=9, state=4),
        Position(steps=9, state=None, snapshots=(Snapshot(3),)),
        Position(steps=9, state=4, snapshots=(Snapshot(3),)),
        Position(steps=9, state=None, saved=(2, 4)),
    ],
)
def test_what_cannot_be_completed_is_refused_at_once(position):
    """Without a way back to step 0 the error comes before any work, and names what is held."""
    with pytest.raises(ScheduleError, match="Step 0 cannot be run again"):
        Revolve(2).next_action(position)


@pytest.mark.parametrize("snapshots", [0, -1])
def test_at_least_one_snapshot(snapshots):
    """No snapshot at all is an error with the number."""
    with pytest.raises(ScheduleError, match=f"not {snapshots}"):
        Revolve(snapshots)
