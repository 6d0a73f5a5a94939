"""The initial state on disk, for a loop that loses there what its steps saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

from ebbtide.ledger import Ledger
from ebbtide.loop.holding import ahead
from ebbtide.loop.planning.plan import Plan
from ebbtide.schedules import Hierarchical, Position

# A loop that loses more snapshots than that of what its steps saved goes on with so many slots for restart states, and
# a table for them that is no larger than a state.
_PATIENCE, _SLOTS, _TABLE_BYTES = 4, 8, 12


@final
class Fallback:
    """
    Keeps the initial state beside snapshots of what all steps save, and goes back to it when one of them is lost.

    Args:
        ledger: The account.

    Attributes:
        is_there: Whether the state is there.

    Memory:
        None: the state is on disk. Of a loop with a storage of the user it is in memory, where there is room for it.
    """

    __slots__ = ("_ledger", "_patience", "is_there")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.is_there, self._patience = False, 0  # so many more losses it takes, once it needs that state

    def keep(self, rule: Any) -> None:
        """Store the initial state of a loop that begins; a user's storage takes what the schedule says and no more."""
        theirs, plan = rule.snapshots.are_theirs, rule.plan
        if theirs and not self._has_room(plan):
            return
        rule.snapshots.put_state(0, rule.state, "spare" if theirs else "disk", vital=True)
        self.is_there = True
        if theirs:
            rule.plan = plan.with_more(plan.sizes.entry + plan.sizes.data)
            rule.watch.changed(rule.plan)

    def _has_room(self, plan: Plan) -> bool:
        """Return whether there is room in memory for one more state than the plan has, which is not given up."""
        limit, sizes = self._ledger.limit, plan.sizes
        return limit is None or self._ledger.live + plan.predicted_peak_bytes + sizes.entry + sizes.data <= limit

    def go_back(self, rule: Any) -> bool:
        """Let that state be the snapshot of step 0 in place of what the step saved; return whether it is."""
        if any(kept.step == 0 and kept.kind == "restart" for kept in rule.position.snapshots[:1]):
            self.is_there = False  # a later plan has it as a snapshot
        if not self.is_there:
            return False
        rule.position = self._with_initial(rule, rule.position)
        return True

    def _with_initial(self, rule: Any, position: Position) -> Position:
        """Return a position with that state, with which other sweeps begin, too, if there are to be any."""
        if rule.prefix is not None:
            rule.prefix = ahead.with_initial(rule.prefix, rule.snapshots.drop)
        self.is_there = False
        return ahead.with_initial(position, rule.snapshots.drop)

    def without_lost(self, rule: Any, position: Position) -> Position:
        """Return a position without snapshots that were lost, and with the initial state if there is no other way."""
        left: Position = rule.snapshots.without_lost(position)
        if rule.prefix is not None:
            rule.prefix = rule.snapshots.without_lost(rule.prefix)
        places = (left,) if rule.prefix is None else (left, rule.prefix)
        if self.is_there and any(map(ahead.is_stuck, places)):
            left, self._patience = self._with_initial(rule, left), _PATIENCE
        elif self._patience and len(left.snapshots) < len(position.snapshots):
            self._patience -= 1
            if not self._patience:
                # To store what all steps save takes a disk that there is not: half of the steps would run for each.
                slots = min(_SLOTS, rule.plan.sizes.state // (_TABLE_BYTES * position.steps))
                rule.plan = replace(rule.plan, schedule=Hierarchical(0, max(1, slots)))
        return left
