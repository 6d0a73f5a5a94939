# ruff: noqa: PLW0108 - the names of the parameters of a lambda are what the rule saves
"""Rules of the gamma and beta functions, and of functions made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.constants import constant
from ebbtide.arrays.kinds import elementwise
from ebbtide.arrays.registry import register
from ebbtide.rules.elementwise import declare
from ebbtide.rules.special import declare_strong, declare_weak, without_rule

# The derivatives of digamma are sums of powers 1 / (x + n)^s, which SciPy has in a function, no ufunc.
zeta = elementwise(
    special.zeta,
    d=(
        without_rule("the exponent of zeta, a sum of powers"),
        lambda x, y: zeta.bind((x + 1, y)) * -x,
    ),
    name="zeta",
)


# B_2j / (2j)!, of the expansion of Euler and Maclaurin.
_BERNOULLI = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000,
)  # fmt: skip
# From here on the expansion has all digits of double precision.
_FAR = 16.0


def _slopes_of_cotangent(order: int, z: Any) -> Any:
    """Return a derivative of cot(pi z) by pi z, which is a polynomial in the cotangent."""
    polynomial = np.array([1.0, 0.0])
    for _ in range(order):
        polynomial = -np.polymul([1.0, 0.0, 1.0], np.polyder(polynomial))
    return np.polyval(polynomial, 1 / np.tan((z - np.round(z.real)) * math.pi))


def _sum_of_powers(s: Any, z: Any) -> Any:
    """Return the sum of 1 / (z + k)^s over k = 0, 1, ... for a whole s > 1 and complex z, which SciPy has not."""
    s, z = np.real(s), np.asarray(z)  # a program may give the exponent in the type of z
    order = int(np.max(s)) - 1
    left = z.real < 0.5  # mirrored, away from the poles
    w = np.array(np.where(left, 1 - z, z), np.complex128)
    total = np.zeros_like(w)
    while np.any(near := (w.real < _FAR) & (np.abs(w.imag) < _FAR)):
        total += np.where(near, w**-s, 0)
        w += near
    total += w ** (1 - s) / (s - 1) + w**-s / 2
    factor = s * w ** (-s - 1)
    for j, coefficient in enumerate(_BERNOULLI):
        total += coefficient * factor
        factor *= (s + 2 * j + 1) * (s + 2 * j + 2) / w**2
    others = _slopes_of_cotangent(order, np.where(left, z, 0.5)) * (math.pi ** (order + 1) / math.factorial(order))
    mirrored = (others + total) * (-1) ** order
    return np.where(left, mirrored, total).astype(np.result_type(z, np.complex64))[()]


_complex_zeta = elementwise(
    _sum_of_powers,
    d=(without_rule("the exponent of a sum of powers"), lambda x, y: _complex_zeta.bind((x + 1, y)) * -x),
    name="zeta",
)


def trigamma(x: Any) -> Any:
    """Return the derivative of digamma."""
    return (_complex_zeta if type_of(x).dtype.kind == "c" else zeta).bind((2.0, x))


# psi and digamma are one ufunc.
declare(special.digamma, d=lambda x: trigamma(x))
declare(special.gammaln, d=lambda x: special.digamma(x))
declare(special.loggamma, d=lambda x: special.digamma(x))
declare(special.gamma, d=lambda x, out: out * special.digamma(x))
register(special.gammasgn, constant(special.gammasgn))


def _slope_of_reciprocal(x: Any, out: Any) -> Any:
    """Return the derivative of 1 / gamma(x), which has no pole: left of 1/2 that of gamma(1-x) sin(pi x) / pi."""
    left = np.logical_and(np.real(x) < 0.5, np.absolute(np.imag(x)) < 1)
    mirrored, angle = np.where(left, 1 - x, 1), np.where(left, x, 0) * math.pi
    of_left = special.gamma(mirrored) * (np.cos(angle) - np.sin(angle) * special.digamma(mirrored) / math.pi)
    return np.where(left, of_left, np.negative(out * special.digamma(np.where(left, 1, x))))


declare(special.rgamma, d=lambda x, out: _slope_of_reciprocal(x, out))


def _psi_gap(x: Any, y: Any) -> Any:
    return special.digamma(x) - special.digamma(y)


declare_strong(
    special.beta, d=(lambda x, y, out: out * _psi_gap(x, x + y), lambda x, y, out: out * _psi_gap(y, x + y))
)
declare_strong(special.betaln, d=(lambda x, y: _psi_gap(x, x + y), lambda x, y: _psi_gap(y, x + y)))
declare_weak(
    special.poch, d=(lambda x, y, out: out * _psi_gap(x + y, x), lambda x, y, out: out * special.digamma(x + y))
)
declare_weak(
    special.binom,
    d=(
        lambda x, y, out: out * _psi_gap(x + 1, x - y + 1),
        lambda x, y, out: out * _psi_gap(x - y + 1, y + 1),
    ),
)
