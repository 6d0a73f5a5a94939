from __future__ import annotations

import functools
import math
import pickle
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ebbtide.errors import ScheduleError
from ebbtide.schedules import (
    Delete,
    Forward,
    Hierarchical,
    Mixed,
    Move,
    Position,
    Revolve,
    Snapshot,
    schedule_from_json,
    schedule_to_json,
)
from ebbtide.schedules.mixed_table import MixedTable
from ebbtide.testing import check_schedule


@functools.cache
def best(steps, units, restart, saved):
    """The fewest forward steps by trying everything."""
    if steps == 1:
        return 1
    ways = [math.inf]
    if units >= saved:
        ways.append(1 + best(steps - 1, units - saved, restart, saved))
    if units >= restart:
        ways += [
            place
            + best(place, units, restart, saved)
            + best(steps - place, units - restart, restart, saved)
            for place in range(1, steps)
        ]
    return min(ways)


@pytest.mark.parametrize(("units", "restart", "saved"), [(18, 1, 1), (23, 2, 5), (40, 5, 2), (900, 1, 3)])
def test_stored_steps_are_neighbors(units, restart, saved):
    """Saved values are stored of all steps up to the end, so that what neighbors share is held once."""
    for steps in (7, 40, 331):
        schedule, position = Mixed(units, restart, saved), Position(steps=steps)
        stored = 0
        while (action := schedule.next_action(position)) is not None:
            position = position.after(action)
            held = [kept.step for kept in position.snapshots if kept.kind == "saved"]
            stored = max(stored, len(held))
            if not held:
                continue
            assert held == [*range(held[0], held[0] + len(held))]
            assert position.snapshots[-1].step == held[-1]
            if position.saved is not None:
                assert position.saved[0] == held[-1] + 1
        assert stored == steps - 1 or schedule.forward_steps(steps) > steps
        assert stored > 0


@functools.cache
def published(steps, snapshots):
    """The recursion for equal sizes as it is printed (Maddison 2024)."""
    if steps <= snapshots + 1:
        return steps
    if snapshots == 1:
        return steps * (steps + 1) // 2 - 1
    split = (
        place + published(place, snapshots) + published(steps - place, snapshots - 1) for place in range(2, steps)
    )
    return min(1 + published(steps - 1, snapshots - 1), *split)


@pytest.mark.parametrize(("restart", "saved"), [(1, 1), (1, 3), (3, 1), (2, 5), (5, 2)])
def test_small_cases_are_optimal(restart, saved):
    """For n <= 24 and many numbers of units the sweep takes what a search over everything finds, and no more memory."""
    sizes = {"restart": restart, "saved": saved}
    for units in range(restart, 22, 2):
        schedule = Mixed(units, restart, saved)
        for steps in range(1, 25):
            count = check_schedule(schedule, steps, slots={"memory": units}, sizes=sizes)
            assert count.forward_steps == schedule.forward_steps(steps) == best(steps, units, restart, saved)
            assert count.snapshots_left == 0
            assert count.peak_saved == 1


def test_equal_sizes_are_the_published_recursion():
    """For all n <= 120 and s <= 12 the table is that of the recursion with all places."""
    for snapshots in range(1, 13):
        schedule = Mixed(snapshots)
        for steps in range(1, 121):
            assert schedule.forward_steps(steps) == published(steps, snapshots)


@pytest.mark.parametrize(
    ("steps", "snapshots", "expected"),
    [(100, 5, 352), (100, 10, 237), (100, 20, 184), (100, 50, 150), (1000, 10, 3921)],
)
def test_published_values(steps, snapshots, expected):
    """The counts of other implementations of the algorithm, reached by following it."""
    count = check_schedule(Mixed(snapshots), steps, slots={"memory": snapshots})
    assert count.forward_steps == Mixed(snapshots).forward_steps(steps) == expected


def test_ten_thousand_steps():
    """The window finds the optimum of the published table at 10,000 steps and 50 snapshots; following it takes that."""
    count = check_schedule(Mixed(50), 10_000, slots={"memory": 50})
    assert count.forward_steps == Mixed(50).forward_steps(10_000) == 28_912


def search_all(monkeypatch):
    """Let every table search all places."""
    monkeypatch.setattr("ebbtide.schedules.splits.FULL", 10**9)


@pytest.mark.parametrize(("units", "restart", "saved"), [(30, 1, 1), (40, 1, 3), (40, 3, 1)])
def test_the_window_is_exact(units, restart, saved, monkeypatch):
    """Up to 1500 steps the window gives the table of a search over all places."""
    found = MixedTable(1500, units, restart, saved)._splits.costs
    search_all(monkeypatch)
    np.testing.assert_array_equal(found, MixedTable(1500, units, restart, saved)._splits.costs)


