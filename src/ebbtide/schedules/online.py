"""Checkpointing for a loop of unknown length: bounded storage, and near the binomial optimum wherever it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, EndForward, Forward, copy, delete, run
from ebbtide.schedules.asked import check_position, steps_of
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.continuing import describe_loss, restart_action
from ebbtide.schedules.position import Position
from ebbtide.schedules.records import make_plain
from ebbtide.schedules.revolve import Revolve, count_tail
from ebbtide.schedules.snapshots import Snapshots, remove
from ebbtide.schedules.thinning import Thinned, count

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
    nothing had happened. Where snapshots were lost, the slots are filled again from the next step on. First steps of
    which another schedule holds what they saved, and no state, are left as they are, and those behind them are a loop.

    Args:
        snapshots: The largest number of snapshots at the same time; the initial state counts as one.

    Raises:
        ScheduleError: `snapshots` is less than 1.

    Memory:
        Who follows it holds at most `snapshots` restart states, the working state, and the saved values of one
        step. The schedule itself holds a few numbers for each snapshot of the last question, from which the next answer
        takes a fraction of the time; they are no part of ==, repr and pickle.

    Source:
        The rule is our own; the problem and the bound (s + 1)(s + 2)/2, up to which an online schedule can be
        within a constant of the offline optimum, are those of Stumm and Walther, SIAM J. Sci. Comput. 32 (2010),
        doi 10.1137/080742439.

    Example:
        >>> Online(10).forward_steps_open(1000), Revolve(10).forward_steps(1000)
        (4732, 4636)
    """

    snapshots: int
    _offline: Revolve = field(init=False, repr=False, compare=False)
    # At most one, of the last question: its snapshots, what was found for them (and the state to be stored next, if a
    # slot was free), and the place that was given up. Whoever takes it out has it alone: threads may ask the same one.
    _last: list[tuple[Snapshots, Thinned, int]] = field(
        default_factory=list[tuple[Snapshots, Thinned, int]], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        make_plain(self, "snapshots")
        if self.snapshots < 1:
            raise ScheduleError(
                f"Online needs at least 1 snapshot, that of the initial state, not {self.snapshots}. "
                "Use NoReverse for a loop that is never reversed."
            )
        object.__setattr__(self, "_offline", Revolve(self.snapshots))

    def __reduce__(self) -> tuple[type[Online], tuple[int]]:
        return Online, (self.snapshots,)

    def next_action(self, position: Position) -> Action | None:
        """
        See `Schedule.next_action`; at most O(s) closed forms and O(log n) more to find the next place to store.

        Where the position follows the last one that it was asked for, only those of the snapshots that changed.
        """
        check_position(position)
        is_open = position.open and not position.finished
        if is_open and not _has_initial(position):
            return self._go_on_above(position)
        if is_open:
            action = self._next_open(position)
            if isinstance(action, Forward) and (action.start < _EARLY or position.saved is not None):
                return _keep_early(action, position)
            return action
        # From the first load on, `Revolve` keeps to the plan.
        if position.reversed == 0 and position.saved is None and not position.finished:
            spare = self._find_hindrance(position)
            if spare is not None:
                return delete(spare)
        return self._offline.next_action(position)

    def choose(self, position: Position) -> Action:
        """See `RestartSchedule.choose`; of a loop that may end after any step, above first steps that are saved."""
        if not _has_initial(position):
            raise describe_loss(position)
        return self._next_open(position)

    def find_room(self, position: Position) -> str | None:
        """See `Roomy.find_room`."""
        return self._offline.find_room(position)

    def beside(self, memory: int, disk: int) -> Online:
        """See `RestartSchedule.beside`."""
        return Online(max(1, self.snapshots - memory)) if memory else self

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
        return self._offline.forward_steps(steps)

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
        steps = steps_of(steps)
        if steps <= _EARLY:
            return self.forward_steps(steps)
        # Without a free slot, the first `snapshots` steps are stored, and one of them is given up for each later one.
        if self.snapshots == 1:
            return steps + count(steps, 1)
        thinned = Thinned(list(range(min(self.snapshots, steps))), self.snapshots)
        while self.snapshots < steps and (place := _find_next(thinned, steps)) < steps:
            thinned.replace(thinned.find_spare(place - thinned.steps[-1]), place)

        def tail(latest: int, slots: int) -> int:
            return count(steps - latest, slots)

        while True:
            spare, without, left = thinned.find_least(tail)
            if without >= left:
                return steps + left
            if len(thinned.steps) == 2:
                return steps + without
            thinned.give_up(spare)

    def peak_snapshots(self, steps: int) -> int:
        """
        Return the largest number of snapshots at the same time: a last step that is known needs none.

        Args:
            steps: The number of steps of the loop, or its upper bound.

        Example:
            >>> Online(10).peak_snapshots(1000), Online(10).peak_snapshots(4)
            (10, 3)
        """
        return max(0, min(self.snapshots, steps_of(steps) - 1))

    def _next_open(self, position: Position) -> Action:
        """The forward sweep of a loop that may end after any step."""
        snapshots, state, steps = position.snapshots, position.state, position.steps
        if state == steps:
            return EndForward()
        thinned = None if state is None else self._recall(snapshots, state, position.before)
        if state is not None and state == steps - 1:
            # If the loop does not end before its upper bound, this is the last step: it is reversed next.
            return run(state, steps, save=True)
        if thinned is None:
            action = self._make_room(position)
            if action is not None:
                return action
        latest = snapshots[-1].step
        if state is None or state < latest:
            return copy(latest)
        if len(snapshots) == self.snapshots:
            return self._go_on(snapshots, state, steps, thinned)
        if state == latest or len(snapshots) + 1 < self.snapshots:
            return run(state, min(state + 1, steps - 1), snapshot=state > latest)
        if thinned is None:
            thinned = Thinned([*(kept.step for kept in snapshots), state], self.snapshots)
        after = _find_next(thinned, steps)
        self._last[:] = [(snapshots, thinned, 0)]
        return run(state, min(after, steps - 1), snapshot=True)

    def _make_room(self, position: Position) -> Action | None:
        """Delete what is of no use or too many, and store the initial state if it is only in hand."""
        snapshots, state, held = position.snapshots, position.state, len(position.snapshots)
        if position.saved_snapshots:
            return delete(next(kept.step for kept in snapshots if kept.kind == "saved"))
        if held > self.snapshots:
            thinned = Thinned([kept.step for kept in snapshots], self.snapshots)
            stop = max(thinned.steps[-1], state or 0)
            return delete(thinned.steps[thinned.find_least(lambda latest, slots: count(stop - latest, slots))[0]])
        if held and snapshots[0].step == 0:
            return None
        if held == self.snapshots:
            # The initial state is only in hand, and needs a slot.
            return delete(snapshots[0].step)
        return run(0, 1, snapshot=True) if state == 0 else None

    def _go_on(self, snapshots: Snapshots, state: int, steps: int, thinned: Thinned | None) -> Action:
        """All slots are taken: give one up for the working state, or run on to the step where that pays."""
        if self.snapshots == 1:
            return run(state, steps - 1)
        if thinned is None:
            thinned = Thinned([kept.step for kept in snapshots], self.snapshots)
        length = state - thinned.steps[-1]
        spare = thinned.find_spare(length) if thinned.pays(length) else 0
        self._last[:] = [(snapshots, thinned, spare)]
        if spare > 0:
            return delete(thinned.steps[spare])
        after = _find_next(thinned, steps)
        return run(state, min(after, steps - 1))

    def _recall(self, snapshots: Snapshots, state: int, before: Snapshots | None) -> Thinned | None:
        """
        Return what was found in the forward sweep for these snapshots, or for those before the last change.

        It has that change made. None where nothing is known of them, and all has to be found again.
        """
        missing = self.snapshots - len(snapshots)
        if self.snapshots == 1 or not 0 <= missing <= 1:
            return None
        try:
            known, thinned, spare = self._last.pop()
        except IndexError:
            return None
        last = thinned.steps[-1]
        if missing == 0 and len(known) < len(snapshots):
            latest = snapshots[-1]
            follows = latest.step == last and latest.kind == "restart" and (before is known or snapshots[:-1] == known)
        elif missing == 0 or len(known) == len(snapshots):
            follows = (snapshots is known or snapshots == known) and (missing == 0 or state == last)
        else:
            follows = spare > 0 and state > last and _is_without(snapshots, known, spare, before)
            if follows:
                thinned.replace(spare, state)
        return thinned if follows else None

    def _find_hindrance(self, position: Position) -> int | None:
        """The length is known: a snapshot without which fewer forward steps are left, if there is one."""
        snapshots, state, end = position.snapshots, position.state, position.end
        # At the end of the forward sweep `EndForward` comes first.
        if state != end if position.forward_ended and state is not None else state == end:
            return None
        if len(snapshots) < 2 or position.saved_snapshots or snapshots[0].step > 0:
            return None
        thinned = self._recall_known(snapshots, position.before)
        place, without, left = thinned.find_least(lambda latest, slots: count_tail(end, state, latest, max(1, slots)))
        self._last[:] = [(snapshots, thinned, place)]
        return thinned.steps[place] if without < left else None

    def _recall_known(self, snapshots: Snapshots, before: Snapshots | None) -> Thinned:
        """Return the same where the length is known and snapshots are only given up or stored; made anew if need be."""
        try:
            known, thinned, spare = self._last.pop()
        except IndexError:
            return Thinned([kept.step for kept in snapshots], self.snapshots)
        same = len(known) == len(thinned.steps)
        if same and known is snapshots:
            return thinned
        more, latest = len(snapshots) - len(known), snapshots[-1].step
        if same and known is before and more == 1 and latest > thinned.steps[-1]:
            thinned.store(latest)
            return thinned
        if same and known is before and more == -1 and _is_without(snapshots, known, spare, before):
            thinned.give_up(spare)
            return thinned
        return Thinned([kept.step for kept in snapshots], self.snapshots)

    def _go_on_above(self, position: Position) -> Action | None:
        """Where step 0 cannot be run again, keep what the first steps saved; fail before any work if that is lost."""
        try:
            return restart_action(position, self)
        except ScheduleError:
            held = [kept.step for kept in position.snapshots if kept.kind == "restart"]
            saved = "no values" if position.saved is None else f"the values of the steps {position.saved}"
            raise ScheduleError(
                f"Step 0 cannot be run again: the working state is that of step {position.state}, restart states are "
                f"held of the steps {held}, and {saved} are saved. Supply the initial state as the working state, or "
                "as the snapshot of step 0."
            ) from None


def _has_initial(position: Position) -> bool:
    """Return whether the initial state is in hand or stored."""
    snapshots = position.snapshots
    return position.state == 0 or (bool(snapshots) and snapshots[0].step == 0 and snapshots[0].kind == "restart")


def _is_without(snapshots: Snapshots, known: Snapshots, place: int, before: Snapshots | None) -> bool:
    """Return whether snapshots are those known without the one at a place, not the first."""
    if before is not known:
        return snapshots == remove(known, place)
    # One is gone, and it is none of the earlier ones and none of the later ones.
    follows = place == len(snapshots) or snapshots[place] is known[place + 1]
    return follows and snapshots[place - 1] is known[place - 1]


def _find_next(thinned: Thinned, steps: int) -> int:
    """The first step after the latest snapshot whose state is to be stored; `steps` if there is none."""
    latest = thinned.steps[-1]
    return latest + thinned.find_place(steps - latest)


def _keep_early(action: Forward, position: Position) -> Forward:
    """The same where the loop may end after it: an early step is saved, and what an earlier one saved is given up."""
    start, stop, drop = action.start, action.stop, position.saved is not None
    # With a snapshot of a later step the loop is known to be longer.
    early = start < _EARLY and not (position.snapshots and position.snapshots[-1].step > start)
    stop = start + 1 if early else stop
    return run(start, stop, snapshot=action.snapshot, save=early or action.save, drop=drop)
