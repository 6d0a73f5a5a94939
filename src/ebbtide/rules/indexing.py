"""
Rules of indexing: reading elements, and writing them.

Basic indices (numbers, slices, None, Ellipsis) give views; reading adds into a slice of the running cotangent,
never into a full array of zeros for each read. Writing is an operation from the old array and the
written values to the new array.
"""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import is_private, widened
from ebbtide.arrays.constants import constant, elementwise, stand_in_type
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.context import meet_plain
from ebbtide.arrays.kinds import linear, linear_of_many
from ebbtide.arrays.primitive import FRESH, innermost, unbroadcast
from ebbtide.arrays.registry import register
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom, lies, linked, lying, normal_index
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.gathers import is_traced, read_places, write_places
from ebbtide.rules.reductions import axis_of, placed

_BASIC = (int, np.integer, slice, type(None), type(Ellipsis))
# Its elements take no memory, however many an index reads.
_NOTHING = np.dtype([])


def normalized(index: Any) -> tuple[Any, ...]:
    """
    Return an index as a tuple of numbers, slices, None, Ellipsis and index arrays, traced or held by nobody else.

    Raises:
        TraceError: Part of the index has a derivative.
    """
    parts = index if type(index) is tuple else (index,)
    return tuple([part if type(part) in (int, slice) else _part(part) for part in parts])


def _part(part: Any) -> Any:
    if isinstance(part, TracedArray):
        if part.dtype.kind in "iub":
            # One without data stands for a plain one, of which there will be a copy.
            return np.copy(part) if part._trace.level < 0 else part.frozen()
        raise refusal("An index cannot be traced; its derivative is zero. Use ebbtide.stop_gradient(index).")
    if isinstance(part, (bool, np.bool_)):
        return np.array(part)
    if isinstance(part, _BASIC):
        return part
    if isinstance(part, np.ndarray):
        meet_plain(part)
    array = np.array(part)
    return array.astype(np.intp) if array.size == 0 and array.dtype.kind == "f" else array


def _is_basic(index: tuple[Any, ...]) -> bool:
    return not any(isinstance(part, np.ndarray) for part in index)


def _read_type(kind: ArrayType, index: tuple[Any, ...]) -> ArrayType:
    dummy = np.broadcast_to(np.zeros((), _NOTHING), kind.shape)
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


def _in_front(index: tuple[Any, ...]) -> int:
    """Return how many axes of index arrays NumPy puts in front of all others, as slices between them leave no place."""
    places = [k for k, part in enumerate(index) if isinstance(part, (int, np.integer, np.ndarray))]
    if _is_basic(index) or places == list(range(places[0], places[0] + len(places))):
        return 0
    return _ndim_of_arrays(index)


def _ndim_of_arrays(index: tuple[Any, ...]) -> int:
    """Return the number of axes that the index arrays make together."""
    return max([1 if p.dtype == np.bool_ else p.ndim for p in index if isinstance(p, np.ndarray)], default=0)


def _ndim_read(index: tuple[Any, ...], ndim: int) -> int:
    """Return the number of axes of what an index reads from an array of *ndim* axes."""
    parts = [part for part in index if part is not Ellipsis]
    masks = [part for part in parts if isinstance(part, np.ndarray) and part.dtype == np.bool_]
    taken = sum(part is not None for part in parts) + sum(mask.ndim - 1 for mask in masks)
    kept = sum(isinstance(part, (slice, type(None))) for part in parts)
    return ndim - taken + kept + _ndim_of_arrays(index)


def _read_members(x: Any, index: tuple[Any, ...]) -> Any:
    front = _in_front(index)
    found = x[(slice(None), *index)]
    found = np.moveaxis(found, front, 0) if front else found
    if len(index) == x.ndim - 1 and all(isinstance(part, (int, np.integer)) for part in index):
        return np.copy(found)  # of a member a number, and no view: a later write does not change it
    # Each member lies as if it were read alone, so that a reshape of it is a view; NumPy has the members innermost.
    return np.copy(found, order="C") if _ndim_of_arrays(index) and lies(found, "C") is False else found


def _scatter_members(g: Any, index: tuple[Any, ...], whole: ArrayType) -> Any:
    front = _in_front(index)
    g = np.moveaxis(g, 0, front) if front else g
    of_all = ArrayType((g.shape[front], *whole.shape), whole.dtype)
    return _scatter.bind((g,), {"index": (slice(None), *index), "whole": of_all})


