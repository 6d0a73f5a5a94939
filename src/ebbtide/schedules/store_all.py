"""The schedule that keeps the saved values of all steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, EndForward, EndReverse, Forward, Reverse
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.position import Position


@final
@dataclass(frozen=True, slots=True)
class StoreAll(Schedule):
    """
    Keep the saved values of all steps: no step runs twice, and memory grows with the number of steps.

    Memory:
        Who follows it holds the saved values of every step from its run to its reversal, and no snapshot.

    Example:
        >>> StoreAll().next_action(Position(steps=7))
        Forward(start=0, stop=7, snapshot=False, save=True, kind='restart', tier='memory')
    """

    def next_action(self, position: Position) -> Action | None:
        """See `Schedule.next_action`; it needs the saved values of all steps below the working state."""
        if position.finished:
            return None
        end, saved, state = position.end, position.saved, position.state
        if not position.forward_ended:
            held = (0, 0) if saved is None else saved
            if state is None or held != (0, state):
                raise ScheduleError(
                    f"StoreAll cannot go on from the working state of step {state}: it needs the saved "
                    f"values of all earlier steps, and those of {saved} are held. Start again from step 0, "
                    "or use Revolve."
                )
            return Forward(start=state, stop=end, save=True) if state < end else EndForward()
        if end == 0:
            return EndReverse()
        if saved != (0, end):
            raise ScheduleError(
                f"StoreAll cannot reverse the steps 0 to {end - 1}: saved values are held for {saved}. "
                "Start again from step 0, or use Revolve."
            )
        return Reverse(start=end, stop=0)

    def forward_steps(self, steps: int) -> int:
        """
        Return `steps`: each step runs once.

        Example:
            >>> StoreAll().forward_steps(100)
            100
        """
        return steps

    def peak_snapshots(self, steps: int) -> int:
        """Return 0: it stores no snapshot."""
        return 0
