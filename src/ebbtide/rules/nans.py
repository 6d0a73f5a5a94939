"""Rules of the reductions that leave out nan: those of `reductions`, with a mask of the elements that are numbers."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.rules.answers import answer
from ebbtide.rules.reductions import (
    at_least,
    axes_of,
    chosen_of,
    count_of,
    declare,
    dropped,
    extremum,
    is_equal,
    placed,
    product_slope,
    with_initial,
    with_options,
)
from ebbtide.rules.variances import deviation_slope, pulled, pushed, spread_of, variance_slope


def _numbers(x: Any, where: Any = True) -> Any:
    """Return which of the chosen elements are numbers."""
    mask = np.logical_not(np.isnan(x))
    return mask if where is True else np.logical_and(mask, where)


def _mean_share(kind: Any, params: Any, mask: Any) -> Any:
    return at_least(count_of(kind, params["axis"], mask), 1)


def _pull_variance(g: Any, x: Any, numbers: Any, params: Any) -> Any:
    return pulled(g, variance_slope(x, numbers, params), numbers)


def _pull_deviation(g: Any, x: Any, numbers: Any, out: Any, params: Any) -> Any:
    return pulled(g, deviation_slope(x, numbers, out, params), numbers)


_KEEP = MappingProxyType({"mask": _numbers})
_SUM = declare(
    np.nansum,
    lambda g, kind, params, mask: np.where(mask, g, 0),
    lambda t, params, mask: np.sum(np.where(mask, t, 0), axis=params["axis"], keepdims=True),
    keep=_KEEP,
)
_MEAN = declare(
    np.nanmean,
    lambda g, kind, params, mask: np.where(mask, g / _mean_share(kind, params, mask), 0),
    lambda t, params, mask: (
        np.sum(np.where(mask, t, 0), axis=params["axis"], keepdims=True) / _mean_share(type_of(t), params, mask)
    ),
    keep=_KEEP,
)
_PROD = declare(
    np.nanprod,
    lambda g, kind, params, x, where: g * product_slope(x, _numbers(x, where), params),
    lambda t, params, x, where: np.sum(
        t * product_slope(x, _numbers(x, where), params), axis=params["axis"], keepdims=True
    ),
)
_VAR = declare(
    np.nanvar,
    lambda g, kind, params, x, where: _pull_variance(g, x, _numbers(x, where), params),
    lambda t, params, x, where: pushed(t, variance_slope(x, _numbers(x, where), params), params),
)
_STD = declare(
    np.nanstd,
    lambda g, kind, params, x, where, out: _pull_deviation(g, x, _numbers(x, where), out, params),
    lambda t, params, x, where, out: pushed(t, deviation_slope(x, _numbers(x, where), out, params), params),
)


def _reduced(primitive: Any, a: Any, axis: Any, keepdims: Any, where: Any, **options: Any) -> Any:
    """Return the result of a reduction with NumPy's arguments."""
    axes = axes_of(axis, np.ndim(a))
    params = with_options({"axis": axes, "keepdims": True}, **options)
    return dropped(primitive.bind((a, chosen_of(where)), params), a, axes, keepdims)


def _adding(primitive: Any, combine: np.ufunc) -> Any:
    """Return the handler of nansum or nanprod."""

    def handler(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None,
        where: Any = True,
    ) -> Any:  # fmt: skip
        def reduce(initial: Any) -> Any:
            return _reduced(primitive, a, axis, keepdims, where, dtype=dtype, initial=initial)

        return placed(with_initial(reduce, initial, combine), out, primitive.name)

    return handler


def _nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = True
) -> Any:
    """Return the mean of the elements that are numbers."""
    return placed(_reduced(_MEAN, a, axis, keepdims, where, dtype=dtype), out, "nanmean")


answer(np.nansum, _adding(_SUM, np.add))
answer(np.nanprod, _adding(_PROD, np.multiply))
answer(np.nanmean, _nanmean)
answer(np.nanvar, spread_of(_VAR, _numbers))
answer(np.nanstd, spread_of(_STD, _numbers))
# Where all elements are nan none is the extremum, and the derivative is zero.
answer(np.nanmax, extremum(np.nanmax, np.fmax, is_equal, "nanmax"))
answer(np.nanmin, extremum(np.nanmin, np.fmin, is_equal, "nanmin"))
