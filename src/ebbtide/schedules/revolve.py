"""Binomial checkpointing: the fewest forward steps for a given number of snapshots, by closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import comb
from typing import final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, Forward, copy, delete, move, run
from ebbtide.schedules.asked import check_position, steps_and_sizes, steps_of, steps_of_time
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.continuing import describe_loss, restart_action
from ebbtide.schedules.costs import Costs
from ebbtide.schedules.position import Position
from ebbtide.schedules.records import make_plain

# So many repetitions are tried one by one, which is all that loops within reason take.
_FEW = 8
# Of so many snapshots at most the best are kept, which takes time with the third power of their number: 50 take 5 ms.
_MOST_COMPARED = 50


def count_reach(snapshots: int, repetitions: int) -> int:
    """The most steps that can be reversed if no step runs more than `repetitions` times unsaved."""
    return comb(snapshots + repetitions, snapshots) if repetitions >= 0 else 0


def _find_reach(steps: int, snapshots: int) -> tuple[int, int]:
    """The least number of repetitions whose reach is at least `steps`, and that reach."""
    reach, few = 1, 0
    while reach < steps and few < _FEW:
        few += 1
        reach = reach * (snapshots + few) // few
    if reach >= steps:
        return few, reach
    # By doubling and bisection.
    high = 2 * _FEW
    while count_reach(snapshots, high) < steps:
        high *= 2
    low = high // 2
    # The reach of `low` is too short, that of `high` is not.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count_reach(snapshots, middle) < steps else (low, middle)
    return high, count_reach(snapshots, high)


def count_forward(steps: int, snapshots: int) -> int:
    """All runs of all of `steps` steps with `snapshots` states, the first one included; none of no steps."""
    if snapshots <= 1:
        return steps * (steps + 1) // 2
    if 0 < steps <= snapshots + 1:  # by hand, as most intervals of many are
        return 2 * steps - 1
    repetitions, reach = _find_reach(steps, snapshots)
    return steps + repetitions * steps - reach * repetitions // (snapshots + 1)


def split(steps: int, snapshots: int) -> int:
    """
    The best distance from the first to the second of `snapshots >= 2` states, for `steps >= 2` steps.

    The number of unsaved runs p(steps, snapshots) is convex in `steps`, and its slope is the number of
    repetitions. So m + p(m, s) + p(steps - m, s - 1) is least where the slopes of both parts differ by one,
    which is a range of m. The least m of the range is taken: it stores fewer snapshots than the largest (714
    for 715 at 1000 steps and 10 states, 846 for 902 at 20 states).
    """
    # With one and two repetitions, where most questions are, by hand.
    if steps <= snapshots + 1:
        return 1
    if 2 * steps <= (snapshots + 1) * (snapshots + 2):
        place = steps - snapshots * (snapshots + 1) // 2
        return place if place > 1 else 1
    repetitions, reach = _find_reach(steps, snapshots)
    # The reaches with two repetitions less, and with one state less.
    both = snapshots + repetitions
    short = reach * repetitions * (repetitions - 1) // (both * (both - 1))
    return max(1, short, steps - reach * snapshots // both)


def run_to_next(end: int, state: int, latest: int | None, free: int) -> Forward:
    """
    Run to the place of the next snapshot, and store one when there.

    Args:
        end: The step after the next one to reverse.
        state: The step of the working state, below `end` and not below `latest`.
        latest: The step of the last snapshot, None if there is none.
        free: The number of snapshots that may be stored beside those that are there.
    """
    if state == end - 1:
        return run(state, end, save=True)
    if latest is None:
        store = free > 0
    elif free < 1:
        store = False
    else:
        target = latest + split(end - latest, free + 1)
        if state < target:
            return run(state, target)
        # Past the target nothing is gained by waiting: the cost rises with the distance from it.
        store = True
    if store and free > 1:
        return run(state, state + split(end - state, free), snapshot=True)
    return run(state, end - 1, snapshot=store)


def find_least(held: list[int], end: int, snapshots: int, state: int | None = None) -> tuple[int, int]:
    """The place, not the first, of the snapshot without which the fewest forward steps are left, and their number."""
    lengths = [stop - start for start, stop in pairwise([*held, end])]
    # Without one snapshot two intervals join, and all later ones have one state more.
    before = sum([count_forward(length, snapshots - index) for index, length in enumerate(lengths[:-2])])
    after, least, best = 0, len(held) - 1, -1
    for place in range(len(held) - 1, 0, -1):
        slots = max(1, snapshots - place + 1)
        if place == len(held) - 1:
            joined, kept = (count_tail(end, state, start, slots) for start in (held[-2], held[-1]))
        else:
            joined = count_forward(lengths[place - 1] + lengths[place], slots)
            kept = count_forward(lengths[place], slots)
        total = before + joined + after
        if best < 0 or total < best:
            least, best = place, total
        after += kept
        if place > 1:
            before -= count_forward(lengths[place - 2], snapshots - place + 2)
    return least, best


def count_tail(end: int, state: int | None, latest: int, slots: int) -> int:
    """Forward steps from the last snapshot to the end, with `slots` states, that snapshot included."""
    if state is None or not latest < state < end:
        return count_forward(end - latest, slots)
    if slots == 1:
        return end - state + count_forward(end - 1 - latest, 1)
    target = max(state, latest + split(end - latest, slots))
    tail = count_forward(end - target, slots - 1)
    return target - state + tail + count_forward(target - latest, slots)


def keep_best(held: list[int], end: int, state: int | None, snapshots: int) -> list[int]:
    """
    The places of those snapshots, the first among them, with which the fewest forward steps are left.

    They may be fewer than are allowed: then the slots are worth more for steps that are still to be run.
    """
    # The cheapest way to keep so many of them up to each place; in the beginning one, at the first place.
    ways = {0: (0, [0])}
    best: tuple[int, list[int]] | None = None
    for slots in range(snapshots, 0, -1):
        for place, (cost, kept) in ways.items():
            left = cost + count_tail(end, state, held[place], slots)
            if best is None or left <= best[0]:
                best = left, kept
        after: dict[int, tuple[int, list[int]]] = {}
        # Of gaps, for one number of slots at a time: of all of them 60 snapshots took 470 KB, while room was made.
        costs: dict[int, int] = {}
        for place in range(1, len(held)):
            sums = list[tuple[int, int]]()
            for last in [last for last in ways if last < place]:
                gap = held[place] - held[last]
                costs[gap] = costs[gap] if gap in costs else count_forward(gap, slots)
                sums.append((ways[last][0] + costs[gap], last))
            if sums:
                least, last = min(sums)
                after[place] = least, [*ways[last][1], place]
        ways = after
    assert best is not None
    return best[1]


@final
@dataclass(frozen=True, slots=True)
class Revolve(Schedule):
    """
    The binomial schedule: with `snapshots` stored states no schedule runs fewer forward steps.

    It goes on from any position that can be completed: with snapshots lost, with a working state between two
    snapshots, or with another number of snapshots than the sweep began with.

    Args:
        snapshots: The largest number of snapshots at the same time; the initial state counts as one.

    Raises:
        ScheduleError: `snapshots` is less than 1.

    Memory:
        Who follows it holds at most `snapshots` restart states, the working state, and the saved values of
        one step.

    Source:
        Griewank and Walther, Algorithm 799: revolve, ACM TOMS 26 (2000), doi 10.1145/347837.347846:
        F = n + r n - C(s + r, s + 1), r the least integer with C(s + r, s) >= n.

    Example:
        >>> Revolve(10).forward_steps(1000)
        4636
        >>> Revolve(2).next_action(Position(steps=10))
        Forward(start=0, stop=6, snapshot=True, save=False, kind='restart', tier='memory', drop=False)
    """

    snapshots: int

    def __post_init__(self) -> None:
        make_plain(self, "snapshots")
        if self.snapshots < 1:
            raise ScheduleError(
                f"Revolve needs at least 1 snapshot, that of the initial state, not {self.snapshots}. "
                "Use StoreAll to go without snapshots."
            )

    def next_action(self, position: Position) -> Action | None:
        """See `Schedule.next_action`; its cost grows with the logarithm of the number of steps."""
        return restart_action(position, self)

    def choose(self, position: Position) -> Action:
        """See `RestartSchedule.choose`."""
        snapshots, end, state = position.snapshots, position.end, position.state
        if not snapshots or snapshots[0].step > 0:
            if state != 0:
                raise describe_loss(position)
            if snapshots and end > 1 and len(snapshots) >= self.snapshots:
                return delete(snapshots[-1].step)  # in hand is not enough: it has to be kept
        free = self.snapshots - len(snapshots)
        if (free < 0 or not position.forward_ended) and self._is_short(position):
            surplus = next(self._give_up(position), None)
            if surplus is not None:
                return delete(surplus)
        if not snapshots:
            return run_to_next(end, 0, None, free)
        if state == 0 and end > 1 and snapshots[0].step > 0:
            # Only in hand, and a later snapshot is the better start: store the initial state before it is lost.
            return run(0, 1, snapshot=True)
        latest = snapshots[-1].step
        if state is None or not latest <= state < end:
            # The working state is of no use. If only the step of the snapshot itself is left, this is its last use.
            return move(latest) if latest == end - 1 else copy(latest)
        return run_to_next(end, state, latest, free)

    def find_room(self, position: Position) -> str | None:
        """See `Roomy.find_room`."""
        return "memory" if len(position.snapshots) - position.on_disk < self.snapshots else None

    def beside(self, memory: int, disk: int) -> Revolve:
        """See `RestartSchedule.beside`."""
        return Revolve(max(1, self.snapshots - memory)) if memory else self

    def forward_steps(self, steps: int) -> int:
        """
        Return F = n + r n - C(s + r, s + 1), the number of forward steps of a whole gradient.

        Args:
            steps: The number n of steps of the loop.

        Returns:
            All runs of all steps, those whose values are saved included; see the source of the class.

        Example:
            >>> Revolve(5).forward_steps(1000)
            7284
        """
        return count_forward(steps_of(steps), self.snapshots)

    def peak_snapshots(self, steps: int) -> int:
        """
        Return the largest number of snapshots at the same time: the last step of a loop never needs one.

        Args:
            steps: The number of steps of the loop.

        Example:
            >>> Revolve(10).peak_snapshots(1000), Revolve(10).peak_snapshots(4)
            (10, 3)
        """
        return max(0, min(self.snapshots, steps_of(steps) - 1))

    def peak(self, steps: int, tier: str = "memory", *, restart: int = 1, saved: int = 1) -> int:
        """
        Return the largest size of what a loop holds at the same time; see `Schedule.peak`.

        Example:
            >>> Revolve(10).peak(1000, restart=80, saved=240)
            1040
        """
        steps, restart, saved = steps_and_sizes(steps, tier, restart, saved)
        return self.peak_snapshots(steps) * restart + min(1, steps) * saved if tier == "memory" else 0

    def predicted_time(self, steps: int, costs: Costs) -> float:
        """Return the time of a whole gradient, without any transfer; see `Schedule.predicted_time`."""
        steps = steps_of_time(steps, costs)
        return costs.time(forward=self.forward_steps(steps), reverse=steps)

    def forward_steps_left(self, position: Position) -> int:
        """
        Return the number of forward steps from a position to the end.

        It is followed until a closed form holds: until what other schedules saved is used up, a lost working state is
        loaded, and snapshots are given up that are too many, or whose slots the rest of the forward sweep needs.

        Args:
            position: A position from which `next_action` leads on.

        Returns:
            All runs of all steps from here on.

        Raises:
            ScheduleError: The position cannot be completed.

        Example:
            >>> Revolve(5).forward_steps_left(Position(steps=1000))
            7284
        """
        check_position(position)
        followed = 0
        while position.end > 0 and not self._keeps_to_plan(position):
            action = self.next_action(position)
            assert action is not None
            if isinstance(action, Forward):
                followed += action.stop - action.start
            position = position.after(action)
        held, end = [snapshot.step for snapshot in position.snapshots], position.end
        if not held or end == 0:
            return followed + count_forward(end, self.snapshots)
        return followed + self._count_held(held, end, position.state)

    def _count_held(self, held: list[int], end: int, state: int | None) -> int:
        """Return the forward steps that are left with snapshots, no more than there are slots."""
        slots, lengths = self.snapshots, [stop - start for start, stop in pairwise(held)]
        whole = sum([count_forward(length, slots - place) for place, length in enumerate(lengths)])
        return whole + count_tail(end, state, held[-1], slots - len(held) + 1)

    def _keeps_to_plan(self, position: Position) -> bool:
        """Whether all that is held is used from here on as if this schedule had stored it: a closed form holds."""
        snapshots, end, state = position.snapshots, position.end, position.state
        if position.saved is not None or position.saved_snapshots or not snapshots:
            return position.saved is None and not snapshots and state == 0
        first, last = snapshots[0].step, snapshots[-1].step
        # Before the forward sweep has ended a state is loaded first: then some snapshot may have to go.
        ready = position.forward_ended or (state is not None and last <= state)
        return first == 0 and last < end and ready and not self._is_short(position)

    def find_surplus(self, position: Position) -> tuple[int, ...]:
        """
        Return the snapshots to give up when the number of snapshots was lowered.

        They may be more than there are too many, if their slots are worth more for the steps ahead. `next_action` gives
        them up, too, as long as there are too many, or too few slots for the rest of the forward sweep; who must
        free their bytes at once deletes them from the storage and from the position. Those that are left are the best;
        of more than 50 they are given up one by one, each that without which the fewest forward steps are left.

        Args:
            position: Where the loop stands.

        Returns:
            Steps of snapshots: first all that no step needs any more.

        Example:
            >>> from ebbtide.schedules import Snapshot
            >>> held = (Snapshot(0), Snapshot(5), Snapshot(6))
            >>> Revolve(2).find_surplus(Position(steps=10, state=None, snapshots=held))
            (5,)
        """
        check_position(position)
        return (*self._give_up(position),)

    def _give_up(self, position: Position) -> Iterator[int]:
        """Yield the snapshots to give up, one after the other."""
        end, state, held = position.end, position.state, list[int]()
        for snapshot in position.snapshots:
            if snapshot.step < end and snapshot.kind == "restart":
                held.append(snapshot.step)
            else:
                yield snapshot.step
        while len(held) > _MOST_COMPARED:
            # Of far too many, one by one: no interval is as long as with all of the others gone.
            place, least = find_least(held, end, max(self.snapshots, len(held) - 1), state)
            if len(held) <= self.snapshots and least >= self._count_held(held, end, state):
                return
            yield held.pop(place)
        if held:
            kept = keep_best(held, end, state, self.snapshots)
            yield from [step for place, step in enumerate(held) if place not in kept]

    def _is_short(self, position: Position) -> bool:
        """Whether there are too many snapshots, or fewer free slots for the rest than this schedule would have left."""
        count = len(position.snapshots)
        if count > self.snapshots or position.forward_ended:
            return count > self.snapshots
        end, state = position.end, position.state
        if count == 0 or state is None or not position.snapshots[-1].step <= state < end - 1:
            return False
        slots = self.snapshots - count
        # The state in hand takes the first of the free slots; without one the rest is run from the last snapshot.
        rest, slots = (end - state, slots) if slots > 0 else (end - position.snapshots[-1].step, 1)
        return _find_reach(rest, slots)[0] > _find_reach(end, min(self.snapshots, end))[0]
