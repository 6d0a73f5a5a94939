"""Creation `like` a traced array, which gives arrays that take traced values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.context import current
from ebbtide.arrays.primitive import constant_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import answer


def _created(function: Any) -> Any:
    """Return the handler of a creation function called with like=, which NumPy takes away before it calls here."""

    def handler(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        context = current()
        traces = [t for t in (*context.traces, context.capture) if t is not None]
        return max(traces, key=lambda trace: trace.level).constant(made) if traces else made

    return handler


def _like(function: Any) -> Any:
    """Return the handler of zeros_like and its kin."""

    def handler(a: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None) -> Any:
        shape = a.shape if shape is None else shape
        return constant_like(a, function(shape, a.dtype if dtype is None else dtype))

    return handler


def _full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None
) -> Any:
    dtype = type_of(a).dtype if dtype is None else dtype
    shape = a.shape if shape is None else shape
    if type(fill_value) is TracedArray:
        return np.astype(np.broadcast_to(fill_value, shape), dtype)
    return constant_like(a, np.full(shape, fill_value, dtype))


answer(np.zeros_like, _like(np.zeros))
answer(np.ones_like, _like(np.ones))
answer(np.empty_like, _like(np.empty))
answer(np.full_like, _full_like)


def _linspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, *, axis: int = 0) -> Any:
    """Return evenly spaced numbers between two traced ones, with NumPy's formula."""
    parts = num - 1 if endpoint else num
    length = stop - start
    steps = np.arange(num, dtype=length.dtype).reshape((-1,) + (1,) * length.ndim)
    if parts <= 0:
        spaced = steps * length + start
    else:
        spaced = steps * (length / parts) + start
        if endpoint:
            spaced[-1] = stop
    return spaced if axis == 0 else np.moveaxis(spaced, 0, axis)


answer(np.linspace, _linspace)
for _function in (np.zeros, np.ones, np.empty, np.full, np.arange, np.eye, np.identity):
    answer(_function, _created(_function))
