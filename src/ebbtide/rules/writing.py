"""
Functions that write into an array: into a traced one through its own indices, so that views and bases follow.

NumPy's `ufunc.at` adds to places one after the other, also to a place that an index names twice.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ebbtide.arrays import misuse
from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.constants import PYTHON_NUMBERS
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.registry import HANDLERS, register
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import normal_index, replace
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.indexing import add_into, brought_in, repeated
from ebbtide.rules.originals import is_traced


def _target(array: Any, name: str) -> Any:
    """Return an array that traced values are written into; a plain one would lose their derivative."""
    if type(array) is not TracedArray:
        raise misuse.into_plain(f"np.{name}")
    return array


def _put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    places = np.asarray(ind).ravel()
    size = _target(a, "put").size
    if mode != "raise":
        places = brought_in(places, size, mode)
    if places.size:
        a.flat[places] = repeated(v, places.size)


def _mask(mask: Any, array: Any) -> Any:
    return np.reshape(np.astype(mask, bool) if is_traced(mask) else np.asarray(mask, bool), array.shape)


def _place(arr: Any, mask: Any, vals: Any) -> None:
    mask = _mask(mask, _target(arr, "place"))
    if is_traced(mask):
        arr[mask] = np.reshape(vals, ()) if np.size(vals) == 1 else vals
        return
    count = int(np.count_nonzero(mask))
    if count:
        if not np.size(vals):
            raise ValueError("Cannot insert from an empty array!")
        arr[mask] = repeated(vals, count)


def _put_mask(a: Any, mask: Any, values: Any) -> None:
    mask = _mask(mask, _target(a, "putmask"))
    if np.size(values):
        values = np.reshape(repeated(values, a.size), (-1,))
        if is_traced(mask):
            a[...] = np.where(mask, values if values.shape[0] == 1 else np.reshape(values, a.shape), a)
        else:
            a[mask] = values if values.shape[0] == 1 else values[np.flatnonzero(mask)]


def _put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    axis_of = 0 if axis is None else axis % _target(arr, "put_along_axis").ndim
    if axis is None:
        _target(arr, "put_along_axis").flat[indices] = values
        return
    grids: list[Any] = list(np.indices(arr.shape, sparse=True))
    grids[axis_of] = indices
    arr[tuple(grids)] = values


def _fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    shape = _target(a, "fill_diagonal").shape
    if len(shape) < 2:
        raise ValueError("array must be at least 2-d")
    if len(shape) > 2 and len(set(shape)) > 1:
        raise ValueError("All dimensions of input must be of equal length")
    step = shape[1] + 1 if len(shape) == 2 else sum(shape[0] ** k for k in range(len(shape)))
    end = shape[1] ** 2 if len(shape) == 2 and not wrap else a.size
    count = len(range(0, min(end, a.size), step))
    a.flat[:end:step] = repeated(val, count)


def _copy_to(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    target = _target(dst, "copyto")
    if type(src) not in PYTHON_NUMBERS:
        src = as_operand(src)
        if not np.can_cast(src.dtype, target.dtype, casting):
            raise TypeError(f"Cannot cast array data from {src.dtype!r} to {target.dtype!r} by the rule {casting!r}")
    target[...] = src if where is True else np.where(where, src, target)


answer(np.put, _put)
answer(np.place, _place)
answer(np.putmask, _put_mask)
answer(np.put_along_axis, _put_along_axis)
answer(np.fill_diagonal, _fill_diagonal)
answer(np.copyto, _copy_to)


def _added_at(a: Any, indices: Any, b: Any) -> None:
    """Do np.add.at, which adds to a place as often as the indices name it."""
    replace(_target(a, "add.at").present(), add_into(a, indices, b), private=True)


def _times(places: Any) -> Any:
    """Return how often each of some places was named before."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    times = np.empty(places.size, np.intp)
    times[order] = np.arange(places.size) - np.repeat(starts, np.diff([*starts, places.size]))
    return times


def _at(ufunc: np.ufunc, a: Any, indices: Any, *operands: Any) -> None:
    """Do `ufunc.at`: at a place that is named several times the operation is done as often, each on its last result."""
    if type_of(_target(a, f"{ufunc.__name__}.at")).dtype.kind == "c":
        # NumPy rounds complex products otherwise there.
        raise refusal(f"np.{ufunc.__name__}.at of complex numbers has no derivative rule; write a[i] = a[i] * b.")
    function, index = HANDLERS[ufunc], normal_index(indices)
    if is_traced(index):
        raise refusal(
            f"np.{ufunc.__name__}.at wants indices that are known here, to find which place they name twice; those of "
            "a program or a batch are not. Write a[index] = ... if they name none twice, or pass them in as constants."
        )
    places = np.arange(a.size).reshape(a.shape)[index]
    times = _times(np.ravel(places)) if np.size(places) else np.zeros(0, np.intp)
    if not np.any(times):
        a[index] = function(a[index], *operands)
        return
    each = [b if type(b) in PYTHON_NUMBERS else np.ravel(np.broadcast_to(b, places.shape)) for b in operands]
    for k in range(int(np.max(times)) + 1):
        now = np.flatnonzero(times == k)
        there = np.ravel(places)[now]
        a.flat[there] = function(a.flat[there], *[b if type(b) in PYTHON_NUMBERS else b[now] for b in each])


register(((np.add, "at"),), _added_at)
register(((np.subtract, "at"),), lambda a, indices, b: _added_at(a, indices, np.negative(b)))
for _ufunc in (np.multiply, np.true_divide, np.maximum, np.minimum):
    register(((_ufunc, "at"),), partial(_at, _ufunc))
# Of all others that have a rule.
register(((np.ufunc, "at"),), _at)
