"""
Where the values of a program lie: which of them are views of others, and in which order their elements are.

The order matters to the last bit: a sum goes along memory. So each value has the strides that NumPy would give it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.equation import Equation, Variable, substitute
from ebbtide.program.program import Program


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """
    How the values of a program lie in memory.

    Args:
        strides: Of each value with axes, in bytes.
        bases: For views, the value that they are views of, itself none: an input or what an equation computes.
    """

    strides: dict[Variable, tuple[int, ...]]
    bases: dict[Variable, Variable]

    def base(self, variable: Variable) -> Variable:
        """Return the value whose memory a value is in."""
        return self.bases.get(variable, variable)


def find_layout(program: Program, strides: Sequence[tuple[int, ...]]) -> Layout:
    """
    Return how the values of a program lie for inputs with these strides.

    Args:
        program: The program.
        strides: Of each input.
    """
    layout = Layout(dict(zip(program.inputs, strides, strict=True)), {})
    for equation in program.equations:
        output = equation.output
        found = _strides_of_view(equation, layout) if _may_be_view(equation) else None
        if found is None:
            layout.strides[output] = _strides_of_result(equation, layout)
        else:
            layout.strides[output] = found
            layout.bases[output] = layout.base(equation.inputs[0])
    return layout


def _may_be_view(equation: Equation) -> bool:
    primitive = equation.primitive
    if primitive is None or not primitive.aliases or len(equation.inputs) != 1:
        return False
    if equation.name != "getitem":
        return True
    index = equation.params["index"]
    # A single element is a number, which NumPy copies, unless there is an ellipsis.
    return bool(equation.output.type.shape) or any(part is Ellipsis for part in index)


def dummy(kind: ArrayType, strides: tuple[int, ...]) -> Any:
    """Return an array with a shape and strides and without memory of that size: it must not be read."""
    return np.lib.stride_tricks.as_strided(np.empty(1, kind.dtype), kind.shape, strides, writeable=False)


def _strides_of_view(equation: Equation, layout: Layout) -> tuple[int, ...] | None:
    """Return the strides of the result of an operation that gives views; None where it has to copy."""
    (source,) = equation.inputs
    stand_in = dummy(source.type, layout.strides[source])
    if equation.name == "reshape":
        try:
            return np.reshape(stand_in, equation.params["shape"], order=equation.params["order"], copy=False).strides
        except ValueError:
            return None
    if equation.name == "getitem" and any(isinstance(part, np.ndarray) for part in equation.params["index"]):
        return None
    arguments = substitute(equation.arguments, lambda _: stand_in)
    return equation.function(*arguments, **equation.params).strides


def ufunc_of(equation: Equation) -> np.ufunc | None:
    """Return the ufunc that computes an equation."""
    found: Any = equation.function
    if not isinstance(found, np.ufunc):
        found = getattr(np, equation.name, None)
    if not isinstance(found, np.ufunc) or found.signature is not None or equation.params:
        return None
    return found if found.nin == len(equation.arguments) and found.nout == 1 else None


def _strides_of_result(equation: Equation, layout: Layout) -> tuple[int, ...]:
    """Return the strides of a new array: elementwise results have their axes in the order of the operands'."""
    kind = equation.output.type
    if ufunc_of(equation) is None or len(kind.shape) < 2:
        return packed_strides(kind, range(len(kind.shape)))
    operands = [_cut(argument, layout) for argument in equation.arguments]
    # NumPy itself says in which order it would allocate a small array of the same arrangement.
    flags: Any = [["readonly"]] * len(operands) + [["writeonly", "allocate"]]
    types: Any = [None] * len(operands) + [kind.dtype]
    made = np.nditer([*operands, None], ["zerosize_ok"], flags, types, order="K").operands[-1]
    order = sorted(range(len(kind.shape)), key=lambda axis: (-made.strides[axis], axis))
    return packed_strides(kind, order)


def _cut(argument: Any, layout: Layout) -> Any:
    """Return an operand cut to two elements along each axis, with its own strides."""
    if type(argument) is not Variable:
        argument = np.asarray(argument)
        shape, strides, dtype = argument.shape, argument.strides, argument.dtype
    else:
        shape, strides, dtype = argument.type.shape, layout.strides[argument], argument.type.dtype
    small = tuple([min(n, 2) for n in shape])
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), small, strides, writeable=False)


def packed_strides(kind: ArrayType, order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array without gaps, whose axes lie in this order, the slowest first."""
    strides = [0] * len(kind.shape)
    step = kind.dtype.itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= max(1, kind.shape[axis])
    return tuple(strides)
