"""
The time loop of a linearized function.

Tangents go through the steps in their order, so that there is nothing to plan for a way back: the derivatives of the
first steps are kept, as many as there is room for, and from the state after them the other steps run again with each
tangent, which takes no more than forward mode does. What comes after the loop may take the room of the last that are
kept, which then run again, too.
"""

from __future__ import annotations

import weakref
from typing import Any, final

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import is_differentiable
from ebbtide.arrays.context import entered
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.ledger import SAVED
from ebbtide.loop.derivatives.linear_steps import KeptStep, RestartState, contiguous, stacked_rows, whole
from ebbtide.loop.stepping.collect import emit
from ebbtide.loop.stepping.progress import Watch
from ebbtide.loop.stepping.steps import Stepper
from ebbtide.loop.stepping.verify import Verifier
from ebbtide.loop.values.state import bytes_of, owned
from ebbtide.machine import free_dead_tuples
from ebbtide.tape.linear import LinearProgram, LinearRule, LinearTape
from ebbtide.tape.linear_region import Around, Pushing, node_of, pushing, split
from ebbtide.tape.node import Node
from ebbtide.tape.region import shown
from ebbtide.tape.tangent import TangentTrace

# After so many steps the dead tuples of functions like `np.roll` are freed, 6 KB of them; 2 us each time.
_TIDY = 64


