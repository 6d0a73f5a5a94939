# ruff: noqa: PLW0108 - the names of the parameters of a lambda are what the rule saves
"""Rules of reductions: sum, mean, extrema, products, variances, cumulative sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.kinds import linear, reduction
from ebbtide.arrays.primitive import BORROWED
from ebbtide.arrays.registry import register
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import answer


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes of a reduction as a tuple of non-negative numbers."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    return tuple(np.lib.array_utils.normalize_axis_index(int(a), ndim) for a in axes)


def reduced(kind: ArrayType, axis: tuple[int, ...], keepdims: bool) -> ArrayType:
    """Return the type of a reduction over *axis*."""
    if keepdims:
        shape = tuple(1 if k in axis else n for k, n in enumerate(kind.shape))
    else:
        shape = tuple(n for k, n in enumerate(kind.shape) if k not in axis)
    return ArrayType(shape, kind.dtype)


def spread(g: Any, kind: ArrayType, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Return *g* of a reduced array as a view of the shape of the operand."""
    if not keepdims:
        g = np.reshape(g, reduced(kind, axis, True).shape)
    return np.broadcast_to(g, kind.shape)


def _count(kind: ArrayType, axis: tuple[int, ...]) -> int:
    return math.prod(kind.shape[a] for a in axis)


def _spread_chosen(g: Any, kind: ArrayType, axis: Any, keepdims: bool, where: Any = True, **_: Any) -> Any:
    """Return the cotangent of the operand of a sum: zero where it was left out."""
    full = spread(g, kind, axis, keepdims)
    return full if where is True else np.where(where, full, 0)


def _spread_mean(g: Any, kind: ArrayType, axis: Any, keepdims: bool, where: Any = True, dtype: Any = None) -> Any:
    """Return the cotangent of the operand of a mean."""
    if where is True:
        return spread(g / max(_count(kind, axis), 1), kind, axis, keepdims)
    count = np.sum(np.broadcast_to(where, kind.shape), axis=axis, keepdims=keepdims, dtype=kind.dtype)
    return np.where(where, spread(g / count, kind, axis, keepdims), 0)


def _total_type(function: Any) -> Any:
    """Return the rule for the type of a sum or mean: integers and booleans give larger dtypes."""

    def infer(kind: ArrayType, axis: Any, keepdims: bool, dtype: Any = None, **_: Any) -> ArrayType:
        dtype = function(np.ones(1, kind.dtype), dtype=dtype).dtype
        return ArrayType(reduced(kind, axis, keepdims).shape, dtype)

    return infer


def _of_members(function: Any) -> Any:
    """Return the batch rule of a sum or mean."""
    return lambda x, axis, **params: function(x, axis=tuple([a + 1 for a in axis]), **params)


_sum = linear(
    np.sum, _spread_chosen, infer=_total_type(np.sum), batch=_of_members(np.sum), result=BORROWED, name="sum"
)
_mean = linear(
    np.mean, _spread_mean, infer=_total_type(np.mean), batch=_of_members(np.mean), result=BORROWED, name="mean"
)


def _given(value: Any) -> bool:
    """Return whether the user gave an optional argument."""
    return value is not None and value is not np._NoValue


def _with_axes(primitive: Any) -> Any:
    """Return the handler of a linear reduction with NumPy's arguments."""

    def handler(a: Any, axis: Any = None, dtype: Any = None, keepdims: Any = False, *, where: Any = True) -> Any:
        if type(where) is TracedArray:  # another one for each member of a batch
            chosen = np.sum(np.where(where, a, type_of(a).dtype.type(0)), axis, dtype, keepdims=keepdims)
            mask = np.broadcast_to(where, a.shape)
            return chosen if primitive is _sum else chosen / np.sum(mask, axis, chosen.dtype, keepdims=keepdims)
        params = {"axis": axes_of(axis, np.ndim(a)), "keepdims": bool(keepdims) and keepdims is not np._NoValue}
        if dtype is not None:
            params["dtype"] = np.dtype(dtype)
        if where is not True and where is not np._NoValue:
            params["where"] = np.array(where)  # ours: the user's may change
        return primitive.bind((a,), params)

    return handler


def total(a: Any, axis: Any = None, dtype: Any = None, *, initial: Any = None, **kwargs: Any) -> Any:
    """Return the sum along axes."""
    result = _sum_along(a, axis, dtype, **kwargs)
    return result + initial if _given(initial) else result


_sum_along = _with_axes(_sum)
answer(np.sum, total)
register(((np.add, "reduce"),), lambda a, axis=0, **kwargs: np.sum(a, axis=axis, **kwargs))
answer(np.mean, _with_axes(_mean))


def _extremum(function: Any, name: str) -> Any:
    """Return the handler of max or min; elements that tie share the derivative equally."""

    def shares(mask: Any, axis: Any, dtype: Any) -> Any:
        return mask / np.sum(mask, axis=axis, keepdims=True, dtype=dtype)

    def vjp(g: Any, kind: Any, axis: Any, mask: Any) -> Any:
        return g * shares(mask, axis, type_of(g).dtype)

    def jvp(t: Any, axis: Any, mask: Any) -> Any:
        return np.sum(t * shares(mask, axis, type_of(t).dtype), axis=axis, keepdims=True)

    # The mask is also set where both are nan: nan is what NumPy returns then, and it comes from there.
    keep = {"mask": lambda x, out: np.logical_or(np.equal(x, out), np.not_equal(x, x))}
    primitive = reduction(
        function, vjp, jvp, infer=lambda kind, axis, keepdims: reduced(kind, axis, keepdims), keep=keep, name=name
    )

    def handler(
        a: Any, axis: Any = None, *, keepdims: Any = False, initial: Any = None, where: Any = True
    ) -> Any:
        if where is not True and where is not np._NoValue:
            if not _given(initial):
                raise ValueError(f"np.{name} with where= wants initial=, the value of an empty selection.")
            a = np.where(where, a, type_of(a).dtype.type(initial))
        axes = axes_of(axis, np.ndim(a))
        result = _drop_axes(primitive.bind((a,), {"axis": axes, "keepdims": True}), a, axes, keepdims)
        if not _given(initial):
            return result
        return np.maximum(result, initial) if name == "max" else np.minimum(result, initial)

    return handler


