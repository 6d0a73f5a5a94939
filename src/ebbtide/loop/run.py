"""Follows a schedule: runs steps, keeps snapshots, and sweeps in reverse."""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, final

from ebbtide.arrays.context import entered
from ebbtide.errors import DeterminismError, MutationError, ScheduleError
from ebbtide.ledger import SNAPSHOTS
from ebbtide.loop.collect import Collector, emit, give_up
from ebbtide.loop.plan import Plan
from ebbtide.loop.progress import Bar
from ebbtide.loop.state import checksum_of, pack, unpack
from ebbtide.loop.steps import Stepper, TapedStep
from ebbtide.schedules import Copy, EndForward, EndReverse, Forward, Move, Position, Reverse, Revolve
from ebbtide.storage import Memory, Storage
from ebbtide.tape.joint import JointRule
from ebbtide.tape.node import Node
from ebbtide.tape.pager import Pager


@final
class LoopRule(JointRule):
    """
    A time loop on a tape: its forward sweep has been run, and its reverse sweep follows the schedule.

    Args:
        stepper: Runs steps.
        plan: Schedule and sizes.
        storage: Where snapshots go.
        ledger: The account.
        links: Where cotangents go: see `Links`.
        collect_every: Steps between collections of garbage, for users' code that needs it.
        progress: Whether to show bars.
        theirs: Whether the storage is the user's, who closes it.

    Memory:
        Snapshots, and the saved values of the steps that the schedule keeps.
    """

    __slots__ = (
        "__weakref__", "_bar", "_bypass", "_collect_every", "_expected", "_finalizer", "_forms", "_last", "_ledger",
        "_mark", "_name", "_output_checks", "_ran", "_records", "_state", "_stepper", "_storage", "_turns", "cotangent",
        "emitted", "links", "plan", "position", "progress",
    )  # fmt: skip

    def __init__(
        self,
        stepper: Stepper,
        plan: Plan,
        storage: Storage | None,
        ledger: Any,
        collect_every: int | None,
        progress: Any,
        *,
        theirs: bool = False,
    ) -> None:
        self.plan = plan
        self.position = Position(steps=plan.steps)
        self.links: Any = None
        self.progress = progress
        self.emitted: list[Any] = []
        self.cotangent: list[Any] = []
        self._stepper = stepper
        self._storage: Storage = Memory() if storage is None else storage
        self._ledger = ledger
        self._collect_every = collect_every
        self._ran = 0
        self._state: list[Any] = []
        self._records: dict[int, TapedStep] = {}
        self._forms: dict[int, list[Any]] = {}
        # The checksum of the state before the last step that was taped: the next one must lead to it.
        self._expected: tuple[int, Any] | None = None
        assert stepper.region is not None
        self._bypass = stepper.region.bypass()
        self._bar: Bar | None = None
        # A hash of each step's output, and of the state before and after the last step: what is run again must agree.
        self._output_checks = array("q", bytes(8 * plan.steps if stepper.outputs else 0))
        self._last: tuple[Any, Any] | None = None
        self._turns, self._mark = 0, None
        self._name = f"{id(self):x}"
        # The sweep may never come: the loop's result may go unused, or an error or a dropped pullback end it.
        self._finalizer = weakref.finalize(self, give_up, self._storage, self._forms, self._name, ledger, theirs)
        self._finalizer.atexit = False

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return "timeloop"

    @property
    def need(self) -> int:
        """Bytes that the reverse sweep takes beside what is held now."""
        sizes = self.plan.sizes
        # Held already: the saved values of the last step, and the cotangent that the sweep starts from.
        taped = sizes.saved if self._records else 0
        return sizes.sweep - taped + sizes.gradients

    @property
    def sheddable(self) -> int:
        """Bytes of the snapshots in memory beyond the first."""
        if not isinstance(self.plan.schedule, Revolve) or not self._storage.memory_nbytes:
            return 0
        return max(0, len(self.position.snapshots) - 1) * self.plan.sizes.state

    def shed(self, nbytes: int) -> int:
        """Go on with fewer snapshots."""
        each = max(1, self.plan.sizes.state)
        count = len(self.position.snapshots) - min(-(-nbytes // each), self.sheddable // each)
        if self.sheddable == 0 or count >= len(self.position.snapshots):
            return 0
        fewer = Revolve(count)
        given_up = fewer.find_surplus(self.position)
        for step in given_up:
            self._drop(step)
        kept = tuple(s for s in self.position.snapshots if s.step not in given_up)
        self.position = replace(self.position, snapshots=kept)
        left = fewer.forward_steps_left(self.position)
        steps = self._ran + left
        change = steps - self.plan.predicted_steps_forward
        peak = self.plan.predicted_peak_bytes - len(given_up) * each
        self.plan = replace(
            self.plan, schedule=fewer, snapshots=count, predicted_steps_forward=steps, predicted_peak_bytes=peak
        )
        if self._ledger.report is not None:
            self._ledger.report.plan_changed(self.plan, change)
        return len(given_up) * each

    def inside(self) -> list[Node]:
        """Return the last nodes of the steps whose saved values are held."""
        steps = self._records.values()
        return [node for step in steps for node in step.state_nodes + step.output_nodes if node is not None]

    @property
    def statics(self) -> dict[int, Any]:
        """Static values met so far, by the address of their nodes."""
        return self._bypass.statics

    # Forward.

    def run_forward(self, state: list[Any], first: Any) -> list[Any]:
        """
        Run the forward sweep.

        Args:
            state: Leaves of the initial state, owned by the loop; emptied.
            first: What `first_step` gave: the taped first step with its results, so that it is not run twice.

        Returns:
            Leaves of the final state.
        """
        # Taken out of the list, so that no caller's name keeps the initial state alive.
        self._state = state[:]
        state.clear()
        self._bar = Bar("forward", self.plan.steps, self.progress)
        with self._bar:
            while not self.position.forward_ended:
                self._act(self._next(), first)
        final, self._state = self._state, []
        return final

    def _next(self) -> Any:
        action = self.plan.schedule.next_action(self.position)
        if action is None:
            raise ScheduleError(
                f"{self.plan.schedule} gives no action at {self.position}, where the loop is not finished."
            )
        return action

    def _act(self, action: Any, first: Any = None, retain: bool = False, sink: Any = None) -> None:
        """Follow one action of the schedule."""
        after = self.position.after(action)
        # A pure function of the position that comes to one twice never ends (Brent's way to find a cycle).
        self._turns += 1
        if after == self._mark:
            raise ScheduleError(f"{self.plan.schedule} goes round in circles: {action} leads to {after} once more.")
        if not self._turns & (self._turns - 1):
            self._mark = after
        if isinstance(action, Forward):
            if action.snapshot:
                self._put(action.start)
            if action.save:
                for index in range(action.start, action.stop):
                    self._tape(index, first if index == 0 else None)
            else:
                self._advance(action.start, action.stop, first if action.start == 0 else None)
        elif isinstance(action, (Copy, Move)):
            keep = isinstance(action, Copy) or (retain and action.step == 0)
            self._state = self._get(action.step, keep)
        elif isinstance(action, Reverse):
            if after.state is None:
                self._state = []  # the state after the last step is of no use any more
            for index in range(action.start - 1, action.stop - 1, -1):
                self._reverse(index, retain, sink)
        elif not isinstance(action, (EndForward, EndReverse)):
            raise ScheduleError(f"The loop does not know the action {action}.")
        self.position = after

    def _advance(self, start: int, stop: int, first: Any) -> None:
        if first is not None:
            record, self._state, output = first.take()
            self._bypass.statics.update({key: met for key, (_, met) in record.tape.statics.items()})
            del record
            self._emit(start, output)
            self._count(start)
            start += 1
        assert self._stepper.region is not None
        with self._stepper.region.running(self._bypass):
            for index in range(start, stop):
                self._state, output = self._stepper.plain(index, self._state, self._bypass)
                self._emit(index, output)
                self._count(index)

    def _tape(self, index: int, first: Any) -> None:
        again = self.position.forward_ended
        if first is not None:
            record, self._state, output = first.take()
        else:
            last = index == self.plan.steps - 1 and not again
            before = checksum_of(self._state) if again or last else None
            pager = Pager(self._ledger, None) if self._ledger.watched else None
            record, self._state, output = self._stepper.taped(index, self._state, pager)
            if again:
                self._check(index)
            elif last:
                self._check_last(index, (before, checksum_of(self._state)))
            if before is not None:
                self._expected = index, before
        self._records[index] = record
        if not again:
            self._bypass.statics.update({key: met for key, (_, met) in record.tape.statics.items()})
        self._emit(index, output)
        self._count(index)

    def _check_last(self, index: int, states: tuple[Any, Any]) -> None:
        """Compare what the last step started from and led to with those of the first forward sweep."""
        if self._last is None:
            self._last = states
        elif self._last != states:
            raise self._changed(index)

    def _check(self, index: int) -> None:
        """Compare the result of a step that was run again with what the sweep before started from."""
        expected = self._expected
        if expected is not None and expected[0] == index + 1 and expected[1] != checksum_of(self._state):
            raise self._changed(index)

    def _changed(self, index: int) -> DeterminismError:
        return DeterminismError(
            f"Step {index} gave another result when it was run again, so the gradient would be wrong. A step "
            "depends on its state, its input and static values only: make random numbers from the step index, "
            "and put what changes from step to step into the state."
        )

    def _emit(self, index: int, output: list[Any]) -> None:
        """Keep the output of a step; of one that is run again check that it is the same."""
        if not self._stepper.outputs:
            return
        check = hash(checksum_of(output))
        if self.position.forward_ended or self.links is not None:
            if self._output_checks[index] != check:
                raise self._changed(index)
            return
        self._output_checks[index] = check
        emit(self.emitted, index, self.plan.steps, output)

    def _count(self, index: int) -> None:
        self._ran += 1
        report = self._ledger.report
        if report is not None:
            report.steps_forward += 1
        if self._bar is not None and not self.position.forward_ended:
            self._bar.advance()
        if self._collect_every and self._ran % self._collect_every == 0:
            gc.collect()

    # Snapshots.

    def _put(self, step: int) -> None:
        packed = pack(self._state)
        before = self._storage.memory_nbytes
        written = self._storage.put(self._key(step), packed.arrays)
        self._forms[step] = packed.forms
        held = self._storage.memory_nbytes - before
        self._ledger.add(SNAPSHOTS, held)
        if self._ledger.report is not None and not held:
            self._ledger.report.bytes_written += written

    def _get(self, step: int, keep: bool) -> list[Any]:
        before = self._storage.memory_nbytes
        arrays = self._storage.get(self._key(step)) if keep else self._storage.take(self._key(step))
        self._ledger.add(SNAPSHOTS, self._storage.memory_nbytes - before)
        forms = self._forms[step] if keep else self._forms.pop(step)
        return unpack(arrays, forms)

    def _drop(self, step: int) -> None:
        before = self._storage.memory_nbytes
        self._storage.delete(self._key(step))
        self._ledger.add(SNAPSHOTS, self._storage.memory_nbytes - before)
        del self._forms[step]

    def _key(self, step: int) -> str:
        return f"{self._name}-{step}"

    # Reverse.

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Run the reverse sweep and yield the cotangents of initial state, inputs and static values."""
        del node
        if self.position.finished:
            self._begin_again()
        collector = Collector()
        count = self.links.state_count
        self.cotangent = cotangents[:count]
        outputs = [None if pair is None else pair[0] for pair in cotangents[count:]]
        cotangents.clear()
        ledger = self._ledger
        ledger.phase = "reverse"
        self._bar = None
        region = self._stepper.region
        assert region is not None
        try:
            with Bar("reverse", self.plan.steps, self.progress) as bar, entered(capture=region.around):
                sink = outputs, collector, bar
                while not self.position.finished:
                    self._act(self._next(), None, retain, sink)
        except BaseException:
            self.close()
            # Nothing to go on from: another pull of a retained loop is an error.
            self.position = Position(
                steps=self.plan.steps, reversed=self.plan.steps, state=None, forward_ended=True, finished=True
            )
            raise
        if not retain:
            self.close()
        yield from self.links.give(self.cotangent, collector)

    def _begin_again(self) -> None:
        """Start over for another pull of a retained loop, from its first snapshot."""
        if not self._forms and not self._records:
            raise MutationError("The reverse sweep of a time loop cannot be run again: its snapshots are gone.")
        if self._records:
            self.position = Position(steps=self.plan.steps, state=None, saved=(0, self.plan.steps), forward_ended=True)
        else:
            self.position = Position(steps=self.plan.steps, state=0)
            self._state = self._get(0, keep=False)
        self._expected = self._mark = None

    def _reverse(self, index: int, retain: bool, sink: Any) -> None:
        outputs, collector, bar = sink
        stored = retain and self.plan.snapshots == 0
        record = self._records[index] if stored else self._records.pop(index)
        statics = self.links.statics
        unknown = [key for key in record.tape.statics if key not in statics]
        if unknown:
            raise DeterminismError(
                f"Step {index} used an array from outside, when it was run again, that it had not used before. What "
                "a step uses may depend on its state, its input and static values only."
            )
        seeds = [None if g is None else g[index] for g in outputs]
        state, x, sums = record.sweep(self.cotangent, seeds, retain=stored)
        if record.tape.pager is not None and not stored:
            record.tape.pager.close()
        self.cotangent = state
        collector.add(sums)
        self.links.keep_inputs(index, x, collector)
        bar.advance()

    def close(self) -> None:
        """Give up snapshots and saved values."""
        self._records.clear()
        self._state = []
        self._finalizer()