def test_never_more_than_revolve():
    """A slot that may hold either kind is worth at least one that holds restart states."""
    for snapshots in (1, 3, 8):
        for steps in range(1, 200, 7):
            assert Mixed(snapshots).forward_steps(steps) <= Revolve(snapshots).forward_steps(steps)


def test_sizes_in_bytes():
    """Sizes need no common unit: only the numbers of free bytes that can occur have a row."""
    schedule = Mixed(2_000_000_007, restart=80_000_003, saved=240_000_011)
    sizes = {"restart": schedule.restart, "saved": schedule.saved}
    count = check_schedule(schedule, 300, slots={"memory": schedule.units}, sizes=sizes)
    assert count.forward_steps == schedule.forward_steps(300) == Mixed(24, 1, 3).forward_steps(300)


def test_many_sizes_and_many_steps():
    """Tables are bounded: with more levels or more steps than they have, the prediction is still what is done."""
    schedule = Mixed(10_007, restart=3, saved=101)
    assert len(MixedTable(60, 10_007, 3, 101)._levels) <= 512
    count = check_schedule(schedule, 60, slots={"memory": 10_007}, sizes={"restart": 3, "saved": 101})
    assert count.forward_steps == schedule.forward_steps(60)


def test_longer_than_the_table(monkeypatch):
    """Beyond the table the first places are those of Revolve: no more steps than it takes, and as predicted."""
    monkeypatch.setattr("ebbtide.schedules.mixed_table.MOST_STEPS", 50)
    schedule = Mixed(6)
    count = check_schedule(schedule, 400, slots={"memory": 6})
    assert Mixed(6).forward_steps(400) == count.forward_steps
    assert count.forward_steps <= Revolve(6).forward_steps(400)


def test_a_slot_is_freed_for_saved_values():
    """A restart state that is worth less than what its step saves is moved, and replaced by that."""
    position = Position(steps=2, state=None, forward_ended=True, snapshots=(Snapshot(0),))
    assert Mixed(1).next_action(position) == Move(step=0)
    position = position.after(Move(step=0))
    assert Mixed(1).next_action(position) == Forward(start=0, stop=1, snapshot=True, kind="saved")


def test_fewer_units_midway():
    """With fewer units than are held snapshots are deleted, before anything else is done."""
    position = Position(steps=200)
    while not position.forward_ended:
        position = position.after(Mixed(12).next_action(position))
    position = replace(position, saved=None, state=None, reversed=1)
    held = len(position.snapshots)
    schedule = replace(Mixed(12), units=5)
    while isinstance(action := schedule.next_action(position), Delete):
        position, held = position.after(action), held - 1
    assert held == len(position.snapshots) == 5
    count = check_schedule(schedule, 200, start=position, slots={"memory": 5})
    assert count.forward_steps == schedule.forward_steps_left(position)


def test_an_interrupted_action_goes_on_at_no_cost():
    """A working state anywhere on the way leads to the same total as if nothing had happened."""
    for schedule in (Mixed(3), Mixed(7, 2, 3), Mixed(9, 3, 2)):
        position, done, steps = Position(steps=50), 0, 50
        while (action := schedule.next_action(position)) is not None:
            if isinstance(action, Forward):
                if action.stop - action.start > 1:
                    action = replace(action, stop=action.start + 1)
                done += 1
            position = position.after(action)
        assert done == schedule.forward_steps(steps)


def test_it_is_a_value():
    """Equal, hashable, printed and pickled by its sizes alone, whatever tables it has made."""
    used, new = Mixed(5, 2, 3), Mixed(5, 2, 3)
    used.forward_steps(500)
    assert used == new != Mixed(5, 2, 2)
    assert hash(used) == hash(new)
    assert repr(used) == repr(new) == "Mixed(units=5, restart=2, saved=3)"
    assert len(pickle.dumps(used)) == len(pickle.dumps(new)) < 200
    assert pickle.loads(pickle.dumps(used)) == used


@pytest.mark.parametrize("seed", range(40))
def test_more_units_in_the_reverse_sweep(seed):
    """
    Each sweep keeps to its own units, and what is predicted is what is run: no more than with those of the forward
    sweep, and no fewer than with those of the reverse sweep.
    """
    generator = random.Random(seed)
    for _ in range(8):
        steps, restart, saved = generator.randint(1, 120), generator.randint(1, 4), generator.randint(1, 6)
        units = generator.randint(restart, 6 * restart + 3 * saved)
        reverse = units + generator.randint(1, 5) * restart
        schedule, sizes = Mixed(units, restart, saved, reverse), {"restart": restart, "saved": saved}
        count = check_schedule(schedule, steps, slots={"memory": reverse}, sizes=sizes)
        assert count.forward_steps == schedule.forward_steps(steps)
        assert count.used["memory"] <= schedule.peak(steps, restart=restart, saved=saved)
        fewest, most = (Mixed(one, restart, saved).forward_steps(steps) for one in (reverse, units))
        assert fewest <= count.forward_steps <= most
        position = Position(steps=steps)
        while not position.forward_ended:
            assert schedule.free(position) >= 0
            position = position.after(schedule.next_action(position))
        assert schedule.free(position) >= reverse - units


