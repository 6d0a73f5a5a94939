# ruff: noqa: PLW0108 - the names of the parameters of a lambda are what the rule saves
"""
Derivatives of the incomplete gamma and beta functions by their shape parameters.

They are moments of logarithms over a part of the distribution: with m the mean of log u, the derivative of the
incomplete gamma function by a is the integral of the density times (log u - m). So are all further ones: to
differentiate a moment gives one of the next power, and one of the power below. SciPy has none of these; they are done
here by double-exponential quadrature from the limit of the integral away, on the side where the density falls.

Source: Takahasi and Mori, Double exponential formulas for numerical integration (1974).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import aligned
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, promoted, unbroadcast
from ebbtide.rules.gamma import trigamma
from ebbtide.rules.special import declare_strong, declare_weak

# Nodes z = exp(t - exp(-t)) for the half line, and weights. Against integrals in 30 digits derivatives were right to
# 4e-11 of their value for shapes from 1e-3 to 1e4, also where probabilities are 1e-200, and to 1e-9 for 1e6, where the
# logarithm of the density has no more digits.
_STEP = 0.0625
_T = np.arange(-3.75, 6.0, _STEP)
_NODES = np.exp(_T - np.exp(-_T))
_AT_ONCE = 1 << 13  # elements: 64 KiB
_WEIGHTS = _STEP * _NODES * (1 + np.exp(-_T))


def _integral(function: Callable[..., Any], width: Any) -> Any:
    """
    Return the integral over the half line of a function that falls on the scale *width*.

    Memory:
        Some arrays of as many elements as the result at a time, or of `_AT_ONCE`, if these are more.
    """
    total, count = np.zeros(width.shape), max(1, _AT_ONCE // max(1, width.size))
    for start in range(0, len(_NODES), count):
        block = slice(start, start + count)
        nodes, weights = (np.reshape(x[block], (-1,) + (1,) * width.ndim) for x in (_NODES, _WEIGHTS))
        total += np.sum(weights * function(width * nodes), axis=0)
    return total * width


def _moment(function: Callable[..., Any], operands: tuple[str, ...], slopes: tuple[Callable[..., Any], ...]) -> Any:
    """
    Declare a moment.

    Args:
        function: `function(*operands, **powers)` on arrays of double precision.
        operands: Names of the parameters and of the limit.
        slopes: By each operand `slope(powers, *operands)`.
    """

    def run(*values: Any, **powers: int) -> Any:
        dtype = np.result_type(*values)
        values = np.broadcast_arrays(*[np.asarray(value, np.float64) for value in values])
        with np.errstate(all="ignore"):  # what underflows is 0
            return np.asarray(function(*values, **powers)).astype(dtype)[()]

    def make(k: int) -> Pull:
        def rule(g: Any, kind: ArrayType, params: Any, *values: Any) -> Any:
            return unbroadcast(g * slopes[k](params, *values), kind)

        return Pull(rule, operands, FRESH, temporaries=4)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        pairs = zip(tangents, slopes, strict=True)
        return promoted([t * slope(params, *values) for t, slope in pairs if t is not None], out)

    def infer(*kinds: ArrayType, **_: int) -> ArrayType:
        return ArrayType(np.broadcast_shapes(*[k.shape for k in kinds]), np.result_type(*[k.dtype for k in kinds]))

    pulls = tuple([make(k) for k in range(len(operands))])
    primitive = Primitive(
        run,
        name=function.__name__.strip("_"),
        operands=operands,
        pull=pulls.__getitem__,
        push=push,
        infer=infer,
        batch=lambda values, mapped, params, size: primitive.bind(aligned(values, mapped), params),
    )
    return primitive


# ------------------------------------------------------------------------------------------------
# Gamma: moments of log u - digamma(a), below x and above it.


def _gamma_below(a: Any, x: Any, n: int) -> Any:
    """Return the moment below x < a, in which u = x exp(-v)."""
    center, logarithm = special.digamma(a), np.log(x)
    scale = np.exp(a * logarithm - x - special.gammaln(a))
    width = 1 / (a - x + np.minimum(x, np.sqrt(x)))

    def at(v: Any) -> Any:
        return np.exp(-a * v - x * np.expm1(-v)) * (logarithm - v - center) ** n

    return np.where(x > 0, scale * _integral(at, width), 0)


def _gamma_above(a: Any, x: Any, n: int) -> Any:
    """Return the moment above x >= a, in which u = x + v."""
    center = special.digamma(a)
    scale = np.exp((a - 1) * np.log(x) - x - special.gammaln(a))
    rising = np.maximum(a - 1, 0)
    width = 1 / (1 - rising / x + np.sqrt(rising) / x)

    def at(v: Any) -> Any:
        return np.exp((a - 1) * np.log1p(v / x) - v) * (np.log(x + v) - center) ** n

    return scale * _integral(at, width)


def _gamma_density(a: Any, x: Any) -> Any:
    """Return x^(a-1) exp(-x) / gamma(a), without overflow."""
    return np.exp(special.xlogy(a - 1, x) - x - special.gammaln(a))


def _of_gamma(function: Callable[..., Any], sign: int) -> Primitive:
    """Declare a moment below x (*sign* 1) or above it (-1)."""

    def by_shape(powers: dict[str, int], a: Any, x: Any) -> Any:
        n = powers["n"]
        higher = moment.bind((a, x), {"n": n + 1})
        return higher - moment.bind((a, x), {"n": n - 1}) * trigamma(a) * n if n else higher

    def by_limit(powers: dict[str, int], a: Any, x: Any) -> Any:
        return _gamma_density(a, x) * (np.log(x) - special.digamma(a)) ** powers["n"] * sign

    moment = _moment(function, ("a", "x"), (by_shape, by_limit))
    return moment


_below, _above = _of_gamma(_gamma_below, 1), _of_gamma(_gamma_above, -1)


def gamma_by_shape(a: Any, x: Any) -> Any:
    """Return the derivative of gammainc(a, x) by a: what is below, or, as both together are 0, less what is above."""
    low = x < a
    # Of each side only where it is asked for: elsewhere at a point where it is no nan.
    below = _below.bind((a, np.where(low, x, a * 0.5)), {"n": 1})
    above = _above.bind((a, np.where(low, a * 2, x)), {"n": 1})
    return np.where(low, below, above * -1)


declare_strong(special.gammainc, d=(lambda x, y: gamma_by_shape(x, y), lambda x, y: _gamma_density(x, y)))
declare_strong(
    special.gammaincc,
    d=(lambda x, y: np.negative(gamma_by_shape(x, y)), lambda x, y: np.negative(_gamma_density(x, y))),
)
declare_strong(
    special.gammaincinv,
    d=(
        lambda x, out: np.negative(gamma_by_shape(x, out) / _gamma_density(x, out)),
        lambda x, out: 1 / _gamma_density(x, out),
    ),
)
declare_strong(
    special.gammainccinv,
    d=(
        lambda x, out: np.negative(gamma_by_shape(x, out) / _gamma_density(x, out)),
        lambda x, out: -1 / _gamma_density(x, out),
    ),
)


# ------------------------------------------------------------------------------------------------
# Beta: moments of log u and log(1 - u), less their means, below x. Above x they are those below 1 - x with the shapes
# exchanged.


def _centers(a: Any, b: Any) -> tuple[Any, Any]:
    whole = special.digamma(a + b)
    return special.digamma(a) - whole, special.digamma(b) - whole


def _beta_below(a: Any, b: Any, x: Any, n: int, m: int) -> Any:
    """Return the moment below x < a / (a + b), in which u = x exp(-v)."""
    (center, other), logarithm = _centers(a, b), np.log(x)
    scale = np.exp(a * logarithm + (b - 1) * np.log1p(-x) - special.betaln(a, b))
    rising = np.maximum(b - 1, 0) * x / (1 - x)
    width = 1 / (a - rising + np.minimum(rising, np.sqrt(rising / (1 - x))))

    def at(v: Any) -> Any:
        rest = np.log1p(-x * np.exp(-v))
        powers = (logarithm - v - center) ** n * (rest - other) ** m
        return np.exp((b - 1) * (rest - np.log1p(-x)) - a * v) * powers

    return np.where(x > 0, scale * _integral(at, width), 0)


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    """Return x^(a-1) (1-x)^(b-1) / beta(a, b), without overflow."""
    return np.exp(special.xlogy(a - 1, x) + special.xlog1py(b - 1, np.negative(x)) - special.betaln(a, b))


def _lower(a: Any, b: Any, x: Any, n: int, m: int) -> Any:
    return _beta_moment.bind((a, b, x), {"n": n, "m": m})


def _by_a(powers: dict[str, int], a: Any, b: Any, x: Any) -> Any:
    n, m = powers["n"], powers["m"]
    slope, whole = _lower(a, b, x, n + 1, m), trigamma(a + b)
    slope = slope - _lower(a, b, x, n - 1, m) * (trigamma(a) - whole) * n if n else slope
    return slope + _lower(a, b, x, n, m - 1) * whole * m if m else slope


def _by_b(powers: dict[str, int], a: Any, b: Any, x: Any) -> Any:
    n, m = powers["n"], powers["m"]
    slope, whole = _lower(a, b, x, n, m + 1), trigamma(a + b)
    slope = slope + _lower(a, b, x, n - 1, m) * whole * n if n else slope
    return slope - _lower(a, b, x, n, m - 1) * (trigamma(b) - whole) * m if m else slope


def _by_x(powers: dict[str, int], a: Any, b: Any, x: Any) -> Any:
    center, other = _centers(a, b)
    rest = np.log1p(np.negative(x)) - other
    return _beta_density(a, b, x) * (np.log(x) - center) ** powers["n"] * rest ** powers["m"]


_beta_moment = _moment(_beta_below, ("a", "b", "x"), (_by_a, _by_b, _by_x))


def beta_by_shape(a: Any, b: Any, x: Any, n: int) -> Any:
    """Return the derivative of betainc(a, b, x) by a (*n* = 1) or by b (0)."""
    mean = a / (a + b)
    low = x < mean
    below = _lower(a, b, np.where(low, x, mean * 0.5), n, 1 - n)
    above = _lower(b, a, np.where(low, (1 - mean) * 0.5, 1 - x), 1 - n, n)
    return np.where(low, below, above * -1)


def _beta_family(function: Any, sign: int) -> None:
    """Declare a function of the shapes a and b and of a limit, which gives a probability below (1) or above (-1)."""
    d = (
        lambda a, b, x: beta_by_shape(a, b, x, 1) * sign,
        lambda a, b, x: beta_by_shape(a, b, x, 0) * sign,
        lambda a, b, x: _beta_density(a, b, x) * sign,
    )
    declare_weak(function, d=d, operands=("a", "b", "x"))


def _beta_inverses(function: Any, sign: int) -> None:
    """Declare the inverse of such a function."""

    def by_shape(a: Any, b: Any, out: Any, n: int) -> Any:
        return np.negative(beta_by_shape(a, b, out, n) / _beta_density(a, b, out))

    d = (
        lambda a, b, out: by_shape(a, b, out, 1),
        lambda a, b, out: by_shape(a, b, out, 0),
        lambda a, b, out: sign / _beta_density(a, b, out),
    )
    declare_weak(function, d=d, operands=("a", "b", "y"))


_beta_family(special.betainc, 1)
_beta_family(special.betaincc, -1)
_beta_inverses(special.betaincinv, 1)
_beta_inverses(special.betainccinv, -1)
