from __future__ import annotations

import json
import pickle
from copy import copy, deepcopy
from dataclasses import replace

import numpy as np
import pytest

from ebbtide.errors import ScheduleError
from ebbtide.schedules import (
    Copy,
    Costs,
    Delete,
    EndForward,
    EndReverse,
    Forward,
    Hierarchical,
    Mixed,
    Move,
    NoReverse,
    Online,
    Periodic,
    Position,
    Recorded,
    Reverse,
    Revolve,
    Snapshot,
    StoreAll,
    action_from_json,
    action_to_json,
    schedule_from_json,
    schedule_to_json,
)
from ebbtide.testing import check_schedule


def walk(schedule, steps):
    """All pairs of a position and the action that follows it."""
    position = Position(steps=steps)
    while (action := schedule.next_action(position)) is not None:
        yield position, action
        position = position.after(action)
    yield position, EndReverse()


SCHEDULES = [StoreAll(), StoreAll("disk"), Revolve(3), Mixed(3), Hierarchical(2, 2), Periodic(4, 2), Online(3)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_round_trips(schedule):
    """Every position and action of a sweep is the same after pickle and after JSON of plain values."""
    for position, action in walk(schedule, 12):
        assert pickle.loads(pickle.dumps(position)) == position
        assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position
        again = Position.from_json(position.to_json())
        assert (again.on_disk, again.saved_snapshots) == (position.on_disk, position.saved_snapshots)
        assert hash(Position.from_json(position.to_json())) == hash(position)
        assert pickle.loads(pickle.dumps(action)) == action
        assert action_from_json(json.loads(json.dumps(action_to_json(action)))) == action


def test_numbers_of_numpy_are_pythons():
    """Numbers may be NumPy's; what is written as JSON is plain, and what is no whole number is refused."""
    three = np.int64(3)
    made = [Revolve(three), Mixed(three), Hierarchical(three, three), Periodic(three, three), Online(three)]
    plain = [Revolve(3), Mixed(3), Hierarchical(3, 3), Periodic(3, 3), Online(3)]
    assert [json.dumps(schedule_to_json(one)) for one in made] == [json.dumps(schedule_to_json(one)) for one in plain]
    position = Position(steps=np.int32(7), reversed=np.uint8(2), state=np.int64(4), forward_ended=np.True_)
    plain = Position(steps=7, reversed=2, state=4, forward_ended=True)
    assert json.dumps(position.to_json()) == json.dumps(plain.to_json())
    for schedule in made:
        actions = [action for _, action in walk(schedule, np.int64(9))]
        assert json.dumps([action_to_json(action) for action in actions])
    for wrong in (2.5, True, "3", None):
        for make in (Revolve, Mixed, Online, lambda n: Periodic(2, n), lambda n: Hierarchical(n, 1)):
            with pytest.raises(ScheduleError, match="Give a whole number"):
                make(wrong)
        with pytest.raises(ScheduleError, match="Give a whole number"):
            Position.from_json(Position(steps=4).to_json() | {"steps": wrong})
        with pytest.raises(ScheduleError, match="Give a whole number"):
            schedule_from_json({"schedule": "Revolve", "snapshots": wrong})


def test_after_leaves_the_position_as_it_is():
    """`after` is pure: the old position is unchanged and gives the same result again."""
    position = Position(steps=5)
    action = Forward(start=0, stop=2, snapshot=True, save=True)
    assert position.after(action) == position.after(action)
    assert position == Position(steps=5)


def test_forward():
    """`Forward` moves the working state, stores a snapshot in its place and lengthens the saved range."""
    position = Position(steps=9, state=3, saved=(1, 3), snapshots=(Snapshot(0), Snapshot(6)))
    after = position.after(Forward(start=3, stop=5, snapshot=True, save=True))
    assert (after.state, after.saved) == (5, (1, 5))
    assert after.snapshots == (Snapshot(0), Snapshot(3), Snapshot(6))


def test_reverse_drops_what_no_step_needs():
    """`Reverse` consumes saved values and a working state beyond the steps left, and keeps an earlier one."""
    position = Position(steps=9, state=9, saved=(2, 9), forward_ended=True, snapshots=(Snapshot(1),))
    after = position.after(Reverse(start=9, stop=4))
    assert (after.end, after.state, after.saved) == (4, None, (2, 4))
    early = position.after(Copy(step=1)).after(Reverse(start=9, stop=2))
    assert (early.end, early.state, early.saved) == (2, 1, None)
    # A state at the new end is none that a remaining step can start from.
    assert replace(position, state=4).after(Reverse(start=9, stop=4)).state is None


def test_loads():
    """`Copy` keeps the snapshot, `Move` deletes it."""
    position = Position(steps=9, state=None, snapshots=(Snapshot(0), Snapshot(4)))
    assert position.after(Copy(step=4)) == Position(steps=9, state=4, snapshots=position.snapshots)
    assert position.after(Move(step=0)) == Position(steps=9, state=0, snapshots=(Snapshot(4),))


def test_delete():
    """`Delete` frees a slot of either kind and loads nothing."""
    position = Position(steps=9, state=5, snapshots=(Snapshot(0), Snapshot(4, "saved", "disk")))
    assert position.after(Delete(step=4)) == Position(steps=9, state=5, snapshots=(Snapshot(0),))
    assert position.after(Delete(step=0)).snapshots == (Snapshot(4, "saved", "disk"),)


def test_saved_values_in_a_snapshot():
    """A step's saved values go to a slot instead of being at hand, and come to hand again without the state."""
    store = Forward(start=4, stop=5, snapshot=True, kind="saved", tier="disk")
    position = Position(steps=9, state=4, snapshots=(Snapshot(0),)).after(store)
    assert (position.state, position.saved) == (5, None)
    assert position.snapshots == (Snapshot(0), Snapshot(4, "saved", "disk"))
    assert position.after(Copy(step=4)) == replace(position, saved=(4, 5))
    moved = position.after(Move(step=4))
    assert moved == replace(position, saved=(4, 5), snapshots=(Snapshot(0),))
    both = replace(moved, snapshots=(Snapshot(3, "saved"), Snapshot(5, "saved")))
    assert both.after(Move(step=3)).saved == (3, 5)
    assert both.after(Move(step=5)).saved == (4, 6)


def test_an_open_position_is_ended():
    """The length becomes known where the loop ends, or at the upper bound; then the forward sweep can be ended."""
    position = Position(steps=100, open=True).after(Forward(start=0, stop=7, snapshot=True))
    ended = position.ended(7)
    assert (ended.steps, ended.open, ended.state) == (7, False, 7)
    assert ended.after(EndForward()).forward_ended
    whole = position.after(Forward(start=7, stop=100)).after(EndForward())
    assert (whole.steps, whole.open) == (100, False)


@pytest.mark.parametrize(
    ("position", "at", "reason"),
    [
        (Position(steps=9, state=7), 7, "not open"),
        (Position(steps=9, state=7, open=True), 8, "working state is that of step 7"),
        (Position(steps=9, state=7, open=True, snapshots=(Snapshot(7),)), 7, "snapshot of step 7"),
    ],
)
def test_a_wrong_end_is_refused(position, at, reason):
    """A loop ends at the step of its working state, while it is open, and holds nothing of later steps."""
    with pytest.raises(ScheduleError, match=reason):
        position.ended(at)


LATE = {"steps": 9, "reversed": 5, "forward_ended": True}
REVERSING = {"steps": 9, "forward_ended": True, "saved": (7, 9), "state": 9, "snapshots": (Snapshot(0),)}


@pytest.mark.parametrize(
    ("position", "action", "reason"),
    [
        (Position(steps=9), Forward(start=1, stop=2), "working state is that of step 0"),
        (Position(steps=9, state=None), Forward(start=0, stop=2), "working state is that of step None"),
        (Position(steps=9), Forward(start=0, stop=10), "stop <= 9"),
        (Position(steps=9), Forward(start=0, stop=0), "start < stop"),
        (Position(steps=9, snapshots=(Snapshot(0),)), Forward(start=0, stop=2, snapshot=True), "already has"),
        (Position(steps=9, state=4, saved=(1, 3)), Forward(start=4, stop=5, save=True), r"\(1, 3\), and a gap"),
        (Position(steps=9, state=2, saved=(1, 3)), Forward(start=2, stop=3, save=True), r"\(1, 3\), and a gap"),
        (Position(steps=9), Copy(step=0), r"no snapshot of step 0, only of \[\]"),
        (Position(steps=9, snapshots=(Snapshot(3),)), Move(step=2), r"no snapshot of step 2, only of \[3\]"),
        (Position(steps=9), EndForward(), "step 0 of 9"),
        (Position(**REVERSING), EndForward(), "forward_ended is True"),
        (Position(steps=9, state=9, saved=(7, 9)), Reverse(start=9, stop=8), "has not ended"),
        (Position(**REVERSING), Reverse(start=8, stop=7), "next step to reverse is 8"),
        (Position(**REVERSING), Reverse(start=9, stop=9), "start = 9 > stop"),
        (Position(**REVERSING), Reverse(start=9, stop=6), r"held for the steps \(7, 9\)"),
        (Position(**REVERSING), EndReverse(), "9 of 9 steps are not yet reversed"),
        (Position(steps=0, forward_ended=True, finished=True), EndReverse(), "finished"),
        (Position(steps=9), Forward(start=0, stop=2, snapshot=True, kind="saved"), "stop=1, save=False"),
        (Position(steps=9), Forward(start=0, stop=1, snapshot=True, save=True, kind="saved"), "not kept at hand"),
        (Position(steps=9), Forward(start=0, stop=1, snapshot=True, kind="tape"), "one of"),
        (Position(steps=9), Forward(start=0, stop=1, snapshot=True, tier="cloud"), "one of"),
        (Position(steps=9, snapshots=(Snapshot(1, "saved"),), saved=(3, 4)), Move(step=1), "no neighbor"),
        (Position(steps=9, snapshots=(Snapshot(3, "saved"),), saved=(3, 4)), Move(step=3), "no neighbor"),
        (Position(**LATE, snapshots=(Snapshot(6, "saved"),)), Copy(step=6), "already reversed"),
        (Position(**LATE, snapshots=(Snapshot(4, "saved"),)), Move(step=4), "already reversed"),
        (Position(steps=9), Delete(step=3), "no snapshot of step 3"),
    ],
)
def test_wrong_actions_are_refused(position, action, reason):
    """An action that cannot be followed raises, with the numbers that stand against it."""
    with pytest.raises(ScheduleError, match=reason):
        position.after(action)


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": -1},
        {"steps": 3, "reversed": 4},
        {"steps": 3, "state": 4},
        {"steps": 3, "saved": (2, 2)},
        {"steps": 3, "reversed": 2, "saved": (1, 2), "forward_ended": True},
        {"steps": 3, "reversed": 1},
        {"steps": 3, "finished": True},
        {"steps": 0, "finished": True},
        {"steps": 3, "reversed": 2, "forward_ended": True, "finished": True},
    ],
)
def test_impossible_positions_are_refused(fields):
    """Numbers outside of the loop raise when the position is made."""
    with pytest.raises(ScheduleError):
        Position(**fields)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": None},
        {"snapshots": [[2, "restart", "memory"], [1, "restart", "memory"]]},
        {"snapshots": [[9, "restart", "memory"]]},
        {"snapshots": [[1]]},
        {"snapshots": [[1, "tape", "memory"]]},
        {"snapshots": [[1, "saved", "cloud"]]},
        {"saved": [1]},
        {"saved": [3, 9]},
        {"saved": [1, 2, 3]},
        {"finished": True},
        {"reversed": 1},
    ],
)
def test_damaged_json_is_refused(change):
    """A record with missing fields or numbers that do not fit raises `ScheduleError`."""
    record = Position(steps=5).to_json() | change
    with pytest.raises(ScheduleError):
        Position.from_json(record)
    del record["state"]
    with pytest.raises(ScheduleError):
        Position.from_json(record)


