from __future__ import annotations

import functools
import heapq
import math
import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from ebbtide.errors import ScheduleError
from ebbtide.schedules import Costs, Delete, Forward, Hierarchical, Position, Revolve, Schedule
from ebbtide.schedules.hierarchical_table import HierarchicalTable
from ebbtide.testing import check_schedule

COSTS = [(1, 1, 2, 2), (1, 3, 5, 5), (1, 10, 20, 20), (10, 2, 1, 1), (10, 1, 20, 20), (100, 1, 50, 50)]


def make_costs(forward, reverse, write, read):
    """The costs in the order of the literature: u_f, u_b, w, r."""
    return Costs(forward=forward, reverse=reverse, write=write, read=read)


def brute_force(steps, memory, disk, costs):
    """The least cost for all lengths, by trying every place, without any closed form or window."""

    @functools.cache
    def alone(length, slots):
        if length <= 1:
            return length * costs.forward
        if slots == 0:
            return math.inf
        return min(
            place * costs.forward + alone(place, slots) + alone(length - place, slots - 1) for place in range(1, length)
        )

    fresh = [alone(length, memory) for length in range(steps + 1)]
    for _ in range(disk):
        stored = [0.0]
        for length in range(1, steps + 1):
            ways = (
                place * costs.forward + fresh[length - place] + costs.read + stored[place] for place in range(1, length)
            )
            stored.append(min([alone(length, memory), *ways]))
        fresh = [min(alone(length, memory), costs.write + stored[length]) for length in range(steps + 1)]
    return fresh


def cost_of(count, costs, steps):
    """The cost of what was done."""
    return costs.time(
        forward=count.forward_steps, reverse=steps, writes=count.writes["disk"], reads=count.reads["disk"]
    )


@pytest.mark.parametrize("numbers", COSTS)
@pytest.mark.parametrize(("memory", "disk"), [(1, 1), (2, 3), (0, 3), (4, 4), (3, 0)])
def test_it_costs_the_least(numbers, memory, disk):
    """Followed to the end it costs what a search over all places finds, in each tier it holds no more than it may."""
    costs, most = make_costs(*numbers), 48
    schedule, expected = Hierarchical(memory, disk, costs), brute_force(most, memory, disk, make_costs(*numbers))
    for steps in range(1, most + 1):
        count = check_schedule(schedule, steps, slots={"memory": memory, "disk": disk})
        least = expected[steps] + steps * costs.reverse
        assert math.isclose(cost_of(count, costs, steps), least)
        assert math.isclose(schedule.predicted_time(steps, costs), least)
        assert count.snapshots_left == 0
        assert count.forward_steps == schedule.forward_steps(steps)


@pytest.mark.parametrize("numbers", COSTS)
def test_it_costs_the_least_in_long_loops(numbers):
    """The same at 200 steps with 5 slots in memory and 20 on disk."""
    costs = make_costs(*numbers)
    count = check_schedule(Hierarchical(5, 20, costs), 200, slots={"memory": 5, "disk": 20})
    assert math.isclose(cost_of(count, costs, 200), brute_force(200, 5, 20, costs)[200] + 200 * costs.reverse)


@pytest.mark.parametrize(
    ("steps", "memory", "disk", "numbers", "with_reverse", "expected"),
    [(200, 5, 20, (100, 1, 50, 50), True, 64_400), (1000, 10, 10, (1, 1, 2, 2), False, 3847)],
)
def test_published_values(steps, memory, disk, numbers, with_reverse, expected):
    """The least costs of an independent programme, the first with reversals included, the second without."""
    costs = make_costs(*numbers)
    count = check_schedule(Hierarchical(memory, disk, costs), steps, slots={"memory": memory, "disk": disk})
    assert cost_of(count, costs, steps if with_reverse else 0) == expected


