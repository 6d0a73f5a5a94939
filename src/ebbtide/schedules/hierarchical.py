"""Two tiers of slots, memory and disk, with the least cost for what steps and transfers really cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import final

import numpy as np

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, copy, delete, move, run
from ebbtide.schedules.asked import check_costs, steps_of_time
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.block import block_action, make_way_back
from ebbtide.schedules.continuing import describe_loss, restart_action
from ebbtide.schedules.costs import Costs
from ebbtide.schedules.hierarchical_table import HierarchicalTable
from ebbtide.schedules.position import Position
from ebbtide.schedules.records import make_plain
from ebbtide.schedules.splits import leave_out_each


@final
@dataclass(frozen=True, slots=True)
class Hierarchical(Schedule):
    """
    The least cost with slots in memory, which cost nothing, and slots on disk, which are written and read in line.

    It goes on from any position that can be completed: with snapshots of either tier lost, with a working state
    between two snapshots, or with other numbers of slots than the sweep began with.

    Args:
        memory: The largest number of snapshots in memory.
        disk: The largest number of snapshots on disk.
        costs: What a forward step, a write and a read cost; `costs.reverse` changes nothing.

    Raises:
        ScheduleError: A number of slots is negative, or both are 0.

    Memory:
        Who follows it holds at most `memory` restart states in memory and `disk` on disk, the working state, and the
        saved values of one step. The schedule itself holds a table of 12 bytes for each step and each slot on disk, at
        most 50 MB, and 15 MB for longer loops, and one more where another schedule's saved values take slots in memory;
        it is made at the first question and is no part of ==, repr and pickle. Where that is not enough for all slots,
        there may be a schedule that makes more of them.

    Source:
        Herrmann and Pallez, H-Revolve, ACM TOMS 46 (2020), doi 10.1145/3378672. Loops of more steps than the table has
        begin with the places of `Revolve`.

    Example:
        >>> schedule = Hierarchical(10, 10, Costs(write=2, read=2))
        >>> schedule.predicted_time(1000, schedule.costs) - 1000 * schedule.costs.reverse
        3847.0
    """

    memory: int
    disk: int
    costs: Costs = field(default_factory=Costs)
    # At most two tables, those of the longest loop so far: with all slots, and with those beside what others stored.
    _tables: list[HierarchicalTable] = field(
        default_factory=list[HierarchicalTable], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        make_plain(self, "memory", "disk")
        check_costs(self.costs, "Hierarchical")
        if min(self.memory, self.disk) < 0 or self.memory + self.disk < 1:
            raise ScheduleError(
                f"Hierarchical needs at least one slot, in memory or on disk, not {self.memory} and {self.disk}. "
                "Give numbers of at least 0, not both 0."
            )

    def __reduce__(self) -> tuple[type[Hierarchical], tuple[int, int, Costs]]:
        return Hierarchical, (self.memory, self.disk, self.costs)

    def next_action(self, position: Position) -> Action | None:
        """See `Schedule.next_action`; the first question makes a table, in time that grows with the steps."""
        return restart_action(position, self)

    def predicted_time(self, steps: int, costs: Costs) -> float:
        """
        Return the time of a whole gradient, transfers in line; by the table if the costs are those of the schedule.

        Args:
            steps: The number of steps of the loop.
            costs: What steps and transfers cost.

        Returns:
            The time; of a loop that is longer than the table it may be a little more than what following takes.
        """
        steps = steps_of_time(steps, costs)
        same = (costs.forward, costs.write, costs.read) == (self.costs.forward, self.costs.write, self.costs.read)
        if not same or steps == 0:
            # Not `super()`: a class with slots is made anew, and does not find itself in it.
            return Schedule.predicted_time(self, steps, costs)
        return self._table(steps).fresh(self.disk, steps) + costs.reverse * steps

    def choose(self, position: Position) -> Action:
        """See `RestartSchedule.choose`."""
        snapshots, end, state = position.snapshots, position.end, position.state
        if state == end - 1 and snapshots and snapshots[0].step == 0:
            return run(end - 1, end, save=True)
        on_disk = position.on_disk
        if on_disk > self.disk:
            surplus = self._find_surplus(position)
            if surplus is not None:
                return delete(surplus)
        way_back = make_way_back(position, self)
        if way_back is not None:
            return way_back
        if snapshots and snapshots[-1].tier == "memory":
            return block_action(position, self.memory)
        free = max(0, self.disk - on_disk)
        if state is None or state >= end or (snapshots and state < snapshots[-1].step):
            return self._load(position)
        if not snapshots:
            return self._start(position, state, free)
        latest = snapshots[-1].step
        table, length = self._table(position.steps), end - latest
        place = table.place(free + 1, length)
        if state == latest:
            return run(state, state + place) if place > 0 else delete(latest)
        target = latest + place
        if state < target:
            forward = table.costs.forward
            here = table.fresh(free, end - state) + table.stored(free + 1, state - latest)
            there = forward * (target - state) + table.fresh(free, end - target) + table.stored(free + 1, place)
            # By rounding alone it would run on where both are equal, and no longer as predicted.
            if there < here * (1 - 1e-12):
                return run(state, target)
        return self._start(position, state, free)

    def find_room(self, position: Position) -> str | None:
        """See `Roomy.find_room`."""
        on_disk = position.on_disk
        if on_disk < self.disk:
            return "disk"
        return "memory" if len(position.snapshots) - on_disk < self.memory else None

    def beside(self, memory: int, disk: int) -> Hierarchical:
        """See `RestartSchedule.beside`."""
        if not memory and not disk:
            return self
        slots, on_disk = max(0, self.memory - memory), max(0, self.disk - disk)
        if not slots and not on_disk:
            slots, on_disk = (0, 1) if self.disk else (1, 0)
        fewer = Hierarchical(slots, on_disk, self.costs)
        # Its tables are kept with ours: it is asked for at each action.
        object.__setattr__(fewer, "_tables", self._tables)
        return fewer

    def _load(self, position: Position) -> Action:
        """The working state is of no use: load the last snapshot, for the last time if memory does alone from there."""
        latest = position.snapshots[-1].step
        length = position.end - latest
        free = self.disk - position.on_disk
        keep = length > 1 and (free >= 0 or self.memory == 0)
        keep = keep and self._table(position.steps).place(max(1, free + 1), length) > 0
        return copy(latest) if keep else move(latest)

    def _start(self, position: Position, state: int, free: int) -> Action:
        """Between the working state and the end nothing is stored: write to disk, or go on with memory alone."""
        end = position.end
        length = end - state
        if length == 1:
            return run(state, end, save=True)
        if self._is_short(position, state, free):
            surplus = self._find_surplus(position)
            if surplus is not None:
                return delete(surplus)
        table = self._table(position.steps)
        slots = self.memory + position.on_disk - len(position.snapshots)
        if free > 0 and table.costs.write + table.stored(free, length) < table.alone(length, slots):
            place = table.place(free, length)
            return run(state, state + max(1, place), snapshot=True, tier="disk")
        if slots > 0:
            return block_action(position, self.memory)
        if not position.snapshots:
            raise describe_loss(position)
        return run(state, end - 1)

    def _find_surplus(self, position: Position) -> int | None:
        """
        The step of the snapshot on disk without which the least cost is left.

        If there are not too many, only of one whose slot is worth more for the steps ahead.
        """
        table, first, end, state = self._table(position.steps), position.snapshots[0].step, position.end, position.state
        held = np.array([kept.step for kept in position.snapshots if kept.tier == "disk"])
        if len(held) == 0:
            return None
        in_hand = state is not None and position.snapshots[-1].step < state < end

        def ahead(count: int) -> float:
            """The cost from the working state on with so many snapshots on disk."""
            return table.fresh(max(0, self.disk - count), end - state) if in_hand and state is not None else 0.0

        stops = np.append(held[1:], end if state is None or not in_hand else state)
        slots = self.disk - np.arange(len(held))
        here, more = (table.all_stored(np.maximum(1, slots + one), stops - held) for one in (0, 1))
        joined = table.all_stored(np.maximum(1, slots[:-1]), stops[1:] - held[:-1])
        without = np.append(more[1:].sum(), leave_out_each(here, more, joined)) + ahead(len(held) - 1)
        least, surplus = float(here.sum()) + ahead(len(held)) if len(held) <= self.disk else inf, None
        for step, cost in zip(held.tolist(), without.tolist(), strict=True):
            # The first of all is the way back to the first steps.
            if step != first and cost < least * (1 - 1e-12):
                least, surplus = cost, step
        return surplus

    def _is_short(self, position: Position, state: int, free: int) -> bool:
        """Whether the last of the steps ahead costs more in the first sweep than it would with all slots."""
        if position.forward_ended or not position.snapshots:
            return False
        table, end = self._table(position.steps), position.end
        here, whole = (
            table.fresh(disk, length) - table.fresh(disk, length - 1)
            for disk, length in ((free, end - state), (self.disk, end))
        )
        return not here <= whole * (1 + 1e-12)

    def _table(self, steps: int) -> HierarchicalTable:
        """The table for a loop of so many steps; that of a longer loop does, too, if it tells the same."""
        for table in self._tables:
            if table.memory == self.memory and table.serves(steps, self.disk):
                return table
        self._tables[:] = [table for table in self._tables[-1:] if table.memory != self.memory]
        table = HierarchicalTable(steps, self.memory, max(1, self.disk), self.costs)
        self._tables.append(table)
        return table  # not what is there now, which a loop of another thread may have replaced