@pytest.mark.parametrize(
    "record",
    [{}, {"action": "Jump"}, {"action": "Copy"}, {"action": "Copy", "step": "3"}, {"action": "Copy", "start": 3},
     {"action": "Copy", "step": True}, {"action": "Forward", "start": 0, "stop": 1, "tier": 1}],
)
def test_damaged_actions_are_refused(record):
    """A record of no action, or with other fields than its own, raises `ScheduleError`."""
    with pytest.raises(ScheduleError, match="record"):
        action_from_json(record)


class Scripted:
    """A schedule that says what it was told to say, and repeats the last action for ever."""

    def __init__(self, *actions):
        self.actions = list(actions)

    def next_action(self, position):
        return self.actions.pop(0) if len(self.actions) > 1 else self.actions[0]


RUN = Forward(start=0, stop=3, snapshot=True, save=True)
FIRST = Forward(start=0, stop=1, snapshot=True, kind="saved")


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([Forward(start=1, stop=3)], "Action 0 .*working state is that of step 0"),
        ([Forward(start=0, stop=4)], "steps below 3"),
        ([RUN, Reverse(start=3, stop=0)], "Action 1 .*not ended"),
        ([RUN, EndForward(), Reverse(start=2, stop=1)], "next step to reverse is 2"),
        ([Forward(start=0, stop=3), EndForward(), Reverse(start=3, stop=0)], "no saved values of step 2"),
        ([Copy(step=0)], "Action 0 .*are stored"),
        ([RUN, Copy(step=0)], "again and again"),
        ([RUN, EndForward(), EndReverse()], "3 steps are not reversed"),
        ([RUN, EndForward(), None], "3 of 3 steps are not reversed"),
        ([RUN, EndForward(), Reverse(start=3, stop=0), EndReverse(), EndReverse()], "finished"),
        ([EndForward()], "said before, or the working state is that of step 0"),
        ([RUN, EndForward(), EndForward()], "Action 2 .*said before"),
        ([RUN, Copy(step=0), RUN], "Action 2 .*there is a snapshot already"),
        ([replace(RUN, tier="tape")], r"none can be in \('restart', 'tape'\)"),
        ([replace(RUN, stop=1, kind="saved")], "of one step, not kept at hand too"),
        ([FIRST, Forward(start=1, stop=2), Forward(start=2, stop=3, save=True), Copy(step=0)], "a gap would open"),
        ([RUN, *9 * [Copy(step=0), Forward(start=0, stop=2)]], "more than 9 forward steps are of no use"),
        (["no action"], "it is no action"),
    ],
)
def test_the_checker_finds_wrong_traces(actions, reason):
    """`check_schedule` refuses a trace that cannot be followed or does not end, and names the action."""
    with pytest.raises(ScheduleError, match=reason):
        check_schedule(Scripted(*actions), 3)


