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
from ebbtide.arrays.location import user_line
from ebbtide.arrays.registry import register
from ebbtide.errors import RuleMissingError
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


def trigamma(x: Any) -> Any:
    """Return the derivative of digamma."""
    if type_of(x).dtype.kind == "c":
        raise RuleMissingError(
            f"At {user_line()}: there is no derivative rule for digamma of complex numbers, nor for the second "
            "derivatives of gamma and loggamma with it: SciPy has zeta(2, x) for real x only."
        )
    return zeta.bind((2.0, x))


# psi and digamma are one ufunc.
declare(special.digamma, d=lambda x: trigamma(x))
declare(special.gammaln, d=lambda x: special.digamma(x))
declare(special.loggamma, d=lambda x: special.digamma(x))
declare(special.gamma, d=lambda x, out: out * special.digamma(x))
register(special.gammasgn, constant(special.gammasgn))


def _slope_of_reciprocal(x: Any, out: Any) -> Any:
    """Return the derivative of 1 / gamma(x), which has no pole: at x = -n, where gamma has one, it is (-1)^n n!."""
    pole = np.logical_and(out == 0, np.real(x) <= 0)
    at_pole = special.gamma(np.where(pole, 1 - x, 1)) * np.cos(np.where(pole, x, 0) * math.pi)
    return np.where(pole, at_pole, np.negative(out * special.digamma(np.where(pole, 1, x))))


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
