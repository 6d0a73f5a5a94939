"""
Programs that run in planned memory on values of any trace.

On plain arrays a program is executed. On a tape it is one node: its forward program runs and its saved values are the
node's; in the sweep the reverse program runs. In forward mode the program of values and tangents runs. These are
programs too, and what they meet may be traced again, so that any order of derivatives is planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np

from ebbtide.arrays.primitive import innermost
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.machine import are_free
from ebbtide.program.blocks import Blocks
from ebbtide.program.calls import Call
from ebbtide.program.derivatives import Reversal, push_forward
from ebbtide.program.evaluate import evaluate
from ebbtide.program.ladder import Rung
from ebbtide.program.layout import find_layout
from ebbtide.program.operands import arrays_in, beneath, strides_of
from ebbtide.program.program import Program
from ebbtide.program.reference import Executable
from ebbtide.program.reversed import Reversed
from ebbtide.program.split import FEW, FEW_OF_MACHINE
from ebbtide.tape.record import Tape
from ebbtide.tape.region import Bypass
from ebbtide.tape.tangent import TangentTrace


@final
class PlannedProgram:
    """
    A program, with what it becomes for the values that it meets.

    Args:
        program: The program.
        blocks: Where it runs.
        donated: Numbers of the inputs whose memory it may use where these are plain arrays.
        limit: The bytes that a run on plain arrays may take, or it and its reverse sweep; None for no budget.
        rung: The way to run it, if that is decided.

    Memory:
        Its executables, made when they are needed; no data.
    """

    __slots__ = ("_blocks", "_executables", "_limit", "_pushes", "_reversals", "_rung", "_used", "donated", "program")

    def __init__(
        self,
        program: Program,
        blocks: Blocks,
        donated: tuple[int, ...] = (),
        limit: int | None = None,
        rung: Rung | None = None,
    ) -> None:
        self.program = program
        self.donated = donated
        self._limit = limit
        self._rung = rung
        self._blocks = blocks
        self._executables: dict[Any, Executable] = {}
        self._reversals: dict[Any, Reversed | None] = {}
        self._pushes: dict[Any, PlannedProgram | None] = {}
        # Arrays that the function uses, once somebody asks whether donated ones share memory with them.
        self._used: list[np.ndarray] | None = None

    def of(self, program: Program) -> PlannedProgram:
        """Return another program that is planned as this one is."""
        return PlannedProgram(program, self._blocks, self.donated, self._limit)

    def executable(self, values: Sequence[Any], donated: tuple[int, ...] = ()) -> Executable:
        """Return the program as it is planned for values that lie in memory as these do."""
        return self.planned(strides_of(values), donated)

    def planned(self, strides: tuple[tuple[int, ...], ...], donated: tuple[int, ...] = ()) -> Executable:
        """Return the program as it is planned for inputs with these strides, some of them donated."""
        found = self._executables.get((strides, donated))
        if found is None:
            rung = None if self._rung is None else replace(self._rung, layout=find_layout(self.program, strides))
            limit = self._limit if rung is None else None
            found = Executable(self.program, strides, self._blocks, donated, limit=limit, rung=rung)
            self._executables[strides, donated] = found
        return found

    def run(self, values: list[Any], donated: tuple[int, ...] = ()) -> tuple[list[Any], Sequence[bool]]:
        """
        Return the results as `apply` does, and whether each of them is in memory of its own.

        Args:
            values: See `apply`.
            donated: Numbers of those whose memory may be used, if they are plain arrays.
        """
        if innermost(tuple(values)) is not None:
            return self.apply(values), [False] * len(self.program.outputs)
        executable = self.executable(values, donated)
        return executable.run(values), executable.fresh

    def apply(self, values: list[Any]) -> list[Any]:
        """
        Return the results for values of the types of the inputs.

        Args:
            values: Plain arrays and numbers, and arrays of any trace; the list is emptied.
        """
        trace = innermost(tuple(values))
        if trace is None:
            return self.executable(values).run(values)
        found = None
        if type(trace) is Bypass:
            # What comes from outside is nobody's to give.
            given = all(type(values[number]) is not TracedArray for number in self.donated)
            found = self._apply_inside([trace.inside(value) for value in values], given)
        elif type(trace) is Tape and not trace.closed:
            found = self._on_tape(trace, [trace.adopt(value) for value in values])
        elif type(trace) is TangentTrace and trace.linear is None and not trace.closed:
            found = self._on_duals(trace, values)
        if found is None:
            found = evaluate(self.program, values)
        values.clear()
        return found

    def _apply_inside(self, values: list[Any], given: bool) -> list[Any]:
        """Return the results for values as a region has them; whether those that are donated are its own."""
        if given and self.donated and innermost(tuple(values)) is None:
            self.check_donated(values)
            return self.executable(values, self.donated).run(values)
        return self.apply(values)

    def check_donated(self, values: Sequence[Any]) -> None:
        """
        Look whether the memory of the donated inputs can be used for other values.

        Raises:
            TypeError: One of them cannot be written, or shares its memory with another input or an array that the
                function uses.
        """
        if self._used is None:
            calls = [getattr(equation.function, "call", None) for equation in self.program.equations]
            around = [array for call in calls if isinstance(call, Call) for array in call.arrays()]
            self._used = [*arrays_in(self.program), *around]
        if are_free is not None and are_free(values, self.donated, self._used):
            return
        for number in self.donated:
            array, name = values[number], self.program.inputs[number].name
            if type(array) is not np.ndarray:
                continue
            if not array.flags.writeable:
                raise TypeError(f"The argument {name} is donated, and cannot be written. Donate a copy.")
            others = [x for n, x in enumerate(values) if n != number and type(x) is np.ndarray]
            if any(np.may_share_memory(array, other) for other in [*others, *self._used]):
                raise TypeError(
                    f"The argument {name} is donated, and shares memory with another argument, or an array that the "
                    "function uses, which would be overwritten. Donate a copy."
                )

    def _on_tape(self, tape: Tape, operands: list[Any]) -> list[Any] | None:
        """Run the forward program and record it; None where that cannot be planned."""
        active, values = beneath(tape, operands)
        # What the programs of tangents take is not known beforehand, and a budget is a promise. The first step of a
        # loop is always measured, and those that run again are not: all have the same bits, whatever the schedule.
        counted = tape.pager is not None or tape.outer is not None
        nested = counted and TracedArray in map(type, values)
        if nested or not active:
            return None
        found = self.reversed_for(active, values)
        return None if found is None else found.record(tape, operands, values)

    def reversed_for(self, active: tuple[int, ...], values: Sequence[Any]) -> Reversed | None:
        """Return the program as tapes record it; None if it has to be recorded operation by operation."""
        key = active, strides_of(values)
        if key not in self._reversals:
            self._reversals[key] = self._reversed(*key)
        return self._reversals[key]

    def _on_duals(self, trace: TangentTrace, operands: list[Any]) -> list[Any] | None:
        """Run the program of values and tangents; None where that cannot be planned."""
        active, values = beneath(trace, operands)
        key = active, strides_of(values)
        if key not in self._pushes:
            self._pushes[key] = self._pushed(*key)
        push = self._pushes[key]
        if push is None:
            return None
        found = push.apply([*values, *[operands[n]._node for n in active]])
        count = len(self.program.outputs)
        # What does not depend on the tangents is plain, as it is where the function runs as it stands.
        return [v if t is None else TracedArray(trace, t, v) for v, t in zip(found[:count], found[count:], strict=True)]

    def _reversed(self, active: tuple[int, ...], strides: Any) -> Reversed | None:
        """Return how the program is recorded on a tape; None if it has to be recorded operation by operation."""
        try:
            few = FEW_OF_MACHINE if self._blocks.chained else FEW
            reversal = Reversal(self.program, active, strides, few)
            if not reversal.results:
                return None
            return Reversed(reversal, self._limit, partial(PlannedProgram, blocks=self._blocks))
        except TraceError:
            return None

    def _pushed(self, active: tuple[int, ...], strides: Any) -> PlannedProgram | None:
        """Return the program of values and tangents; None if it has to be run operation by operation."""
        try:
            return PlannedProgram(push_forward(self.program, active, strides), self._blocks) if active else None
        except TraceError:
            return None