def test_the_checker_takes_saved_values_in_a_row():
    """Saved values of several steps may be loaded one after the other, as they are kept at hand together."""
    store = [Forward(start=step, stop=step + 1, snapshot=True, kind="saved") for step in range(3)]
    first = [Forward(start=3, stop=4, save=True), EndForward(), Reverse(start=4, stop=3)]
    load = [Copy(step=2), Copy(step=1), Copy(step=0), Reverse(start=3, stop=0), EndReverse()]
    count = check_schedule(Recorded(4, (*store, *first, *load)), 4)
    assert (count.reads["memory"], count.peak_saved, count.snapshots_left) == (3, 3, 3)


def test_the_checker_takes_different_states_in_a_row():
    """A trace may load states that it does not use, as long as it comes to an end."""
    store = [Forward(start=step, stop=step + 1, snapshot=True) for step in range(4)]
    last = [EndForward(), *[Copy(step=step) for step in (3, 1, 2, 0)]]
    for end in range(4, 0, -1):
        last += [Copy(step=end - 1), Forward(start=end - 1, stop=end, save=True), Reverse(start=end, stop=end - 1)]
    count = check_schedule(Scripted(*store, *last, EndReverse(), None), 4)
    assert (count.forward_steps, count.reads["memory"], count.snapshots_left) == (8, 8, 4)
    turns = [*store, EndForward(), *[Copy(step=step) for step in 4 * (3, 1)]]
    with pytest.raises(ScheduleError, match=r"Action 9 .*again and again"):
        check_schedule(Scripted(*turns), 4)


