"""Examples of the functions of `ebbtide.scipy`, which are called by these names."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.scipy import integrate, signal, special, stats

from .example import INDEX, Example, Fixed, M, P, S, T, V, Z, between, calls

W = between(0.2, 1, 4)

SUMS: dict[Any, tuple[Example, ...]] = {
    special.logsumexp: calls((M,), (T, (0, 2)), (M, {"axis": 1, "keepdims": True}), (S,), (Z,))
    + calls((M, -1, W), (M, None, P, True, True), (M, 0, Fixed(-1.0), False, True), complex=False),
    special.softmax: calls((M,), (T, (0, 2)), (S,)),
    special.log_softmax: calls((M, -1), (M,), (Z,)),
}

SPECIAL: dict[Any, tuple[Example, ...]] = {
    special.polygamma: calls((0, P), (Fixed(2), P), complex=False),
    special.multigammaln: calls((P + 1, 3), (S + 3, 2), complex=False),
    special.zeta: calls((2.5, P), complex=False),
    special.lambertw: calls((P,), (M + 3, INDEX), (S + 3,)),
}

U = between(0.2, 0.8, 2, 3)

# All distributions are declared in one of two ways: an example of each function of one of each.
STATS: dict[Any, tuple[Example, ...]] = {
    **{getattr(stats.gamma, f): calls((P, between(1.3, 2, 4), -0.1, {"scale": 1.3}), complex=False)
       for f in ("pdf", "logpdf")},
    **{getattr(stats.gamma, f): calls((P, S + 3, between(-0.2, -0.1, 4), Fixed(1.3)), complex=False)
       for f in ("cdf", "sf", "logcdf", "logsf")},
    **{f: calls((U, S + 3, between(-0.2, -0.1, 3), Fixed(1.3)), complex=False)
       for f in (stats.gamma.ppf, stats.gamma.isf)},
    stats.norm.logpdf: calls((M,), (M, W, S + 3), (S,), complex=False),
    **{getattr(stats.poisson, f): calls((Fixed(np.arange(3)), U[0] + 1), complex=False)
       for f in ("pmf", "logpmf", "cdf", "sf", "logcdf", "logsf")},
}  # fmt: skip

WRAPPED: dict[Any, tuple[Example, ...]] = {**SUMS, **SPECIAL, **STATS}

K, G, SIGNAL = between(-1, 1, 3), between(-1, 1, 2, 3), between(-2, 2, 2, 7)
BY_FFT = (signal.fftconvolve, signal.oaconvolve)

SIGNALS: dict[Any, tuple[Example, ...]] = {
    **{f: calls((V, K), (K, V, "same", "direct"), (V, K[:2], "same"), (K, V, "valid", "direct"), (M, G, "same"),
                (S, S + 1), half=False)
       for f in (signal.convolve, signal.correlate)},
    signal.convolve2d: calls((M, G, "same"), (G, M, "valid"), half=False),
    signal.correlate2d: calls((M, G, "same"), (M, G, "valid"), half=False) + calls((G, M, "valid"), complex=False,
                                                                                    half=False),
    signal.fftconvolve: calls((V, K), (M, G[:1], "same", 1), (M[:1], G, "full", [1]), (M, G, "valid")),
    signal.oaconvolve: calls((M, G[:1], "same", 1)),
    signal.lfilter: calls((K, G[0] + 2, V), (K[:2], G[0, :1] + 2, SIGNAL), (K, G[0] + 2, SIGNAL, 0), half=False),
    signal.detrend: calls((SIGNAL,), (SIGNAL, 0, "constant"), (SIGNAL, {"bp": Fixed(np.array([3]))}), half=False),
}  # fmt: skip

POINTS = np.array([0.0, 0.4, 1.1, 1.9, 2.2])

SAMPLES: dict[Any, tuple[Example, ...]] = {
    integrate.trapezoid: calls((V,), (M, M[0]), (M, M + 3, 1.0, 0), (T, None, 0.5, 1)),
    integrate.simpson: calls((V,), (M, {"axis": 0, "dx": 0.7}), (M[:2], {"axis": 0}), (M,), (M, Fixed(POINTS[:4])))
    + calls((V[:4], POINTS[:4]), (M, POINTS[:4]), (T, T / 4 + 2 * np.arange(4), {"axis": 2}), (V[:2], POINTS[:2]),
            (V, POINTS), complex=False),
    integrate.cumulative_trapezoid: calls((V, V + 1), (M, {"initial": 0, "axis": 0}), (M, M[0])),
}

WRAPPED = {**WRAPPED, **SIGNALS, **SAMPLES}
