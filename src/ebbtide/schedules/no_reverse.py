"""The schedule of a loop that is never reversed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, EndForward, Forward
from ebbtide.schedules.asked import check_position, steps_and_sizes, steps_of, steps_of_time
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.costs import Costs
from ebbtide.schedules.position import Position


@final
@dataclass(frozen=True, slots=True)
class NoReverse(Schedule):
    """
    Run forward and keep nothing: for values without gradients, of a length that may be known or not.

    Memory:
        Who follows it holds the working state alone.

    Example:
        >>> NoReverse().next_action(Position(steps=7)).stop
        7
    """

    def next_action(self, position: Position) -> Action | None:
        """See `Schedule.next_action`; after `EndForward` there is no next action, and asking for it is an error."""
        check_position(position)
        state = position.state
        if position.finished:
            return None
        if position.forward_ended:
            raise ScheduleError(
                f"A loop of {position.steps} steps that ran with NoReverse cannot be reversed: {position.end} steps "
                f"are not yet reversed, and nothing was kept for that. Give another schedule, as Revolve(10), or "
                "Online(10) if the length is not known."
            )
        if state is None:
            raise ScheduleError(
                f"NoReverse cannot go on: there is no working state of the {position.steps} steps, and it stores no "
                "snapshot. Start again from step 0."
            )
        return Forward(start=state, stop=position.steps) if state < position.steps else EndForward()

    def forward_steps(self, steps: int) -> int:
        """
        Return `steps`: each step runs once, and no gradient follows.

        Example:
            >>> NoReverse().forward_steps(100)
            100
        """
        return steps_of(steps)

    def forward_steps_left(self, position: Position) -> int:
        """
        Return the number of steps that have not been run.

        Args:
            position: A position of the forward sweep, or its end.

        Example:
            >>> NoReverse().forward_steps_left(Position(steps=9, state=4))
            5
        """
        check_position(position)
        return 0 if position.forward_ended or position.state is None else position.steps - position.state

    def peak_snapshots(self, steps: int) -> int:
        """Return 0: it stores no snapshot."""
        steps_of(steps)
        return 0

    def peak(self, steps: int, tier: str = "memory", *, restart: int = 1, saved: int = 1) -> int:
        """Return 0: it makes a loop hold nothing but the working state, whatever the arguments."""
        steps_and_sizes(steps, tier, restart, saved)
        return 0

    def predicted_time(self, steps: int, costs: Costs) -> float:
        """
        Return the time of one run of all steps.

        Args:
            steps: The number of steps of the loop.
            costs: What a step costs.

        Example:
            >>> NoReverse().predicted_time(100, Costs(forward=0.5))
            50.0
        """
        steps = steps_of_time(steps, costs)
        return costs.time(forward=steps)
