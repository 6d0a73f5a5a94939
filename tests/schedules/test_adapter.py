from __future__ import annotations

import json
import pickle
import sys
import warnings

import numpy as np
import pytest
from checkpoint_schedules import Copy as TheirCopy
from checkpoint_schedules import (
    DiskRevolve,
    HRevolve,
    MixedCheckpointSchedule,
    MultistageCheckpointSchedule,
    NoneCheckpointSchedule,
    PeriodicDiskRevolve,
    SingleDiskStorageSchedule,
    SingleMemoryStorageSchedule,
    StorageType,
    TwoLevelCheckpointSchedule,
)
from checkpoint_schedules import Forward as TheirForward
from checkpoint_schedules import Move as TheirMove
from checkpoint_schedules import Revolve as TheirRevolve
from hypothesis import given
from hypothesis import strategies as st

from ebbtide import Budget, grad, timeloop
from ebbtide.errors import ScheduleError
from ebbtide.schedules import (
    Copy,
    Delete,
    EndForward,
    EndReverse,
    Forward,
    Move,
    NoReverse,
    Position,
    Recorded,
    Reverse,
    Revolve,
    Snapshot,
    StoreAll,
    action_from_json,
    action_to_json,
    from_checkpoint_schedules,
)
from ebbtide.testing import check_schedule

# Mixed says at each use that it lacks numba.
pytestmark = pytest.mark.filterwarnings("ignore:Numba not available:RuntimeWarning")

MAKERS = {
    "Revolve": lambda n: TheirRevolve(n, 3),
    "Multistage": lambda n: MultistageCheckpointSchedule(n, 1, 2),
    "Mixed": lambda n: MixedCheckpointSchedule(n, 3, storage=StorageType.RAM),
    "HRevolve": lambda n: HRevolve(n, 2, 2),
    "DiskRevolve": lambda n: DiskRevolve(n, 2),
    "PeriodicDiskRevolve": lambda n: PeriodicDiskRevolve(n, 2),
    "SingleDisk": lambda n: SingleDiskStorageSchedule(),
    "SingleDisk, moving": lambda n: SingleDiskStorageSchedule(move_data=True),
    "TwoLevel": lambda n: TwoLevelCheckpointSchedule(5, 2, binomial_storage=StorageType.RAM),
}
EACH = pytest.mark.parametrize("name", MAKERS)


def count_theirs(schedule, steps):
    """The forward steps of their trace, by running their generator."""
    total = 0
    for action in schedule:
        kind = type(action).__name__
        if kind == "Forward":
            total += min(action.n1, steps) - action.n0
            if schedule.max_n is None and action.n1 >= steps:
                schedule.finalize(steps)
        if kind == "EndReverse":
            return total
    raise AssertionError


def convert(name, steps):
    """The schedule, and what following it takes."""
    schedule = from_checkpoint_schedules(MAKERS[name](steps), steps)
    return schedule, check_schedule(schedule, steps)


def trace(schedule, steps):
    """All actions of a schedule."""
    position, actions = Position(steps=steps), []
    while (action := schedule.next_action(position)) is not None:
        actions.append(action)
        position = position.after(action)
    return actions


@EACH
@pytest.mark.parametrize("steps", [5, 7, 30])
def test_the_trace_is_valid_and_takes_the_same_steps(name, steps, capsys):
    """The checker follows it, with as many forward steps as their own; each snapshot is freed at its last load."""
    schedule, count = convert(name, steps)
    assert count.forward_steps == count_theirs(MAKERS[name](steps), steps) == schedule.forward_steps(steps)
    assert count.snapshots_left == 0
    assert count.peak_snapshots == schedule.peak_snapshots(steps)
    capsys.readouterr()


# HRevolve cannot be made for one step: it raises an IndexError.
SHORT = [(name, steps) for name in MAKERS for steps in (1, 2, 3) if (name, steps) != ("HRevolve", 1)]


@pytest.mark.parametrize(("name", "steps"), SHORT)
def test_short_loops(name, steps, capsys):
    """Loops of few steps are as they are there, those that are run twice because their end is not foreseen, too."""
    schedule = from_checkpoint_schedules(MAKERS[name](steps), steps)
    assert schedule.forward_steps(steps) == count_theirs(MAKERS[name](steps), steps)
    assert trace(schedule, steps)[-1] == EndReverse()
    assert check_schedule(schedule, steps).forward_steps == schedule.forward_steps(steps)
    capsys.readouterr()


