"""The moments of a loop at which most is held, found by following its schedule: for the predicted peak of a call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from ebbtide.arrays.primitive import Signature
from ebbtide.loop.plan import Plan
from ebbtide.loop.predict import spare_tier
from ebbtide.loop.steps import TapedStep
from ebbtide.loop.swap import nodes_of
from ebbtide.schedules import Forward, Mixed, Move, Position, Reverse, Snapshot
from ebbtide.tape.forms import form_here
from ebbtide.tape.holders import held_by
from ebbtide.tape.saved import SavedValue, key_of
from ebbtide.tape.saved import bytes_of as bytes_saved

# Longer loops are not followed. Measured: 60 ms for so many.
MOST_STEPS = 2000


@final
@dataclass(frozen=True, slots=True)
class Moments:
    """
    What is held beside snapshots, in bytes, and what that makes together with them.

    Args:
        plan: The plan of the loop, of a `Mixed` schedule.
        traced: The most bytes that were allocated for the taped first step at a time.
        plain: The same for a plain step, without what loops in it keep.
        beside: What loops in a step hold beside what that saved.
        sweep: The same for a sweep.
        sums: Those of it for the sums so far for static values, which are not there in the first sweep.
        between: What is there between the sweeps of the loop, with the final state.
        asked: What there has to be room for before each operation of a step, and what was made before it.
        limit: Bytes in the ledger that the loop may have; None for no bound.
    """

    plan: Plan
    traced: int
    plain: int
    beside: int
    sweep: int
    sums: int
    between: int
    asked: list[tuple[int, int]]
    limit: int | None

    def most(self) -> int:
        """Return the most bytes that are held at a time."""
        schedule, steps, sizes = self.plan.schedule, self.plan.steps, self.plan.sizes
        assert isinstance(schedule, Mixed)
        position, most = Position(steps=steps), 0
        planned = self.limit is not None and spare_tier(schedule, steps) == "memory"
        spare = planned
        while (action := schedule.next_action(position)) is not None:
            held = sum([self._size_of(kept) for kept in position.snapshots])
            waiting = sizes.state + sizes.gradients if position.forward_ended else 0
            if isinstance(action, Forward) and (action.save or action.kind == "saved"):
                needed = schedule.saved * action.snapshot + (0 if sizes.idle >= sizes.restart else schedule.restart)
                spare = spare and (planned or schedule.free(position) >= needed)
                spare = spare and not self._is_given_up(position, held + waiting)
                now = held + waiting + sizes.state + self.traced
            elif isinstance(action, Forward):
                stored = action.snapshot * sizes.restart
                now = held + waiting + stored + sizes.state + max(self.plain, 2 * sizes.state)  # and the loop's copy
            elif isinstance(action, Reverse):
                spare = spare and (planned or schedule.free(position) >= schedule.restart)
                now = held + (self.sweep if position.reversed else max(self.sweep - self.sums, self.between))
            else:
                now = held + waiting
                last = isinstance(action, Move) and position.snapshots == (Snapshot(0),) and position.end > 1
                spare = spare or (last and self.limit is not None)
            most = max(most, now + spare * sizes.restart)
            position = position.after(action)
        return most

    def _size_of(self, kept: Snapshot) -> int:
        return self.plan.sizes.restart if kept.kind == "restart" else self.plan.sizes.taped_beside + self.beside

    def _is_given_up(self, position: Position, held: int) -> bool:
        """Return whether an operation of a taped step has the initial state given up that stays beside snapshots."""
        sizes = self.plan.sizes
        if self.limit is None or not position.forward_ended:
            return False
        room = self.limit + sizes.excused - held - sizes.data
        # By then what was made beside it has to be less than the most.
        return any(asked > room and made + sizes.restart <= self.traced for asked, made in self.asked)


def bytes_asked(record: TapedStep) -> list[tuple[int, int]]:
    """
    Return what there has to be room for before each operation of a step, and what was made before it, in bytes.

    The first is what the step saves up to there, with operands that are new and one result, as `Pager.expect` asks.
    """
    found, known, made = list[tuple[int, int]](), dict[int, int](), 0
    pager = record.tape.pager

    def is_new(cell: Any) -> bool:
        value = cell.value if type(cell) is SavedValue else cell
        return pager is None or pager.find(value, own=False) is None

    def bytes_of(cells: Iterable[Any]) -> dict[int, int]:
        """Return the bytes of those that no code before has saved."""
        return {key_of(cell): bytes_saved(cell) for cell in cells if is_new(cell)}

    for node in sorted(nodes_of(record), key=lambda node: node.number):
        signature: Any = node.signature
        if type(signature) is not Signature:
            known |= bytes_of(held_by(node))
            continue
        saves = zip(node.saved or (), signature.saves, strict=False)  # masks, which come after them, are made of these
        new = known | bytes_of(cell for cell, k in saves if k >= 0 and type(cell) is SavedValue)
        result = form_here(node.type).nbytes
        found.append((sum(new.values()) + result, made))
        known = new | bytes_of(held_by(node))
        made += result
    return found
