"""
Rules of running sums, products, extrema and logarithms of sums.

A running value is y[k] = f(y[k-1], x[k]). Its tangent is t[k] = a[k] t[k-1] + b[k] u[k], where a and b are the slopes
of f and u is the tangent of x: a linear recurrence. Its derivatives are recurrences again, which never divide, so
that products are right with any number of zeros, to any order.

Source: W. D. Hillis, G. L. Steele, Data parallel algorithms, 1986 (the recurrence, by doubling).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import all_full
from ebbtide.arrays.kinds import linear
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, needs_of, promoted
from ebbtide.arrays.registry import register
from ebbtide.rules.answers import answer
from ebbtide.rules.reductions import axis_of, placed

# Running sums are linear.

_cumsum = linear(
    np.cumsum,
    lambda g, kind, axis: np.flip(np.cumsum(np.flip(g, axis), axis=axis), axis),
    infer=lambda kind, axis: ArrayType(kind.shape, np.cumsum(np.ones(1, kind.dtype)).dtype),
    batch=lambda x, axis: np.cumsum(x, axis=axis + 1),
    name="cumsum",
)


def _in_line(a: Any, axis: int | None, dtype: Any) -> tuple[Any, int]:
    """Return an array of a dtype, all elements in one line if *axis* is None, and the axis."""
    if dtype is not None:
        a = np.astype(a, dtype)
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    return a, axis_of(axis, np.ndim(a))


def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return the running sum along an axis, of all elements if *axis* is None."""
    a, axis = _in_line(a, axis, dtype)
    return placed(_cumsum.bind((a,), {"axis": axis}), out, "cumsum")


answer(np.cumsum, cumsum)

# Linear recurrences along the last axis.


def _recurred(a: Any, b: Any) -> Any:
    """Return s with s[k] = a[k] s[k-1] + b[k] along the last axis."""
    dtype = np.result_type(a, b)
    products, found = np.array(a, dtype), np.array(b, dtype)
    step = 1
    with np.errstate(over="ignore", invalid="ignore"):
        while step < found.shape[-1]:
            found[..., step:] += products[..., step:] * found[..., :-step]
            products[..., step:] *= products[..., :-step]
            step *= 2
    if np.all(np.isfinite(products[..., 1:])):
        return found
    # Products of many slopes are beyond all numbers, where those that count may be none: 0 times infinity is nan.
    found = np.array(b, dtype)
    for k in range(1, found.shape[-1]):
        found[..., k] += a[..., k] * found[..., k - 1]
    return found


def _before(s: Any, first: float) -> Any:
    """Return for each element the one before it along the last axis."""
    start = np.full((*s.shape[:-1], 1), first, type_of(s).dtype)
    return np.concatenate([start, s[..., :-1]], axis=-1)[..., : s.shape[-1]]


def backwards(a: Any, g: Any) -> Any:
    """Return h with h[k] = a[k+1] h[k+1] + g[k] along the last axis: the recurrence transposed."""
    after = np.concatenate([a[..., 1:], a[..., :1]], axis=-1)
    return np.flip(recurrence(np.flip(after, -1), np.flip(g, -1)), -1)


def _recurrence_push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    terms = []
    if tangents[0] is not None:
        terms.append(recurrence(values[0], tangents[0] * _before(out, 0.0)))
    if tangents[1] is not None:
        terms.append(recurrence(values[0], tangents[1]))
    return promoted(terms, out)


_PULLS = (
    Pull(lambda g, kind, params, x, out: matched(backwards(x, g) * _before(out, 0.0), kind), ("x", "out"), FRESH),
    Pull(lambda g, kind, params, x: matched(backwards(x, g), kind), ("x",), FRESH),
)
recurrence = Primitive(
    _recurred,
    name="recurrence",
    operands=("x", "y"),
    pull=_PULLS.__getitem__,
    push=_recurrence_push,
    infer=lambda a, b: ArrayType(b.shape, np.result_type(a.dtype, b.dtype)),
    batch=lambda values, mapped, params, size: recurrence.bind(all_full(values, mapped, size)),
    scratch=lambda params, a, b: 2 * max(a.nbytes, b.nbytes),  # products, and a temporary of them
)

# Running values of ufuncs.


def _accumulation(ufunc: np.ufunc, slopes: Callable[..., Any], keep: Any = None) -> Primitive:
    """
    Return the operation `ufunc.accumulate` along the last axis.

    Args:
        ufunc: The ufunc f.
        slopes: `slopes(*saved)` returns the derivatives of f(y[k-1], x[k]) by both, for all k. The names of its
            parameters say what is saved.
        keep: Kept values by name.
    """
    needs = needs_of(slopes)

    def rule(g: Any, kind: ArrayType, params: Any, *saved: Any) -> Any:
        by_value, by_element = slopes(*saved)
        return matched(backwards(_as(by_value, g), g) * _as(by_element, g), kind)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        known = {"x": values[0], "out": out}
        by_value, by_element = slopes(*[known[n] if n in known else kept(n) for n in needs])
        t = tangents[0]
        return matched(recurrence(_as(by_value, t), t * _as(by_element, t)), type_of(out))

    pull = Pull(rule, needs, FRESH, temporaries=5, along=lambda kind, params: (kind.ndim - 1,))
    made = Primitive(
        lambda x: ufunc.accumulate(x, axis=-1),
        name=f"{ufunc.__name__}.accumulate",
        operands=("x",),
        pull=lambda k: pull,
        push=push,
        infer=lambda kind: ArrayType(kind.shape, ufunc.accumulate(np.ones(1, kind.dtype)).dtype),
        keep=keep,
        batch=lambda values, mapped, params, size: made.bind(values),
    )
    return made


