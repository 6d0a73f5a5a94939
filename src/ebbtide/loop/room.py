"""How a running loop keeps its budget when what happens is not what was planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np

from ebbtide.agree import agree, is_alone
from ebbtide.arrays.array_type import owner_of
from ebbtide.bound import Bound
from ebbtide.budget import Budget
from ebbtide.errors import BudgetError
from ebbtide.ledger import Ledger
from ebbtide.lender import lent_by
from ebbtide.loop.holding import ahead, held, less
from ebbtide.loop.holding.disk_part import DiskPart
from ebbtide.loop.holding.fallback import Fallback
from ebbtide.loop.holding.held import Beyond, Waiting
from ebbtide.loop.holding.in_work import InWork
from ebbtide.loop.holding.replan import choose_or_go_on, from_here, of_known_length, with_freed, with_wider
from ebbtide.loop.holding.share import held_in_step, loops_inside, seen_by_none
from ebbtide.loop.holding.spare import Spare
from ebbtide.loop.measuring.whole import Whole
from ebbtide.loop.planning.plan import Plan, describe_larger
from ebbtide.loop.planning.predict import spare_tier
from ebbtide.loop.stepping.given import in_region
from ebbtide.loop.stepping.steps import TapedStep
from ebbtide.loop.stepping.swap import is_paged
from ebbtide.machine import free_dead_tuples
from ebbtide.schedules import Forward
from ebbtide.tape.pager import Pager


@final
class Room:
    """
    Makes room for a loop, by fewer snapshots or by another plan.

    A step may save more than the first ones did, and other code of the call may take memory that a plan counted on.
    The ledger notices before a byte is too many, and asks the loops to give up what they can run again.

    Args:
        ledger: The account, in which the loop is alone if the budget is its own and nobody else looks.
        allowed: The budget of the loop or of the calls around it; None for no bound.
        own: The loop's own budget; None if it has none.
        storage: See `DiskPart`.

    Attributes:
        retained: Whether there may be several sweeps.
        runs: Whether a sweep of the loop is under way.
        given_up: How often it did with less.
        stale: Whether the schedule was chosen for another position than that of the loop.
        lean: Whether the table of a schedule was given up, for which there may be room in the sweep.
        spare, fallback: The initial state, where it is kept beside the snapshots: in memory, and on disk.
        waiting: Counts what is held between the sweeps of two steps.
        disk: Its part of the disk.
        planned: What the first plan was made for, if what steps save may go to disk; else None.
        whole: Predicts the peak of the whole call.

    Memory:
        None of its own.
    """

    __slots__ = (
        "_allowed", "_beyond", "_bound", "_freed", "_in_work", "_ledger", "_stays", "_unseen", "disk", "fallback",
        "given_up", "lean", "planned", "retained", "runs", "spare", "stale", "waiting", "whole",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, allowed: Budget | None, own: Budget | None, storage: Any) -> None:
        self._ledger, self._allowed = ledger, allowed
        self._unseen = self._stays = 0  # bytes of the interpreter for other loops; of where another sweep begins
        self.retained = ledger.retained
        self._in_work = InWork(ledger)
        self.given_up, self._freed = 0, None  # and the bytes since its last plan; None if it did not
        self.waiting, self._beyond = Waiting(ledger), Beyond(ledger)
        self.fallback, self.spare, self.whole = Fallback(ledger), Spare(), Whole(ledger)
        self.disk = DiskPart(ledger, allowed, storage, is_own=own is not None)
        self._bound = None if own is None else Bound(own.memory, self.disk.whole)
        self.stale, self.lean, self.runs, self.planned = False, False, False, None

    @property
    def bounded(self) -> bool:
        """Return whether there is a bound."""
        return self._ledger.limit is not None

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Bind the ledger by the loop's own budget in the block, too."""
        self._count(rests=False)
        try:
            with self._ledger.within(self._bound):
                self._unseen, self.runs = seen_by_none(self._ledger, but=self), True
                try:
                    yield
                finally:
                    self.runs = False
                    self.waiting.close()
        finally:
            self._count(rests=True)

    def _count(self, *, rests: bool) -> None:
        """Have the ledger count, while the loop rests, what the interpreter takes for it, so that others leave room."""
        rule = self.disk.rule
        if rule is not None and self.bounded:
            rests = rests and not rule.position.finished and not in_region(rule.stepper.region.around)
            rule.snapshots.count(held.beyond_now(rule) if rests else 0)

    def _beside(self, rule: Any, excused: int = 0) -> AbstractContextManager[None]:
        """Have the bound be less, in the block, by what the interpreter takes for loops, which no ledger counts."""
        return self._beyond.left_out(rule, self._unseen + held.unrecorded_bytes(rule) - excused)

    def enlist(self, rule: Any) -> None:
        """Let the ledger ask a loop for room, when it begins; keep the initial state where the schedule does not."""
        if self.bounded:
            self._ledger.lend(rule)
        self.disk.enlist(rule)
        self.planned = rule.plan.sizes if self._allowed is not None and self._allowed.disk else None
        begins = rule.position.state == 0 and not rule.position.snapshots
        tier = spare_tier(rule.plan.schedule, rule.plan.steps) if begins else None
        if tier == "memory" and self.bounded:
            self.spare.keep(rule)
        elif tier == "disk":
            self.fallback.keep(rule)

    def dismiss(self, rule: Any) -> None:
        """Let the ledger ask a loop no more, and others have its part of the disk."""
        self.disk.dismiss()
        self._ledger.lenders[:] = [one for one in self._ledger.lenders if one() is not None and one() is not rule]

    def taped(self, rule: Any, index: int) -> tuple[TapedStep, list[Any], list[Any]]:
        """Run a step on a tape, as `Stepper.taped` does it, within the bound."""
        pager = self._pager(rule.stepper.region.outer.pager) if self._ledger.watched else None
        taped = rule.stepper.taped if self._ledger.report is None else partial(self.whole.taped, rule)
        if pager is None or not self.bounded:
            return taped(index, rule.state, pager)
        # The loop has the state that the step starts from until it is known that this fits.
        pager.pinned = frozenset(id(owner_of(leaf)) for leaf in rule.state if isinstance(leaf, np.ndarray))
        excused, work = self._excused(rule), self._in_work
        with self._beside(rule, excused), work.running(rule), work.metered(rule.plan.sizes, excused) as pager.unplanned:
            found = taped(index, rule.state, pager)
        pager.pinned, pager.unplanned = frozenset(), None  # held as long as the step is
        return found

    def _excused(self, rule: Any) -> int:
        """Bytes in the ledger that a plan leaves to the function alone; beyond a plan less what a step takes unseen."""
        return rule.plan.sizes.excused_of(grown=self.spare.grown, swept=rule.position.forward_ended)

    def _pager(self, outer: Any) -> Pager:
        """Return the pager of a step."""
        ledger, allowed = self._ledger, self._allowed
        bounded = ledger.limit is not None and allowed is not None
        self._in_work.begin(outer, bounded=bounded)
        return Pager(ledger, allowed if bounded else None, around=outer, step=bounded)

    def judge(self, rule: Any, action: Forward, index: int, record: TapedStep) -> Forward:
        """
        Return what of an action can be kept of a step that ran on a tape.

        If it saved more than planned, the sizes of the plan grow. Where that does not fit, its restart state takes the
        place of its saved values, and the schedule is chosen anew.

        Args:
            rule: The loop.
            action: The action that asks for its saved values.
            index: The step.
            record: The step.

        Raises:
            BudgetError: It does not fit, whatever the loop gives up.
        """
        pager, ledger = record.tape.pager, self._ledger
        if pager is None or not self.bounded:
            if pager is not None and ledger.report is not None:  # the report tells of it
                saved = record.nbytes or held_in_step(ledger, self._in_work.since(rule))
                rule.plan = with_wider(rule, index, record, saved, ledger.live)
            return action
        pager.overhead.settle()
        # Loops in the step may have kept more than planned, where there was room; it is of use if that is swept next.
        mark, planned = self._in_work.since(rule), rule.plan.sizes.saved + rule.plan.sizes.shared
        lenders, over, surplus = ledger.lenders_since(mark), held_in_step(ledger, mark) - planned, 0
        if index + 1 == rule.position.end and action.save and not action.snapshot:
            surplus = min(max(0, over), lent_by(lenders))
        ledger.relieve(over - surplus, lenders)
        if not record.nbytes:
            record.nbytes, (_, record.within) = held_in_step(ledger, mark) - surplus, ledger.kept_since(mark)
        self.disk.learn(record)
        if (sums := held.sums_bytes(rule)) > rule.plan.sizes.gradients:
            rule.plan = replace(rule.plan, sizes=replace(rule.plan.sizes, gradients=sums))
        sizes, position, passed = rule.plan.sizes, rule.position, pager.passed is not None
        most = self._in_work.most_held()
        # Where it passed, all that could be given up was, before it held most.
        rule.plan = with_wider(rule, index, record, record.nbytes, ledger.live, most if passed else None)
        self.spare.grown |= rule.plan.sizes.saved > sizes.saved
        if passed and not action.save and is_alone() and not ahead.needs_initial(position):
            self.stale = True
            return replace(action, kind="restart", tier="memory")
        if self.spare.went_back and action.snapshot and action.kind == "saved" and position.snapshots:
            return replace(action, snapshot=False)  # those of other steps were given up while it ran
        if action.save and self.spare.went_back and not position.forward_ended and action.stop < position.steps:
            rule.records.clear()  # and its own are of no use without them
            return replace(action, save=False)
        if passed and position.open and action.save and (action.drop or not position.saved):
            # Kept in case the loop ends with it. If not, it runs again, beside fewer snapshots.
            done = replace(action, save=False)
            if not ahead.is_stuck(position.after(done)):
                return done
        if passed:
            excused = self._excused(rule)
            with self._beside(rule, max(0, excused)):
                peak = record.forecast() - sizes.alone - self.waiting.cotangent_nbytes
                raise self._refusal(rule, index, record, max(most - min(0, excused), peak))
        return action

    def make_for(self, rule: Any, action: Any) -> bool:
        """Give up what is held too much before an action; return whether the schedule has to be asked again."""
        if self.whole.is_outgrown:
            self.whole.outgrown(rule)
        if self._ledger.limit is None:
            return False
        if free_dead_tuples is not None:
            free_dead_tuples()  # the nodes of the steps before had some, and no ledger counts those that are dead
        if self._freed is not None:
            # Once for all, before the loop goes on: to follow a schedule takes time, and leaves dead tuples.
            freed, self._freed = self._freed, None
            self._replace(rule, with_freed(rule, freed))
        if self.spare.is_in_the_way(rule, action):
            self.spare.drop(rule)
        is_stored = isinstance(action, Forward) and action.snapshot and action.kind == "restart"
        stored = self.disk.bytes_here(rule.plan.sizes.state, action.tier) if is_stored else 0
        with self._beside(rule, self._excused(rule) if rule.records else 0):
            over = max(0, self._ledger.live + stored - self._ledger.limit)
        # What a storage of the user gave up may have been no memory.
        before = rule.position
        return over > 0 and (rule.shed(over) > 0 or rule.position is not before)

    def sweep(self, rule: Any, index: int, record: TapedStep, seeds: list[Any], *, retain: bool) -> Any:
        """
        Sweep a step, as `TapedStep.sweep` does it, within the bound but for what the function alone takes as well.

        Raises:
            BudgetError: There is no room for it, as it saved more than planned, or as others took memory.
        """
        if self._ledger.limit is None:
            return record.sweep(rule.cotangent, seeds, retain=retain)
        self.waiting.let_go()
        alone = held.alone_bytes(rule, self._ledger)
        if record.tape.pager is not None:
            with self._beside(rule):
                self._prepare(rule, index, record, alone)
        with self._ledger.beside(alone) if alone else nullcontext():
            found = record.sweep(rule.cotangent, seeds, retain=retain)
        self.waiting.hold(found[0])
        return found

    def _prepare(self, rule: Any, index: int, record: TapedStep, alone: int) -> None:
        """Make room for the sweep of a step, but for bytes that the function alone takes."""
        ledger, pager, sizes = self._ledger, record.tape.pager, rule.plan.sizes
        pager.budget = pager.budget or self._allowed  # of a retained step it may have fitted in the sweep before
        assert ledger.limit is not None
        peak = ledger.live + sizes.sweep - sizes.saved - alone
        if peak > ledger.limit:
            lent = not rule.position.reversed and not all(pair is None or pair[1] for pair in rule.cotangent)
            peak = record.forecast(lent) - alone
            peak -= ledger.relieve(peak - ledger.limit)
        if peak <= ledger.limit and not is_paged(record):
            pager.budget = None  # it fits, and what a pager asks for beforehand is more than a sweep takes
        if peak > ledger.limit and not (pager.budget is not None and pager.budget.disk):
            raise self._refusal(rule, index, record, peak)

    def settle(self, rule: Any) -> None:
        """Give up as much as any other process did between the two sweeps, so that all follow one schedule."""
        rule.snapshots.unreserve()  # what is not stored now was needed in the forward sweep, and what is deleted goes
        most, least = agree((self.given_up, -rule.plan.sizes.lent_swept)) if self.bounded else (0, 0)
        if -least < rule.plan.sizes.lent_swept:
            less.need_less(rule)
        self._give_up(rule, lambda: self.given_up >= most)
        if most:
            self.stale = self.lean = True  # those for whom a loop did with less may be gone by now

    def retain(self, rule: Any) -> None:
        """Make room for a sweep that leaves behind what another one begins with, as does the tape around the loop."""
        if (limit := self._ledger.limit) is not None:
            others = self._ledger.live - held.counted_bytes(rule)
            over = others + rule.plan.sizes.restart + rule.plan.predicted_peak_bytes - limit
            if over + sum([record.nbytes for record in rule.records.values()]) > 0:
                less.store_last(rule)
            rule.shed(over)
        self.settle(rule)
        self.spare.drop(rule)  # another sweep begins with the saved values, which are not given up from now on
        must = self.stale or held.count_at_hand(rule) > 0  # some steps have to run again, and the next sweep runs all
        # A better plan, as what comes after the loop stays beside it; where none fits, it goes on.
        self.stale, self.lean = must or self.bounded, self.lean or (self.bounded and not must)
        self._stays = rule.plan.sizes.restart

    def shed(self, rule: Any, nbytes: int) -> int:
        """Give up at least *nbytes* bytes of what a loop holds if it can; return how many it gave up."""
        if nbytes <= 0 or rule.sheddable <= 0:
            return 0
        before = self._ledger.live
        with self._in_work.giving_up(rule):
            for inner in loops_inside(rule, self._ledger):
                inner.shed(nbytes - (before - self._ledger.live))  # of its steps some run again, and not all of a step
            short = self._ledger.live > before - nbytes
            if short and self.spare.is_there and rule.position.forward_ended and not self._widens(rule):
                data, is_least = rule.plan.sizes.data, not held.movable_bytes(rule)
                # Code after the loop may ask for more, bit by bit, and without that state there is no more to give.
                beyond = held.beyond_initial_bytes(rule) + held.last_bytes(rule)
                if (is_least and beyond <= data) or (nbytes <= data and self.runs):
                    self.spare.drop(rule)
            self._give_up(rule, lambda: before - self._ledger.live >= nbytes, nbytes - (before - self._ledger.live))
            less.page(rule, nbytes - (before - self._ledger.live))
        self._count(rests=not self.runs)
        self._beyond.changed(rule)
        return before - self._ledger.live

    def _widens(self, rule: Any) -> bool:
        """Return whether a step has saved more than planned, as others may, or the one in work does."""
        planned = rule.plan.sizes.saved + rule.plan.sizes.shared
        return self.spare.grown or (self.runs and self._in_work.kept > planned)

    def _give_up(self, rule: Any, is_enough: Callable[[], bool], nbytes: int = 0) -> int:
        """Let a loop do with less, snapshots first, until it is enough or there is no more; return the bytes freed."""
        before, ways, count = self._ledger.live, less.ways(rule, nbytes), self.given_up
        while not is_enough() and any(way() for way in ways):
            self.given_up += 1
        freed = before - self._ledger.live
        if self.given_up > count:
            self._freed = (self._freed or 0) + freed
        return freed

    def forget(self, rule: Any, kept: range = range(0)) -> None:
        """Give up the saved values at hand of all steps but those that are *kept*."""
        for step in [step for step in rule.records if step not in kept]:
            record = rule.records.pop(step)
            if record.tape.pager is not None:
                record.tape.pager.close()

    def plan_again(self, rule: Any) -> bool:
        """
        Choose the schedule anew, from where the loop stands and what it may hold now.

        Returns:
            Whether the loop went back to its initial state, so that it may come to where it has been.

        Raises:
            BudgetError: Nothing fits.
        """
        is_lean, self.lean = self.lean, False
        self._replace(rule, choose_or_go_on(rule, self._ledger, self._unseen, self._stays, is_lean=is_lean))
        # What it gave up meanwhile, for others that went to disk, is known to that plan.
        self._freed, self.stale = None, False
        more = rule.plan.buffer - rule.snapshots.buffer_nbytes
        if more > 0 and (self._ledger.limit is None or self._ledger.live + more <= self._ledger.limit):
            rule.snapshots.resize_buffers(rule.plan.buffer)  # which code after the loop had no room for
        went_back, self.spare.went_back = self.spare.went_back, False
        return went_back

    def ended(self, rule: Any) -> None:
        """Tell what a loop of unknown length is going to do, once that is known."""
        if rule.position.forward_ended:
            self._replace(rule, of_known_length(rule))

    def goes_on(self, rule: Any, reverse: int = 0) -> None:
        """Tell what a loop runs from where it was brought to, and so many *reverse* steps more than were planned."""
        if self._ledger.report is not None:
            self._replace(rule, from_here(rule, reverse))

    def sheddable_bytes(self, rule: Any) -> int:
        """Return the bytes that a loop could do without; none in a sweep in which other processes take part."""
        is_bound = self.runs and not is_alone()
        return 0 if is_bound else held.sheddable_bytes(rule) + int(rule.snapshots.buffer_nbytes)

    def _replace(self, rule: Any, plan: Plan) -> None:
        """Give a loop a plan, and tell it to the report, which knows by now what code after the loop has taken."""
        rule.plan = self.whole.changed(rule, plan)
        self.disk.promise(rule)
        rule.watch.changed(rule.plan)

    def _refusal(self, rule: Any, index: int, record: TapedStep, peak: int) -> BudgetError:
        """Return the error for a step that does not fit."""
        assert self._allowed is not None
        assert self._ledger.limit is not None
        # With less than a schedule takes that was asked for it may run, but every step of it may ask for more.
        peak = max(peak, rule.plan.least - self._ledger.left_out)
        most = peak, self._ledger.live - held.counted_bytes(rule) - record.nbytes
        allowed = replace(self._allowed, memory=self._ledger.binding(self._allowed.memory))
        return describe_larger(index, rule.plan.sizes, allowed, self._ledger.limit, *most, grown=self.spare.grown)