def least_of_all(steps, memory, disk, costs):
    """The least cost of any sequence of runs, stores, loads and deletions at all, by Dijkstra's algorithm."""
    start = (steps, 0, False, ())
    heap, seen, number = [(0.0, 0, start)], set(), 0
    while heap:
        cost, _, place = heapq.heappop(heap)
        end, state, ended, held = place
        if end == 0:
            return cost
        if place in seen:
            continue
        seen.add(place)
        following = []
        for tier, slots, price in (("memory", memory, 0), ("disk", disk, costs.write)):
            if state is not None and sum(kept == tier for _, kept in held) < slots and (state, tier) not in held:
                following.append((price, (end, state, ended, tuple(sorted((*held, (state, tier)))))))
        for kept in held:
            following.append((0, (end, state, ended, tuple(other for other in held if other != kept))))
            following.append((costs.read if kept[1] == "disk" else 0, (end, kept[0], ended, held)))
        if state is not None and state < end - 1:
            following.append((costs.forward, (end, state + 1, ended, held)))
        elif state == end - 1:
            # The last step: saved, reversed, and the state behind it is of no use.
            following.append((costs.forward, (end - 1, None, True, held)))
        for price, after in following:
            if after not in seen:
                number += 1
                heapq.heappush(heap, (cost + price, number, after))
    raise AssertionError


@pytest.mark.parametrize("numbers", [(1, 1, 2, 2), (1, 1, 0.5, 0.25), (10, 1, 20, 20), (1, 1, 1, 0)])
@pytest.mark.parametrize(("memory", "disk"), [(1, 1), (1, 2), (2, 1), (0, 2)])
def test_nothing_at_all_costs_less(numbers, memory, disk):
    """For n <= 7 no sequence of actions costs less: the form of the recursion loses nothing."""
    costs = make_costs(*numbers)
    for steps in range(1, 8):
        found = Hierarchical(memory, disk, costs).predicted_time(steps, replace(costs, reverse=0))
        assert math.isclose(found, least_of_all(steps, memory, disk, costs))


@pytest.mark.parametrize("numbers", COSTS)
def test_the_window_is_exact(numbers, monkeypatch):
    """Up to 1500 steps the window gives the table of a search over all places."""
    found = HierarchicalTable(1500, 5, 20, make_costs(*numbers))._splits.costs
    monkeypatch.setattr("ebbtide.schedules.splits.FULL", 10**9)
    expected = HierarchicalTable(1500, 5, 20, make_costs(*numbers))._splits.costs
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_a_large_table_is_small():
    """The first action at 10,000 steps and 50 + 50 slots takes less than 200 MiB, and the table stays below 10."""
    schedule = Hierarchical(50, 50, Costs(write=2, read=2))
    tracemalloc.start()
    try:
        schedule.next_action(Position(steps=10_000))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * 2**20
    assert held < 10 * 2**20


def test_without_disk_it_is_revolve():
    """With no slot on disk, or with one that costs too much, the steps are those of Revolve."""
    for schedule in (Hierarchical(4, 0), Hierarchical(4, 5, Costs(write=1e6, read=1e6))):
        for steps in (1, 2, 17, 150):
            count = check_schedule(schedule, steps, slots={"memory": 4, "disk": 0})
            assert count.forward_steps == Revolve(4).forward_steps(steps)


def test_free_transfers_are_more_slots():
    """If transfers cost nothing, slots on disk are worth as much as those in memory."""
    for steps in (10, 77, 150):
        assert Hierarchical(3, 4).forward_steps(steps) == Revolve(7).forward_steps(steps)


def test_longer_than_the_table(monkeypatch):
    """Beyond the table the first places are those of Revolve, and the predicted cost is still what is done."""
    monkeypatch.setattr("ebbtide.schedules.hierarchical_table.MOST_STEPS", 60)
    costs = Costs(write=2, read=3)
    schedule = Hierarchical(3, 4, costs)
    count = check_schedule(schedule, 500, slots={"memory": 3, "disk": 4})
    assert math.isclose(cost_of(count, costs, 500), schedule.predicted_time(500, costs))


