"""A checker that replays a schedule with its own books and knows nothing of any schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import final

from ebbtide.errors import ScheduleError
from ebbtide.schedules import Action, Copy, Delete, EndForward, Forward, Move, Position, Reverse, Schedule


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
        peak_saved: The largest number of steps whose saved values are at hand at the same time.
        snapshots_left: Snapshots that are still there at the end.
        actions: The number of actions.
        writes: Snapshots stored in each tier.
        reads: Snapshots loaded from each tier.
        peaks: The largest number of snapshots at the same time of each (kind, tier).
        used: The largest size of all snapshots at the same time in each tier.
    """

    forward_steps: int
    snapshot_writes: int
    snapshot_reads: int
    peak_snapshots: int
    peak_saved: int
    snapshots_left: int
    actions: int
    writes: Mapping[str, int]
    reads: Mapping[str, int]
    peaks: Mapping[tuple[str, str], int]
    used: Mapping[str, int]


def check_schedule(
    schedule: Schedule,
    steps: int,
    *,
    start: Position | None = None,
    ends: int | None = None,
    slots: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> ScheduleCount:
    """
    Follow a schedule to its end and prove that every action can be followed and every step is reversed once.

    Args:
        schedule: The schedule.
        steps: The number of steps of the loop.
        start: The position to begin at, that of a loop which has not begun if None.
        ends: The step after which an open loop ends, to the surprise of the schedule; None for its upper bound.
        slots: The size that the snapshots in each tier may have together; a tier that is not named has no bound.
            A start position may hold more; then nothing may be stored in this tier until it holds less.
        sizes: The size of a snapshot of each kind; 1 of a kind that is not named.

    Returns:
        What it took.

    Raises:
        ScheduleError: An action cannot be followed, a step is not reversed in its turn, a tier holds more than it
            may, the schedule does not come to an end, or `Position.after` disagrees; the message gives the index
            of the action.

    Memory:
        Holds the snapshots and a set of the steps whose values are saved, until it returns.

    Example:
        >>> from ebbtide.schedules import Revolve
        >>> check_schedule(Revolve(5), 100, slots={"memory": 5}).forward_steps
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
        snapshots={snapshot.step: (snapshot.kind, snapshot.tier) for snapshot in position.snapshots},
        forward_ended=position.forward_ended,
        finished=position.finished,
        slots=slots or {},
        sizes=sizes or {},
    )
    books.measure()
    while (action := schedule.next_action(position)) is not None:
        if ends is not None and position.open and isinstance(action, Forward):
            action = replace(action, stop=min(action.stop, ends))
        books.follow(action)
        try:
            position = position.after(action)
        except ScheduleError as error:
            books.fail(action, f"Position.after refuses it: {error}")
        books.compare(action, position)
        if ends is not None and position.open and position.state == ends:
            position, books.steps, books.end = position.ended(ends), ends, ends
    if not books.finished:
        raise ScheduleError(
            f"The schedule stops after {books.actions} actions, but {books.end} of {steps} steps are not "
            "reversed or EndReverse is missing. Return None only when the position is finished."
        )
    return ScheduleCount(
        forward_steps=books.forward_steps,
        snapshot_writes=sum(books.writes.values()),
        snapshot_reads=sum(books.reads.values()),
        peak_snapshots=books.peak_snapshots,
        peak_saved=books.peak_saved,
        snapshots_left=len(books.snapshots),
        actions=books.actions,
        writes=MappingProxyType(books.writes),
        reads=MappingProxyType(books.reads),
        peaks=MappingProxyType(books.peaks),
        used=MappingProxyType(books.used),
    )


@final
@dataclass(slots=True, kw_only=True)
class _Books:
    """What a loop would hold, as plain sets."""

    steps: int
    end: int
    state: int | None
    saved: set[int]
    snapshots: dict[int, tuple[str, str]]
    forward_ended: bool
    finished: bool
    slots: Mapping[str, int]
    sizes: Mapping[str, int]
    forward_steps: int = 0
    peak_snapshots: int = 0
    peak_saved: int = 0
    actions: int = 0
    copies_in_a_row: int = 0
    held: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    writes: dict[str, int] = field(default_factory=lambda: {"memory": 0, "disk": 0})
    reads: dict[str, int] = field(default_factory=lambda: {"memory": 0, "disk": 0})
    peaks: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    used: dict[str, int] = field(default_factory=lambda: {"memory": 0, "disk": 0})

    def measure(self) -> None:
        """Take what is held at the beginning into the counts."""
        for held in self.snapshots.values():
            self.held[held] = self.held.get(held, 0) + 1
        self.peaks = dict(self.held)
        self.used = {tier: self.use(tier) for tier in self.used}
        self.peak_snapshots, self.peak_saved = len(self.snapshots), len(self.saved)

    def use(self, tier: str) -> int:
        """The size of all snapshots in a tier."""
        return sum(count * self.sizes.get(kind, 1) for (kind, place), count in self.held.items() if place == tier)

    def follow(self, action: Action) -> None:
        """Follow one action and count."""
        self.require(not self.finished, action, "the sweep is finished")
        if isinstance(action, Forward):
            self.run(action)
        elif isinstance(action, Reverse):
            self.reverse(action)
        elif isinstance(action, (Copy, Move, Delete)):
            self.load(action)
        elif isinstance(action, EndForward):
            self.require(not self.forward_ended, action, "it was said before")
            self.require(self.state == self.steps, action, f"the working state is that of step {self.state}")
            self.forward_ended = True
        else:
            self.require(self.forward_ended and self.end == 0, action, f"{self.end} steps are not reversed")
            self.finished, self.state = True, None
        self.actions += 1
        self.peak_saved = max(self.peak_saved, len(self.saved))

    def run(self, action: Forward) -> None:
        """Run steps, and store a snapshot of the first one or keep their saved values if asked to."""
        start, stop = action.start, action.stop
        self.require(self.state == start, action, f"the working state is that of step {self.state}")
        self.require(start < stop <= self.end, action, f"steps below {self.end} are left")
        if action.snapshot:
            self.store(action)
        if action.drop:
            self.saved.clear()
        if action.save:
            self.saved.update(range(start, stop))
        self.state = stop
        self.forward_steps += stop - start
        self.copies_in_a_row = 0
        # One snapshot and no other memory takes n(n + 1)/2 steps to reverse all, and at most n before these where none
        # of the forward sweep is of use, as in a loop whose end was not foreseen: more goes in circles.
        most = self.steps * (self.steps + 1) // 2 + self.steps
        self.require(self.forward_steps <= most, action, f"more than {most} forward steps are of no use")

    def store(self, action: Forward) -> None:
        """Store a snapshot where there is room for it."""
        step, held, tier = action.start, (action.kind, action.tier), action.tier
        self.require(step not in self.snapshots, action, "the snapshot is there already")
        self.require(action.kind in {"restart", "saved"} and tier in self.used, action, "no such kind or tier")
        one = action.kind == "restart" or (action.stop == step + 1 and not action.save)
        self.require(one, action, "a snapshot of saved values is of one step, not kept at hand too")
        self.snapshots[step] = held
        self.held[held] = self.held.get(held, 0) + 1
        self.peaks[held] = max(self.peaks.get(held, 0), self.held[held])
        use = self.use(tier)
        self.require(use <= self.slots.get(tier, use), action, f"{tier} would hold {use}, of {dict(self.slots)}")
        self.used[tier] = max(self.used[tier], use)
        self.writes[tier] += 1
        self.peak_snapshots = max(self.peak_snapshots, len(self.snapshots))

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

    def load(self, action: Copy | Move | Delete) -> None:
        """Load a snapshot, delete it, or both."""
        step = action.step
        self.require(step in self.snapshots, action, f"only {sorted(self.snapshots)} are stored")
        held = kind, tier = self.snapshots[step]
        if isinstance(action, Copy):
            self.copies_in_a_row += 1
            self.require(self.copies_in_a_row <= 2, action, "it loads again and again and runs nothing")
        else:
            del self.snapshots[step]
            self.held[held] -= 1
        if isinstance(action, Delete):
            return
        if kind == "saved":
            near = not self.saved or step + 1 in self.saved or step - 1 in self.saved
            self.require(near and step < self.end and step not in self.saved, action, "a gap would open")
            self.saved.add(step)
        else:
            self.state = step
        self.reads[tier] += 1

    def compare(self, action: Action, position: Position) -> None:
        """Fail unless the position says what these books say."""
        held = [(snapshot.step, (snapshot.kind, snapshot.tier)) for snapshot in position.snapshots]
        theirs = (position.end, position.state, position.forward_ended, position.finished, held)
        ours = (self.end, self.state, self.forward_ended, self.finished, sorted(self.snapshots.items()))
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
