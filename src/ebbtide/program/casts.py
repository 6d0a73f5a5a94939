"""Counts of truth values as floating-point numbers: a cast and a sum, as the machine has no sum that casts."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.equation import Equation, Variable
from ebbtide.program.program import Program
from ebbtide.rules.selection import _cast as cast_values


def split_counts(program: Program) -> Program:
    """Return a program in which sums of truth values that are to be of a floating-point type cast these first."""
    equations: list[Equation] = []
    for equation in program.equations:
        if _counts(equation):
            params = dict(equation.params)
            mask, dtype = equation.arguments[0], params.pop("dtype")
            numbers = Variable(ArrayType(mask.type.shape, dtype), "_cast")
            cast = replace(
                equation, primitive=None, function=cast_values, name="_cast", arguments=(mask, dtype), params={},
                output=numbers,
            )  # fmt: skip
            equations += [cast, replace(equation, arguments=(numbers, *equation.arguments[1:]), params=params)]
        else:
            equations.append(equation)
    return replace(program, equations=tuple(equations), history=(*program.history, "counts split"))


def _counts(equation: Equation) -> bool:
    """Return whether an equation is a sum of truth values that any order of them gives exactly."""
    dtype = equation.params.get("dtype")
    if equation.name != "sum" or equation.primitive is None or dtype is None or np.dtype(dtype).kind != "f":
        return False
    mask = equation.arguments[0]
    if type(mask) is not Variable or mask.type.dtype != np.bool_ or equation.output.type.dtype != dtype:
        return False
    return prod(mask.type.shape) <= 2 ** np.finfo(dtype).nmant
