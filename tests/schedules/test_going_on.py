from __future__ import annotations

import doctest
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.scale import FULL

from ebbtide.errors import ScheduleError
from ebbtide.schedules import (
    Costs,
    Delete,
    Forward,
    Hierarchical,
    Mixed,
    Move,
    Online,
    Periodic,
    Position,
    Revolve,
    Snapshot,
    StoreAll,
)
from ebbtide.testing import check_schedule

COSTS = st.sampled_from([Costs(), Costs(write=2, read=2), Costs(forward=3, write=1, read=7), Costs(write=50, read=9)])
REVOLVE = st.builds(Revolve, st.integers(1, 6))
MIXED = st.builds(Mixed, st.integers(5, 20), st.integers(1, 5), st.integers(1, 8))
HIERARCHICAL = st.builds(Hierarchical, st.integers(0, 4), st.integers(1, 5), COSTS)
PERIODIC = st.builds(Periodic, st.integers(1, 9), st.integers(1, 4))
STORE_ALL = st.builds(StoreAll, st.sampled_from(["memory", "disk"]))
EACH = {"revolve": REVOLVE, "mixed": MIXED, "hierarchical": HIERARCHICAL, "periodic": PERIODIC, "all": STORE_ALL}
ANY = st.one_of(*EACH.values())


def bounds(schedule):
    """The size that a schedule may store in each tier, and the sizes of the kinds of snapshot."""
    # All but Mixed count restart states; what another schedule saved takes slots, but may be more than there are.
    restart_states = {"restart": 1, "saved": 0}
    if isinstance(schedule, Revolve):
        return {"memory": schedule.snapshots, "disk": 0}, restart_states
    if isinstance(schedule, Mixed):
        return {"memory": schedule.units, "disk": 0}, {"restart": schedule.restart, "saved": schedule.saved}
    if isinstance(schedule, Hierarchical):
        return {"memory": schedule.memory, "disk": schedule.disk}, restart_states
    if isinstance(schedule, Periodic):
        return {"memory": schedule.snapshots}, restart_states
    return {"memory": 0}, restart_states


def can_go_on(position):
    """Whether each step can be run again, or has its saved values, without the working state, and the result be had."""
    restarts = [kept for kept in position.snapshots if kept.kind == "restart"]
    if not position.forward_ended and position.state is None and not restarts:
        return False
    held = {kept.step: kept.kind for kept in position.snapshots}
    first = 0
    while held.get(first) == "saved":
        first += 1
    end = position.end if position.saved is None else position.saved[0]
    return first >= end or held.get(first) == "restart"


