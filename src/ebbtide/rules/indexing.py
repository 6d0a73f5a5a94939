"""
Rules of indexing: reading elements, and writing them.

Basic indices (numbers, slices, None, Ellipsis) give views; reading adds into a slice of the running cotangent,
never into a full array of zeros for each read. Writing is an operation from the old array and the
written values to the new array.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.constants import constant, stand_in_type
from ebbtide.arrays.kinds import linear, linear_of_many
from ebbtide.arrays.primitive import FRESH, innermost, unbroadcast
from ebbtide.arrays.registry import register
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom, linked, normal_index
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.reductions import axes_of

_BASIC = (int, np.integer, slice, type(None), type(Ellipsis))


def normalized(index: Any) -> tuple[Any, ...]:
    """
    Return an index as a tuple of numbers, slices, None, Ellipsis and index arrays that nobody else holds.

    Raises:
        TraceError: Part of the index is traced: an index has no derivative.
    """
    parts = index if type(index) is tuple else (index,)
    return tuple([part if type(part) in (int, slice) else _part(part) for part in parts])


def _part(part: Any) -> Any:
    if isinstance(part, TracedArray):
        raise refusal("An index cannot be traced; its derivative is zero. Use ebbtide.stop_gradient(index).")
    if isinstance(part, (bool, np.bool_)):
        return np.array(part)
    if isinstance(part, _BASIC):
        return part
    array = np.array(part)
    return array.astype(np.intp) if array.size == 0 and array.dtype.kind == "f" else array


def _is_basic(index: tuple[Any, ...]) -> bool:
    return not any(isinstance(part, np.ndarray) for part in index)


def _read_type(kind: ArrayType, index: tuple[Any, ...]) -> ArrayType:
    dummy = np.broadcast_to(np.zeros((), np.int8), kind.shape)
    return ArrayType(np.shape(dummy[index]), kind.dtype)


def _repeats(index: tuple[Any, ...]) -> bool:
    """Return whether an index may name an element twice: only arrays of numbers can."""
    return any(isinstance(part, np.ndarray) and part.dtype != np.bool_ for part in index)


def _add_at(target: Any, g: Any, index: tuple[Any, ...]) -> None:
    """Add *g* into the elements of *target*; elements that an index names twice get both."""
    if _repeats(index):
        np.add.at(target, index, g)
    else:
        target[index] += g


def _scatter_function(g: Any, index: tuple[Any, ...], whole: ArrayType) -> Any:
    full = np.zeros(whole.shape, whole.dtype)
    if _repeats(index):
        np.add.at(full, index, g)
    else:
        full[index] = g
    return full


def _accumulate(target: Any, g: Any, params: Any) -> bool:
    _add_at(target, g, params["index"])
    return True


_scatter = linear(
    _scatter_function,
    lambda g, kind, index, whole: g[index],
    infer=lambda kind, index, whole: whole,
    name="scatter",
)


def _read_transpose(g: Any, kind: ArrayType, index: tuple[Any, ...]) -> Any:
    return _scatter.bind((g,), {"index": index, "whole": kind})


def _write_function(base: Any, value: Any, index: tuple[Any, ...], in_place: bool) -> Any:
    target = base if in_place else np.array(base, order="K")
    target[index] = value
    return target


def _winners(shape: tuple[int, ...], index: tuple[Any, ...], written: tuple[int, ...]) -> Any:
    """Return a mask of the written values that are still there: of several to one element the last wins."""
    order = np.arange(int(np.prod(written))).reshape(written)
    last = np.full(shape, -1)
    last[index] = order
    return last[index] == order


def _write_transpose(k: int, g: Any, kind: ArrayType, index: tuple[Any, ...], in_place: bool) -> Any:
    if k == 1:
        taken = g[index]
        if _repeats(index):
            taken = np.where(_winners(g.shape, index, np.shape(taken)), taken, type_of(g).dtype.type(0))
        if taken.ndim < len(kind.shape):  # the value has further leading axes, all of one element
            shape = kind.shape[len(kind.shape) - taken.ndim :]
            taken = np.reshape(unbroadcast(taken, ArrayType(shape, kind.dtype)), kind.shape)
        else:
            taken = unbroadcast(taken, kind)
        # A copy: the pull of the base may clear these elements in the same memory.
        return np.array(taken) if isinstance(taken, np.ndarray) else taken
    return _write.bind((g, type_of(g).dtype.type(0)), {"index": index, "in_place": False})


_write = linear_of_many(
    _write_function, _write_transpose, infer=lambda kind, value, index, in_place: kind, name="setitem", last=0,
    result=FRESH,
)  # fmt: skip
_read = linear(
    lambda x, index: x[index],
    _read_transpose,
    infer=_read_type,
    aliases=True,
    put=lambda base, params, view: _write.bind((base, view), {"index": params["index"], "in_place": False}),
    accumulate=_accumulate,
    name="getitem",
)


def getitem(x: TracedArray, index: Any) -> Any:
    """Return x[index], a view where NumPy makes one."""
    params = {"index": normalized(index)}
    made = _read.bind((x,), params)
    if type(made) is TracedArray and isinstance(bottom(made), (np.ndarray, ArrayType)) and _is_basic(params["index"]):
        return linked(made, x, _read, params)
    return made


def setitem(x: TracedArray, index: Any, value: Any) -> Any:
    """Return the array that x is after x[index] = value; in place where nothing else holds its memory."""
    sharing = x.sharing()
    array = x._value
    alone = sharing.private and sharing.root is None and type(array) is np.ndarray
    value_is_real = type(value) is not TracedArray or type(bottom(value)) is np.ndarray or value.shape == ()
    same_trace = type(value) is not TracedArray or value._trace is x._trace
    in_place = alone and value_is_real and same_trace and innermost((x,)) is x._trace and hasattr(x._trace, "ledger")
    if type_of(x).dtype.kind not in "fc":
        value = _settled(value)  # cast to integers or booleans, whose derivative is zero
    return _write.bind((x, value), {"index": normalized(index), "in_place": in_place})


_settled = constant(np.asarray, stand_in_type(np.asarray))


register((operator.getitem,), getitem)
register((operator.setitem,), setitem)
register((normal_index,), normalized)


def take(a: Any, indices: Any, axis: int | None = None, mode: Any = "raise") -> Any:
    """Return elements along an axis."""
    if mode != "raise":
        size = a.size if axis is None else a.shape[axis]
        indices = np.mod(indices, size) if mode == "wrap" else np.clip(indices, 0, size - 1)
    if axis is None:
        return np.reshape(a, -1)[np.asarray(indices)]
    where = axes_of(axis, a.ndim)[0]
    return a[(slice(None),) * where + (np.asarray(indices),)]


def _take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Any:
    if axis is None:
        return np.reshape(arr, -1)[np.ravel(indices)]
    where = axes_of(axis, arr.ndim)[0]
    grids = [np.arange(n).reshape((-1,) + (1,) * (arr.ndim - k - 1)) for k, n in enumerate(arr.shape)]
    grids[where] = np.asarray(indices)
    return arr[tuple(grids)]


answer(np.take, take)
answer(np.take_along_axis, _take_along_axis)
answer(
    np.compress,
    lambda condition, a, axis=None: take(a, np.flatnonzero(condition), axis),
)

def _diff(a: Any, n: int = 1, axis: int = -1) -> Any:
    where = (slice(None),) * axes_of(axis, a.ndim)[0]
    for _ in range(n):
        a = a[(*where, slice(1, None))] - a[(*where, slice(None, -1))]
    return a


answer(np.diff, _diff)


def _put_values(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    if type(dst) is not TracedArray:
        raise refusal("np.copyto cannot write traced values into a plain array; make it with np.zeros_like(x).")
    dst[...] = src if where is True else np.where(where, src, dst)


answer(np.copyto, _put_values)
