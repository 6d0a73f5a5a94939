"""What a program is given: values of any trace, and the arrays that stand in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.program.program import Program


def beneath(trace: Any, operands: Sequence[Any]) -> tuple[tuple[int, ...], list[Any]]:
    """Return the numbers of the operands that a trace knows a node, or a tangent, of, and what all are beneath it."""
    active, values = [], []
    for number, operand in enumerate(operands):
        value = operand
        if type(operand) is TracedArray:
            operand.present()
            if operand._trace is trace:
                value = operand._value
                if operand._node is not None:
                    active.append(number)
            else:
                value = operand.frozen()
        values.append(value)
    return tuple(active), values


def strides_of(values: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Return how values of any trace lie in memory."""
    found = []
    for value in values:
        array = bottom(value) if type(value) is TracedArray else value
        found.append(array.strides if type(array) is np.ndarray else ())
    return tuple(found)


def arrays_in(program: Program) -> list[np.ndarray]:
    """Return the plain arrays that are operands in a program, each once."""
    operands = [argument for equation in program.equations for argument in equation.arguments]
    return list({id(x): x for x in operands if type(x) is np.ndarray}.values())
