"""Examples of running values, order statistics, reductions without nan, moments, differences and histograms."""

from __future__ import annotations

from typing import Any

import numpy as np

from .basic_examples import SOME
from .example import MASK, E, Example, Fixed, M, P, S, T, V, calls, steps

WITH_NAN = np.where(MASK.value, np.nan, M)
ZEROS = np.array([2.0, 0.0, -1.5, 0.0, 0.5])
COUNTS = Fixed(np.array([2, 0, 2, 3, 2]))
POINTS = np.array([0.0, 0.4, 1.1, 1.9])

RUNNING: dict[Any, tuple[Example, ...]] = {
    (np.add, "accumulate"): calls((M, 1)),
    (np.multiply, "accumulate"): calls((M,)),
    np.cumprod: calls((T, 1), (ZEROS,), (M, 1, np.complex128)),
    np.cumulative_sum: calls((M, {"axis": 0, "include_initial": True})),
    np.cumulative_prod: calls((ZEROS,), (M, {"axis": 1, "include_initial": True}),
                              (M, {"axis": 1, "dtype": np.complex128})),
    np.nancumsum: calls((WITH_NAN, 0), (M,)),
    np.nancumprod: calls((WITH_NAN, 0)),
    (np.maximum, "accumulate"): calls((M,), (T, 1), (E,), complex=False),
    (np.logaddexp, "accumulate"): calls((M,), (T, 1), (E,), complex=False),
    **{(f, "accumulate"): calls((M, 1), complex=False) for f in (np.minimum, np.fmax, np.fmin, np.logaddexp2)},
}

REDUCED: dict[Any, tuple[Example, ...]] = {
    **{f: calls((M, 0), (M, {"where": SOME, "initial": 0.1, "axis": 1, "keepdims": True})) for f in (np.amax, np.amin)},
    np.ptp: calls((M,), (T, {"axis": (0, 2), "keepdims": True})),
    **{f: calls((WITH_NAN, 0), (WITH_NAN, {"where": SOME, "axis": 1, "keepdims": True}))
       for f in (np.nanmean, np.nanprod)},
    np.nansum: calls((WITH_NAN, 0), (WITH_NAN, {"where": SOME, "axis": 1, "keepdims": True, "initial": 0.1})),
    np.nanvar: calls((WITH_NAN, 0), (WITH_NAN, {"where": SOME, "axis": 1, "keepdims": True}),
                     (WITH_NAN, {"mean": 0.1}), (WITH_NAN, {"ddof": 1, "axis": 1})),
    np.nanstd: calls((WITH_NAN,), (WITH_NAN, {"ddof": 1, "axis": 1}), (M, {"where": MASK}),
                     (WITH_NAN, {"mean": M[:, :1], "axis": 1, "where": SOME}),
                     (WITH_NAN, {"correction": 1, "axis": 1, "keepdims": True})),
    **{f: calls((WITH_NAN, {"keepdims": True}), (WITH_NAN, 0), (M, {"where": MASK, "initial": 0.1}))
       for f in (np.nanmax, np.nanmin)},
    **{(f, "reduce"): calls((WITH_NAN,), (M, {"axis": 1}), complex=False) for f in (np.fmax, np.fmin)},
    (np.logaddexp, "reduce"): calls((M,), (T, {"axis": (0, 2), "keepdims": True}), complex=False),
    (np.logaddexp2, "reduce"): calls((M, {"where": SOME, "axis": 1, "initial": 0.1}), complex=False),
    (np.hypot, "reduce"): calls((M,), (M, {"where": SOME, "axis": 1}), complex=False),
}  # fmt: skip

