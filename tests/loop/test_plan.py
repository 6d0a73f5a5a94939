"""The planner: what does not depend on arrays, and budgets in which the interpreter's own bytes dominate."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.measure import peak_bytes
from tests.scale import FULL, sample

import ebbtide
from ebbtide import Budget, BudgetError, grad, timeloop
from ebbtide.loop.planning import plan as plan_module
from ebbtide.loop.planning.plan import Plan, Sizes, make_plan
from ebbtide.loop.planning.predict import count_hierarchical, predict
from ebbtide.loop.planning.sizes import LEFT_BEHIND, RESERVE_PER_SNAPSHOT, RESERVE_PER_STEP
from ebbtide.schedules import (
    Costs,
    Hierarchical,
    Mixed,
    NoReverse,
    Online,
    Periodic,
    Position,
    Recorded,
    Revolve,
    Schedule,
    StoreAll,
)
from ebbtide.schedules.hierarchical_table import HierarchicalTable
from ebbtide.schedules.mixed_table import MixedTable, count_bytes
from ebbtide.schedules.simulate import simulate

MIB, GIB = 2**20, 2**30
SIZES = Sizes(state=MIB, saved=3 * MIB, sweep=5 * MIB, gradients=0, stored=MIB + 4096, nodes=1024)
SMALL = replace(SIZES, state=2 * MIB, saved=MIB, sweep=3 * MIB, stored=2 * MIB + 4096)
NUMBERS = Sizes(state=8, saved=400, sweep=500, gradients=0, stored=200)
SECONDS = Costs(forward=0.02, reverse=0.03, write=0.01, read=0.008)

bytes_of_parts = st.integers(0, 24).flatmap(lambda power: st.integers(1, 2 << power))
all_sizes = st.builds(
    lambda state, saved, more, gradients, header, nodes: Sizes(
        state, saved, saved + state + more, gradients, state + header, min(nodes, saved)
    ),
    bytes_of_parts, bytes_of_parts, st.integers(0, MIB), st.integers(0, MIB), st.integers(100, 5000),
    st.integers(0, 4000),
)  # fmt: skip
number = st.sampled_from([0.01, 0.3, 1.0, 2.5, 40.0])
all_costs = st.none() | st.builds(Costs, forward=number, reverse=number, write=number, read=number)


def plan_of(
    steps: int,
    sizes: Sizes = SIZES,
    memory: int | None = None,
    disk: int = 0,
    schedule: Schedule | None = None,
    costs: Costs | None = None,
    **others: Any,
) -> Plan:
    """A plan with nothing held by calls around."""
    return make_plan(
        steps, sizes, memory=memory, disk=disk, schedule=schedule, costs=costs, **{"held": 0, **others}
    )


# What is chosen.


def test_without_a_bound_every_step_runs_once():
    """Without a budget the saved values of all steps are kept."""
    plan = plan_of(1000)
    assert plan.schedule == StoreAll()
    assert plan.predicted_steps_forward == 1000
    assert plan.predicted_time == 2000
    assert plan.predicted_disk_bytes == plan.buffer == 0


@pytest.mark.parametrize("sizes", [SIZES, SMALL, NUMBERS])
def test_more_memory_never_means_more_steps(sizes):
    """The predicted peak keeps the budget, and the predicted steps fall as it grows."""
    counts = []
    bounds = np.geomspace(sizes.sweep + sizes.state + 64 * 1024, 6000 * sizes.sweep, 60)
    for memory in bounds.astype(int).tolist():
        try:
            plan = plan_of(200, sizes, memory)
        except BudgetError:
            assert not counts
            continue
        assert plan.predicted_peak_bytes <= memory
        counts.append(plan.predicted_steps_forward)
    assert counts[0] > counts[-1] == 200
    assert all(more >= fewer for more, fewer in pairwise(counts))


@given(
    steps=st.integers(1, 150), sizes=all_sizes, costs=all_costs, share=st.floats(0, 1.2), more=st.floats(0, 0.5),
    slots=st.integers(0, 200), more_slots=st.integers(0, 100),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_more_bytes_never_mean_more_time(steps, sizes, costs, share, more, slots, more_slots):
    """For given costs predicted time falls with both budgets, and without disk so do forward steps."""
    whole = plan_of(steps, sizes).predicted_peak_bytes
    memory, disk = sizes.fixed + sizes.restart + int(share * whole), slots * sizes.stored
    first = plan_of(steps, sizes, memory, disk, costs=costs)
    assert first.predicted_peak_bytes <= memory
    assert first.predicted_disk_bytes <= disk
    for larger in (
        plan_of(steps, sizes, memory + int(more * whole), disk, costs=costs),
        plan_of(steps, sizes, memory, disk + more_slots * sizes.stored, costs=costs),
    ):
        assert larger.predicted_time <= first.predicted_time * (1 + 1e-9)
    alone = plan_of(steps, sizes, memory, costs=costs)
    more_alone = plan_of(steps, sizes, memory + int(more * whole), costs=costs)
    assert more_alone.predicted_steps_forward <= alone.predicted_steps_forward


@given(
    steps=st.integers(1, 120), sizes=all_sizes, costs=all_costs, share=st.floats(0, 1), slots=st.integers(0, 200)
)
@settings(deadline=None, max_examples=100)
def test_prediction_equals_what_the_schedule_does(steps, sizes, costs, share, slots):
    """Followed without a loop, a plan's schedule runs the predicted steps and holds no more than predicted."""
    memory = sizes.fixed + sizes.restart + int(share * plan_of(steps, sizes).predicted_peak_bytes)
    plan = plan_of(steps, sizes, memory, slots * sizes.stored, costs=costs)
    found = simulate(plan.schedule.next_action, Position(steps=steps), restart=sizes.restart, saved=sizes.taped)
    assert found.forward_steps == plan.predicted_steps_forward
    assert found.peak_memory - sizes.taped <= plan.predicted_peak_bytes - sizes.fixed - plan.buffer
    assert found.peak_snapshots <= plan.snapshots
    assert plan.on_disk == (found.disk_writes > 0) == (plan.predicted_disk_bytes > 0)
    on_disk = simulate(
        plan.schedule.next_action, Position(steps=steps), restart=sizes.stored, saved=sizes.stored_saved
    )
    assert on_disk.peak_disk <= plan.predicted_disk_bytes <= slots * sizes.stored
    # The costs of transfers are those of a restart state.
    size = sizes.stored_saved / sizes.stored if plan.schedule == StoreAll("disk") else 1.0
    in_line = plan.costs.time(
        forward=found.forward_steps, reverse=steps, writes=size * found.disk_writes, reads=size * found.disk_reads
    )
    assert plan.predicted_time <= in_line * (1 + 1e-9)
    if not plan.on_disk or (plan.buffer == 0 and not isinstance(plan.schedule, Periodic)):
        assert plan.predicted_time == pytest.approx(in_line)


