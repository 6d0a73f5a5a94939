"""What a program is given: values of any trace, and the arrays that stand in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.program.program import Program


def active_on(operands: list[Any], trace: Any) -> tuple[int, ...]:
    """Return the numbers of the operands that a trace knows a node, or a tangent, of."""
    return tuple([
        number for number, x in enumerate(operands)
        if type(x) is TracedArray and x._trace is trace and x._node is not None
    ])  # fmt: skip


def value_on(trace: Any, operand: Any) -> Any:
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