def _as(slope: Any, like: Any) -> Any:
    """Return slopes in the dtype of what they are multiplied with, if they are kept in bytes."""
    return np.astype(slope, type_of(like).dtype) / 2 if type_of(slope).dtype == np.int8 else slope


def _extremum_slopes(side: Any) -> Any:
    return 2 - side, side


def _side(beats: Callable[[Any, Any], Any]) -> dict[str, Callable[..., Any]]:
    """Return what a running extremum keeps: 2 where the new element is it, 0 where the one before is, 1 at a tie."""

    def side(x: Any, out: Any) -> Any:
        new, old = x[..., 1:], out[..., :-1]
        wins, loses = beats(new, old).astype(np.int8), beats(old, new).astype(np.int8)
        return np.concatenate([np.full((*x.shape[:-1], 1), 2, np.int8), 1 + wins - loses], axis=-1)[..., : x.shape[-1]]

    return {"side": side}


def _log_slopes(add: np.ufunc, power: np.ufunc) -> Callable[..., Any]:
    """Return the slopes of the logarithm of a running sum of powers: the shares of both terms."""

    def slopes(x: Any, out: Any) -> Any:
        old = _before(out, -np.inf)
        with np.errstate(invalid="ignore"):
            gap = np.where(np.logical_and(old == x, np.isinf(x)), 0.0, x - old)
        return power(np.negative(add(gap, 0.0))), power(np.negative(add(np.negative(gap), 0.0)))

    return slopes


def _is_larger(x: Any, y: Any) -> Any:
    return np.logical_or(np.greater(x, y), np.isnan(y))


def _is_smaller(x: Any, y: Any) -> Any:
    return np.logical_or(np.less(x, y), np.isnan(y))


_ACCUMULATIONS: Mapping[np.ufunc, Primitive] = MappingProxyType({
    np.multiply: _accumulation(np.multiply, lambda x, out: (x, _before(out, 1.0))),
    np.maximum: _accumulation(np.maximum, _extremum_slopes, _side(np.greater)),
    np.minimum: _accumulation(np.minimum, _extremum_slopes, _side(np.less)),
    np.fmax: _accumulation(np.fmax, _extremum_slopes, _side(_is_larger)),
    np.fmin: _accumulation(np.fmin, _extremum_slopes, _side(_is_smaller)),
    np.logaddexp: _accumulation(np.logaddexp, _log_slopes(np.logaddexp, np.exp)),
    np.logaddexp2: _accumulation(np.logaddexp2, _log_slopes(np.logaddexp2, np.exp2)),
})  # fmt: skip


def _accumulate(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return the function that does `ufunc.accumulate` along an axis."""
    primitive = _ACCUMULATIONS[ufunc]

    def handler(array: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
        array, axis = _in_line(array, axis, dtype)
        found = np.moveaxis(primitive.bind((np.moveaxis(array, axis, -1),)), -1, axis)
        return placed(found, out, primitive.name)

    return handler


_running_product = _accumulate(np.multiply)


def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return the running product along an axis; the derivative is right with any number of zeros."""
    return _running_product(a, axis, dtype, out)


def _cumulative(function: Callable[..., Any], first: float, name: str) -> Callable[..., Any]:
    """Return the handler of cumulative_sum or cumulative_prod, which may begin with the empty sum or product."""

    def handler(
        x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: bool = False
    ) -> Any:
        if axis is None and x.ndim > 1:
            raise ValueError("For arrays which have more than one dimension ``axis`` argument is required.")
        axis = axis_of(-1 if axis is None else _one_of(axis), x.ndim)
        found = function(x, axis, dtype)
        if include_initial:
            start = np.full_like(found, first, shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))
            found = np.concatenate([start, found], axis=axis)
        return placed(found, out, name)

    return handler


def _without_nan(function: Callable[..., Any], instead: int) -> Callable[..., Any]:
    """Return the handler of nancumsum or nancumprod."""
    return lambda a, axis=None, dtype=None, out=None: function(np.where(np.isnan(a), instead, a), axis, dtype, out)


def _one_of(axis: Any) -> Any:
    """Return the axis of a ufunc's method, which takes a tuple of one, too."""
    return axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis


def _method(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler of `ufunc.accumulate`."""
    return lambda array, axis=0, dtype=None, out=None: handler(array, _one_of(axis), dtype, out)


for _ufunc in _ACCUMULATIONS:
    register(((_ufunc, "accumulate"),), _method(_accumulate(_ufunc)))
register(((np.add, "accumulate"),), _method(cumsum))
answer(np.cumprod, cumprod)
answer(np.cumulative_sum, _cumulative(cumsum, 0, "cumulative_sum"))
answer(np.cumulative_prod, _cumulative(cumprod, 1, "cumulative_prod"))
answer(np.nancumsum, _without_nan(cumsum, 0))
answer(np.nancumprod, _without_nan(cumprod, 1))
