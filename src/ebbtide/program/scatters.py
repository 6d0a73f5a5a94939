"""The pass that adds the cotangent of a part of an array to those elements alone, and makes no zeros for the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide.program.equation import Equation, Variable
from ebbtide.program.lifetimes import used_once
from ebbtide.program.program import Program


def plus_scatter(total: Any, part: Any, index: tuple[Any, ...]) -> Any:
    """Return a new array: total, with a part added to the elements of an index that names none twice."""
    result = np.array(total, order="C")
    result[index] += part
    return result


def add_scatters(program: Program) -> Program:
    """Return a program in which sums take the parts that are added, where nothing else uses these spread out."""
    once = used_once(program)
    spread = {
        equation.output: equation
        for equation in program.equations
        if equation.name == "scatter" and equation.output in once
        and not any(isinstance(part, np.ndarray) for part in equation.params["index"])
    }  # fmt: skip
    taken: set[Variable] = set()
    found: list[Equation] = []
    for equation in program.equations:
        added = _with_part(equation, spread, taken)
        if added is not None:
            taken.add(added[1])
        found.append(equation if added is None else added[0])
    equations = tuple(equation for equation in found if equation.output not in taken)
    return replace(program, equations=equations, history=(*program.history, "parts added where they belong"))


def _with_part(
    equation: Equation, spread: dict[Variable, Equation], taken: set[Variable]
) -> tuple[Equation, Variable] | None:
    """Return a sum as one with its part, and the array that is not needed then; None if it is no such sum."""
    if equation.name != "add" or len(equation.arguments) != 2:
        return None
    for number in (1, 0):
        whole, total = equation.arguments[number], equation.arguments[1 - number]
        if type(whole) is not Variable or type(total) is not Variable or whole not in spread or total in taken:
            continue
        if total.type == whole.type == equation.output.type and total is not whole:
            scatter = spread[whole]
            arguments, params = (total, *scatter.arguments), {"index": scatter.params["index"]}
            made = replace(
                equation, primitive=None, function=plus_scatter, name="add_scatter", arguments=arguments, params=params
            )
            return made, whole
    return None
