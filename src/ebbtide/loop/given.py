"""
A time loop of a traced function, as the program of that function runs it: by `timeloop`, on the arrays of the run.

The user's step is called as it is. It may use arrays that it closes over, and these stand for values of the program: in
each run they are given those values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.containers import flatten, is_array, unflatten
from ebbtide.arrays.context import Context, current, entered
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import Primitive
from ebbtide.arrays.reach import bound_now
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import ReleasedValueError, TraceError
from ebbtide.loop.options import Options
from ebbtide.program.surroundings import Surroundings
from ebbtide.tape.account import account
from ebbtide.tape.linear_region import split
from ebbtide.tape.node import Node
from ebbtide.tape.recording import Recording
from ebbtide.tape.tangent import TangentTrace

# What tells an array of a trace: the array in the user's closure may be another object with the same two.
Key = tuple[int, int]
_OTHER_ARRAY = (
    "A step of a time loop in a traced function uses at {line} an array from outside that it did not use when the "
    "function was traced, with the first step, or that was written in place after the loop. What a step uses from "
    "outside is found once: use it in the first step too, by np.where(i == n, x, y), write into a copy, or put jit "
    "around the step instead of the loop."
)


def key_of(array: TracedArray) -> Key:
    """Return what tells an array of a trace, as long as somebody keeps it."""
    return id(array._node), id(array._value)


@final
class Given:
    """
    Gives arrays of the traces on which a function was traced the values that they stand for in one run.

    Args:
        traces: The traces.
        known: The values.
        around: The region in which the program runs.
        problem: What is wrong, and what to do, where the function uses another array of these traces.

    Memory:
        The values, by reference.
    """

    stands_in = True  # a trace of a program asks it what an array of a trace that has ended is here

    __slots__ = ("_known", "_problem", "_traces", "around", "closed", "fast", "level")

    def __init__(
        self, traces: tuple[Any, ...], known: dict[Key, Any], around: Any, problem: str = _OTHER_ARRAY
    ) -> None:
        self._problem = problem
        self._traces = traces
        self._known = known
        self.around = around
        self.level = current().level
        self.closed = False
        self.fast = False

    def here(self) -> str:
        """Return the user's present line."""
        return user_line()

    def covers(self, trace: Any) -> bool:
        """Return whether arrays of *trace* are given values, here or by the region around."""
        return any(trace is mine for mine in self._traces) or (self.around is not None and self.around.covers(trace))

    def constant(self, value: Any) -> Any:
        """Return the plain array: here nothing is traced."""
        return value

    def lift(self, operand: TracedArray) -> Any:
        """
        Return the value that an array stands for.

        Raises:
            TraceError: It was not used when the function was traced.
        """
        operand = operand.frozen()
        if not any(operand._trace is mine for mine in self._traces):
            return self.around.lift(operand)
        try:
            found = self._known[key_of(operand)]
        except KeyError:
            raise TraceError(self._problem.format(line=user_line())) from None
        return found.frozen() if type(found) is TracedArray else found

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> Any:
        """Do an operation on values."""
        return primitive.bind(tuple([self._inside(operand) for operand in operands]), params)

    def _inside(self, value: Any) -> Any:
        return self.lift(value) if type(value) is TracedArray and self.covers(value._trace) else value


def in_region(context: Context) -> bool:
    """Return whether what runs here is a part of a region, which may run several times."""
    capture = context.capture
    return capture is not None and (type(capture) is not Given or capture.around is not None)


