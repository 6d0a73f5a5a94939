# ruff: noqa: PLW0108 - the names of the parameters of a lambda are what the rule saves
"""
Rules of SciPy's special functions, which are ufuncs and so reach traced arrays as NumPy's do.

Error functions, logistic functions, entropies, losses, and what NumPy has too; gamma and Bessel functions have files of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from ebbtide.arrays.kinds import NUMBERS, elementwise, handler_of
from ebbtide.arrays.location import user_line
from ebbtide.arrays.registry import register
from ebbtide.errors import RuleMissingError
from ebbtide.rules.elementwise import LOG_2, LOG_10, declare

_ROOT_OF_PI, _ROOT_OF_TWO, _ROOT_OF_TWO_PI = math.sqrt(math.pi), math.sqrt(2), math.sqrt(2 * math.pi)


def _declare(function: Any, number: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Declare an operation whose Python numbers become NumPy's: `number(value, operands)`."""
    primitive = elementwise(function, *args, **kwargs)
    handler = handler_of(primitive) if len(primitive.operands or ()) <= 2 else primitive
    register(function, _with_numbers(number, handler))


def _with_numbers(number: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that is given NumPy's numbers for Python's."""
    return lambda *operands: handler(*[number(x, operands) if type(x) in NUMBERS else x for x in operands])


def _strong(value: Any, operands: tuple[Any, ...]) -> Any:
    return np.asarray(value)[()]


def _weak(value: Any, operands: tuple[Any, ...]) -> Any:
    """Return a number as a real one of the precision of the arrays among *operands*; SciPy has no half precision."""
    dtypes = [x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype for x in operands if type(x) not in NUMBERS]
    return np.asarray(value, np.finfo(np.result_type(*dtypes, np.float32)).dtype)[()]


def declare_strong(function: Any, *args: Any, **kwargs: Any) -> None:
    """Declare an operation for which Python numbers are double precision: SciPy lists its loops in that order."""
    _declare(function, _strong, *args, **kwargs)


def declare_weak(function: Any, *args: Any, **kwargs: Any) -> None:
    """
    Declare an operation for which Python numbers have the precision of the arrays.

    They become NumPy numbers, so that what a rule makes of them alone is in that precision, too.
    """
    _declare(function, _weak, *args, **kwargs)


def register_weak(function: Any, handler: Callable[..., Any]) -> None:
    """Let a handler answer for a function, with Python numbers in the precision of the arrays."""
    register(function, _with_numbers(_weak, handler))


def without_rule(what: str, advice: str = "Keep it a plain number.") -> Callable[[Any], Any]:
    """Return what stands for the derivative with respect to an operand that has no rule: it raises."""

    def refuse(g: Any) -> Any:
        raise RuleMissingError(f"At {user_line()}: there is no derivative rule for {what}. {advice}")

    return refuse


# The error function and its kin, and the normal distribution.
declare(special.erf, d=lambda x: np.exp(np.negative(np.square(x))) * (2 / _ROOT_OF_PI))
declare(special.erfc, d=lambda x: np.exp(np.negative(np.square(x))) * (-2 / _ROOT_OF_PI))
declare(special.erfi, d=lambda x: np.exp(np.square(x)) * (2 / _ROOT_OF_PI))
declare(special.erfcx, d=lambda x, out: 2 * x * out - 2 / _ROOT_OF_PI)
declare(special.wofz, d=lambda x, out: 2j / _ROOT_OF_PI - 2 * x * out)
declare(special.dawsn, d=lambda x, out: 1 - 2 * x * out)
declare(special.erfinv, d=lambda out: np.exp(np.square(out)) * (_ROOT_OF_PI / 2))
declare(special.erfcinv, d=lambda out: np.exp(np.square(out)) * (-_ROOT_OF_PI / 2))
declare(special.ndtr, d=lambda x: np.exp(np.square(x) * -0.5) / _ROOT_OF_TWO_PI)
# In one exponential: far to the left both the density and the distribution underflow, their ratio does not.
declare(special.log_ndtr, d=lambda x, out: np.exp(np.square(x) * -0.5 - out) / _ROOT_OF_TWO_PI)
declare(special.ndtri, d=lambda out: np.exp(np.square(out) * 0.5) * _ROOT_OF_TWO_PI)
declare(special.ndtri_exp, d=lambda x, out: np.exp(np.square(out) * 0.5 + x) * _ROOT_OF_TWO_PI)
declare_weak(
    special.owens_t,
    d=(
        lambda x, y: np.exp(np.square(x) * -0.5) * special.erf(x * y / _ROOT_OF_TWO) / (-2 * _ROOT_OF_TWO_PI),
        lambda x, y: np.exp(np.square(x) * (np.square(y) + 1) * -0.5) / ((np.square(y) + 1) * (2 * math.pi)),
    ),
)

# The logistic function.
declare(special.expit, d=lambda out: out * (1 - out))
declare(special.logit, d=lambda x: 1 / (x * (1 - x)))
declare(special.log_expit, d=lambda x: special.expit(np.negative(x)))


def _over(x: Any, y: Any) -> Any:
    """Return x / y, which is 0 at x = 0 for every y, also for y = 0."""
    return x / np.where(np.logical_and(x == 0, y == 0), 1, y)


# x log y, which is 0 at x = 0 for every y, and with it the slope along y.
declare_strong(special.xlogy, d=(lambda y: np.log(y), lambda x, y: _over(x, y)))
declare_strong(special.xlog1py, d=(lambda y: np.log1p(y), lambda x, y: _over(x, y + 1)))
declare(special.entr, d=lambda x: -1 - np.log(x))
declare_weak(special.rel_entr, d=(lambda x, y: np.log(x / y) + 1, lambda x, y: np.negative(_over(x, y))))
declare_weak(special.kl_div, d=(lambda x, y: np.log(x / y), lambda x, y: 1 - _over(x, y)))

# Losses: the first operand is where they go over from squares to distances.
declare_weak(
    special.huber,
    d=(lambda x, y: np.maximum(np.absolute(y) - x, 0), lambda x, y: np.clip(y, np.negative(x), x)),
)


def _bend(x: Any, y: Any) -> Any:
    """Return sqrt(1 + (y / x)^2)."""
    return np.sqrt(np.square(y / x) + 1)


declare_weak(
    special.pseudo_huber,
    d=(lambda x, y, out: 2 * out / x - np.square(y) / (x * _bend(x, y)), lambda x, y: y / _bend(x, y)),
)


def _bent(logarithm: Any, x: Any) -> Any:
    """Return the derivative of (exp(l x) - 1) / x by x, for the logarithm l: at x = 0 it is l^2 / 2."""
    return np.square(logarithm) * special.hyp1f1(2.0, 3.0, x * logarithm) * 0.5


# (x^y - 1) / y, which is log x at y = 0, and its inverse by x.
declare_weak(special.boxcox, d=(lambda x, y: np.power(x, y - 1), lambda x, y: _bent(np.log(x), y)))
declare_weak(special.boxcox1p, d=(lambda x, y: np.power(x + 1, y - 1), lambda x, y: _bent(np.log1p(x), y)))
declare_weak(
    special.inv_boxcox,
    d=(lambda y, out: np.power(out, 1 - y), lambda y, out: np.negative(_bent(np.log(out), y) * np.power(out, 1 - y))),
)
declare_weak(
    special.inv_boxcox1p,
    d=(
        lambda y, out: np.power(out + 1, 1 - y),
        lambda y, out: np.negative(_bent(np.log1p(out), y) * np.power(out + 1, 1 - y)),
    ),
)

# Exponentials, logarithms and sines that NumPy has too, or does not have.
declare(special.exprel, d=lambda x: special.hyp1f1(2.0, 3.0, x) * 0.5)
declare(special.expm1, d=lambda out: out + 1)
declare(special.log1p, d=lambda x: 1 / (x + 1))
declare(special.exp2, d=lambda out: out * LOG_2)
declare(special.exp10, d=lambda out: out * LOG_10)
declare(special.cbrt, d=lambda out: 1 / (3 * np.square(out)))
declare(special.cosm1, d=lambda x: np.negative(np.sin(x)))
declare(special.sindg, d=lambda x: special.cosdg(x) * (math.pi / 180))
declare(special.cosdg, d=lambda x: special.sindg(x) * (-math.pi / 180))
declare(special.tandg, d=lambda out: (np.square(out) + 1) * (math.pi / 180))
declare_weak(special.powm1, d=(lambda x, y: y * np.power(x, y - 1), lambda x, out: (out + 1) * np.log(x)))
declare(special.wrightomega, d=lambda out: out / (out + 1))
