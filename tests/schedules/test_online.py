from __future__ import annotations

import json
import pickle
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import ScheduleError
from ebbtide.schedules import (
    Copy,
    Delete,
    EndForward,
    Forward,
    Online,
    Position,
    Revolve,
    Snapshot,
    StoreAll,
    action_from_json,
    action_to_json,
)
from ebbtide.schedules.revolve import count_forward
from ebbtide.testing import check_schedule

FAR = 10**6


def run_until(schedule, stop, position=None, most=FAR):
    """The position of an open loop at step `stop`, and the steps that were run; never too many snapshots."""
    position = Position(steps=most, open=True) if position is None else position
    run = 0
    while position.state != stop:
        action = schedule.next_action(position)
        if isinstance(action, Forward):
            action = replace(action, stop=min(action.stop, stop))
            run += action.stop - action.start
        before, position = len(position.snapshots), position.after(action)
        assert len(position.snapshots) <= max(schedule.snapshots, before)
    return position, run


def forward_steps(schedule, steps):
    """All forward steps of a loop that ends, to its own surprise, after `steps` steps; by following the schedule."""
    count = check_schedule(
        schedule, FAR, start=Position(steps=FAR, open=True), ends=steps, slots={"memory": schedule.snapshots}
    )
    assert count.snapshots_left == 0
    assert count.peak_saved <= 1
    return count.forward_steps


def every_length(schedule, most):
    """The forward steps of a loop that ends after n steps, for each n up to `most`; one forward sweep serves all."""
    position = Position(steps=FAR, open=True)
    for steps in range(1, most + 1):
        position, _ = run_until(schedule, steps, position)
        yield steps, steps + count_left(schedule, position.ended(steps))


def count_left(schedule, position):
    """The forward steps from the end of the forward sweep on, by the sum over the intervals of what it keeps."""
    while isinstance(action := schedule.next_action(position), (EndForward, Delete)):
        position = position.after(action)
    return Revolve(schedule.snapshots).forward_steps_left(position)