def test_counts_are_values():
    """What was counted is compared, hashed, copied and pickled, and cannot be changed."""
    count = check_schedule(Hierarchical(2, 3, Costs(write=2, read=2)), 80)
    for again in (copy(count), deepcopy(count), pickle.loads(pickle.dumps(count))):
        assert again == count
        assert hash(again) == hash(count)
    assert dict(count.used) == count.used == {"memory": 2, "disk": 3}
    assert repr(count.used) == "{'memory': 2, 'disk': 3}"
    with pytest.raises(TypeError):
        count.used["disk"] = 4


@pytest.mark.parametrize(
    "asked",
    [
        *[{"sizes": {"restart": wrong}} for wrong in (-1, np.nan, np.inf, "3", True, None)],
        *[{"slots": {"memory": wrong}} for wrong in (-1, np.nan, "3")],
        *[{name: wrong} for name in ("slots", "sizes") for wrong in (3, "memory", [("memory", 3)])],
        *[{"start": wrong} for wrong in (3, {"steps": 9}, "start")],
        *[{"schedule": wrong} for wrong in (Revolve, 3, None)],
        {"ends": "3"},
        {"ends": 1.5},
    ],
    ids=str,
)
def test_what_the_checker_is_not_asked_for_is_refused(asked):
    """An argument of a wrong type or value is an error that says what to give."""
    with pytest.raises(ScheduleError, match=r"Give|Name some of"):
        check_schedule(**{"schedule": Revolve(3), "steps": 9, **asked})


