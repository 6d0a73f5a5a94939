"""The moments of a loop at which most is held, found by following its schedule: for the predicted peak of a call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, final

from ebbtide.arrays.primitive import Signature
from ebbtide.loop.holding import ahead
from ebbtide.loop.holding.spare import is_in_the_way
from ebbtide.loop.measuring.taken import Taken
from ebbtide.loop.planning.plan import Plan
from ebbtide.loop.planning.predict import is_taped, spare_beside_taped, spare_tier
from ebbtide.loop.planning.sizes import Sizes
from ebbtide.loop.stepping.steps import TapedStep
from ebbtide.loop.stepping.swap import nodes_of
from ebbtide.loop.values.state import bytes_of as bytes_of_leaves
from ebbtide.schedules import (
    Delete,
    EndForward,
    Forward,
    Hierarchical,
    Mixed,
    Move,
    Online,
    Periodic,
    Position,
    Reverse,
    Revolve,
    Snapshot,
    StoreAll,
)
from ebbtide.tape.blocks import BLOCK
from ebbtide.tape.forms import form_here
from ebbtide.tape.holders import held_by
from ebbtide.tape.saved import SavedValue, key_of, value_of
from ebbtide.tape.saved import bytes_of as bytes_saved

# Longer loops are not followed. Measured: 60 ms for so many.
MOST_STEPS = 2000


@final
@dataclass(slots=True)
class Course:
    """
    How far a loop has been followed.

    Args:
        position: Where it stands.
        spare: Whether its initial state is there beside its snapshots.
        stays: Whether that is planned, or goes on as long as there is room, as a step has saved more than planned.
        stored: Bytes of the snapshots.
        theirs: Those of them that a storage of the user has, if it has all of them in memory.
        most: The most bytes that were held at a time.
        inside: Of steps whose saved values are held, what loops in them hold.
        known: Of steps that have been run on a tape, the bytes that they saved, with what all save in one of them.
        swept: Of steps at hand, the bytes that their sweeps take at most, where that is known.
        each: Bytes that others are expected to save at most; None for as many as planned.
        buffer: Bytes of the buffers for disk.
        before: What the steps before each one saved together, if they are not all as planned.
        taken: What steps took that have run.
        widest: The step that saved most, if it is known.
    """

    position: Position
    spare: bool = False
    stays: bool = False
    stored: int = 0
    theirs: int = 0
    most: int = 0
    inside: dict[int, Any] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)
    swept: dict[int, int] = field(default_factory=dict)
    each: int | None = None
    buffer: int = 0
    before: list[int] = field(default_factory=list)
    taken: Taken = field(default_factory=Taken)
    widest: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Moments:
    """
    What is held beside snapshots, in bytes, and what that makes together with them.

    Args:
        plan: The plan of the loop.
        traced: The most bytes that were allocated for the taped first step at a time.
        plain: The same for a plain step, without what loops in it keep.
        moved: Bytes of the leaves of a state that a step changes.
        passed: Bytes of those that a step saves as they are after it, and not as they are before it, too.
        gone: Bytes of the initial state as it was given, that the function holds as long as it runs.
        beside: What loops in a step hold beside what that saved.
        sweep: The same for a sweep.
        sums: Those of it for the sums so far for static values, which are not there in the first sweep.
        between: What is there between the sweeps of the loop, with the final state.
        leaf: Bytes of the largest leaf of a state, of which code after the loop makes another array.
        asked: What there has to be room for before each operation of a step, and what was made before it.
        limit: Bytes in the ledger that the loop may have; None for no bound.
        inside: The loops in its steps, `LoopsInside`; None where there are none, or what they do is not followed.
    """

    plan: Plan
    traced: int
    plain: int
    moved: int
    passed: int
    gone: int
    beside: int
    sweep: int
    sums: int
    between: int
    leaf: int
    asked: list[tuple[int, int]]
    limit: int | None
    inside: Any = None

    def most(self, course: Course) -> int:
        """
        Return the most bytes that are held at a time from where a loop stands.

        Raises:
            ScheduleError: There is no way on from there.
        """
        course = self.begin(course)
        while (action := self.next_action(course)) is not None:
            self.follow(course, action)
        return course.most

    def begin(self, course: Course) -> Course:
        """Return the course of a loop from where it stands; see `most`."""
        planned = self.limit is not None and spare_tier(self.plan.schedule, self.plan.steps) == "memory"
        return self.again(replace(course, spare=course.spare or planned, stays=course.stays or planned))

    def again(self, course: Course) -> Course:
        """Return the course of a loop that goes on by this plan from where another one has led."""
        stays = course.stays or not isinstance(self.plan.schedule, Mixed)
        course = replace(course, stays=stays, most=0, inside=dict(course.inside), before=[])
        course.stored = sum([self._size_of(kept, course) for kept in course.position.snapshots])
        course.theirs = sum(map(self._theirs_of, course.position.snapshots))
        if self.inside is None and (course.known or course.each is not None):
            # Each action asks for such a sum: 2000 steps at hand, added up one by one, took 14 s.
            each = [self._taped_beside(step, course) for step in range(self.plan.steps)]
            course.before = [0, *accumulate(each)]
        return course

    def next_action(self, course: Course) -> Any:
        """Return the next action of a loop, one step of it where it is on saved values; None at its end."""
        return ahead.narrowed(self.plan.schedule.next_action(course.position))

    def follow(self, course: Course, action: Any) -> None:
        """Follow an action, with the most bytes that are held then."""
        schedule: Any = self.plan.schedule  # of those with a state beside their snapshots, `Mixed` knows what is free
        sizes, position = self.plan.sizes, course.position
        counted = self.held(course)
        held = counted - position.forward_ended * self.gone  # which is in no ledger
        waiting = sizes.state + sizes.gradients if position.forward_ended else 0
        if is_taped(action):
            course.spare = course.spare and (course.stays or not is_in_the_way(schedule, sizes, position, action))
            course.spare = course.spare and not self._is_given_up(position, counted + waiting)
            taped = course.taken.on_tape(action.start, self.traced - self._less(action.start, course))
            taped = taped if self.inside is None else self.inside.tape(self, course, action, counted + waiting)
            now = held + waiting + sizes.state - self._is_saved(position) * self.passed + taped
        elif isinstance(action, Forward):
            kept = self._added(Snapshot(action.start, "restart", action.tier), course) if action.snapshot else 0
            plain = self.plain - self._less(0 if action.start == 0 else -1, course)
            plain = max(plain, 2 * self.moved, course.taken.off_tape(action))  # and the loop's copy
            now = held + waiting + kept + sizes.state + plain
        elif isinstance(action, Reverse):
            course.spare = course.spare and (course.stays or not is_in_the_way(schedule, sizes, position, action))
            between = self.between
            if position.saved is not None:  # its own is in the sweep
                own = self._taped_beside(position.end - 1, course)
                counted, held, between = counted - own, held - own, between + own - sizes.taped_beside - self.beside
            known = course.swept.get(position.end - 1, 0) - sizes.sweep  # which may be more than what it saved more
            sweep = self.sweep + max(known, -self._less(position.end - 1, course))
            sweep = sweep if self.inside is None else self.inside.sweep(self, course, counted)
            now = held + (sweep if position.reversed else max(sweep - self.sums, between))
        elif isinstance(action, EndForward):
            held = counted if self.inside is None else self.inside.settle(self, course)
            # As long as the function runs on there is also the initial state as it was given.
            now = held + sizes.state - self._is_saved(position) * self.passed + self.leaf
        else:
            now = held + waiting
            last = isinstance(action, Move) and position.snapshots == (Snapshot(0),) and position.end > 1
            course.spare = course.spare or (last and self.limit is not None and isinstance(schedule, Mixed))
        spare = self._added(Snapshot(0), course) if course.spare else 0
        course.most = max(course.most, now + spare + self._buffered(course))
        self._store(course, action)
        course.position = position.after(action)

    def _buffered(self, course: Course) -> int:
        """Return the bytes in buffers: on the way back no more than is left on disk, and what was read last."""
        position, sizes = course.position, self.plan.sizes
        if not position.forward_ended and sizes.theirs is None:  # of two entries
            return course.buffer
        on_disk, largest = position.on_disk, max(sizes.stored, sizes.stored_saved)
        if sizes.theirs is not None and not isinstance(self.plan.schedule, StoreAll):  # states alone, of any tier
            on_disk, largest = len(position.snapshots) - position.saved_snapshots, sizes.stored
        return min(course.buffer, (on_disk + 1) * largest)

    def _size_of(self, kept: Snapshot, course: Course) -> int:
        is_taped = (kept.kind, kept.tier) == ("saved", "memory")
        return self._taped_beside(kept.step, course) if is_taped else self.plan.sizes.of(kept)

    def _taped_beside(self, step: int, course: Course) -> int:
        """Return the bytes of what a step saved, with what loops in it hold."""
        sizes = self.plan.sizes
        if self.inside is not None and step in course.inside:
            return self.inside.taped_beside(sizes, course.inside[step])
        return sizes.taped_beside + self.beside - self._less(step, course)

    def _less(self, step: int, course: Course) -> int:
        """Return the bytes that a step saves less than planned; less than none where it saves more."""
        known = course.known.get(step, course.each) if self.inside is None else None
        if step not in course.known and course.widest is not None and course.taken.is_narrow(step):
            known = course.known.get(0) if course.taken.is_wide(course.widest) else known
        return 0 if known is None else self.plan.sizes.saved - known

    def held(self, course: Course) -> int:
        """Return the bytes of snapshots, and of what is at hand that steps saved."""
        first, last = course.position.saved or (0, 0)
        stored = course.stored - self._on_disk(course.theirs)
        if course.before:
            return stored + course.before[last] - course.before[first]
        if self.inside is None:
            return stored + (last - first) * (self.plan.sizes.taped_beside + self.beside)
        return stored + sum([self._taped_beside(step, course) for step in range(first, last)])

    def _theirs_of(self, kept: Snapshot) -> int:
        """Return the bytes of a snapshot that are in memory if a storage of the user has it there."""
        sizes = self.plan.sizes
        return sizes.of(kept) - replace(sizes, theirs=0).of(kept) if sizes.theirs else 0

    def _on_disk(self, theirs: int) -> int:
        """Return the bytes, of so many that a storage of the user has, for which it has no room in memory."""
        return max(0, theirs - (self.plan.sizes.theirs or 0))

    def _added(self, kept: Snapshot, course: Course) -> int:
        """Return by how many bytes of memory the snapshots become more with another one."""
        beyond = self._on_disk(course.theirs + self._theirs_of(kept)) - self._on_disk(course.theirs)
        return self._size_of(kept, course) - beyond

    def _is_saved(self, position: Position) -> bool:
        """Return whether what the step before the working state saved is in memory."""
        if position.saved is not None and position.saved[1] == position.state:
            return True
        last = position.snapshots[-1:]
        return last == (Snapshot((position.state or 0) - 1, "saved", "memory"),)

    def _store(self, course: Course, action: Any) -> None:
        """Take note of a snapshot that an action stores, or gives up."""
        if isinstance(action, Forward) and action.snapshot:
            sign, kept = 1, Snapshot(action.start, action.kind, action.tier)
        elif isinstance(action, (Move, Delete)):
            sign, kept = -1, ahead.stored(course.position, action.step)
        else:
            return
        course.stored += sign * self._size_of(kept, course)
        course.theirs += sign * self._theirs_of(kept)

    def _is_given_up(self, position: Position, held: int) -> bool:
        """Return whether an operation of a taped step has the initial state given up that stays beside snapshots."""
        sizes = self.plan.sizes
        if self.limit is None or not position.forward_ended:
            return False
        room = self.limit + sizes.excused - held - sizes.data
        # By then what was made beside it has to be less than the most.
        return any(asked > room and made + sizes.restart <= self.traced for asked, made in self.asked)


def bytes_asked(record: TapedStep) -> list[tuple[int, int]]:
    """
    Return what there has to be room for before each operation of a step, and what was made before it, in bytes.

    The first is what the step saves up to there, with operands that are new and one result, as `Pager.expect` asks.
    """
    found, known, made = list[tuple[int, int]](), dict[int, int](), 0
    pager = record.tape.pager

    def is_new(cell: Any) -> bool:
        return pager is None or pager.find(value_of(cell), own=False) is None

    def bytes_of(cells: Iterable[Any]) -> dict[int, int]:
        """Return the bytes of those that no code before has saved."""
        return {key_of(cell): bytes_saved(cell) for cell in cells if is_new(cell)}

    for node in sorted(nodes_of(record), key=lambda node: node.number):
        signature: Any = node.signature
        if type(signature) is not Signature:
            known |= bytes_of(held_by(node))
            continue
        saves = zip(node.saved or (), signature.saves, strict=False)  # masks, which come after them, are made of these
        new = known | bytes_of(cell for cell, k in saves if k >= 0 and type(cell) is SavedValue)
        result = form_here(node.type).nbytes
        found.append((sum(new.values()) + result, made))
        known = new | bytes_of(held_by(node))
        made += result
    return found


def bytes_moved(nodes: list[Any], before: list[Any], after: list[Any]) -> int:
    """Return the bytes of the leaves that a plain step makes, and the loop copies: all but those of the old state."""
    left, made = {id(node) for node in before if node is not None}, []
    for node, leaf in zip(nodes, after, strict=True):
        made += [] if id(node) in left else [leaf]
        left.discard(id(node))  # the second time it is copied, too
    return bytes_of_leaves(made)


def is_followed(plan: Plan) -> bool:
    """Return whether the schedule of a plan is followed, action by action."""
    known = isinstance(plan.schedule, (Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll))
    return known and plan.steps <= MOST_STEPS


def bytes_beyond(plan: Plan, traced: int, within: int, *, bounded: bool) -> int:
    """
    Return the bytes that a call takes beyond the predicted peak.

    A step that is run again on a tape has its own temporaries beside what it saves, and beside it there are the state
    that it starts from and a cotangent. That may be more than its sweep takes: of a Runge-Kutta step 17 states, and 15
    in the sweep. Between the sweeps, code after the loop makes a cotangent of the final state, block by block; what
    else it takes is not known.

    Args:
        plan: The plan.
        traced: The most bytes that were allocated for the taped first step at a time.
        within: What this says of a loop in the steps.
        bounded: Whether there is a budget.
    """
    sizes = plan.sizes
    # Where each step runs once, no cotangent is there when it does.
    again = 0 if isinstance(plan.schedule, StoreAll) else sizes.state + sizes.gradients
    spare = spare_beside_taped(plan.schedule, plan.steps, sizes) if bounded else 0
    # A plain step has the old state, the new one, and the loop's copy of that.
    taped = max(traced, 2 * sizes.state if again else 0) + sizes.state + again + spare
    most = max(taped, bytes_between(sizes), sizes.sweep + sizes.gradients + within)
    return min(BLOCK, 2 * sizes.state) + max(0, most - (sizes.fixed - sizes.interpreter))


def bytes_between(sizes: Sizes) -> int:
    """Return the bytes between the two sweeps: of the last step, the final state, its cotangent and a block of it."""
    return sizes.saved + sizes.shared + 2 * sizes.state + min(BLOCK, sizes.state)
