"""Rules of variances and standard deviations, also of complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.primitive import Primitive
from ebbtide.rules.answers import answer
from ebbtide.rules.reductions import (
    at_least,
    axes_of,
    chosen_of,
    count_of,
    declare,
    dropped,
    given,
    only,
    placed,
    root,
    with_options,
)


def _deviations(x: Any, where: Any, axis: tuple[int, ...]) -> Any:
    """Return the chosen elements less their mean, and 0 for the others; complex ones conjugated."""
    x = only(where, x)
    count = at_least(count_of(type_of(x), axis, where), 1)
    apart = only(where, x - np.sum(x, axis=axis, keepdims=True) / count)
    return np.conjugate(apart) if type_of(x).dtype.kind == "c" else apart


def _freedom(kind: ArrayType, where: Any, params: Any) -> Any:
    """Return by how much a sum of squares is divided."""
    return at_least(count_of(kind, params["axis"], where) - params["ddof"], 0)


def variance_slope(x: Any, where: Any, params: Any) -> Any:
    """Return the derivatives of the variance of the chosen elements; the others have none, also if none is chosen."""
    return only(where, _deviations(x, where, params["axis"]) / (_freedom(type_of(x), where, params) / 2))


def deviation_slope(x: Any, where: Any, out: Any, params: Any) -> Any:
    """Return the derivatives of the standard deviation, which are zero where that is zero."""
    at_zero = np.equal(out, 0)
    scale = np.where(at_zero, 0, 1 / (_freedom(type_of(x), where, params) * np.where(at_zero, 1, out)))
    return only(where, _deviations(x, where, params["axis"]) * scale)


def pulled(g: Any, slope: Any, where: Any) -> Any:
    """
    Return a cotangent times derivatives.

    Where none is chosen the deviation is nan, and so is the cotangent of a derivative that uses it. The imaginary part
    of a variance that is asked for as a complex number is 0 everywhere.
    """
    return only(where, (np.real(g) if type_of(g).dtype.kind == "c" else g) * slope)


def pushed(t: Any, slope: Any, params: Any) -> Any:
    """Return the sum of tangents times derivatives; of complex numbers the real part, which is all there is."""
    product = t * slope
    product = np.real(product) if type_of(product).dtype.kind == "c" else product
    return np.sum(product, axis=params["axis"], keepdims=True)


_var = declare(
    np.var,
    lambda g, kind, params, x, where: pulled(g, variance_slope(x, where, params), where),
    lambda t, params, x, where: pushed(t, variance_slope(x, where, params), params),
)
_std = declare(
    np.std,
    lambda g, kind, params, x, where, out: pulled(g, deviation_slope(x, where, out, params), where),
    lambda t, params, x, where, out: pushed(t, deviation_slope(x, where, out, params), params),
)


def squared_size(x: Any) -> Any:
    """Return |x|^2, with the arithmetic of NumPy's variance."""
    if type_of(x).dtype.kind == "c":
        return np.square(np.real(x)) + np.square(np.imag(x))
    return np.square(x)


def _about(center: Any, a: Any, axes: tuple[int, ...], where: Any, numbers: Any, params: Any) -> Any:
    """Return the mean square about a center, which may be traced; `numbers`, if given, are not nan."""
    a = np.astype(a, params["dtype"]) if "dtype" in params else a
    apart = a - center
    if numbers is not None:
        apart = np.astype(np.where(numbers, apart, 0), type_of(a).dtype)
    total = np.sum(squared_size(apart), axis=axes, keepdims=True, where=where)
    counted = where if numbers is None else numbers
    return total / _freedom(ArrayType(np.shape(a), type_of(total).dtype), counted, params)


def spread_of(
    primitive: Primitive, numbers: Callable[[Any, Any], Any] | None = None
) -> Callable[..., Any]:
    """Return the handler of a variance or deviation; `numbers(a, where)` are the chosen elements that are not nan."""
    name = primitive.name

    def handler(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, *,
        where: Any = True, mean: Any = None, correction: Any = None,
    ) -> Any:  # fmt: skip
        if given(correction):
            if ddof != 0:
                raise ValueError("ddof and correction can't be provided simultaneously.")
            ddof = correction
        axes, where = axes_of(axis, np.ndim(a)), chosen_of(where)
        params = with_options({"axis": axes, "keepdims": True, "ddof": ddof}, dtype)
        if not given(mean):
            result = primitive.bind((a, where), params)
        else:
            result = _about(mean, a, axes, where, numbers and numbers(a, where), params)
            result = root(result) if "std" in name else result
        return placed(dropped(result, a, axes, keepdims), out, name)

    return handler


answer(np.var, spread_of(_var))
answer(np.std, spread_of(_std))