def test_saved_values_of_some_steps_are_kept_where_that_is_less_work():
    """Between a budget for few states and one for all steps, snapshots of both kinds are mixed."""
    plan = plan_of(100, memory=64 * MIB)
    assert isinstance(plan.schedule, Mixed)
    assert plan.predicted_steps_forward < Revolve(64).forward_steps(100)


@pytest.mark.parametrize(("steps", "memory"), [(100, 20 * MIB), (100, 200 * MIB), (1000, 64 * MIB)])
def test_no_unit_is_held_for_nothing(steps, memory):
    """The peak of mixed snapshots is predicted within 5%."""
    plan = plan_of(steps, memory=memory)
    assert isinstance(plan.schedule, Mixed)
    found = simulate(
        plan.schedule.next_action, Position(steps=steps), restart=SIZES.restart, saved=SIZES.taped
    ).peak_memory
    rows = plan.schedule._table(steps).row(memory) + 1
    measured = SIZES.fixed + found - SIZES.taped + count_bytes(steps, rows)[0]
    assert measured <= plan.predicted_peak_bytes <= 1.05 * measured


def test_the_table_of_a_plan_is_that_of_the_schedule():
    """A schedule that has been stored and read again, and makes its own table, does the same."""
    plan = plan_of(300, memory=40 * MIB)
    again = pickle.loads(pickle.dumps(plan.schedule))
    assert isinstance(again, Mixed)
    assert again == plan.schedule
    assert again.forward_steps(300) == plan.predicted_steps_forward


def test_restart_states_alone_where_a_table_would_take_the_budget():
    """Where each number counts, a table of steps and units is dearer than what it saves."""
    plan = plan_of(2000, NUMBERS, 128 * 1024)
    assert isinstance(plan.schedule, Revolve)


