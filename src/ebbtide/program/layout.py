"""
Where the values of a program lie: which of them are views of others, and in which order their elements are.

The order matters to the last bit: a sum goes along memory. So each value has the strides that NumPy would give it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.program.equation import Equation, Variable, substitute
from ebbtide.program.program import Program
from ebbtide.rules.matrices import OnStacks

# So many elements along each axis show how a function's result lies, or so many, where a window leaves one or none.
_ENOUGH = (2, 8)


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """
    How the values of a program lie in memory.

    Args:
        strides: Of each value with axes, in bytes.
        bases: For views, the value that they are views of, itself none: an input or what an equation computes.
        known: Of values that were asked for, what `costs.weighed` found.
        kernels: Of equations that were asked for, what `kernels.kernel_in` found.
    """

    strides: dict[Variable, tuple[int, ...]]
    bases: dict[Variable, Variable]
    known: dict[Variable, tuple[int, int]] = field(default_factory=dict)
    kernels: dict[Equation, Any] = field(default_factory=dict)

    def base(self, variable: Variable) -> Variable:
        """Return the value whose memory a value is in."""
        return self.bases.get(variable, variable)

    def left_of(self, program: Program) -> Layout:
        """Return the layout of a program with some of the values."""
        left = {*program.inputs, *[equation.output for equation in program.equations]}

        def kept(found: dict[Variable, Any]) -> dict[Variable, Any]:
            return {x: one for x, one in found.items() if x in left}

        kernels = {one: self.kernels[one] for one in program.equations if one in self.kernels}
        return Layout(kept(self.strides), kept(self.bases), kept(self.known), kernels)

    def add(self, equation: Equation) -> None:
        """Find how the result of an equation lies whose inputs are known."""
        output = equation.output
        found = _strides_of_view(equation, self) if _may_be_view(equation) else None
        if found is None:
            self.strides[output] = _strides_of_result(equation, self)
        else:
            self.strides[output] = found
            self.bases[output] = self.base(equation.inputs[0])

    def is_free_of_order(self, equation: Equation) -> bool:
        """
        Return whether an elementwise equation has the same bits in whatever order its elements are computed.

        NumPy's products of complex numbers round once less where elements lie next to each other (with FMA), so that
        its own order is a part of the result: 7 of 12 elements of a product with rows read backwards. A single element
        it takes for one that lies next to nothing.
        """
        output = equation.output
        arrays = [x for x in (output, *equation.inputs) if x.type.shape and x.type.dtype.kind == "c"]
        alone = prod(output.type.shape) == 1
        return not arrays or (not alone and all(self._order_of(x) == self._order_of(output) for x in arrays))

    def _order_of(self, variable: Variable) -> tuple[tuple[int, ...], ...]:
        """Return the axes of a value, how far apart its elements are along each."""
        steps = [stride // variable.type.dtype.itemsize for stride in self.strides[variable]]
        return variable.type.shape, tuple(steps)


def find_layout(program: Program, strides: Sequence[tuple[int, ...]]) -> Layout:
    """
    Return how the values of a program lie for inputs with these strides.

    Args:
        program: The program.
        strides: Of each input.
    """
    layout = Layout(dict(zip(program.inputs, strides, strict=True)), {})
    for equation in program.equations:
        layout.add(equation)
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


def is_power_of_number(equation: Equation) -> bool:
    """Return whether an equation raises to a power that is a number: NumPy has ways of its own for some of these."""
    return equation.name == "power" and len(equation.arguments) == 2 and type(equation.arguments[1]) in (int, float)


def _strides_of_result(equation: Equation, layout: Layout) -> tuple[int, ...]:
    """Return the strides of a new array, whose axes are in the order in which NumPy puts them."""
    kind = equation.output.type
    if len(kind.shape) < 2:
        return packed_strides(kind)
    if ufunc_of(equation) is not None:
        if all(_forward_in_c_order(argument, layout) for argument in equation.arguments):
            return packed_strides(kind)  # as NumPy would say, in a twentieth of the time
        operands = [_small(argument, layout) for argument in equation.arguments]
        # NumPy itself says in which order it would allocate a small array of the same arrangement.
        flags: Any = [["readonly"]] * len(operands) + [["writeonly", "allocate"]]
        types: Any = [None] * len(operands) + [kind.dtype]
        made = np.nditer([*operands, None], ["zerosize_ok"], flags, types, order="K").operands[-1]
    else:
        made = _tried(equation, layout)
    if made is None or made.ndim != len(kind.shape):
        return packed_strides(kind)
    return packed_strides(kind, sorted(range(made.ndim), key=lambda axis: (-abs(made.strides[axis]), axis)))


def _tried(equation: Equation, layout: Layout) -> Any:
    """Return what a function of ours or of NumPy's makes of small arrays that lie alike; None if that is in C order."""
    if equation.name == "reshape":
        kind, turned = equation.output.type, equation.params["order"] == "F"
        return np.empty([min(n, 2) for n in kind.shape], kind.dtype, order="F" if turned else "C")
    index = equation.params.get("index", ())
    by_arrays = equation.name == "getitem" and any(isinstance(part, np.ndarray) for part in index)
    usual = all(_in_c_order(v.type.shape, layout.strides[v]) for v in equation.inputs)
    usual = usual and all(_in_c_order(x.shape, x.strides) for x in equation.arguments if isinstance(x, np.ndarray))
    usual = usual and equation.params.get("order") != "F"  # a copy can be asked for in another order
    # A view of an array that the program has lies as NumPy's does, which may copy what is taken of that.
    usual = usual and not (equation.primitive is not None and equation.primitive.aliases and not equation.inputs)
    apart = equation.name in ("scatter", "add_at", "cross") or type(equation.function) is OnStacks
    if (usual and not by_arrays) or apart:
        return None
    if equation.name in ("setitem", "add.at"):
        return np.array(_small(equation.arguments[0], layout), order="K")
    made = None
    for most in _ENOUGH:
        made = _made_of(equation, layout, most, by_arrays=by_arrays)
        if made is not None and made.size and made.shape.count(1) <= equation.output.type.shape.count(1):
            break  # else there is an axis with one element, which lies anyhow
    return made