def test_few_units_more_in_the_reverse_sweep_are_most_of_the_gain():
    """A thousand steps with three slots, and five in the reverse sweep, are near to those with five."""
    assert [Mixed(3).forward_steps(1000), Mixed(3, reverse=5).forward_steps(1000)] == [12_986, 7_211]
    assert Mixed(5).forward_steps(1000) == 6_828


def test_units_of_the_reverse_sweep_are_part_of_the_value():
    """In print, JSON and pickles; of fewer units both sweeps have as many."""
    one = Mixed(5, 2, 3, reverse=9)
    assert one != Mixed(5, 2, 3)
    assert repr(one) == "Mixed(units=5, restart=2, saved=3, reverse=9)"
    assert pickle.loads(pickle.dumps(one)) == schedule_from_json(schedule_to_json(one)) == one
    assert (one.with_units(7), one.most) == (Mixed(7, 2, 3), 9)


@pytest.mark.parametrize("reverse", [4, 6, 8, -1])
def test_units_of_the_reverse_sweep_are_restart_states_more(reverse):
    """The table of both sweeps is one."""
    with pytest.raises(ScheduleError, match=f"{reverse} units in the reverse sweep, which are not the 5"):
        Mixed(5, 2, 3, reverse)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (3, 4, 1), (3, 0, 1), (3, 1, 0), (-1, -1, 1)])
def test_what_does_not_fit_is_refused(sizes):
    """Without room for the initial state, or with sizes below 1, the error names the sizes."""
    with pytest.raises(ScheduleError, match=f"{sizes[0]} units do not hold a restart state of {sizes[1]}"):
        Mixed(*sizes)


@pytest.mark.parametrize(("units", "restart", "saved"), [(70, 12, 25), (23, 2, 5), (40, 5, 2), (61, 7, 7), (90, 11, 3)])
def test_fewer_units_share_a_table_and_are_as_good_as_new(units, restart, saved):
    """A schedule that took over the table of another gives the actions of an equal one with a table of its own."""
    steps = 30
    whole = Mixed(units, restart, saved)
    whole.forward_steps(steps)  # makes the table
    for less in range(restart, units + 1):
        fewer = whole.with_units(less)
        assert restart <= fewer.units <= less
        again, position = replace(fewer), Position(steps=steps)
        assert again == fewer
        while (action := fewer.next_action(position)) is not None:
            assert action == again.next_action(position)
            position = position.after(action)
        # The units that a loop has left when it gave up what it held, from any position of a larger schedule.
        position = Position(steps=steps)
        for _ in range(25):
            position = position.after(whole.next_action(position))
            if position.snapshots[0].kind == "restart":
                assert fewer.next_action(position) == again.next_action(position)


@pytest.mark.parametrize(
    ("units", "restart", "saved"),
    [(10**6, 54_321, 12_345), (20_000, 97, 131), (10**6, 12_345, 54_321), (10**9, 7_654_321, 23_456_789)],
)
def test_sizes_without_a_common_measure(units, restart, saved):
    """The fewest steps, by a recursion over restart states alone: saved values are stored last."""
    most, steps = units // restart, 120
    least = np.full((most + 2, steps + 1), np.inf)
    for held in range(most, -1, -1):
        free = units - held * restart
        for n in range(1, steps + 1):
            least[held, n] = n if n <= free // saved + 1 else np.inf
            if free >= restart and n > 1:
                j = np.arange(1, n)
                least[held, n] = min(least[held, n], np.min(j + least[held + 1, n - 1 : 0 : -1] + least[held, 1:n]))
    schedule, sizes = Mixed(units, restart, saved), {"restart": restart, "saved": saved}
    assert [schedule.forward_steps(n) for n in range(1, steps + 1)] == least[0, 1:].tolist()
    for n in (5, 40, steps):
        count = check_schedule(schedule, n, slots={"memory": units}, sizes=sizes)
        assert count.forward_steps == least[0, n]


def test_an_answer_does_not_depend_on_earlier_questions():
    """The rows of a table are those of the sizes, whatever loop it was made for."""
    position = Position(steps=20).after(Forward(start=0, stop=1, snapshot=True))
    for sizes in ((10**6, 12_345, 54_321), (10**6, 54_321, 12_345), (2000, 1, 1), (10_007, 3, 101)):
        asked, fresh = Mixed(*sizes), Mixed(*sizes)
        asked.forward_steps(400)
        assert asked.next_action(position) == fresh.next_action(position)
        assert asked.forward_steps(20) == fresh.forward_steps(20)


