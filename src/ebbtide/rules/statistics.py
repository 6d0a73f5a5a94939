"""Rules of weighted means and covariances, with NumPy's arithmetic."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.kinds import elementwise
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.rules.answers import answer
from ebbtide.rules.reductions import axes_of


def known(value: Any) -> Any:
    """Return the present value of an array; None where only its type is known."""
    value = bottom(value.present()) if type(value) is TracedArray else value
    return None if type(value) is ArrayType else value


# Means.


def _weights_along(weights: Any, a: Any, axis: Any) -> Any:
    """Return weights that broadcast with an array: one for each element, or for each place along the axes."""
    weights = as_operand(weights)
    if weights.shape == a.shape:
        return weights
    if axis is None:
        raise TypeError("Axis must be specified when shapes of a and weights differ.")
    axes = axes_of(axis, a.ndim)
    if weights.shape != tuple([a.shape[k] for k in axes]):
        raise ValueError("Shape of weights must be consistent with shape of a along specified axis.")
    turned = np.transpose(weights, tuple([int(k) for k in np.argsort(axes)]))
    return np.reshape(turned, tuple([n if k in axes else 1 for k, n in enumerate(a.shape)]))


def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = False) -> Any:
    """Return the weighted mean along axes."""
    a = as_operand(a)
    keepdims = bool(keepdims) and keepdims is not np._NoValue
    if weights is None:
        mean = np.mean(a, axis, keepdims=keepdims)
        return (mean, np.full(mean.shape, a.size / mean.size, mean.dtype)[()]) if returned else mean
    weights = _weights_along(weights, a, axis)
    dtype = np.result_type(a.dtype, weights.dtype, *(() if a.dtype.kind in "fc" else ("f8",)))
    scale = np.sum(weights, axis, dtype=dtype, keepdims=keepdims)
    value = known(scale)
    if value is not None and np.any(value == 0.0):
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")
    weighted = np.astype(a, dtype) * np.astype(weights, dtype)
    mean = np.sum(weighted, axis, keepdims=keepdims) / scale
    if not returned:
        return mean
    return mean, (scale if scale.shape == mean.shape else np.copy(np.broadcast_to(scale, mean.shape)))


answer(np.average, average)

# Covariances.


def _variables(m: Any, rowvar: bool, dtype: Any) -> Any:
    """Return observations of variables, which are in rows, in a dtype."""
    if m.ndim > 2:
        raise ValueError("np.cov wants arrays of at most 2 axes.")
    rows = np.astype(m if m.ndim == 2 else np.reshape(m, (1, -1)), dtype)
    return rows if rowvar or m.ndim < 2 else np.transpose(rows)


def _sample_weights(fweights: Any, aweights: Any) -> Any:
    """Return the product of how often, and how much, each observation counts; None without both."""
    both = [w for w in (fweights, aweights) if w is not None]
    for weights in both:
        value = known(weights)
        if weights.ndim > 1 or (value is not None and np.any(value < 0)):
            raise ValueError("np.cov wants weights of one axis that are not negative.")
    return both[0] * both[1] if len(both) == 2 else both[0] if both else None


def _freedom(x: Any, total: Any, weights: Any, aweights: Any, ddof: int) -> Any:
    """Return by what a sum over all observations is divided."""
    if weights is None:
        divisor = x.shape[1] - ddof
    elif ddof == 0:
        divisor = total
    elif aweights is None:
        divisor = total - ddof
    else:
        products, added = weights * aweights, 0
        for k in range(products.shape[0]):
            added = added + products[k]  # one by one, as NumPy does
        divisor = total - ddof * added / total
    value = known(divisor)
    if value is not None and value <= 0:
        warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=4)
        return 0.0
    return divisor


def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None,
    aweights: Any = None, *, dtype: Any = None,
) -> Any:  # fmt: skip
    """Return the covariances of variables."""
    parts = [as_operand(part) for part in (m, y) if part is not None]
    dtype = np.result_type(*[part.dtype for part in parts], np.float64) if dtype is None else np.dtype(dtype)
    # NumPy takes a second array of one row as it is.
    rows = [_variables(part, rowvar or (k == 1 and part.shape[:1] == (1,)), dtype) for k, part in enumerate(parts)]
    x = np.concatenate(rows, axis=0) if len(rows) == 2 else rows[0]
    ddof = int(not bias) if ddof is None else ddof
    fweights, aweights = (None if w is None else np.astype(as_operand(w), float) for w in (fweights, aweights))
    weights = _sample_weights(fweights, aweights)
    mean, total = average(x, axis=1, weights=weights, returned=True)
    divisor = _freedom(x, total[0], weights, aweights, ddof)
    x = x - mean[:, None]
    turned = np.transpose(x if weights is None else x * weights)
    products = np.dot(x, np.conjugate(turned) if dtype.kind == "c" else turned)
    return np.squeeze(products * np.true_divide(1, divisor))


def _limited(c: Any) -> Any:
    real = np.clip(np.real(c), -1, 1)
    return real + 1j * np.clip(np.imag(c), -1, 1) if np.iscomplexobj(c) else real


# Only rounding takes a correlation out of its limits: the derivative is that of the number without them.
_within_limits = elementwise(lambda x: np.asarray(_limited(x), x.dtype), d=1, name="corrcoef")


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    """Return the correlations of variables."""
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return c / c
    deviation = np.sqrt(np.real(np.diag(c)))
    return _within_limits(c / deviation[:, None] / deviation[None, :])


answer(np.cov, cov)
answer(np.corrcoef, corrcoef)
