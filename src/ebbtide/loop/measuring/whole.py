"""The peak of a whole call, the function's own memory included, as it is predicted from the first step of a loop."""

from __future__ import annotations

import sys
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.containers import flatten
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import ScheduleError
from ebbtide.ledger import SAVED, Ledger
from ebbtide.loop.holding.held import counted_bytes, stays_bytes
from ebbtide.loop.holding.share import held_steps, lenders_of
from ebbtide.loop.measuring.first import First
from ebbtide.loop.measuring.measure import bytes_passed
from ebbtide.loop.measuring.moments import (
    Course,
    Moments,
    bytes_asked,
    bytes_between,
    bytes_beyond,
    bytes_moved,
    is_followed,
)
from ebbtide.loop.measuring.nested import LoopsInside, OneInside, find_left
from ebbtide.loop.measuring.taken import Taken
from ebbtide.loop.planning.plan import Plan
from ebbtide.loop.planning.predict import count_saved, table_bytes
from ebbtide.loop.planning.sizes import RESERVE, RESERVE_PER_PROFILE, Sizes, count_tuples
from ebbtide.loop.stepping.given import in_region
from ebbtide.loop.stepping.steps import TapedStep
from ebbtide.loop.stepping.swap import nodes_of
from ebbtide.loop.values.state import bytes_of
from ebbtide.schedules import Position, Snapshot
from ebbtide.tape.blocks import BLOCK
from ebbtide.tape.forms import form_here
from ebbtide.tape.holders import held_by
from ebbtide.tape.node import Node, nodes_before
from ebbtide.tape.pager import Pager
from ebbtide.tape.saved import bytes_of as bytes_saved
from ebbtide.tape.saved import key_of

# What steps save may be by so much more than is predicted for: a loop whose steps grow by a little would be followed at
# each of them.
_MARGIN = 1.02
# Sweeps that are looked at, each 2 ms to 5 ms: before an earlier one so much has been freed that it holds less.
_MOST_SWEEPS = 64


