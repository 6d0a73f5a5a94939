"""What equations cost, and which of them may be computed twice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.program.equation import Equation, Variable
from ebbtide.program.layout import ufunc_of

# The unit is a byte read or written by a simple operation, on the processor of the measurements (2 cores): 45 GB/s where
# arrays are in the cache. Products of matrices do 30 Gflop/s in single precision there, exponentials and their like
# 0.5 to 1 GB/s.
_FLOP = 1.5
_FUNCTION = 50
_SIMPLE = frozenset({
    "add", "subtract", "multiply", "divide", "negative", "positive", "square", "absolute", "fabs", "maximum", "minimum",
    "fmax", "fmin", "copysign", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "logical_and",
    "logical_or", "logical_not", "logical_xor", "sign", "floor", "ceil", "rint", "trunc", "isnan", "isfinite", "isinf",
    "signbit", "conjugate", "reciprocal", "sqrt",
})  # fmt: skip
PRODUCTS = frozenset({"matmul", "add_product"})
# Their functions compute from their arguments alone, and give the same bits each time.
_PURE = ("numpy", "_operator", "scipy.special", "ebbtide.rules", "ebbtide.program")


def may_repeat(equation: Equation) -> bool:
    """Return whether an equation may be computed twice: a function of a user's might draw, count or wait."""
    function = equation.function
    if ufunc_of(equation) is not None:
        return True
    module = getattr(function, "__module__", None) or ""
    return any(module == known or module.startswith(f"{known}.") for known in _PURE)


def is_product(equation: Equation) -> bool:
    """Return whether an equation is a product of matrices."""
    return equation.name in PRODUCTS


def cost_of(equation: Equation) -> int:
    """Return what it costs to compute an equation, in bytes that a simple operation reads and writes."""
    output = equation.output
    moved = output.nbytes + sum(variable.nbytes for variable in equation.inputs)
    if is_product(equation):
        inner = _shape(equation.arguments[-2])[-1:] or (1,)
        flops = 2 * inner[0] * math.prod(output.type.shape)
        # Double precision has half as many elements in a register, complex numbers four products in one.
        width = output.type.dtype.itemsize / 4 * (2 if output.type.dtype.kind == "c" else 1)
        return moved + int(_FLOP * width * flops)
    ufunc = ufunc_of(equation)
    return moved * (_FUNCTION if ufunc is not None and equation.name not in _SIMPLE else 1)


def buffer_bytes(equation: Equation) -> int:
    """Return an upper bound for the bytes of the buffers through which NumPy casts operands of other dtypes."""
    ufunc = ufunc_of(equation)
    arrays = [argument for argument in equation.arguments if type(argument) is Variable]
    size = min(np.getbufsize(), max((math.prod(v.type.shape) for v in (*arrays, equation.output)), default=0))
    if ufunc is None:
        mixed = any(v.type.dtype != equation.output.type.dtype for v in arrays)
        return size * 2 * max(v.type.dtype.itemsize for v in (*arrays, equation.output)) if mixed else 0
    given = [_dtype(argument) for argument in equation.arguments]
    loop = ufunc.resolve_dtypes((*given, None))
    cast = [kind for one, kind in zip(given, loop, strict=False) if isinstance(one, np.dtype) and one != kind]
    return size * sum(kind.itemsize for kind in cast)


def _dtype(value: Any) -> Any:
    if type(value) is Variable:
        return value.type.dtype
    return type(value) if type(value) in (int, float, complex) else np.asarray(value).dtype


def _shape(value: Any) -> tuple[int, ...]:
    return value.type.shape if type(value) is Variable else np.shape(value)