@final
@dataclass(frozen=True, slots=True, eq=False)
class LoopCall:
    """
    What a time loop of a traced function is, its operands apart.

    Args:
        timeloop: The loop.
        step: The user's step.
        structure: Structure of the state.
        inputs: The user's inputs; None where their leaves are operands.
        rows: Structure of the inputs whose leaves are operands; None where they are not.
        options: The other arguments of the loop.
        statics: The arrays from outside that a step uses.
        traces: The traces that these belong to, or may belong to.
        level: That of the context in which the loop was traced.
        surroundings: What the user's functions reached then.
        places: For each operand its place among those whose gradients are wanted, or None.

    Memory:
        References to what the step closes over: arrays of traces, which hold no data.
    """

    timeloop: Callable[..., Any]
    step: Callable[..., Any]
    structure: Any
    inputs: Any
    rows: Any
    options: Options
    statics: tuple[TracedArray, ...]
    traces: tuple[Any, ...]
    level: int
    surroundings: tuple[Surroundings, ...]
    places: tuple[int | None, ...] = ()

    def run(
        self,
        *,
        steps: int | None,
        state: Sequence[Any],
        inputs: Sequence[Any] = (),
        static: Sequence[Any] = (),
        tangents: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        """
        Run the loop.

        Args:
            steps: The number of steps; None with `until=`.
            state: Leaves of the initial state.
            inputs: Leaves of the inputs, if these are operands.
            static: Values of the static values.
            tangents: For each operand in this order its tangent, or None; empty if no derivative is taken along.

        Returns:
            The leaves of the final state and the outputs; their tangents follow, if there are any.
        """
        operands = [*state, *inputs, *static]
        with self._entered(tangents) as trace:
            results = self._loop(steps, _duals(trace, operands, tangents), len(state), len(inputs))
            return _parts(trace, results)

    def run_saving(
        self,
        *,
        steps: int | None,
        state: Sequence[Any],
        inputs: Sequence[Any] = (),
        static: Sequence[Any] = (),
        tangents: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        """
        Run the loop, and keep what its reverse sweep needs.

        Returns:
            (what the reverse sweep needs, *what `run` returns).

        Memory:
            That of `timeloop` when it is differentiated, until the first result is pulled back or dropped.
        """
        operands = [*state, *inputs, *static]
        counts = len(state), len(inputs)
        del state, inputs, static

        def loop(active: list[Any]) -> list[Any]:
            pairs = zip(self.places, operands, strict=True)
            return self._loop(steps, [x if place is None else active[place] for place, x in pairs], *counts)

        with self._entered(tangents) as trace, account(None) as acct:
            operands[:] = _duals(trace, operands, tangents)
            # Of an operand that is there several times the last is as good as the first.
            wanted = {place: x for place, x in zip(self.places, operands, strict=True) if place is not None}
            recording = Recording(loop, ([wanted[place] for place in range(len(wanted))],), {}, (0,), acct)
            del wanted
            roots = recording.roots()
            acct.keep_open()
            held = HeldLoop(recording, [node for node, _ in roots], trace)
            return (held, *_parts(trace, [value for _, value in roots]))

    def _loop(self, steps: int | None, operands: list[Any], states: int, rows: int) -> list[Any]:
        """Return the leaves of the results, with operands as the loop sees them."""
        name = next((name for name in (one.changed() for one in self.surroundings) if name is not None), None)
        if name is not None:
            raise TraceError(
                f"The name {name}, which a step of a time loop in a traced function uses, stands for another object "
                "than when the function was traced. Pass what changes as an argument, in the state, or as inputs=."
            )
        state, inputs, static = operands[:states], operands[states : states + rows], operands[states + rows :]
        known = dict(zip(map(key_of, self.statics), static, strict=True))

        def bound(function: Any) -> Any:
            # What a function closes over itself it is given at once, and need not ask for in each step.
            return bound_now(function, lambda array: known.get(key_of(array.present()), array))

        given = bound(self.inputs) if self.rows is None else unflatten(self.rows, inputs)
        options = self.options.as_arguments() | {"until": bound(self.options.until)}
        with entered(capture=Given(self.traces, known, current().capture)):
            found = self.timeloop(
                bound(self.step), unflatten(self.structure, state), steps, inputs=given, **options
            )
        if not self.options.outputs:
            return flatten(found)[0]
        return flatten(found[0])[0] + flatten(found[1])[0]

    @contextmanager
    def _entered(self, tangents: Sequence[Any]) -> Iterator[TangentTrace | None]:
        """Run the block in forward mode if there are tangents, inside of all traces that the step knows."""
        level = max(current().level, self.level)
        if not tangents:
            with entered(level=level):
                yield None
            return
        trace = TangentTrace(level + 1)
        with _forward(trace):
            yield trace


@final
class HeldLoop:
    """
    What a time loop in a program holds for its reverse sweep.

    Memory:
        Snapshots and saved values, until `pull_back` takes them, or it is dropped.
    """

    __slots__ = ("_nodes", "_recording", "_trace")

    def __init__(self, recording: Recording, nodes: list[Node | None], trace: TangentTrace | None) -> None:
        self._recording: Recording | None = recording
        self._nodes = nodes
        self._trace = trace

    def take(self, retain: bool) -> tuple[Recording, list[Node | None], TangentTrace | None]:
        """
        Return the recording, the nodes of its results, and the forward mode of its values; it is not taken again.

        Raises:
            ReleasedValueError: It was taken before.
        """
        recording, nodes = self._recording, self._nodes
        if recording is None:
            raise ReleasedValueError("The time loop was swept before, and what its sweep needs is gone.")
        if not retain:
            self._recording, self._nodes = None, []
        return recording, nodes, self._trace


def pull_back(
    *,
    held: HeldLoop,
    cotangents: Sequence[Any],
    tangents: Sequence[Any] = (),
    keep: Sequence[Any] = (),
    retain: bool = False,
) -> tuple[Any, ...]:
    """
    Run the reverse sweep of a time loop.

    Args:
        held: What `LoopCall.run_saving` returned first.
        cotangents: For each result its cotangent, or None.
        tangents: For each of them its tangent, or None; empty if no derivative is taken along.
        keep: What the sweep uses by reference, so that the program keeps it until now.
        retain: Whether there is another sweep to come.

    Returns:
        The cotangents of the operands that are active; their tangents follow, if any derivative is taken along.
    """
    del keep
    recording, nodes, trace = held.take(retain)
    del held
    with _forward(trace):
        pairs = zip(nodes, _duals(trace, cotangents, tangents), strict=True)
        seeds = [(node, g, False) for node, g in pairs if node is not None and g is not None]
        del nodes, pairs, cotangents
        try:
            (gradients,) = recording.gradients(seeds, retain=retain)
        finally:
            if not retain:
                recording.account.close()
        found = _parts(trace, gradients)
    # A cotangent may pass through, and its memory is used again. Without tangents the sweep knows.
    return found if trace is None else tuple([np.array(x) if isinstance(x, np.ndarray) else x for x in found])


@contextmanager
def _forward(trace: TangentTrace | None) -> Iterator[None]:
    """Run the block in forward mode, also after the first time; as it is where there is none."""
    if trace is None:
        yield
        return
    level = max(current().level, trace.level)
    with entered(level=level, tangent=trace, traces=(*current().traces, trace)):
        trace.closed = False
        try:
            yield
        finally:
            trace.closed = True


def _duals(trace: TangentTrace | None, values: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Return values joined with their tangents."""
    if trace is None or not tangents:
        return list(values)
    pairs = zip(values, tangents, strict=True)
    return [value if tangent is None else TracedArray(trace, tangent, value) for value, tangent in pairs]


def _parts(trace: TangentTrace | None, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return values, and after them the tangents of those that can have one."""
    if trace is None:
        return tuple(values)
    pairs = [split(trace, value) for value in values]
    tangents = [zeros_like(value) if tangent is None else tangent for value, tangent in pairs if is_array(value)]
    return (*[value for value, _ in pairs], *tangents)
