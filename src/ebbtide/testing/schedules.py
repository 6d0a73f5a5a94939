"""A checker that replays a schedule in plain sets of its own and knows nothing of any schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from numbers import Real
from typing import Any, TypeVar, final

from ebbtide.errors import ScheduleError
from ebbtide.schedules import Action, Copy, Delete, EndForward, EndReverse, Forward, Move, Position, Reverse, Schedule
from ebbtide.schedules.asked import check_position
from ebbtide.schedules.records import plain_integer

KINDS, TIERS = ("restart", "saved"), ("memory", "disk")

K = TypeVar("K")


@final
class _Table(Mapping[K, int]):
    """A mapping that does not change: plain data, to be compared with a dict, hashed, copied and pickled."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: Mapping[K, int]) -> None:
        self._numbers = dict(numbers)

    def __getitem__(self, key: K) -> int:
        return self._numbers[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __hash__(self) -> int:
        return hash(frozenset(self._numbers.items()))

    def __repr__(self) -> str:
        return repr(self._numbers)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCount:
    """
    What following a schedule to its end takes.

    Args:
        forward_steps: All runs of all steps, those whose values are saved included.
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
        start: The position to begin at; that of a loop which has not begun if None, of unknown length with *ends*.
        ends: The step after which an open loop ends, to the surprise of the schedule; None for its upper bound.
        slots: The size that the snapshots in each tier may have together; a tier that is not named has no bound.
            A start position may hold more; then nothing may be stored in this tier until it holds less.
        sizes: The size of a snapshot of each kind; 1 of a kind that is not named.

    Returns:
        What it took.

    Raises:
        ScheduleError: An action cannot be followed, a step is not reversed in its turn, a tier holds more than it
            may, the schedule does not come to an end, or `Position.after` disagrees; the message gives the index
            of the action. An argument is none of these.

    Memory:
        Holds the snapshots and a set of the steps whose values are saved, until it returns.

    Example:
        >>> from ebbtide.schedules import Revolve
        >>> check_schedule(Revolve(5), 100, slots={"memory": 5}).forward_steps
        416
    """
    _check_asked(schedule, start, ends, slots, sizes)
    position = Position(steps=steps, open=ends is not None) if start is None else start
    if position.steps != steps or (ends is not None and not position.open):
        raise ScheduleError(
            f"The start position is {position}: give one of {steps} steps, and an open one with ends=."
        )
    if ends is not None and not 0 < ends <= steps:
        raise ScheduleError(f"No loop of {steps} steps ends at {ends}: it ends at a step from 1 to {steps}.")
    held = _held_at(position)
    counts = _Counts(held, slots or {}, sizes or {})
    while (action := schedule.next_action(position)) is not None:
        if ends is not None and position.open and isinstance(action, Forward):
            action = replace(action, stop=min(action.stop, ends))
        loaded = held.snapshots.get(action.step) if isinstance(action, (Copy, Move, Delete)) else None
        wrong = _follow(held, action) or counts.take(action, loaded)
        if not wrong:
            try:
                position = position.after(action)
                wrong = _difference(held, position)
            except ScheduleError as error:
                wrong = f"Position.after refuses it: {error}"
        if wrong:
            raise ScheduleError(
                f"Action {counts.actions} of the schedule, {action}, is wrong after {counts.forward_steps} forward "
                f"steps: {wrong}."
            )
        counts.actions += 1
        if ends is not None and position.open and position.state == ends:
            position, held.steps, held.end = position.ended(ends), ends, ends
    if not held.finished:
        raise ScheduleError(
            f"The schedule stops after {counts.actions} actions, but {held.end} of {steps} steps are not "
            "reversed or EndReverse is missing. Return None only when the position is finished."
        )
    return counts.told()


def _check_asked(schedule: Any, start: Any, ends: Any, slots: Any, sizes: Any) -> None:
    """Fail unless the arguments are of the types that `check_schedule` takes."""
    if isinstance(schedule, type) or not callable(getattr(schedule, "next_action", None)):
        raise ScheduleError(f"{schedule!r} is no schedule. Give an object with next_action, such as Revolve(5).")
    if start is not None:
        check_position(start)
    if ends is not None:
        plain_integer(ends, "The step at which the loop ends")
    for name, given, known in (("slots", slots, TIERS), ("sizes", sizes, KINDS)):
        if given is not None and not isinstance(given, Mapping):
            raise ScheduleError(f"{name}= cannot be {given!r}. Give a mapping from {known} to numbers, or None.")
        for key, number in (given or {}).items():
            if key not in known:
                raise ScheduleError(f"There is no tier or kind {key!r} for {name}=. Name some of {known}.")
            if isinstance(number, bool) or not isinstance(number, Real) or not isfinite(number) or number < 0:
                raise ScheduleError(f"{name}= of {key!r} cannot be {number!r}. Give a number of 0 or more.")


@final
@dataclass(slots=True)
class _Held:
    """What a loop holds, and how far it is."""

    steps: int
    end: int
    state: int | None
    saved: set[int]
    snapshots: dict[int, tuple[str, str]]
    forward_ended: bool
    finished: bool


def _held_at(position: Position) -> _Held:
    saved = set(range(*position.saved or (0, 0)))
    snapshots = {kept.step: (kept.kind, kept.tier) for kept in position.snapshots}
    return _Held(
        position.steps, position.end, position.state, saved, snapshots, position.forward_ended, position.finished
    )


def _follow(held: _Held, action: Action) -> str:
    """Follow an action; return why it cannot be followed, or nothing."""
    saved, snapshots = held.saved, held.snapshots
    if held.finished:
        return "the sweep is finished"
    if isinstance(action, Forward):
        start, stop, kept = action.start, action.stop, (action.kind, action.tier)
        if start != held.state:
            return f"the working state is that of step {held.state}"
        if not start < stop <= held.end:
            return f"steps below {held.end} are left"
        if action.snapshot and (start in snapshots or action.kind not in KINDS or action.tier not in TIERS):
            return f"there is a snapshot already, or none can be in {kept}"
        if action.snapshot and action.kind == "saved" and (stop > start + 1 or action.save):
            return "a snapshot of saved values is of one step, not kept at hand too"
        if action.snapshot:
            snapshots[start] = kept
        if action.drop:
            saved.clear()
        saved.update(range(start, stop) if action.save else ())
        held.state = stop
    elif isinstance(action, Reverse):
        if not held.forward_ended:
            return "the forward sweep has not ended"
        if action.start != held.end or not 0 <= action.stop < held.end:
            return f"the next step to reverse is {held.end - 1}"
        missing = [step for step in range(action.stop, action.start) if step not in saved]
        if missing:
            return f"there are no saved values of step {missing[-1]}"
        saved.difference_update(range(action.stop, action.start))
        held.end = action.stop
        held.state = None if held.state is None or held.state >= held.end else held.state
    elif isinstance(action, (Copy, Move, Delete)):
        step = action.step
        if step not in snapshots:
            return f"only {sorted(snapshots)} are stored"
        kind, _ = snapshots[step] if isinstance(action, Copy) else snapshots.pop(step)
        if kind == "saved" and not isinstance(action, Delete):
            if step >= held.end or step in saved or (saved and saved.isdisjoint((step - 1, step + 1))):
                return "a gap would open"
            saved.add(step)
        elif not isinstance(action, Delete):
            held.state = step
    elif isinstance(action, EndForward):
        if held.forward_ended or held.state != held.steps:
            return f"it was said before, or the working state is that of step {held.state}"
        held.forward_ended = True
    elif not isinstance(action, EndReverse):
        return "it is no action"
    elif held.end or not held.forward_ended:
        return f"{held.end} steps are not reversed"
    else:
        held.finished, held.state = True, None
    return ""


def _difference(held: _Held, position: Position) -> str:
    """Return how a position differs from what is held; nothing if it does not."""
    first, stop = position.saved or (0, 0)
    ours = (held.end, held.state, held.forward_ended, held.finished, sorted(held.snapshots.items()))
    theirs = (position.end, position.state, position.forward_ended, position.finished)
    theirs += ([(kept.step, (kept.kind, kept.tier)) for kept in position.snapshots],)
    # Steps in one row are told by their number and both ends, so that this takes no time for many.
    row = stop - first == len(held.saved) and (stop == first or {first, stop - 1} <= held.saved)
    return "" if row and ours == theirs else f"Position.after gives {position}, but it should have {ours}"


@final
class _Counts:
    """What was done, and the most that was held at a time."""

    def __init__(self, held: _Held, slots: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        self._held, self._slots, self._sizes = held, slots, sizes
        self._now = Counter(held.snapshots.values())
        self._peaks, self._used = dict(self._now), {tier: self._use(tier) for tier in TIERS}
        self._writes, self._reads = dict.fromkeys(TIERS, 0), dict.fromkeys(TIERS, 0)
        self._peak_snapshots, self._peak_saved = len(held.snapshots), len(held.saved)
        self._loaded, self._copies = set[int](), 0  # in a row: of which steps, and how many of a state that was had
        self.actions = self.forward_steps = 0

    def _use(self, tier: str) -> int:
        """Return the size of all snapshots in a tier."""
        return sum(count * self._sizes.get(kind, 1) for (kind, place), count in self._now.items() if place == tier)

    def take(self, action: Action, loaded: tuple[str, str] | None) -> str:
        """Count an action that was followed, and the place of what it *loaded*; return what is too much, or nothing."""
        self._peak_saved = max(self._peak_saved, len(self._held.saved))
        if isinstance(action, (Forward, Reverse)):
            self._loaded.clear()
            self._copies = 0
        if isinstance(action, Forward):
            return self._run(action)
        if loaded is not None:
            self._reads[loaded[1]] += not isinstance(action, Delete)
            self._now[loaded] -= not isinstance(action, Copy)
            # Copies of saved values come to an end: each step is at hand once. So do those of different states.
            if isinstance(action, Copy) and loaded[0] == "restart":
                self._copies += action.step in self._loaded
                self._loaded.add(action.step)
        return "" if self._copies <= 2 else "it loads again and again and runs nothing"

    def _run(self, action: Forward) -> str:
        """Count steps, and a snapshot that is stored."""
        self.forward_steps += action.stop - action.start
        if action.snapshot:
            kept, tier = (action.kind, action.tier), action.tier
            self._now[kept] += 1
            self._writes[tier] += 1
            use = self._use(tier)
            self._peaks[kept] = max(self._peaks.get(kept, 0), self._now[kept])
            self._used[tier] = max(self._used[tier], use)
            self._peak_snapshots = max(self._peak_snapshots, len(self._held.snapshots))
            if use > self._slots.get(tier, use):
                return f"{tier} would hold {use}, of {dict(self._slots)}"
        # One snapshot and no other memory takes n(n + 1)/2 steps to reverse all, and at most n before these where none
        # of the forward sweep is of use, as in a loop whose end was not foreseen: more goes in circles.
        most = self._held.steps * (self._held.steps + 1) // 2 + self._held.steps
        return "" if self.forward_steps <= most else f"more than {most} forward steps are of no use"

    def told(self) -> ScheduleCount:
        """Return the counts."""
        return ScheduleCount(
            forward_steps=self.forward_steps,
            peak_snapshots=self._peak_snapshots,
            peak_saved=self._peak_saved,
            snapshots_left=len(self._held.snapshots),
            actions=self.actions,
            writes=_Table(self._writes),
            reads=_Table(self._reads),
            peaks=_Table(self._peaks),
            used=_Table(self._used),
        )