@pytest.mark.parametrize(
    ("slots", "sizes", "reason"),
    [({"memory": 2}, None, "memory would hold 3"), ({"memory": 5}, {"restart": 2}, "memory would hold 6")],
)
def test_the_checker_counts_what_each_tier_holds(slots, sizes, reason):
    """More in a tier than it may hold is refused, in slots or in units."""
    with pytest.raises(ScheduleError, match=reason):
        check_schedule(Revolve(3), 50, slots=slots, sizes=sizes)


def test_the_checker_counts_kinds_and_tiers():
    """Writes, reads and peaks are told for each tier and each kind of snapshot."""
    count = check_schedule(Hierarchical(2, 3, Costs(write=2, read=2)), 80)
    assert count.peaks["restart", "disk"] == count.used["disk"] == 3
    assert count.peaks["restart", "memory"] == count.used["memory"] == 2
    assert count.writes == {"memory": 34, "disk": 6}
    assert count.reads == {"memory": 70, "disk": 9}
    assert check_schedule(Mixed(4), 80).peaks["saved", "memory"] == 4


@pytest.mark.parametrize(
    "schedule",
    [
        Revolve(5), Mixed(12, 1, 3), Periodic(10, 4), Online(7), StoreAll(), StoreAll("disk"), NoReverse(),
        Hierarchical(2, 9, Costs(forward=0.5, reverse=1.25, write=3.0, read=2.0)),
    ],
    ids=repr,
)  # fmt: skip
def test_schedules_survive_json(schedule):
    """A schedule that was written as JSON and read again is equal, and so is its next action."""
    again = schedule_from_json(json.loads(json.dumps(schedule_to_json(schedule))))
    assert again == schedule
    assert again.next_action(Position(steps=30)) == schedule.next_action(Position(steps=30))


