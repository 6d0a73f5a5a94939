"""
Programs that run in planned memory on values of any trace.

On plain arrays a program is executed. On a tape it is one node: its forward program runs and its saved values are the
node's; in the sweep the reverse program runs. In forward mode the program of values and tangents runs. These are
programs too, and what they meet may be traced again, so that any order of derivatives is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.primitive import innermost
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.errors import TraceError
from ebbtide.ledger import BUFFERS
from ebbtide.program.blocks import Blocks
from ebbtide.program.calls import Call
from ebbtide.program.derivatives import INPUT, RESULT, Reversal, push_forward
from ebbtide.program.evaluate import evaluate
from ebbtide.program.layout import packed_strides
from ebbtide.program.program import Program
from ebbtide.program.reference import Executable
from ebbtide.tape.joint import JointRule, record_joint
from ebbtide.tape.node import Node
from ebbtide.tape.record import Tape, saved_operand
from ebbtide.tape.region import Bypass
from ebbtide.tape.saved import SavedValue, guarded
from ebbtide.tape.tangent import TangentTrace


@final
class PlannedProgram:
    """
    A program, with what it becomes for the values that it meets.

    Args:
        program: The program.
        blocks: Where it runs.
        donated: Numbers of the inputs whose memory it may use where these are plain arrays.
        limit: The bytes that a run on plain arrays may take; None for no budget.

    Memory:
        Its executables, made when they are needed; no data.
    """

    __slots__ = ("_blocks", "_executables", "_limit", "_pushes", "_reversals", "donated", "program")

    def __init__(
        self, program: Program, blocks: Blocks, donated: tuple[int, ...] = (), limit: int | None = None
    ) -> None:
        self.program = program
        self.donated = donated
        self._limit = limit
        self._blocks = blocks
        self._executables: dict[Any, Executable] = {}
        self._reversals: dict[Any, Reversed | None] = {}
        self._pushes: dict[Any, PlannedProgram | None] = {}

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
            found = Executable(self.program, strides, self._blocks, donated, limit=self._limit)
            self._executables[strides, donated] = found
        return found

    def run(self, values: list[Any]) -> tuple[list[Any], Sequence[bool]]:
        """Return the results as `apply` does, and whether each of them is in memory of its own."""
        if innermost(tuple(values)) is not None:
            return self.apply(values), [False] * len(self.program.outputs)
        executable = self.executable(values)
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
        constants = arrays_in(self.program)
        calls = [getattr(equation.function, "call", None) for equation in self.program.equations]
        constants += [array for call in calls if isinstance(call, Call) for array in call.arrays()]
        for number in self.donated:
            array, name = values[number], self.program.inputs[number].name
            if type(array) is not np.ndarray:
                continue
            if not array.flags.writeable:
                raise TypeError(f"The argument {name} is donated, and cannot be written. Donate a copy.")
            others = [x for n, x in enumerate(values) if n != number and type(x) is np.ndarray]
            if any(np.may_share_memory(array, other) for other in [*others, *constants]):
                raise TypeError(
                    f"The argument {name} is donated, and shares memory with another argument, or an array that the "
                    "function uses, which would be overwritten. Donate a copy."
                )

    def _on_tape(self, tape: Tape, operands: list[Any]) -> list[Any] | None:
        """Run the forward program and record it; None where that cannot be planned."""
        operands = [x.present() if type(x) is TracedArray else x for x in operands]
        active = _active(operands, tape)
        values = [_value_on(tape, x) for x in operands]
        # What the programs of tangents take is not known beforehand, and a budget is a promise.
        nested = tape.pager is not None and any(type(value) is TracedArray for value in values)
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
        operands = [x.present() if type(x) is TracedArray else x for x in operands]
        active = _active(operands, trace)
        values = [_value_on(trace, x) for x in operands]
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
            reversal = Reversal(self.program, active, strides)
            return Reversed(reversal, self._blocks) if reversal.results else None
        except TraceError:
            return None

    def _pushed(self, active: tuple[int, ...], strides: Any) -> PlannedProgram | None:
        """Return the program of values and tangents; None if it has to be run operation by operation."""
        try:
            return PlannedProgram(push_forward(self.program, active, strides), self._blocks) if active else None
        except TraceError:
            return None


def _active(operands: list[Any], trace: Any) -> tuple[int, ...]:
    """Return the numbers of the operands that a trace knows a node, or a tangent, of."""
    return tuple([
        number for number, x in enumerate(operands)
        if type(x) is TracedArray and x._trace is trace and x._node is not None
    ])  # fmt: skip


def _value_on(trace: Any, operand: Any) -> Any:
    """Return an operand as it is beneath a trace."""
    if type(operand) is not TracedArray:
        return operand
    return operand._value if operand._trace is trace else operand.frozen()


def strides_of(values: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Return how values of any trace lie in memory."""
    arrays = [bottom(value) if type(value) is TracedArray else value for value in values]
    return tuple([array.strides if type(array) is np.ndarray else () for array in arrays])


def arrays_in(program: Program) -> list[np.ndarray]:
    """Return the plain arrays that are operands in a program, each once."""
    operands = [argument for equation in program.equations for argument in equation.arguments]
    return list({id(x): x for x in operands if type(x) is np.ndarray}.values())


