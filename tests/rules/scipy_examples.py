"""Examples of the functions of `ebbtide.scipy`, which are called by these names."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.scipy import special, stats

from .example import Example, Fixed, M, P, S, T, Z, between, calls

W = between(0.2, 1, 4)

SUMS: dict[Any, tuple[Example, ...]] = {
    special.logsumexp: calls((M,), (T, (0, 2)), (M, {"axis": 1, "keepdims": True}), (S,), (Z,))
    + calls((M, -1, W), (M, None, P, True, True), (M, 0, Fixed(-1.0), False, True), complex=False),
    special.softmax: calls((M,), (T, (0, 2)), (S,), complex=False),
    special.log_softmax: calls((M, -1), (M,), (Z,), complex=False),
}

SPECIAL: dict[Any, tuple[Example, ...]] = {
    special.polygamma: calls((0, P), (Fixed(2), P), complex=False),
    special.multigammaln: calls((P + 1, 3), (S + 3, 2), complex=False),
    special.zeta: calls((2.5, P), complex=False),
}

U = between(0.2, 0.8, 2, 3)

# All distributions are declared in one of two ways: an example of each function of one of each.
STATS: dict[Any, tuple[Example, ...]] = {
    **{getattr(stats.gamma, f): calls((P, between(1.3, 2, 4), -0.1, {"scale": 1.3}), complex=False)
       for f in ("pdf", "logpdf")},
    **{getattr(stats.gamma, f): calls((P, Fixed(1.7), between(-0.2, -0.1, 4), S + 3), complex=False)
       for f in ("cdf", "sf", "logcdf", "logsf")},
    **{f: calls((U, Fixed(1.7), between(-0.2, -0.1, 3), S + 3), complex=False)
       for f in (stats.gamma.ppf, stats.gamma.isf)},
    stats.norm.logpdf: calls((M,), (M, W, S + 3), (S,), complex=False),
    **{getattr(stats.poisson, f): calls((Fixed(np.arange(3)), U[0] + 1), complex=False)
       for f in ("pmf", "logpmf", "cdf", "sf", "logcdf", "logsf")},
}  # fmt: skip

WRAPPED: dict[Any, tuple[Example, ...]] = {**SUMS, **SPECIAL, **STATS}