@pytest.mark.parametrize(
    "record",
    [{}, {"schedule": "Magic"}, {"schedule": "Revolve"}, {"schedule": "Revolve", "slots": 3},
     {"schedule": "Hierarchical", "memory": 1, "disk": 1, "costs": 5},
     {"schedule": "Hierarchical", "memory": 1, "disk": 1, "costs": {"forth": 1.0}}],
    ids=repr,
)  # fmt: skip
def test_records_of_no_schedule_are_refused(record):
    """A record that no schedule fits is an error that says so."""
    with pytest.raises(ScheduleError, match="The record"):
        schedule_from_json(record)


def test_traces_have_no_json():
    """A recorded trace, which may be long, is refused."""
    trace = Forward(start=0, stop=1, save=True), EndForward(), Reverse(start=1, stop=0), EndReverse()
    with pytest.raises(ScheduleError, match="no form in JSON"):
        schedule_to_json(Recorded(1, trace))


def test_plain_numbers_whoever_gives_them():
    """NumPy's integers and floats are Python's own wherever they are given, so that JSON knows them."""
    k = np.int64
    position = Position(steps=k(5), state=k(2), saved=(k(0), k(2)), snapshots=(Snapshot(k(0)), Snapshot(k(1), "saved")))
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position
    action = Forward(start=k(0), stop=k(2))
    assert action_from_json(json.loads(json.dumps(action_to_json(action)))) == action
    schedule = Hierarchical(1, 1, Costs(write=np.float32(2), read=k(3), reverse=np.longdouble(2)))
    assert schedule_from_json(json.loads(json.dumps(schedule_to_json(schedule)))) == schedule


WRONG = {
    "unsorted": lambda: Position(steps=5, snapshots=(Snapshot(3), Snapshot(0))),
    "twice": lambda: Position(steps=5, snapshots=(Snapshot(3), Snapshot(3))),
    "negative": lambda: Position(steps=5, snapshots=(Snapshot(-1),)),
    "beyond": lambda: Position(steps=5, snapshots=(Snapshot(5),)),
    "kind": lambda: Position(steps=5, snapshots=(Snapshot(1, "x"),)),
    "no snapshot": lambda: Position(steps=5, snapshots=(1,)),
    "range": lambda: Position(steps=5, saved=(0, 1, 2)),
    "fraction": lambda: Forward(start=0, stop=1.5),
    "no action": lambda: Position(steps=0, forward_ended=True).after("no action"),
    "flag": lambda: Position.from_json({**Position(steps=5).to_json(), "forward_ended": "no"}),
    "step in JSON": lambda: Position.from_json({**Position(steps=5).to_json(), "snapshots": [[1.5, "saved", "disk"]]}),
    "no record": lambda: Position.from_json(None),
    "no record of an action": lambda: action_from_json([1]),
    "no record of a schedule": lambda: schedule_from_json([1]),
    "cost": lambda: Costs(forward="a"),
    "complex cost": lambda: Costs(forward=np.complex128(1)),
    "unsorted list": lambda: Position(steps=5, snapshots=[Snapshot(3), Snapshot(0)]),
    "no costs": lambda: Hierarchical(1, 1, None),
    "tier of a check": lambda: check_schedule(Revolve(3), 9, slots={"ram": 0}),
    "end of a check": lambda: check_schedule(Online(3), 9, start=Position(steps=9, open=True), ends=10),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_plain_data_is_refused(name):
    """Wrong values are a ScheduleError when they are given, and not an error of another kind, later."""
    with pytest.raises(ScheduleError):
        WRONG[name]()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Position(steps=3, snapshots=None),
        lambda: Position(steps=3, snapshots=5),
        lambda: Position(steps=3, forward_ended="no"),
        lambda: Position(steps=3, open=float("nan")),
        lambda: Position(steps=3, finished=5),
        lambda: Forward(start=0, stop=1, save="x"),
        lambda: Forward(start=0, stop=1, snapshot=1),
        lambda: Forward(start=0, stop=1, drop=None),
    ],
)
def test_what_is_no_flag_or_no_snapshot_is_refused_where_it_is_given(make):
    """A flag is True or False, and snapshots are a sequence: all else is an error at once, not in a later action."""
    with pytest.raises(ScheduleError, match=r"Give True or False|Give a tuple of Snapshot"):
        make()
