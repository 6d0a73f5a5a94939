"""What equations cost, and which of them may be computed twice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.program.equation import OBJECT, Equation, Inner, Variable
from ebbtide.program.layout import Layout, ufunc_of
from ebbtide.program.program import Program
from ebbtide.program.rooms import filled, room
from ebbtide.program.windowed import moment_of, multiplications_of
from ebbtide.program.windows import shape_of
from ebbtide.tape.joint import part

# The unit is a byte read or written by a simple operation. On the processor of the measurements (2 cores, arrays of
# 4 MiB) that was 45 GB/s; products of matrices did 30 Gflop/s in single precision, and 16 in double precision;
# exponentials and their like 0.5 to 1 GB/s.
_FLOP = 1.5
_FUNCTION = 50
SIMPLE = frozenset({
    "add", "subtract", "multiply", "divide", "negative", "positive", "square", "absolute", "fabs", "maximum", "minimum",
    "fmax", "fmin", "copysign", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "logical_and",
    "logical_or", "logical_not", "logical_xor", "sign", "floor", "ceil", "rint", "trunc", "isnan", "isfinite", "isinf",
    "signbit", "conjugate", "reciprocal", "sqrt",
})  # fmt: skip
PRODUCTS = frozenset({"matmul", "dot", "add_product", "small_product"})
# Their functions compute from their arguments alone, and give the same bits each time.
_PURE = ("numpy", "_operator", "scipy.special", "ebbtide.rules", "ebbtide.program", "ebbtide.machine")


def may_repeat(equation: Equation) -> bool:
    """Return whether an equation may be computed twice: a function of a user's might draw, count or wait."""
    function = equation.function
    if ufunc_of(equation) is not None:
        return True
    if function in (room, filled) or isinstance(function, Inner):
        return False  # what is written into a room is written once
    module = getattr(function, "__module__", None) or ""
    return any(module == known or module.startswith(f"{known}.") for known in _PURE)


def is_product(equation: Equation) -> bool:
    """Return whether an equation is a product of matrices, or made of such."""
    return equation.name in PRODUCTS or multiplications_of(equation) is not None


def cost_of(equation: Equation) -> int:
    """Return what it costs to compute an equation, in bytes that a simple operation reads and writes."""
    output = equation.output
    if isinstance(equation.function, Inner):
        return equation.function.work
    moved = output.nbytes + sum(variable.nbytes for variable in equation.inputs)
    if is_product(equation):
        inner = shape_of(equation.arguments[-2])[-1:] or (1,)
        flops = 2 * (multiplications_of(equation) or inner[0] * math.prod(output.type.shape))
        # Double precision has half as many elements in a register, complex numbers four products in one.
        width = output.type.dtype.itemsize / 4 * (2 if output.type.dtype.kind == "c" else 1)
        return moved + int(_FLOP * width * flops)
    ufunc = ufunc_of(equation)
    return moved * (_FUNCTION if ufunc is not None and equation.name not in SIMPLE else 1)


def workspace(equation: Equation, layout: Layout) -> int:
    """Return the bytes that NumPy takes for a moment: copies of matrices that BLAS cannot read, buffers of casts."""
    arrays = [argument for argument in equation.arguments if type(argument) is Variable]
    if isinstance(equation.function, Inner):
        return equation.function.moment_nbytes
    if equation.name == "small_product":
        return 0
    if equation.name == "add_scatter":
        return _turned(equation)
    if equation.name in PRODUCTS:
        return sum(_copied(v, layout.strides[v], packed=equation.name == "add_product") for v in arrays[-2:])
    moment = moment_of(equation)
    if moment is not None:
        return moment
    ufunc, output = ufunc_of(equation), equation.output
    size = min(np.getbufsize(), max((math.prod(v.type.shape) for v in (*arrays, output)), default=0))
    kinds = {v.type.dtype for v in (*arrays, output)}
    if ufunc is None:
        mixed = len(kinds) > 1 and equation.primitive is not None
        return size * 2 * max(kind.itemsize for kind in kinds) if mixed else 0
    # One buffer for each operand that does not lie as the result does, and one for each that is cast.
    own = _in_elements(output, layout)
    found = sum(v.type.dtype.itemsize for v in arrays if v.type.shape and _in_elements(v, layout) != own)
    if len(kinds) > 1:
        given = [_dtype(argument) for argument in equation.arguments]
        loop = ufunc.resolve_dtypes((*given, None))
        found += sum(k.itemsize for one, k in zip(given, loop, strict=False) if isinstance(one, np.dtype) and one != k)
    return size * found


def weighed(equation: Equation, layout: Layout) -> tuple[int, int]:
    """Return what an equation costs, and the bytes that NumPy takes for a moment; once for all copies."""
    found = layout.known.get(equation.output)
    if found is None:
        view = equation.output in layout.bases
        found = layout.known[equation.output] = (0 if view else cost_of(equation)), workspace(equation, layout)
    return found


def loops_of(program: Program) -> list[Equation]:
    """Return the equations of which it is not known what they hold: time loops, and functions that have some."""
    return [e for e in program.equations if e.output.type is OBJECT and not _is_known(e.function)]


def _is_known(function: Any) -> bool:
    """Return whether it is known what a function takes whose result is no array."""
    if isinstance(function, Inner):
        return not loops_of(function.program)
    return function is part


def _in_elements(variable: Variable, layout: Layout) -> list[float]:
    return [stride / variable.type.dtype.itemsize for stride in layout.strides[variable]]


def _turned(equation: Equation) -> int:
    """Return the bytes of the buffers through which NumPy adds to a part that runs backwards."""
    index: tuple[Any, ...] = equation.params["index"]
    backwards = any(isinstance(one, slice) and int(one.step or 1) < 0 for one in index)
    part = shape_of(equation.arguments[1])
    return 2 * min(np.getbufsize(), math.prod(part)) * equation.output.type.dtype.itemsize if backwards else 0


def _copied(matrix: Variable, strides: tuple[int, ...], *, packed: bool) -> int:
    """Return the bytes of the copy that a product makes of a matrix; none if it lies as BLAS reads it."""
    shape, item = matrix.type.shape[-2:], matrix.type.dtype.itemsize
    if len(shape) < 2 or min(shape) < 2:
        return 0
    for inner, outer in ((1, 0), (0, 1)):
        row = item * shape[inner]
        if strides[-2:][inner] == item and (strides[-2:][outer] == row or (not packed and strides[-2:][outer] > row)):
            return 0
    return matrix.nbytes if packed else item * shape[0] * shape[1]


def _dtype(value: Any) -> Any:
    if type(value) is Variable:
        return value.type.dtype
    return type(value) if type(value) in (int, float, complex) else np.asarray(value).dtype
