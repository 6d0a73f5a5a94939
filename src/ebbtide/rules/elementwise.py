# ruff: noqa: PLW0108 - the names of the parameters of a lambda are what the rule saves
"""
Rules of elementwise operations: one derivative expression for each operand.

The parameters of an expression name what is saved: operands `x`, `y`, the output `out`, or a kept value.
Constants are Python numbers, which never change the dtype of an array.
"""

from __future__ import annotations

import math
import operator
from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.constants import constant
from ebbtide.arrays.constants import elementwise as same
from ebbtide.arrays.kinds import NUMBERS, elementwise, handler_of, numpy_complex
from ebbtide.arrays.registry import register
from ebbtide.rules.answers import answer


def declare(functions: Any, *args: Any, **kwargs: Any) -> None:
    """Declare an elementwise operation and let it answer for NumPy's function of the name."""
    function = functions[0] if isinstance(functions, tuple) else functions
    # On NumPy scalars an operator takes a tenth of the time of the ufunc (60 against 860 ns), with the same bits but of
    # complex products with AVX-512. There the last one differs in 43 of 100, as it does in NumPy's own products of one
    # element in place of an operand; larger arrays have the same bits in all ways.
    faster = OPERATORS.get(function, function)
    register(functions, handler_of(elementwise(faster, *args, name=function.__name__, **kwargs)))


OPERATORS = MappingProxyType(
    {
        np.negative: operator.neg,
        np.add: operator.add,
        np.subtract: operator.sub,
        np.multiply: operator.mul,
        np.true_divide: operator.truediv,
    }
)
LOG_2, LOG_10 = math.log(2), math.log(10)

# Arithmetic.
declare(np.negative, d=-1)
declare(np.positive, d=1)
declare(np.add, d=(1, 1))
declare(np.subtract, d=(1, -1))
declare(np.multiply, d=(lambda y: y, lambda x: x))
declare(
    np.true_divide,
    d=(lambda g, y: g / y, lambda g, out, y: np.negative(g * out / y)),
)
declare(np.reciprocal, d=lambda out: np.negative(np.square(out)))
declare(np.square, d=lambda x: 2 * x)
# The first square of a complex scalar in a process goes another way in NumPy than all later ones, and differs by an ulp
# in 41 % of cases (2.4): it is done here, so that a function that is run again gives the same bits.
for _dtype in (np.complex64, np.complex128):
    np.square(_dtype(1))
declare(np.sqrt, d=lambda g, out: g * 0.5 / out)
declare(np.cbrt, d=lambda out: 1 / (3 * np.square(out)))


def _power_of_base(x: Any, y: Any) -> Any:
    """Return y x^(y-1), which is 0 where y is 0, also at x = 0: there, and only there, the power is another one."""
    if type(y) in NUMBERS:
        return y * (x ** (y - 1 if y else 1) if y != 2 else x)
    infinite = np.logical_and(y == 0, np.absolute(x) < np.finfo(type_of(x).dtype).tiny)
    return y * np.power(x, np.where(infinite, 1, y - 1))


def _power_of_exponent(x: Any, out: Any) -> Any:
    """Return x^y log x, which is 0 at x = 0: the limit from above for positive exponents."""
    is_complex = type_of(out).dtype.kind == "c"  # then negative numbers have a logarithm
    if type(x) in NUMBERS:
        return out * (complex(np.log(complex(x))) if is_complex and x < 0 else float(np.log(x if x else 1)))
    x = np.astype(x, type_of(out).dtype) if is_complex and type_of(x).dtype.kind != "c" else x
    return out * np.log(np.where(x == 0, 1, x))


_power = elementwise(operator.pow, d=(_power_of_base, _power_of_exponent), name="power")
# The function has no other operation for some numbers: of complex numbers the last bit is another one in 1 of 7. And
# its loop has, with AVX-512, other bits than the operator of NumPy scalars.
_power_by_function = elementwise(np.power, d=(_power_of_base, _power_of_exponent), name="power")
# Its own loop: with AVX-512 the last bit is another one than that of the power of doubles.
_power_in_double = elementwise(np.float_power, d=(_power_of_base, _power_of_exponent))


def power_operator(x: Any, y: Any) -> Any:
    """
    Return x ** y, by the operations that NumPy has for arrays and some numbers.

    Of its own numbers it takes the power of the C library also there, of which the last bit is another one in 1 of
    1,000: a step that has `u / np.sum(u**2) ** 0.5` and runs again without a tape would not come to what it was.
    """
    if type(y) in NUMBERS and type_of(x).shape:
        kind = type_of(x).dtype.kind
        if y == 2 and kind != "b" and (kind == "f" or type(y) is int):
            return np.square(x)
        if y == 0.5 and kind == "f":
            return np.sqrt(x)
    return _power.bind((numpy_complex(x, y), numpy_complex(y, x)))


def power(x: Any, y: Any) -> Any:
    """Return np.power(x, y)."""
    if type(y) in NUMBERS and y == 2 and type_of(x).dtype.kind == "f":
        return np.square(x)
    return _power_by_function.bind((numpy_complex(x, y), numpy_complex(y, x)))


