"""Schedules of two tiers: the block of steps behind the last snapshot on disk, which memory alone takes care of."""

from __future__ import annotations

from ebbtide.schedules.actions import Action, copy, delete, move, run
from ebbtide.schedules.continuing import Roomy, describe_loss
from ebbtide.schedules.position import Position
from ebbtide.schedules.revolve import find_least, run_to_next


def block_action(position: Position, memory: int) -> Action:
    """
    Return the next action of `Revolve` in the block of steps from the first snapshot in memory, or from the state.

    Args:
        position: A position whose last snapshot is in memory, or whose working state is where a block shall begin.
        memory: The largest number of snapshots in memory, at least 1.
    """
    snapshots, end, state = position.snapshots, position.end, position.state
    on_disk = position.on_disk
    # In memory below the last one on disk there are only snapshots that others left behind; they take slots, too.
    first = on_disk
    if on_disk > 0 and snapshots[on_disk - 1].tier == "memory":
        first = max(place for place, kept in enumerate(snapshots) if kept.tier == "disk") + 1
    held, free = len(snapshots) - first, memory + on_disk - len(snapshots)
    if held == 0:
        assert state is not None
        return run_to_next(end, state, None, free)
    latest = snapshots[-1].step
    if state is not None and latest <= state < end:
        return run_to_next(end, state, latest, free)
    if free < 0 and held > 1:
        steps = [kept.step for kept in snapshots[first:]]
        return delete(steps[find_least(steps, end, max(1, held + free))[0]])
    return move(latest) if latest == end - 1 else copy(latest)


def make_way_back(position: Position, schedule: Roomy) -> Action | None:
    """
    Return the action that stores the initial state where it is only in hand and other snapshots are there.

    Args:
        position: Where the loop stands.
        schedule: Who asks, and says where there is room for that state.

    Returns:
        The action, None if there is nothing to be done.

    Raises:
        ScheduleError: There is no way back to the first steps.
    """
    snapshots, state = position.snapshots, position.state
    if snapshots and snapshots[0].step == 0:
        return None
    if state != 0:
        raise describe_loss(position)
    if not snapshots or position.end == 1:
        return None
    tier = schedule.find_room(position)
    return delete(snapshots[-1].step) if tier is None else run(0, 1, snapshot=True, tier=tier)