@EACH
def test_it_is_plain_data(name, capsys):
    """Equal to another of the same kind, and after pickle; its trace goes through JSON, with plain ints."""
    schedule, _ = convert(name, 12)
    assert schedule == convert(name, 12)[0] != convert(name, 13)[0]
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert hash(schedule) == hash(pickle.loads(pickle.dumps(schedule)))
    written = json.dumps([action_to_json(action) for action in schedule.actions])
    assert tuple(action_from_json(record) for record in json.loads(written)) == schedule.actions
    assert trace(schedule, 12) == list(schedule.actions)
    capsys.readouterr()


def test_tiers_and_kinds():
    """Restart states and saved values lie where the schedule puts them."""
    assert convert("Multistage", 30)[1].peaks == {("restart", "memory"): 1, ("restart", "disk"): 2}
    assert convert("SingleDisk", 30)[1].peaks == {("saved", "disk"): 30}
    two_level = convert("TwoLevel", 30)[1]
    assert two_level.peaks == {("restart", "disk"): 6, ("restart", "memory"): 2}
    mixed = convert("Mixed", 30)[1]
    assert set(mixed.peaks) == {("restart", "memory"), ("saved", "memory")}
    assert mixed.peak_snapshots == 3
    hierarchical = convert("HRevolve", 30)[1].peaks
    assert max(hierarchical[("restart", "memory")], hierarchical[("restart", "disk")]) <= 2


def test_published_counts():
    """Their closed forms and tables give the counts that ours give."""
    assert from_checkpoint_schedules(MultistageCheckpointSchedule(100, 5, 0)).forward_steps(100) == 416
    assert from_checkpoint_schedules(TheirRevolve(100, 5)).forward_steps(100) == Revolve(5).forward_steps(100)
    assert from_checkpoint_schedules(MixedCheckpointSchedule(100, 5)).forward_steps(100) == 352


def test_the_costs_of_their_hierarchical_schedule_stay_theirs():
    """HRevolve mixes up its costs: 10074 forward steps instead of 608; the trace is taken as it is."""
    schedule = from_checkpoint_schedules(HRevolve(200, 5, 20, uf=100, ub=1, wd=50, rd=50))
    assert schedule.forward_steps(200) == 10_074


def test_schedules_without_a_length_become_ours():
    """Those that store all or nothing are ours, for any number of steps."""
    assert from_checkpoint_schedules(SingleMemoryStorageSchedule()) == StoreAll()
    assert from_checkpoint_schedules(NoneCheckpointSchedule(), 7) == NoReverse()


def test_their_object_stays_as_it_is():
    """Conversion begins a copy, not the object that was given."""
    theirs = TheirRevolve(20, 3)
    assert from_checkpoint_schedules(theirs) == from_checkpoint_schedules(theirs)
    assert count_theirs(theirs, 20) == Revolve(3).forward_steps(20)


