"""Programs run equation by equation, on values of any trace."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ebbtide.arrays.traced import TracedArray
from ebbtide.program.equation import Equation, Variable, substitute
from ebbtide.program.lifetimes import releases
from ebbtide.program.program import Program


def evaluate(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """
    Return the outputs of a program for given inputs.

    Args:
        program: The program.
        inputs: Arrays and numbers, plain or traced: derivatives of any kind and order go through.

    Returns:
        The outputs.

    Memory:
        What the equations save in the traces of the inputs; else each value until its last use.
    """
    known: dict[Variable, Any] = dict(zip(program.inputs, inputs, strict=True))
    for equation, dying in zip(program.equations, releases(program), strict=True):
        known[equation.output] = compute(equation, known)
        for variable in dying:
            del known[variable]
    return [known[output] if type(output) is Variable else output for output in program.outputs]


def compute(equation: Equation, known: dict[Variable, Any]) -> Any:
    """Return what an equation gives for known values of its variables."""
    arguments = substitute(equation.arguments, known.__getitem__)
    params = substitute(equation.params, known.__getitem__)
    with np.errstate(**dict(equation.errors)) if equation.errors else nullcontext():
        if equation.primitive is not None and any(type(argument) is TracedArray for argument in arguments):
            return equation.primitive.bind(arguments, params)
        return equation.function(*arguments, **params)
