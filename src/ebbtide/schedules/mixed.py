"""Snapshots that hold a restart state or the saved values of one step, whichever is worth more."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import final

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, Forward, copy, delete, move, run
from ebbtide.schedules.asked import check_position, steps_and_sizes, steps_of
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.continuing import count_base, describe_loss, forced_action
from ebbtide.schedules.mixed_table import MixedTable, run_each
from ebbtide.schedules.position import Position, Snapshot
from ebbtide.schedules.records import make_plain
from ebbtide.schedules.splits import leave_out_each

_Numbers = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Mixed(Schedule):
    """
    The fewest forward steps if a snapshot may hold a restart state or what one step saves for its reverse sweep.

    It goes on from any position that can be completed: with snapshots lost, with a working state between two
    snapshots, or with another number of units than the sweep began with. It takes the fewest steps from the beginning
    where at most 510 restart states fit, the table is as long, and both sweeps have as many units; else about as few.

    Args:
        units: The size of the memory for snapshots, in any unit, such as bytes.
        restart: The size of one restart state, in this unit.
        saved: The size of what one step saves, in this unit. Steps whose saved values are stored are neighbors, and the
            last of them is the one before what is at hand: of what two of them share, such as the state between
            them, each counts it once.
        reverse: The size of the memory for snapshots in the reverse sweep, where some restart states more fit then; as
            large as that of the forward sweep if it is 0.

    Raises:
        ScheduleError: A size is less than 1, not even one restart state fits, or *reverse* is something else.

    Memory:
        Who follows it holds snapshots of at most `units`, in the reverse sweep of `reverse`, the working state, and the
        saved values of one step. The schedule itself holds a table of 12 bytes for each step and each number of free
        units that can occur, at most 50 MB, and 15 MB for longer loops; it is made at the first question and is no part
        of ==, repr and pickle.

    Source:
        Maddison, Step-based checkpointing with high-level algorithmic differentiation, J. Comput. Sci. 82 (2024),
        doi 10.1016/j.jocs.2024.102405: the recursion for equal sizes. Zhang and Constantinescu, CAMS, arXiv 2106.13879:
        unequal sizes.

    Example:
        >>> Mixed(5).forward_steps(100), Mixed(10).forward_steps(100)
        (352, 237)
        >>> Mixed(12, restart=1, saved=3).forward_steps(100)
        268
        >>> Mixed(3).forward_steps(1000), Mixed(3, reverse=5).forward_steps(1000), Mixed(5).forward_steps(1000)
        (12986, 7211, 6828)
    """

    units: int
    restart: int = 1
    saved: int = 1
    reverse: int = 0
    # At most one table, that of the longest loop so far.
    _tables: list[MixedTable] = field(default_factory=list[MixedTable], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        make_plain(self, "units", "restart", "saved", "reverse")
        if min(self.restart, self.saved) < 1 or self.units < self.restart:
            raise ScheduleError(
                f"Mixed needs room for the initial state, and sizes of at least 1: {self.units} units do not hold a "
                f"restart state of {self.restart} (one step saves {self.saved}). Give more units."
            )
        if self.reverse and (self.reverse < self.units or (self.reverse - self.units) % self.restart):
            raise ScheduleError(
                f"Mixed has {self.reverse} units in the reverse sweep, which are not the {self.units} of the forward "
                f"sweep and some restart states of {self.restart} more. Give reverse= so many, or 0."
            )

    def __repr__(self) -> str:
        more = f", reverse={self.reverse}" if self.reverse else ""
        return f"Mixed(units={self.units}, restart={self.restart}, saved={self.saved}{more})"

    def __reduce__(self) -> tuple[type[Mixed], tuple[int, int, int, int]]:
        return Mixed, (self.units, self.restart, self.saved, self.reverse)

    @property
    def most(self) -> int:
        """The size of the memory for snapshots in that sweep which has more."""
        return max(self.units, self.reverse)

    def with_units(self, units: int) -> Mixed:
        """
        Return a schedule with fewer units, in both sweeps, which takes over the table if there is one.

        Args:
            units: The most units that it may have. It has as many as can be free, of those of this schedule, so that
                the table has all rows that it needs, and no others: at least one restart state.
        """
        units = max(self.restart, min(units, self.most))
        for table in self._tables:
            known = table.level(table.row(units))
            if known >= self.restart:
                fewer = Mixed(known, self.restart, self.saved)
                fewer._tables.append(table)
                return fewer
        return Mixed(units, self.restart, self.saved)

    def next_action(self, position: Position) -> Action | None:
        """See `Schedule.next_action`; the first question makes a table, in time that grows with the steps."""
        check_position(position)
        if position.finished:
            return None
        # In the middle of the reverse sweep, where most questions are asked, nothing is forced.
        if position.saved is not None or not position.forward_ended or position.end == 0:
            action = forced_action(position, self)
            if action is not None:
                return action
        return self._choose(position)

    def forward_steps(self, steps: int) -> int:
        """
        Return the number of forward steps of a whole gradient, the least where both sweeps have as many units.

        Args:
            steps: The number of steps of the loop.

        Returns:
            All runs of all steps, those whose values are saved included.

        Example:
            >>> Mixed(10).forward_steps(1000)
            3921
        """
        steps = steps_of(steps)
        table = self._table(steps)
        if not table.exact:
            return self.forward_steps_left(Position(steps=steps))
        if self.reverse <= self.units or steps == 0:
            return int(table.cost(table.row(self.units), steps))
        position, forward = Position(steps=steps), 0
        while not position.forward_ended:
            action = self.next_action(position)
            assert action is not None
            forward += action.stop - action.start if isinstance(action, Forward) else 0
            position = position.after(action)
        return forward + self._interval_by_interval(position)

    def _interval_by_interval(self, position: Position) -> int:
        """Return the forward steps of a reverse sweep that begins, from one snapshot to the next."""
        snapshots, last = position.snapshots, position.end if position.saved is None else position.saved[0]
        steps = np.array([kept.step for kept in snapshots])
        saved = np.array([kept.kind == "saved" for kept in snapshots])
        sizes = np.array([self._size(kept) for kept in snapshots])
        if len(steps) == 0:
            return 0
        free = self.free(position) + sizes.sum() - np.cumsum(sizes) + sizes
        lengths = np.append(steps[1:], last) - (steps + saved)
        return int(self._table(position.steps).costs_of(free, lengths).sum())

    def peak(self, steps: int, tier: str = "memory", *, restart: int = 1, saved: int = 1) -> int:
        """
        Return a bound of the size of what a loop holds at the same time; see `Schedule.peak`.

        It is exact if the sizes are in the ratio of those of the schedule, and all units are taken.

        Example:
            >>> Mixed(10).peak(1000, restart=80, saved=80)
            880
        """
        steps, restart, saved = steps_and_sizes(steps, tier, restart, saved)
        if tier != "memory" or steps == 0:
            return 0
        # A unit of snapshots takes the most bytes of both kinds.
        numerator, denominator = restart, self.restart
        if saved * self.restart > restart * self.saved:
            numerator, denominator = saved, self.saved
        whole = -(-self.most * numerator // denominator)
        return min(whole, (steps - 1) * max(restart, saved)) + saved

    def free(self, position: Position) -> int:
        """Return how many units are free at a position; less than 0 if more is held than fits."""
        units = self.most if position.forward_ended else self.units
        if position.on_disk == 0:
            saved = position.saved_snapshots
            return units - self.restart * (len(position.snapshots) - saved) - self.saved * saved
        return units - sum(map(self._size, position.snapshots))

    def find_room(self, position: Position) -> str | None:
        """See `Roomy.find_room`."""
        return "memory" if self.free(position) >= self.restart else None

    def _choose(self, position: Position) -> Action:
        """The action where there is a choice."""
        snapshots, end, state = position.snapshots, position.end, position.state
        free = self.free(position)
        if not snapshots:
            if state != 0:
                raise describe_loss(position)
            return self._start(position, 0, free)
        top = snapshots[-1]
        if top.step >= end:
            return delete(top.step)
        if top.step == end - 1 and top.kind == "saved":
            return move(top.step)
        if free < 0:
            surplus = self.find_surplus(position, free)
            if surplus is not None:
                return delete(surplus)
        if snapshots[0].kind == "saved" or snapshots[0].step > 0:
            action = self._keep_way_back(position, free)
            if action is not None:
                return action
        if state is None or state >= end or state < top.step:
            latest = next((kept for kept in reversed(snapshots) if kept.kind == "restart"), None)
            if latest is not None and (state is None or state >= end or state < latest.step):
                return self._load(position, latest, free)
            if state is None or state >= end:
                raise describe_loss(position)
        if top.kind == "saved" and state <= top.step:
            return delete(top.step) if self._is_blocked(position, state, free) else run(state, top.step + 1)
        return self._start(position, state, free) if top.kind == "saved" else self._go_on(position, state, free)

    def _is_blocked(self, position: Position, state: int, free: int) -> bool:
        """Whether saved values of first steps, from the state on, have the room without which none behind them runs."""
        snapshots = position.snapshots
        more = position.end - snapshots[-1].step - 2
        if len(snapshots) > position.saved_snapshots or more == 0 or free >= min(self.restart, more * self.saved):
            return False
        if free + sum(self._size(kept) for kept in snapshots if kept.step >= state) < self.restart:
            raise describe_loss(position)
        return True

    def _load(self, position: Position, latest: Snapshot, free: int) -> Action:
        """The working state is of no use: load the latest restart state, and free its slot if that is worth more."""
        step, length = latest.step, position.end - latest.step
        if latest is not position.snapshots[-1]:
            # Saved values that lie above it are not yet of use, and its state will be wanted again after them.
            return copy(step)
        table = self._table(position.steps)
        row = table.row(free + self._size(latest))
        # Where nothing can be stored, it is run from again for each step.
        keep = length > 1 and (table.place(row, length) > 0 or table.cost(row, length) == inf)
        return copy(step) if keep else move(step)

    def _go_on(self, position: Position, state: int, free: int) -> Action:
        """The last snapshot is a restart state, and the working state is that of the same step or of a later one."""
        table, end, latest = self._table(position.steps), position.end, position.snapshots[-1]
        step = latest.step
        row, above = table.row(free + self._size(latest)), table.row(free)
        place = table.place(row, end - step)
        if state == step:
            if end - state == 1:
                return run(state, end, save=True)
            if table.cost(row, end - state) == inf:
                return run(state, end - 1)
            return run(state, state + place) if place > 0 else delete(step)
        target = step + place
        if state < target:
            here = table.cost(above, end - state) + table.cost(row, state - step)
            there = target - state + table.cost(above, end - target) + table.cost(row, place)
            if there < here:
                return run(state, target)
        return self._start(position, state, free)

    def _start(self, position: Position, state: int, free: int) -> Action:
        """Between the working state and the end nothing is stored: place the next snapshot."""
        end = position.end
        if end - state == 1:
            return run(state, end, save=True)
        if (end - state - 1) * self.saved <= free:
            # There is no less than to run each step once. Not by the table, which may have no row for so many units.
            return run(state, state + 1, snapshot=True, kind="saved")
        if self._is_short(position, state, free):
            surplus = self.find_surplus(position, free)
            if surplus is not None:
                return delete(surplus)
        table = self._table(position.steps)
        row = table.row(free)
        if table.cost(row, end - state) < inf:
            place = table.place(row, end - state)
            if place > 0:
                return run(state, state + place, snapshot=True)
            return run(state, state + 1, snapshot=True, kind="saved")
        if len(position.snapshots) == position.saved_snapshots:
            raise describe_loss(position)
        return run(state, end - 1)

    def _keep_way_back(self, position: Position, free: int) -> Action | None:
        """Without the initial state in a snapshot: all first steps must have their own, up to a restart state."""
        base, state, snapshots = count_base(position), position.state, position.snapshots
        if base >= position.end:
            return None
        restarts = len(snapshots) > position.saved_snapshots
        if restarts and any(kept.kind == "restart" and kept.step <= base for kept in snapshots):
            return None
        if state is None or state > base:
            raise describe_loss(position)
        top = snapshots[-1]
        if top.step < base:
            return None
        if free < self.restart or any(kept.step == state for kept in snapshots):
            return delete(top.step)
        return run(state, state + 1, snapshot=True)

    def find_surplus(self, position: Position, free: int = -1) -> int | None:
        """
        Return the step of the snapshot without which about the fewest forward steps are left.

        Args:
            position: Where the loop stands.
            free: The units that are free, less than 0 if more is held than fits. If no more is held, a snapshot is
                given up only if its units are worth more for the steps ahead.

        Returns:
            The step; None if there is no such snapshot beside the first.
        """
        base, snapshots = count_base(position), position.snapshots
        first = next((kept.step for kept in snapshots if kept.kind == "restart" and kept.step <= base), None)
        if first is None:  # all that is held may be needed to come back to the first steps
            return None
        steps = np.array([kept.step for kept in snapshots])
        saved = np.array([kept.kind == "saved" for kept in snapshots])
        sizes = np.array([self._size(kept) for kept in snapshots])
        whole, without = self._left(position, steps, saved, sizes, free)
        places = np.flatnonzero((steps[1:] > first) & (sizes[1:] > 0))
        if len(places) == 0:
            return None
        least = places[without[places].argmin()]
        return int(steps[1 + least]) if free < 0 or without[least] < whole else None

    def _left(
        self, position: Position, steps: _Numbers, saved: NDArray[np.bool_], sizes: _Numbers, free: int
    ) -> tuple[float, NDArray[np.float64]]:
        """About how many forward steps are left with all snapshots, and without each but the first."""
        table, end, state, latest = self._table(position.steps), position.end, position.state, int(steps[-1])
        in_hand = state is not None and latest < state < end

        def ahead(units: int, last: int) -> float:
            """From the working state on, to which a last snapshot leads back."""
            if state is None or not in_hand:
                return 0.0
            cost = table.cost(table.row(units), end - state)
            return cost if cost < inf else run_each(end - last)

        starts, stops = steps + saved, np.append(steps[1:], end if state is None or not in_hand else state)
        # Each is run with what is free behind it, and with its own units. Saved values are made from the one before.
        behind, lengths = free + sizes.sum() - np.cumsum(sizes), stops - starts
        again = starts - np.append(0, steps[:-1])

        def count(more: int) -> NDArray[np.float64]:
            """Forward steps of each interval."""
            cost = table.costs_of(np.maximum(behind + more, 0) + sizes, lengths)
            return cost + np.where(saved & (lengths > 0), again, 0)

        here = count(0)
        joined = table.costs_of((np.maximum(behind, 0) + sizes)[:-1], stops[1:] - starts[:-1])
        joined += np.where(saved[:-1], again[:-1], 0)
        # The saved values after one that is gone are made from the one before that.
        joined[:-1] += np.where((saved & (lengths > 0))[2:], steps[1:-1] - steps[:-2], 0)

        def leave_out(size: int) -> NDArray[np.float64]:
            """All forward steps without each snapshot but the first, if it is of this size."""
            return leave_out_each(here, count(size), joined) + ahead(free + size, latest)

        without = np.where(sizes[1:] == self.restart, leave_out(self.restart), leave_out(self.saved))
        if len(without) > 0:
            units = free + int(sizes[-1])
            without[-1] += ahead(units, int(steps[-2])) - ahead(units, latest)
        return float(here.sum()) + ahead(free, latest), without

    def _is_short(self, position: Position, state: int, free: int) -> bool:
        """Whether the last of the steps ahead costs more in the first sweep than it would with all units."""
        end, snapshots = position.end, position.snapshots
        if position.forward_ended or not snapshots or snapshots[-1].step >= state:
            return False
        table = self._table(position.steps)
        rows = (table.row(free), end - state), (table.row(self.units), end)
        here, whole = (table.cost(row, length) - table.cost(row, length - 1) for row, length in rows)
        return not here <= whole

    def _size(self, snapshot: Snapshot) -> int:
        """What a snapshot takes of the units; on disk it takes none."""
        if snapshot.tier != "memory":
            return 0
        return self.restart if snapshot.kind == "restart" else self.saved

    def _table(self, steps: int) -> MixedTable:
        """The table for a loop of so many steps; that of a longer loop does, too."""
        table = self._tables[0] if self._tables else None
        if table is None or table.steps < steps:
            self._tables[:] = [table := MixedTable(steps, self.most, self.restart, self.saved)]
        return table  # not what is there now, which a loop of another thread may have replaced
