# ruff: noqa: PLW0108 - the names of the parameters of a lambda are what the rule saves
"""Rules of SciPy's special functions, which are ufuncs and so reach traced arrays as NumPy's do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from ebbtide.arrays.kinds import NUMBERS, elementwise, handler_of
from ebbtide.arrays.registry import register
from ebbtide.errors import RuleMissingError
from ebbtide.rules.elementwise import declare

_ROOT_OF_PI, _ROOT_OF_TWO_PI = math.sqrt(math.pi), math.sqrt(2 * math.pi)

# The error function and the normal distribution.
declare(special.erf, d=lambda x: np.exp(np.negative(np.square(x))) * (2 / _ROOT_OF_PI))
declare(special.erfc, d=lambda x: np.exp(np.negative(np.square(x))) * (-2 / _ROOT_OF_PI))
declare(special.erfinv, d=lambda out: np.exp(np.square(out)) * (_ROOT_OF_PI / 2))
declare(special.ndtr, d=lambda x: np.exp(np.square(x) * -0.5) / _ROOT_OF_TWO_PI)
# In one exponential: far to the left both the density and the distribution underflow, their ratio does not.
declare(special.log_ndtr, d=lambda x, out: np.exp(np.square(x) * -0.5 - out) / _ROOT_OF_TWO_PI)
declare(special.ndtri, d=lambda out: np.exp(np.square(out) * 0.5) * _ROOT_OF_TWO_PI)

# The logistic function.
declare(special.expit, d=lambda out: out * (1 - out))
declare(special.logit, d=lambda x: 1 / (x * (1 - x)))
declare(special.log_expit, d=lambda x: special.expit(np.negative(x)))


def _declare_strong(function: Any, *args: Any, **kwargs: Any) -> None:
    """Declare an operation for which Python numbers are double precision: SciPy lists its loops in that order."""
    handler = handler_of(elementwise(function, *args, **kwargs))
    register(function, lambda *operands: handler(*[np.asarray(x)[()] if type(x) in NUMBERS else x for x in operands]))


# x log y, which is 0 at x = 0 for every y, and with it the slope along y.
_declare_strong(special.xlogy, d=(lambda y: np.log(y), lambda x, y: x / np.where(x == 0, 1, y)))
_declare_strong(special.xlog1py, d=(lambda y: np.log1p(y), lambda x, y: x / np.where(x == 0, 1, y + 1)))
declare(special.entr, d=lambda x: -1 - np.log(x))


def _of_exponent(x: Any, y: Any) -> Any:
    raise RuleMissingError(
        "The derivative of a sum of powers with respect to the exponent has no closed form. It is a plain number in "
        "the derivatives of digamma, and cannot be differentiated."
    )


# The gamma function: its derivatives are sums of powers 1 / (x + n)^s, which SciPy has in a function, no ufunc.
_zeta = elementwise(
    special.zeta, d=(_of_exponent, lambda x, y: np.negative(x) * _zeta.bind((x + 1, y))), name="zeta"
)
declare(special.gammaln, d=lambda x: special.digamma(x))
declare(special.digamma, d=lambda x: _zeta.bind((2.0, x)))
