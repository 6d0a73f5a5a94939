"""Follows a schedule: runs steps, keeps snapshots, and sweeps in reverse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, final

from ebbtide.arrays.context import entered
from ebbtide.errors import ScheduleError
from ebbtide.loop.holding import ahead
from ebbtide.loop.holding.held import holding, needed_bytes
from ebbtide.loop.holding.less import need_less
from ebbtide.loop.holding.snapshots import Snapshots
from ebbtide.loop.loss import Loss
from ebbtide.loop.planning.plan import Plan
from ebbtide.loop.resuming.directory import ResumeDirectory
from ebbtide.loop.resuming.restore import begin_again, restore_forward, restore_reverse
from ebbtide.loop.resuming.resume import Resumption
from ebbtide.loop.room import Room
from ebbtide.loop.stepping.collect import Collector, apart, emit
from ebbtide.loop.stepping.progress import Watch
from ebbtide.loop.stepping.steps import Stepper, TapedStep
from ebbtide.loop.stepping.verify import Verifier
from ebbtide.schedules import Copy, Delete, EndForward, EndReverse, Forward, Move, Position, Reverse
from ebbtide.tape.joint import Holding, JointRule
from ebbtide.tape.node import Node


@final
class LoopRule(JointRule):
    """
    A time loop on a tape: its forward sweep has been run, and its reverse sweep follows the schedule.

    Args:
        stepper: Runs steps.
        plan: Schedule and sizes.
        snapshots: Where snapshots go.
        verifier: Compares what is run again.
        ledger: The account.
        room: Keeps the budget.
        until: Says of a state whether the loop ends there; None for a loop of `plan.steps` steps.
        watch: Who looks at it.
        resumption: Its journal; None where it is not to be resumed.
        directory: That of its journal if it is this loop's alone: emptied when the last reverse sweep is over.

    Memory:
        Snapshots, and the saved values of the steps that the schedule keeps.
    """

    __slots__ = (
        "__weakref__", "_directory", "_ledger", "_mark", "_region", "_resumption", "_turns", "_until",
        "bypass", "cotangent", "emitted", "links", "loss", "plan", "position", "prefix", "ran", "records", "room",
        "snapshots", "state", "stepper", "verifier", "watch",
    )  # fmt: skip

    has_reserve = True

    def __init__(
        self, stepper: Stepper, plan: Plan, snapshots: Snapshots, verifier: Verifier, ledger: Any, room: Room,
        until: Any, watch: Watch, resumption: Resumption | None = None, directory: ResumeDirectory | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.ran = plan, plan.measuring_steps
        self.position = Position(steps=plan.steps, open=until is not None)
        self.links: Any = None
        self.emitted: list[Any] = []
        self.cotangent: list[Any] = []
        self.stepper, self.snapshots, self.verifier = stepper, snapshots, verifier
        self.loss = Loss(stepper, ledger, plan.sizes.sweep)
        self._ledger, self.room, self._until, self.watch = ledger, room, until, watch
        self._resumption, self._directory = resumption, directory
        self.state: list[Any] = []
        self.records: dict[int, TapedStep] = {}  # the steps whose saved values are at hand
        # From where a retained sweep begins again: what is kept of the first steps.
        self.prefix: Position | None = None
        self._region: Any = stepper.region
        self.bypass = self._region.bypass()
        self._turns, self._mark = 0, None

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return "timeloop"

    def needs(self, owned: bool, given: int) -> int:
        """See `JointRule.needs`."""
        return needed_bytes(self) - given

    @property
    def kept(self) -> Iterable[Any]:
        """See `JointRule.kept`."""
        return self.stepper.kept.cells

    @property
    def sheddable(self) -> int:
        """Bytes that it could do without."""
        return self.room.sheddable_bytes(self)

    @property
    def is_at_work(self) -> bool:
        """Whether a sweep of it is under way."""
        return self.room.runs

    def holding(self, bare: bool) -> Holding:
        """See `JointRule.holding`."""
        return holding(self, bare)

    def shed(self, nbytes: int) -> int:
        """Go on with less in memory."""
        return self.room.shed(self, nbytes)

    def need_less(self) -> bool:
        """Have loops in the steps hold less when these run again."""
        return need_less(self)

    def inside(self) -> list[Node]:
        """Return the last nodes of the steps whose saved values are held."""
        steps = [*self.records.values(), *self.snapshots.steps().values()]
        return [node for step in steps for node in step.results]

    @property
    def statics(self) -> dict[int, Any]:
        """Static values met so far, by the address of their nodes."""
        return self.bypass.statics

    # Forward.

    def run_forward(self, state: list[Any], first: Any) -> list[Any]:
        """
        Run the forward sweep.

        Args:
            state: Leaves of the initial state, owned by the loop; emptied.
            first: What `first_steps` gave: the taped first step with its results, so that it is not run twice.

        Returns:
            Leaves of the final state.
        """
        # No caller's name keeps the initial state alive.
        self.state = state[:]
        state.clear()
        if self._resumption is not None:
            restore_forward(self, self._resumption, first)
            first = None if self.position.state else first
            if self.position.open and self.position.state and self._is_end():
                self.position = self.position.ended(self.position.state)
        self.room.enlist(self)
        with self.watch.sweep("forward", None if self.position.open else self.plan.steps):
            while not self.position.forward_ended:
                self.follow(self._next(), first)
        final, self.state = self.state, []
        if not self.records:
            self.verifier.ended(self.position.steps, final)
        if not ahead.has_all_saved(self.position):
            self.stepper.end_forward(self.statics, self.position.steps * self.plan.sizes.state)
        if self._resumption is not None:
            self._resumption.final(self.position.steps, final, self.emitted, self.ran)
        return final

    def _next(self) -> Any:
        if self.room.stale and self.room.plan_again(self):
            self._mark = None
        action = None
        while action is None or self.room.make_for(self, action):
            action = ahead.next_action(self.plan.schedule, self.position, self.snapshots.lost)
        return action

    def follow(self, action: Any, first: Any = None, sink: Any = None) -> None:
        """Follow one action of the schedule."""
        action = ahead.narrowed(action) if self.room.bounded else action  # between steps the plan may have to change
        before, after, lost = self.position, self.position.after(action), len(self.snapshots.lost)
        loads, loaded = isinstance(action, (Copy, Move)), after
        # A pure function of the position that comes to one twice never ends (Brent's way to find a cycle).
        self._turns += 1
        if after == self._mark:
            raise ScheduleError(f"{self.plan.schedule} goes round in circles: {action} leads to {after} once more.")
        if isinstance(action, Forward):
            after = self._forward(action, after, first)
        elif loads:
            after = self._load(action, after)
        elif isinstance(action, Delete):
            self.delete(action)
        elif isinstance(action, Reverse):
            if after.state is None:
                self.state = []  # the state after the last step is of no use any more
            for index in range(action.start - 1, action.stop - 1, -1):
                self._reverse(index, sink)
            after = after if self.position is before else self.position.after(action)
        elif not isinstance(action, (EndForward, EndReverse)):
            raise ScheduleError(f"The loop does not know the action {action}.")
        self.position = self.room.fallback.without_lost(self, after)
        if not self._turns & (self._turns - 1):
            self._mark = self.position  # and not where a snapshot would have led to that was lost
        if len(self.snapshots.lost) > lost or (loads and after is not loaded):  # or a journal let it go
            self.room.goes_on(self)

    def delete(self, action: Delete) -> None:
        """Delete a snapshot, unless another sweep begins with it."""
        if not ahead.is_among(self.prefix, kept := ahead.stored(self.position, action.step)):
            self.snapshots.drop(kept)

    def _forward(self, action: Forward, after: Position, first: Any) -> Position:
        """Run steps, as far as the loop goes; return the position after that."""
        before = self.position
        given = first if action.start == 0 else None
        if action.drop:
            self.room.forget(self)
        if action.snapshot and action.kind == "restart":
            vital = not any(kept.kind == "restart" and kept.step < action.start for kept in before.snapshots)
            self.snapshots.put_state(action.start, self.state, action.tier, vital=vital)
            self.loss.stored(action.start)
        if action.save or (action.snapshot and action.kind == "saved"):
            done = self._tape(action, given)
        else:
            done = replace(action, stop=self._advance(action, given))
        if self.position is not before or done != action:
            after = self.position.after(done)
        # Told at once: what the schedule does next may be to delete a snapshot for the steps to come.
        is_last = done.stop < action.stop or (after.open and done.stop < after.steps and self._is_end())
        return after.ended(done.stop) if is_last else after

    def _is_end(self) -> bool:
        """Return whether an open loop ends with the working state; what that uses from outside has no derivative."""
        with self._region.running(self.bypass), self.bypass.forgetting():
            return self.stepper.holds(self._until, self.state)

    def _advance(self, action: Forward, first: Any) -> int:
        """Run steps whose values are not saved; return where it ended."""
        index, plain = action.start, self.room.whole.plain_step(self)
        if first is not None:
            record, self.state, output = first.take()
            self.bypass.note(record.tape)
            self.verifier.emitted(index, output)
            self._emit(index, output)
            del record, output
            self._count(index)
            index += 1
        with self._region.running(self.bypass):
            while index < action.stop and not (self.position.open and index > action.start and self._is_end()):
                self.state, output = plain(index, self.state, self.bypass)
                self.verifier.emitted(index, output)
                self._emit(index, output)
                del output
                self._count(index)
                index += 1
        return index

    def _tape(self, action: Forward, first: Any) -> Forward:
        """Run steps and keep what they save; return what was done, which is less where there is no room."""
        index, done, again = action.start, action, self.position.forward_ended
        while index < action.stop and not (self.position.open and index > action.start and self._is_end()):
            entering = list(self.state) if self.room.bounded else []
            if first is not None:
                (record, self.state, output), first = first.take(), None
            else:
                self.loss.taping(index, self.state)
                self.verifier.before(index, self.state, again=again)
                record, self.state, output = self.room.taped(self, index)
                if again:
                    self.verifier.taped(index, self.state)
            if not again:
                self.bypass.note(record.tape)
            done = self.room.judge(self, action, index, record)
            if index == self.position.steps - 1 and not self.position.open:
                self.verifier.ended(self.position.steps, self.state)
            record.emitted = self.verifier.emitted(index, output)
            if done.save:
                self.records[index] = record
            elif done.snapshot and done.kind == "saved":
                self.snapshots.put_saved(index, record, done.tier)
            del record
            if done.kind != action.kind:
                self.room.make_for(self, done)
                self.snapshots.put_state(index, entering, done.tier)
            self._emit(index, output)
            del entering, output  # before the next step runs
            self._count(index)
            index += 1
        return replace(done, stop=index)

    def _load(self, action: Copy | Move, after: Position) -> Position:
        """Load a snapshot; return the position after that."""
        step, kept = action.step, ahead.stored(self.position, action.step)
        keep = isinstance(action, Copy) or ahead.is_among(self.prefix, kept) or self.room.spare.stays(self, kept)
        if kept.kind == "saved":
            loaded: Any = self.snapshots.get_saved(step, keep=keep)
            self.records |= {} if loaded is None else {step: loaded}
        else:
            loaded = self.snapshots.get_state(step, keep=keep)
            self.state = loaded or []
            self.verifier.loaded(step)
        if loaded is None:
            # What is lost is not there: the schedule goes on from what is left, and from no working state.
            self.plan, left = ahead.without(self.plan, self.position, kept)
            return left
        self.loss.loaded(step, kept.kind, self.snapshots.error, self.verifier)
        if kept.tier in self.snapshots.ahead:
            self.snapshots.prefetch(ahead.reads_after(self.plan.schedule, after, self.snapshots.ahead))
        return after

    def _emit(self, index: int, output: list[Any]) -> None:
        """Keep the output of a step that is run for the first time."""
        if self.stepper.outputs and not self.position.forward_ended and self.links is None:
            known = None if self.position.open else self.plan.steps
            emit(self.emitted, index, known, output if known is not None else apart(output, self.state))

    def _count(self, index: int) -> None:
        """Count a step that has been run, and keep where the loop is if it may be resumed."""
        self.ran += 1
        if not self.records and not (index + 1) % self.verifier.waypoints.spacing:  # what is at hand runs no more
            self.verifier.passed(index + 1, self.state)
        if not self.position.forward_ended:
            if self._resumption is not None:
                self._resumption.meet(index, list(self.bypass.statics.values()))
                self._resumption.forward(index + 1, self.state, self.emitted, self.ran)
            self.watch.passed()
        self.watch.ran()

    # Reverse.

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Run the reverse sweep and yield the cotangents of initial state, inputs and static values."""
        del node
        if self.prefix is not None or self.position.finished:
            begin_again(self)
        self._mark = None  # of a loop that gave up what its last step saved, that step is run once more
        self.room.settle(self)
        if retain and self.prefix is None:
            self.room.retain(self)
            self.prefix = ahead.prefix_of(self.position)
        self.room.whole.turns(self)
        collector, count = Collector(), self.links.state_count
        self.cotangent = cotangents[:count]
        outputs = [None if pair is None else pair[0] for pair in cotangents[count:]]
        if self._resumption is not None and not retain and self.prefix is None:
            restore_reverse(self, self._resumption, cotangents, collector)
        cotangents.clear()
        self._ledger.phase = "reverse"
        try:
            self.stepper.begin_reverse(self.statics)
            inside = self._region.sweeping(), entered(ledger=self._ledger)
            with self.watch.sweep("reverse", self.position.steps), self.room.limited(), inside[0], inside[1]:
                if not self.room.stale:  # else another schedule says what comes first
                    self.snapshots.prefetch(ahead.reads_after(self.plan.schedule, self.position, self.snapshots.ahead))
                self.room.waiting.hold(self.cotangent)
                while not self.position.finished:
                    self.follow(self._next(), sink=(outputs, collector))
        except BaseException as error:
            self.fail(error)
            raise
        self.loss.tell()
        self.position = self.prefix if retain and self.prefix else self.position  # it rests as before
        if not retain:
            self.close()
        if self._directory is not None:
            self._directory.finish(self if retain else None)
        yield from self.links.give(self.cotangent, collector)

    def _reverse(self, index: int, sink: Any) -> None:
        outputs, collector = sink
        at_hand = self.prefix is not None and ahead.is_at_hand(self.prefix, index)
        record = self.records[index] if at_hand else self.records.pop(index)
        # A step that ran again goes, though another sweep begins with what it saved the first time.
        retained = at_hand or (self.prefix is not None and self.snapshots.holds(index, record))
        seeds = [None if g is None else g[index] for g in outputs]
        again = self.loss.reversing(index, self.cotangent)
        self.cotangent, x, sums = self.room.sweep(self, index, record, seeds, retain=retained)
        self.links.check_step(index, record, sums)
        if retained:
            self.snapshots.put_away(index, record)
        elif record.tape.pager is not None:
            record.tape.pager.close()
        self.verifier.swept(index, record.emitted)
        self.stepper.inputs.swept(index, record.read)
        collector.add(sums)
        if again is not None:
            self.loss.reversed(again, seeds, self.cotangent, sums, collector.static_sums)
        self.links.keep_inputs(index, x, collector)
        if record.tape.pager is not None:
            self.room.waiting.gather(collector)
        self.watch.passed()
        if self._resumption is not None and self.prefix is None:
            running = [collector.static_sums.get(key) for key in self.links.statics]
            start = self.verifier.start_of(index)
            self._resumption.reverse(index, self.cotangent, running, collector.input_sums, self.ran, start)

    def fail(self, error: BaseException | None = None) -> None:
        """Give up all but the journal, which another call may take up; see `Resumption.fail`."""
        self.close()
        # Nothing to go on from: another pull of a retained loop is an error.
        self.position = ahead.finished(self.position.steps)
        if self._resumption is not None:
            self._resumption.fail(error, self._directory)

    def close(self) -> None:
        """Give up snapshots and saved values."""
        self.room.dismiss(self)
        self.records.clear()
        self.state, self.prefix = [], None
        self.snapshots.close()
