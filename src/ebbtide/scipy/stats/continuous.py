"""Continuous distributions, each by the slopes of the logarithm of its standard density."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import special, stats

from ebbtide.scipy.stats.univariate import ABOVE_ONE, POSITIVE, UNIT, Continuous


def _bell(z: Any) -> Any:
    return np.negative(z)


def _lorentzian(z: Any) -> Any:
    return z * -2 / (np.square(z) + 1)


def _t_by_df(z: Any, df: Any) -> Any:
    square = np.square(z)
    gap = special.digamma((df + 1) / 2) - special.digamma(df / 2)
    return (gap - 1 / df - np.log1p(square / df) + (df + 1) * square / (df * (square + df))) * 0.5


# On the whole line.
norm = Continuous(stats.norm, _bell)
t = Continuous(stats.t, lambda z, df: z * (df + 1) / (np.square(z) + df) * -1, MappingProxyType({"df": _t_by_df}))
cauchy = Continuous(stats.cauchy, _lorentzian)
laplace = Continuous(stats.laplace, lambda z: np.negative(np.sign(z)))
logistic = Continuous(stats.logistic, lambda z: np.negative(np.tanh(z * 0.5)))
gumbel_r = Continuous(stats.gumbel_r, lambda z: np.exp(np.negative(z)) - 1)
gumbel_l = Continuous(stats.gumbel_l, lambda z: 1 - np.exp(z))

# On the positive numbers.
expon = Continuous(stats.expon, lambda z: np.full_like(z, -1), support=POSITIVE)
halfnorm = Continuous(stats.halfnorm, _bell, support=POSITIVE)
halfcauchy = Continuous(stats.halfcauchy, _lorentzian, support=POSITIVE)
rayleigh = Continuous(stats.rayleigh, lambda z: 1 / z - z, support=POSITIVE)
gamma = Continuous(
    stats.gamma,
    lambda z, a: (a - 1) / z - 1,
    MappingProxyType({"a": lambda z, a: np.log(z) - special.digamma(a)}),
    POSITIVE,
)
chi2 = Continuous(
    stats.chi2,
    lambda z, df: (df / 2 - 1) / z - 0.5,
    MappingProxyType({"df": lambda z, df: (np.log(z / 2) - special.digamma(df / 2)) * 0.5}),
    POSITIVE,
)
invgamma = Continuous(
    stats.invgamma,
    lambda z, a: (1 / z - (a + 1)) / z,
    MappingProxyType({"a": lambda z, a: np.log(1 / z) - special.digamma(a)}),
    POSITIVE,
)
lognorm = Continuous(
    stats.lognorm,
    lambda z, s: (np.log(z) / np.square(s) + 1) / z * -1,
    MappingProxyType({"s": lambda z, s: (np.square(np.log(z) / s) - 1) / s}),
    POSITIVE,
)
weibull_min = Continuous(
    stats.weibull_min,
    lambda z, c: (c - 1 - c * np.power(z, c)) / z,
    MappingProxyType({"c": lambda z, c: 1 / c + np.log(z) * (1 - np.power(z, c))}),
    POSITIVE,
)

# On the unit interval, and above 1.
uniform = Continuous(stats.uniform, 0, support=UNIT)
beta = Continuous(
    stats.beta,
    lambda z, a, b: (a - 1) / z - (b - 1) / (1 - z),
    MappingProxyType({
        "a": lambda z, a, b: np.log(z) - special.digamma(a) + special.digamma(a + b),
        "b": lambda z, a, b: np.log1p(np.negative(z)) - special.digamma(b) + special.digamma(a + b),
    }),
    UNIT,
)  # fmt: skip
pareto = Continuous(
    stats.pareto,
    lambda z, b: (b + 1) / z * -1,
    MappingProxyType({"b": lambda z, b: 1 / b - np.log(z)}),
    ABOVE_ONE,
)
