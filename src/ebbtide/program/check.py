"""
What holds for every program after every pass, and for every plan before it runs.

A pass or a planner that is wrong would give wrong numbers, with nothing to see. So each program is looked through after
each pass, and each plan is gone through equation by equation, without data: which values are there, and which bytes
they take.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NoReturn, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.constants import PYTHON_NUMBERS, abstract_types
from ebbtide.arrays.primitive import broadcast_type
from ebbtide.errors import ProgramError
from ebbtide.program.equation import Equation, Variable, stand_in
from ebbtide.program.holding import lent_to
from ebbtide.program.layout import Layout
from ebbtide.program.memory import Memory
from ebbtide.program.program import Program
from ebbtide.program.text import name_variables, write_call


def passed(program: Program, *passes: Callable[[Program], Program]) -> Program:
    """
    Return what passes make of a program, one after the other.

    Raises:
        ProgramError: A pass left something undefined, defined twice, or of another type; says which pass.
    """
    check_structure(program)
    for one in passes:
        program = one(program)
        check_structure(program)
    check_types(program)
    return program


def check_structure(program: Program) -> None:
    """
    Check that each variable is defined once and before it is used, and that the outputs are defined.

    Raises:
        ProgramError: It is not so; names the last pass, the equation, and the user's line.
    """
    known = set(program.inputs)
    if len(known) < len(program.inputs):
        _fail(program, None, "an input is there twice")
    for place, equation in enumerate(program.equations):
        for variable in equation.inputs:
            if variable not in known:
                _fail(program, place, f"{_name(program, variable)} is used and not defined before")
        if equation.output in known:
            _fail(program, place, f"{_name(program, equation.output)} is defined a second time")
        known.add(equation.output)
    for output in program.outputs:
        if type(output) is Variable and output not in known:
            _fail(program, None, f"the output {_name(program, output)} is not defined")


def check_types(program: Program) -> None:
    """
    Check that each equation defines a variable of the type that its operation gives for its arguments.

    Where only the function itself could tell, and it is none of ours and no ufunc, the type is taken as it was traced.

    Raises:
        ProgramError: It is not so; names the last pass, the equation, and the user's line.
    """
    # The layers of a net are alike: without parameters, the same operation on the same types is looked at once.
    known: dict[Any, ArrayType | None] = {}
    for place, equation in enumerate(program.equations):
        stand_ins = [stand_in(argument) for argument in equation.arguments]
        key = None if equation.params else (equation.primitive or equation.function, *map(_kind, stand_ins))
        wanted = None if key is None else known.get(key)
        if wanted is None:
            try:
                wanted = known[key] = _type_given(equation, stand_ins)
            except (TypeError, ValueError) as error:
                _fail(program, place, f"the operation refuses its operands: {error}")
        if wanted is not None and wanted != equation.output.type:
            _fail(program, place, f"the result is said to be {equation.output.type}, and is {wanted}")
        numbers = equation.primitive is None or all(type(x) in PYTHON_NUMBERS for x in stand_ins)
        if equation.output.is_number and not numbers:
            _fail(program, place, "the result is said to be a Python number, and an argument is none")


def _kind(argument: Any) -> Any:
    """Return what tells an argument as far as types go."""
    if type(argument) is ArrayType:
        return argument
    if isinstance(argument, np.ndarray):
        return type_of(argument)
    return type(argument) if type(argument) in PYTHON_NUMBERS or isinstance(argument, np.generic) else id(argument)


def _type_given(equation: Equation, arguments: list[Any]) -> ArrayType | None:
    """Return the type of what an equation computes; None where that takes a run of it."""
    primitive, function = equation.primitive, equation.function
    if equation.name == "add_product":
        total, a, b = map(type_of, arguments)
        fits = total.shape == (*a.shape[:1], *b.shape[1:]) and a.shape[1:] == b.shape[:1]
        return total if fits and total.dtype == a.dtype == b.dtype else ArrayType((-1,), total.dtype)
    if equation.name == "small_product":
        a, b = map(type_of, arguments)
        return ArrayType((*a.shape[:1], *b.shape[1:]) if a.shape[1:] == b.shape[:1] else (-1,), a.dtype)
    if equation.name == "add_scatter":
        return type_of(arguments[0])
    if primitive is not None and primitive.infer is not None:
        return primitive.infer(*abstract_types(tuple(arguments)), **equation.params)
    if isinstance(function, np.ufunc) and function.signature is None and not equation.params:
        return broadcast_type(function, *abstract_types(tuple(arguments)))
    return None


def check_plan(program: Program, layout: Layout, memory: Memory, drops: Sequence[Sequence[Variable]]) -> None:
    """
    Check a plan by going through it: what is read is there, and nothing is written over what is needed.

    Args:
        program: The program.
        layout: Which values are views.
        memory: Where the values are.
        drops: For each equation the names that are let go after it.

    Raises:
        ProgramError: Two values that live at the same time overlap, a value is read after its memory was given back,
            given back twice, or never, or an output is in memory that will be used again.
    """
    simulation = _Simulation(program, layout, memory)
    for place, equation in enumerate(program.equations):
        simulation.read(place, equation)
        simulation.define(place, equation)
        simulation.release(place, drops[place])
    simulation.end()


@final
class _Simulation:
    """A run of a plan without data."""

    def __init__(self, program: Program, layout: Layout, memory: Memory) -> None:
        self._program = program
        self._layout = layout
        self._memory = memory
        self._made_by = {equation.output: equation for equation in program.equations}
        # Values, no views, whose memory is theirs now; names of `run`; bytes of the block, or of an array, in order.
        self._present = {variable for variable in program.inputs if memory.ends.get(variable, -1) >= 0}
        self._names = set(self._present)
        self._taken: dict[Any, list[tuple[int, int, Variable]]] = {
            memory.buffers[variable]: [(0, variable.nbytes, variable)]
            for variable in program.inputs
            if variable in memory.buffers and variable.nbytes
        }
        # Why a value is there no more: what happened, and to make or after which other value.
        self._gone: dict[Variable, tuple[str, Variable]] = {}
        self._overwritten = set(memory.given_up.values())
        self._views: dict[Variable, list[Variable]] = {}
        for view, base in layout.bases.items():
            self._views.setdefault(base, []).append(view)
        self._ending: list[list[Variable]] = [[] for _ in program.equations]
        for variable, end in memory.ends.items():
            if 0 <= end < len(self._ending):
                self._ending[end].append(variable)

    def read(self, place: int, equation: Equation) -> None:
        """Check that what an equation takes is there."""
        for variable in equation.inputs:
            base = self._layout.base(variable)
            if base not in self._present:
                how, other = self._gone.get(base, ("it was let go before", equation.output))
                self._fail(place, f"{self._call(variable)} is read and not there: {how} {self._call(other)}")
            if not self._memory.is_inside(base) and variable not in self._names:
                self._fail(place, f"{self._call(variable)} is read after its name was let go")
        lent = lent_to(equation)
        if lent:
            part = self._made_by[equation.params["held"]]
            given = {self._layout.base(variable) for variable in self._made_by[part.inputs[0]].inputs}
            for variable in lent:
                if self._layout.base(variable) not in given:
                    self._fail(place, f"{self._call(variable)} is used by reference, and is another than it was given")

    def define(self, place: int, equation: Equation) -> None:
        """Let the result have its memory."""
        output = equation.output
        base = self._layout.bases.get(output)
        if base is not None:
            if base in self._layout.bases or [self._layout.base(v) for v in equation.inputs] != [base]:
                self._fail(place, f"{self._call(output)} is said to be a view of {self._call(base)}, and is none")
        else:
            if output in self._memory.buffers:
                self._claim(place, equation)
            self._present.add(output)
        if not self._memory.is_inside(self._layout.base(output)):
            self._names.add(output)

    def _claim(self, place: int, equation: Equation) -> None:
        """Let the result have its place in the block, or in an array."""
        output, memory = equation.output, self._memory
        buffer = memory.buffers[output]
        start, space = (0, buffer) if buffer.apart else (buffer.offset, None)
        stop = start + output.nbytes
        if stop > start + buffer.nbytes or (space is None and not 0 <= start <= stop <= memory.nbytes):
            self._fail(place, f"{self._call(output)} of {output.nbytes} bytes does not fit in where it is put")
        operand = memory.given_up.get(output)
        if operand is not None:
            self._take_over(place, equation, operand)
        taken = self._taken.setdefault(space, [])
        at = bisect_left(taken, start, key=itemgetter(0))
        for _, end, other in taken[max(0, at - 1) : at]:
            if end > start:
                self._fail(place, f"{self._call(output)} is put over {self._call(other)}, which is still needed")
        if at < len(taken) and taken[at][0] < stop:
            self._fail(place, f"{self._call(output)} is put over {self._call(taken[at][2])}, which is still needed")
        if stop > start:
            taken.insert(at, (start, stop, output))

    def _take_over(self, place: int, equation: Equation, operand: Variable) -> None:
        """Take its place from an operand that gives it up."""
        output, memory, layout = equation.output, self._memory, self._layout
        over = [equation.arguments[number] for number in memory.kernels[output].over]
        over += [home for home in (memory.homes.get(output),) if home not in equation.inputs]
        alike = operand.type == output.type and layout.strides[operand] == layout.strides[output]
        if not any(argument is operand for argument in over) or not alike:
            self._fail(place, f"{self._call(output)} cannot be made in the place of {self._call(operand)}")
        if memory.ends[operand] != place:
            self._fail(place, f"{self._call(output)} is put over {self._call(operand)}, which is still needed")
        for variable in equation.inputs:
            if variable is not operand and layout.base(variable) is operand:
                self._fail(place, f"{self._call(output)} is put over {self._call(variable)}, which it is made of")
        self._leave(operand, "its place was taken by", output)

    def _leave(self, variable: Variable, how: str, other: Variable) -> None:
        """Give back the memory of a value."""
        self._present.discard(variable)
        self._gone[variable] = how, other
        buffer = self._memory.buffers.get(variable)
        if buffer is not None and variable.nbytes:
            start, taken = (0, self._taken[buffer]) if buffer.apart else (buffer.offset, self._taken[None])
            del taken[bisect_left(taken, start, key=itemgetter(0))]

    def release(self, place: int, dropped: Sequence[Variable]) -> None:
        """Give back the memory of the values that end with an equation, and let names go."""
        for variable in self._ending[place]:
            if variable in self._present:
                self._leave(variable, "its memory was given back after", self._program.equations[place].output)
            elif variable not in self._overwritten:
                self._fail(place, f"the memory of {self._call(variable)} is given back, and is not there")
        for variable in dropped:
            if variable not in self._names:
                self._fail(place, f"the name {self._call(variable)} is let go, and is not there")
            self._names.discard(variable)
        for variable in self._ending[place]:
            for name in (variable, *self._views.get(variable, ())):
                if name in self._names:
                    self._fail(place, f"{self._call(name)} is needed no more, and its name is kept")

    def end(self) -> None:
        """Check that the outputs are there, in memory that is the caller's, and nothing else."""
        outputs = {output for output in self._program.outputs if type(output) is Variable}
        owners = {self._layout.base(output) for output in outputs}
        for owner in owners:
            if owner not in self._present and owner not in self._program.inputs:
                self._fail(None, f"the memory of the output {self._call(owner)} was given back")
            if self._memory.is_inside(owner):
                self._fail(None, f"the output {self._call(owner)} is in memory that will be used again")
        for variable in self._present:
            if variable not in owners:
                self._fail(None, f"the memory of {self._call(variable)} is never given back")

    def _call(self, variable: Variable) -> str:
        return _name(self._program, variable)

    def _fail(self, place: int | None, problem: str) -> NoReturn:
        _fail(self._program, place, problem, "its memory was planned")


def _name(program: Program, variable: Variable) -> str:
    return name_variables(program).get(variable, variable.name)


def _fail(program: Program, place: int | None, problem: str, after: str | None = None) -> NoReturn:
    """Raise the error for a program that is wrong, at an equation or as a whole."""
    where = "as a whole"
    if place is not None:
        equation = program.equations[place]
        names = {variable: variable.name for variable in (*equation.inputs, equation.output)} | name_variables(program)
        where = f"in equation {place + 1}, {names[equation.output]} = {write_call(equation, names)} ({equation.line})"
    raise ProgramError(
        f"The program of {program.name} is wrong after {after or program.history[-1]}, {where}: {problem}. This is a "
        "defect of Ebbtide, not of your function: call the function without jit, and report it with this text."
    )