@pytest.mark.parametrize("snapshots", [1, 2, 3, 5, 8, 10, 20])
def test_close_to_the_optimum_where_that_is_possible(snapshots):
    """For every n <= (s + 1)(s + 2)/2 at most 3 forward steps more than with the length known."""
    offline = Revolve(snapshots)
    for steps, count in every_length(Online(snapshots), (snapshots + 1) * (snapshots + 2) // 2):
        assert offline.forward_steps(steps) + (steps > 2) <= count <= offline.forward_steps(steps) + 3 * (steps > 2)


@pytest.mark.parametrize(("snapshots", "bound"), [(5, 1.067), (10, 1.023), (20, 1.006)])
def test_every_length_to_1500(snapshots, bound):
    """For every n <= 1500 F is within 1.2 of the optimum, and within the bound for n > (s + 1)(s + 2)/2."""
    offline = Revolve(snapshots)
    for steps, count in every_length(Online(snapshots), 1500):
        ratio = count / offline.forward_steps(steps)
        assert ratio <= 1.2
        assert ratio <= bound or steps <= (snapshots + 1) * (snapshots + 2) // 2


CELLS = [
    (100, 5, 423),
    (100, 10, 326),
    (100, 20, 280),
    (100, 50, 250),
    (1000, 5, 7389),
    (1000, 10, 4732),
    (1000, 20, 3751),
    (1000, 50, 2950),
    (10_000, 5, 123_386),
    (10_000, 10, 67_756),
    (10_000, 20, 48_398),
    (10_000, 50, 38_626),
]


@pytest.mark.parametrize(("steps", "snapshots", "expected"), CELLS)
def test_the_cells(steps, snapshots, expected):
    """The prediction for n and s of the published tables is the number found, within 1.15 of the optimum."""
    assert Online(snapshots).forward_steps_open(steps) == expected
    assert expected <= 1.15 * Revolve(snapshots).forward_steps(steps)


@pytest.mark.parametrize(("steps", "snapshots", "expected"), [*CELLS, *((n, 3, None) for n in range(1, 40))])
def test_what_is_predicted_is_what_it_takes(steps, snapshots, expected):
    """Followed action by action it takes what `forward_steps_open` says, and never holds more than s snapshots."""
    predicted = Online(snapshots).forward_steps_open(steps)
    assert forward_steps(Online(snapshots), steps) == predicted
    assert expected in (None, predicted)


@given(st.integers(0, 120), st.integers(1, 12), st.lists(st.integers(0, 120), max_size=4))
@settings(deadline=None)
def test_lost_snapshots(steps, snapshots, losses):
    """Whatever is lost but the way back to step 0, at whatever steps, the loop is completed within its slots."""
    schedule, position = Online(snapshots), Position(steps=FAR, open=True)
    for at in sorted(losses):
        position, _ = run_until(schedule, min(at, steps), position)
        kept = tuple(one for one in position.snapshots if one.step == 0 or one.step % 3 == at % 3)
        position = replace(position, snapshots=kept, state=None if at % 2 and kept else position.state)
    position, _ = run_until(schedule, steps, position)
    assert len(position.snapshots) <= snapshots
    count = check_schedule(schedule, steps, start=position.ended(steps), slots={"memory": snapshots})
    assert count.snapshots_left == 0


@given(st.integers(2, 200), st.integers(1, 12), st.integers(1, 7))
@settings(deadline=None)
def test_an_interrupted_action_goes_on_at_no_cost(steps, snapshots, part):
    """A loop that stops after every few steps and is asked again stores the same snapshots."""
    schedule = Online(snapshots)
    position, at = Position(steps=FAR, open=True), 0
    while at < steps:
        at = min(at + part, steps)
        position, _ = run_until(schedule, at, position)
        assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position
    assert position == run_until(schedule, steps)[0]


@pytest.mark.parametrize(("before", "after"), [(10, 4), (4, 10), (1, 5), (5, 1)])
def test_another_number_of_snapshots_midway(before, after):
    """Slots taken away are given up before anything else is stored, new ones are filled."""
    position, _ = run_until(Online(before), 300)
    first = Online(after).next_action(position)
    assert isinstance(first, Delete) == (before > after)
    position, _ = run_until(Online(after), 800, position)
    assert len(position.snapshots) == after
    check_schedule(Online(after), 800, start=position.ended(800), slots={"memory": after})


@pytest.mark.parametrize("slots", [1, 2, 6, 15])
@pytest.mark.parametrize("stop", [90, 263])
def test_of_far_too_many_the_cheapest_is_given_up(slots, stop):
    """Each deletion leaves the fewest forward steps, also where more snapshots are too many than there are slots."""
    position, _ = run_until(Online(22), stop)
    while len(position.snapshots) > slots:
        held = [kept.step for kept in position.snapshots]
        left = []
        for gone in held[1:]:
            ends = [*(step for step in held if step != gone), max(stop, held[-1])]
            left.append(sum(count_forward(b - a, slots - k) for k, (a, b) in enumerate(pairwise(ends)) if b > a))
        assert Online(slots).next_action(position) == Delete(step=held[1 + left.index(min(left))])
        position = position.after(Online(slots).next_action(position))


def test_few_steps_more_with_slots_added_midway():
    """Slots that come at half of the way leave less work than without them."""
    position, _ = run_until(Online(5), 500)
    wide, _ = run_until(Online(10), 1000, position)
    narrow, _ = run_until(Online(5), 1000, position)
    assert count_left(Online(10), wide.ended(1000)) < 0.8 * count_left(Online(5), narrow.ended(1000))


@pytest.mark.parametrize("snapshots", [1, 2, 5, 20])
@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 50, 300])
def test_the_upper_bound_ends_the_loop(most, snapshots):
    """A loop that reaches its upper bound saves its last step at once: never more work than if it ended unforeseen."""
    start = Position(steps=most, open=True)
    count = check_schedule(Online(snapshots), most, start=start, slots={"memory": snapshots})
    assert count.peak_snapshots <= Online(snapshots).peak_snapshots(most)
    assert count.snapshots_left == 0
    # One or two steps are the fewest in any case.
    assert count.forward_steps < Online(snapshots).forward_steps_open(most) + (most <= 2)


@pytest.mark.parametrize(("steps", "snapshots"), [(1, 1), (10, 3), (100, 5), (300, 10)])
def test_a_known_length_is_binomial(steps, snapshots):
    """Of a loop of known length it makes the optimum, from the beginning."""
    count = check_schedule(Online(snapshots), steps, slots={"memory": snapshots})
    assert count.forward_steps == Online(snapshots).forward_steps(steps) == Revolve(snapshots).forward_steps(steps)


def test_a_length_that_becomes_known_early():
    """Told its length midway, the loop goes on better than if it had to find out."""
    position, run = run_until(Online(10), 300)
    known = replace(position, steps=1000, open=False)
    count = check_schedule(Online(10), 1000, start=known, slots={"memory": 10})
    assert run + count.forward_steps < Online(10).forward_steps_open(1000)


