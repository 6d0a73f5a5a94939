"""The contract of a schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ebbtide.schedules.actions import Action
from ebbtide.schedules.asked import check_position, steps_and_sizes, steps_of, steps_of_time
from ebbtide.schedules.costs import Costs
from ebbtide.schedules.position import Position
from ebbtide.schedules.simulate import simulate


class Schedule(ABC):
    """
    When to store a snapshot, recompute and reverse: a pure function of the position.

    A schedule holds parameters and no state. Whoever knows the position can ask for the next action:
    after a kill, after a lost snapshot, or from another schedule midway. `next_action` is all that a schedule
    must have; what it predicts is found by following it, unless it knows a closed form.
    """

    __slots__ = ()

    @abstractmethod
    def next_action(self, position: Position) -> Action | None:
        """
        Return what to do next.

        Args:
            position: Where the loop stands.

        Returns:
            The action, or None when the position is finished.

        Raises:
            ScheduleError: It is no position, or no action leads on from it.
        """

    def forward_steps(self, steps: int) -> int:
        """
        Return the number of forward steps of a whole gradient.

        Args:
            steps: The number of steps of the loop.

        Returns:
            All runs of all steps, those whose values are saved included.

        Raises:
            ScheduleError: `steps` is no whole number, or negative.
        """
        return self.forward_steps_left(Position(steps=steps_of(steps)))

    def forward_steps_left(self, position: Position) -> int:
        """
        Return the number of forward steps from a position to the end.

        Args:
            position: A position from which `next_action` leads on.

        Returns:
            All runs of all steps from here on.

        Raises:
            ScheduleError: It is no position, or it cannot be completed.
        """
        check_position(position)
        return simulate(self.next_action, position).forward_steps

    def peak_snapshots(self, steps: int) -> int:
        """
        Return the largest number of snapshots that are stored at the same time, in all tiers together.

        Args:
            steps: The number of steps of the loop.

        Raises:
            ScheduleError: `steps` is no whole number, or negative.
        """
        return simulate(self.next_action, Position(steps=steps_of(steps))).peak_snapshots

    def peak(self, steps: int, tier: str = "memory", *, restart: int = 1, saved: int = 1) -> int:
        """
        Return the largest size of what the schedule makes a loop hold at the same time in a tier.

        It is that of the snapshots of both kinds and, in memory, of the saved values at hand. The working
        state is not part of it, nor are cotangents.

        Args:
            steps: The number of steps of the loop.
            tier: `"memory"` or `"disk"`.
            restart: The size of one restart state, in bytes or any unit.
            saved: The size of what one step saves, in the same unit.

        Returns:
            The size, in this unit.

        Raises:
            ScheduleError: `steps` or a size is no number, or negative; there is no such tier.
        """
        steps, restart, saved = steps_and_sizes(steps, tier, restart, saved)
        found = simulate(self.next_action, Position(steps=steps), restart=restart, saved=saved)
        return found.peak_memory if tier == "memory" else found.peak_disk

    def predicted_time(self, steps: int, costs: Costs) -> float:
        """
        Return the time of a whole gradient, transfers not hidden behind steps unless the schedule says so.

        Args:
            steps: The number of steps of the loop.
            costs: What steps and transfers cost.

        Returns:
            The sum of the costs of all runs, reversals, writes to disk and reads from it, in the unit of `costs`.

        Raises:
            ScheduleError: `steps` is no whole number, or negative; the costs are no `Costs`.
        """
        steps = steps_of_time(steps, costs)
        found = simulate(self.next_action, Position(steps=steps))
        return costs.time(
            forward=found.forward_steps, reverse=steps, writes=found.disk_writes, reads=found.disk_reads
        )
