"""Checkpointing for a loop of unknown length: bounded storage, and near the binomial optimum wherever it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, Copy, Delete, EndForward, Forward
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.position import Position, Snapshot
from ebbtide.schedules.revolve import Revolve, count_forward

# So many first steps are saved as they run. One step run for nothing is 2 for 1 at one step and 4 for 3 at two; at
# three it is 6 for 5.
_EARLY = 2


@final
@dataclass(frozen=True, slots=True)
class Online(Schedule):
    """
    Bounded storage for a loop whose length is not known until it ends: at most `snapshots` states at any time.

    While the position is open, the working state is stored as soon as that would not cost more if the loop
    ended after the next step; without a free slot the snapshot whose loss costs the fewest forward steps is
    deleted first. When the length is known, snapshots are deleted as long as this leaves fewer forward steps (a
    snapshot holds a slot that the steps after it could use), and `Revolve` goes on from the rest. Of a position
    that is not open it makes the same as `Revolve` from the beginning.

    An end that is not foreseen costs one step more than a known one, as the last step has to be run again to be saved.
    Where one step is much, that is after the first and the second, what the step saves is kept until the next one
    runs; the reverse sweep needs the room for it anyway. Up to (s + 1)(s + 2)/2 steps it is at most 3 more. Measured
    for every length up to 1500 with 5, 10 and 20 snapshots, the forward steps are at most 1.2 times the optimum, and
    beyond (s + 1)(s + 2)/2 at most 1.067, 1.023 and 1.006 times. With 1 or 2 snapshots there is little to choose:
    1.4 and 1.23 times.

    The decisions look at the stored steps and the working state alone, so that an interrupted loop goes on as if
    nothing had happened. Where snapshots were lost, the slots are filled again from the next step on.

    Args:
        snapshots: The largest number of snapshots at the same time; the initial state counts as one.

    Raises:
        ScheduleError: `snapshots` is less than 1.

    Memory:
        Who follows it holds at most `snapshots` restart states, the working state, and the saved values of one
        step.

    Source:
        The rule is our own; the problem and the bound (s + 1)(s + 2)/2, up to which an online schedule can be
        within a constant of the offline optimum, are those of Stumm and Walther, SIAM J. Sci. Comput. 32 (2010),
        doi 10.1137/080742439.

    Example:
        >>> Online(10).forward_steps_open(1000), Revolve(10).forward_steps(1000)
        (4732, 4636)
    """

    snapshots: int

    def __post_init__(self) -> None:
        if self.snapshots < 1:
            raise ScheduleError(
                f"Online needs at least 1 snapshot, that of the initial state, not {self.snapshots}. "
                "Use NoReverse for a loop that is never reversed."
            )

    def next_action(self, position: Position) -> Action | None:
        """See `Schedule.next_action`; at most O(s) closed forms and O(log n) more to find the next place to store."""
        if position.open and not position.finished:
            action = self._next_open(position)
            return _keep_early(action, position) if isinstance(action, Forward) else action
        spare = self._find_hindrance(position)
        return Revolve(self.snapshots).next_action(position) if spare is None else Delete(step=spare)

    def forward_steps(self, steps: int) -> int:
        """
        Return the number of forward steps of a whole gradient if the length is known from the beginning.

        Args:
            steps: The number of steps of the loop.

        Returns:
            That of `Revolve`; see `forward_steps_open` for a length that is not known.

        Example:
            >>> Online(5).forward_steps(1000)
            7284
        """
        return Revolve(self.snapshots).forward_steps(steps)

    def forward_steps_open(self, steps: int) -> int:
        """
        Return the number of forward steps of a whole gradient of a loop that turns out to have `steps` steps.

        Args:
            steps: The number of steps after which the loop ends, below its upper bound.

        Returns:
            All runs of all steps, those whose values are saved included; found by following the places of the
            snapshots, which takes longer than a closed form.

        Example:
            >>> Online(5).forward_steps_open(100), Revolve(5).forward_steps(100)
            (423, 416)
        """
        if steps <= _EARLY:
            return self.forward_steps(steps)
        held = [0]
        while (place := self._find_store(held, steps)) < steps:
            if len(held) == self.snapshots:
                del held[self._find_spare(held, place)[0]]
            held.append(place)
        left = self._count_left(held, steps)
        while len(held) > 1:
            spare, without = self._find_spare(held, steps)
            if without >= left:
                break
            del held[spare]
            left = without
        return steps + left

    def peak_snapshots(self, steps: int) -> int:
        """
        Return the largest number of snapshots at the same time: a last step that is known needs none.

        Args:
            steps: The number of steps of the loop, or its upper bound.

        Example:
            >>> Online(10).peak_snapshots(1000), Online(10).peak_snapshots(4)
            (10, 3)
        """
        return max(0, min(self.snapshots, steps - 1))

    def _next_open(self, position: Position) -> Action:
        """The forward sweep of a loop that may end after any step."""
        state, steps = position.state, position.steps
        if state == steps:
            return EndForward()
        self._require_initial(position)
        if state is not None and state == steps - 1:
            # If the loop does not end before its upper bound, this is the last step: it is reversed next.
            return Forward(start=state, stop=steps, save=True)
        held = [kept.step for kept in position.snapshots]
        useless = next((kept.step for kept in position.snapshots if kept.kind != "restart"), None)
        if useless is None and len(held) > self.snapshots:
            useless = held[self._find_spare(held, max(held[-1], state or 0))[0]]
        if useless is None and held and held[0] > 0 and len(held) == self.snapshots:
            # The initial state is only in hand, and needs a slot.
            useless = held[0]
        if useless is not None:
            return Delete(step=useless)
        if state == 0 and (not held or held[0] > 0):
            return Forward(start=0, stop=1, snapshot=True)
        if state is None or state < held[-1]:
            return Copy(step=held[-1])
        if len(held) == self.snapshots:
            full = _Full.of(held) if len(held) > 1 else None
            if full is not None and full.pays(state - held[-1]):
                return Delete(step=held[full.find_spare(state - held[-1])[0]])
            place = steps if full is None else held[-1] + full.find_place(steps - held[-1])
            return Forward(start=state, stop=min(place, steps - 1))
        if state == held[-1]:
            return Forward(start=state, stop=min(state + 1, steps - 1))
        after = self._find_store([*held, state], steps)
        return Forward(start=state, stop=min(after, steps - 1), snapshot=True)

    def _find_store(self, held: Sequence[int], steps: int) -> int:
        """The first step after the latest snapshot whose state is to be stored; `steps` if there is none."""
        latest = held[-1]
        if len(held) < self.snapshots:
            return min(latest + 1, steps)
        return steps if len(held) == 1 else latest + _Full.of(held).find_place(steps - latest)

    def _find_spare(self, held: Sequence[int], stop: int) -> tuple[int, int]:
        """The place of the snapshot to do without, and how many forward steps then reverse all steps below `stop`."""
        return _find_least(held, self.snapshots, lambda latest, slots: _count(stop - latest, slots))

    def _find_hindrance(self, position: Position) -> int | None:
        """The length is known: a snapshot without which fewer forward steps are left, if there is one."""
        state, end = position.state, position.end
        # At the end of the forward sweep `EndForward` comes first. From the first load on, `Revolve` keeps to the plan.
        late = position.reversed > 0 or position.saved is not None or position.finished
        if late or (state != end if position.forward_ended and state is not None else state == end):
            return None
        held = [kept.step for kept in position.snapshots if kept.kind == "restart"]
        others = len(held) < len(position.snapshots) or held[:1] != [0]
        if others or len(held) < 2:
            return None

        def count_tail(latest: int, slots: int) -> int:
            if state is None or not latest < state < end:
                return _count(end - latest, slots)
            rest = Position(steps=end - latest, state=state - latest, snapshots=(Snapshot(0),))
            return Revolve(max(1, slots)).forward_steps_left(rest)

        place, without = _find_least(held, self.snapshots, count_tail)
        left = _count_intervals(held, self.snapshots) + count_tail(held[-1], self.snapshots - len(held) + 1)
        return held[place] if without < left else None

    def _count_left(self, held: Sequence[int], stop: int) -> int:
        """Forward steps to reverse all steps below `stop`."""
        tail = _count(stop - held[-1], self.snapshots - len(held) + 1)
        return _count_intervals(held, self.snapshots) + tail

    def _require_initial(self, position: Position) -> None:
        """Fail before any work is done if there is no way back to step 0: saved values are given up."""
        held = [kept.step for kept in position.snapshots if kept.kind == "restart"]
        if position.state != 0 and held[:1] != [0]:
            saved = "no values" if position.saved is None else f"the values of the steps {position.saved}"
            raise ScheduleError(
                f"Step 0 cannot be run again: the working state is that of step {position.state}, restart states are "
                f"held of the steps {held}, and {saved} are saved. Supply the initial state as the working state, or "
                "as the snapshot of step 0."
            )


def _keep_early(action: Forward, position: Position) -> Forward:
    """The same where the loop may end after it: an early step is saved, and what an earlier one saved is given up."""
    start, stop, drop = action.start, action.stop, position.saved is not None
    # With a snapshot of a later step the loop is known to be longer.
    early = start < _EARLY and not (position.snapshots and position.snapshots[-1].step > start)
    if not early and not drop:
        return action
    stop = start + 1 if early else stop
    return Forward(start=start, stop=stop, snapshot=action.snapshot, save=early or action.save, drop=drop)


def _count(length: int, slots: int) -> int:
    """Forward steps to reverse `length` steps from a snapshot before them, with `slots` states in all."""
    slots = max(1, slots)
    # Without and with one and two repetitions, where nearly all intervals are, by hand.
    if length <= 1:
        return length
    if length <= slots + 1:
        return 2 * length - 1
    if 2 * length <= (slots + 1) * (slots + 2):
        return 3 * length - slots - 2
    return count_forward(length, slots)


def _count_each(lengths: Sequence[int], slots: int) -> list[int]:
    """The same for intervals one after the other, each of which has one state less than the one before."""
    found = list[int]()
    for length in lengths:
        # As in `_count`, whose call takes longer than this.
        if 0 < length <= slots + 1:
            found.append(2 * length - 1)
        elif 2 * length <= (slots + 1) * (slots + 2):
            found.append(3 * length - slots - 2)
        else:
            found.append(_count(length, slots))
        slots = max(1, slots - 1)
    return found


def _count_intervals(held: Sequence[int], snapshots: int) -> int:
    """Forward steps to reverse all intervals between neighboring snapshots, from the last to the first."""
    return sum(_count_each([stop - start for start, stop in pairwise(held)], snapshots))


def _count_without(held: Sequence[int], snapshots: int) -> list[int]:
    """
    The same without one snapshot, for each but the first: two intervals join, later ones have one state more.

    The last number is that without the last snapshot, and the interval before it.
    """
    lengths = [stop - start for start, stop in pairwise(held)]
    one_more = _count_each(lengths, snapshots + 1)
    joined = _count_each([first + second for first, second in pairwise(lengths)], snapshots)
    before, after, found = 0, sum(one_more) - one_more[0], list[int]()
    for one, more, kept in zip(joined, one_more[1:], _count_each(lengths, snapshots), strict=False):
        after -= more
        found.append(before + one + after)
        before += kept
    return [*found, before]


@final
@dataclass(frozen=True, slots=True)
class _Full:
    """
    All slots are taken: what it takes to reverse the steps from the latest snapshot on with a slot of another one.

    Args:
        spare: The place of the snapshot, not the first and not the latest, that can best be done without; 0 if there is
            none.
        early: Forward steps for the intervals before the latest without that one.
        last: The same without the latest.
        kept: The same with all of them.
        gap: The length of the interval before the latest.
    """

    spare: int
    early: int
    last: int
    kept: int
    gap: int

    @staticmethod
    def of(held: Sequence[int]) -> _Full:
        """Return that of at least two snapshots."""
        *early, last = _count_without(held, len(held))
        gap, least = held[-1] - held[-2], min(early, default=0)
        # Of equal ones the first: early intervals have the most states, so that they bear it best to become longer.
        spare = early.index(least) + 1 if early else 0
        return _Full(spare, least, last, last + _count(gap, 2), gap)

    def pays(self, length: int) -> bool:
        """
        Return whether to store a snapshot so many steps after the latest.

        If the loop ended one step later: that step is all that follows the new snapshot, and the others follow the
        latest that is left, with two states.
        """
        return length > 0 and self.find_spare(length)[1] + 1 <= self.kept + _count(length + 1, 1)

    def find_place(self, most: int) -> int:
        """Return after how many steps it first pays, at most so many."""
        return _find_first(self.pays, most)

    def find_spare(self, length: int) -> tuple[int, int]:
        """Return the place of the snapshot to do without, -1 for the latest, and the forward steps then left."""
        without, early = self.last + _count(self.gap + length, 2), self.early + _count(length, 2)
        return (-1, without) if self.spare == 0 or without < early else (self.spare, early)


def _find_least(held: Sequence[int], snapshots: int, count_tail: Callable[[int, int], int]) -> tuple[int, int]:
    """The place, not the first, of the snapshot without which the fewest forward steps are left, and their number."""
    *early, last = _count_without(held, snapshots)
    slots = snapshots - len(held) + 2
    tail = count_tail(held[-1], slots)
    totals = [*(count + tail for count in early), last + count_tail(held[-2], slots)]
    least = min(totals)
    # Of equal ones the first: early intervals have the most states, so that they bear it best to become longer.
    return totals.index(least) + 1, least


def _find_first(holds: Callable[[int], bool], most: int) -> int:
    """The least number from 1 on for which a condition holds, once and for all from there; `most` if there is none."""
    low, high = 0, 1
    while high < most and not holds(high):
        low, high = high, 2 * high
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