def test_snapshots_that_hold_a_slot_in_vain_are_given_up():
    """Where the first steps hold all slots, they are freed as soon as the length is known, and work is saved."""
    held = tuple(Snapshot(step) for step in range(5))
    position = Position(steps=200, state=200, snapshots=held)
    assert Online(5).next_action(position) == EndForward()
    ended = position.after(EndForward())
    assert isinstance(Online(5).next_action(ended), Delete)
    alone = check_schedule(Revolve(5), 200, start=position).forward_steps
    assert check_schedule(Online(5), 200, start=position).forward_steps < alone / 10


def test_few_evaluations_of_closed_forms(monkeypatch):
    """A step of the loop takes few closed forms on average, also with many snapshots."""
    import ebbtide.schedules.thinning as module

    calls, count = [], module.count
    monkeypatch.setattr(module, "count", lambda *arguments: calls.append(None) or count(*arguments))
    run_until(Online(50), 3000)
    assert 0 < len(calls) <= 3000 * 50


@settings(max_examples=100)
@given(st.integers(3, 12), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30)), max_size=60))
def test_what_it_remembers_changes_no_answer(snapshots, turns):
    """Whoever deletes or stores something else than it said is answered as by one that was never asked before."""
    schedule, position = Online(snapshots), Position(steps=FAR, open=True)
    for turn, number in turns:
        for _ in range(number):
            action = Online(snapshots).next_action(position)
            assert schedule.next_action(position) == action
            position = position.after(action)
        schedule.next_action(position)
        held = [kept.step for kept in position.snapshots]
        if turn == 1 and len(held) > 2:
            position = position.after(Delete(step=held[1 + number % (len(held) - 1)]))
        elif turn == 2 and position.state is not None and held[-1] < position.state and len(held) < snapshots:
            position = position.after(Forward(start=position.state, stop=position.state + number, snapshot=True))
        elif turn == 3:
            position = Position.from_json(json.loads(json.dumps(position.to_json())))
        elif turn == 4 and position.state is not None:
            position = position.after(Forward(start=position.state, stop=position.state + number))


def test_saved_values_where_it_said_to_store_a_state_change_no_answer():
    """They lie at the step that it remembers, and are no state from which the steps after it could run again."""
    schedule, position = Online(3), Position(steps=FAR, open=True)
    for _ in range(2):
        position = position.after(schedule.next_action(position))
    assert schedule.next_action(position) == Forward(start=2, stop=3, snapshot=True, drop=True)
    position = position.after(Forward(start=2, stop=3, snapshot=True, kind="saved", drop=True))
    assert schedule.next_action(position) == Online(3).next_action(position) == Delete(step=2)


def test_the_states_that_it_keeps():
    """All first steps are stored, two are saved; then the first snapshot that can be spared gives its slot."""
    position, trace = Position(steps=FAR, open=True), []
    for _ in range(6):
        trace.append(Online(3).next_action(position))
        position = position.after(trace[-1])
    assert trace == [
        Forward(start=0, stop=1, snapshot=True, save=True),
        Forward(start=1, stop=2, snapshot=True, save=True, drop=True),
        Forward(start=2, stop=3, snapshot=True, drop=True),
        Delete(step=1),
        Forward(start=3, stop=4, snapshot=True),
        Delete(step=2),
    ]
    assert [action_from_json(json.loads(json.dumps(action_to_json(one)))) for one in trace] == trace


@pytest.mark.parametrize("snapshots", [1, 2, 5])
def test_what_the_first_steps_save_is_kept_until_the_next_one_runs(snapshots):
    """One and two steps run as often as if that had been known, with one step saved at a time and one state."""
    start = Position(steps=FAR, open=True)
    for steps, state in ((1, 1), (2, 2)):
        count = check_schedule(Online(snapshots), FAR, start=start, ends=steps, slots={"memory": min(snapshots, state)})
        assert count.forward_steps == Revolve(snapshots).forward_steps(steps) == 2 * steps - 1
        assert count.peak_saved == 1
    position, _ = run_until(Online(snapshots), 3)
    assert position.saved is None


def test_saved_values_at_hand_of_another_schedule_are_given_up():
    """Where the length is unknown saved values are many: with a way back to step 0 they are dropped."""
    position = Position(steps=99, state=6, saved=(2, 6), open=True, snapshots=(Snapshot(0),))
    action = Online(3).next_action(position)
    assert (action.drop, action.save) == (True, False)
    assert position.after(action).saved is None
    assert check_schedule(Online(3), 99, start=position, ends=20, slots={"memory": 3}).peak_saved == 4