def test_disk_is_used_where_it_is_fast():
    """Without room in memory for what steps save it goes to disk, and not if transfers are dear."""
    assert plan_of(100, memory=40 * MIB, disk=GIB, costs=SECONDS).schedule == StoreAll("disk")
    slow = replace(SECONDS, write=100.0, read=100.0)
    assert not plan_of(100, memory=40 * MIB, disk=GIB, costs=slow).on_disk


def test_a_little_disk_helps_a_little_memory():
    """With few slots in both tiers both are used."""
    plan = plan_of(500, memory=9 * MIB, disk=20 * MIB, costs=SECONDS)
    assert plan.on_disk
    assert plan.predicted_time < plan_of(500, memory=9 * MIB, costs=SECONDS).predicted_time
    assert plan.predicted_disk_bytes <= 20 * MIB


def test_what_stays_in_memory_of_a_step_on_disk_counts():
    """If nothing is known about it, all saved values are taken to stay, and nothing is won by disk."""
    known = plan_of(100, memory=40 * MIB, disk=GIB, costs=SECONDS)
    unknown = plan_of(100, replace(SIZES, nodes=None), memory=40 * MIB, disk=GIB, costs=SECONDS)
    assert known.schedule == StoreAll("disk")
    assert unknown.schedule != StoreAll("disk")


def test_buffers_are_there_if_they_fit():
    """A writer thread has two entries in memory, which are part of the peak; without room for them it has none."""
    plan = plan_of(100, memory=40 * MIB, disk=GIB, costs=SECONDS)
    assert plan.buffer == 2 * SIZES.stored_saved
    least = SIZES.fixed + 99 * SIZES.left_behind + 2 * SIZES.stored_saved
    assert least <= plan.predicted_peak_bytes <= 40 * MIB
    tight = plan_of(100, memory=plan.predicted_peak_bytes - 1, disk=GIB, costs=SECONDS)
    assert tight.buffer < plan.buffer
    assert tight.predicted_peak_bytes < plan.predicted_peak_bytes


def test_snapshots_on_disk_take_memory_too():
    """A large disk does not fill the memory with entries of snapshots."""
    small = replace(NUMBERS, state=8192, stored=9000)
    for memory in range(72 * 1024, 3 * MIB, 100 * 1024):
        plan = plan_of(10**6, small, memory, 10**12)
        assert plan.predicted_peak_bytes <= memory
    assert plan.on_disk
    assert plan.snapshots > 1000


# What is not known.


def test_a_loop_of_unknown_length_has_a_schedule_for_it():
    """All saved values are kept if the upper bound of the length fits, and else bounded storage is planned."""
    assert plan_of(50, memory=GIB, open=True).schedule == StoreAll()
    assert plan_of(50, memory=None, open=True).schedule == StoreAll()
    plan = plan_of(10**6, memory=64 * MIB, open=True)
    assert isinstance(plan.schedule, Online)
    assert plan.snapshots == 58
    assert plan.predicted_peak_bytes <= 64 * MIB
    least = _least(1000, SIZES, 0, 0, None, open=True)
    assert plan_of(1000, memory=least, open=True).schedule == Online(1)


def test_unknown_costs_are_those_of_steps():
    """Without costs a transfer is as dear as a step, and the plan is the same each time."""
    plan = plan_of(300, memory=20 * MIB, disk=GIB)
    assert plan.costs == Costs(forward=1, reverse=1, write=1, read=1)
    assert plan == plan_of(300, memory=20 * MIB, disk=GIB)


def test_costs_are_agreed_on(monkeypatch):
    """What a process measured is agreed on with the others before anything is decided from it."""
    slow = (0.02, 0.03, 100.0, 100.0, 0.0, 0.0, False)
    monkeypatch.setattr(plan_module, "agree", lambda measured: max(measured, slow) if len(measured) == 7 else measured)
    plan = plan_of(100, memory=40 * MIB, disk=GIB, costs=SECONDS)
    assert plan.costs == Costs(forward=0.02, reverse=0.03, write=100.0, read=100.0)
    assert not plan.on_disk


# Refusals.


def _least(steps: int, sizes: Sizes, disk: int, held: int, costs: Costs | None, **others: Any) -> int:
    with pytest.raises(BudgetError) as error:
        plan_of(steps, sizes, 0, disk, costs=costs, held=held, **others)
    return error.value.least


