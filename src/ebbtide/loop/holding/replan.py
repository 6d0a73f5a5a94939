"""Another plan for a loop that is under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ebbtide.agree import agree, is_alone
from ebbtide.errors import BudgetError, ScheduleError
from ebbtide.ledger import Ledger
from ebbtide.loop.holding.ahead import Cheapest, is_stuck
from ebbtide.loop.holding.held import RECORD, beyond_now, counted_bytes, may_go_on, unrecorded_bytes
from ebbtide.loop.holding.less import give_up_on_disk, page_outside
from ebbtide.loop.holding.share import held_steps
from ebbtide.loop.planning.candidates import forget_table
from ebbtide.loop.planning.plan import Plan
from ebbtide.loop.planning.predict import Prediction, predict, predict_from
from ebbtide.loop.stepping.shared import counted_before
from ebbtide.schedules import Revolve, StoreAll


def choose_beside(rule: Any, ledger: Ledger, unseen: int, stays: int) -> Plan:
    """
    Return the plan with which a loop goes on beside others, who give up what they can where nothing fits.

    Args:
        rule: The loop.
        ledger: The account.
        unseen: Bytes that the interpreter takes for the others, which no ledger counts.
        stays: Those of the state that another sweep begins with.

    Raises:
        BudgetError: Nothing fits.
    """
    # Those in steps at hand are lenders, too, and hold what they can run again.
    lenders, saved = [one for one in ledger.lenders if one() is not rule], Cheapest("disk", "saved")
    while True:
        kept = counted_bytes(rule)
        others = ledger.live - kept - (RECORD - unrecorded_bytes(rule)) + stays
        try:
            room = None if ledger.limit is None else ledger.limit - others - unseen
            return choose_again(rule, room, others, kept + beyond_now(rule))
        except BudgetError:
            # All processes try again, or none.
            # Of a step on disk the nodes are in memory, and loops in it may hold there what they cannot do without.
            gave_up = ledger.relieve(ledger.lent, lenders) > 0 or page_outside(rule)
            if not agree(gave_up or (is_alone() and give_up_on_disk(rule, saved))):
                raise


def choose_or_go_on(rule: Any, ledger: Ledger, unseen: int, stays: int, *, is_lean: bool) -> Plan:
    """
    Return the plan with which a loop goes on, see `choose_beside`; where nothing fits, one that asks for no more.

    A plan has room for the widest step with all that may wait for its sweep, and a loop with one restart state may do
    with less: it goes on, and is refused if a step passes the budget again. So does one that has none to give up.
    """
    known = rule.plan
    if is_stuck(rule.position):
        return known  # it has nothing to go on from, as with NoReverse, and says so
    try:
        return choose_beside(rule, ledger, unseen, stays)
    except BudgetError:
        is_one = may_go_on(rule) and known.schedule != Revolve(1)  # it may have given up all but one state
        if not is_lean and not is_one:
            raise
        # Where more sweeps are to come, what comes after the loop stays beside it, which nobody had planned for.
        rule.plan = replace(known, schedule=Revolve(1)) if is_one and (not is_lean or rule.room.retained) else known
        return from_here(rule, 0)


def choose_again(rule: Any, memory: int | None, others: int, kept: int) -> Plan:
    """
    Return the plan with which a loop goes on from where it stands.

    Args:
        rule: The loop.
        memory: The bytes of memory that it may take; None for no bound.
        others: Bytes in the ledger for others, which add to the least budget.
        kept: Bytes of its own while the plan is made, with what the interpreter takes.

    Raises:
        BudgetError: Nothing fits.
    """
    plan, known = _choose(rule, memory, others, kept), rule.plan
    left = plan.schedule.forward_steps_left(rule.position)
    if rule.position.forward_ended and not rule.room.spare.grown and is_alone():
        # It is the fastest from the beginning, and may make little of the snapshots that there are.
        least = _from(rule, plan).time
        for other, ahead in _others(rule, plan, memory, others, kept):
            plan, left, least = (other, ahead.forward, ahead.time) if ahead.time < least else (plan, left, least)
    forward = rule.ran + left  # what was run for another schedule, or to measure, was run
    more = plan.costs.forward * (forward - known.measuring_steps - plan.predicted_steps_forward)
    return replace(
        plan,
        predicted_steps_forward=forward,
        predicted_time=plan.predicted_time + more + known.measuring_time,
        measuring_steps=known.measuring_steps,
        measuring_time=known.measuring_time,
        least=known.least,
        fewest=known.fewest,
    )


def _others(
    rule: Any, plan: Plan, memory: int | None, others: int, kept: int
) -> Iterator[tuple[Plan, Prediction]]:
    """Yield plans in the place of a new one in the reverse sweep, each with what it takes from here: the known one."""
    known, disk = rule.plan, rule.room.disk
    with suppress(ScheduleError):
        ahead = _from(rule, known)
        peak, space = known.sizes.fixed + ahead.memory, disk.left - disk.reserve_for(rule.records.values())
        if (memory is None or peak <= memory) and ahead.disk <= space:
            yield replace(known, predicted_peak_bytes=peak), ahead
    if plan.on_disk:
        forget_table(plan.schedule)
        with suppress(BudgetError, ScheduleError):
            other = _choose(rule, memory, others, kept, on_disk=False)
            yield other, _from(rule, other)


def _from(rule: Any, plan: Plan) -> Prediction:
    """Return what a plan takes from where a loop stands."""
    return predict_from(plan.schedule, rule.position, plan.sizes, plan.costs, buffered=plan.buffer > 0)


def from_here(rule: Any, reverse: int) -> Plan:
    """Return the plan of a loop from where it was brought to, with so many *reverse* steps more than were planned."""
    plan, forward = rule.plan, rule.ran
    with suppress(ScheduleError):  # the next action says that there is no way on
        forward += plan.schedule.forward_steps_left(rule.position)
    seconds = plan.costs.time(forward=forward - plan.predicted_steps_forward, reverse=reverse)
    return replace(plan, predicted_steps_forward=forward, predicted_time=plan.predicted_time + seconds)


def with_freed(rule: Any, freed: int) -> Plan:
    """Return the plan of a loop that gave up so many bytes."""
    plan = from_here(rule, 0)
    return replace(
        plan,
        snapshots=len(rule.position.snapshots),
        # Steps may save more than those that were planned with, and then more than planned is freed.
        predicted_peak_bytes=max(plan.sizes.fixed, plan.predicted_peak_bytes - freed),
        buffer=min(plan.buffer, int(rule.snapshots.buffer_nbytes)),
    )


def of_known_length(rule: Any) -> Plan:
    """Return the plan of a loop whose length was not known, and is, with what it has done and is going to do."""
    plan, steps, known = rule.plan, rule.position.end, rule.plan.steps
    forward = rule.ran + plan.schedule.forward_steps_left(rule.position)
    seconds = plan.costs.time(forward=forward - plan.measuring_steps, reverse=steps) + plan.measuring_time
    plan = replace(plan, steps=steps, predicted_steps_forward=forward, predicted_time=seconds)
    if not isinstance(plan.schedule, StoreAll):
        return plan
    most, taken = (predict(plan.schedule, n, plan.sizes, plan.costs, buffered=plan.buffer > 0) for n in (known, steps))
    peak, disk = plan.predicted_peak_bytes + taken.memory - most.memory, min(plan.predicted_disk_bytes, taken.disk)
    return replace(plan, predicted_peak_bytes=peak, predicted_disk_bytes=disk)


def _choose(rule: Any, memory: int | None, others: int, kept: int, *, on_disk: bool = True) -> Plan:
    room, position, sizes, plan = rule.room, rule.position, rule.plan.sizes, rule.plan
    choose = partial(
        room.disk.choose, position.steps, held=others, open=position.open, kept=kept,
        costs=plan.costs if plan.has_costs else None,
    )  # fmt: skip
    # The same ways in all processes. A loop whose steps have saved more than planned keeps its initial state, for those
    # to come; and what they saved beyond that may go to disk.
    has_grown, may_page = agree((room.spare.grown, room.planned is not None))
    none = 0 if on_disk else room.disk.left
    ways = [(sizes, sizes.restart, 0)] if has_grown else []
    ways.append((sizes, 0, 0))
    if may_page:
        ways.append((room.planned or sizes, 0, room.disk.reserve_for(rule.records.values())))
    ways = [(taken, initial, max(reserve, none)) for taken, initial, reserve in ways]
    for taken, initial, reserve in ways[:-1]:
        with suppress(BudgetError):
            return choose(taken, memory=None if memory is None else memory - initial, reserve=reserve)
    taken, _, reserve = ways[-1]
    return choose(taken, memory=memory, reserve=reserve)


def with_wider(rule: Any, index: int, record: Any, nbytes: int, live: int, most: int | None = None) -> Plan:
    """
    Return the plan of a loop with the sizes of a step that has run on a tape, if it saved more than planned.

    Args:
        rule: The loop.
        index: The number of the step.
        record: The step.
        nbytes: What it saved, with loops in it.
        live: What the ledger has with that.
        most: What it has had at most since the step began, if that was too much; else None.
    """
    plan, sizes = rule.plan, rule.plan.sizes
    record.nbytes = record.nbytes or nbytes
    rule.room.whole.shown(index, record, plan)
    others = held_steps(rule) if sizes.shared and nbytes > sizes.saved else {}
    if others:  # what all steps save is counted for none but the first
        first = others[min(others)]
        nbytes += min(sizes.shared, counted_before(rule.stepper, record, first, record.tape.ledger))
    if most is None and nbytes <= sizes.saved + sizes.shared:
        return plan
    seen = nbytes if most is None else nbytes + most - live
    return replace(plan, sizes=sizes.widened(nbytes - sizes.shared, record.forecast() - live + nbytes, seen))
