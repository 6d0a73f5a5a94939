"""Following a schedule without a loop: what it is going to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, Copy, Delete, Forward, Move
from ebbtide.schedules.position import Position
from ebbtide.schedules.snapshots import find_place


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """
    What following a schedule from a position to the end takes.

    Args:
        forward_steps: All runs of all steps.
        disk_writes: Snapshots written to disk.
        disk_reads: Snapshots read from disk.
        peak_snapshots: The largest number of snapshots at the same time, in all tiers together.
        peak_memory: The largest size of the snapshots in memory and the saved values at hand, together.
        peak_disk: The largest size of the snapshots on disk.
    """

    forward_steps: int
    disk_writes: int
    disk_reads: int
    peak_snapshots: int
    peak_memory: int
    peak_disk: int


def simulate(
    next_action: Callable[[Position], Action | None], position: Position, *, restart: int = 1, saved: int = 1
) -> Simulation:
    """
    Follow a schedule from a position to its end and count.

    Args:
        next_action: That of the schedule.
        position: Where to begin.
        restart: The size of one restart state, in any unit.
        saved: The size of what one step saves, in the same unit.

    Returns:
        The counts; peaks include what is held at the beginning.

    Raises:
        ScheduleError: The position cannot be completed.

    Memory:
        Holds one position.
    """
    sizes = {"restart": restart, "saved": saved}
    held = {"memory": 0, "disk": 0}
    for snapshot in position.snapshots:
        held[snapshot.tier] += sizes[snapshot.kind]
    forward_steps = disk_writes = disk_reads = 0
    peak_snapshots, peak_memory, peak_disk = len(position.snapshots), held["memory"], held["disk"]
    mark, turns = position, 0
    while (action := next_action(position)) is not None:
        after = position.after(action)
        if isinstance(action, Forward):
            forward_steps += action.stop - action.start
            if action.snapshot:
                disk_writes += action.tier == "disk"
                held[action.tier] += sizes[action.kind]
        elif isinstance(action, (Copy, Move, Delete)):
            kept = position.snapshots[find_place(position.snapshots, action.step)]
            disk_reads += kept.tier == "disk" and not isinstance(action, Delete)
            if not isinstance(action, Copy):
                held[kept.tier] -= sizes[kept.kind]
        position = after
        # A pure function of the position that comes to one twice never ends (Brent's way to find a cycle).
        turns += 1
        if position == mark:
            raise ScheduleError(f"The schedule goes round in circles: {action} leads to {position} once more.")
        if not turns & (turns - 1):
            mark = position
        at_hand = 0 if position.saved is None else saved * (position.saved[1] - position.saved[0])
        peak_snapshots = max(peak_snapshots, len(position.snapshots))
        peak_memory = max(peak_memory, held["memory"] + at_hand)
        peak_disk = max(peak_disk, held["disk"])
    return Simulation(
        forward_steps=forward_steps,
        disk_writes=disk_writes,
        disk_reads=disk_reads,
        peak_snapshots=peak_snapshots,
        peak_memory=peak_memory,
        peak_disk=peak_disk,
    )