@final
class Reversed:
    """
    A program as tapes record it.

    Args:
        reversal: The program on a tape of symbols.
        blocks: Where it runs.

    Memory:
        Its programs; no data.
    """

    __slots__ = (
        "_backs", "_blocks", "_constants", "_count", "_numbers", "_reversal", "_split", "_strides", "forward", "name",
    )  # fmt: skip

    def __init__(self, reversal: Reversal, blocks: Blocks) -> None:
        self._reversal = reversal
        self._strides = reversal.strides
        self._blocks = blocks
        self._split = split = reversal.split(reversal.results)
        self._numbers = {variable: n for n, variable in enumerate(split.reverse.inputs[: len(split.saved)])}
        self._count = len(reversal.program.outputs)
        self.name = f"jit({reversal.program.name})"
        self.forward = PlannedProgram(split.forward, blocks)
        # The user can reach them: they are looked at again in the sweep.
        self._constants = arrays_in(split.reverse)
        self._backs: dict[tuple[int, ...], tuple[PlannedProgram, tuple[int, ...]]] = {}

    def record(self, tape: Tape, operands: list[Any], values: list[Any]) -> list[Any]:
        """
        Run the forward program and record it.

        Args:
            tape: Where to record it.
            operands: The operands, as they are on the tape.
            values: Their values.

        Returns:
            The results.
        """
        split = self._split
        if tape.pager is not None:
            tape.pager.reserve(sum(x.nbytes for x in split.forward.outputs[self._count :]))
        found = self.forward.apply(list(values))
        saved = [self._saved(place, operands, values, found) for place in split.saved]
        saved += [guarded(array) for array in self._constants]
        if tape.constancy is not None:
            for array in arrays_in(self._reversal.program):
                tape.constancy.meet(array)
        parents = tuple([operands[number]._node for number in self._reversal.inputs])
        del found[self._count :]
        rule = ProgramRule(self, tape.pager)
        traced = record_joint(tape, rule, parents, [found[number] for number in split.given], saved)
        for number, array in zip(split.given, traced, strict=True):
            found[number] = array
        for number in self._reversal.constants:
            found[number] = TracedArray(tape, None, found[number])
        return found

    def _saved(self, place: tuple[str, int], operands: list[Any], values: list[Any], found: list[Any]) -> Any:
        """Return a saved value as a node keeps it: with a guard if the user can reach it."""
        kind, number = place
        if kind != INPUT:
            return found[number if kind == RESULT else self._count + number]
        operand, value = operands[number], values[number]
        if type(operand) is TracedArray and operand is not value:
            return saved_operand(operand, value)
        return guarded(value) if type(value) is np.ndarray else value

    @property
    def executables(self) -> tuple[Executable, Executable]:
        """The forward and the reverse program, for cotangents that are C-contiguous."""
        ahead = self.forward.planned(self._strides)
        lies = ahead.layout.strides
        back, _ = self.back(tuple(range(len(self._split.given))))
        strides = [lies[x] if x in lies else packed_strides(x.type) for x in back.program.inputs]
        return ahead, back.planned(tuple(strides))

    @property
    def reverse_nbytes(self) -> int:
        """Bytes that the reverse program takes beside its inputs, its results included."""
        ahead, back = self.executables
        # The block stays as it was for the forward program, if that is larger.
        return back.memory.peak + max(0, ahead.arena_nbytes - back.arena_nbytes)

    @property
    def saved_count(self) -> int:
        """How many saved values there are; the constants of the reverse program come after them."""
        return len(self._numbers)

    def back(self, given: tuple[int, ...]) -> tuple[PlannedProgram, tuple[int, ...]]:
        """
        Return the reverse program for the cotangents of some of the results that can have one.

        Args:
            given: Their numbers among these.

        Returns:
            (the program, the numbers of the saved values that it takes).
        """
        found = self._backs.get(given)
        if found is None:
            split = self._split
            if len(given) < len(split.given):
                split = self._reversal.split(tuple([split.given[number] for number in given]))
            numbers = tuple([self._numbers[variable] for variable in split.reverse.inputs[: len(split.saved)]])
            found = self._backs[given] = PlannedProgram(split.reverse, self._blocks), numbers
        return found


@final
class ProgramRule(JointRule):
    """
    One run of a program on a tape; the saved values are with its node.

    Args:
        program: The program.
        pager: Of the tape.
    """

    __slots__ = ("_nbytes", "_pager", "_program")

    def __init__(self, program: Reversed, pager: Any) -> None:
        self._program = program
        self._pager = pager
        self._nbytes = 0 if pager is None else program.reverse_nbytes

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return self._program.name

    @property
    def sheddable(self) -> int:
        """Nothing: it keeps what its reverse program takes."""
        return 0

    def shed(self, nbytes: int) -> int:
        """Give up nothing."""
        return 0

    def needs(self, owned: bool, given: int) -> int:
        """See `JointRule.needs`; known under a budget only."""
        return self._nbytes

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Run the reverse program."""
        given = tuple([number for number, pair in enumerate(cotangents) if pair is not None])
        back, numbers = self._program.back(given)
        saved: Any = node.saved
        if not retain:
            node.saved = None
        pager, counted = self._pager, self._nbytes
        if pager is not None:
            counted += sum(type_of(cotangents[number][0]).nbytes for number in given)
            pager.load_room(counted, node, saved)
        frame = [saved[n].open(node) if type(saved[n]) is SavedValue else saved[n] for n in numbers]
        for constant in saved[self._program.saved_count :]:
            constant.open(node)
        frame += [cotangents[number][0] for number in given]
        del saved
        cotangents.clear()
        ledger = None if pager is None else pager.ledger
        if ledger is not None:
            ledger.add(BUFFERS, counted)
        try:
            results, fresh = back.run(frame)
        finally:
            if ledger is not None:
                ledger.add(BUFFERS, -counted)
        for position in range(len(results)):
            value, results[position] = results[position], None
            if value is not None:
                yield position, value, fresh[position]
            del value
