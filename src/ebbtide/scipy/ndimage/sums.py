"""The operations that filters are made of: sums of products with weights, and means."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from scipy import ndimage

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import by_members
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, promoted
from ebbtide.scipy.ndimage.borders import Border, extend, extended, fold

# Sums of products: operands x and the weights, which SciPy conjugates, and which are conjugated before that.
# Parameters: the axis of weights of one axis, None for weights of the axes of x; mode; constant; origin for each axis;
# dtype of the result, None for that of x.


def _axes_of(x: Any, axis: int | None) -> tuple[int, ...]:
    return tuple(range(len(x.shape))) if axis is None else (axis,)


def _correlation(x: Any, w: Any, axis: int | None, mode: str, cval: float, origins: Any, dtype: Any) -> Any:
    w = np.conjugate(w)
    if axis is None:
        return ndimage.correlate(x, w, dtype, mode, cval, origins)
    return ndimage.correlate1d(x, w, axis, dtype, mode, cval, origins[0])


def _borders(x: Any, w: Any, axis: int | None, mode: str, origins: tuple[int, ...]) -> tuple[Border, ...]:
    """Return what is used of an array beyond its boundary."""
    found = []
    for a, size, origin in zip(_axes_of(x, axis), w.shape, origins, strict=True):
        before = size // 2 + origin
        found.append((a, x.shape[a], before, size - 1 - before, mode))
    return tuple(found)


def _spread(g: Any, w: Any, kind: ArrayType, axis: int | None, mode: str, origins: tuple[int, ...]) -> Any:
    """Return the cotangent of the array."""
    borders = _borders(kind, w, axis, mode, origins)
    if not kind.size:
        return np.zeros(kind.shape, kind.dtype)
    whole = tuple([(a, n, size - 1, size - 1, "constant") for (a, n, *_), size in zip(borders, w.shape, strict=True)])
    params = {"axis": axis, "mode": "constant", "cval": 0.0, "origins": (0,) * len(borders), "dtype": None}
    spread = correlation.bind((extend.bind((g,), {"borders": whole}), np.flip(w)), params)
    index = [slice(None)] * len(kind.shape)
    for (a, n, *_), size in zip(borders, w.shape, strict=True):
        index[a] = slice(size // 2, size // 2 + n + size - 1)
    return fold.bind((spread[tuple(index)],), {"borders": borders})


def _of_weights(g: Any, x: Any, kind: ArrayType, params: Any) -> Any:
    """Return the cotangent of the weights: one sum for each."""
    axis, mode, cval, origins = (params[name] for name in ("axis", "mode", "cval", "origins"))
    borders = _borders(x, kind, axis, mode, origins)
    if not x.size:
        return np.zeros(kind.shape, kind.dtype)
    wide = extended(x, borders, cval)
    sums = []
    for place in product(*[range(size) for size in kind.shape]):
        index = [slice(None)] * len(x.shape)
        for (a, n, *_), k in zip(borders, place, strict=True):
            index[a] = slice(k, k + n)
        sums.append(np.sum(g * wide[tuple(index)]))
    return np.reshape(np.stack(sums), kind.shape)


def _pull_x(g: Any, kind: ArrayType, params: Any, w: Any) -> Any:
    return matched(_spread(g, w, kind, params["axis"], params["mode"], params["origins"]), kind)


def _pull_w(g: Any, kind: ArrayType, params: Any, x: Any) -> Any:
    return matched(_of_weights(g, x, kind, params), kind)


def _push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    terms = []
    if tangents[0] is not None:
        terms.append(correlation.bind((tangents[0], values[1]), {**params, "cval": 0.0}))
    if tangents[1] is not None:
        terms.append(correlation.bind((values[0], tangents[1]), params))
    return promoted(terms, out)


def _type(x: ArrayType, w: ArrayType, dtype: Any, **params: Any) -> ArrayType:
    is_complex = x.dtype.kind == "c" or w.dtype.kind == "c"
    made = x.dtype if dtype is None else dtype
    return ArrayType(x.shape, np.promote_types(made, np.complex64) if is_complex else made)


def _members(values: Any, mapped: Any, params: Any, size: int) -> Any:
    if mapped[1]:
        return by_members("correlate", correlation.bind, values, mapped, params, size, None)
    x, w = values
    if params["axis"] is not None:
        return correlation.bind((x, w), {**params, "axis": params["axis"] + 1})
    return correlation.bind((x, np.expand_dims(w, 0)), {**params, "origins": (0, *params["origins"])})


_PULLS = (Pull(_pull_x, ("y",), FRESH, temporaries=4), Pull(_pull_w, ("x",), FRESH, temporaries=3))
correlation = Primitive(
    _correlation,
    name="correlate",
    operands=("x", "y"),
    pull=_PULLS.__getitem__,
    push=_push,
    infer=_type,
    batch=_members,
)


# Means of so many neighbours, which SciPy computes as a running sum. Parameters: size, axis, mode, cval, origin, dtype.


def _spread_mean(g: Any, kind: ArrayType, params: Any) -> Any:
    size, axis, mode, origin = (params[name] for name in ("size", "axis", "mode", "origin"))
    length = kind.shape[axis]
    if not kind.size:
        return np.zeros(kind.shape, kind.dtype)
    before = size // 2 + origin
    wide = extend.bind((g,), {"borders": ((axis, length, size - 1, size - 1, "constant"),)})
    params = {"size": size, "axis": axis, "mode": "constant", "cval": 0.0, "origin": 0, "dtype": None}
    spread = mean.bind((wide,), params)
    index = [slice(None)] * len(kind.shape)
    index[axis] = slice(size // 2, size // 2 + length + size - 1)
    whole = fold.bind((spread[tuple(index)],), {"borders": ((axis, length, before, size - 1 - before, mode),)})
    return matched(whole, kind)


_MEAN_PULL = Pull(_spread_mean, (), FRESH, temporaries=4)
mean = Primitive(
    lambda x, size, axis, mode, cval, origin, dtype: ndimage.uniform_filter1d(
        x, size, axis, dtype, mode, cval, origin
    ),
    name="uniform_filter1d",
    operands=("x",),
    pull=lambda k: _MEAN_PULL,
    push=lambda tangents, values, out, params, kept: mean.bind((tangents[0],), {**params, "cval": 0.0}),
    infer=lambda x, dtype, **params: x if dtype is None else ArrayType(x.shape, dtype),
    batch=lambda values, mapped, params, size: mean.bind(values, {**params, "axis": params["axis"] + 1}),
)
