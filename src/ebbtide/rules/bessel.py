# ruff: noqa: PLW0108 - the names of the parameters of a lambda are what the rule saves
"""
Rules of Bessel functions, exponential integrals, elliptic integrals and hypergeometric functions.

Each derivative is a function of the family, by a recurrence without division: exact at 0 too. By the order, and by the
parameters of hypergeometric functions, there is no rule.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.kinds import elementwise
from ebbtide.rules.answers import answer
from ebbtide.rules.elementwise import declare
from ebbtide.rules.special import declare_strong, declare_weak, register_weak, without_rule


def _order(function: Any) -> Any:
    return without_rule(f"the order of {function.__name__}")


# Of any order: Z' = (Z of order v-1 less Z of order v+1) / 2, and the modified ones with other signs.
declare_weak(special.jv, d=(_order(special.jv), lambda x, y: (special.jv(x - 1, y) - special.jv(x + 1, y)) * 0.5))
declare_weak(special.yv, d=(_order(special.yv), lambda x, y: (special.yv(x - 1, y) - special.yv(x + 1, y)) * 0.5))
declare_weak(special.iv, d=(_order(special.iv), lambda x, y: (special.iv(x - 1, y) + special.iv(x + 1, y)) * 0.5))
declare_weak(special.kv, d=(_order(special.kv), lambda x, y: (special.kv(x - 1, y) + special.kv(x + 1, y)) * -0.5))
# Of a complex number the factor exp(-|Re z|) follows its real part alone, which is then an operand of its own.
_ive = elementwise(
    lambda v, z, real: special.ive(v, z),
    d=(
        _order(special.ive),
        lambda v, z, real: (_ive(v - 1, z, real) + _ive(v + 1, z, real)) * 0.5,
        lambda real, out: np.negative(np.sign(real)) * out,
    ),
    operands=("v", "z", "real"),
    name="ive",
)
_ive_real = elementwise(
    special.ive,
    d=(
        _order(special.ive),
        lambda x, y, out: (special.ive(x - 1, y) + special.ive(x + 1, y)) * 0.5 - out * np.sign(y),
    ),
)
register_weak(
    special.ive,
    lambda v, z: _ive(v, z, np.real(z)) if type_of(z).dtype.kind == "c" else _ive_real(v, z),
)
declare_weak(
    special.kve,
    d=(_order(special.kve), lambda x, y, out: out - (special.kve(x - 1, y) + special.kve(x + 1, y)) * 0.5),
)
# These two have loops for whole orders, which are of double precision.
declare_strong(special.yn, d=(_order(special.yn), lambda x, y: (special.yv(x - 1, y) - special.yv(x + 1, y)) * 0.5))
declare_strong(special.kn, d=(_order(special.kn), lambda x, y: (special.kv(x - 1, y) + special.kv(x + 1, y)) * -0.5))

# Of the orders 0 and 1.
declare(special.j0, d=lambda x: np.negative(special.j1(x)))
declare(special.j1, d=lambda x: (special.j0(x) - special.jv(2, x)) * 0.5)
declare(special.y0, d=lambda x: np.negative(special.y1(x)))
declare(special.y1, d=lambda x: (special.y0(x) - special.yv(2, x)) * 0.5)
declare(special.i0, d=lambda x: special.i1(x))
declare(special.i1, d=lambda x: (special.i0(x) + special.iv(2, x)) * 0.5)
declare(special.i0e, d=lambda x, out: special.i1e(x) - out * np.sign(x))
declare(special.i1e, d=lambda x, out: (special.i0e(x) + special.ive(2, x)) * 0.5 - out * np.sign(x))
declare(special.k0, d=lambda x: np.negative(special.k1(x)))
declare(special.k1, d=lambda x: (special.k0(x) + special.kv(2, x)) * -0.5)
declare(special.k0e, d=lambda x, out: out - special.k1e(x))
declare(special.k1e, d=lambda x, out: out - (special.k0e(x) + special.kve(2, x)) * 0.5)


def _slope_of_i0(x: Any) -> Any:
    """Return the function of order 1; SciPy's end at double precision, NumPy's does not."""
    return special.i1(np.astype(x, np.float64) if type_of(x).dtype.char == "g" else x)


answer(np.i0, elementwise(np.i0, d=_slope_of_i0))

# Exponential integrals.
declare(special.exp1, d=lambda x: np.negative(np.exp(np.negative(x)) / x))
declare(special.expi, d=lambda x: np.exp(x) / x)


def _slope_of_expn(x: Any, y: Any) -> Any:
    """Return the derivative of the exponential integral of order *x* at *y*: less that of the order below."""
    of_zero = np.exp(np.negative(y)) * (y + 1) / np.square(y)
    return np.negative(np.where(x == 0, of_zero, special.expn(np.maximum(x - 1, 0), y)))


declare_strong(special.expn, d=(_order(special.expn), _slope_of_expn))

# Hypergeometric functions: the derivative has all parameters larger by one.


def _parameter(function: Any) -> Any:
    return without_rule(f"the parameters of {function.__name__}")


declare_weak(special.hyp0f1, d=(_parameter(special.hyp0f1), lambda x, y: special.hyp0f1(x + 1, y) / x))
declare_weak(
    special.hyp1f1,
    d=(*(_parameter(special.hyp1f1),) * 2, lambda a, b, x: special.hyp1f1(a + 1, b + 1, x) * (a / b)),
    operands=("a", "b", "x"),
)
declare_weak(
    special.hyperu,
    d=(*(_parameter(special.hyperu),) * 2, lambda a, b, x: special.hyperu(a + 1, b + 1, x) * np.negative(a)),
    operands=("a", "b", "x"),
)
declare_strong(
    special.hyp2f1,
    d=(
        *(_parameter(special.hyp2f1),) * 3,
        lambda a, b, c, x: special.hyp2f1(a + 1, b + 1, c + 1, x) * (a * b / c),
    ),
    operands=("a", "b", "c", "x"),
)


# Complete elliptic integrals are hypergeometric functions of the parameter m. The usual forms of their derivatives
# cancel near m = 0: at m = 1e-12 they have 3 digits.


def _two_f_one(a: float, b: float, c: float, x: Any) -> Any:
    """Return 2F1 in the precision of *x*: Python numbers are double precision for it."""
    dtype = type_of(x).dtype
    return special.hyp2f1(*np.array([a, b, c], dtype), x)


declare(special.ellipk, d=lambda x: _two_f_one(1.5, 1.5, 2.0, x) * (math.pi / 8))
declare(special.ellipe, d=lambda x: _two_f_one(0.5, 1.5, 2.0, x) * (-math.pi / 8))
declare_strong(
    special.ellipkinc,
    d=(lambda x, y: 1 / np.sqrt(1 - y * np.square(np.sin(x))), without_rule("the parameter m of ellipkinc")),
)
declare_strong(
    special.ellipeinc,
    d=(lambda x, y: np.sqrt(1 - y * np.square(np.sin(x))), without_rule("the parameter m of ellipeinc")),
)