def _float_power(x: Any, y: Any) -> Any:
    """Return x ** y in double precision, whatever the operands are."""
    double = np.result_type(type_of(x).dtype, type_of(y).dtype, np.float64)
    return _power_in_double.bind((_in_double(x, double), _in_double(y, double)))


def _in_double(x: Any, double: np.dtype[Any]) -> Any:
    """Return an operand in double precision; a traced number of Python's, which cannot be cast, has it or is real."""
    if type(x) in NUMBERS or type_of(x).dtype == double:
        return x
    return x.astype(double) if type_of(x).shape else x * np.float64(1)


register(np.power, power)
register(operator.pow, power_operator)
register(np.float_power, _float_power)

# Exponentials and logarithms.
declare(np.exp, d=lambda out: out)
declare(np.exp2, d=lambda out: out * LOG_2)
declare(np.expm1, d=lambda out: out + 1)
declare(np.log, d=lambda g, x: g / x)
declare(np.log2, d=lambda x: 1 / (x * LOG_2))
declare(np.log10, d=lambda x: 1 / (x * LOG_10))
declare(np.log1p, d=lambda x: 1 / (x + 1))


def _gap(x: Any, y: Any) -> Any:
    """Return x - y, and 0 where both are the same infinity: these share equally, and have no second derivative."""
    with np.errstate(invalid="ignore"):
        return np.where(np.logical_and(x == y, np.isinf(x)), 0.0, x - y)


def _share(x: Any, y: Any) -> Any:
    """Return exp(x) / (exp(x) + exp(y)) to full relative accuracy, for any operands."""
    return np.exp(np.negative(np.logaddexp(_gap(y, x), 0.0)))


def _share2(x: Any, y: Any) -> Any:
    """Return 2^x / (2^x + 2^y)."""
    return np.exp2(np.negative(np.logaddexp2(_gap(y, x), 0.0)))


declare(np.logaddexp, d=(lambda x, y: _share(x, y), lambda x, y: _share(y, x)))
declare(np.logaddexp2, d=(lambda x, y: _share2(x, y), lambda x, y: _share2(y, x)))

# Trigonometric and hyperbolic functions.
declare(np.sin, d=lambda x: np.cos(x))
declare(np.cos, d=lambda x: np.negative(np.sin(x)))
declare(np.tan, d=lambda out: np.square(out) + 1)
declare(np.arcsin, d=lambda x: 1 / np.sqrt((1 - x) * (1 + x)))
declare(np.arccos, d=lambda x: -1 / np.sqrt((1 - x) * (1 + x)))
declare(np.arctan, d=lambda x: 1 / (np.square(x) + 1))


def _over_square(z: Any, x: Any, y: Any) -> Any:
    """Return z / r^2 with r = |(x, y)|, without overflow; 0 at the origin, by convention."""
    radius = np.hypot(x, y)
    radius = np.where(radius == 0, 1, radius)
    return z / radius / radius


declare(
    np.arctan2,
    d=(lambda x, y: _over_square(y, x, y), lambda x, y: np.negative(_over_square(x, x, y))),
)
declare(
    np.hypot,
    d=(lambda x, out: x / np.where(out == 0, 1, out), lambda y, out: y / np.where(out == 0, 1, out)),
)
declare(np.sinh, d=lambda x: np.cosh(x))
declare(np.cosh, d=lambda x: np.sinh(x))
declare(np.tanh, d=lambda out: 1.0 - np.square(out))
declare(np.arcsinh, d=lambda x: 1 / np.sqrt(np.square(x) + 1))
declare(np.arccosh, d=lambda x: 1 / (np.sqrt(x - 1) * np.sqrt(x + 1)))
declare(np.arctanh, d=lambda x: 1 / ((1 - x) * (1 + x)))
declare((np.deg2rad, np.radians), d=math.pi / 180)
declare((np.rad2deg, np.degrees), d=180 / math.pi)

# Ties share equally: the side is 1 where x wins, -1 where y wins, 0 at a tie. Where an operand is nan it is a tie, but
# fmax and fmin take the other operand then.


def _difference(x_wins: Any, y_wins: Any) -> Any:
    """Return the side from two conditions, as one byte."""
    if type(x_wins) is np.ndarray:
        return np.subtract(x_wins.view(np.int8), y_wins.view(np.int8))  # without a copy
    return np.subtract(x_wins, y_wins.astype(np.int8))


def _side_of_larger(x: Any, y: Any) -> Any:
    return _difference(np.greater(x, y), np.less(x, y))


def _side_of_smaller(x: Any, y: Any) -> Any:
    return _difference(np.less(x, y), np.greater(x, y))


def _side_of_larger_number(x: Any, y: Any) -> Any:
    return _difference(np.logical_or(x > y, np.isnan(y)), np.logical_or(x < y, np.isnan(x)))


def _side_of_smaller_number(x: Any, y: Any) -> Any:
    return _difference(np.logical_or(x < y, np.isnan(y)), np.logical_or(x > y, np.isnan(x)))


