"""The plan of a time loop: chosen for its first steps, which are run to be measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np

from ebbtide.agree import agree
from ebbtide.arrays.context import current
from ebbtide.budget import Budget, format_bytes
from ebbtide.errors import BudgetError
from ebbtide.ledger import SAVED, SNAPSHOTS, Ledger, Mark
from ebbtide.loop.holding.disk_part import DiskPart
from ebbtide.loop.holding.held import RECORD
from ebbtide.loop.holding.share import claim, held_outside, paged_outside, room_beside
from ebbtide.loop.measuring.before import may_page_more, page_half, page_more
from ebbtide.loop.measuring.first import First
from ebbtide.loop.measuring.growing import Begun, begin
from ebbtide.loop.measuring.inside import Inside
from ebbtide.loop.measuring.measure import measure_alone, measure_sizes, without_spare
from ebbtide.loop.measuring.timing import (
    EXTRA_STEPS,
    estimate_steps,
    is_timed,
    measure_steps,
    measure_sweep,
    time_fresh,
)
from ebbtide.loop.measuring.transfers import with_transfers
from ebbtide.loop.measuring.whole import Whole
from ebbtide.loop.measuring.within import Within, of_all
from ebbtide.loop.planning.candidates import forget_table
from ebbtide.loop.planning.plan import Earlier, Plan, Sizes
from ebbtide.loop.stepping.given import in_region
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.steps import Stepper
from ebbtide.loop.stepping.warm import Timed
from ebbtide.loop.values.state import bytes_of
from ebbtide.schedules import Costs, Hierarchical, Mixed, StoreAll


@final
@dataclass(slots=True)
class _Measured:
    """
    A loop, and what its first step showed.

    Args:
        stepper: Runs steps.
        values: Leaves of the initial state.
        steps: The number of steps, or its upper bound.
        options: Those of the user.
        allowed: The budget; None for no bound.
        disk: Its part of the disk.
        within: The loops in the first step.
        first: The step; in the end the one that the loop begins with.
        sizes: What it takes.
        plain: The time of a plain one, if that was run.
        start: When all of it began.
        available: Bytes that the loop may take; None for no bound.
        planned: Makes a plan for these.
        account: The ledger in which it is measured.
        is_lifted: Whether the values are not the user's.
    """

    stepper: Stepper
    values: list[Any]
    steps: int
    options: Options
    allowed: Budget | None
    disk: DiskPart
    within: Within
    first: First
    sizes: Sizes
    plain: Timed | None
    start: float
    available: int | None
    planned: Callable[..., Plan]
    account: Ledger
    is_lifted: bool


def first_steps(
    stepper: Stepper,
    values: list[Any],
    steps: int,
    options: Options,
    allowed: Budget | None,
    disk: DiskPart,
    whole: Whole,
    rows: int,
    earlier: Earlier | None,
    common: list[BudgetError],
) -> tuple[First, Plan, Any]:
    """
    Run the first step on a tape, measure it, and make the plan; where that is a choice, measure it by the clock.

    What an *earlier* run of the same call chose is taken again if it fits. What all processes refuse goes to *common*.
    The third result is the report of the loop; None without one.

    Raises:
        BudgetError: There is no plan; the first step is given up, which the traceback would hold.
    """
    assert stepper.region is not None
    start, ledger, report = time.perf_counter(), stepper.region.ledger, stepper.region.ledger.report
    whole.begin(values)
    account = ledger if ledger.watched else Ledger(watched=True, unfinished=ledger.unfinished)
    page_half(stepper.region, ledger.limit)
    mark = account.mark()
    gaining = steps if earlier is None and _may_hold_more(options, allowed) else 0
    begun, sizes, plain, held = _measure_first(stepper, values, account, mark, allowed, rows, gaining)
    sizes = replace(sizes if earlier is None else sizes.with_alone(*earlier.alone), theirs=disk.theirs)
    whole.see(begun.first, sizes, held)
    held_first, held = held, held - claim(stepper.region, account, account.lenders_before(mark), held, sizes, steps)
    available = room_beside(account, held)
    if available is not None and sizes.fixed + sizes.restart > available:
        sizes = without_spare(begun.values, begun.first, sizes, account, mark)
        available = room_beside(account, held)
    within = Within(begun.first.refused, account.lenders_since(mark), held_first - held)
    # Loops in the first step had all the room, and those in later ones are beside what this one holds.
    own, sizes = sizes, replace(sizes, run=max(sizes.run, within.inner - held - (0 if within.refused else RECORD)))
    outside = {"held": held + held_outside(stepper.region, account)}
    outside["limit"] = 0 if ledger.limit is None else ledger.limit + ledger.left_out
    planned = partial(disk.choose_first, steps, sizes, memory=available, open=options.until is not None, **outside)
    loop = stepper, begun.values, steps, options, allowed, disk, within
    measured = _Measured(*loop, begun.first, sizes, plain, start, available, planned, account, begun.lifting > 0)
    try:
        plan = _choose(measured, earlier)
        if options.schedule is None and earlier is None and available is not None:
            plan, freed = _with_more_paged(measured, plan, outside)
            held, available, outside["held"] = held - freed, available + freed, outside["held"] - freed
            plan = _with_less_inside(measured, plan, mark, held, outside)
        within.check(plan, ledger)
        if (lacking := _lacking_disk(plan, measured)) is not None:
            raise lacking
    except BudgetError as error:
        measured.first.close()
        fitting = partial(planned, schedule=options.schedule, costs=options.costs, memory=error.least - outside["held"])
        root, waits = ledger.refusals if options.budget is None else (None, [])
        common.append(_refusal(error, measured, fitting, waits if root is stepper.region.root else None))
        raise common[0] from None
    plan = whole.predict(plan, available, steps * bytes_of(measured.first.outputs), held)
    # A later plan, where there is less, has to try: loops in the steps ask for what they need.
    run = own.run + plan.sizes.saved - own.saved if within.inner else plan.sizes.run
    plan = replace(plan, sizes=replace(plan.sizes, run=run, tried=0))
    plan = plan.with_measuring(begun.lifting, None)
    first = begun.from_the_users(stepper, values, measured.first, account, allowed)
    if report is None:
        return first, plan, None
    seconds = time.perf_counter() - start
    return first, plan, report.plan_of_loop(plan, held, seconds, listed=not in_region(current().capture))


def _may_hold_more(options: Options, allowed: Budget | None) -> bool:
    """Return whether a plan may hold more snapshots in the reverse sweep: in memory, of a loop of known length."""
    asked = options.schedule
    more = asked is None or (isinstance(asked, Mixed) and asked.reverse > 0)
    return more and options.until is None and allowed is not None and not allowed.disk


def _choose(measured: _Measured, earlier: Earlier | None) -> Plan:
    """Make the plan; where that is a choice, measure first by the clock what steps and transfers cost."""
    planned, values, disk, allowed = measured.planned, measured.values, measured.disk, measured.allowed
    schedule, costs = measured.options.schedule, measured.options.costs
    plan = None
    if earlier is not None:
        with suppress(BudgetError):  # with less than it had another one is made
            plan = planned(schedule=earlier.schedule, costs=costs)
    if plan is not None and not agree(not _fits(plan, measured.available, disk)):
        schedule = plan.schedule
    else:
        plan = planned(schedule=schedule, costs=costs)
    measured.within.check_refused(plan)
    if allowed is not None and schedule is None and costs is None and plan.schedule != StoreAll():
        timed, fresh = is_timed(values, measured.steps), 0.0
        if timed:
            fresh, costs = time_fresh(measured.first), _measure_costs(measured, allowed)
        left = math.inf if measured.account.limit is None else measured.account.limit - measured.account.live
        lacks_disk, lacks_room = agree((disk.left < measured.sizes.stored, left < measured.sizes.transfer))
        if timed or not lacks_disk:
            costs = estimate_steps(measured.first) if costs is None else costs
            if not lacks_disk and lacks_room:
                costs = replace(costs, write=costs.forward, read=costs.forward)  # as dear as a step, as if not known
            elif not lacks_disk:
                is_busy = measured.first.is_busy
                costs = with_transfers(costs, values, allowed.directory, disk.snapshots, is_busy=is_busy)
            del plan  # and the table of its schedule, before another one is made
            plan = planned(schedule=schedule, costs=costs)
        if timed:
            # What comes to be held takes fresh memory, once.
            seconds = time.perf_counter() - measured.start + fresh * plan.predicted_peak_bytes
            steps = (measured.plain is not None) if measured.is_lifted else EXTRA_STEPS
            return plan.with_measuring(steps, agree(seconds))
    return plan if measured.plain is None else plan.with_measuring(1, None)


def _measure_costs(measured: _Measured, allowed: Budget) -> Costs:
    """Return what steps take by the clock; the first one may be another after that."""
    first, values, sizes, account = measured.first, measured.values, measured.sizes, measured.account
    stepper, plain = measured.stepper, measured.plain
    if measured.is_lifted:
        return measure_sweep(stepper, values, first, sizes, account, plain)
    measured.first, costs = measure_steps(stepper, values, first, sizes, account, allowed, plain)
    return costs


def _with_more_paged(measured: _Measured, plan: Plan, outside: dict[str, Any]) -> tuple[Plan, int]:
    """Return the plan with more on disk of what the code before saved, if it is the faster one; and the bytes freed."""
    available = measured.available
    if available is None or not may_page_more(measured.stepper.region) or plan.schedule == StoreAll():
        return plan, 0
    costs = plan.costs if plan.has_costs else None
    options = {"costs": costs, "open": measured.options.until is not None, **outside}
    make = partial(measured.disk.choose, measured.steps, measured.sizes, **options)
    # While a table is made nothing has gone to disk yet.
    freed = page_more(
        measured.stepper.region, plan, measured.disk.left,
        lambda more, stored: make(memory=available + more, reserve=stored, kept=measured.sizes.fixed + more),
    )  # fmt: skip
    if freed:
        measured.available = available + freed
        found = make(memory=measured.available)
        plan = found.with_measuring(plan.measuring_steps, plan.measuring_time)
    return plan, freed


def _with_less_inside(measured: _Measured, plan: Plan, mark: Mark, held: int, outside: dict[str, Any]) -> Plan:
    """
    Return the fastest of some plans: the loops in the steps keep what they did in the first step, or the least.

    With the least they run their steps again in the sweep of each step, as often as the room that is left to them asks.
    """
    # Not those of the step that was measured first, where another one has been timed since.
    inside, sizes = Inside.among(measured.account.lenders_since(mark)), measured.sizes
    lent, available = inside.lent, measured.available
    if available is None or not inside.most:
        return plan
    kept = inside.again_from_kept
    if plan.schedule == StoreAll() and not kept:
        return plan
    available = -int(agree(-available))
    # The step that was measured is there, with all that loops in it keep, while tables are made.
    account = measured.account
    free = available if account.limit is None else max(0, account.limit - account.live - sizes.interpreter)
    options = {"open": measured.options.until is not None, **outside}
    run = max(sizes.run - lent, measured.within.inner - held - RECORD)
    fewer = replace(sizes, saved=sizes.saved - lent, sweep=sizes.sweep - lent, seen=sizes.seen - lent, run=run)
    fewer = replace(fewer, passed_on=0 if lent else sizes.passed_on)
    forget_table(plan.schedule)  # before those of others are made

    def make(sizes: Sizes, costs: Costs, left: int) -> Plan:
        """Return the plan that leaves so many bytes to them."""
        memory = {"memory": available - left, "kept": available - left - free}
        return measured.disk.choose_first(measured.steps, sizes, costs=costs, **memory, **options)

    def judged(left: int) -> tuple[float, int, float]:
        """Return the time of the plan that leaves so many bytes to them, which its snapshots do not hold."""
        try:
            found = make(fewer, plan.costs, left)
        except BudgetError:
            return math.inf, left, 0.0
        more = plan.costs.forward * inside.again(found, available, free)
        return found.predicted_time + measured.steps * more, left, more

    predicted, left, more = min([judged(left) for left in (0, *inside.levels)])
    # As they are, they run steps again from what they keep.
    as_is = plan.predicted_time - plan.measuring_time + plan.costs.forward * measured.steps * kept
    if predicted >= (as_is if lent else math.inf):
        return plan
    fewer = without_spare(measured.values, measured.first, sizes, measured.account, mark) if lent else sizes
    costs = replace(plan.costs, reverse=plan.costs.reverse + more)
    try:
        found = make(replace(fewer, run=run), costs, left)
    except BudgetError:
        return plan
    found = replace(found, predicted_peak_bytes=found.predicted_peak_bytes + left)  # which they take
    return found.with_measuring(plan.measuring_steps, plan.measuring_time + costs.forward)


def _refusal(
    error: BudgetError, measured: _Measured, smallest: Callable[[], Plan], waits: list[Any] | None
) -> BudgetError:
    """
    Return the refusal of all processes of the run.

    Args:
        error: That of the loop alone.
        measured: The loop.
        smallest: Makes the plan that would fit just so.
        waits: Where it is noted with that plan, if it can wait until the step around is measured; else None.
    """
    mine, plan = _own_refusal(error, measured, smallest, waits=waits is not None)
    found = of_all(mine)
    if plan is not None and waits is not None:
        waits.append((found, replace(plan, least=mine.least)))
    return found


def _own_refusal(
    error: BudgetError, measured: _Measured, smallest: Callable[[], Plan], *, waits: bool
) -> tuple[BudgetError, Plan | None]:
    """
    Return a refusal that names what does for loops in the step, too, and on disk for a schedule that was asked for.

    Returns:
        (the refusal, the smallest plan if it can wait; else None).
    """
    if error.least_disk:
        return error, None  # a want of disk is told at once: no memory does for it, whatever the step around takes
    within, asked = measured.within, measured.options.schedule
    is_alone = not waits and not within.refused
    is_asked = asked is not None and not isinstance(asked, (Hierarchical, Mixed))  # whose table has no room here
    try:
        plan = smallest() if is_asked or not is_alone else None
    except BudgetError:
        plan = None
    if plan is not None and is_asked and (lacking := _lacking_disk(plan, measured)) is not None:
        return BudgetError(f"{error} {lacking}", max(error.least, lacking.least), lacking.least_disk), None
    if plan is None or is_alone:
        return error, None
    return within.larger(error, plan), plan


def _measure_first(
    stepper: Stepper, values: list[Any], account: Ledger, mark: Mark, allowed: Budget | None, rows: int, gaining: int
) -> tuple[Begun, Sizes, Timed | None, int]:
    """
    Run the first step on a tape and measure it.

    Returns:
        (the step, what it takes, the time of a plain one if that was run, the bytes that others hold after it).
    """
    assert stepper.region is not None
    held, paged = account.live, paged_outside(stepper.region)
    with account.hearing() as given_up:
        begun = begin(stepper, values, account, mark, allowed)
    paged = paged_outside(stepper.region) - paged  # of what the code before saved
    held -= sum(given_up.values()) + paged
    known = mark.without(given_up[SAVED] + paged, given_up[SNAPSHOTS])
    first, values = begun.first, begun.values
    sizes = measure_sizes(stepper, values, first, account, held, known, rows)
    room = 0 if account.limit is None else account.limit - held
    with np.errstate(all="ignore") if begun.lifting else nullcontext():
        sizes, plain, freed = measure_alone(
            stepper, values, first, sizes, account, mark, gaining, room, begun.plain
        )  # fmt: skip
    return begun, sizes, plain, held - freed


def _lacking_disk(plan: Plan, measured: _Measured) -> BudgetError | None:
    """Return the error for a plan, of a schedule that was asked for, that stores more on disk than there is."""
    disk, allowed, needed = measured.disk, measured.allowed, plan.predicted_disk_bytes
    if allowed is None or measured.options.storage is not None:
        return None
    # Beside what others have of it.
    is_short, least, used_up = agree((needed > disk.left, needed + max(0, allowed.disk - disk.left), -disk.left))
    if not is_short:
        return None
    return BudgetError(
        f"{plan.schedule} stores {needed} bytes ({format_bytes(needed)}) on disk, and the budget has {-used_up} bytes "
        f"of it left. Give the budget {least} bytes of disk, or the loop another schedule.",
        plan.least,
        least,
    )


def _fits(plan: Plan, available: int | None, disk: DiskPart) -> bool:
    """Return whether there is room for a plan."""
    return available is None or (plan.predicted_peak_bytes <= available and plan.predicted_disk_bytes <= disk.left)
