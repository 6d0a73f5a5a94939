"""Continuous distributions, each by the slopes of the logarithm of its standard density."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import special, stats

from ebbtide.rules.incomplete import beta_by_shape, gamma_by_shape
from ebbtide.scipy.stats.univariate import ABOVE_ONE, POSITIVE, UNIT, Continuous


def _bell(z: Any) -> Any:
    return np.negative(z)


def _lorentzian(z: Any) -> Any:
    return z * -2 / (np.square(z) + 1)


def _t_by_df(z: Any, df: Any) -> Any:
    square = np.square(z)
    gap = special.digamma((df + 1) / 2) - special.digamma(df / 2)
    return (gap - 1 / df - np.log1p(square / df) + (df + 1) * square / (df * (square + df))) * 0.5


def _t_total_by_df(z: Any, df: Any) -> Any:
    """Return the derivative of 1 - I(df / (df + z^2); df/2, 1/2) / 2 for z > 0, and less that for z < 0."""
    by_shape = beta_by_shape(df * 0.5, 0.5, df / (np.square(z) + df), 1)
    # In the limit of I there is z / sqrt(df) only, so that df scales z.
    return np.sign(z) * by_shape * -0.25 - z * t.pdf(z, df) * 0.5 / df


_only = MappingProxyType

# On the whole line.
norm = Continuous(stats.norm, _bell)
t = Continuous(
    stats.t,
    lambda z, df: z * (df + 1) / (np.square(z) + df) * -1,
    shapes=_only({"df": _t_by_df}),
    totals=_only({"df": _t_total_by_df}),
)
cauchy = Continuous(stats.cauchy, _lorentzian)
laplace = Continuous(stats.laplace, lambda z: np.negative(np.sign(z)))
logistic = Continuous(stats.logistic, lambda z: np.negative(np.tanh(z * 0.5)))
gumbel_r = Continuous(stats.gumbel_r, lambda z: np.exp(np.negative(z)) - 1)
gumbel_l = Continuous(stats.gumbel_l, lambda z: 1 - np.exp(z))

# On the positive numbers.
expon = Continuous(stats.expon, lambda z: np.full_like(z, -1), POSITIVE)
halfnorm = Continuous(stats.halfnorm, _bell, POSITIVE)
halfcauchy = Continuous(stats.halfcauchy, _lorentzian, POSITIVE)
rayleigh = Continuous(stats.rayleigh, lambda z: 1 / z - z, POSITIVE)
gamma = Continuous(
    stats.gamma,
    lambda z, a: (a - 1) / z - 1,
    POSITIVE,
    _only({"a": lambda z, a: np.log(z) - special.digamma(a)}),
    _only({"a": lambda z, a: gamma_by_shape(a, z)}),
)
chi2 = Continuous(
    stats.chi2,
    lambda z, df: (df / 2 - 1) / z - 0.5,
    POSITIVE,
    _only({"df": lambda z, df: (np.log(z / 2) - special.digamma(df / 2)) * 0.5}),
    _only({"df": lambda z, df: gamma_by_shape(df / 2, z / 2) * 0.5}),
)
invgamma = Continuous(
    stats.invgamma,
    lambda z, a: (1 / z - (a + 1)) / z,
    POSITIVE,
    _only({"a": lambda z, a: np.log(1 / z) - special.digamma(a)}),
    _only({"a": lambda z, a: gamma_by_shape(a, 1 / z) * -1}),
)
lognorm = Continuous(
    stats.lognorm,
    lambda z, s: (np.log(z) / np.square(s) + 1) / z * -1,
    POSITIVE,
    _only({"s": lambda z, s: (np.square(np.log(z) / s) - 1) / s}),
    drifts=_only({"s": lambda z, s: z * np.log(z) / s * -1}),
)
weibull_min = Continuous(
    stats.weibull_min,
    lambda z, c: (c - 1 - c * np.power(z, c)) / z,
    POSITIVE,
    _only({"c": lambda z, c: 1 / c + np.log(z) * (1 - np.power(z, c))}),
    drifts=_only({"c": lambda z, c: z * np.log(z) / c}),
)

# On the unit interval, and above 1.
uniform = Continuous(stats.uniform, 0, UNIT)
beta = Continuous(
    stats.beta,
    lambda z, a, b: (a - 1) / z - (b - 1) / (1 - z),
    UNIT,
    _only({
        "a": lambda z, a, b: np.log(z) - special.digamma(a) + special.digamma(a + b),
        "b": lambda z, a, b: np.log1p(np.negative(z)) - special.digamma(b) + special.digamma(a + b),
    }),
    _only({
        "a": lambda z, a, b: beta_by_shape(a, b, z, 1),
        "b": lambda z, a, b: beta_by_shape(a, b, z, 0),
    }),
)  # fmt: skip
pareto = Continuous(
    stats.pareto,
    lambda z, b: (b + 1) / z * -1,
    ABOVE_ONE,
    _only({"b": lambda z, b: 1 / b - np.log(z)}),
    drifts=_only({"b": lambda z, b: z * np.log(z) / b}),
)
