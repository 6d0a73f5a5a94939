"""What loops in the steps of another one run again, by the room that it leaves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from ebbtide.agree import agree
from ebbtide.arrays.context import entered
from ebbtide.errors import BudgetError
from ebbtide.lender import Lender
from ebbtide.loop.holding.share import count_spare
from ebbtide.loop.measuring.moments import MOST_STEPS
from ebbtide.loop.planning.plan import Plan, make_plan
from ebbtide.loop.planning.predict import spare_tier, table_bytes
from ebbtide.machine import free_dead_tuples
from ebbtide.schedules import Forward, Position, Reverse, Revolve


@final
@dataclass(frozen=True, slots=True)
class Inside:
    """
    The loops in a step, as they were planned when it was measured.

    Args:
        plans: Their plans.
        lent: Bytes that a step saves less with the least of them.
        most: The bytes with which each of them runs its steps once, of those whose plan is a choice.
        each: Bytes of a restart state of each of these.
    """

    plans: list[Plan]
    lent: int
    most: int
    each: int

    @classmethod
    def among(cls, lenders: list[Lender]) -> Inside:
        """Return those of the loops that a ledger may ask for room."""
        known: list[Any] = [one() for one in lenders]
        loops = [loop for loop in known if hasattr(loop, "position")]
        # An initial state that is there beside what steps saved is no part of what they can do without, without that.
        spare = sum([loop.sheddable for loop in loops]) - count_spare(lenders)
        plans = [loop.plan for loop in loops]
        # Steps that saved more than planned since were some of this process only.
        most = sum([plan.steps * plan.sizes.taped for plan in plans if plan.fewest])
        each = sum([plan.sizes.restart for plan in plans if plan.fewest])
        return cls(plans, *agree((max(0, spare), most, each)))

    @property
    def levels(self) -> list[int]:
        """The most bytes, half of them, and so on, while each of those whose plan is a choice has a restart state."""
        return [self.most >> k for k in range((self.most // max(1, self.each)).bit_length())]

    @property
    def again_from_kept(self) -> float:
        """How often each of their steps runs again in the sweep of a step, from what they keep of it."""
        again = sum([plan.predicted_steps_forward - plan.measuring_steps - plan.steps for plan in self.plans])
        return agree(again / max(1, sum([plan.steps for plan in self.plans])))

    def again(self, plan: Plan, available: int, free: int) -> float:
        """
        Return how often each of their steps runs again, in the mean of all sweeps of a step.

        Args:
            plan: A plan of the loop around, in which they keep the least between the sweeps.
            available: The bytes that this one may take.
            free: Those in which tables may be made now.
        """
        # A process may have given up steps with loops in them, which others have until the reverse sweep.
        with entered(ranks=None):
            found = self._again_here(plan, available, free)
        return agree(found)

    def _again_here(self, plan: Plan, available: int, free: int) -> float:
        """Return what this process finds."""
        schedule, position, at_hand = plan.schedule, Position(steps=plan.steps), False
        if plan.steps > MOST_STEPS:
            return self._again(0, free)
        free -= table_bytes(schedule, plan.steps)
        found, rooms = 0.0, dict[int, float]()
        # The initial state that is kept beside what the first step saved.
        spare = plan.sizes.restart if spare_tier(schedule, plan.steps) == "memory" else 0
        while (action := schedule.next_action(position)) is not None:
            if isinstance(action, Reverse):
                assert position.saved is not None
                held = spare + sum([plan.sizes.of(kept) for kept in position.snapshots])
                for below in range(action.stop - position.saved[0], action.start - position.saved[0]):
                    room = max(0, available - plan.sizes.fixed - held - below * plan.sizes.taped_beside)
                    if room not in rooms:
                        rooms[room] = self._again(room, free)
                    found += rooms[room]
                # A step that has just run has them keep what there is room for.
                found -= at_hand
            at_hand = isinstance(action, Forward) and action.save
            position = position.after(action)
        if free_dead_tuples is not None:
            free_dead_tuples()  # the positions had some, as those of the next plan will
        return found / max(1, plan.steps)

    def _again(self, room: int, free: int) -> float:
        """Return how often each step runs from what they keep at least to the end, with so many bytes beyond that."""
        runs = sum([_forward_steps(plan, room // len(self.plans), free) for plan in self.plans])
        return runs / max(1, sum([plan.steps for plan in self.plans]))


def _forward_steps(plan: Plan, room: int, free: int) -> int:
    """Return the forward steps of a loop that has so many bytes beyond its least; a table may take what is free."""
    if not plan.fewest:
        return plan.predicted_steps_forward
    memory = plan.sizes.fixed + plan.fewest + room
    kept = memory - free
    try:
        found = make_plan(plan.steps, plan.sizes, memory=memory, disk=0, costs=plan.costs, kept=kept)
        return found.predicted_steps_forward
    except BudgetError:
        return Revolve(1).forward_steps(plan.steps)
