"""Rules of choosing between several arrays, and of functions that NumPy applies to parts of an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.constants import PYTHON_NUMBERS
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import lying
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.indexing import brought_in
from ebbtide.rules.reductions import axes_of, axis_of, number, placed


def _array(value: Any) -> Any:
    return value if type(value) is TracedArray or type(value) in PYTHON_NUMBERS else np.asarray(value)


def _common_dtype(choices: list[Any]) -> Any:
    """Return the dtype of all choices together; a number takes that of the others."""
    return np.result_type(*[c if type(c) in PYTHON_NUMBERS else type_of(c).dtype for c in choices])


def _filled(made: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a result in the shape and dtype that all choices have together, in C order."""
    if np.shape(made) != shape:
        made = np.copy(np.broadcast_to(made, shape), order="C")
    return lying(made if type_of(made).dtype == dtype else np.astype(made, dtype))


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Return for each element the first of several arrays whose condition holds; each condition is a mask."""
    conditions, choices = [_array(c) for c in condlist], [_array(c) for c in (*choicelist, default)]
    if len(conditions) != len(choices) - 1 or not conditions:
        raise ValueError(f"select: {len(conditions)} conditions for {len(choices) - 1} choices.")
    for k, condition in enumerate(conditions):
        if type_of(condition).dtype != np.bool_:
            raise TypeError(f"invalid entry {k} in condlist: should be boolean ndarray")
    shape = np.broadcast_shapes(*[np.shape(one) for one in (*conditions, *choices)])
    made = choices[-1]
    for condition, choice in zip(conditions[::-1], choices[-2::-1], strict=True):
        made = np.where(condition, choice, made)
    return _filled(made, shape, _common_dtype(choices))


def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Return for each element the array of that number."""
    options = [_array(c) for c in choices]
    numbers, count = as_operand(a), len(options)
    if numbers.dtype.kind not in "iub":
        raise refusal("np.choose wants integers that say which array to take from.")
    if mode == "raise":
        if np.any(np.logical_or(numbers < 0, numbers >= count)):
            raise ValueError("invalid entry in choice array")
    else:
        numbers = brought_in(numbers, count, mode)
    shape = np.broadcast_shapes(numbers.shape, *[np.shape(option) for option in options])
    made: Any = options[-1] if count > 1 else np.where(np.equal(numbers, 0), options[0], options[0])
    for k in range(count - 2, -1, -1):
        made = np.where(np.equal(numbers, k), options[k], made)
    return placed(number(_filled(made, shape, _common_dtype(options))), out, "choose")


answer(np.select, select)
answer(np.choose, choose)


def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Return what functions give of the elements for which their conditions hold."""
    x = as_operand(x)
    single = np.isscalar(condlist)
    given: Any = [condlist] if single else condlist
    if not single and not isinstance(given[0], (list, np.ndarray, TracedArray)) and x.ndim:
        given = [given]
    if any(isinstance(c, TracedArray) for c in given):
        raise refusal("np.piecewise wants conditions that are known here; write np.where(condition, f(x), g(x)).")
    conditions = np.asarray(given, dtype=bool)
    if len(conditions) == len(funclist) - 1:
        conditions = np.concatenate([conditions, ~np.any(conditions, axis=0, keepdims=True)])
    if len(conditions) != len(funclist):
        raise ValueError(f"piecewise: {len(funclist)} functions for {len(conditions)} conditions.")
    y: Any = np.zeros_like(x)
    for condition, function in zip(conditions, funclist, strict=True):
        if not isinstance(function, Callable):
            y[condition] = function
        elif np.any(condition):
            y[condition] = function(x[condition], *args, **kw)
    return y


def apply_along_axis(func1d: Any, axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a function gives of each vector along an axis."""
    axis = axis_of(axis, arr.ndim)
    vectors = np.moveaxis(arr, axis, -1)
    around = vectors.shape[:-1]
    if 0 in around:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    made = [func1d(vectors[(*place, Ellipsis)], *args, **kwargs) for place in np.ndindex(around)]
    made = [as_operand(one) for one in made]
    first = made[0]
    # NumPy has a buffer of the dtype of the first result.
    made = [one if type_of(one).dtype == first.dtype else np.astype(one, first.dtype) for one in made]
    full = np.reshape(np.stack(made), (*around, *first.shape))
    places = range(len(around), len(around) + first.ndim)
    return np.moveaxis(full, tuple(places), tuple(range(axis, axis + first.ndim)))


def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    """Return what a function of an array and an axis gives, done for one axis after the other."""
    for axis in axes_of(axes, a.ndim):
        made = func(a, axis)
        a = made if np.ndim(made) == a.ndim else np.expand_dims(made, axis)
    return a


answer(np.piecewise, piecewise)
answer(np.apply_along_axis, apply_along_axis)
answer(np.apply_over_axes, apply_over_axes)
