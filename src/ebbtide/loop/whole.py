"""The peak of a whole call, the function's own memory included, as it is predicted from the first step of a loop."""

from __future__ import annotations

from typing import Any, final

from ebbtide.loop.first import First
from ebbtide.loop.moments import MOST_STEPS, Moments, bytes_asked
from ebbtide.loop.plan import Plan
from ebbtide.loop.predict import count_saved, spare_beside_taped, table_bytes
from ebbtide.loop.sizes import RESERVE, RESERVE_PER_PROFILE, Sizes, count_tuples
from ebbtide.loop.state import bytes_of
from ebbtide.schedules import Mixed, StoreAll
from ebbtide.tape.blocks import BLOCK
from ebbtide.tape.forms import form_here


@final
class Whole:
    """
    Predicts what `tracemalloc` is going to see at most in the block of a profile.

    Args:
        report: The report of the profile; None without one, and nothing is predicted.
        values: Leaves of the initial state.
    """

    __slots__ = ("_around", "_asked", "_before", "_kept", "_report", "_saved", "_sums", "_traced")

    def __init__(self, report: Any, values: list[Any]) -> None:
        self._report = report
        self._before = self._around = self._kept = self._saved = self._sums = 0
        self._traced: int | None = None
        self._asked: list[tuple[int, int]] = []
        if report is not None:
            self._before = report.allocated - bytes_of(values)
            self._around, report.within = report.within, 0

    def see(self, first: First, sizes: Sizes) -> None:
        """Take note of the first step, when it is measured."""
        self._traced, self._kept, self._saved = first.traced, first.kept, sizes.saved
        if self._report is not None and first.record is not None:
            self._asked = bytes_asked(first.record)
            self._sums = sum([form_here(leaf.type).nbytes for leaf, _ in first.record.tape.statics.values()])

    def predict(self, plan: Plan, available: int | None, outputs: int) -> Plan:
        """
        Return a plan with the predicted peak.

        Args:
            plan: The plan.
            available: Bytes of memory that the loop may take; None for no bound.
            outputs: Bytes of the outputs of all steps.
        """
        report, traced = self._report, self._traced
        if report is None:
            return plan
        report.within, within = self._around, report.within
        if traced is None:
            return plan
        # What loops in a step have where there is room, beyond what they keep; what they take beside is in no ledger.
        extra = max(0, self._kept - plan.sizes.saved - plan.sizes.shared)
        # Without being asked they give up what is beyond the plan, but for their initial states.
        beside = extra if plan.sizes.saved == self._saved else 0
        is_followed = isinstance(plan.schedule, Mixed) and plan.steps <= MOST_STEPS
        if is_followed:
            beyond = self._follow(plan, traced, within, extra, beside, available)
        else:
            beyond = _bytes_beyond(plan, traced, within, bounded=available is not None)
            beyond += beside * count_saved(plan.schedule, plan.steps)
        report.within = max(report.within, beyond)
        peak = plan.predicted_peak_bytes + beyond
        if available is not None and (extra or not is_followed):
            plain = 4 * plan.sizes.state + plan.sizes.gradients - plan.sizes.fixed
            # Where most is what loops in a step have to have, room for their cotangents is in it, and none is there.
            idle = extra and plan.sizes.run + plan.sizes.state > plan.sizes.sweep_beyond
            apart = traced - self._kept - (plan.sizes.state if idle else 0)
            if extra and count_saved(plan.schedule, plan.steps):
                # Their own plans have room for what their steps take for a moment; not for the state that the step
                # around starts from, where they have saved what is after it.
                apart = within + (plan.sizes.state if beside else min(BLOCK, plan.sizes.state) + RESERVE)
            # What a step saves may have been there before it.
            peak = min(peak, available + max(plan.sizes.alone + apart, plain, 0))
        return plan.with_whole(self._before + outputs + peak + RESERVE_PER_PROFILE, report.allocated_peak)

    def _follow(self, plan: Plan, traced: int, within: int, extra: int, beside: int, available: int | None) -> int:
        """Return the same as `_bytes_beyond`, moment by moment, which may be less than nothing."""
        sizes, schedule = plan.sizes, plan.schedule
        limit = None if available is None else available - sizes.interpreter
        sweep, between = sizes.sweep + sizes.gradients + within + extra, _bytes_between(sizes)
        plain = traced - self._kept + sizes.state if extra else traced
        most = Moments(plan, traced, plain, beside, sweep, self._sums, between, self._asked, limit).most()
        table = table_bytes(schedule, plan.steps) + count_tuples(plan.snapshots, plan.predicted_steps_forward)
        return min(BLOCK, 2 * sizes.state) + most + sizes.interpreter + table - plan.predicted_peak_bytes


def _bytes_beyond(plan: Plan, traced: int, within: int, *, bounded: bool) -> int:
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
    most = max(taped, _bytes_between(sizes), sizes.sweep + sizes.gradients + within)
    return min(BLOCK, 2 * sizes.state) + max(0, most - (sizes.fixed - sizes.interpreter))


def _bytes_between(sizes: Sizes) -> int:
    """Return the bytes between the two sweeps: of the last step, the final state, its cotangent and a block of it."""
    return sizes.saved + sizes.shared + 2 * sizes.state + min(BLOCK, sizes.state)
