"""Creation `like` a traced array, which gives arrays that take traced values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.constants import constant
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.context import current, value_trace
from ebbtide.arrays.primitive import constant_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import laid
from ebbtide.rules.answers import answer, refusal


def _created(function: Any) -> Any:
    """Return the handler of a creation function called with like=, which NumPy takes away before it calls here."""

    def handler(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        context = current()
        traces = [t for t in (context.capture, *context.traces) if t is not None]
        innermost = max(traces, key=lambda trace: trace.level, default=None)
        if innermost is not None and getattr(innermost, "is_plain", False):
            innermost = value_trace(context)  # a region that runs on values: those may be traced further out
        return made if innermost is None else innermost.constant(made)

    return handler


def _like(function: Any) -> Any:
    """Return the handler of zeros_like and its kin."""

    def handler(a: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None) -> Any:
        return constant_like(a, function(_model(a), dtype=dtype, order=order, shape=shape))

    return handler


def _model(a: Any) -> np.ndarray:
    """Return an array of the shape and dtype of another one that lies as it does, where that is known."""
    found = laid(a)
    known = found is not None and found.shape == a.shape
    return found if found is not None and known else np.broadcast_to(np.empty((), a.dtype), a.shape)


def _full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None
) -> Any:
    if type(fill_value) is TracedArray:
        shape, dtype = a.shape if shape is None else shape, type_of(a).dtype if dtype is None else dtype
        return np.astype(np.broadcast_to(fill_value, shape), dtype)
    return constant_like(a, np.full_like(_model(a), fill_value, dtype=dtype, order=order, shape=shape))


answer(np.zeros_like, _like(np.zeros_like))
answer(np.ones_like, _like(np.ones_like))
answer(np.empty_like, _like(np.empty_like))
answer(np.full_like, _full_like)


def _linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None,
    axis: int = 0, *, device: Any = None,
) -> Any:  # fmt: skip
    """Return evenly spaced numbers between two traced ones, with NumPy's formula, and the space if it is asked for."""
    parts = num - 1 if endpoint else num
    length = stop - start
    steps = np.arange(num, dtype=length.dtype).reshape((-1,) + (1,) * length.ndim)
    if parts <= 0:
        spaced = steps * length + start
    else:
        spaced = steps * (length / parts) + start
        if endpoint:
            spaced[-1] = stop
    spaced = spaced if axis == 0 else np.moveaxis(spaced, 0, axis)
    spaced = spaced if dtype is None else np.astype(spaced, dtype)
    return (spaced, length / parts if parts > 0 else np.nan) if retstep else spaced


def _logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """Return powers of a base whose exponents are evenly spaced."""
    if np.ndim(base):
        raise refusal("np.logspace of several bases has no derivative rule; call it for one base at a time.")
    made = np.power(base, np.linspace(start, stop, num, endpoint, axis=axis))
    return made if dtype is None else np.astype(made, dtype)


def _find_zeros(end: Any) -> None:
    if np.any(end == 0):
        raise ValueError("Geometric sequence cannot include zero")


_refuse_zeros = constant(_find_zeros, lambda end: None)  # nothing is known of abstract arrays


def _geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Any:
    """Return numbers evenly spaced on a scale of logarithms, at least in double precision, as NumPy does it."""
    start, stop = map(as_operand, (start, stop))
    for end in (start, stop):
        _refuse_zeros(end)
    wide = np.result_type(type_of(start).dtype, type_of(stop).dtype, np.float64 if dtype is None else dtype, float(num))
    start, stop = np.astype(start, wide), np.astype(stop, wide)
    sign = np.sign(start)
    first, last = start / sign, stop / sign
    made = _logspace(np.log10(first), np.log10(last), num, endpoint, dtype=wide)
    if num > 0:
        made[0] = first
        if num > 1 and endpoint:
            made[-1] = last
    made = made * sign
    made = np.moveaxis(made, 0, axis) if axis else made
    return made if dtype is None else np.astype(made, dtype)


answer(np.linspace, _linspace)
answer(np.logspace, _logspace)
answer(np.geomspace, _geomspace)
for _function in (np.zeros, np.ones, np.empty, np.full, np.arange, np.eye, np.identity, np.tri):
    answer(_function, _created(_function))
