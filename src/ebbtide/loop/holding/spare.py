"""The initial state in memory, beside snapshots of a schedule that has no need of it."""

from __future__ import annotations

from typing import Any, final

from ebbtide.agree import is_alone
from ebbtide.loop.holding import ahead, held
from ebbtide.loop.planning.predict import is_taped, spare_tier
from ebbtide.loop.planning.sizes import Sizes
from ebbtide.schedules import Forward, Mixed, Position, Reverse, Snapshot

# A loop goes back to its initial state so often, before it gives that up for what its steps save.
_RETURNS = 16


@final
class Spare:
    """
    Keeps the initial state, so that there is a way back where steps save more than planned.

    From the beginning, where the first thing that a schedule keeps is what a step saves. And in the reverse sweep,
    where a schedule gives up its last restart state for what the steps from there on save: as long as its bytes are not
    needed or, once a step has saved more than planned, until there is no room.

    Attributes:
        is_there: Whether it is kept.
        grown: Whether a step saved more than planned, as others may, too.
        went_back: Whether the loop went back to it since the last plan.
    """

    __slots__ = ("_returns", "grown", "is_there", "went_back")

    def __init__(self) -> None:
        self.is_there = self.grown = self.went_back = False
        self._returns = 0

    def keep(self, rule: Any) -> None:
        """Store the state of a loop that begins; until the reverse sweep does, the bytes of its cotangents are free."""
        rule.snapshots.put_state(0, rule.state, "memory", vital=True)
        self.is_there = True

    def stays(self, rule: Any, kept: Snapshot) -> bool:
        """Return whether a snapshot stays, as this state, where the schedule gives it up."""
        position, schedule = rule.position, rule.plan.schedule
        last = kept == Snapshot(0) and len(position.snapshots) == 1 and position.end > 1 and rule.room.bounded
        if last and isinstance(schedule, Mixed) and is_alone() and self._returns < _RETURNS:
            self._returns += 1
            self.is_there = True
            return True
        return False

    def is_in_the_way(self, rule: Any, action: Any) -> bool:
        """
        Return whether it has bytes of the reverse sweep that are planned for something else.

        While a step runs on a tape, there may be room for it where the sweep of that step is going to be, so that it is
        there until all steps have shown what they save.
        """
        position, schedule, sizes = rule.position, rule.plan.schedule, rule.plan.sizes
        if not (self.is_there and position.forward_ended) or self.grown or not isinstance(schedule, Mixed):
            return False
        if spare_tier(schedule, position.steps) is not None:
            return False  # it is planned
        return (is_taped(action) or isinstance(action, Reverse)) and is_in_the_way(schedule, sizes, position, action)

    def drop(self, rule: Any) -> None:
        """Give it up."""
        if self.is_there:
            rule.snapshots.drop(Snapshot(0))
        self.is_there = False

    def go_back(self, rule: Any) -> bool:
        """
        Let it be the snapshot of step 0 in place of what steps saved, but the one in work; return whether it is.

        A resumed loop has that snapshot, and goes back to it in the forward sweep.
        """
        if not self.is_there and not held.resumed_bytes(rule):
            return False
        after = ahead.without_saved(rule.position)
        for kept in rule.position.snapshots:
            if kept not in after.snapshots:
                rule.snapshots.drop(kept)
        rule.room.forget(rule, range(*after.saved or (0, 0)))
        rule.position, self.is_there, self.went_back = after, False, True
        return True


def is_in_the_way(schedule: Mixed, sizes: Sizes, position: Position, action: Forward | Reverse) -> bool:
    """Return whether an initial state beside snapshots has bytes of a step that runs on a tape, or is swept."""
    free = schedule.free(position)
    if isinstance(action, Reverse):
        return free < schedule.restart
    return free < schedule.saved * action.snapshot + (0 if sizes.idle >= sizes.restart else schedule.restart)
