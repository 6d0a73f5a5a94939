"""What a time loop can tell from its position and its schedule alone: reads ahead, and where to begin again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ebbtide.errors import ScheduleError, StorageError
from ebbtide.loop.plan import Plan
from ebbtide.schedules import Copy, Mixed, Move, Position, Revolve, Schedule, Snapshot

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
        for reason in lost.values():
            raise reason from error
        raise
    if action is None:
        raise ScheduleError(f"{schedule} gives no action at {position}, where the loop is not finished.")
    return action


def stored(position: Position, step: int) -> Snapshot:
    """Return the snapshot of a step."""
    return next(kept for kept in position.snapshots if kept.step == step)


def size_of(plan: Plan, kept: Snapshot) -> int:
    """Return the bytes of a snapshot."""
    return plan.sizes.state if kept.kind == "restart" else plan.sizes.saved


def sheddable_bytes(plan: Plan, position: Position) -> int:
    """Return the bytes of the snapshots in memory that a schedule could do without."""
    if not isinstance(plan.schedule, (Revolve, Mixed)):
        return 0
    first = next((kept for kept in position.snapshots if kept.kind == "restart"), None)
    if first is None or first.step > 0:
        return 0
    return sum(size_of(plan, kept) for kept in position.snapshots if kept is not first and kept.tier == "memory")


def least_missed(schedule: Any, position: Position) -> Snapshot:
    """Return the snapshot in memory, not the first, without which about the fewest forward steps are left."""
    if isinstance(schedule, Mixed):
        step = schedule.find_surplus(position)
    else:
        step = next(iter(Revolve(len(position.snapshots) - 1).find_surplus(position)), None)
    # Without an answer the last one, which was the cheapest to come to.
    return position.snapshots[-1] if step is None else stored(position, step)


def with_room(schedule: Any, position: Position) -> Any:
    """Return a schedule that has room for just what is held in memory."""
    held = [kept for kept in position.snapshots if kept.tier == "memory"]
    if isinstance(schedule, Revolve):
        return Revolve(len(held))
    units = sum(schedule.restart if kept.kind == "restart" else schedule.saved for kept in held)
    return replace(schedule, units=units)


def with_freed(plan: Plan, position: Position, ran: int, freed: int) -> Plan:
    """Return the plan of a loop that gave up snapshots of so many bytes after it ran so many steps."""
    return replace(
        plan,
        snapshots=len(position.snapshots),
        predicted_steps_forward=ran + plan.schedule.forward_steps_left(position),
        predicted_peak_bytes=plan.predicted_peak_bytes - freed,
    )


def is_among(prefix: Position | None, kept: Snapshot) -> bool:
    """Return whether a snapshot is kept for another sweep, wherever it lies."""
    held = () if prefix is None else prefix.snapshots
    return any((one.step, one.kind) == (kept.step, kept.kind) for one in held)


def reads_after(schedule: Any, position: Position) -> Iterator[Snapshot]:
    """Yield the next snapshots that a schedule will read from disk."""
    if not position.on_disk:
        return
    found = 0
    for _ in range(ACTIONS_AHEAD):
        action = schedule.next_action(position)
        if action is None or found == READS_AHEAD:
            return
        if isinstance(action, (Copy, Move)):
            kept = stored(position, action.step)
            if kept.tier == "disk":
                found += 1
                yield kept
        position = position.after(action)


def prefix_of(position: Position) -> Position:
    """Return from where a reverse sweep can be run again, with as little kept as possible."""
    steps = position.steps
    restart = next((kept for kept in position.snapshots if kept.kind == "restart"), None)
    if restart is None:
        return replace(position, state=None)
    first = tuple(kept for kept in position.snapshots if kept.step <= restart.step)
    return Position(steps=steps, state=restart.step, snapshots=first)


def is_kept(prefix: Position, index: int) -> bool:
    """Return whether the saved values of a step are kept for another sweep."""
    if prefix.saved is not None and prefix.saved[0] <= index < prefix.saved[1]:
        return True
    return any(kept.step == index and kept.kind == "saved" for kept in prefix.snapshots)
