"""
The pass that makes of a product of matrices the part alone that is read.

The cotangents of arrays that stand side by side are columns of one product, and of constants among them nobody takes
one: of a recurrent net's letters, hidden units and ones 40 of 169 columns are read, and the gradient takes 0.9 of the
time. BLAS may round a narrower product otherwise, so all executors have it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.equation import Equation, Variable, kind_of
from ebbtide.program.lifetimes import used_once
from ebbtide.program.program import Program

_NAMES = frozenset(("matmul", "dot"))
# So many multiplications have to be left out, which take half a microsecond: a view more, and other bits, are for more.
_LEAST = 1 << 13


def narrow_products(program: Program) -> Program:
    """Return a program in which a product of which only some rows or columns are read has no others."""
    once = used_once(program)
    products = {one.output: one for one in program.equations if one.output in once and _is_product(one)}
    parts = {one.arguments[0]: one for one in program.equations if _is_part(one, products)}
    if not parts:
        return program
    views: dict[Any, Variable] = {}
    found: list[Equation] = []
    taken = {part.output for part in parts.values()}
    for equation in program.equations:
        part = parts.get(equation.output)
        if part is not None:
            operands = []
            for axis, (operand, bounds) in enumerate(zip(equation.arguments, _bounds(part), strict=True)):
                operands.append(_narrowed(operand, axis, bounds, part, views, found))
            found.append(equation.of(tuple(operands), equation.params, part.output))
        elif equation.output not in taken:
            found.append(equation)
    return replace(program, equations=tuple(found), history=(*program.history, "products narrowed"))


def _is_product(equation: Equation) -> bool:
    if equation.name not in _NAMES or equation.primitive is None or equation.params or len(equation.arguments) != 2:
        return False
    known = all(type(x) is Variable or type(x) is np.ndarray for x in equation.arguments)
    return known and all(len(kind_of(x).shape) == 2 for x in equation.arguments)


def _is_part(equation: Equation, products: dict[Variable, Equation]) -> bool:
    """Return whether an equation takes some rows and columns of a product, next to each other."""
    if equation.name != "getitem" or type(equation.arguments[0]) is not Variable:
        return False
    product, kind = products.get(equation.arguments[0]), equation.output.type
    if product is None or len(kind.shape) != 2 or 0 in kind.shape:
        return False
    inner = kind_of(product.arguments[0]).shape[1]
    left_out = inner * (prod(product.output.type.shape) - prod(kind.shape))
    return left_out >= _LEAST and all(type(one) is slice and one.step in (None, 1) for one in equation.params["index"])


def _bounds(part: Equation) -> list[tuple[int, int]]:
    """Return the first row and column that are read, and those after the last."""
    shape, index = part.arguments[0].type.shape, part.params["index"]
    return [(index[k] if k < len(index) else slice(None)).indices(size)[:2] for k, size in enumerate(shape)]


def _narrowed(
    operand: Any, axis: int, bounds: tuple[int, int], part: Equation, views: dict[Any, Variable], found: list[Equation]
) -> Any:
    """Return some of the rows or columns of an operand; that they are a view is added to the equations."""
    kind, (first, end) = kind_of(operand), bounds
    if (first, end) == (0, kind.shape[axis]):
        return operand
    index = (*[slice(None)] * axis, slice(first, end))
    if type(operand) is np.ndarray:
        return operand[index]
    key = operand, axis, bounds
    if key not in views:
        shape = (*kind.shape[:axis], end - first, *kind.shape[axis + 1 :])
        views[key] = Variable(ArrayType(shape, kind.dtype), "getitem")
        found.append(part.of((operand,), part.params | {"index": index}, views[key]))
    return views[key]
