"""A loop that is reversed part by part, from states that lie outside of what a schedule has room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ebbtide.schedules.actions import Action
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.continuing import shift
from ebbtide.schedules.position import Position, Snapshot


@final
@dataclass(frozen=True, slots=True)
class Parts(Schedule):
    """
    Follow another schedule in each part of a loop as if the part were the whole loop.

    A part begins at a restart state that lies elsewhere and costs no room, as in the journal of a killed run. While the
    last part is not reversed, the schedule does not see the earlier ones, so that all of its room is for the steps of
    that part; it takes the start of the part for the initial state, whose slot the real one has. Without its state a
    start is none: its part is one with the part before.

    Args:
        inner: The schedule.
        starts: The steps at which parts begin, step 0 left out.
        tier: Where the state of step 0 is stored.

    Example:
        >>> from ebbtide.schedules import Revolve
        >>> held = (Snapshot(0), Snapshot(90, "restart", "disk"))
        >>> Parts(Revolve(5), (90,)).next_action(Position(steps=100, state=None, forward_ended=True, snapshots=held))
        Copy(step=90)
    """

    inner: Schedule
    starts: tuple[int, ...]
    tier: str = "memory"

    def next_action(self, position: Position) -> Action | None:
        """See `Schedule.next_action`."""
        base = self._find_base(position)
        if base == 0:
            return self.inner.next_action(position)
        state = position.state
        above = (Snapshot(one.step - base, one.kind, one.tier) for one in position.snapshots if one.step > base)
        part = Position(
            steps=position.steps - base,
            reversed=position.reversed,
            state=None if state is None or state < base else state - base,
            saved=None if position.saved is None else (position.saved[0] - base, position.saved[1] - base),
            forward_ended=position.forward_ended,
            snapshots=(Snapshot(0, "restart", self.tier), *above),
            open=position.open,
        )
        action = self.inner.next_action(part)
        return None if action is None else shift(action, base)

    def _find_base(self, position: Position) -> int:
        """Return where the last part begins that is not reversed yet; 0 for the first one."""
        low = position.end - 1
        if position.saved is not None:
            low = min(low, position.saved[0])
        if not position.forward_ended and position.state is not None:
            low = min(low, position.state)
        held = {kept.step for kept in position.snapshots if kept.kind == "restart"}
        return max((start for start in self.starts if start <= low and start in held), default=0)