@EACH
@given(part=st.integers(1, 6))
def test_an_interrupted_action_goes_on(name, part):
    """A `Forward` that was run in part is completed, and nothing is stored twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        schedule = from_checkpoint_schedules(MAKERS[name](17), 17)
    position, run = Position(steps=17), 0
    while (action := schedule.next_action(position)) is not None:
        if isinstance(action, Forward) and action.stop - action.start > part:
            action = Forward(
                start=action.start,
                stop=action.start + part,
                snapshot=action.snapshot,
                save=action.save,
                kind=action.kind,
                tier=action.tier,
            )
        run += action.stop - action.start if isinstance(action, Forward) else 0
        position = position.after(action)
    assert run == schedule.forward_steps(17)


def test_saving_in_parts_goes_on():
    """A trace that saves several steps at once is completed from the middle of them."""
    whole = (Forward(start=0, stop=6, save=True), EndForward(), Reverse(start=6, stop=0), EndReverse())
    schedule = Recorded(6, whole)
    position = Position(steps=6).after(Forward(start=0, stop=4, save=True))
    assert schedule.next_action(position) == Forward(start=4, stop=6, save=True)
    with pytest.raises(ScheduleError, match="does not pass"):
        schedule.next_action(Position(steps=6, state=4, saved=(0, 3)))


@pytest.mark.parametrize("stop", [0, 2])
def test_reversing_in_parts_goes_on(stop):
    """So is one that reverses several steps at once, as a loop under a budget does these one by one."""
    last = (Forward(start=0, stop=2, save=True, drop=True), Reverse(start=2, stop=0))
    begin = (Forward(start=0, stop=stop, snapshot=True), Forward(start=stop, stop=6, save=True))[stop == 0 :]
    middle = (EndForward(), Reverse(start=6, stop=stop), *((Move(step=0), *last) if stop else ()))
    schedule = Recorded(6, (*begin, *middle, EndReverse()))
    energy = lambda u: np.sum(timeloop(lambda u, i: u + 0.1 * np.sin(u), u, 6, schedule=schedule) ** 2)
    u = np.linspace(0.1, 0.9, 300)
    assert grad(energy, budget=Budget(memory="1 GiB"))(u).tobytes() == grad(energy)(u).tobytes()
    check_schedule(schedule, 6)
    position = Position(steps=6)
    while (action := schedule.next_action(position)) is not None:
        if isinstance(action, Reverse):
            action = Reverse(start=action.start, stop=action.start - 1)
        position = position.after(action)
    assert position.finished


def test_a_position_off_the_trace_is_refused():
    """A trace cannot plan: a lost snapshot, another length or an open one is an error that names what can."""
    schedule = from_checkpoint_schedules(TheirRevolve(10, 3))
    with pytest.raises(ScheduleError, match=r"does not pass.*step 5.*\[\].*Revolve"):
        schedule.next_action(Position(steps=10, state=5))
    with pytest.raises(ScheduleError, match="loop of 10 steps, and this loop has 11"):
        schedule.next_action(Position(steps=11))
    with pytest.raises(ScheduleError, match=r"at most 10.*Online"):
        schedule.next_action(Position(steps=10, open=True))


def test_the_number_of_steps_is_checked():
    """A schedule without a length needs one, and that of another cannot be changed."""
    with pytest.raises(ScheduleError, match="unknown number of steps, and steps=None"):
        from_checkpoint_schedules(SingleDiskStorageSchedule())
    with pytest.raises(ScheduleError, match="10 steps, and steps=11"):
        from_checkpoint_schedules(TheirRevolve(10, 3), 11)
    for wrong in ("10", 2.5, -2, True):
        for theirs in (TheirRevolve(10, 3), SingleDiskStorageSchedule()):
            with pytest.raises(ScheduleError, match=f"number of steps of a loop cannot be {wrong!r}"):
                from_checkpoint_schedules(theirs, wrong)  # pyright: ignore[reportArgumentType]


def test_what_their_package_raises_is_told():
    """Of no steps it makes no trace, with an error of its own; it came out as that."""
    with pytest.raises(ScheduleError, match=r"TwoLevelCheckpointSchedule gives no trace for 0 steps: .* ValueError"):
        from_checkpoint_schedules(TwoLevelCheckpointSchedule(2, 2), 0)


def test_what_has_been_begun_is_refused():
    """Their position is a live generator, which nobody can copy."""
    theirs = TheirRevolve(10, 3)
    next(theirs)
    with pytest.raises(ScheduleError, match="has been begun"):
        from_checkpoint_schedules(theirs)


def test_other_objects_are_refused():
    """What is no schedule of that package is named by its type."""
    with pytest.raises(ScheduleError, match="type Revolve is no schedule of checkpoint_schedules"):
        from_checkpoint_schedules(Revolve(3))
    for kind in (TheirRevolve, SingleMemoryStorageSchedule, int):
        with pytest.raises(ScheduleError, match=f"{kind.__name__} is a class, and no schedule. Give an object"):
            from_checkpoint_schedules(kind)


class Scripted:
    """A schedule in their form that yields given actions."""

    max_n = 4

    def __init__(self, *actions):
        self.actions = list(actions)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.actions:
            raise StopIteration
        return self.actions.pop(0)

    def finalize(self, n):
        raise AssertionError(n)

    def uses_storage_type(self, storage_type):
        raise AssertionError(storage_type)


RAM, DISK, WORK, NONE = StorageType.RAM, StorageType.DISK, StorageType.WORK, StorageType.NONE


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([TheirForward(0, 4, True, True, RAM)], "with saved values in the same slot"),
        ([TheirForward(0, 4, True, False, WORK)], "in no tier"),
        ([TheirForward(0, 4, True, False, DISK), TheirCopy(0, DISK, RAM)], "does not lead to the working state"),
        ([TheirForward(1, 4, False, False, WORK)], "Action 0 of the trace cannot be followed"),
        ([TheirForward(0, 4, False, False, WORK)], "ends before EndReverse, with 4 of 4"),
        (["no action"], "no action of checkpoint_schedules"),
    ],
)
def test_traces_that_cannot_be_followed(actions, reason):
    """Where their trace says what a loop cannot do, the error names the action."""
    with pytest.raises(ScheduleError, match=reason):
        from_checkpoint_schedules(Scripted(*actions))


def test_two_places_of_one_step_become_one():
    """A state that lies on disk and in memory is deleted once, and a move to nowhere is a `Delete`."""
    import checkpoint_schedules as theirs

    actions = [
        TheirForward(0, 2, True, False, DISK),
        TheirForward(2, 3, True, False, RAM),
        TheirMove(2, RAM, NONE),
        TheirForward(3, 4, False, True, WORK),
        theirs.EndForward(),
        theirs.Reverse(4, 3, True),
        TheirCopy(0, DISK, WORK),
        TheirForward(0, 1, True, False, RAM),
        TheirForward(1, 3, False, True, WORK),
        theirs.Reverse(3, 1, True),
        TheirMove(0, DISK, NONE),
        TheirMove(0, RAM, WORK),
        TheirForward(0, 1, False, True, WORK),
        theirs.Reverse(1, 0, True),
        theirs.EndReverse(),
    ]
    schedule = from_checkpoint_schedules(Scripted(*actions))
    assert [action for action in schedule.actions if isinstance(action, (Copy, Delete, Move))] == [
        Delete(step=2),
        Move(step=0),
        Move(step=0),
    ]
    assert check_schedule(schedule, 4).snapshots_left == 0


def test_a_longer_range_of_saved_values_in_a_tier_is_one_snapshot_each():
    """A step's saved values are a snapshot of their own."""
    schedule = from_checkpoint_schedules(SingleDiskStorageSchedule(), 3)
    position = Position(steps=3)
    for _ in range(3):
        position = position.after(schedule.next_action(position))
    assert position.snapshots == tuple(Snapshot(step, "saved", "disk") for step in range(3))


