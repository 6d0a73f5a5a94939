"""Integrals of functions that are known at some points."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import integrate

from ebbtide.arrays.array_type import type_of, with_shape
from ebbtide.rules.answers import refusal
from ebbtide.rules.originals import stands_for


def _trapezoids(y: Any, x: Any, dx: Any, axis: int) -> Any:
    """Return the areas between neighbors, in the order of SciPy's arithmetic."""
    after, before = ([slice(None)] * y.ndim for _ in range(2))
    after[axis], before[axis] = slice(1, None), slice(None, -1)
    if x is None:
        width = dx
    elif x.ndim == 1:
        width = np.reshape(x[1:] - x[:-1], [-1 if k == axis % y.ndim else 1 for k in range(y.ndim)])
    else:
        x = np.broadcast_to(x, y.shape)
        width = x[tuple(after)] - x[tuple(before)]
    return width * (y[tuple(after)] + y[tuple(before)]) / 2.0


@stands_for(integrate.trapezoid)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """
    Return the integral by trapezoids, as `scipy.integrate.trapezoid`.

    Args:
        y: Values of the function.
        x: Where they are: along *axis*, or of the shape of *y*; it has a derivative, too.
        dx: The distance between points, without *x*.
        axis: The axis of integration.

    Returns:
        An array without this axis, of the dtype of *y*.

    Memory:
        A record saves the widths if *y* has a derivative, and the sums of neighbors if *x* has one.
    """
    y, x = with_shape(y), None if x is None else with_shape(x)
    total = np.sum(_trapezoids(y, x, dx, axis), axis=axis)
    kept = np.result_type(type_of(y).dtype, np.float16)
    if type_of(total).dtype != kept:
        raise refusal(
            f"trapezoid of y of {type_of(y).dtype} sums {type_of(total).dtype} in that precision, which has no "
            "derivative rule. Give y and x one dtype."
        )
    return total


@stands_for(integrate.cumulative_trapezoid)
def cumulative_trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1, initial: Any = None) -> Any:
    """
    Return the integrals up to each point by trapezoids, as `scipy.integrate.cumulative_trapezoid`.

    Args:
        y: Values of the function.
        x: Where they are: along *axis*, or of the shape of *y*; it has a derivative, too.
        dx: The distance between points, without *x*.
        axis: The axis of integration.
        initial: 0 for a zero in front, None for none.

    Returns:
        An array with one element less along this axis, or as many with *initial*.

    Raises:
        ValueError: *initial* is another number.

    Memory:
        As `trapezoid`.
    """
    y, x = with_shape(y), None if x is None else with_shape(x)
    sums = np.cumsum(_trapezoids(y, x, dx, axis), axis=axis)
    if initial is None:
        return sums
    if initial != 0:
        raise ValueError("`initial` must be `None` or `0`.")
    shape = [1 if k == axis % y.ndim else n for k, n in enumerate(sums.shape)]
    return np.concatenate([np.zeros(shape, type_of(sums).dtype), sums], axis=axis)


def _ratio(x: Any, y: Any) -> Any:
    """Return x / y, and 0 where y is 0."""
    return np.where(y != 0, x / np.where(y != 0, y, 1.0), 0.0)


def _parabolas(y: Any, x: Any, dx: Any, axis: int) -> Any:
    """Return the integral by parabolas through three points each, of which there is an odd number along *axis*."""
    whole = [slice(None)] * y.ndim
    first, middle, last = [], [], []
    for chosen, start, stop in ((first, 0, -2), (middle, 1, -1), (last, 2, None)):
        chosen.extend(whole)
        chosen[axis] = slice(start, stop, 2)
    y0, y1, y2 = (y[tuple(chosen)] for chosen in (first, middle, last))
    if x is None:
        return np.sum(y0 + 4.0 * y1 + y2, axis=axis) * (dx / 3.0)
    widths = np.astype(np.diff(x, axis=axis), float)
    whole[axis] = slice(0, None, 2)
    h0 = widths[tuple(whole)]
    whole[axis] = slice(1, None, 2)
    h1 = widths[tuple(whole)]
    both, ratio = h0 + h1, _ratio(h0, h1)
    weighted = y0 * (2.0 - _ratio(1.0, ratio)) + y1 * (both * _ratio(both, h0 * h1)) + y2 * (2.0 - ratio)
    return np.sum(both / 6.0 * weighted, axis=axis)


def _last_interval(y: Any, x: Any, dx: Any, axis: int) -> Any:
    """Return the integral over the last interval of the parabola through the last three points."""
    y0, y1, y2 = (np.take(y, k, axis=axis) for k in (-3, -2, -1))
    if x is None:
        h0 = h1 = np.float64(dx)
    else:
        widths = np.astype(np.diff(x, axis=axis), float)
        h0, h1 = np.take(widths, -2, axis=axis), np.take(widths, -1, axis=axis)
    of_last = _ratio(2 * h1**2 + 3 * h0 * h1, 6 * (h1 + h0))
    of_middle = _ratio(h1**2 + 3.0 * h0 * h1, 6 * h0)
    return of_last * y2 + of_middle * y1 - _ratio(h1**3, 6 * h0 * (h0 + h1)) * y0


@stands_for(integrate.simpson)
def simpson(y: Any, x: Any = None, *, dx: Any = 1.0, axis: int = -1) -> Any:
    """
    Return the integral by Simpson's rule, as `scipy.integrate.simpson`.

    Args:
        y: Values of the function.
        x: Where they are: along *axis*, or of the shape of *y*; it has a derivative, too.
        dx: The distance between points, without *x*.
        axis: The axis of integration.

    Returns:
        An array without this axis.

    Source:
        Cartwright, Simpson's Rule Cumulative Integration with MS Excel and Irregularly-spaced Data, Journal of
        Mathematical Sciences and Mathematics Education 12 (2017), for the last of an odd number of intervals.

    Memory:
        A record saves the widths, with their quotients, if *y* has a derivative, and the values if *x* has one.
    """
    y, x = with_shape(y), None if x is None else with_shape(x)
    axis, count = axis % y.ndim, y.shape[axis]
    if x is not None:
        if x.ndim not in (1, y.ndim) or x.shape[0 if x.ndim == 1 else axis] != count:
            raise ValueError(
                f"simpson: x of shape {x.shape} is neither of one axis with the {count} points of y nor of its shape "
                f"{y.shape}."
            )
        x = np.reshape(x, [count if k == axis else 1 for k in range(y.ndim)]) if x.ndim == 1 else x
    if count == 2:
        width = dx if x is None else np.take(x, 1, axis=axis) - np.take(x, 0, axis=axis)
        return 0.5 * width * (np.take(y, 1, axis=axis) + np.take(y, 0, axis=axis)) + 0.0
    if count % 2:
        return _parabolas(y, x, dx, axis)
    front = tuple([slice(0, count - 1) if k == axis else slice(None) for k in range(y.ndim)])
    result = _parabolas(y[front], x if x is None else x[front if x.ndim == y.ndim else ...], dx, axis)
    total = result + _last_interval(y, x, dx, axis) + 0.0
    # SciPy adds into the array, which keeps its precision.
    return np.astype(total, type_of(result).dtype) if result.ndim else total
