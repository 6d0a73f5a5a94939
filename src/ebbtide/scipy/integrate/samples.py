"""Integrals of functions that are known at some points."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import integrate

from ebbtide.arrays.array_type import type_of
from ebbtide.rules.answers import refusal
from ebbtide.rules.originals import stands_for


def _array(x: Any) -> Any:
    return x if hasattr(x, "shape") else np.asarray(x)


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
    y, x = _array(y), None if x is None else _array(x)
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
    y, x = _array(y), None if x is None else _array(x)
    sums = np.cumsum(_trapezoids(y, x, dx, axis), axis=axis)
    if initial is None:
        return sums
    if initial != 0:
        raise ValueError("`initial` must be `None` or `0`.")
    shape = [1 if k == axis % y.ndim else n for k, n in enumerate(sums.shape)]
    return np.concatenate([np.zeros(shape, type_of(sums).dtype), sums], axis=axis)
