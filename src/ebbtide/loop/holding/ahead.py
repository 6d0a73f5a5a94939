"""What a time loop can tell from its position and its schedule alone: reads ahead, and where to begin again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, final

import numpy as np

from ebbtide.errors import ScheduleError, StorageError
from ebbtide.loop.planning.plan import Plan
from ebbtide.schedules import (
    Copy,
    Costs,
    Forward,
    Hierarchical,
    Mixed,
    Move,
    Online,
    Periodic,
    Position,
    Recorded,
    Reverse,
    Revolve,
    Schedule,
    Snapshot,
    StoreAll,
)
from ebbtide.schedules.continuing import count_base
from ebbtide.schedules.parts import Parts
from ebbtide.schedules.snapshots import Snapshots, find_place

# How many actions ahead of the sweep reads from disk are looked for, and how many of them are told to the storage.
ACTIONS_AHEAD, READS_AHEAD = 64, 2


def next_action(schedule: Schedule, position: Position, lost: Mapping[str, StorageError]) -> Any:
    """
    Return what a schedule says.

    Raises:
        StorageError: Without the snapshots that were lost there is no way on.
        ScheduleError: There is none for another reason.
    """
    try:
        action = schedule.next_action(position)
    except ScheduleError as error:
        if not lost:
            raise
        raise _with_advice(next(iter(lost.values()))) from error  # no name here keeps an error that has this frame
    if action is None:
        raise ScheduleError(f"{schedule} gives no action at {position}, where the loop is not finished.")
    return action


def _with_advice(reason: StorageError) -> StorageError:
    reason.add_note(
        "No state is left from which the first steps can run again. Give a schedule that stores restart states "
        "(Revolve or Hierarchical), or a budget with memory for one more state: the loop then keeps its first."
    )
    return reason


def narrowed(action: Any) -> Any:
    """Return the first step of an action on saved values."""
    if isinstance(action, Reverse):
        return Reverse(start=action.start, stop=action.start - 1)
    return replace(action, stop=action.start + 1) if isinstance(action, Forward) and action.save else action


def stored(position: Position, step: int) -> Snapshot:
    """Return the snapshot of a step."""
    return position.snapshots[find_place(position.snapshots, step)]


def without_saved(position: Position) -> Position:
    """Return a position with the initial state in place of all saved values but those of the step in work."""
    last = position.end - 1 if position.forward_ended else None
    kept = [one for one in position.snapshots if one.step > 0 and (one.kind == "restart" or one.tier != "memory")]
    has_last = last is not None and position.saved is not None and position.saved[1] > last
    at_hand = (last, last + 1) if has_last and last is not None else None
    return replace(position, saved=at_hand, snapshots=(*(initial(position) or (Snapshot(0),)), *kept))


def initial(position: Position) -> tuple[Snapshot, ...]:
    """Return the snapshot that is the state of step 0, wherever it lies, if there is one."""
    return tuple([kept for kept in position.snapshots[:1] if kept.step == 0 and kept.kind == "restart"])


def has_all_saved(position: Position) -> bool:
    """Return whether there are the saved values of all steps, so that none has to run again."""
    start, stop = position.saved or (0, 0)
    return stop - start + sum(kept.kind == "saved" for kept in position.snapshots) >= position.steps


def is_stuck(position: Position) -> bool:
    """Return whether steps cannot be run again whose saved values are held nowhere."""
    if position.finished or any(kept.kind == "restart" for kept in position.snapshots[:1]):
        return False
    base, saved = count_base(position), position.saved
    if any(kept.step == base for kept in position.snapshots[base : base + 1]):
        return False  # a restart state, behind the steps that have what they saved
    missing = position.end if saved is None else saved[0]
    return base < missing and (position.state is None or position.state > base)


def without_first(position: Position) -> Position:
    """Return a position with the initial state, and without what the first of the steps at hand saved."""
    assert position.saved is not None
    start, stop = position.saved
    first = position.snapshots if initial(position) else (Snapshot(0), *position.snapshots)
    return replace(position, saved=(start + 1, stop), snapshots=first)


def needs_initial(position: Position) -> bool:
    """Return whether there is no way on but by what all steps save: of a loop that may end, and has no first state."""
    return position.open and any(kept.kind == "saved" for kept in position.snapshots[:1])


def with_initial(position: Position, drop: Callable[[Snapshot], None]) -> Position:
    """Return a position with the state of step 0, which was kept on disk, in place of what that step saved."""
    others = [kept for kept in position.snapshots if kept.step > 0]
    for kept in position.snapshots[:1]:
        if kept.step == 0 and kept.kind == "saved":  # a restart state is that very state, the only copy
            drop(kept)
    return replace(position, snapshots=(Snapshot(0, "restart", "disk"), *others))


def find_way_back(position: Position) -> Snapshot | None:
    """Return the first restart state, if all steps below it have saved values, so that all others can run again."""
    base = count_base(position)
    return next((kept for kept in position.snapshots if kept.kind == "restart" and kept.step <= base), None)


def find_spare(position: Position, tier: str | None = "memory") -> tuple[Snapshot, ...]:
    """Return the snapshots, of one tier or of all, without which all steps can still be run again, or are saved."""
    first = find_way_back(position)
    if first is None:
        return ()
    return tuple([kept for kept in position.snapshots if kept.step > first.step and tier in (None, kept.tier)])


def find_first(position: Position) -> Snapshot | None:
    """Return what `find_way_back` does if that lies in memory."""
    first = find_way_back(position)
    return None if first is None or first.tier != "memory" else first


def steps_to_end(position: Position) -> int:
    """Return the steps from the last restart state to the end, which run again where what the last one saved goes."""
    return position.end - max([kept.step for kept in position.snapshots if kept.kind == "restart"], default=0)


def without_last(position: Position) -> Position:
    """Return a position at the end of the forward sweep without what the last step saved."""
    return replace(position, saved=None, state=None)


def on_disk(position: Position, moved: Snapshot) -> Position:
    """Return a position in which a snapshot lies on disk."""
    there = tuple([replace(kept, tier="disk") if kept == moved else kept for kept in position.snapshots])
    return replace(position, snapshots=there)


@final
class Cheapest:
    """
    Spare snapshots one after the other, each that which the fewest steps make again from what is below.

    Args:
        tier: Where they lie; None for anywhere.
        kind: What they hold, None for either.

    Memory:
        Holds 10 bytes for each snapshot of the last question, and some 40 more while it answers: where many are given
        up one by one, the interpreter does not look at all others for each of them.
    """

    __slots__ = ("_known", "_restart", "_spare", "_steps", "_tier", "kind")

    def __init__(self, tier: str | None = "memory", kind: str | None = None) -> None:
        self._tier, self.kind = tier, kind
        self._known: Snapshots | None = None

    def take(self, position: Position) -> Snapshot | None:
        """Return the next one, None if there is none; whoever asks deletes it, and then asks again."""
        snapshots = position.snapshots
        if self._known is None or position.before is not self._known:
            self._read(position)
        self._known = None
        if not self._spare.any():
            return None
        steps, restart = self._steps, self._restart
        below = np.zeros_like(steps)
        np.maximum.accumulate(np.where(restart, steps, 0)[:-1], out=below[1:])
        distance = np.where(self._spare, steps - below + ~restart, np.iinfo(np.int64).max)
        place = int(np.argmin(distance))
        self._steps, self._restart, self._spare = (np.delete(one, place) for one in (steps, restart, self._spare))
        self._known = snapshots
        return snapshots[place]

    def _read(self, position: Position) -> None:
        """Look at all snapshots."""
        snapshots, first, kind = position.snapshots, find_way_back(position), self.kind
        count, start = len(snapshots), position.steps if first is None else first.step
        spare = (
            kept.step > start and self._tier in (None, kept.tier) and kind in (None, kept.kind) for kept in snapshots
        )
        self._steps = np.fromiter((kept.step for kept in snapshots), np.int64, count)
        self._restart = np.fromiter((kept.kind == "restart" for kept in snapshots), np.bool_, count)
        self._spare = np.fromiter(spare, np.bool_, count)


def with_less(schedule: Any, position: Position) -> Any:
    """Return a schedule that has room for a little less than what is held in memory."""
    if isinstance(schedule, Parts):
        return replace(schedule, inner=with_less(schedule.inner, position))
    held = len(position.snapshots) - position.on_disk
    if isinstance(schedule, Mixed):
        units = schedule.most if position.forward_ended else schedule.units
        return schedule.with_units(units - schedule.free(position) - 1)
    if isinstance(schedule, (Online, Periodic)):
        return replace(schedule, snapshots=max(1, min(schedule.snapshots, held) - 1))
    if isinstance(schedule, StoreAll):
        return schedule  # on disk, with nothing in memory
    # No table is made where memory is short.
    return Revolve(max(1, (held if isinstance(schedule, Revolve) else len(position.snapshots)) - 1))


def replanned(schedule: Schedule) -> Schedule:
    """Return a schedule that goes on from where another one may not have been, with as many snapshots of each tier."""
    if not isinstance(schedule, Recorded):
        return schedule
    memory, disk = (schedule.peak(schedule.steps, tier, saved=0) for tier in ("memory", "disk"))
    return Hierarchical(memory, disk, Costs()) if memory + disk else StoreAll()


def without(plan: Plan, position: Position, lost: Snapshot) -> tuple[Plan, Position]:
    """Return plan and position where a snapshot was lost when it was to be loaded."""
    schedule = plan.schedule
    if isinstance(schedule, Parts):
        # What the schedule may store there in its stead takes a slot of its own.
        plan = replace(
            plan, schedule=replace(schedule, starts=tuple([start for start in schedule.starts if start != lost.step]))
        )
    left = tuple([one for one in position.snapshots if one is not lost])
    return plan, replace(position, snapshots=left, state=None)


def is_among(prefix: Position | None, kept: Snapshot) -> bool:
    """Return whether a snapshot is kept for another sweep, wherever it lies."""
    held = () if prefix is None else prefix.snapshots
    return any((one.step, one.kind) == (kept.step, kept.kind) for one in held)


def reads_after(schedule: Any, position: Position, tiers: tuple[str, ...]) -> Iterator[Snapshot]:
    """Yield the next snapshots that a schedule will read from some tiers."""
    if not any(kept.tier in tiers for kept in position.snapshots):
        return
    found = 0
    for _ in range(ACTIONS_AHEAD):
        action = None
        with suppress(ScheduleError):  # who comes there is told what was lost
            action = schedule.next_action(position)
        if action is None or found == READS_AHEAD:
            return
        if isinstance(action, (Copy, Move)):
            kept = stored(position, action.step)
            if kept.tier in tiers:
                found += 1
                yield kept
        position = position.after(action)


def finished(steps: int) -> Position:
    """Return the position from which there is nothing to do."""
    return Position(steps=steps, reversed=steps, state=None, forward_ended=True, finished=True)


def prefix_of(position: Position) -> Position:
    """Return from where a reverse sweep can be run again, with as little kept as possible."""
    steps = position.steps
    restart = next((kept for kept in position.snapshots if kept.kind == "restart"), None)
    if restart is None:
        return replace(position, state=None)
    first = tuple([kept for kept in position.snapshots if kept.step <= restart.step])
    return Position(steps=steps, state=restart.step, snapshots=first)


def is_at_hand(position: Position, index: int) -> bool:
    """Return whether the saved values of a step are at hand."""
    return position.saved is not None and position.saved[0] <= index < position.saved[1]