def test_beyond_the_table_no_more_is_taken_than_predicted(monkeypatch):
    """Of loops longer than the table the prediction is a bound, by at most a hundredth above what is done."""
    monkeypatch.setattr("ebbtide.schedules.hierarchical_table.MOST_STEPS", 40)
    costs, exact = Costs(forward=0.013, write=0.21, read=0.077), 0
    for disk in (3, 7, 16):
        schedule = Hierarchical(1, disk, costs)
        for steps in range(41, 100):
            count = check_schedule(schedule, steps, slots={"memory": 1, "disk": disk})
            ratio = schedule.predicted_time(steps, costs) / cost_of(count, costs, steps)
            assert 1 - 1e-12 <= ratio <= 1.01
            exact += ratio <= 1 + 1e-12
    assert exact > 100


@pytest.mark.parametrize("numbers", COSTS[:3])
@pytest.mark.parametrize("memory", [0, 2])
def test_more_slots_than_there_are_rows(memory, numbers, monkeypatch):
    """More slots on disk than a table has cells for never cost more, and as many as are of use the least."""
    monkeypatch.setattr("ebbtide.schedules.hierarchical_table.MOST_CELLS", 600)
    costs, steps, before = make_costs(*numbers), 100, math.inf
    ideal = brute_force(steps, memory, steps, costs)[steps] + steps * costs.reverse
    for disk in (3, 6, 7, 12, 25, 50, 100, 10_000):
        schedule = Hierarchical(memory, disk, costs)
        count = check_schedule(schedule, steps, slots={"memory": memory, "disk": min(disk, steps)})
        predicted = schedule.predicted_time(steps, costs)
        # Slots without a row are of some use, which nothing predicts.
        assert ideal <= cost_of(count, costs, steps) * (1 + 1e-12) <= predicted * (1 + 2e-12)
        assert predicted <= before
        before = predicted
    assert math.isclose(before, ideal)


@pytest.mark.parametrize("disk", [5, 200, 100_000])
def test_questions_before_change_no_answer(disk, monkeypatch):
    """A schedule that was asked of a longer loop says of a shorter one what another one says that was not."""
    for name, number in {"MOST_CELLS": 3000, "MOST_STEPS": 600, "_ALL_LENGTHS": 320, "_LEAST_LENGTHS": 160}.items():
        monkeypatch.setattr(f"ebbtide.schedules.hierarchical_table.{name}", number)
    costs = Costs(write=5, read=5)
    used = Hierarchical(2, disk, costs)
    for other, steps in ((40_000, 100), (1000, 30), (300, 299), (10, 1000), (330, 200)):
        fresh = Hierarchical(2, disk, costs)
        used.next_action(Position(steps=other))
        assert used.predicted_time(steps, costs) == fresh.predicted_time(steps, costs)
        position = Position(steps=steps)
        for _ in range(60):
            used.next_action(Position(steps=other))
            action = fresh.next_action(position)
            assert used.next_action(position) == action
            position = position.after(action)


@pytest.mark.parametrize(("memory", "disk"), [(2, 5), (5, 2), (0, 3), (3, 0)])
def test_fewer_slots_midway(memory, disk):
    """After the number of slots in either tier is lowered, what is too much is deleted, and nothing stored above it."""
    before = Hierarchical(8, 10, Costs(write=3, read=3))
    after = replace(before, memory=memory, disk=disk)
    position, taken = Position(steps=150), 0
    while (action := before.next_action(position)) is not None:
        position, taken = position.after(action), taken + 1
        if taken % 23 == 0:
            count = check_schedule(after, 150, start=position, slots={"memory": memory, "disk": disk})
            assert count.snapshots_left == 0


def test_deletions_come_first():
    """With more on disk than may be, snapshots are deleted one by one before anything else is done."""
    position = Position(steps=400)
    while not position.forward_ended:
        position = position.after(Hierarchical(3, 9).next_action(position))
    position = replace(position, saved=None, state=None, reversed=1)
    after = Hierarchical(3, 4)
    while isinstance(action := after.next_action(position), Delete):
        position = position.after(action)
    assert sum(kept.tier == "disk" for kept in position.snapshots) == 4


