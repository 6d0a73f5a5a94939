"""
A time loop of a traced function, as the program of that function runs it: by `timeloop`, on the arrays of the run.

The user's step is called as it is. It may use arrays that it closes over, and these stand for values of the program: in
each run they are given those values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.constants import PYTHON_NUMBERS
from ebbtide.arrays.containers import flatten, frozen_leaf, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.functions import line_of_function
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import Primitive, inside
from ebbtide.arrays.reach import arrays_of, bound_now
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.loop.stepping.options import Options
from ebbtide.program.calls import Call
from ebbtide.program.surroundings import Surroundings

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
        # It is no derivative: a loop that runs in it may be one for all members of a batch.
        self.level = 0
        self.closed = False
        self.fast = False

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
        return frozen_leaf(found)

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> Any:
        """Do an operation on values."""
        return primitive.bind(tuple([inside(self, operand) for operand in operands]), params)


def in_region(capture: Any) -> bool:
    """Return whether what runs within a capture is a part of a region, which may run several times."""
    return capture is not None and (type(capture) is not Given or capture.around is not None)


@final
@dataclass(frozen=True, slots=True, eq=False)
class LoopCall(Call):
    """
    A time loop of a traced function; its operands are leaves of the state and of the inputs, and static values.

    Args:
        timeloop: The loop.
        step: The user's step.
        steps: The number of steps; None with `until=`.
        structure: Structure of the state.
        inputs: The user's inputs; None where their leaves are operands.
        tree: Structure of the inputs whose leaves are operands; None where they are not.
        options: The other arguments of the loop.
        rows: Numbers of the operands that are leaves of the inputs.
        statics: The arrays from outside that a step uses.
        traces: The traces that these belong to, or may belong to.
        surroundings: What the user's functions reached then.
        level, kinds, numbers, name: Of `Call`.

    Memory:
        References to what the step closes over: arrays of traces, which hold no data.
    """

    timeloop: Callable[..., Any]
    step: Callable[..., Any]
    steps: int | None
    structure: Any
    inputs: Any
    tree: Any
    options: Options
    rows: range
    statics: tuple[TracedArray, ...]
    traces: tuple[Any, ...]
    surroundings: tuple[Surroundings, ...]
    level: int
    kinds: list[ArrayType]
    numbers: list[bool]
    name: str = "timeloop"

    def params(self, operands: Sequence[Any]) -> dict[str, Any]:
        """See `Call.params`."""
        params: dict[str, Any] = {"steps": self.steps, "state": list(operands[: self.rows.start])}
        if self.rows:
            params["inputs"] = list(operands[self.rows.start : self.rows.stop])
        if self.statics:
            params["static"] = list(operands[self.rows.stop :])
        return params

    def operands(self, params: dict[str, Any]) -> list[Any]:
        """See `Call.operands`."""
        return [*params["state"], *params.get("inputs", ()), *params.get("static", ())]

    def takes(self, operands: Sequence[Any]) -> Sequence[Any]:
        """See `Call.takes`: the loop copies its state."""
        return operands[self.rows.start :]

    def arrays(self) -> list[np.ndarray]:
        """See `Call.arrays`."""
        return [array for f in (self.step, self.options.until, self.inputs) for array in arrays_of(f)]

    def checked(self, operands: Sequence[Any]) -> tuple[Call, Sequence[Any]] | None:
        """
        See `Call.checked`.

        Types are those after the first step. A number may have another one after the last: a float has a derivative
        that an integer lacks, and a complex number an imaginary part.
        """
        state, outputs = self.kinds[: self.rows.start], self.kinds[self.rows.start :]
        may = any(kind.shape == () for kind in state) or any(kind.dtype.kind in "biu" for kind in state + outputs)
        return (self, operands[: self.rows.stop + len(self.statics)]) if may else None

    def run(self, operands: list[Any]) -> list[Any]:
        """See `Call.run`."""
        name = next((name for name in (one.changed() for one in self.surroundings) if name is not None), None)
        if name is not None:
            raise TraceError(
                f"The name {name}, which a step of a time loop in a traced function uses, stands for another object "
                "than when the function was traced. Pass what changes as an argument, in the state, or as inputs=."
            )
        first, last = self.rows.start, self.rows.stop
        state, inputs, static = operands[:first], operands[first:last], operands[last:]
        known = dict(zip(map(key_of, self.statics), static, strict=True))

        def bound(function: Any) -> Any:
            # What a function closes over itself it is given at once, and need not ask for in each step.
            return bound_now(function, lambda array: known.get(key_of(array.present()), array))

        given = bound(self.inputs) if self.tree is None else unflatten(self.tree, inputs)
        options = self.options.as_arguments() | {"until": bound(self.options.until)}
        # What a program runs is not traced, whatever is around the program.
        capture = Given(self.traces, known, current().capture)
        with self.inside(), entered(capture=capture, follower=None):
            found = self.timeloop(
                bound(self.step), unflatten(self.structure, state), self.steps, inputs=given, **options
            )
        after, outputs = (found[0], flatten(found[1])[0]) if self.options.outputs else (found, [])
        pairs = zip(flatten(after)[0], self.kinds, strict=False)
        return [self._as_traced(leaf, kind) for leaf, kind in pairs] + outputs

    def _as_traced(self, leaf: Any, kind: ArrayType) -> Any:
        """Return a leaf of the final state with the dtype that the program is made for; a number may have another."""
        found = leaf.dtype if isinstance(leaf, (TracedArray, np.ndarray, np.generic)) else None
        found = type_of(leaf).dtype if type(leaf) in PYTHON_NUMBERS else found
        if found is None or found == kind.dtype:
            return leaf
        if np.can_cast(found, kind.dtype):
            return leaf.astype(kind.dtype) if type(leaf) is TracedArray else kind.dtype.type(leaf)[()]
        raise TraceError(
            f"A time loop in a traced function ended with {found} for a number of its state that was of {kind.dtype} "
            f"after the first step (the step is at {line_of_function(self.step)}), and the program is made for that. "
            f"Give the initial state np.{np.result_type(found, kind.dtype).type.__name__}(x), and return it from each "
            "step, or put jit around the step instead of the loop."
        )