def _drop_axes(result: Any, a: Any, axes: tuple[int, ...], keepdims: Any) -> Any:
    """Return the result of a reduction with kept axes in the shape that the user asked for."""
    if keepdims and keepdims is not np._NoValue:
        return result
    shape = reduced(type_of(a), axes, False).shape
    return np.reshape(result, shape)


for _functions, _ufunc, _name in (
    ((np.max,), np.maximum, "max"),
    ((np.min,), np.minimum, "min"),
):
    _handler = _extremum(_functions[0], _name)
    answer(_functions[0], _handler)
    register(((_ufunc, "reduce"),), lambda a, axis=0, _h=_handler, **kwargs: _h(a, axis=axis, **kwargs))


def others(x: Any, axis: tuple[int, ...]) -> Any:
    """Return for each element the product of the others, right with any number of zeros."""
    if 0 in x.shape:
        return x
    kept = [k for k in range(x.ndim) if k not in axis]
    order = (*kept, *axis)
    moved = np.transpose(x, order)
    shape = moved.shape
    flat = np.reshape(moved, (*shape[: len(kept)], math.prod(shape[len(kept) :])))
    one = np.ones((*flat.shape[:-1], 1), type_of(x).dtype)
    # Products of all before and of all after, by doubling: O(n log n) and no division by zero.
    before = _running(np.concatenate([one, flat[..., :-1]], axis=-1))
    after = _running(np.concatenate([one, flat[..., :0:-1]], axis=-1))[..., ::-1]
    return np.transpose(np.reshape(before * after, shape), tuple(int(k) for k in np.argsort(order)))


def _running(x: Any) -> Any:
    """Return the running product along the last axis."""
    step = 1
    while step < x.shape[-1]:
        x = np.concatenate([x[..., :step], x[..., step:] * x[..., :-step]], axis=-1)
        step *= 2
    return x


_prod = reduction(
    np.prod,
    lambda g, kind, axis, x: g * others(x, axis),
    lambda t, axis, x: np.sum(t * others(x, axis), axis=axis, keepdims=True),
    infer=lambda kind, axis, keepdims: reduced(kind, axis, keepdims),
    name="prod",
)


def prod(a: Any, axis: Any = None, dtype: Any = None, *, keepdims: Any = False) -> Any:
    """Return the product of elements; the derivative is right with any number of zeros."""
    if dtype is not None:
        a = np.astype(a, dtype)
    axes = axes_of(axis, np.ndim(a))
    return _drop_axes(_prod.bind((a,), {"axis": axes, "keepdims": True}), a, axes, keepdims)


answer(np.prod, prod)
register(((np.multiply, "reduce"),), lambda a, axis=0, **kwargs: np.prod(a, axis=axis, **kwargs))


def variance(a: Any, axis: Any = None, dtype: Any = None, *, ddof: Any = 0, keepdims: Any = False) -> Any:
    """Return the variance along axes, also of complex numbers."""
    if dtype is not None:
        a = np.astype(a, dtype)
    axes = axes_of(axis, np.ndim(a))
    squares = _squared_size(a - np.mean(a, axis=axes, keepdims=True))
    keep = bool(keepdims) and keepdims is not np._NoValue
    return np.sum(squares, axis=axes, keepdims=keep) / max(_count(type_of(a), axes) - ddof, 0)


def _squared_size(x: Any) -> Any:
    """Return |x|^2, with the arithmetic of NumPy's variance."""
    if type_of(x).dtype.kind == "c":
        return np.square(np.real(x)) + np.square(np.imag(x))
    return np.square(x)


def root(squares: Any) -> Any:
    """Return the square root of a sum of squares, with a zero derivative at zero."""
    at_zero = np.equal(squares, 0)
    return np.where(at_zero, squares, np.sqrt(np.where(at_zero, 1, squares)))


answer(np.var, variance)


def deviation(a: Any, axis: Any = None, dtype: Any = None, *, ddof: Any = 0, keepdims: Any = False) -> Any:
    """Return the standard deviation along axes; its derivative is zero where all elements are equal."""
    return root(variance(a, axis, dtype, ddof=ddof, keepdims=keepdims))


answer(np.std, deviation)


def _reversed_cumsum(g: Any, kind: ArrayType, axis: int) -> Any:
    return np.flip(np.cumsum(np.flip(g, axis), axis=axis), axis)


_cumsum = linear(
    np.cumsum,
    _reversed_cumsum,
    infer=lambda kind, axis: kind,
    batch=lambda x, axis: np.cumsum(x, axis=axis + 1),
    name="cumsum",
)


def cumsum(a: Any, axis: Any = None, dtype: Any = None) -> Any:
    """Return the running sum along an axis, of all elements if *axis* is None."""
    if dtype is not None:
        a = np.astype(a, dtype)
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    return _cumsum.bind((a,), {"axis": axes_of(axis, np.ndim(a))[0]})


answer(np.cumsum, cumsum)
answer(
    np.trace, lambda a, offset=0, axis1=0, axis2=1: np.sum(np.diagonal(a, offset, axis1, axis2), axis=-1)
)
