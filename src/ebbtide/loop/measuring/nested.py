"""What loops in the steps of another one hold at its moments, planned anew for the room that they have then."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, final

from ebbtide.errors import BudgetError, ScheduleError
from ebbtide.ledger import Ledger
from ebbtide.loop.holding import ahead
from ebbtide.loop.holding.held import RECORD
from ebbtide.loop.holding.share import held_steps, loops_inside, share_of
from ebbtide.loop.measuring.moments import Course, Moments
from ebbtide.loop.planning.plan import Plan, make_plan
from ebbtide.loop.planning.predict import table_bytes
from ebbtide.loop.planning.sizes import Sizes, count_tuples
from ebbtide.schedules import EndForward, Position, Revolve, Snapshot
from ebbtide.tape.blocks import BLOCK


@final
@dataclass(frozen=True, slots=True)
class Left:
    """
    What a loop in a step holds between its sweeps.

    Args:
        plan: Its plan.
        course: Where it stands.
        held: Bytes of what it holds.
        stale: Whether it gave up something since it was planned, and is going to be planned anew.
    """

    plan: Plan
    course: Course
    held: int
    stale: bool = False

    @property
    def taken(self) -> int:
        """Bytes of it with what the interpreter takes for a loop at rest."""
        return self.held + self.plan.sizes.interpreter

    @property
    def counted(self) -> int:
        """Those of them that a ledger counts."""
        sizes, position, (first, last) = self.plan.sizes, self.course.position, self.course.position.saved or (0, 0)
        listed = [one for one in position.snapshots if one.tier != "memory"]
        states = sum([one.kind == "restart" for one in position.snapshots]) - len(listed) + self.course.spare
        saved = len(position.snapshots) - len(listed) - states + self.course.spare + last - first
        return self.held - states * sizes.entry - saved * (sizes.taped - sizes.saved)


@final
@dataclass(frozen=True, slots=True)
class OneInside:
    """
    A loop in a step, as it was when that was measured.

    Args:
        plan: Its plan.
        whole: Its `Whole`, which knows what its own steps take.
        before: Bytes that the step had allocated before it began.
        counted: Those of them in the ledger that no loop before it held.
        disk: Bytes of disk for its plans.
        measured: The most bytes that were allocated for it while its first steps were run to be measured.
    """

    plan: Plan
    whole: Any
    before: int
    counted: int
    disk: int
    measured: int
    _plans: dict[Any, Plan] = field(default_factory=dict)
    _found: dict[Any, Any] = field(default_factory=dict)

    def planned(self, room: int | None, known: Plan, kept: int = 0) -> Plan:
        """Return the plan in the place of another one for so many bytes, or that of which nothing is left to give."""
        if not self.plan.fewest:
            return known
        key = room, kept, known.steps
        if key not in self._plans:
            costs = self.plan.costs if self.plan.has_costs else None
            steps, sizes = known.steps, known.sizes
            try:
                self._plans[key] = make_plan(steps, sizes, memory=room, disk=self.disk, costs=costs, kept=kept)
            except BudgetError:
                self._plans[key] = replace(known, schedule=Revolve(1), snapshots=1)
        return self._plans[key]

    def forward(self, room: int | None) -> tuple[int, Left]:
        """Return the most bytes of the forward sweep beyond those before it, and what is held after it."""
        found = self._found.get(room)
        if found is None:
            most, left = self._forward(self.planned(room, self.plan), room)
            found = self._found[room] = max(most, self._measured(room)), left
        most, left = found
        return most, left

    def _measured(self, room: int | None) -> int:
        """Return the most bytes while first steps are measured: a sweep beside a step only where there is room."""
        sizes, least = self.plan.sizes, self.whole.plain
        is_roomy = room is None or sizes.saved + sizes.sweep + 3 * sizes.state <= room
        return self.measured if is_roomy else min(self.measured, max(least, sizes.sweep) + 3 * sizes.state)

    def begun(self) -> Left:
        """Return what is held after the step that was measured."""
        return self._forward(self.plan, self.whole.available)[1]

    def _forward(self, plan: Plan, room: int | None) -> tuple[int, Left]:
        moments = self.whole.moments(plan, room)
        course = moments.begin(Course(Position(steps=plan.steps)))
        while not isinstance(action := moments.next_action(course), EndForward):
            moments.follow(course, action)
        course.position = course.position.after(action)
        return course.most + _beside(plan), Left(plan, course, _held(moments, course))

    def back(self, left: Left, room: int | None) -> int:
        """Return the most bytes of the reverse sweep beyond those of all others."""
        key = room if left.stale else None, id(left.plan), left.course.position
        if key not in self._found:
            plan = self.planned(room, left.plan, left.held) if left.stale else left.plan
            moments = self.whole.moments(plan, room, swept=True)
            course = moments.again(left.course)
            with suppress(ScheduleError):
                while (action := moments.next_action(course)) is not None:
                    moments.follow(course, action)
            self._found[key] = course.most + _beside(plan), left.plan
        return self._found[key][0]

    def without(self, left: Left, nbytes: int) -> Left:
        """Return what is held when so many bytes are given up, if that can be."""
        if nbytes <= 0:
            return left
        key = "less", id(left), nbytes
        if key not in self._found:
            self._found[key] = self._without(left, nbytes), left
        return self._found[key][0]

    def _without(self, left: Left, nbytes: int) -> Left:
        moments = self.whole.moments(left.plan, None)
        course = left.course
        while left.held - _held(moments, course) < nbytes:
            position, spare = _with_less(course.position, course.spare)
            if position is None:
                break
            course = moments.again(replace(course, position=position, spare=spare))
        return Left(left.plan, course, _held(moments, course), stale=True)


def _with_less(position: Position, spare: bool) -> tuple[Position | None, bool]:
    """Return where a loop stands that gave up one thing (None for no way), and whether its initial state is beside."""
    kept = ahead.Cheapest().take(position)
    if kept is not None:
        return replace(position, snapshots=tuple([one for one in position.snapshots if one is not kept])), spare
    is_there = spare or position.snapshots[:1] == (Snapshot(0),)
    if is_there and position.saved is not None and position.saved[1] - position.saved[0] > 1:
        return ahead.without_first(position), False
    if spare and position.snapshots:
        return ahead.without_saved(position), False
    return None, spare


def _held(moments: Moments, course: Course) -> int:
    """Return the bytes that a loop holds: its initial state, too, where that is beside, and what no step passes on."""
    sizes, position = moments.plan.sizes, course.position
    is_saved = position.saved is not None or any(kept.kind == "saved" for kept in position.snapshots)
    return moments.held(course) + course.spare * sizes.restart + is_saved * sizes.passed_on


def _beside(plan: Plan) -> int:
    """Return the bytes that the interpreter takes for a loop, and buffers."""
    table = table_bytes(plan.schedule, plan.steps) + count_tuples(plan.snapshots, plan.predicted_steps_forward)
    return table + plan.sizes.interpreter + plan.buffer


@final
@dataclass(frozen=True, slots=True)
class LoopsInside:
    """
    All loops in a step, in the order in which they begin.

    Args:
        loops: The loops.
        own: Bytes that the step saves beside what they hold.
        early: The most bytes that the step takes before the first of them begins.
        late: The most that it took when it was measured, less what they held after it.
        stretches: Of its sweep, from the last loop to the first, and after that: `Forecast.stretches`.
        available: Bytes that the loop around may take.
    """

    loops: list[OneInside]
    own: int
    early: int
    late: int
    stretches: list[tuple[int, int]]
    available: int | None

    @property
    def plain(self) -> int:
        """The most bytes that the step takes on plain values."""
        return max(self.early, self.late, *[one.before + one.whole.plain for one in self.loops])

    def tape(self, moments: Moments, course: Course, action: Any, held: int) -> int:
        """Return the most bytes that a step takes on a tape, beside so many; note what the loops in it hold then."""
        position, sizes = course.position, moments.plan.sizes
        if not position.forward_ended and action.start == 0:
            most, lefts = 0, [one.begun() for one in self.loops]  # which has run already, beside less
        else:
            room = self._room(moments.plan, held + course.spare * sizes.restart)
            most, lefts = self._tape(room)
        over = sum([left.counted - left.course.spare * left.plan.sizes.data for left in lefts])
        over -= sizes.saved + sizes.shared - self.own
        # What is swept next keeps what it has; see `Room.judge`. The youngest are asked first.
        if not (action.start + 1 == position.end and action.save and not action.snapshot):
            self._give_up(lefts, over, youngest=True)
        course.inside[action.start] = lefts
        return most

    def _tape(self, room: int | None) -> tuple[int, list[Left]]:
        most, lefts = self.early, list[Left]()
        for one in self.loops:
            free = None if room is None else room - one.counted + len(lefts) * RECORD
            if free is not None and lefts:
                self._claim(one, free, lefts)
            taken = sum([left.taken for left in lefts])
            found, left = one.forward(None if free is None else free - taken)
            most = max(most, one.before + taken + found)
            lefts.append(left)
        return max(most, self.late + sum([left.taken for left in lefts])), lefts

    def _claim(self, one: OneInside, room: int, lefts: list[Left]) -> None:
        """Have the loops before one more give up what is more than their share; see `share.claim`."""
        lent = [left.held - other.without(left, left.held).held for left, other in zip(lefts, self.loops, strict=False)]
        free = room - sum([left.taken for left in lefts])
        self._give_up(lefts, share_of(one.plan.sizes, one.plan.steps, free, sum(lent), len(lefts)) - free)

    def _give_up(self, lefts: list[Left], over: int, *, youngest: bool = False) -> None:
        """Have loops give up so many bytes, the oldest first or the youngest."""
        order = range(len(lefts))
        for k in reversed(order) if youngest else order:
            before, lefts[k] = lefts[k].held, self.loops[k].without(lefts[k], over)
            over -= before - lefts[k].held

    def sweep(self, moments: Moments, course: Course, held: int) -> int:
        """Return the most bytes that the sweep of a step takes, beside so many."""
        sizes, lefts = moments.plan.sizes, course.inside.pop(course.position.end - 1, [])
        if len(lefts) != len(self.loops):  # of a step that ran before this was followed, and lost some of them
            lefts = [one.begun() for one in self.loops]
        room = self._room(moments.plan, held + course.spare * sizes.restart)
        sums, most = sizes.gradients, 0
        for k, (peak, beside) in enumerate(self.stretches):
            rest = lefts[: len(lefts) - k]
            taken = sum([left.taken for left in rest])
            most = max(most, peak + taken)
            if rest:
                taken -= rest[-1].taken
                more = beside + taken - (len(rest) - 1) * RECORD + (sums if course.position.reversed else 0)
                free = None if room is None else room + sizes.alone - more
                most = max(most, beside + taken + self.loops[len(rest) - 1].back(rest[-1], free))
        return most + sums + min(BLOCK, 2 * sizes.state)

    def settle(self, moments: Moments, course: Course) -> int:
        """Have the loops in the last step give up what code after the loop takes; return what is held then."""
        held, sizes, last = moments.held(course), moments.plan.sizes, course.position.end - 1
        room = self._room(moments.plan, held + course.spare * sizes.restart)
        if room is None or last not in course.inside:
            return held
        over = max(2 * sizes.state, sizes.sweep_beyond - sizes.saved - sizes.shared) + sizes.gradients - room
        self._give_up(course.inside[last], over)
        return moments.held(course)

    def _room(self, plan: Plan, held: int) -> int | None:
        """Return the bytes that are left beside so many of the loop around."""
        if self.available is None:
            return None
        table = table_bytes(plan.schedule, plan.steps)
        return self.available - table - plan.sizes.interpreter + RECORD - held

    def taped_beside(self, sizes: Sizes, lefts: list[Left]) -> int:
        """Return the bytes of a step whose saved values are held, with what loops in it hold."""
        beyond = sizes.taped_beside - sizes.saved + self.own - sizes.shared
        return beyond + sum([left.taken for left in lefts])


def find_left(rule: Any, ledger: Ledger) -> dict[int, list[Left]]:
    """Return for each step of a loop that is on a tape what the loops in it hold, in the order of `LoopsInside`."""
    loops, found = loops_inside(rule, ledger), dict[int, list[Left]]()
    for step, record in (held_steps(rule) if loops else {}).items():
        inside = [one for one in loops if one.stepper.region.outer is record.tape]
        found[step] = [_left_of(one) for one in inside]
    return found


def _left_of(loop: Any) -> Left:
    course = Course(loop.position, loop.room.spare.is_there)
    return Left(loop.plan, course, loop.holding(False).held, stale=loop.room.given_up > 0)