def test_an_interrupted_action_goes_on_at_no_cost():
    """A working state anywhere on the way leads to the same cost as if nothing had happened."""
    costs = Costs(write=2, read=2)
    schedule, position, done, transfers = Hierarchical(2, 3, costs), Position(steps=60), 0, 0
    while (action := schedule.next_action(position)) is not None:
        before = {kept for kept in position.snapshots if kept.tier == "disk"}
        if isinstance(action, Forward):
            transfers += action.snapshot and action.tier == "disk"
            action = replace(action, stop=action.start + 1)
            done += 1
        elif hasattr(action, "step"):
            transfers += any(kept.step == action.step for kept in before)
        position = position.after(action)
    assert done + 2 * transfers + 60 == schedule.predicted_time(60, costs)


def test_it_is_a_value():
    """Equal, hashable, printed and pickled by its parameters alone, whatever tables it has made."""
    used, new = Hierarchical(2, 3, Costs(read=2)), Hierarchical(2, 3, Costs(read=2))
    used.next_action(Position(steps=500))
    assert used == new != Hierarchical(2, 3)
    assert hash(used) == hash(new)
    assert repr(used) == repr(new)
    assert len(pickle.dumps(used)) == len(pickle.dumps(new)) < 300
    assert pickle.loads(pickle.dumps(used)) == used


@pytest.mark.parametrize(("memory", "disk"), [(0, 0), (-1, 3), (3, -1)])
def test_at_least_one_slot(memory, disk):
    """No slot at all is an error with both numbers."""
    with pytest.raises(ScheduleError, match=f"not {memory} and {disk}"):
        Hierarchical(memory, disk)


@pytest.mark.parametrize("wrong", [{"forward": 0}, {"forward": math.inf}, {"read": -1}, {"write": math.nan}])
def test_wrong_costs_are_refused(wrong):
    """Costs are finite and not negative, and a forward step costs something."""
    with pytest.raises(ScheduleError, match="no costs"):
        Costs(**wrong)


@pytest.mark.parametrize("name", ["forward", "reverse", "write", "read", "write_exposed", "read_exposed"])
@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["large", "negative"])
def test_costs_beyond_all_floats_are_refused(name, value):
    """A whole number that no float can be is out of range, like an infinite one."""
    with pytest.raises(ScheduleError, match=f"{name} is out of range"):
        Costs(**{name: value})


@pytest.mark.parametrize("name", ["forward", "write", "read"])
def test_costs_whose_sum_is_no_float_are_refused(name):
    """A single cost near the largest float made infinite ones, and of these an error about a lost initial state."""
    with pytest.raises(ScheduleError, match=f"{name} is out of range.*from 0 to 1e\\+290"):
        Costs(**{name: 1e308})
    schedule = Hierarchical(0, 3, Costs(**{name: 1e290}))
    count = check_schedule(schedule, 300, slots={"memory": 0, "disk": 3})
    moved = {"forward": count.forward_steps, "write": count.writes["disk"], "read": count.reads["disk"]}
    assert schedule.predicted_time(300, schedule.costs) == pytest.approx(1e290 * moved[name])


@pytest.mark.parametrize("other", [{"forward": 2.0}, {"write": 7.0}, {"read": 7.0}, {"reverse": 7.0}], ids=str)
def test_the_time_with_other_costs_is_that_of_following(other):
    """The table tells the time for the costs that it was made for only; each other one counts."""
    costs = Costs(write=2.0, read=2.0)
    changed = replace(costs, **other)
    found = Hierarchical(3, 3, costs).predicted_time(60, changed)
    assert found == pytest.approx(Schedule.predicted_time(Hierarchical(3, 3, costs), 60, changed))
    assert found > Hierarchical(3, 3, costs).predicted_time(60, costs)