@final
class Whole:
    """
    Predicts what `tracemalloc` is going to see at most in the block of a profile.

    Args:
        ledger: The account of a loop, with the report of the profile; without one nothing is predicted.

    Attributes:
        available: Bytes of memory that the loop may take; None for no bound.
        is_outgrown: Whether a step has saved more than is predicted for.
    """

    __slots__ = (
        "_around", "_asked", "_before", "_begun", "_beside", "_buffer", "_each", "_given", "_gone", "_inner", "_kept",
        "_leaf", "_ledger", "_measured", "_met", "_most", "_moved", "_others", "_outputs", "_passed", "_reached",
        "_saved", "_state", "_sums", "_taken", "_traced", "_unreached", "_widest", "_within", "available",
        "is_outgrown",
    )  # fmt: skip

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._before = self._around = self._within = self._kept = self._saved = self._sums = self._others = 0
        self._moved = self._passed = self._gone = self._outputs = self._unreached = self._leaf = self._beside = 0
        self._given: list[Any] = []
        self._reached: dict[int, int] = {}
        self.available: int | None = None
        self._traced: int | None = None
        self._each: int | None = None  # bytes that steps to come are expected to save; None for as many as planned
        self._asked: list[tuple[int, int]] = []
        # When it began: the peak, what the ledger had beside what loops held, and this.
        self._begun, self._state, self._measured, self._buffer = (0, 0, 0), 0, 0, 0
        self._inner: LoopsInside | None = None
        self._taken = Taken()
        # Bytes that a step saved at most, and is expected to; and of the state before the last one that the ledger had.
        self._widest, self._most, self._met, self.is_outgrown = 0, sys.maxsize, 0, False

    def meet(self, leaves: list[Any], inputs: Any, pager: Pager | None, buffer: int) -> None:
        """Take note of inputs, of the initial state, which the function may hold to its end, and of their buffer."""
        self._buffer = buffer  # which is in no plan, as there is room for it
        if self._ledger.report is not None:
            traced = _on_tape(leaves)
            self._reach([*traced, *_on_tape(flatten(inputs)[0])])
            values = [leaf._value for leaf in traced if leaf._node.signature is not None]
            # A part of an argument, or another shape of it, is the caller's, who has it after the function, too.
            made = [one for one in values if isinstance(one, np.ndarray) and not (pager and pager.is_callers(one))]
            self._given = [weakref.ref(owner_of(one)) for one in made]

    def begin(self, values: list[Any]) -> None:
        """Take note of what is there before the first step, with the leaves of the initial state."""
        report = self._ledger.report
        if report is not None:
            self._state = bytes_of(values)
            self._before, self._others = report.allocated - self._state, self._ledger.live
            held = sum([one.holding(False).held for one in lenders_of(self._ledger)])
            self._begun = report.allocated_peak, self._ledger.live - held, held
            self._around, report.within = report.within, 0
            self._unreached = self._ledger.held[SAVED]

    def _reach(self, traced: list[Any]) -> None:
        """Take note of what was saved before the loop for what it begins with, or uses."""
        for node in nodes_before([array._node for array in traced]):
            self._reached |= {key_of(cell): bytes_saved(cell) for cell in held_by(node, self._ledger.holds)}

    def see(self, first: First, sizes: Sizes, held: int) -> None:
        """Take note of the first step, when it is measured; *held* bytes in the ledger are not the step's."""
        self._traced, self._kept, self._saved = first.traced, first.kept, sizes.saved
        if self._ledger.report is not None and first.record is not None:
            self._asked = bytes_asked(first.record)
            self._sums = sum([form_here(leaf.type).nbytes for leaf, _ in first.record.tape.statics.values()])
            owners = {id(owner): owner.nbytes for ref in self._given if (owner := ref()) is not None}
            arrays = [array for _, array in first.record.tape.statics.values()]
            self._reach(_on_tape(arrays))
            self._unreached = max(0, self._unreached - sum(self._reached.values()))
            statics = [array._value for array in arrays]
            met = {id(owner_of(value)) for value in statics if isinstance(value, np.ndarray)}
            others = [key for key in owners if key in met or self._ledger.count_holders(key)]
            self._gone = sum(owners.values()) - sum([owners[key] for key in others])
            self._moved = bytes_moved(first.record.state_nodes, first.record.state_leaves, first.after)
            self._passed = bytes_passed(first, self._ledger)
            self._leaf = max([bytes_of([leaf]) for leaf in first.after], default=0)
            self._inner = self._find_inside(first, held)

    def _find_inside(self, first: First, held: int) -> LoopsInside | None:
        """Return the loops in the first step; None where there are none, or others than can be followed."""
        record = first.record
        assert record is not None
        if self._traced is None or not any(_can_be_followed(node.signature) for node in nodes_of(record)):
            return None
        found = record.follow_sweep()
        known = [one for one in reversed(found.joints) if _can_be_followed(one)]
        if not known or len(known) < len(found.joints):
            return None
        start, inner, each, bounded = self._before + self._state, list[OneInside](), list[int](), known[0].room.bounded
        for one in known:
            whole = one.room.whole
            # Without a bound nobody asks loops for what they hold.
            theirs = whole._begun[2] - self._begun[2] if bounded else sum(each)
            counted = max(0, whole._begun[1] - self._begun[1] - (0 if bounded else theirs))
            before = whole._before - start - theirs
            inner.append(OneInside(one.plan, whole, before, counted, one.room.disk.left, whole._measured))
            each.append(one.holding(False).held if bounded else inner[-1].begun().counted)
        early, late = known[0].room.whole._begun[0] - start, self._traced - sum(each)
        missed = [nbytes - one.holding(False).held for one, nbytes in zip(known, each, strict=True)]
        stretches = list[tuple[int, int]]()
        for k, (peak, beside) in enumerate(found.stretches):
            others = held + sum(missed[: len(missed) - k])
            stretches.append((peak - others, beside - others))
        return LoopsInside(inner, first.kept - sum(each), early, late, stretches, None)

    def predict(self, plan: Plan, available: int | None, outputs: int, others: int) -> Plan:
        """
        Return a plan with the predicted peak.

        Args:
            plan: The plan.
            available: Bytes of memory that the loop may take; None for no bound.
            outputs: Bytes of the outputs of all steps.
            others: Bytes in the ledger that are not the loop's.
        """
        report, traced = self._ledger.report, self._traced
        if report is None:
            return plan
        report.within, self._within = self._around, report.within
        if traced is None:
            return plan
        # What others gave up since the loop began is not there when it comes to its peak: of two equal loops in turn it
        # was predicted for 1.1 to 1.4 times what they took.
        self._beside = self._before - max(0, self._others - others)
        self._outputs, self.available, self._others = outputs, available, others
        self._expect(plan.sizes, plan.sizes.saved)
        # Of a loop in a step it may be another one's before it.
        is_timed = plan.measuring_steps > 0 or plan.on_disk or report.allocated_peak > self._begun[0]
        self._measured = report.allocated_peak - self._before if is_timed else 0
        self._unreached = min(self._unreached, others)  # some may be on disk by now
        extra, beside = self._inside(plan)
        followed = is_followed(plan)
        if followed:
            beyond = self._follow(plan, Course(Position(steps=plan.steps)))
        else:
            beyond = bytes_beyond(plan, traced, self._within, bounded=available is not None)
            beyond += beside * count_saved(plan.schedule, plan.steps) + self._buffer
        report.within = max(report.within, beyond)
        peak = plan.predicted_peak_bytes + beyond
        if available is not None and (extra or not followed) and not (followed and self._inner):
            plain = 4 * plan.sizes.state + plan.sizes.gradients - plan.sizes.fixed
            # Where most is what loops in a step have to have, room for their cotangents is in it, and none is there.
            idle = extra and plan.sizes.run + plan.sizes.state > plan.sizes.sweep_beyond
            apart = traced - self._kept - (plan.sizes.state if idle else 0)
            if extra and count_saved(plan.schedule, plan.steps):
                # Their own plans have room for what their steps take for a moment; not for the state that the step
                # around starts from, where they have saved what is after it.
                apart = self._within + min(BLOCK, plan.sizes.state) + (plan.sizes.state if beside else RESERVE)
            # What a step saves may have been there before it.
            peak = min(peak, available + max(plan.sizes.alone + apart, plain, 0) + self._buffer)
        return plan.with_whole(self._beside + outputs + peak + RESERVE_PER_PROFILE, report.allocated_peak)

    def changed(self, rule: Any, plan: Plan) -> Plan:
        """Return another plan of a running loop with the peak that is predicted from where that stands."""
        report, known, position = self._ledger.report, rule.plan, rule.position
        whole = known.predicted_whole_bytes
        if report is None or whole is None:
            return plan
        self._expect(plan.sizes, plan.sizes.saved if self._each is None else self._each)
        whole += plan.predicted_peak_bytes - known.predicted_peak_bytes
        if is_followed(plan) and not position.open:
            # By now it is known what code after the loop has taken. Without a bound no step knows what it holds.
            own = counted_bytes(rule) + stays_bytes(rule) + _bytes_left_to(rule)  # which the moments have, too
            others = self._ledger.live - own if rule.room.bounded else self._others
            more = max(0, others - self._others)
            with suppress(ScheduleError):  # the next action says that there is no way on
                course = Course(position, rule.room.spare.is_there, stays=rule.room.spare.grown)
                course.inside = {} if self._inner is None else find_left(rule, self._ledger)
                course.known = {0: self._saved, **_bytes_of_steps(rule)}
                course.each, course.swept = self._each, self._sweeps_of(rule)
                if self._inner is None:
                    course.taken, course.widest = self._taken, max(course.known, key=course.known.__getitem__)
                beyond = self._follow(plan, course, others=more)
                peak = min(plan.predicted_peak_bytes + beyond, self._bound(plan)) + more
                whole = self._beside + self._outputs + peak + RESERVE_PER_PROFILE
        return plan.with_whole(whole, report.allocated_peak)

    def _sweeps_of(self, rule: Any) -> dict[int, int]:
        """Return what the sweeps of the last steps at hand take, by number; none before the reverse sweep begins."""
        if self._each is None or self._inner is not None:
            return {}
        last = sorted(rule.records)[-_MOST_SWEEPS:]
        found = {step: rule.records[step] for step in last}
        return {step: one.forecast() - self._ledger.live + one.nbytes for step, one in found.items()}

    def _bound(self, plan: Plan) -> int:
        """Return the bytes that a loop does not pass, as it gives up what is too much, whatever its steps save."""
        if self.available is None or self._inner is not None or self._each is None:
            return sys.maxsize
        sizes = plan.sizes
        # In no ledger are the state that a step starts from, a cotangent, and what a step takes for a moment.
        apart = 2 * sizes.state + min(BLOCK, 2 * sizes.state) + self._taken.beside((self._traced or 0) - self._kept)
        return self.available + max(sizes.alone, sizes.excused) + apart

    def turns(self, rule: Any) -> None:
        """
        Tell the report what a loop is going to hold in its reverse sweep, if that is other than predicted.

        By then its steps have shown what they save, which may be less than the first one did, and the code after it
        what it takes.
        """
        known, report = rule.plan, self._ledger.report
        if report is None or known.predicted_whole_bytes is None or in_region(rule.stepper.region.around):
            return
        shown = [nbytes for step, nbytes in _bytes_of_steps(rule).items() if step]
        self._each, self._widest = max(shown, default=None), 0
        # What loops in steps take was followed from the beginning.
        followed = known.with_whole(known.predicted_whole_bytes, report.allocated_peak)
        plan = self.changed(rule, known) if self._inner is None else followed
        assert plan.predicted_whole_bytes is not None
        more = plan.predicted_whole_bytes - known.predicted_whole_bytes
        # Of what has been held by now the profile's own part was in the prediction before.
        if more > RESERVE_PER_PROFILE or known.predicted_whole_bytes > _MARGIN * plan.predicted_whole_bytes:
            rule.plan = plan
            rule.watch.changed(plan)

    def taped(self, rule: Any, index: int, state: list[Any], pager: Any) -> Any:
        """Run a step of a loop, see `Stepper.taped`, and take note of what it begins with that is in the ledger."""
        owners = {id(owner_of(leaf)): leaf.nbytes for leaf in state if isinstance(leaf, np.ndarray)}
        met, given_up = sum([owners[one] for one in owners if self._ledger.count_holders(one)]), rule.room.given_up
        found = self._measuring(rule.stepper.taped, rule.plan, tape=True)(index, state, pager)
        self._met = met if rule.room.given_up == given_up else 0  # what it met of a step that went is its own by now
        return found

    def plain_step(self, rule: Any) -> Any:
        """Return what runs a plain step of a loop, and takes note of what it takes where there is a report."""
        run = rule.stepper.plain
        return run if self._ledger.report is None else self._measuring(run, rule.plan, tape=False)

    def _measuring(self, run: Any, plan: Plan, *, tape: bool) -> Any:
        is_measured = self._traced is not None and self._inner is None and is_followed(plan)
        return self._taken.measuring(run, self._traced or 0, tape=tape) if is_measured else run

    def shown(self, step: int, record: TapedStep, plan: Plan) -> None:
        """Take note of what a step saved; of the first one it is known."""
        if step and self._traced is not None:
            record.before = min(plan.sizes.passed_on, self._met)
            self._widest = max(self._widest, record.nbytes + record.before)
            self.is_outgrown = self._widest > self._most
            if (report := self._ledger.report) is not None:
                self.is_outgrown |= self._taken.shown(record, self._traced - self._kept)
                self.is_outgrown |= report.allocated_peak > (plan.predicted_whole_bytes or sys.maxsize)

    def outgrown(self, rule: Any) -> None:
        """Tell the report what a loop is going to hold of which a step has saved more than is predicted for."""
        known, bound = rule.plan, self.available
        self._each = None if self._each is None else max(self._each, self._widest)
        plan = self.changed(rule, known)
        more = max(0, (plan.predicted_whole_bytes or 0) - (known.predicted_whole_bytes or 0))
        peak = known.predicted_peak_bytes + more
        peak = peak if bound is None else min(peak, max(bound, known.predicted_peak_bytes))
        rule.plan = replace(plan, predicted_peak_bytes=peak)
        rule.watch.changed(rule.plan)

    def _expect(self, sizes: Sizes, saved: int) -> None:
        """Take note of what is predicted for, with the bytes that a step is expected to save."""
        self._most, self.is_outgrown = int(_MARGIN * saved) + sizes.shared, False

    def _inside(self, plan: Plan) -> tuple[int, int]:
        """Return what loops in a step have where there is room, beyond what they keep, and how much of it stays."""
        extra = max(0, self._kept - plan.sizes.saved - plan.sizes.shared)  # what they take beside is in no ledger
        # Without being asked they give up what is beyond the plan, but for their initial states.
        return extra, extra if plan.sizes.saved == self._saved else 0

    def _follow(self, plan: Plan, course: Course, *, others: int = 0) -> int:
        """Return the same as `bytes_beyond`, moment by moment, which may be less than nothing."""
        available = None if self.available is None else self.available - others
        course.buffer = plan.buffer + self._buffer
        moments = self.moments(plan, available)
        most = moments.most(course)
        if moments.limit is not None and self._unreached:
            # What the function saved for what came to nothing so far goes when it returns, if nothing comes of it, and
            # leaves its room to an initial state that would have been given up.
            limit = moments.limit + self._unreached
            freed = replace(moments, gone=self._gone + self._unreached, limit=limit)
            most = max(most, freed.most(course))
        more = table_bytes(plan.schedule, plan.steps) + count_tuples(plan.snapshots, plan.predicted_steps_forward)
        more += plan.sizes.interpreter
        return most + more - plan.predicted_peak_bytes

    def moments(self, plan: Plan, available: int | None, *, swept: bool = False) -> Moments:
        """
        Return what makes the moments of the loop by a plan.

        Args:
            plan: The plan.
            available: Bytes of memory that the loop may take; None for no bound.
            swept: Whether it is in a step that is swept, in which nobody holds its initial and its final state.
        """
        sizes, (extra, beside) = plan.sizes, self._inside(plan)
        inside = None if self._inner is None else replace(self._inner, available=available)
        limit = None if available is None else available - sizes.interpreter
        block = min(BLOCK, 2 * sizes.state)
        sweep = sizes.sweep + sizes.gradients + self._within + extra + block
        between = 0 if swept else bytes_between(sizes) + block - self._passed  # which is the final state
        traced = (self._traced or 0) + max(0, sizes.saved - self._saved)
        plain = traced - self._kept + sizes.state if extra else traced
        plain, beside = (plain, beside) if inside is None else (inside.plain, 0)
        steps = traced, plain, self._moved, max(0, self._passed - sizes.passed_on), 0 if swept else self._gone, beside
        return Moments(plan, *steps, sweep, self._sums, between, self._leaf, self._asked, limit, inside)

    @property
    def plain(self) -> int:
        """The most bytes that the loop takes on plain values."""
        step = (self._traced or 0) if self._inner is None else self._inner.plain
        return self._state + max(step, 2 * self._moved)


def _can_be_followed(rule: Any) -> bool:
    """Return whether a joint rule is a loop of which it is known what it does."""
    is_loop = hasattr(rule, "room") and is_followed(rule.plan) and not rule.position.open
    return is_loop and rule.room.whole._traced is not None


def _bytes_left_to(rule: Any) -> int:
    """Return the bytes of states before steps whose saved values are held, where the step that made them went since."""
    held, snapshots = held_steps(rule), rule.position.snapshots
    alone = [step for step in held if step - 1 not in held and Snapshot(step) not in snapshots]
    return sum([held[step].before for step in alone if step])


def _bytes_of_steps(rule: Any) -> dict[int, int]:
    """Return what the steps saved that a loop holds on a tape, by their number, each with the state before it."""
    return {step: one.nbytes + one.before for step, one in held_steps(rule).items() if one.nbytes}


def _on_tape(leaves: list[Any]) -> list[Any]:
    """Return the leaves that have a node."""
    return [leaf for leaf in leaves if type(leaf) is TracedArray and isinstance(leaf._node, Node)]