def walk(schedule, steps, count):
    """The position after so many actions, the last of them interrupted half way if it runs many steps."""
    position = Position(steps=steps)
    for taken in range(count):
        action = schedule.next_action(position)
        if action is None:
            break
        if isinstance(action, Forward) and taken == count - 1 and action.stop > action.start + 1:
            action = replace(action, stop=(action.start + action.stop) // 2)
        position = position.after(action)
    return position


def lose(position, lost, with_state):
    """The position without some snapshots, and perhaps without the working state."""
    kept = tuple(one for place, one in enumerate(position.snapshots) if place not in lost)
    return replace(position, snapshots=kept, state=None if with_state else position.state)


def complete(schedule, position):
    """Follow a schedule to the end; all promises but the number of steps hold."""
    slots, sizes = bounds(schedule)
    count = check_schedule(schedule, position.steps, start=position, slots=slots, sizes=sizes)
    assert count.snapshots_left == 0
    return count


@pytest.mark.parametrize("kind", EACH)
def test_whatever_is_lost(kind):
    """With snapshots, the working state or slots lost the sweep is completed, and never more stored than may be."""

    @settings(max_examples=120, deadline=None)
    @given(EACH[kind], EACH[kind], st.integers(1, 40), st.integers(0, 160), st.sets(st.integers(1, 8)), st.booleans())
    def run(before, after, steps, actions, lost, with_state):
        position = lose(walk(before, steps, actions), lost, with_state)
        if can_go_on(position):
            complete(after, position)

    run()


@settings(max_examples=1500 if FULL else 300, deadline=None)
@given(ANY, ANY, st.integers(1, 30), st.integers(0, 120), st.sets(st.integers(1, 8)), st.booleans())
def test_another_schedule_takes_over(before, after, steps, actions, lost, with_state):
    """Any schedule completes what any other one left behind, with snapshots of either kind in either tier."""
    position = lose(walk(before, steps, actions), lost, with_state)
    if can_go_on(position):
        complete(after, position)


@settings(max_examples=120, deadline=None)
@given(ANY, st.data())
def test_any_position(schedule, data):
    """A position that no schedule has led to is completed, too, if its first step can be run again."""
    steps = data.draw(st.integers(1, 14))
    reversed_steps = data.draw(st.integers(0, steps))
    steps_held = data.draw(st.sets(st.integers(1, steps), max_size=8)) - {steps}
    kinds = st.tuples(st.sampled_from(["restart", "saved"]), st.sampled_from(["memory", "disk"]))
    position = Position(
        steps=steps,
        reversed=reversed_steps,
        forward_ended=reversed_steps > 0 or data.draw(st.booleans()),
        state=data.draw(st.none() | st.integers(0, steps)),
        snapshots=(Snapshot(0), *(Snapshot(step, *data.draw(kinds)) for step in sorted(steps_held))),
    )
    complete(schedule, position)


@settings(max_examples=1500 if FULL else 200, deadline=None)
@given(st.one_of(REVOLVE, HIERARCHICAL, PERIODIC), st.data())
def test_restart_states_among_saved_values_take_slots(schedule, data):
    """What a schedule may store is less by the restart states among saved values, from which steps can run again."""
    steps = data.draw(st.integers(3, 30))
    base = data.draw(st.integers(2, steps - 1))
    places = data.draw(st.sets(st.integers(1, base - 1), min_size=1, max_size=3))
    state = data.draw(st.none() | st.integers(0, steps))
    held = tuple(Snapshot(step, "restart" if step in places else "saved") for step in range(base))
    complete(schedule, Position(steps=steps, state=state, snapshots=held))


@pytest.mark.parametrize("schedule", [Online(1), Revolve(1)], ids=str)
@pytest.mark.parametrize(("state", "left"), [(27, 100), (20, 107), (None, 109)])
def test_a_restart_state_among_saved_values_is_the_way_back(schedule, state, left):
    """With one slot, that of a restart state among saved values, the steps above these run from it each time."""
    held = tuple(Snapshot(step, "restart" if step == 18 else "saved") for step in range(27))
    position = Position(steps=35, state=state, snapshots=held)
    count = check_schedule(schedule, 35, start=position, slots={"memory": 1}, sizes={"saved": 0})
    assert (count.forward_steps, count.peaks["restart", "memory"]) == (left, 1)


@settings(max_examples=120, deadline=None)
@given(ANY, st.integers(1, 40), st.integers(0, 160))
def test_what_is_left_is_predicted(schedule, steps, actions):
    """`forward_steps_left` is what is done from there on, and `forward_steps` what is done from the beginning."""
    position = walk(schedule, steps, actions)
    assert check_schedule(schedule, steps, start=position).forward_steps == schedule.forward_steps_left(position)
    assert check_schedule(schedule, steps).forward_steps == schedule.forward_steps(steps)


@settings(max_examples=3000 if FULL else 400, deadline=None)
@given(
    ANY,
    st.one_of(REVOLVE, ANY, st.builds(Online, st.integers(1, 5))),
    st.integers(1, 40),
    st.integers(0, 160),
    st.sets(st.integers(1, 8)),
    st.booleans(),
)
# States that are lost in the forward sweep, saved values at hand of its first steps, and more snapshots than slots.
@example(Revolve(3), Revolve(2), 42, 3, {1}, True)
@example(Revolve(4), Revolve(2), 40, 3, set(), False)
@example(Revolve(5), Revolve(1), 45, 4, set(), True)
@example(StoreAll(), Revolve(1), 45, 1, set(), False)
def test_what_is_left_is_predicted_of_any_position(before, after, steps, actions, lost, with_state):
    """`forward_steps_left` is what is done from there on, whatever another schedule left and what was lost of it."""
    position = lose(walk(before, steps, actions), lost, with_state)
    if can_go_on(position):
        count = check_schedule(after, steps, start=position)
        assert count.forward_steps == after.forward_steps_left(position)


@pytest.mark.parametrize(
    ("slots", "position", "left"),
    [
        (2, Position(steps=42, state=None, snapshots=(Snapshot(0), Snapshot(7))), 251),
        (1, Position(steps=45, state=13, saved=(0, 13)), 32),
        (4, Position(steps=14, state=11, snapshots=(Snapshot(0), Snapshot(1), Snapshot(2), Snapshot(4))), 30),
    ],
)
def test_what_is_left_is_what_following_takes(slots, position, left):
    """Where the closed form of Revolve does not hold it is followed until that does."""
    assert Revolve(slots).forward_steps_left(position) == left
    assert check_schedule(Revolve(slots), position.steps, start=position).forward_steps == left


@settings(max_examples=120, deadline=None)
@given(ANY, st.integers(0, 40), COSTS)
def test_times_are_predicted(schedule, steps, costs):
    """The time is that of all steps and transfers in line; of Periodic, which transfers behind the steps, no more."""
    count = check_schedule(schedule, steps)
    in_line = costs.time(
        forward=count.forward_steps, reverse=steps, writes=count.writes["disk"], reads=count.reads["disk"]
    )
    predicted = schedule.predicted_time(steps, costs)
    assert predicted <= in_line * (1 + 1e-12)
    if not isinstance(schedule, Periodic):
        assert predicted == pytest.approx(in_line, rel=1e-12)


@settings(max_examples=120, deadline=None)
@given(ANY, st.integers(0, 40), st.integers(1, 9), st.integers(1, 9))
def test_peaks_are_predicted(schedule, steps, restart, saved):
    """The peaks that a schedule tells are those of following it; Mixed tells a bound if sizes are not its own."""
    count = check_schedule(schedule, steps, sizes={"restart": restart, "saved": saved})
    assert count.used["disk"] == schedule.peak(steps, "disk", restart=restart, saved=saved)
    peak = schedule.peak(steps, restart=restart, saved=saved)
    at_hand = saved * count.peak_saved
    assert max(count.used["memory"], at_hand) <= peak
    if not isinstance(schedule, Mixed):
        assert peak <= count.used["memory"] + at_hand
        assert count.peak_snapshots == schedule.peak_snapshots(steps)


@pytest.mark.parametrize("low", [10, 4, 1])
def test_fewer_slots_midway(low):
    """From 20 to fewer slots at step 500 of 1000: never above the lower number, and for 10 at most 4690 steps."""
    position, done = Position(steps=1000), 0
    while position.state is None or position.state < 500:
        action = Revolve(20).next_action(position)
        # The number of slots is lowered at step 500 exactly, in the middle of an action.
        action = replace(action, stop=min(500, action.stop))
        position, done = position.after(action), done + action.stop - action.start
    for step in Revolve(low).find_surplus(position):
        position = position.after(Delete(step=step))
    count = check_schedule(Revolve(low), 1000, start=position, slots={"memory": low})
    assert count.peak_snapshots <= low
    assert done + count.forward_steps >= Revolve(low).forward_steps(1000)
    if low == 10:
        assert done + count.forward_steps <= 4690


@pytest.mark.parametrize(
    "schedule", [Mixed(2), Hierarchical(1, 1), Periodic(3, 2), StoreAll(), StoreAll("disk")], ids=str
)
@pytest.mark.parametrize(
    "position",
    [
        Position(steps=9, state=None),
        Position(steps=9, state=4),
        Position(steps=9, state=None, snapshots=(Snapshot(3),)),
        Position(steps=9, state=4, snapshots=(Snapshot(3),)),
        Position(steps=9, state=None, snapshots=(Snapshot(0, "saved"), Snapshot(3))),
        Position(steps=9, state=None, saved=(2, 4)),
    ],
)
def test_what_cannot_be_completed_is_refused_at_once(schedule, position):
    """Without a way back to step 0 the error comes before any work, and names what is held."""
    with pytest.raises(ScheduleError, match="Step 0 cannot be run again"):
        schedule.next_action(position)


@pytest.mark.parametrize(
    "schedule", [Mixed(2), Hierarchical(1, 1), Hierarchical(1, 0), Periodic(3, 2), StoreAll()], ids=str
)
def test_the_initial_state_in_hand_is_not_lost(schedule):
    """If only the snapshot of step 0 is lost while its state is in hand, the sweep is completed all the same."""
    position = Position(steps=20, state=0, snapshots=(Snapshot(12), Snapshot(14)))
    complete(schedule, position)


def test_the_page_on_schedules_runs():
    """The sessions of docs/schedules.md print what the page says."""
    page = Path(__file__).parents[2] / "docs" / "schedules.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert failed == 0
    assert tried > 5


@settings(max_examples=200, deadline=None)
@given(ANY, st.integers(0, 60))
def test_an_undisturbed_sweep_deletes_nothing(schedule, steps):
    """Each snapshot is moved at its last use: what is stored is read, and nothing has to be given up."""
    position = Position(steps=steps)
    while (action := schedule.next_action(position)) is not None:
        assert not isinstance(action, Delete)
        position = position.after(action)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Mixed(20), Mixed(10)),
        (Mixed(20, 1, 3), Mixed(10, 1, 3)),
        (Hierarchical(5, 20, Costs(write=2, read=2)), Hierarchical(5, 10, Costs(write=2, read=2))),
        (Hierarchical(10, 10, Costs(write=2, read=2)), Hierarchical(10, 0, Costs(write=2, read=2))),
    ],
    ids=str,
)
def test_slots_are_given_up_for_the_steps_ahead(before, after):
    """Lowered at step 500 of 1000, the sweep takes at most 5% more steps than with the lower number from the start."""
    position, done = Position(steps=1000), 0
    while position.state is None or position.state < 500:
        action = before.next_action(position)
        action = replace(action, stop=max(action.start + 1, min(500, action.stop)))
        position, done = position.after(action), done + action.stop - action.start
    slots, sizes = bounds(after)
    count = check_schedule(after, 1000, start=position, slots=slots, sizes=sizes)
    assert done + count.forward_steps <= 1.05 * after.forward_steps(1000)