_SHARES = (lambda g, side: g * (1 + side) * 0.5, lambda g, side: g * (1 - side) * 0.5)
for _ufunc, _side in (
    (np.maximum, _side_of_larger),
    (np.fmax, _side_of_larger_number),
    (np.minimum, _side_of_smaller),
    (np.fmin, _side_of_smaller_number),
):
    declare(_ufunc, d=_SHARES, keep={"side": _side})


def _sign(x: Any) -> Any:
    """Return the sign as one byte; 0 at 0, where the slopes of both sides share."""
    return _difference(np.greater(x, 0), np.less(x, 0))


_absolute_real = elementwise(np.absolute, d=lambda g, sign: g * sign, keep={"sign": _sign})
def _direction(x: Any, out: Any) -> Any:
    """
    Return conj(x) / |x|, and 0 at 0.

    NumPy's quotient of complex numbers overflows where |x| is subnormal, so that there both are scaled, without error.
    """
    real = type_of(out).dtype.type
    scale = np.where(out < np.finfo(real).tiny, real(2.0**60), real(1))
    return np.conjugate(x) * scale / np.where(out == 0, real(1), out * scale)


_absolute_complex = elementwise(np.absolute, d=_direction, name="absolute")


def absolute(x: Any) -> Any:
    """Return |x|; of complex numbers too."""
    return (_absolute_complex if type_of(x).dtype.kind == "c" else _absolute_real).bind((x,))


# Of NumPy's complex numbers the operator gives another last bit than the function in 1 of 3.
_modulus = elementwise(operator.abs, d=_direction, name="modulus")


def _absolute_by_operator(x: Any) -> Any:
    """Return abs(x), which a step that runs again without a tape computes by the operator, too."""
    kind = type_of(x)
    return _modulus.bind((x,)) if kind.dtype.kind == "c" and not kind.shape else absolute(x)


register(np.absolute, absolute)
register(operator.abs, _absolute_by_operator)
declare(np.fabs, d=lambda g, sign: g * sign, keep={"sign": _sign})
declare(
    np.copysign,
    d=(lambda g, flip: g * flip, 0),
    keep={"flip": lambda x, y: _sign(x) * (1 - 2 * np.signbit(y).astype(np.int8))},
)

# Division with remainder: the quotient is constant between its jumps. It is the one that the remainder itself was made
# with: floor(x / y) would be 10 for 1.0 and 0.1, whose remainder is 1.0 - 9 * 0.1.
declare(np.remainder, d=(1, lambda x, y: np.negative(np.floor_divide(x, y))))
declare(np.fmod, d=(1, lambda x, y: np.negative(np.rint((x - np.fmod(x, y)) / y))))

register(np.divmod, lambda x, y: (np.floor_divide(x, y), np.remainder(x, y)))

# Parts of a number: the whole part and the exponent are steps.
_fraction = elementwise(lambda x: np.modf(x)[0], d=1, name="modf")
_whole = constant(lambda x: np.modf(x)[1], lambda x: ArrayType(x.shape, np.modf(np.ones((), x.dtype))[1].dtype), same)
_exponent = constant(lambda x: np.frexp(x)[1], lambda x: ArrayType(x.shape, np.dtype(np.int32)), same)
_mantissa = elementwise(
    lambda x: np.frexp(x)[0], d=lambda g, x: np.ldexp(g, np.negative(_exponent(x))), name="frexp"
)
register(np.modf, lambda x: (_fraction.bind((x,)), _whole(x)))
register(np.frexp, lambda x: (_mantissa.bind((x,)), _exponent(x)))
_ldexp = elementwise(np.ldexp, d=(lambda g, y: np.ldexp(g, y), 0))
register(np.ldexp, lambda x, y: _ldexp.bind((x, np.asarray(y)[()] if type(y) is int else y)))


def _real_if_close(a: Any, tol: float = 100) -> Any:
    """Return the real part where the imaginary part is all rounding."""
    dtype = type_of(a).dtype
    if dtype.kind != "c":
        return a
    limit = np.finfo(dtype).eps * tol if tol > 1 else tol
    return np.real(a) if np.all(np.absolute(np.imag(a)) < limit) else a


answer(np.real_if_close, _real_if_close)

# sin(pi x) / (pi x): near zero the difference in the slope cancels, so a series takes over.
SERIES = (-1 / 3, 1 / 30, -1 / 840, 1 / 45360, -1 / 3991680, 1 / 518918400)


def _sinc_slope(x: Any) -> Any:
    """Return pi (cos y - sin(y) / y) / y with y = pi x."""
    y = x * math.pi
    near = np.absolute(y) < 0.5
    square = np.square(np.where(near, y, 0.0))
    series = square * SERIES[-1]
    for coefficient in SERIES[-2:0:-1]:
        series = (series + coefficient) * square
    far = np.where(near, 1.0, y)
    return np.where(near, (series + SERIES[0]) * y, (np.cos(far) - np.sin(far) / far) / far) * math.pi


answer(np.sinc, elementwise(np.sinc, d=_sinc_slope))
