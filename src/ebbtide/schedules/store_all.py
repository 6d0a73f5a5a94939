"""The schedule that keeps the saved values of all steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, copy, delete, move, run
from ebbtide.schedules.asked import check_position, steps_and_sizes, steps_of, steps_of_time
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.continuing import count_base, describe_loss, forced_action, require_way_back
from ebbtide.schedules.costs import Costs
from ebbtide.schedules.position import Position
from ebbtide.schedules.snapshots import TIERS, find_place


@final
@dataclass(frozen=True, slots=True)
class StoreAll(Schedule):
    """
    Keep the saved values of all steps: no step runs twice, and memory or disk grows with the number of steps.

    What is lost is made again if there is a state to run from, that is a restart state or the working state. With
    `"disk"` a time loop keeps its initial state for that, beside what is scheduled.

    Args:
        tier: `"memory"`, where they stay at hand, or `"disk"`, where each step but the last has a snapshot of what it
            saves.

    Raises:
        ScheduleError: The tier is neither.

    Memory:
        Who follows it holds the saved values of every step from its run to its reversal; with `"disk"` those of one
        step in memory. No restart state is stored.

    Example:
        >>> StoreAll().next_action(Position(steps=7))
        Forward(start=0, stop=7, snapshot=False, save=True, kind='restart', tier='memory', drop=False)
        >>> StoreAll("disk").next_action(Position(steps=7))
        Forward(start=0, stop=1, snapshot=True, save=False, kind='saved', tier='disk', drop=False)
    """

    tier: str = "memory"

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ScheduleError(f"StoreAll has no tier {self.tier!r}. Give one of {TIERS}.")

    def next_action(self, position: Position) -> Action | None:
        """See `Schedule.next_action`."""
        check_position(position)
        if position.finished:
            return None
        base = count_base(position)
        require_way_back(position, base)
        action = forced_action(position, self)
        return self._choose(position, base) if action is None else action

    def forward_steps(self, steps: int) -> int:
        """
        Return `steps`: each step runs once.

        Example:
            >>> StoreAll().forward_steps(100)
            100
        """
        return steps_of(steps)

    def peak_snapshots(self, steps: int) -> int:
        """Return the number of steps but one with the tier `"disk"`, 0 with `"memory"`."""
        steps = steps_of(steps)
        return max(0, steps - 1) if self.tier == "disk" else 0

    def peak(self, steps: int, tier: str = "memory", *, restart: int = 1, saved: int = 1) -> int:
        """
        Return the largest size of what a loop holds at the same time; see `Schedule.peak`.

        Example:
            >>> StoreAll().peak(100, saved=8), StoreAll("disk").peak(100, saved=8)
            (800, 8)
        """
        steps, restart, saved = steps_and_sizes(steps, tier, restart, saved)
        if self.tier == "disk":
            return (max(0, steps - 1) if tier == "disk" else min(1, steps)) * saved
        return steps * saved if tier == "memory" else 0

    def predicted_time(self, steps: int, costs: Costs) -> float:
        """
        Return the time of a whole gradient: each step forward and back, and to disk and from it with that tier.

        Args:
            steps: The number of steps of the loop.
            costs: What steps and transfers cost.
        """
        steps = steps_of_time(steps, costs)
        transfers = self.peak_snapshots(steps)
        return costs.time(forward=steps, reverse=steps, writes=transfers, reads=transfers)

    def find_room(self, position: Position) -> str | None:
        """See `Roomy.find_room`."""
        return self.tier

    def _choose(self, position: Position, base: int) -> Action:
        """The next step to reverse is not at hand."""
        snapshots, end, state = position.snapshots, position.end, position.state
        last = snapshots[-1] if snapshots else None
        if last is not None:
            if last.step >= end:
                return delete(last.step)
            if position.forward_ended and last.step == end - 1 and last.kind == "saved":
                return move(last.step)
        # Perhaps the working state is the only way back to the first steps that have no snapshot of their own.
        if state is None or not state <= base < end:
            restarts = (kept.step for kept in reversed(snapshots) if kept.kind == "restart" and kept.step < end)
            latest = next(restarts, None)
            if state is None or state >= end or (latest is not None and latest > state):
                if latest is None:
                    raise describe_loss(position)
                return move(latest) if self.tier == "memory" or latest == end - 1 else copy(latest)
        if self.tier == "memory" or state == end - 1:
            return run(state, end, save=True)
        if last is not None and last.step >= state:
            place, missing = find_place(snapshots, state), state
            while place < len(snapshots) and snapshots[place].step == missing:
                missing, place = missing + 1, place + 1
            if missing > state:
                return run(state, min(missing, end - 1))
        return run(state, state + 1, snapshot=True, kind="saved", tier="disk")
