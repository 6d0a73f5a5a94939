"""
Results in memory of their own.

Equations that are merged have one value where the function has several arrays, and what is known when a function is
traced is one array for all runs. The caller may write into each of them, so what is given out there is a copy: an
equation, which is planned and counted like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.program.check import passed
from ebbtide.program.equation import Equation, Place, Variable
from ebbtide.program.layout import find_layout
from ebbtide.program.program import Program
from ebbtide.rules.selection import copying


def own_constants(program: Program) -> Program:
    """Return a program whose results that depend on nothing are copies, so that the next run has them as they were."""
    made = {equation.output: equation for equation in program.equations}
    copies: dict[int, Equation] = {}
    for output in program.outputs:
        if _is_constant(output, made):
            copies.setdefault(id(output), _copy_of(output, Place()))
    if not copies:
        return program
    outputs = [copies[id(x)].output if id(x) in copies else x for x in program.outputs]
    equations = (*program.equations, *copies.values())
    return passed(replace(program, outputs=tuple(outputs), equations=equations))


def _is_constant(output: Any, made: Mapping[Variable, Equation]) -> bool:
    """Return whether a result is a plain array that the program has, or may be a view of one."""
    while type(output) is Variable and output in made:
        equation = made[output]
        if equation.primitive is None or not equation.primitive.aliases:
            return False
        if not equation.inputs:
            return True
        output = equation.inputs[0]
    return isinstance(output, np.ndarray)


def own_results(program: Program, strides: Sequence[tuple[int, ...]], memory: Sequence[int | None]) -> Program:
    """
    Return a program whose results share memory only where those of the function do.

    Args:
        program: The program.
        strides: Of its inputs.
        memory: For each result the number of the array that it is a view of in the function, None where that is not
            known; the inputs are numbered first.
    """
    program = own_constants(program)
    results = [x for x in program.outputs if type(x) is Variable and x.type.shape]
    made = {equation.output: equation for equation in program.equations}
    views = [x for x in results if x not in made or ((p := made[x].primitive) is not None and p.aliases)]
    if not views and len(set(results)) == len(results):
        return program
    layout = find_layout(program, strides)
    owners: dict[Variable, int | None] = {x: number for number, x in enumerate(program.inputs)}
    outputs = list(program.outputs)
    copies: dict[tuple[Variable, int], Equation] = {}
    for place, (output, number) in enumerate(zip(program.outputs, memory, strict=True)):
        if type(output) is not Variable or not output.type.shape or number is None:
            continue
        if owners.setdefault(layout.base(output), number) != number:
            where = made[output].where if output in made else Place()
            copy = copies.setdefault((output, number), _copy_of(output, where))
            outputs[place] = copy.output
    if not copies:
        return program
    return passed(replace(program, outputs=tuple(outputs), equations=(*program.equations, *copies.values())))


def _copy_of(value: Any, where: Place) -> Equation:
    """Return an equation that copies a value, which is merged with no other one."""
    kind = value.type if type(value) is Variable else type_of(value)
    function, params = copying.function, {"order": "K"}
    return Equation(copying, function, "copy", (value,), params, Variable(kind, "copy"), where, again=object())
