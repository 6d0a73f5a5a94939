"""What a schedule makes a time loop hold and do, in bytes and seconds, by closed forms where there are any."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, final

from ebbtide.loop.planning.sizes import BUFFERED_ENTRIES, Sizes, count_tuples
from ebbtide.schedules import (
    Costs,
    Forward,
    Hierarchical,
    Mixed,
    NoReverse,
    Online,
    Periodic,
    Position,
    Revolve,
    Schedule,
    StoreAll,
)
from ebbtide.schedules.hierarchical_table import HierarchicalTable, count_lengths
from ebbtide.schedules.hierarchical_table import count_rows as hierarchical_rows
from ebbtide.schedules.mixed_table import count_bytes, count_rows
from ebbtide.schedules.simulate import simulate
from ebbtide.schedules.splits import MOST_CELLS, MOST_STEPS
from ebbtide.storage.transfer import LARGE

# With more slots on disk the counts of `Hierarchical` are found by following it: the way down the table is a recursion.
_DEEPEST = 256


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """
    What following a schedule from beginning to end takes.

    Args:
        forward: Forward steps, taped ones included.
        snapshots: The largest number of snapshots at the same time, or a bound of it.
        memory: Bytes of memory beside those that every schedule takes, `Sizes.fixed`.
        time: The time of steps and transfers, in the unit of the costs.
        disk: Bytes of disk.
        buffer: Bytes of buffers, which are part of *memory*.
    """

    forward: int
    snapshots: int
    memory: int
    time: float
    disk: int = 0
    buffer: int = 0


@final
@dataclass(frozen=True, slots=True)
class _Counts:
    """Forward steps, transfers, and the largest numbers of restart states in each tier."""

    forward: int
    writes: int
    reads: int
    memory: int
    disk: int


def predict(schedule: Schedule, steps: int, sizes: Sizes, costs: Costs, *, buffered: bool = False) -> Prediction:
    """
    Return what a schedule takes.

    Args:
        schedule: The schedule.
        steps: The number of steps of the loop.
        sizes: The measured sizes.
        costs: What steps and transfers cost.
        buffered: Whether a writer thread has buffers, so that transfers may be made behind steps.

    Returns:
        The prediction. Of a schedule without closed forms it is found by following it, as for `Recorded`.

    Memory:
        The tables of the schedule.
    """
    if isinstance(schedule, StoreAll):
        return _store_all(schedule, steps, sizes, costs, buffered=buffered)
    if isinstance(schedule, (Revolve, Online, NoReverse)):
        forward, snapshots = schedule.forward_steps(steps), schedule.peak_snapshots(steps)
        memory = snapshots * sizes.restart + count_tuples(snapshots, forward)
        reversals = 0 if isinstance(schedule, NoReverse) else steps
        time = _time(costs, reversals, forward)
        return Prediction(forward=forward, snapshots=snapshots, memory=memory, time=time)
    if isinstance(schedule, Mixed):
        return _mixed(schedule, steps, sizes, costs)
    if isinstance(schedule, Periodic):
        return _periodic(schedule, steps, sizes, costs, buffered=buffered)
    if isinstance(schedule, Hierarchical) and schedule.disk <= _DEEPEST and steps > 0:
        return _hierarchical(schedule, steps, sizes, costs, buffered=buffered)
    return predict_from(schedule, Position(steps=steps), sizes, costs, buffered=buffered)


def predict_from(
    schedule: Schedule, start: Position, sizes: Sizes, costs: Costs, *, buffered: bool = False
) -> Prediction:
    """
    Return what a schedule takes from a position to the end, by following it: for the bytes, and for those on disk.

    Raises:
        ScheduleError: It does not lead on from there.
    """
    found = simulate(schedule.next_action, start, restart=sizes.restart, saved=sizes.taped)
    memory = found.peak_memory - (sizes.taped if start.end else 0) + table_bytes(schedule, start.steps)
    disk = buffer = 0
    if found.disk_writes or start.on_disk:
        disk = simulate(schedule.next_action, start, restart=sizes.stored, saved=sizes.stored_saved).peak_disk
        entries = simulate(schedule.next_action, start, restart=sizes.listed, saved=sizes.left_behind)
        buffer = buffer_of(sizes) if buffered else 0
        memory += entries.peak_disk + buffer
    return Prediction(
        forward=found.forward_steps,
        snapshots=found.peak_snapshots,
        memory=max(0, memory) + count_tuples(found.peak_snapshots, found.forward_steps),
        disk=disk,
        time=_time(costs, start.end, found.forward_steps, found.disk_writes, found.disk_reads),
        buffer=buffer,
    )


def in_memory(sizes: Sizes, taken: Callable[[Sizes], int]) -> int:
    """Return what is *taken* of memory by sizes; what a storage of the user has no room for there is on disk."""
    most = taken(sizes)
    return min(most, taken(replace(sizes, theirs=0)) + sizes.theirs) if sizes.theirs else most


def spare_tier(schedule: Schedule, steps: int) -> str | None:
    """
    Return where a loop keeps its initial state though its schedule does not; None if it has no need of it.

    Where the first thing that is kept is what the first step saves, there is no way back to that step. The initial
    state is one: in memory, within a bound, for a loop whose later steps come to save more; on disk for a loop that
    loses there what a step saved.
    """
    if steps <= 1 or not isinstance(schedule, (StoreAll, Mixed)):
        return None
    action = schedule.next_action(Position(steps=steps))
    return action.tier if is_taped(action) else None


def is_taped(action: Any) -> TypeGuard[Forward]:
    """Return whether an action keeps what steps save, so that they run on a tape."""
    return isinstance(action, Forward) and (action.save or action.kind == "saved")


def count_saved(schedule: Schedule, steps: int) -> int:
    """Return the most steps at a time of which the saved values are in memory, but for the one in work."""
    if isinstance(schedule, Mixed):
        return min(steps - 1, schedule.most // schedule.saved)
    return steps - 1 if schedule == StoreAll() else 0


def spare_beside_taped(schedule: Schedule, steps: int, sizes: Sizes) -> int:
    """
    Return the bytes of an initial state that a schedule gives up, and that is kept where a taped step has room.

    In the end the snapshots are what the first steps save. Where these leave room for a state, it is in there.
    """
    if not isinstance(schedule, Mixed) or steps <= 1 or spare_tier(schedule, steps) is not None:
        return 0
    has_room = schedule.most % schedule.saved >= schedule.restart
    return sizes.restart if sizes.idle >= sizes.restart and not has_room else 0


def buffer_of(sizes: Sizes, *, saved: bool = False) -> int:
    """
    Return the bytes of the buffers of a writer thread, for restart states or for the saved values of steps.

    A storage of the user has its own, for which there is room already.
    """
    return 0 if sizes.theirs is not None else BUFFERED_ENTRIES * (sizes.stored_saved if saved else sizes.stored)


def _time(costs: Costs, steps: int, forward: int, writes: int = 0, reads: int = 0) -> float:
    return costs.time(forward=forward, reverse=steps, writes=writes, reads=reads)


def _store_all(schedule: StoreAll, steps: int, sizes: Sizes, costs: Costs, *, buffered: bool) -> Prediction:
    others = max(0, steps - 1)
    if schedule.tier == "memory":
        held, time = others * sizes.taped_beside, _time(costs, steps, steps)
        return Prediction(forward=steps, snapshots=0, memory=held, time=time)
    buffer = buffer_of(sizes, saved=True) if buffered and others else 0
    spare = min(1, others) if sizes.theirs is None else 0  # of which they take what the schedule says, and no more
    # The costs are those of a restart state.
    size = sizes.stored_saved / max(1, sizes.stored)
    write, read = size * costs.write, size * costs.read
    if buffered:
        # Each write is made behind the next step, each read behind the reversal before it, but for what is exposed.
        # What steps save may be large where a state is not: of 5.8 MB, 1 ms was exposed by the state's and 6 in fact.
        is_at_once = sizes.saved >= LARGE and costs.prompt
        forth = max(costs.forward + (write if is_at_once else size * costs.write_exposed), write)
        back = max(costs.reverse + size * costs.read_exposed, read)
        time = others * (forth + back) + min(1, steps) * (costs.forward + costs.reverse)
    else:
        time = schedule.predicted_time(steps, replace(costs, write=write, read=read))
    return Prediction(
        forward=steps,
        snapshots=others,
        memory=others * sizes.left_behind + spare * sizes.listed + count_tuples(others, steps) + buffer,
        disk=others * sizes.stored_saved + spare * sizes.stored,
        time=time,
        buffer=buffer,
    )


def _mixed(schedule: Mixed, steps: int, sizes: Sizes, costs: Costs) -> Prediction:
    forward = schedule.forward_steps(steps)
    saved = sizes.taped_beside
    forth = Mixed(schedule.units, schedule.restart, schedule.saved)
    own = saved if steps else 0  # of the step in work
    held, most = (one.peak(steps, restart=sizes.restart, saved=saved) - own for one in (forth, schedule))
    held = max(held, most - sizes.more_in_reverse)
    snapshots = min(max(0, steps - 1), schedule.most // min(schedule.restart, schedule.saved))
    table, making = _count_table(schedule, steps)
    memory = max(held + table + count_tuples(snapshots, forward), making)
    return Prediction(forward=forward, snapshots=snapshots, memory=memory, time=_time(costs, steps, forward))


def table_bytes(schedule: Schedule, steps: int, *, made: bool = False) -> int:
    """Return the bytes of the table that a schedule keeps for a loop, or those while it is *made*."""
    return _count_table(schedule, steps)[made] if isinstance(schedule, (Mixed, Hierarchical)) and steps > 0 else 0


def bound_bytes(schedule: Mixed | Hierarchical, steps: int, sizes: Sizes) -> tuple[int, int]:
    """
    Return what a schedule takes at most beside `Sizes.fixed`, and in how many bytes its table is made.

    Without that table, which there may be no room for.
    """
    others = max(0, steps - 1)
    if isinstance(schedule, Hierarchical):
        table, making = _count_table(schedule, steps)
        snapshots = min(schedule.memory + schedule.disk, others)
    else:
        table, making = _count_rows(steps, count_rows(schedule.most, schedule.restart, schedule.saved))
        snapshots = min(others, schedule.most // min(schedule.restart, schedule.saved))

    def taken(sizes: Sizes) -> int:
        if isinstance(schedule, Hierarchical):
            held = min(schedule.memory, others) * sizes.restart + min(schedule.disk, others) * sizes.listed
        else:
            held = schedule.peak(steps, restart=sizes.restart, saved=sizes.taped_beside) + sizes.restart
        return max(held + table + count_tuples(snapshots), making)

    return in_memory(sizes, taken), making


def _count_table(schedule: Mixed | Hierarchical, steps: int) -> tuple[int, int]:
    """Return the bytes of the table of a schedule, when it is there and while it is made."""
    if isinstance(schedule, Hierarchical):
        rows = hierarchical_rows(steps, schedule.disk)
        return count_bytes(count_lengths(steps, rows), rows + (rows < min(schedule.disk, steps)))
    # That of a schedule with more units may serve it, too.
    return _count_rows(steps, schedule._table(steps).row(sys.maxsize) + 1)


def _count_rows(steps: int, rows: int) -> tuple[int, int]:
    """Return the same of a table of so many rows."""
    return count_bytes(max(1, min(steps, MOST_STEPS, MOST_CELLS // rows)), rows)


def _periodic(schedule: Periodic, steps: int, sizes: Sizes, costs: Costs, *, buffered: bool) -> Prediction:
    forward = schedule.forward_steps(steps)
    on_disk = schedule.peak(steps, "disk")
    in_memory = schedule.peak(steps, saved=0)
    snapshots = schedule.peak_snapshots(steps)
    buffer = buffer_of(sizes) if buffered and on_disk else 0
    if buffered or not on_disk:
        time = schedule.predicted_time(steps, costs)
    else:
        time = _time(costs, steps, forward, on_disk, on_disk)
    return Prediction(
        forward=forward,
        snapshots=snapshots,
        memory=in_memory * sizes.restart + on_disk * sizes.listed + count_tuples(snapshots, forward) + buffer,
        disk=on_disk * sizes.stored,
        time=time,
        buffer=buffer,
    )


def _hierarchical(schedule: Hierarchical, steps: int, sizes: Sizes, costs: Costs, *, buffered: bool) -> Prediction:
    counts = count_hierarchical(schedule, steps)
    buffer = buffer_of(sizes) if buffered and counts.disk else 0
    snapshots = min(counts.memory + counts.disk, max(0, steps - 1))
    table, making = _count_table(schedule, steps)
    held = counts.memory * sizes.restart + counts.disk * sizes.listed
    return Prediction(
        forward=counts.forward,
        snapshots=snapshots,
        memory=max(held + table + count_tuples(snapshots, counts.forward) + buffer, making),
        disk=counts.disk * sizes.stored,
        time=_time(costs, steps, counts.forward, counts.writes, counts.reads),
        buffer=buffer,
    )


def count_hierarchical(schedule: Hierarchical, steps: int) -> _Counts:
    """
    Return what a `Hierarchical` schedule does, by its table and not by following it.

    Args:
        schedule: The schedule.
        steps: The number of steps of the loop, at least 1.

    Memory:
        The table, and an entry for each length and number of slots that the schedule comes to.
    """
    return _Walk(schedule.memory, schedule._table(steps), {}).fresh(schedule.disk, steps)


@final
@dataclass(frozen=True, slots=True)
class _Walk:
    """The way of a `Hierarchical` schedule through its table, with the counts of the intervals that it has come to."""

    memory: int
    table: HierarchicalTable
    stored: dict[tuple[int, int], _Counts]

    def alone(self, length: int) -> _Counts:
        """With the slots in memory alone."""
        forward = Revolve(max(1, self.memory)).forward_steps(length)
        return _Counts(forward, 0, 0, min(self.memory, length - 1), 0)

    def fresh(self, disk: int, length: int) -> _Counts:
        """The state in hand is not stored."""
        if length == 1 or disk < 1 or not _pays(self.table, disk, length):
            return self.alone(length)
        below = self.from_stored(disk, length)
        return _Counts(below.forward, below.writes + 1, below.reads, below.memory, below.disk)

    def from_stored(self, disk: int, length: int) -> _Counts:
        """The state in hand is stored on disk; from there on interval after interval, from the last to the first."""
        key = disk, length
        if key not in self.stored:
            forward = writes = reads = memory = most = 0
            while (place := self.table.place(disk, length) if length > 1 else 0) > 0:
                after = self.fresh(disk - 1, length - place)
                forward, writes, reads = forward + place + after.forward, writes + after.writes, reads + after.reads + 1
                memory, most = max(memory, after.memory), max(most, after.disk)
                length = place
            last = self.alone(length)
            self.stored[key] = _Counts(forward + last.forward, writes, reads, max(memory, last.memory), most + 1)
        return self.stored[key]


def _pays(table: HierarchicalTable, disk: int, length: int) -> bool:
    """Whether the state in hand is written, as the schedule decides it."""
    return table.costs.write + table.stored(disk, length) < table.alone(length, table.memory)
