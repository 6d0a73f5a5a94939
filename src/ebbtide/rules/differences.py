"""Rules of differences and what is made of them: diff, ediff1d, gradient, trapezoid, with NumPy's arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.constants import constant
from ebbtide.arrays.constants import elementwise as elementwise_constant
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.kinds import elementwise
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import answer
from ebbtide.rules.reductions import axes_of, axis_of, given


def value_of(x: Any) -> Any:
    """Return a copy of the present value of an array, which has no derivative."""
    return _value(x) if type(x) is TracedArray else np.array(x)


_value = constant(value_of, lambda x: x, elementwise_constant)
# A value that is known to the last bit, of something that has a derivative.
_valued = elementwise(lambda x, value: np.positive(value), d=(1, 0), operands=("x", "value"), name="valued")


def _part(axis: int, start: int | None, stop: int | None) -> tuple[slice, ...]:
    """Return the index of a part along an axis."""
    return (*(slice(None),) * axis, slice(start, stop))


def _end(value: Any, a: Any, axis: int) -> Any:
    """Return what is put before or behind an array; a number is spread out."""
    value = as_operand(value)
    return value if value.ndim else np.broadcast_to(value, (*a.shape[:axis], 1, *a.shape[axis + 1 :]))


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return differences of neighbors along an axis, *n* times."""
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n!r}")
    if n == 0:
        return a
    a = as_operand(a)
    axis = axis_of(axis, a.ndim)
    parts = [_end(part, a, axis) for part in (prepend, a, append) if given(part)]
    if len(parts) > 1:
        a = np.concatenate(parts, axis)
    for _ in range(n):
        a = a[_part(axis, 1, None)] - a[_part(axis, None, -1)]
    return a