def test_the_package_is_not_imported():
    """The adapter tells their classes by name, so that the package is needed by who makes its objects alone."""
    source = sys.modules[Recorded.__module__].__dict__
    assert not any(getattr(value, "__module__", "").startswith("checkpoint_schedules") for value in source.values())


def test_a_trace_may_be_a_list():
    """Actions in a list and a NumPy number of steps are taken as plain data: the same trace, with a hash."""
    actions = [Forward(start=0, stop=2, save=True), EndForward(), Reverse(start=2, stop=0), EndReverse()]
    trace = Recorded(np.int64(2), actions)
    assert trace == Recorded(2, tuple(actions))
    assert hash(trace) == hash(Recorded(2, tuple(actions)))
    assert type(trace.steps) is int


def test_a_long_trace_is_short_in_messages(capsys):
    """A profile, an error or a plan shows how many actions there are, and not each of them."""
    found = from_checkpoint_schedules(TheirRevolve(1000, 10))
    assert repr(found) == f"Recorded(1000, <{len(found.actions)} actions>)"


def test_what_leads_nowhere_is_left_out():
    """A trace that comes to one position twice goes on from the later one, and ends."""
    actions = (
        Forward(start=0, stop=1, snapshot=True), Forward(start=1, stop=2, save=True), EndForward(),
        Reverse(start=2, stop=1), Copy(step=0), Forward(start=0, stop=1), Copy(step=0),
        Forward(start=0, stop=1, save=True), Reverse(start=1, stop=0), Delete(step=0), EndReverse(),
    )  # fmt: skip
    position, taken = Position(steps=2), []
    schedule = Recorded(2, actions)
    while not position.finished and len(taken) < len(actions):
        taken.append(schedule.next_action(position))
        position = position.after(taken[-1])
    assert taken == [*actions[:5], *actions[7:]]
