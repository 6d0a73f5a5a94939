"""
The pass that has small products of matrices made by a loop of our own, which takes two thirds of the time of BLAS.

Its bits are not those of BLAS, so all executors have it, and sizes and types alone say for which products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ebbtide.machine import HAS_SMALL_PRODUCTS, small_product
from ebbtide.program.equation import Equation, Variable, kind_of
from ebbtide.program.program import Program

# Multiplications: the least, and by type the most, of any product and of one with few columns. OpenBLAS fills no
# register with these: 32 x 784 x 6 takes it 1.7 times as long, 128 x 784 x 6 twice. Eight products of 300,000 to
# 650,000 in float32 took it 0.9 to 1.3 times as long, with one thread and with two; in float64 0.8 to 1.2 times.
LEAST, FEW = 1 << 10, 8
MOST: Mapping[str, tuple[int, int]] = MappingProxyType({"<f4": (1 << 19, 1 << 20), "<f8": (1 << 17, 1 << 19)})
_NAMES = frozenset(("matmul", "dot"))


def small_products(program: Program) -> Program:
    """Return a program whose small products of matrices are made by a loop of our own, in each executor."""
    if not HAS_SMALL_PRODUCTS:
        return program
    equations = tuple([_small(equation) if is_small(equation) else equation for equation in program.equations])
    return replace(program, equations=equations, history=(*program.history, "small products"))


def is_small(equation: Equation) -> bool:
    """Return whether an equation is a product that our loop is the faster one for. Only sizes and types tell."""
    if equation.name not in _NAMES or equation.primitive is None or equation.params:
        return False
    if not all(type(x) is Variable or isinstance(x, np.ndarray) for x in equation.arguments):
        return False
    x, y = [kind_of(x) for x in equation.arguments]
    if len(x.shape) != 2 or len(y.shape) != 2 or x.dtype != y.dtype or x.dtype.str not in MOST:
        return False
    (rows, inner), columns = x.shape, y.shape[1]
    # Products with vectors have loops of their own in BLAS.
    return rows > 1 and columns > 2 and LEAST <= rows * inner * columns <= MOST[x.dtype.str][columns <= FEW]


def _small(equation: Equation) -> Equation:
    return replace(equation, primitive=None, function=small_product, name="small_product")
