"""The contract of a schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ebbtide.schedules.actions import Action
from ebbtide.schedules.position import Position


class Schedule(ABC):
    """
    When to store a snapshot, recompute and reverse: a pure function of the position.

    A schedule holds parameters and no state. Whoever knows the position can ask for the next action:
    after a kill, after a lost snapshot, or from another schedule midway.
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
            ScheduleError: No action leads on from this position.
        """

    @abstractmethod
    def forward_steps(self, steps: int) -> int:
        """
        Return the number of forward steps of a whole gradient, by a closed form.

        Args:
            steps: The number of steps of the loop.

        Returns:
            All runs of all steps, those whose values are saved included.
        """

    @abstractmethod
    def peak_snapshots(self, steps: int) -> int:
        """
        Return the largest number of snapshots that are stored at the same time.

        Args:
            steps: The number of steps of the loop.
        """
