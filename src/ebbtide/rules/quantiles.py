"""
Rules of medians, quantiles and percentiles.

Each is a mean of two elements that are neighbors when sorted: (1 - s) x[lower] + s x[upper]. Where they are is found
once, and saved in small integers. The share s is an operand with a derivative, as it follows the wanted fraction q.
With weights it is one element, which q and the weights choose, so that they have derivative zero almost everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import all_full
from ebbtide.arrays.constants import constant
from ebbtide.arrays.constants import elementwise as elementwise_constant
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.kinds import elementwise
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, promoted, unbroadcast
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import lying
from ebbtide.rules.answers import answer
from ebbtide.rules.gathers import added_along
from ebbtide.rules.reductions import axes_of, dropped, number, placed, real_dtype, reduced

# How far the place among n sorted elements goes while q goes from 0 to 1, less n: for the methods that interpolate.
SLOPES: Mapping[str, float] = MappingProxyType({
    "linear": -1, "weibull": 1, "hazen": 0, "interpolated_inverted_cdf": 0, "median_unbiased": 1 / 3,
    "normal_unbiased": 1 / 4,
})  # fmt: skip


def _positions(q: Any, count: Any, method: Any) -> Any:
    """Return the place of a quantile among so many sorted elements, with its fraction; it has no derivative."""
    q, count = np.broadcast_arrays(q, count)
    found = np.zeros(q.shape)
    for n in np.unique(count[count > 0]):
        found[count == n] = np.quantile(np.arange(float(n)), q[count == n], method=method)
    return found


def _positions_type(q: Any, count: Any, method: str) -> ArrayType:
    return ArrayType(np.broadcast_shapes(q.shape, count.shape), np.dtype(float))


positions = constant(_positions, _positions_type, elementwise_constant)
# The place, which is known, as a function of q whose slope is known.
_followed = elementwise(
    lambda q, place, slope: np.positive(place),
    d=(lambda g, slope: g * slope, 0, 0),
    operands=("q", "place", "slope"),
    name="place_of_quantile",
)


def _at(x: Any, indices: Any) -> Any:
    return np.take_along_axis(x, indices, -1)


def _mixed(x: Any, lower: Any, upper: Any, share: Any) -> Any:
    return _at(x, lower) * (1 - share) + _at(x, upper) * share


def _statistic(function: Callable[..., Any], has_q: bool) -> Primitive:
    """Return the operation of an order statistic, along the last axis; as many results as q has elements are there."""

    def compute(x: Any, q: Any, lower: Any, upper: Any, share: Any, **params: Any) -> Any:
        if not has_q:
            return np.expand_dims(np.asarray(function(x, axis=-1)), -1)
        found = np.reshape(function(x, q, axis=-1, **params), (np.size(q), *x.shape[:-1]))
        return np.ascontiguousarray(np.moveaxis(found, 0, -1))

    def to_x(g: Any, kind: ArrayType, params: Any, lower: Any, upper: Any, share: Any) -> Any:
        parts = np.concatenate([g * (1 - share), g * share], axis=-1)
        return matched(added_along(parts, np.concatenate([lower, upper], axis=-1), kind), kind)

    def to_share(g: Any, kind: ArrayType, params: Any, x: Any, lower: Any, upper: Any) -> Any:
        return unbroadcast(g * (_at(x, upper) - _at(x, lower)), kind)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        x, _, lower, upper, share = values
        terms = []
        if tangents[0] is not None:
            terms.append(_mixed(tangents[0], lower, upper, share))
        if tangents[4] is not None:
            terms.append(tangents[4] * (_at(x, upper) - _at(x, lower)))
        return promoted(terms, out)

    def infer(x: ArrayType, q: ArrayType, lower: ArrayType, upper: Any, share: Any, **params: Any) -> ArrayType:
        one = compute(np.ones((1, 1), x.dtype), np.zeros(q.shape, q.dtype), None, None, None, **params)
        return ArrayType(lower.shape, one.dtype)

    def of_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
        x, q, *rest = values
        members = all_full((x, *rest), (mapped[0], *mapped[2:]), size)
        if not mapped[1]:
            return made.bind((members[0], q, *members[1:]), params)
        # Each has fractions of its own.
        one = compute(np.ones((1, 1), x.dtype), np.zeros(q.shape[1:], q.dtype), None, None, None, **params)
        return np.astype(_mixed(*members), one.dtype)

    pulls = {
        0: Pull(to_x, ("lower", "upper", "share"), FRESH, temporaries=1),
        4: Pull(to_share, ("x", "lower", "upper"), FRESH, temporaries=1),
    }
    made = Primitive(
        compute,
        name=function.__name__,
        operands=("x", "q", "lower", "upper", "share"),
        pull=pulls.get,
        push=push,
        infer=infer,
        batch=of_members,
    )
    return made


def _found(primitive: Primitive, x: Any, q: Any, fraction: Any, method: str, skip: bool, params: Any) -> Any:
    """
    Return order statistics of the rows of a matrix, one column for each fraction.

    Args:
        primitive: The operation.
        x: The matrix.
        q: What it takes: fractions or percents.
        fraction: The fractions.
        method: NumPy's method for places between elements.
        skip: Whether nan are left out.
        params: Parameters of the operation.
    """
    size = x.shape[-1]
    count = np.sum(np.logical_not(np.isnan(x)), axis=-1, keepdims=True) if skip else np.array([[size]])
    place = positions(fraction, count, method)
    low = np.floor(np.maximum(np.minimum(place, count - 2), 0))
    slope = np.zeros((1, 1))
    if method in SLOPES:
        inside = np.logical_and(np.greater(place, 0), np.less(place, count - 1))
        slope = np.where(np.logical_or(inside, method == "linear"), count + SLOPES[method], 0.0)
    kind = type_of(x).dtype
    dtype = real_dtype(kind) if kind.kind in "fc" else np.dtype(float)
    share = np.astype(_followed(fraction, place, slope) - low, dtype)
    # Stable: of elements that are equal, the first ones come first.
    order = np.argsort(x, axis=-1, kind="stable")
    small = np.min_scalar_type(size)
    low = np.astype(low, np.intp)
    shape = (x.shape[0], low.shape[-1])
    lower, upper = (
        np.astype(np.take_along_axis(order, np.broadcast_to(index, shape), -1), small)
        for index in (low, np.minimum(low + 1, np.maximum(count - 1, 0)))
    )
    found = primitive.bind((x, q, lower, upper, share), params)
    # Where all elements are nan none of them has a derivative, as in the other reductions that leave out nan.
    return np.where(count > 0, found, np.nan) if skip else found


def _rows(a: Any, axes: tuple[int, ...]) -> Any:
    """Return a matrix with the elements along *axes* in rows."""
    kept = [k for k in range(np.ndim(a)) if k not in axes]
    size = prod(a.shape[k] for k in axes)
    return np.reshape(np.transpose(a, (*kept, *axes)), (prod(a.shape[k] for k in kept), size))


def _median(function: Callable[..., Any], skip: bool) -> Callable[..., Any]:
    """Return the handler of a median."""
    primitive = _statistic(function, has_q=False)

    def handler(
        a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: Any = False
    ) -> Any:
        axes, half = axes_of(axis, np.ndim(a)), np.array([[0.5]])
        if not a.size:
            return function(np.zeros(a.shape, a.dtype), axis=axes, keepdims=bool(keepdims))
        found = _found(primitive, _rows(a, axes), half, half, "linear", skip, {})
        found = np.reshape(found, reduced(type_of(a), axes, True).shape)
        return placed(dropped(found, a, axes, keepdims), out, function.__name__)

    return handler


def _choice(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that says which element of each row a weighted quantile is; it has no derivative."""

    def chosen(a: Any, q: Any, weights: Any, axes: tuple[int, ...]) -> Any:
        rows = _rows(a, axes)
        # NumPy chooses, among the places that the elements have when sorted; nan are the last ones.
        order = np.argsort(rows, axis=-1, kind="stable")
        places = np.where(np.isnan(rows), np.nan, np.argsort(order, axis=-1))
        kept = [k for k in range(np.ndim(a)) if k not in axes]
        there = np.reshape(places, [np.shape(a)[k] for k in (*kept, *axes)])
        there = np.transpose(there, np.argsort((*kept, *axes)))
        found = np.reshape(function(there, q, axis=axes, method="inverted_cdf", weights=weights), (-1, len(rows))).T
        found = np.where(np.isnan(found), rows.shape[-1] - 1, found).astype(np.intp)
        return np.take_along_axis(order, found, -1).astype(np.min_scalar_type(rows.shape[-1]))

    def infer(a: ArrayType, q: Any, weights: Any, axes: tuple[int, ...]) -> ArrayType:
        size = prod(a.shape[k] for k in axes)
        return ArrayType((prod(a.shape) // size, prod(np.shape(q))), np.min_scalar_type(size))

    def of_members(handler: Any, args: Any, kwargs: Any, flags: Any, size: int) -> Any:
        """Say it of the rows of all members together; of each alone if they ask for quantiles of their own."""
        (a, q, weights, axes), (has_a, has_q, has_weights, _) = args, flags
        if has_q or not size:
            return None
        shape = a.shape[1:] if has_a else a.shape
        if weights.ndim - has_weights != len(shape):  # along the axes, in their order
            order = [*range(has_weights), *(np.argsort(axes) + has_weights)]
            along = [n if k in axes else 1 for k, n in enumerate(shape)]
            weights = np.reshape(np.transpose(weights, order), (*weights.shape[:has_weights], *along))
        whole = [np.broadcast_to(x, (size, *shape)) for x in (a, weights)]
        found = handler(whole[0], q, whole[1], tuple([k + 1 for k in axes]))
        return np.reshape(found, (size, -1, found.shape[1]))

    chosen.__name__ = f"{function.__name__} with weights"
    return constant(chosen, infer, of_members)


def _quantile(function: Callable[..., Any], skip: bool, whole: int) -> Callable[..., Any]:
    """Return the handler of a quantile or percentile, whose q goes from 0 to *whole*."""
    primitive, choice = _statistic(function, has_q=True), _choice(function)

    def handler(
        a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
        keepdims: Any = False, *, weights: Any = None,
    ) -> Any:  # fmt: skip
        a = as_operand(a)
        if type(q) not in (TracedArray, float, int):  # of a Python number the dtype is that of the array
            q = np.asarray(q)
        axes = axes_of(axis, a.ndim)
        if not a.size:
            raise ValueError(f"np.{function.__name__} of no elements.")
        if weights is None:
            fraction = np.reshape(q, (1, -1))
            fraction = fraction if whole == 1 else np.true_divide(fraction, whole)
            found = _found(primitive, _rows(a, axes), q, fraction, method, skip, {"method": method})
        elif method != "inverted_cdf" or a.dtype.kind == "c":
            raise ValueError(
                f"np.{function.__name__} takes weights= of real numbers with method='inverted_cdf' alone, not of "
                f"{a.dtype} with method={method!r}."
            )
        else:
            weights = as_operand(weights)
            found = _at(_rows(a, axes), choice(a, q, weights, axes))
        rest = reduced(type_of(a), axes, keepdims is not np._NoValue and bool(keepdims)).shape
        found = np.reshape(np.transpose(found), (*np.shape(q), *rest))
        return placed(number(lying(found)), out, function.__name__)

    return handler


answer(np.median, _median(np.median, skip=False))
answer(np.nanmedian, _median(np.nanmedian, skip=True))
answer(np.quantile, _quantile(np.quantile, skip=False, whole=1))
answer(np.nanquantile, _quantile(np.nanquantile, skip=True, whole=1))
answer(np.percentile, _quantile(np.percentile, skip=False, whole=100))
answer(np.nanpercentile, _quantile(np.nanpercentile, skip=True, whole=100))