def test_a_working_state_that_is_lost_is_loaded():
    """Without a working state the forward sweep goes on from the latest snapshot."""
    position = Position(steps=100, state=None, open=True, snapshots=(Snapshot(0), Snapshot(7)))
    assert Online(3).next_action(position) == Copy(step=7)


@pytest.mark.parametrize("steps", [3, 4, 9])
@pytest.mark.parametrize("state", [None, 0])
def test_the_last_step_of_an_open_loop_may_run_again(steps, state):
    """With one state the checker counts a forward sweep, and all that reverses it, also from a lost working state."""
    held = (Snapshot(0),) if state is None else ()
    position = Position(steps=10, state=state, open=True, snapshots=held)
    whole = steps + steps * (steps + 1) // 2
    assert check_schedule(Online(1), 10, start=position, ends=steps).forward_steps == whole


def test_an_initial_state_in_hand_gets_a_slot():
    """If the snapshot of step 0 is lost while its state is in hand, it is stored again, in place of another."""
    position = Position(steps=100, open=True, snapshots=(Snapshot(4), Snapshot(7)))
    assert Online(3).next_action(position) == Forward(start=0, stop=1, snapshot=True)
    assert Online(2).next_action(position) == Delete(step=4)


def test_saved_values_of_another_schedule_in_slots_are_given_up():
    """While the loop is open a slot is worth more with a restart state."""
    held = (Snapshot(0), Snapshot(1, "saved"))
    assert Online(3).next_action(Position(steps=9, state=2, open=True, snapshots=held)) == Delete(step=1)


@pytest.mark.parametrize("first", [1, 2, 10])
@pytest.mark.parametrize("snapshots", [2, 5, 20])
def test_first_steps_that_are_saved_stay_so(first, snapshots):
    """Where no state leads back to them, the steps behind take as many forward steps as a loop of their own."""
    position = Position(steps=FAR, open=True)
    while position.state < first:
        position = position.after(StoreAll("disk").next_action(position))
    count = check_schedule(Online(snapshots), FAR, start=position, ends=first + 500, slots={"memory": snapshots})
    assert count.forward_steps == Online(snapshots).forward_steps_open(500)
    assert (count.reads["disk"], count.writes["disk"], count.snapshots_left) == (first, 0, 0)


@pytest.mark.parametrize(("state", "held"), [(2, ()), (None, (Snapshot(2),)), (3, (Snapshot(2),))])
def test_values_of_first_steps_at_hand_are_kept_where_nothing_leads_back(state, held):
    """Then all steps behind them are saved, too, each of which runs once."""
    position = Position(steps=99, state=state, saved=(0, 2), open=True, snapshots=held)
    count = check_schedule(Online(3), 99, start=position, ends=20)
    assert (count.forward_steps, count.peak_saved) == (18, 20)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (Position(steps=9, state=4, open=True), "Step 0 cannot be run again"),
        (Position(steps=9, state=4, open=True, snapshots=(Snapshot(3),)), r"held of the steps \[3\]"),
        (Position(steps=9, state=4, saved=(2, 4), open=True), r"\(2, 4\) are saved"),
        (Position(steps=9, state=4), "Step 0 cannot be run again"),
    ],
)
def test_what_cannot_be_completed_is_refused_at_once(position, reason):
    """Without a way back to step 0, or with values saved too early, the error names what is held."""
    with pytest.raises(ScheduleError, match=reason):
        Online(2).next_action(position)


@pytest.mark.parametrize("snapshots", [0, -1])
def test_at_least_one_snapshot(snapshots):
    """No snapshot at all is an error with the number."""
    with pytest.raises(ScheduleError, match=f"not {snapshots}"):
        Online(snapshots)


def test_it_is_a_value():
    """Equal, hashable and picklable, and without state: the same position gives the same action."""
    schedule = Online(3)
    assert schedule == pickle.loads(pickle.dumps(schedule)) != Online(4)
    assert len({Online(3), schedule}) == 1
    assert schedule != Revolve(3)
    position = Position(steps=20, open=True)
    assert schedule.next_action(position) == schedule.next_action(position)


def test_the_end_of_a_loop_is_told_to_the_checker():
    """With `ends=` the loop is one of unknown length, whoever gives no position to start from."""
    assert check_schedule(Online(3), 50, ends=7).forward_steps == 18
    with pytest.raises(ScheduleError, match="an open one"):
        check_schedule(Online(3), 50, ends=7, start=Position(steps=50))
