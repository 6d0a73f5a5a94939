"""The pass that has BLAS add a product of matrices to a sum, so that the product itself is never there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.program.equation import Equation, Variable
from ebbtide.program.lifetimes import used_once
from ebbtide.program.program import Program
from ebbtide.rules.products import add_product

# What BLAS has products of.
_DTYPES = "fdFD"


def plus_product(total: Any, a: Any, b: Any) -> Any:
    """Return total + a b in a new array."""
    result = np.array(total, order="C")
    if not add_product(result, a, b):
        np.add(result, np.matmul(a, b), out=result)
    return result


def add_products(program: Program) -> Program:
    """Return a program in which sums take products, where nothing else uses these."""
    once = used_once(program)
    products = {
        equation.output: equation
        for equation in program.equations
        if equation.name == "matmul" and equation.output in once
        and equation.output.type.dtype.char in _DTYPES
        and all(type_of(x).dtype == equation.output.type.dtype and len(type_of(x).shape) == 2
                for x in (a.type if type(a) is Variable else a for a in equation.arguments))
    }  # fmt: skip
    taken: set[Variable] = set()
    found: list[Equation] = []
    for equation in program.equations:
        added = _with_product(equation, products)
        if added is not None:
            taken.add(added[1])
        found.append(equation if added is None else added[0])
    equations = tuple(equation for equation in found if equation.output not in taken)
    return replace(program, equations=equations, history=(*program.history, "products added by BLAS"))


def _with_product(equation: Equation, products: dict[Variable, Equation]) -> tuple[Equation, Variable] | None:
    """Return a sum as one with its product, and the product; None if it is no such sum."""
    if equation.name != "add" or len(equation.arguments) != 2:
        return None
    for number in (1, 0):
        product, total = equation.arguments[number], equation.arguments[1 - number]
        if type(product) is not Variable or type(total) is not Variable or product not in products:
            continue
        if product is total:
            continue  # the double of a product needs it
        if total.type == product.type == equation.output.type:
            arguments = (total, *products[product].arguments)
            return replace(
                equation, primitive=None, function=plus_product, name="add_product", arguments=arguments
            ), product
    return None