def _ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Return the differences of all elements in line, with what is put before and behind."""
    ary = as_operand(ary)
    steps = np.reshape(ary, -1)
    steps = steps[1:] - steps[:-1]
    parts = [np.reshape(part, -1) for part in (to_begin, steps, to_end) if part is not None]
    return np.astype(np.concatenate(parts), type_of(ary).dtype) if len(parts) > 1 else steps


def _trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """Return the integral by the trapezoidal rule."""
    y = as_operand(y)
    axis = axis_of(axis, y.ndim)
    width = dx
    if x is not None:
        x = as_operand(x)
        if x.ndim == 1:
            width = diff(x)
            width = np.reshape(width, tuple([width.shape[0] if k == axis else 1 for k in range(y.ndim)]))
        else:
            width = diff(x, axis=axis_of(axis, x.ndim))
    return np.sum(width * (y[_part(axis, 1, None)] + y[_part(axis, None, -1)]) / 2.0, axis)


def _spacing(value: Any, f: Any, axis: int) -> Any:
    """Return the distance of neighbors along an axis, a number or one for each pair."""
    if isinstance(value, (int, float)):
        return value
    value = as_operand(value)
    if not value.ndim:
        return value
    if value.shape != f.shape[axis : axis + 1]:
        raise ValueError(
            f"np.gradient: coordinates of the shape {value.shape} do not fit axis {axis} of an array of the shape "
            f"{f.shape}."
        )
    steps = diff(value.astype(float) if value.dtype.kind in "iu" else value)
    return steps[0] if type(steps) is np.ndarray and np.all(steps == steps[0]) else steps


def _weighted(f: Any, axis: int, starts: tuple[int, ...], length: int, weights: Any) -> Any:
    """Return the sum of shifted parts of an array, each times its weight."""
    terms = [w * f[_part(axis, s, s + length)] for s, w in zip(starts, weights, strict=True)]
    return terms[0] + terms[1] + terms[2]


def _even(f: Any, axis: int, step: Any, order: int) -> list[Any]:
    """Return the slopes at the first, inner and last places of even distance."""
    n = f.shape[axis]
    inner = (f[_part(axis, 2, None)] - f[_part(axis, None, -2)]) / (2.0 * step)
    if order == 1:
        return [
            (f[_part(axis, 1, 2)] - f[_part(axis, 0, 1)]) / step,
            inner,
            (f[_part(axis, n - 1, n)] - f[_part(axis, n - 2, n - 1)]) / step,
        ]
    return [
        _weighted(f, axis, (0, 1, 2), 1, (-1.5 / step, 2.0 / step, -0.5 / step)),
        inner,
        _weighted(f, axis, (n - 3, n - 2, n - 1), 1, (0.5 / step, -2.0 / step, 1.5 / step)),
    ]


def _uneven(f: Any, axis: int, steps: Any, order: int) -> list[Any]:
    """Return the slopes at the first, inner and last places of uneven distance."""
    n, along = f.shape[axis], tuple([-1 if k == axis else 1 for k in range(f.ndim)])
    one, two = steps[:-1], steps[1:]
    weights = (-two / (one * (one + two)), (two - one) / (one * two), one / (two * (one + two)))
    inner = _weighted(f, axis, (0, 1, 2), n - 2, [np.reshape(w, along) for w in weights])
    if order == 1:
        return [
            (f[_part(axis, 1, 2)] - f[_part(axis, 0, 1)]) / steps[0],
            inner,
            (f[_part(axis, n - 1, n)] - f[_part(axis, n - 2, n - 1)]) / steps[-1],
        ]
    one, two = steps[0], steps[1]
    first = (-(2.0 * one + two) / (one * (one + two)), (one + two) / (one * two), -one / (two * (one + two)))
    one, two = steps[-2], steps[-1]
    last = (two / (one * (one + two)), -(two + one) / (one * two), (2.0 * two + one) / (two * (one + two)))
    return [
        _weighted(f, axis, (0, 1, 2), 1, first),
        inner,
        _weighted(f, axis, (n - 3, n - 2, n - 1), 1, last),
    ]


def _slopes(f: Any, axis: int, step: Any, order: int) -> list[Any]:
    """Return the slopes along an axis for the distance of neighbors, or for one each."""
    if not np.ndim(step):
        return _even(f, axis, step, order)
    slopes = _uneven(f, axis, step, order)
    if type(step) is not TracedArray:
        return slopes
    # Where all distances are equal NumPy's arithmetic is another one, but each has a derivative of its own.
    f, step = value_of(f), value_of(step)
    equal, values = np.all(np.equal(step, step[0])), _even(f, axis, step[0], order)
    chosen = [np.where(equal, value, value_of(slope)) for value, slope in zip(values, slopes, strict=True)]
    return [_valued(slope, value) for slope, value in zip(slopes, chosen, strict=True)]


def _gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return central differences, one-sided at the ends; for each axis an array."""
    f = as_operand(f)
    axes = axes_of(axis, f.ndim)
    if edge_order not in (1, 2):
        raise ValueError("'edge_order' greater than 2 not supported")
    if len(varargs) not in (0, 1, len(axes)) or (len(varargs) == 1 != len(axes) and np.ndim(varargs[0])):
        raise TypeError(f"np.gradient: {len(varargs)} spacings for {len(axes)} axes.")
    spacings = varargs * len(axes) if len(varargs) == 1 else varargs or (1.0,) * len(axes)
    f = f if type_of(f).dtype.kind in "fc" else np.astype(f, float)
    found = []
    for along, value in zip(axes, spacings, strict=True):
        if f.shape[along] < edge_order + 1:
            raise ValueError(
                f"np.gradient with edge_order={edge_order} wants at least {edge_order + 1} elements along axis "
                f"{along}, which has {f.shape[along]}."
            )
        slopes = _slopes(f, along, _spacing(value, f, along), edge_order)
        joined = np.concatenate(slopes, along)
        found.append(joined if joined.dtype == f.dtype else np.astype(joined, f.dtype))
    return found[0] if len(axes) == 1 else tuple(found)


answer(np.diff, diff)
answer(np.ediff1d, _ediff1d)
answer(np.trapezoid, _trapezoid)
answer(np.gradient, _gradient)