def _made_of(equation: Equation, layout: Layout, most: int, *, by_arrays: bool) -> Any:
    """Return what a function makes of arrays of so many elements along each axis; None if they do not fit."""
    arguments, params = substitute((equation.arguments, equation.params), lambda v: _small(v, layout, most))
    arguments = tuple([_small(x, layout, most) if isinstance(x, np.ndarray) else x for x in arguments])
    if by_arrays:
        params = {**params, "index": tuple([_small_index(part) for part in params["index"]])}
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few elements, or of zeros
            made = equation.function(*arguments, **params)
    except (ValueError, TypeError, IndexError, np.linalg.LinAlgError):
        return None  # its parameters, or zeros, do not fit
    return made if isinstance(made, np.ndarray) else None


def _forward_in_c_order(argument: Any, layout: Layout) -> bool:
    """Return whether an operand lies in C order, along no axis backwards; a number does."""
    if type(argument) is Variable:
        shape, strides = argument.type.shape, layout.strides[argument]
    else:
        argument = np.asarray(argument)
        shape, strides = argument.shape, argument.strides
    return not shape or (min(strides) >= 0 and _in_c_order(shape, strides))


def _in_c_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether the axes of an array lie in the order of their numbers, the last one fastest."""
    steps = [abs(step) for n, step in zip(shape, strides, strict=True) if n != 1]
    return 0 not in steps and all(one >= other for one, other in pairwise(steps))


def _small(argument: Any, layout: Layout, most: int = _ENOUGH[0]) -> Any:
    """Return zeros that lie as an operand does, cut to some elements along each axis."""
    if type(argument) is Variable:
        kind, strides = argument.type, layout.strides[argument]
    else:
        argument = np.asarray(argument)
        kind, strides = type_of(argument), argument.strides
    order = sorted(range(len(kind.shape)), key=lambda axis: (-abs(strides[axis]), axis))
    # No axis is empty, so that the strides tell the order; one that is spread out is so here.
    size = [min(n, most) if n else most for n in kind.shape]
    if packed_strides(kind, order) == strides:
        base = np.zeros([size[axis] for axis in order], kind.dtype)
    else:
        # With a gap after each element, and along axes of one element as well.
        base = np.zeros([most] * len(size) + [2], kind.dtype)[..., 0]
    turned = base.transpose([order.index(axis) for axis in range(len(order))])
    ends = [1 if step == 0 else n for n, step in zip(size, strides, strict=True)]
    turned = turned[tuple([slice(n - 1, None, -1) if step < 0 else slice(n)
                           for n, step in zip(ends, strides, strict=True)])]  # fmt: skip
    return np.broadcast_to(turned, size) if 0 in strides else turned


def _small_index(part: Any) -> Any:
    """Return an index of small arrays: for an array one that lies alike and names elements that are there."""
    if not isinstance(part, np.ndarray):
        return part if not isinstance(part, (int, np.integer)) else 0
    small = np.asarray(_small(part, Layout({}, {})))  # an array without axes is no number to NumPy
    return np.ones_like(small) if part.dtype == np.bool_ else small


def packed_strides(kind: ArrayType, order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the strides of an array without gaps, whose axes lie in this order, the slowest first; C's by default."""
    strides = [0] * len(kind.shape)
    step = kind.dtype.itemsize
    for axis in reversed(range(kind.ndim) if order is None else order):
        strides[axis] = step
        step *= max(1, kind.shape[axis])
    return tuple(strides)
