"""Discrete distributions, each by the slopes of its probabilities along the shape parameters."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import special, stats

from ebbtide.scipy.stats.univariate import Discrete


def _up_to(k: Any, n: Any, *_: Any) -> Any:
    return np.logical_and(k >= 0, k <= n)


def _trial(k: Any, p: Any) -> Any:
    return k / p - (1 - k) / (1 - p)


def _trials(k: Any, n: Any, p: Any) -> Any:
    return k / p - (n - k) / (1 - p)


def _failures(k: Any, n: Any, p: Any) -> Any:
    return special.digamma(k + n) - special.digamma(n) + np.log(p)


poisson = Discrete(
    stats.poisson,
    MappingProxyType({"mu": lambda k, mu: k / mu - 1}),
    MappingProxyType({"mu": lambda k, mu, log: np.exp(poisson.logpmf(k, mu) - log) * -1}),
)
bernoulli = Discrete(
    stats.bernoulli,
    MappingProxyType({"p": _trial}),
    MappingProxyType({"p": lambda k, p, log: np.where(k < 1, np.exp(np.negative(log)) * -1, 0)}),
    lambda k, p: _up_to(k, 1),
)
binom = Discrete(
    stats.binom,
    MappingProxyType({"n": None, "p": _trials}),
    MappingProxyType({"n": None, "p": lambda k, n, p, log: np.exp(binom.logpmf(k, n - 1, p) - log) * -n}),
    _up_to,
)
geom = Discrete(
    stats.geom,
    MappingProxyType({"p": lambda k, p: 1 / p - (k - 1) / (1 - p)}),
    MappingProxyType({"p": lambda k, p, log: np.exp(geom.logpmf(k, p) - log) * (k / p)}),
    lambda k, p: k >= 1,
)
nbinom = Discrete(
    stats.nbinom,
    MappingProxyType({"n": _failures, "p": lambda k, n, p: n / p - k / (1 - p)}),
    MappingProxyType({"n": None, "p": None}),
)