ORDERED: dict[Any, tuple[Example, ...]] = {
    np.median: calls((M,), (V,), (T, (0, 2)), (M.T, {"axis": 0, "keepdims": True})),
    np.nanmedian: calls((WITH_NAN,), (WITH_NAN, 1)),
    np.quantile: calls((M, 0.3), (M, S * 0 + 0.37, 0), (T, np.array([0.21, 0.43]), 1),
                       (M, Fixed(0.4), {"method": "nearest", "axis": 1, "keepdims": True}),
                       (V, np.array([[0.31, 0.47]]), {"method": "weibull"}),
                       (M, Fixed(0.3), {"method": "inverted_cdf", "axis": 0, "weights": P}), complex=False),
    np.nanquantile: calls((WITH_NAN, np.array([0.21, 0.43]), 1), (WITH_NAN, Fixed(0.3)), complex=False),
    np.percentile: calls((M, 30.0), (M, np.array([21.0, 43.0]), 0),
                         (M, 30.0, {"method": "hazen", "axis": 0, "keepdims": True}), complex=False),
    np.nanpercentile: calls((WITH_NAN, 37.5, 0), complex=False),
    np.partition: calls((M, 1, 0), (M, (1, 2)), (M, 5, None)),
    np.sort_complex: calls((M,)),
    np.unique: calls((M,), (M, {"axis": 0, "return_counts": True}), (M, {"equal_nan": False, "sorted": True}))
    + steps((np.array([2.0, 0.5, 2.0]), {"return_index": True, "return_inverse": True})),
    np.trim_zeros: calls((M,), complex=False) + steps((np.array([0.0, 0.0, 3.0, 0.0, 1.0]),), (ZEROS * 0, "f")),
}  # fmt: skip

MOMENTS: dict[Any, tuple[Example, ...]] = {
    np.average: calls((M,), (M, 1, V[:4] + 3), (M, {"weights": P, "returned": True}), (T, (0, 2), P[:2]),
                      (T, 1, P[0, :3], {"keepdims": True})),
    np.cov: calls((M,), (M, M[0] + 1, {"bias": True}), (V,), (M, {"rowvar": False, "fweights": [1, 2, 3]}))
    + calls((M, None, True, False, 1, None, P[0]), complex=False),
    np.corrcoef: calls((M,), (V, V**2), (V,), (M, {"rowvar": False})),
}

DIFFERENCES: dict[Any, tuple[Example, ...]] = {
    np.diff: calls((V,), (M,), (M, 2), (M, 1, 0), (M, {"prepend": 0.0, "axis": 0}), (M, 1, 1, M[:, :1], M[:, 2:])),
    np.ediff1d: calls((M,), (V, 1.0, V[:2])),
    np.gradient: calls((M,), (V[:4], POINTS), (M, 0.5, {"axis": 0, "edge_order": 2}),
                       (V[:3], np.array([0.0, 0.5, 1.0]), {"edge_order": 2}), (V, np.arange(5.0) * 3)),
    np.trapezoid: calls((V,), (M, {"dx": 0.5, "axis": 0}), (M, POINTS), (M, M + 1)),
}

HISTOGRAMS: dict[Any, tuple[Example, ...]] = {
    np.bincount: calls((COUNTS, V), (COUNTS, V, 6), complex=False) + steps((COUNTS,)),
    np.histogram: calls((Fixed(M), 4, None, None, M + 3), (Fixed(M), Fixed(np.array([-1.0, 0.3, 1.2])), None, True, P),
                        complex=False),
    np.histogram2d: calls((Fixed(V), Fixed(V[::-1]), 3, None, None, V + 3),
                          (Fixed(V), Fixed(V), Fixed([-1.0, 0.3, 0.7, 1.2]), None, True, V + 3), complex=False),
    np.histogramdd: calls((Fixed(M), 2, None, True, V[:3] + 3), ([Fixed(V), Fixed(V[::-1])], 3, None, None, V),
                          complex=False),
    np.histogram_bin_edges: steps((M, 4)),
}

OUTER = {
    **{(f, "outer"): calls((M + 0.4, P[0, :2]), complex=f in (np.add, np.subtract, np.multiply, np.true_divide))
       for f in (np.add, np.subtract, np.multiply, np.true_divide, np.maximum, np.minimum, np.logaddexp, np.hypot,
                 np.arctan2)},
    (np.power, "outer"): calls((P, P[0, :2])),
}  # fmt: skip

STATISTICS = {**OUTER, **RUNNING, **REDUCED, **ORDERED, **MOMENTS, **DIFFERENCES, **HISTOGRAMS}