@final
class LinearLoop(LinearRule):
    """
    A time loop on a linear tape.

    Args:
        tape: The tape.
        trace: The forward mode whose tangents are on it.
        stepper: Runs steps on pairs of values and tangents.
        verifier: Compares what is run again.
        watch: Who looks at it.
        most: How many of the first steps are kept at most.
        limit: Bytes that may be held in all; None for no bound.

    Memory:
        The derivatives of the steps that are kept, of the first while it runs, and the state after them. With a limit
        also the states before 0, 1, 2, 4, 8 and so on of these steps, from where others can run again when the ledger
        asks for room, as far as what is kept between two of them takes more than a state.
    """

    __slots__ = (
        "__weakref__", "_active", "_around", "_counted", "_emitting", "_finalizer", "_keeps", "_kept", "_kinds",
        "_limit", "_most", "_nodes", "_noting", "_owners", "_places", "_states", "_statics", "_stepper", "_tape",
        "_trace", "_verifier", "_watch", "emitted", "steps",
    )  # fmt: skip

    def __init__(
        self,
        tape: LinearTape,
        trace: TangentTrace,
        stepper: Stepper,
        verifier: Verifier,
        watch: Watch,
        most: int,
        limit: int | None,
    ) -> None:
        self._tape, self._trace = tape, trace
        self._around = Around.here()
        self._stepper, self._verifier, self._watch = stepper, verifier, watch
        self._most, self._limit = most, limit
        self._kept: list[KeptStep] = []
        self._owners: set[int] = set()  # of the arrays that are kept
        self._active: list[int] = []  # leaves of the state that have tangents after the steps that are kept
        self._emitting: set[int] = set()  # leaves of the outputs that have tangents in some step that is kept
        self._keeps = True  # whether the next step is kept if there is room
        self._states: list[RestartState] = []  # after the last one steps are not kept
        self._noting = Pushing(tape, stepper.constancy)  # what the steps use that run again
        self._statics: dict[int, TracedArray] = {}  # static tangents by the address of their nodes
        self._nodes: list[Node | None] = []  # of the leaves of the initial state
        self._places: list[int | None] = []  # of each leaf of the state among the operands
        self._kinds: list[ArrayType] = []  # of the results
        self.emitted: list[Any] = []
        self.steps = 0
        self._counted = [0]
        self._finalizer = weakref.finalize(self, _uncount, tape.ledger, self._counted)
        self._finalizer.atexit = False

    record_bytes = 11 * 1024  # 6 KB, and 14 of the first one

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return "timeloop"

    # At the point.

    def run(self, state: list[Any], most_steps: int, until: Any) -> list[Any]:
        """
        Run the loop, and keep the derivatives of its first steps.

        Args:
            state: Leaves of the initial state, owned by the loop; emptied.
            most_steps: The number of steps, at most.
            until: Says of a state whether the loop ends there.

        Returns:
            The values of the leaves of the final state.
        """
        tangents = [split(self._trace, leaf)[1] for leaf in state]
        self._active = [k for k, tangent in enumerate(tangents) if tangent is not None]
        self._nodes = [node_of(self._tape, tangent) for tangent in tangents]
        del tangents
        given, state = state, [self._bare(leaf) for leaf in state]
        given.clear()  # tangents of zeros, of which the nodes are enough
        known = None if until is not None else most_steps
        with self._watch.sweep("forward", known):
            while self.steps < most_steps and not (until is not None and self._stepper.holds(until, state)):
                state, output = self._keep(state) if self._keeps else self._pass(state)
                self._verifier.emitted(self.steps, output)
                emit(self.emitted, self.steps, known, output)
                del output
                self.steps += 1
                _tidy(self.steps)
                self._watch.ran()
                self._watch.passed()
        values = [split(self._trace, leaf)[0] for leaf in state]
        self._verifier.ended(self.steps, values)
        if self._states:
            self._statics = self._noting.statics | self._statics
            self._stepper.end_forward(self._noting.met, self.steps * bytes_of(values))
        if self._limit is not None:
            self._tape.ledger.lend(self)
            self.shed(self._tape.ledger.live - self._limit)  # loops in the last step may have taken its room
        return values

    def _bare(self, leaf: Any) -> Any:
        """Return a leaf without its tangent, in which a step can write tangents."""
        return shown(self._trace, split(self._trace, leaf)[0])

    def _join(self, leaf: Any, tangent: Any) -> Any:
        """Return a leaf for a step to take, which may write into it."""
        if tangent is not None:
            return TracedArray(self._trace, tangent, split(self._trace, leaf)[0])
        return leaf.frozen() if type(leaf) is TracedArray else owned(leaf)

    def _pass(self, state: list[Any]) -> tuple[list[Any], list[Any]]:
        """Run a step of which nothing is kept but what it uses from outside."""
        self._stepper.constancy.begin()
        with entered(capture=self._noting):
            after, output = self._stepper.plain(self.steps, [self._join(leaf, None) for leaf in state], None)
        values = [value for value, _ in self._noting.pairs(self._trace, after + output)]
        return [shown(self._trace, value) for value in values[: len(state)]], values[len(state) :]

    def _restart_from(self, state: list[Any], unread: int = 0) -> None:
        """Have a place to run again from before the present step, whose input is *unread* if it was read already."""
        if self._states and self._states[-1].first == self.steps:
            return
        readings = self._stepper.inputs.readings
        read = 0 if readings is None else readings.sums.total ^ unread
        nbytes = bytes_of([split(self._trace, leaf)[0] for leaf in state])
        if self._limit is not None:
            # Loops before this one keep steps as long as there is room.
            self._tape.ledger.relieve(self._tape.ledger.live + nbytes - self._limit)
        self._states.append(RestartState(self.steps, state, nbytes, read, self._verifier.total))
        self._count(nbytes)

    def _keep(self, state: list[Any]) -> tuple[list[Any], list[Any]]:
        """Run a step and keep its derivatives, if there is room for them."""
        tape, room = self._tape, None
        if self._limit is not None:
            nbytes = bytes_of([split(self._trace, leaf)[0] for leaf in state])
            if not self.steps & (self.steps - 1):  # so few that they take little
                since = self._states[-1].first if self._states else 0
                if not self.steps or sum([one.nbytes for one in self._kept[since:]]) >= nbytes:
                    self._restart_from(state)
            # Beside what is kept there are a state with its tangents, the one after it, and the record of the loop.
            room = self._limit - tape.ledger.live - 4 * nbytes - self.record_bytes
        # The first step in any case: what it leaves in a closure for later ones is told where these use it.
        if self.steps >= max(self._most, 1) or (room is not None and room <= 0):
            self._restart_from(state)
            self._keeps = False
            return self._pass(state)
        is_final = room is None and self._most > 0
        meet = None if is_final else self._noting.meet_operand  # the step may have to run again
        if not is_final:
            self._stepper.constancy.begin()
        inner = LinearTape(
            tape.level, tape.ledger, outer=tape, room=room, counted=self._owners, meet_operand=meet
        )
        leaves = {k: inner.leaf(zeros_like(split(self._trace, state[k])[0])) for k in self._active}
        with entered(capture=inner):
            before = [self._join(leaf, leaves.get(k)) for k, leaf in enumerate(state)]
            after, output = self._stepper.plain(self.steps, before, None)
        pairs = [split(self._trace, leaf) for leaf in after + output]
        nodes = [node_of(inner, tangent) for _, tangent in pairs]
        inner.close()
        self._statics = {key: outside for key, (_, outside) in inner.statics.items()} | self._statics
        if not self._most or (inner.room is not None and inner.room < 0):
            readings = self._stepper.inputs.readings
            self._restart_from(state, 0 if readings is None else readings.latest)
            self._keeps = False
        else:
            inputs = [leaf._node for leaf in leaves.values()] + [node for node, _ in inner.statics.values()]
            step = KeptStep(LinearProgram(inputs, nodes), self._active, list(inner.statics), self._owners)
            self._kept.append(step)
            self._owners.update(step.owners)
            self._count(step.nbytes)
            active = [k for k, node in enumerate(nodes) if node is not None]
            self._active = [k for k in active if k < len(state)]
            self._emitting.update(active[len(self._active) :])
        return [self._bare(leaf) for leaf in after], [value for value, _ in pairs[len(state) :]]

    def _count(self, nbytes: int) -> None:
        """Count what is held."""
        self._counted[0] += nbytes
        self._tape.ledger.add(SAVED, nbytes)

    # See `Ledger.lend`.

    @property
    def is_at_work(self) -> bool:
        """Whether it runs: it lends when it has."""
        return False

    @property
    def sheddable(self) -> int:
        """The bytes that it can do without."""
        rest = [start.nbytes for start in self._states[1:]]
        return sum(rest) + sum([step.nbytes for step in self._kept]) if self._states and self._kept else 0

    def shed(self, nbytes: int) -> int:
        """Give up at least so many bytes if it can: the last of the steps that are kept; return how many."""
        ledger = self._tape.ledger
        before = ledger.live
        while self._kept and self._states and before - ledger.live < nbytes:
            # New lists, as a push may be at the old ones.
            states = [start for start in self._states if start.first < len(self._kept)]
            gone = self._kept[states[-1].first :]
            self._count(-sum([one.nbytes for one in [*self._states[len(states) :], *gone]]))
            self._owners.difference_update(*[one.owners for one in gone])
            self._states, self._kept = states, self._kept[: states[-1].first]
        return before - ledger.live

    def operands(self) -> list[Node]:
        """Return the nodes of what the loop depends on, in the order in which `push` takes their tangents."""
        nodes = [*self._nodes, *[node_of(self._tape, tangent) for tangent in self._statics.values()]]
        found: list[Node] = []
        self._places = []
        for node in nodes:
            self._places.append(None if node is None else len(found))
            found += [] if node is None else [node]
        return found

    # At any time after.

    def record(self, operands: list[Node], results: list[Any]) -> list[Any]:
        """
        Return the results of the loop with their tangents.

        Args:
            operands: What `operands` returned.
            results: The values of the final state and the outputs.
        """
        if not operands:
            return results
        # What has no derivative, such as a Python number, stays what it is, and only its place counts.
        shown = [value if is_differentiable(value) else 0.0 for value in results]
        self._kinds = [type_of(value) for value in shown]
        tangents = self._tape.record(self, operands, [zeros_like(value)[()] for value in shown])
        # Of steps that run again nobody knows yet. What has none is none of zeros, which a root would make NaN of.
        kept = len(self._kept) == self.steps
        reached = {*self._active, *self._emitting} if kept else range(len(results))
        pairs = enumerate(zip(results, tangents, strict=True))
        has = is_differentiable
        return [TracedArray(self._trace, t, owned(v)) if k in reached and has(v) else v for k, (v, t) in pairs]

    def push(self, tangents: list[Any], saved: list[Any]) -> list[Any]:
        """See `LinearRule.push`."""
        count = len(self._places) - len(self._statics)
        found = [None if place is None else tangents[place] for place in self._places]
        tangents.clear()
        state, given = found[:count], dict(zip(self._statics, found[count:], strict=True))
        found.clear()
        outputs: list[list[Any]] = []
        kept, states = self._kept, self._states
        for step in kept:
            results = step.push(state, given)
            state = [None if t is None else contiguous(t) for t in results[:count]]
            if output := results[count:]:  # else there would be an empty list for each step
                outputs.append(output)
            results.clear()
        if len(kept) < self.steps:
            state = self._push_rest(states[-1], state, given, outputs)
        columns = zip(*outputs, strict=True)
        rows = [stacked_rows(column, kind) for column, kind in zip(columns, self._kinds[count:], strict=True)]
        return [whole(t, kind) for t, kind in zip(state, self._kinds, strict=False)] + rows

    def _push_rest(
        self, start: RestartState, tangents: list[Any], given: dict[int, Any], outputs: list[list[Any]]
    ) -> list[Any]:
        """Run the steps from a state on, with tangents."""
        first, count = start.first, len(start.state)
        values = [split(self._trace, leaf)[0] for leaf in start.state]
        stepper, verifier = self._stepper.again(first, start.read), self._verifier.again(first, start.emitted)
        stepper.begin_reverse(self._noting.met)
        again = pushing(self._trace, self._tape, stepper.constancy, given, self._around)
        with again as capture, self._watch.sweep("forward", self.steps - first):
            for index in range(first, self.steps):
                state = [self._join(shown(self._trace, v), t) for v, t in zip(values, tangents, strict=True)]
                tangents.clear()  # those that the loop begins with have no other name
                stepper.constancy.begin()
                after, output = stepper.plain(index, state, None)
                pairs = capture.pairs(self._trace, after + output)
                values, tangents = ([pair[k] for pair in pairs[:count]] for k in range(2))
                verifier.emitted(index, [value for value, _ in pairs[count:]])
                if pairs[count:]:
                    outputs.append([tangent for _, tangent in pairs[count:]])
                _tidy(index)
                self._watch.ran()
                self._watch.passed()
        verifier.ended(self.steps, values)
        return tangents


def _tidy(step: int) -> None:
    """Free the dead tuples of functions like `np.roll`, after some steps."""
    if free_dead_tuples is not None and not step % _TIDY:
        free_dead_tuples()


def _uncount(ledger: Any, counted: list[int]) -> None:
    """Uncount what was kept."""
    ledger.add(SAVED, -counted[0])