@pytest.mark.parametrize("slots", [600, 1000, 2000])
def test_more_slots_than_rows(slots):
    """Of many slots each state counts where little is free: never more steps than with restart states alone."""
    for steps in (slots + 100, 3 * slots):
        assert Mixed(slots).forward_steps(steps) <= Revolve(slots).forward_steps(steps)


def left_with(schedule, position, held, free):
    """About how many forward steps are left with some snapshots, summed up one by one from the last to the first."""
    table = MixedTable(position.steps, schedule.units, schedule.restart, schedule.saved)
    end, state, total = position.end, position.state, 0.0

    def cost(units, length, most):
        found = table.cost(table.row(units), length)
        return found if found < math.inf else most * (most + 1) / 2

    if state is not None and position.snapshots[-1].step < state < end:
        total, end = cost(free, end - state, end - held[-1].step), state
    for place in range(len(held) - 1, -1, -1):
        kept = held[place]
        saved = kept.kind == "saved"
        size = (schedule.saved if saved else schedule.restart) * (kept.tier == "memory")
        start = kept.step + saved
        if start < end:
            total += cost(max(free, 0) + size, end - start, end - start)
            total += saved * (start - (held[place - 1].step if place else 0))
        free, end = free + size, kept.step
    return total


@pytest.mark.parametrize("seed", range(60))
def test_what_is_given_up_leaves_the_fewest_steps(seed):
    """Of what is in memory behind the way back that is given up whose loss is least, if that is worth its room."""
    generator = random.Random(seed)
    steps = generator.randint(4, 90)
    schedule = Mixed(generator.randint(9, 30), generator.randint(1, 4), generator.randint(1, 4))
    places = sorted(generator.sample(range(1, steps - 1), min(steps - 2, generator.randint(1, 12))))
    kinds, tiers = ["restart", "restart", "saved"], ["memory", "memory", "memory", "disk"]
    held = (Snapshot(0), *(Snapshot(step, generator.choice(kinds), generator.choice(tiers)) for step in places))
    position = Position(steps=steps, state=generator.choice([None, steps - 1, places[-1]]), snapshots=held)
    free = schedule.free(position)
    spare = [kept for kept in held[1:] if kept.tier == "memory"]
    without = [
        left_with(
            schedule,
            position,
            [kept for kept in held if kept is not gone],
            free + (schedule.saved if gone.kind == "saved" else schedule.restart),
        )
        for gone in spare
    ]
    expected = spare[without.index(min(without))].step if spare else None
    if free >= 0 and spare and min(without) >= left_with(schedule, position, held, free):
        expected = None
    assert schedule.find_surplus(position, free) == expected


def test_the_latest_snapshot_is_worth_all_runs_of_the_steps_ahead():
    """Where nothing more can be stored, each of these is run from the latest snapshot that is left."""
    schedule, held = Mixed(3), tuple(map(Snapshot, (0, 2, 5, 6)))
    position = Position(steps=12, state=7, snapshots=held)
    left = {kept.step: schedule.forward_steps_left(position.after(Delete(step=kept.step))) for kept in held[1:]}
    assert left == {2: 27, 5: 27, 6: 30}
    assert left[schedule.find_surplus(position)] == 27


MANY = (Mixed(1000), Mixed(600, 1, 7), Hierarchical(2, 500), Hierarchical(10, 1000))


@pytest.mark.parametrize("schedule", MANY, ids=str)
@pytest.mark.parametrize("steps", [33_000, 100_000, 10**6])
def test_tables_that_end_before_many_slots_do(schedule, steps):
    """Beyond the table sums are made of sums, once for each slot: deeper than calls may go."""
    position = Position(steps=steps)
    for _ in range(5):
        position = position.after(schedule.next_action(position))
    assert position.snapshots


def test_what_is_remembered_beyond_the_table_is_bounded(monkeypatch):
    """Of a long first sweep few sums are kept, and the actions are those of one that remembers all."""
    monkeypatch.setattr("ebbtide.schedules.mixed_table.MOST_STEPS", 50)
    position, most, schedule, asked = Position(steps=3000), 0, Mixed(60), Mixed(60)
    trace = [position]
    while not position.forward_ended:
        position = position.after(schedule.next_action(position))
        trace.append(position)
    monkeypatch.setattr("ebbtide.schedules.splits.MOST_SUMS", 200)
    for before, after in pairwise(trace):
        assert before.after(asked.next_action(before)) == after
        most = max(most, len(asked._tables[0]._known))
    assert most < len(schedule._tables[0]._known) / 2
