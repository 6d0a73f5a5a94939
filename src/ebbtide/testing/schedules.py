"""A checker that replays a schedule with its own books and knows nothing of any schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from ebbtide.errors import ScheduleError
from ebbtide.schedules import Action, Copy, EndForward, Forward, Move, Position, Reverse, Schedule


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCount:
    """
    What following a schedule to its end takes.

    Args:
        forward_steps: All runs of all steps, those whose values are saved included.
        snapshot_writes: Snapshots stored.
        snapshot_reads: Snapshots loaded.
        peak_snapshots: The largest number of snapshots at the same time.
        peak_saved: The largest number of steps whose saved values are held at the same time.
        snapshots_left: Snapshots that are still there at the end.
        actions: The number of actions.
    """

    forward_steps: int
    snapshot_writes: int
    snapshot_reads: int
    peak_snapshots: int
    peak_saved: int
    snapshots_left: int
    actions: int


def check_schedule(schedule: Schedule, steps: int, *, start: Position | None = None) -> ScheduleCount:
    """
    Follow a schedule to its end and prove that every action can be followed and every step is reversed once.

    Args:
        schedule: The schedule.
        steps: The number of steps of the loop.
        start: The position to begin at, that of a loop which has not begun if None.

    Returns:
        What it took.

    Raises:
        ScheduleError: An action cannot be followed, a step is not reversed in its turn, the schedule does not
            come to an end, or `Position.after` disagrees; the message gives the index of the action.

    Memory:
        Holds a set of the snapshots and a set of the steps whose values are saved, until it returns.

    Example:
        >>> from ebbtide.schedules import Revolve
        >>> check_schedule(Revolve(5), 100).forward_steps
        416
    """
    position = Position(steps=steps) if start is None else start
    if position.steps != steps:
        raise ScheduleError(
            f"The start position has {position.steps} steps, not {steps}. Give the same number."
        )
    books = _Books(
        steps=steps,
        end=position.end,
        state=position.state,
        saved=set(range(*position.saved)) if position.saved else set(),
        snapshots={snapshot.step for snapshot in position.snapshots},
        forward_ended=position.forward_ended,
        finished=position.finished,
    )
    while (action := schedule.next_action(position)) is not None:
        books.follow(action)
        try:
            position = position.after(action)
        except ScheduleError as error:
            books.fail(action, f"Position.after refuses it: {error}")
        books.compare(action, position)
    if not books.finished:
        raise ScheduleError(
            f"The schedule stops after {books.actions} actions, but {books.end} of {steps} steps are not "
            "reversed or EndReverse is missing. Return None only when the position is finished."
        )
    return ScheduleCount(
        forward_steps=books.forward_steps,
        snapshot_writes=books.snapshot_writes,
        snapshot_reads=books.snapshot_reads,
        peak_snapshots=books.peak_snapshots,
        peak_saved=books.peak_saved,
        snapshots_left=len(books.snapshots),
        actions=books.actions,
    )


@final
@dataclass(slots=True, kw_only=True)
class _Books:
    """What a loop would hold, as plain sets."""

    steps: int
    end: int
    state: int | None
    saved: set[int]
    snapshots: set[int] = field(default_factory=set[int])
    forward_ended: bool
    finished: bool
    forward_steps: int = 0
    snapshot_writes: int = 0
    snapshot_reads: int = 0
    peak_snapshots: int = 0
    peak_saved: int = 0
    actions: int = 0
    copies_in_a_row: int = 0

    def follow(self, action: Action) -> None:
        """Follow one action and count."""
        self.require(not self.finished, action, "the sweep is finished")
        if isinstance(action, Forward):
            self.run(action)
        elif isinstance(action, Reverse):
            self.reverse(action)
        elif isinstance(action, (Copy, Move)):
            self.load(action)
        elif isinstance(action, EndForward):
            self.require(not self.forward_ended, action, "it was said before")
            self.require(self.state == self.steps, action, f"the working state is that of step {self.state}")
            self.forward_ended = True
        else:
            self.require(self.forward_ended and self.end == 0, action, f"{self.end} steps are not reversed")
            self.finished, self.state = True, None
        self.actions += 1
        self.peak_snapshots = max(self.peak_snapshots, len(self.snapshots))
        self.peak_saved = max(self.peak_saved, len(self.saved))

    def run(self, action: Forward) -> None:
        """Run steps, and store their first restart state or their saved values if asked to."""
        self.require(self.state == action.start, action, f"the working state is that of step {self.state}")
        self.require(action.start < action.stop <= self.end, action, f"steps below {self.end} are left")
        if action.snapshot:
            self.require(action.start not in self.snapshots, action, "the snapshot is there already")
            self.snapshots.add(action.start)
            self.snapshot_writes += 1
        if action.save:
            self.saved.update(range(action.start, action.stop))
        self.state = action.stop
        self.forward_steps += action.stop - action.start
        self.copies_in_a_row = 0
        # One snapshot and no other memory takes n(n + 1)/2 steps: who takes more goes in circles.
        most = self.steps * (self.steps + 1) // 2
        self.require(self.forward_steps <= most, action, f"more than {most} forward steps are of no use")

    def reverse(self, action: Reverse) -> None:
        """Reverse steps and consume their saved values."""
        self.require(self.forward_ended, action, "the forward sweep has not ended")
        self.require(action.start == self.end, action, f"the next step to reverse is {self.end - 1}")
        self.require(0 <= action.stop < action.start, action, "it reverses nothing, or steps below 0")
        for step in range(action.start - 1, action.stop - 1, -1):
            self.require(step in self.saved, action, f"there are no saved values of step {step}")
            self.saved.remove(step)
        self.end = action.stop
        if self.state is not None and self.state >= self.end:
            self.state = None
        self.copies_in_a_row = 0

    def load(self, action: Copy | Move) -> None:
        """Load a snapshot."""
        self.require(action.step in self.snapshots, action, f"only {sorted(self.snapshots)} are stored")
        if isinstance(action, Move):
            self.snapshots.remove(action.step)
        else:
            self.copies_in_a_row += 1
            self.require(self.copies_in_a_row <= 2, action, "it loads again and again and runs nothing")
        self.state = action.step
        self.snapshot_reads += 1

    def compare(self, action: Action, position: Position) -> None:
        """Fail unless the position says what these books say."""
        held = [snapshot.step for snapshot in position.snapshots]
        theirs = (position.end, position.state, position.forward_ended, position.finished, held)
        ours = (self.end, self.state, self.forward_ended, self.finished, sorted(self.snapshots))
        # Saved steps in one row are told by their number and both ends, so that this takes no time for many
        # steps.
        first, stop = position.saved or (0, 0)
        agree = theirs == ours and stop - first == len(self.saved)
        if not agree or (stop > first and not {first, stop - 1} <= self.saved):
            reason = f"Position.after gives {position}, but end, state, flags and snapshots should be {ours}"
            self.fail(action, reason)

    def require(self, condition: bool, action: Action, reason: str) -> None:
        """Fail unless the condition holds."""
        if not condition:
            self.fail(action, reason)

    def fail(self, action: Action, reason: str) -> None:
        """Raise the error for an action."""
        raise ScheduleError(
            f"Action {self.actions} of the schedule, {action}, is wrong after {self.forward_steps} forward "
            f"steps: {reason}."
        )