def _write_members(base: Any, value: Any, index: tuple[Any, ...], in_place: bool, primitive: Any = None) -> Any:
    ndim = _ndim_read(index, base.ndim - 1)
    if value.ndim - 1 > ndim:  # NumPy drops leading axes of length 1
        value = np.reshape(value, (value.shape[0], *value.shape[value.ndim - ndim :]))
    value, front = widened(value, ndim), _in_front(index)
    value = np.moveaxis(value, 0, front) if front else value
    if type(base) is np.ndarray and not base.flags.writeable:
        # What is the same for all members lies in each as it did; what is not is the user's, and stays as it is.
        is_same = len(base) > 0 and base.strides[0] == 0
        base, in_place = np.stack([base[0]] * len(base)) if is_same else np.array(base), True
    return (primitive or _write).bind((base, value), {"index": (slice(None), *index), "in_place": in_place})


_scatter = linear(
    _scatter_function,
    lambda g, kind, index, whole: g[index],
    infer=lambda kind, index, whole: whole,
    batch=_scatter_members,
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


def _of_value(taken: Any, kind: ArrayType) -> Any:
    """Return the cotangent of a written value from those of the elements that it went to."""
    if taken.ndim < len(kind.shape):  # the value has further leading axes, all of one element
        shape = kind.shape[len(kind.shape) - taken.ndim :]
        taken = np.reshape(unbroadcast(taken, ArrayType(shape, kind.dtype)), kind.shape)
    else:
        taken = unbroadcast(taken, kind)
    # A copy: the pull of the base may clear these elements in the same memory, or add to them.
    return np.array(taken) if isinstance(taken, np.ndarray) else taken


def _write_transpose(k: int, g: Any, kind: ArrayType, index: tuple[Any, ...], in_place: bool) -> Any:
    if k == 1:
        taken = g[index]
        if _repeats(index):
            taken = np.where(_winners(g.shape, index, np.shape(taken)), taken, type_of(g).dtype.type(0))
        return _of_value(taken, kind)
    return _write.bind((g, type_of(g).dtype.type(0)), {"index": index, "in_place": False})


def _clear(g: Any, params: Any) -> Any:
    """Return the cotangent of the old array: zero where it was written."""
    g[params["index"]] = 0
    return g


_write = linear_of_many(
    _write_function, _write_transpose, infer=lambda kind, value, index, in_place: kind, batch=_write_members,
    name="setitem", last=0, consume=_clear, result=FRESH,
)  # fmt: skip


def _add_function(base: Any, value: Any, index: tuple[Any, ...], in_place: bool) -> Any:
    target = base if in_place else np.array(base, order="K")
    np.add.at(target, index, np.array(value) if in_place and np.may_share_memory(target, value) else value)
    return target


def _add_transpose(k: int, g: Any, kind: ArrayType, index: tuple[Any, ...], in_place: bool) -> Any:
    return _of_value(g[index], kind) if k else g


_add_to = linear_of_many(
    _add_function, _add_transpose, infer=lambda kind, value, index, in_place: kind,
    batch=lambda base, value, index, in_place: _write_members(base, value, index, in_place, _add_to),
    name="add.at", last=0,
)  # fmt: skip
_read = linear(
    lambda x, index: x[index],
    _read_transpose,
    infer=_read_type,
    batch=_read_members,
    aliases=True,
    put=lambda base, params, view: _write.bind((base, view), {"index": params["index"], "in_place": False}),
    accumulate=_accumulate,
    name="getitem",
)


def getitem(x: TracedArray, index: Any) -> Any:
    """Return x[index], a view where NumPy makes one."""
    params = {"index": normalized(index)}
    if is_traced(params["index"]):
        return read_places(x, params["index"])
    made = _read.bind((x,), params)
    if type(made) is TracedArray and isinstance(bottom(made), (np.ndarray, ArrayType)) and _is_basic(params["index"]):
        if x._sharing is not None and x._sharing.copied:
            return np.copy(made)
        return linked(made, x, _read, params)
    return made


def setitem(x: TracedArray, index: Any, value: Any) -> Any:
    """Return the array that x is after x[index] = value; in place where nothing else holds its memory."""
    index = normalized(index)
    if is_traced(index):
        return write_places(x, index, value)
    if x._sharing is not None and x._sharing.copied:
        value = _of_flat(x, index, value)
    if type_of(x).dtype.kind not in "fc":
        value = _settled(value)  # cast to integers or booleans, whose derivative is zero
    return _write.bind((x, value), {"index": index, "in_place": _is_ours(x, value)})


def repeated(values: Any, count: int) -> Any:
    """Return so many of some values in C order, which begin again where they are too few."""
    values = np.ravel(values) if type(values) is TracedArray else np.asarray(values).ravel()
    if values.shape[0] == count or values.shape[0] == 1:
        return values
    return values[:count] if values.shape[0] > count else np.resize(values, count)


def _of_flat(x: TracedArray, index: tuple[Any, ...], value: Any) -> Any:
    """Return what is written into places of x.flat: as many values as there are places; those that are, if none."""
    places = _read_type(type_of(x), index).shape
    if not places:
        return value  # a single place, into which a single value goes
    return repeated(value, prod(places)) if np.size(value) else x[index]


def add_into(x: TracedArray, index: Any, value: Any) -> Any:
    """
    Return the array that x is after np.add.at(x, index, value): places that an index names twice get both values.

    Raises:
        TraceError: The index is traced.
    """
    index = normalized(index)
    if is_traced(index):
        raise refusal("An index of ufunc.at cannot be traced: write x[index] = ... for an index without repetitions.")
    if type_of(x).dtype.kind not in "fc":
        value = _settled(value)
    return _add_to.bind((x, value), {"index": index, "in_place": _is_ours(x, value)})


def _is_ours(x: TracedArray, value: Any) -> bool:
    """Return whether nothing else holds the memory of an array, so that a write of *value* needs no copy of it."""
    sharing = x.sharing()
    array = x._value
    # On a tape or in a batch; a tangent may be that of several arrays.
    records = hasattr(x._trace, "ledger")
    batched = is_private(array) if records else is_private(x)
    alone = sharing.private and sharing.root is None and (type(array) is np.ndarray or batched)
    known = batched or type(value) is not TracedArray or type(bottom(value)) is np.ndarray or value.shape == ()
    same_trace = type(value) is not TracedArray or value._trace is x._trace
    return alone and known and same_trace and innermost((x,)) is x._trace and (records or batched)


_settled = constant(np.asarray, stand_in_type(np.asarray), elementwise)


register((operator.getitem,), getitem)
register((operator.setitem,), setitem)
register((normal_index,), normalized)


def brought_in(indices: Any, size: int, mode: str) -> Any:
    """Return indices of so many elements within their bounds, as the mode "wrap" or "clip" of NumPy has them."""
    return np.mod(indices, size) if mode == "wrap" else np.clip(indices, 0, size - 1)


def take(a: Any, indices: Any, axis: int | None = None, out: Any = None, mode: Any = "raise") -> Any:
    """Return elements along an axis."""
    if mode != "raise":
        indices = brought_in(indices, a.size if axis is None else a.shape[axis], mode)
    if type(indices) is not TracedArray:
        indices = np.asarray(indices)
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    where = axis_of(axis, a.ndim)
    index = (slice(None),) * where + (indices,)
    found = a[index] if type(a) is TracedArray else read_places(np.asarray(a), normalized(index))
    # Indexed so, an array has that axis outermost in memory, and sums of it have other last bits.
    found = np.copy(found, order="C") if where and indices.ndim else lying(found)
    return placed(found, out, "take")


def _take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Any:
    if axis is None:
        arr, indices, axis = np.reshape(arr, -1), np.ravel(indices), 0
    where = axis_of(axis, arr.ndim)
    grids: list[Any] = list(np.indices(arr.shape, sparse=True))
    grids[where] = as_operand(indices)
    index: Any = tuple(grids)
    return arr[index] if type(arr) is TracedArray else read_places(np.asarray(arr), normalized(index))


answer(np.take, take)
answer(np.take_along_axis, _take_along_axis)
answer(
    np.compress,
    lambda condition, a, axis=None, out=None: take(a, np.flatnonzero(condition), axis, out),
)

answer(np.extract, lambda condition, arr: take(np.ravel(arr), np.flatnonzero(condition)))