RESTARTS = (Revolve(3), Online(3), Hierarchical(2, 2, Costs(write=1, read=1)), Periodic(3, 3))


@pytest.mark.parametrize("schedule", [*RESTARTS, Mixed(3), StoreAll("disk")], ids=str)
@pytest.mark.parametrize("done", [1, 5, 9])
def test_the_initial_state_given_again_above_saved_steps(schedule, done):
    """Of a run that was killed the saved values of first steps are there, and the initial state is in hand again."""
    position = Position(steps=10)
    while position.state < done:
        position = position.after(StoreAll("disk").next_action(position))
    position = Position(steps=10, state=0, snapshots=position.snapshots)
    count = check_schedule(schedule, 10, start=position, slots={"memory": 3})
    assert 10 <= count.forward_steps <= 10 + check_schedule(schedule, 10).forward_steps


@pytest.mark.parametrize("schedule", [*RESTARTS, Mixed(3), StoreAll(), StoreAll("disk")], ids=str)
def test_saved_values_in_the_middle_and_the_initial_state_in_hand(schedule):
    """The initial state is stored before it is run from, as nothing else leads back to the first steps."""
    check_schedule(schedule, 6, start=Position(steps=6, state=0, saved=(2, 3)))


@pytest.mark.parametrize("schedule", [Revolve(2), Online(2), Hierarchical(2, 0), Periodic(200, 2), Mixed(2)], ids=str)
def test_fewer_slots_when_the_first_is_lost(schedule):
    """The initial state takes a slot, and where all are taken a later snapshot gives its own."""
    position = Position(steps=100)
    while position.reversed < 1:
        position = position.after(Revolve(5).next_action(position))
    left = Position(steps=100, reversed=1, state=0, forward_ended=True, snapshots=position.snapshots[1:])
    check_schedule(schedule, 100, start=left, slots={"memory": 2})