@given(
    steps=st.integers(1, 3000), sizes=all_sizes, slots=st.integers(0, 3000), held=st.integers(0, MIB), costs=all_costs,
    unknown=st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_least_is_the_least(steps, sizes, slots, held, costs, unknown):
    """The refusal names the smallest budget for which there is a plan, whatever disk there is."""
    disk = slots * sizes.stored
    least = _least(steps, sizes, disk, held, costs, open=unknown)
    assert plan_of(steps, sizes, least - held, disk, costs=costs, open=unknown).predicted_peak_bytes <= least - held
    with pytest.raises(BudgetError) as error:
        plan_of(steps, sizes, least - held - 1, disk, costs=costs, held=held, open=unknown)
    assert error.value.least == least
    assert least <= sizes.sweep + sizes.gradients + 4 * sizes.state + 64 * 1024 + held


def test_least_without_disk_is_one_restart_state():
    """Without disk the least is that of one snapshot."""
    least = _least(100, SIZES, 0, 0, None)
    assert plan_of(100, memory=least).schedule == Revolve(1)
    assert least == SIZES.fixed + SIZES.state + RESERVE_PER_SNAPSHOT


def test_disk_lowers_the_least():
    """With disk no restart state need be in memory."""
    assert _least(100, SIZES, GIB, 0, None) < _least(100, SIZES, 0, 0, None)


# Schedules of the user.


GIVEN = (
    StoreAll(), StoreAll("disk"), Revolve(5), Revolve(30), Mixed(10), Mixed(7 * MIB, MIB, 3 * MIB), Hierarchical(3, 4),
    Hierarchical(0, 3, Costs(write=2, read=3)), Periodic(7, 3), Periodic(1, 1), Online(6), NoReverse(),
)  # fmt: skip


@pytest.mark.parametrize("schedule", GIVEN, ids=str)
def test_a_given_schedule_is_followed_as_it_is(schedule):
    """Its prediction by closed forms is that of following it, also if there is room for the sweep of a step alone."""
    steps = 60
    plan = plan_of(steps, memory=SIZES.fixed, schedule=schedule, costs=SECONDS)
    assert plan.schedule == schedule
    assert plan.predicted_steps_forward == schedule.forward_steps(steps)
    if isinstance(schedule, NoReverse):
        assert plan.predicted_time == pytest.approx(steps * SECONDS.forward)
        return
    found = simulate(schedule.next_action, Position(steps=steps), restart=SIZES.restart, saved=SIZES.taped)
    assert found.peak_memory - SIZES.taped <= plan.predicted_peak_bytes - SIZES.fixed
    assert plan.on_disk == (found.disk_writes > 0)
    assert plan.buffer == 0


@pytest.mark.parametrize("schedule", GIVEN, ids=str)
def test_a_given_schedule_without_room_for_a_sweep_is_refused(schedule):
    """By the bytes that it takes as it is."""
    with pytest.raises(BudgetError) as caught:
        plan_of(60, memory=SIZES.fixed - 1, schedule=schedule, costs=SECONDS)
    assert caught.value.least == plan_of(60, memory=GIB, schedule=schedule, costs=SECONDS).least


def test_what_is_not_hidden_of_transfers_is_predicted():
    """Behind steps a transfer of saved values takes what is exposed of it, which grows with their size."""
    costs = replace(SECONDS, write=0.001, read=0.001)
    free, taken = (
        predict(StoreAll("disk"), 100, SIZES, one, buffered=True).time
        for one in (costs, replace(costs, write_exposed=0.0004, read_exposed=0.0002))
    )
    assert free == pytest.approx(100 * (SECONDS.forward + SECONDS.reverse))
    assert taken - free == pytest.approx(99 * 0.0006 * SIZES.stored_saved / SIZES.stored)


@pytest.mark.parametrize(("saved", "prompt", "hidden"), [(3, True, True), (5, False, True), (5, True, False)])
def test_what_steps_save_is_written_at_once_where_it_is_large(saved, prompt, hidden):
    """The writes of large entries that do not wait for the disk are exposed, also where those of states are not."""
    sizes = replace(SIZES, saved=saved * MIB)
    costs = replace(SECONDS, write=0.002, read=0.0, write_exposed=0.0005, prompt=prompt)
    time = predict(StoreAll("disk"), 100, sizes, costs, buffered=True).time
    exposed = (costs.write_exposed if hidden else costs.write) * sizes.stored_saved / sizes.stored
    assert time - 100 * (costs.forward + costs.reverse) == pytest.approx(99 * exposed)


def test_a_trace_is_predicted_by_following_it():
    """A schedule without closed forms is followed once without the loop."""
    schedule = Hierarchical(2, 3, Costs(write=1, read=1))
    position, actions = Position(steps=40), []
    while (action := schedule.next_action(position)) is not None:
        actions.append(action)
        position = position.after(action)
    found, known = plan_of(40, schedule=Recorded(40, tuple(actions))), plan_of(40, schedule=schedule)
    assert found.predicted_steps_forward == known.predicted_steps_forward
    assert found.predicted_time == pytest.approx(known.predicted_time)
    assert found.predicted_disk_bytes == known.predicted_disk_bytes
    assert found.buffer == known.buffer == 2 * SIZES.stored


@given(
    steps=st.integers(1, 200), memory=st.integers(0, 8), disk=st.integers(0, 8), costs=st.builds(
        Costs, forward=st.sampled_from([1, 10, 100]), write=st.sampled_from([0, 1, 5, 50]),
        read=st.sampled_from([0, 1, 5, 50]),
    ),
)  # fmt: skip
@settings(deadline=None, max_examples=80)
def test_counts_of_two_tiers_by_the_table(steps, memory, disk, costs):
    """Counted by its table, a schedule of two tiers does what it does when followed."""
    assume(memory + disk > 0)
    schedule = Hierarchical(memory, disk, costs)
    counts = count_hierarchical(schedule, steps)
    found = simulate(schedule.next_action, Position(steps=steps))
    assert (counts.forward, counts.writes, counts.reads) == (found.forward_steps, found.disk_writes, found.disk_reads)
    assert counts.disk >= found.peak_disk
    assert predict(schedule, steps, SIZES, costs).time == pytest.approx(schedule.predicted_time(steps, costs))


# Planning itself.


@pytest.mark.parametrize(("steps", "units"), [(100, 30), (1000, 20), (1500, 100), (3000, 5)])
def test_bytes_of_tables(steps, units):
    """A table takes no more than was said, also while it is made, and at least four fifths of it if it is large."""
    held, making = count_bytes(steps, units + 1)
    for make in (
        lambda: MixedTable(steps, units, 1, 1),
        lambda: HierarchicalTable(steps, 2, units + 1, Costs(write=2, read=2)),
    ):
        table = []
        peak = peak_bytes(lambda make=make, table=table: table.append(make()))
        assert peak <= making
        assert 12 * (units + 1) * steps <= held <= 12 * (units + 1) * steps + 2**16
        if making > MIB:
            assert peak >= 0.8 * making


@pytest.mark.parametrize("steps", [100, 1000, 10**4, 10**6])
@pytest.mark.parametrize("sizes", [SIZES, NUMBERS, replace(NUMBERS, state=8192, stored=9000, saved=20_000)])
@pytest.mark.parametrize("disk", [0, GIB])
def test_planning_keeps_the_budget(steps, sizes, disk):
    """What planning takes fits into the predicted peak, beside the step that was taped before."""
    for memory in (2, 8, 40):
        budget = sizes.fixed + memory * max(sizes.restart, 16 * 1024)
        plans = []
        taken = peak_bytes(lambda budget=budget, plans=plans: plans.append(plan_of(steps, sizes, budget, disk)))
        assert taken <= budget - sizes.state - sizes.saved
        assert plans[0].predicted_peak_bytes <= budget


def test_work_on_tables_is_bounded():
    """For long loops there is no table, unless steps are known to be slow."""
    assert isinstance(plan_of(10**4, memory=64 * MIB).schedule, Revolve)
    assert isinstance(plan_of(10**4, memory=64 * MIB, costs=SECONDS).schedule, Mixed)
    assert isinstance(plan_of(10**6, memory=64 * MIB, costs=SECONDS).schedule, Revolve)


def test_a_plan_prints_what_it_predicts():
    """The table names schedule, time, peak, and disk if there is one."""
    text = str(plan_of(100, memory=40 * MIB, disk=GIB, costs=SECONDS))
    names = ("schedule ", "StoreAll(tier='disk')", "99 of 1.0 MiB", "time ", "0.01 write", "peak ", "disk ", "buffers")
    for words in names:
        assert words in text
    assert "buffers" not in str(plan_of(100, memory=40 * MIB))


def test_entries_of_a_step_are_counted():
    """A step whose saved values are held has entries beside them, in memory and on disk."""
    assert SIZES.taped == SIZES.saved + RESERVE_PER_STEP
    assert SIZES.left_behind == 1024 + RESERVE_PER_STEP + LEFT_BEHIND


def on_one_number(x: Any) -> Any:
    """A loop on one number."""
    return timeloop(lambda u, i: u + 0.1 * np.sin(u), x, 800 if FULL else 400)


@cache
def known_of_one_number(x: float) -> tuple[Any, int]:
    """Its gradient without a budget, and its peak alone."""
    expected = grad(on_one_number)(np.array(x))
    on_one_number(np.array(x))
    return expected, peak_bytes(lambda: on_one_number(np.array(x)))


@pytest.mark.parametrize("kib", [48, 96, 256, 768] if FULL else [48, 96, 192, 384])
def test_budgets_in_which_no_array_counts(kib):
    """A loop on one number keeps a budget of a few KiB, where all bytes are the interpreter's own."""
    x = np.array(0.3)
    gradient = grad(on_one_number, budget=Budget(memory=kib * 1024))
    expected, alone = known_of_one_number(0.3)
    found: list[Any] = []
    assert peak_bytes(lambda: found.append(gradient(x))) - alone <= kib * 1024
    assert found == [expected]
    with ebbtide.profile() as p:
        assert gradient(x) == expected
    assert p.steps_forward == p.predicted_steps_forward


# Leaves of a state.
MANY = 400 if FULL else 200
LEAVES = {
    "numbers": lambda k: 0.01 * k,
    "scalars": lambda k: np.float64(0.01 * k),
    "arrays": lambda k: np.full(3, 0.01 * k),
}


@pytest.mark.parametrize(
    ("kind", "size", "disk"), sample(list(product(LEAVES, [(1, 36), (10, 36), (MANY, 6), (5 * MANY, 2)], [0, GIB])), 3)
)
def test_budgets_of_states_of_many_small_leaves(kind, size, disk):
    """What the interpreter takes for each leaf of a state counts: the peak keeps the budget and the prediction."""
    count, steps = size

    def step(state: Any, i: Any) -> Any:
        first, leaves = state
        return first * 0.5 + x0 * 0.1, [*[leaf * 0.9 + 0.1 for leaf in leaves[1:]], leaves[0] * 0.5]

    def objective(x: Any) -> Any:
        first, leaves = timeloop(step, (x * 1.0, [LEAVES[kind](k) for k in range(count)]), steps)
        return first + np.sum(leaves[0]) + np.sum(leaves[-1])

    x0 = np.array(0.7)
    expected = grad(objective)(x0)
    alone = peak_bytes(lambda: objective(x0))
    with pytest.raises(BudgetError) as error:
        grad(objective, budget=Budget(memory=1, disk=disk))(x0)
    for memory in (error.value.least, 2 * error.value.least)[: 1 if count == 5 * MANY else 2]:
        found: list[Any] = []
        call = grad(objective, budget=Budget(memory=memory, disk=disk))
        measured = peak_bytes(lambda call=call, found=found: found.append(call(x0))) - alone
        with ebbtide.profile() as p:
            call(x0)
        assert measured <= p.loops[0].plan.predicted_peak_bytes <= memory
        assert found == [expected]


def test_a_schedule_on_disk_needs_a_budget_that_has_disk() -> None:
    """A schedule that stores on disk is refused at once by a budget without disk."""

    def gradient(disk: int) -> Any:
        budget = Budget(memory=MIB, disk=disk)
        return grad(lambda u: np.sum(timeloop(lambda x, i: np.sin(x), u, 9, schedule=StoreAll("disk"))), budget=budget)

    u = np.linspace(0.0, 1.0, 5)
    with pytest.raises(BudgetError, match="on disk, and the budget has 0 bytes of it"):
        gradient(0)(u)
    assert np.array_equal(gradient(MIB)(u), grad(lambda u: np.sum(timeloop(lambda x, i: np.sin(x), u, 9)))(u))


def test_a_step_that_saves_more_and_sweeps_less_takes_nothing_from_the_sweep():
    """Sizes grow: the widest sweep of all steps is what there has to be room for."""
    sizes = Sizes(state=8, saved=10, sweep=100, gradients=0, stored=16)
    assert sizes.widened(20, 50, 0).sweep == 100
    assert sizes.widened(20, 50, 0).saved == 20
    assert sizes.widened(5, 150, 0) == replace(sizes, sweep=150)
