"""What all schedules do alike: the ends of both sweeps, and what another schedule left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import (
    Action,
    Copy,
    Delete,
    EndForward,
    EndReverse,
    Forward,
    Move,
    Reverse,
    copy,
    delete,
    move,
    reverse,
    run,
)
from ebbtide.schedules.asked import check_position
from ebbtide.schedules.position import Position, Snapshot
from ebbtide.schedules.snapshots import find_place


class Roomy(Protocol):
    """A schedule that says where it has room."""

    def find_room(self, position: Position) -> str | None:
        """Return the tier that has room for one more restart state, None if there is none."""
        ...


def forced_action(position: Position, schedule: Roomy) -> Action | None:
    """
    Return the action where there is no choice: an end of a sweep, or what saved values at hand ask for.

    Args:
        position: Where the loop stands; it is not finished.
        schedule: Who asks.

    Returns:
        The action, None where a schedule has to choose.

    Raises:
        ScheduleError: Saved values at hand cannot be used.
    """
    saved, end = position.saved, position.end
    if position.forward_ended:
        if saved is None and end > 0:
            return None
        if saved is None:
            # What another schedule left behind at the very end.
            return delete(position.snapshots[-1].step) if position.snapshots else EndReverse()
        if saved[1] == end:
            return reverse(end, saved[0])
    elif position.state == position.steps:
        return EndForward()
    elif saved is None:
        return None
    require_way_back(position, count_base(position))
    action = _close_gap(position, schedule)
    if action is None:
        raise describe_loss(position)
    return action


def _close_gap(position: Position, schedule: Roomy) -> Action | None:
    """
    Return the action where another schedule left saved values at hand that do not reach the end.

    Saved values at hand cannot be given up and are one range, so that all steps behind them have to be saved, too.

    Args:
        position: A position with saved values at hand, before the end of a sweep.
        schedule: Who asks.

    Returns:
        The action, None if no state is held from which the steps behind the range can be run.
    """
    assert position.saved is not None
    stop, state = position.saved[1], position.state
    held = next((kept for kept in position.snapshots if kept.step == stop and stop < position.end), None)
    if held is not None and held.kind == "saved":
        return move(stop)
    if state is not None and state == stop:
        return run(state, position.end, save=True)
    if state is not None and state < stop:
        missing = _find_missing(position, state)
        if missing is None:
            return run(state, stop)
        if missing > state:
            # Saved values on the way there may have the room that is wanted there.
            blocked = not _has_room(position, schedule, missing) and _has_room(position, schedule, state)
            return delete(missing - 1) if blocked else run(state, missing)
        tier = schedule.find_room(position)
        if tier is None and position.snapshots and position.snapshots[-1].step > state:
            return delete(position.snapshots[-1].step)
        return run(state, stop, snapshot=True, tier=tier or "memory")
    restarts = [kept.step for kept in position.snapshots if kept.kind == "restart" and kept.step <= stop]
    return copy(restarts[-1]) if restarts else None


def _has_room(position: Position, schedule: Roomy, stop: int) -> bool:
    """Whether there is room for one more restart state if the snapshots from a step on are given up."""
    if schedule.find_room(position) is not None:
        return True
    below = position.snapshots[: find_place(position.snapshots, stop)]
    return schedule.find_room(replace(position, snapshots=below)) is not None


def _find_missing(position: Position, state: int) -> int | None:
    """Return the first step before the saved values at hand to which a working state is the only way back."""
    snapshots, missing, place = position.snapshots, state, find_place(position.snapshots, state)
    if len(snapshots) > position.saved_snapshots and any(kept.kind == "restart" for kept in snapshots[:place]):
        return None
    while place < len(snapshots) and snapshots[place].step == missing:
        if snapshots[place].kind == "restart":
            return None
        missing, place = missing + 1, place + 1
    return missing if position.saved is not None and missing < position.saved[0] else None


def count_base(position: Position) -> int:
    """
    Return the number of first steps that each have a snapshot of their own, up to the last of kind `"saved"`.

    These steps can be reversed whatever happens above them: to the others, the step behind them is the first.
    """
    snapshots = position.snapshots
    low, high = 0, len(snapshots)
    if high == 0 or snapshots[0].kind != "saved":
        return 0
    last = snapshots[-1]
    if last.step == high - 1 and last.kind == "saved":
        # None is left out, as where all steps are stored.
        return high
    # Steps ascend, so that the one at a place is the place itself as long as no step is left out.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if snapshots[middle].step == middle else (low, middle)
    if snapshots[low].step != low:
        return 0
    while snapshots[low].kind != "saved":
        low -= 1
    return low + 1


class RestartSchedule(Roomy, Protocol):
    """A schedule whose snapshots are all of kind `"restart"`."""

    def choose(self, position: Position) -> Action:
        """
        Return the action at a position where only this schedule knows what to do; see `restart_action`.

        Args:
            position: A position that is not finished, without saved values at hand, whose last snapshot is a restart
                state below its end.

        Raises:
            ScheduleError: The position cannot be completed.
        """
        ...

    def beside(self, memory: int, disk: int) -> RestartSchedule:
        """Return the same schedule with fewer slots, of which others take so many; one is left in any case."""
        ...


def restart_action(position: Position, schedule: RestartSchedule) -> Action | None:
    """
    Return the next action of a schedule whose snapshots are all of kind `"restart"`.

    Args:
        position: Where the loop stands.
        schedule: The schedule. It is asked at positions that are not finished, where nothing is saved at hand, no
            snapshot lies beyond the end, and the last snapshot is a restart state; the steps that another schedule's
            snapshots of saved values take care of are left out of them, and so are the slots that these take.

    Returns:
        The action, None if the position is finished.

    Raises:
        ScheduleError: It is no position, or it cannot be completed.
    """
    check_position(position)
    if position.finished:
        return None
    # In the middle of the reverse sweep, where most questions are asked, nothing is forced.
    if position.saved is not None or not position.forward_ended or position.end == 0:
        action = forced_action(position, schedule)
        if action is not None:
            return action
    snapshots = position.snapshots
    if not snapshots or (snapshots[-1].kind == "restart" == snapshots[0].kind and snapshots[-1].step < position.end):
        return schedule.choose(position)
    return _choose_above_saved(position, schedule)


def _choose_above_saved(position: Position, schedule: RestartSchedule) -> Action:
    """There are snapshots of saved values, or one beyond the end."""
    last, end, state = position.snapshots[-1], position.end, position.state
    base = count_base(position)
    if last.step >= end:
        return delete(last.step)
    if last.step == end - 1 and last.kind == "saved":
        return move(last.step)
    if base >= end:
        return run(end - 1, end, save=True) if state == end - 1 else move(last.step)
    if last.kind == "saved" and last.step >= base:
        return delete(last.step)
    # A restart state among the saved values takes a slot, and may be the way to the steps above them.
    held = [one for one in position.snapshots if one.step >= base or one.kind == "restart"]
    require_way_back(position, base)
    if state is not None and state < base and not any(one.kind == "restart" and one.step <= base for one in held):
        return run(state, base)  # where the others begin: nothing else leads there
    first = min(base, held[0].step) if held else base
    above = Position(
        steps=position.steps - first,
        reversed=position.reversed,
        state=None if state is None or state < first else state - first,
        forward_ended=position.forward_ended,
        snapshots=tuple([Snapshot(one.step - first, one.kind, one.tier) for one in held]),
        open=position.open,
    )
    below = [one.tier for one in position.snapshots if one.step < base and one.kind == "saved"]
    try:
        action = shift(schedule.beside(below.count("memory"), below.count("disk")).choose(above), first)
    except ScheduleError:
        # It tells the numbers of the steps above.
        raise describe_loss(position) from None
    # Of the steps below nothing is stored again.
    return run(action.start, base) if isinstance(action, Forward) and action.start < base else action


def shift(action: Action, by: int) -> Action:
    """Return the action for a loop that has `by` more steps before the first one."""
    if isinstance(action, Forward):
        start, stop = action.start + by, action.stop + by
        return run(start, stop, action.snapshot, action.save, action.kind, action.tier, action.drop)
    if isinstance(action, Copy):
        return copy(action.step + by)
    if isinstance(action, Move):
        return move(action.step + by)
    if isinstance(action, Delete):
        return delete(action.step + by)
    if isinstance(action, Reverse):
        return reverse(action.start + by, action.stop + by)
    return action


def require_way_back(position: Position, base: int) -> None:
    """
    Fail before any work is done if steps cannot be run again whose saved values are held nowhere.

    Args:
        position: Where the loop stands.
        base: What `count_base` returned.

    Raises:
        ScheduleError: The position cannot be completed.
    """
    saved, state, snapshots = position.saved, position.state, position.snapshots
    missing = position.end if saved is None else saved[0]
    if base >= missing or (state is not None and state <= base):
        return
    if not any(kept.kind == "restart" and kept.step <= base for kept in snapshots[: base + 1]):
        raise describe_loss(position)


def describe_loss(position: Position) -> ScheduleError:
    """Return the error of a position without a way back to its first steps."""
    held = [(kept.step, kept.kind) for kept in position.snapshots]
    return ScheduleError(
        f"Step 0 cannot be run again: the working state is that of step {position.state}, snapshots are held of "
        f"{held}, saved values are at hand for {position.saved}, and {position.end} of {position.steps} steps are not "
        "yet reversed. Supply the initial state as the working state of a position without snapshots, or as the "
        "snapshot of step 0."
    )