@pytest.mark.parametrize("slots", [20, 22, 25, 29])
@pytest.mark.parametrize("kind", ["revolve", "online", "hierarchical", "periodic", "mixed"])
def test_what_others_saved_takes_slots(kind, slots):
    """A budget that is changed midway is kept: saved values that are there already leave fewer slots."""
    schedule = {
        "revolve": Revolve(slots),
        "online": Online(slots),
        "hierarchical": Hierarchical(slots, 0),
        "periodic": Periodic(100, slots),
        "mixed": Mixed(slots),
    }[kind]
    position = Position(steps=30)
    while position.state < 19:
        position = position.after(Mixed(29).next_action(position))
    assert len(position.snapshots) == 19
    check_schedule(schedule, 30, start=position, slots={"memory": slots})


def test_what_others_saved_on_disk_takes_slots_there():
    """So it is on disk, and one slot in all is left, for the state that leads to the steps behind."""
    position = Position(steps=30)
    while position.state < 4:
        position = position.after(StoreAll("disk").next_action(position))
    schedule = Hierarchical(2, 6, Costs(write=0.1, read=0.1))
    count = check_schedule(schedule, 30, start=position, slots={"memory": 2, "disk": 6})
    assert count.used["disk"] == 6


@pytest.mark.parametrize("schedule", [*RESTARTS, Mixed(6), StoreAll()], ids=str)
@pytest.mark.parametrize("first", [0, 2])
def test_the_initial_state_in_hand_below_a_restart_state(schedule, first):
    """What leads to the steps between saved ones and the first restart state is the state in hand, and is run there."""
    held = (*[Snapshot(step, "saved") for step in range(3)], Snapshot(9))
    count = check_schedule(schedule, 12, start=Position(steps=12, state=first, snapshots=held))
    assert count.snapshots_left == 0


@pytest.mark.parametrize("schedule", [*RESTARTS, Mixed(6), StoreAll()], ids=str)
def test_what_is_lost_above_saved_steps_is_told_of_the_loop(schedule):
    """A refusal has the numbers of the loop, and not of its part above the steps that are saved."""
    held = (Snapshot(0, "saved"), Snapshot(1, "saved"), Snapshot(9))
    with pytest.raises(ScheduleError, match=r"is that of step 3, .*\(9, 'restart'\)\].*, and 12 of 12 steps are not"):
        schedule.next_action(Position(steps=12, state=3, snapshots=held))


@pytest.mark.parametrize("schedule", RESTARTS, ids=str)
def test_what_the_last_step_saved_is_not_made_again(schedule):
    """Its snapshot is loaded; that of an earlier step, behind one that has none, is given up for its room."""
    held = Position(steps=10, state=None, forward_ended=True, snapshots=(Snapshot(0), Snapshot(9, "saved")))
    assert schedule.next_action(held) == Move(step=9)
    assert schedule.next_action(replace(held, snapshots=(Snapshot(0), Snapshot(8, "saved")))) == Delete(step=8)


FIRST = tuple([Snapshot(k, "saved") for k in range(3)])
GAPS = [
    (Revolve(6), Position(steps=3, state=0, saved=(1, 2), snapshots=(Snapshot(2, "restart", "disk"),)), "memory"),
    (Revolve(1), Position(steps=6, state=0, saved=(3, 4), snapshots=(Snapshot(2),)), "memory"),
    (Mixed(17), Position(steps=5, snapshots=tuple([Snapshot(k, "saved", "disk") for k in range(1, 5)])), "memory"),
    (StoreAll("disk"), Position(steps=5, saved=(1, 3), snapshots=(Snapshot(3, "saved", "disk"),)), "disk"),
    (Periodic(8, 2), Position(steps=5, saved=(2, 3), snapshots=(Snapshot(3, "saved", "disk"),)), "disk"),
    (Hierarchical(2, 3), Position(steps=3, saved=(2, 3), snapshots=(Snapshot(1, "saved"),)), "disk"),
    (Hierarchical(0, 3), Position(steps=2, saved=(1, 2)), "disk"),
    (Hierarchical(2, 0), Position(steps=9, saved=(5, 6), snapshots=(Snapshot(2), Snapshot(3))), "memory"),
    (Revolve(2), Position(steps=9, state=2, saved=(5, 6), snapshots=FIRST), "memory"),
]


@pytest.mark.parametrize(("schedule", "position", "tier"), GAPS, ids=lambda one: one if isinstance(one, str) else None)
def test_a_state_in_hand_is_kept_where_it_is_the_only_way_back(schedule, position, tier):
    """Before saved values at hand it is stored once, whatever other snapshots there are, in a tier of the schedule."""
    stored = list[str]()
    while (action := schedule.next_action(position)) is not None and not stored:
        stored += [action.tier] if isinstance(action, Forward) and action.snapshot else []
        position = position.after(action)
    assert stored == [tier]
    assert check_schedule(schedule, position.steps, start=position).snapshots_left == 0
