"""Rules of joining and splitting: concatenate, stack, split and their kin."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.kinds import linear_of_many
from ebbtide.arrays.primitive import constant_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import lying, order_like
from ebbtide.rules.answers import answer
from ebbtide.rules.reductions import axis_of


def _concatenate(*arrays: Any, axis: int, offsets: Any) -> Any:
    return np.concatenate(arrays, axis=axis)


def _concatenate_transpose(k: int, g: Any, kind: ArrayType, axis: int, offsets: Any) -> Any:
    index = (slice(None),) * axis + (slice(offsets[k], offsets[k + 1]),)
    return g[index]


def _concatenate_type(*kinds: ArrayType, axis: int, offsets: Any) -> ArrayType:
    shape = (*kinds[0].shape[:axis], offsets[-1], *kinds[0].shape[axis + 1 :])
    return ArrayType(shape, np.result_type(*[k.dtype for k in kinds]))


_joined = linear_of_many(
    _concatenate,
    _concatenate_transpose,
    infer=_concatenate_type,
    batch=lambda *arrays, axis, offsets: np.concatenate(arrays, axis=axis + 1),
    name="concatenate",
)


def concatenate(arrays: Any, /, axis: int | None = 0, *, dtype: Any = None, casting: Any = None) -> Any:
    """Return arrays joined along an existing axis."""
    parts = [as_operand(a) for a in arrays]
    if axis is None:
        parts, axis = [np.reshape(a, -1) for a in parts], 0
    axis = axis_of(axis, parts[0].ndim)
    offsets = [0]
    for part in parts:
        if part.ndim != parts[0].ndim:
            raise ValueError(f"concatenate: arrays of {part.ndim} and of {parts[0].ndim} axes do not join.")
        offsets.append(offsets[-1] + part.shape[axis])
    joined = _joined.bind(tuple(parts), {"axis": axis, "offsets": tuple(offsets)})
    return joined if dtype is None else np.astype(joined, dtype)


def stack(arrays: Any, axis: int = 0, **kwargs: Any) -> Any:
    """Return arrays joined along a new axis."""
    parts = [as_operand(a) for a in arrays]
    where = axis_of(axis, parts[0].ndim + 1)
    for part in parts:
        if part.shape != parts[0].shape:
            raise ValueError(f"stack: arrays of shapes {parts[0].shape} and {part.shape} differ.")
    return concatenate([np.expand_dims(a, where) for a in parts], axis=where, **kwargs)


answer(np.concatenate, concatenate)
answer(np.stack, stack)
answer(np.vstack, lambda tup, **kwargs: concatenate([np.atleast_2d(a) for a in tup], 0, **kwargs))
answer(
    np.hstack,
    lambda tup, **kwargs: concatenate(ones := [np.atleast_1d(a) for a in tup], min(ones[0].ndim - 1, 1), **kwargs),
)
answer(np.dstack, lambda tup, **kwargs: concatenate([np.atleast_3d(a) for a in tup], 2, **kwargs))
answer(
    np.column_stack,
    lambda tup: concatenate([np.reshape(a, (-1, 1)) if np.ndim(a) < 2 else a for a in tup], 1),
)
answer(
    np.append,
    lambda arr, values, axis=None: concatenate(
        [np.ravel(arr), np.ravel(values)] if axis is None else [arr, values], 0 if axis is None else axis
    ),
)


def _at_least(ndim: int) -> Any:
    """Return the handler of np.atleast_1d, _2d or _3d."""

    def one(a: Any) -> Any:
        a = as_operand(a)
        if a.ndim >= ndim:
            return a
        if ndim == 3:
            shape = {0: (1, 1, 1), 1: (1, *a.shape, 1), 2: (*a.shape, 1)}[a.ndim]
        else:
            shape = (1,) * (ndim - a.ndim) + a.shape
        return np.reshape(a, shape)

    return lambda *arys: one(arys[0]) if len(arys) == 1 else tuple([one(a) for a in arys])


answer(np.atleast_1d, _at_least(1))
answer(np.atleast_2d, _at_least(2))
answer(np.atleast_3d, _at_least(3))


def _split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    axis = axis_of(axis, ary.ndim)
    size = ary.shape[axis]
    if isinstance(indices_or_sections, (int, np.integer)):
        each, rest = divmod(size, int(indices_or_sections))
        sizes = [each + (k < rest) for k in range(int(indices_or_sections))]
        cuts = [0, *np.cumsum(sizes).tolist()]
    else:
        cuts = [0, *[int(k) for k in indices_or_sections], size]
    index = (slice(None),) * axis
    return [ary[(*index, slice(a, b))] for a, b in pairwise(cuts)]


def _split_evenly(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    if isinstance(indices_or_sections, (int, np.integer)) and ary.shape[axis] % indices_or_sections:
        raise ValueError("array split does not result in an equal division")
    return _split(ary, indices_or_sections, axis)


answer(np.array_split, _split)
answer(np.split, _split_evenly)
answer(np.vsplit, lambda ary, indices_or_sections: _split_evenly(ary, indices_or_sections, 0))
answer(np.hsplit, lambda ary, indices_or_sections: _split_evenly(ary, indices_or_sections, 1 if ary.ndim > 1 else 0))
answer(np.dsplit, lambda ary, indices_or_sections: _split_evenly(ary, indices_or_sections, 2))


def _unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    if not x.ndim:
        raise ValueError("Input array must be at least 1-d.")
    return tuple(np.moveaxis(x, axis, 0))


answer(np.unstack, _unstack)

# Blocks and grids.


def _depth(arrays: Any) -> int:
    return 1 + max(map(_depth, arrays), default=0) if type(arrays) is list else 0


def _leaves(arrays: Any) -> list[Any]:
    return [leaf for part in arrays for leaf in _leaves(part)] if type(arrays) is list else [arrays]


def _block(arrays: Any) -> Any:
    """Return an array of nested lists of blocks."""
    depth = _depth(arrays)
    ndim = max(depth, *[np.ndim(leaf) for leaf in _leaves(arrays)])
    return _assembled(arrays, 0, depth, ndim) if depth else np.copy(arrays)


def _assembled(part: Any, level: int, depth: int, ndim: int) -> Any:
    """Return the array of a part of nested lists that is so deep in them."""
    if type(part) is list:
        if level >= depth or not part:
            raise ValueError("List depths are mismatched, or a list of blocks is empty.")
        return concatenate([_assembled(one, level + 1, depth, ndim) for one in part], axis=level - depth)
    if level != depth:
        raise ValueError(f"List depths are mismatched: an array at depth {level} and others at depth {depth}.")
    part = as_operand(part)
    return np.reshape(part, (1,) * (ndim - part.ndim) + part.shape)


def _meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Any, ...]:
    """Return grids of coordinates."""
    if indexing not in ("xy", "ij"):
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    places = list(range(len(xi)))
    if indexing == "xy" and len(xi) > 1:
        places[:2] = 1, 0
    shapes = [tuple([-1 if k == place else 1 for k in range(len(xi))]) for place in places]
    grids: Any = [np.reshape(x, shape) for x, shape in zip(xi, shapes, strict=True)]
    if not sparse:
        grids = np.broadcast_arrays(*grids)
    return tuple([np.copy(grid, order="C") for grid in grids] if copy else grids)


def _ix(*args: Any) -> tuple[Any, ...]:
    """Return arrays whose outer product is an index."""
    parts = [a if type(a) is TracedArray else np.ix_(a)[0] for a in args]
    if any(part.ndim != 1 for part in parts):
        raise ValueError("Cross index must be 1 dimensional")
    return tuple([np.reshape(p, (1,) * k + (-1,) + (1,) * (len(args) - k - 1)) for k, p in enumerate(parts)])


answer(np.block, _block)
answer(np.meshgrid, _meshgrid)
answer(np.ix_, _ix)

# More or fewer elements.


def _resize(a: Any, new_shape: Any) -> Any:
    shape = (int(new_shape),) if np.ndim(new_shape) == 0 else tuple([int(n) for n in new_shape])
    size = int(np.prod(shape))
    a = np.ravel(a)
    if not a.shape[0] or not size:
        return np.zeros_like(a, shape=shape)
    times = -(-size // a.shape[0])
    return np.reshape(concatenate([a] * times)[:size] if times * a.shape[0] != size or times > 1 else a.copy(), shape)


def _along(a: Any, axis: int | None) -> tuple[Any, int]:
    """Return an array and the axis along which its elements come and go; without an axis, all are on one."""
    if axis is None:
        return np.ravel(a), 0
    return a, axis_of(axis, a.ndim)


def _delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    order = order_like(arr)
    arr, axis = _along(arr, axis)
    kept = np.delete(np.arange(arr.shape[axis]), obj)
    found = arr[(*(slice(None),) * axis, kept)]
    # A new array is in the order of the old one, but where NumPy reads it by a mask.
    return lying(found, order) if isinstance(obj, slice) or np.size(obj) == 1 else found


def _insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    arr = as_operand(arr)
    values = as_operand(values)
    order = order_like(arr)
    arr, axis = _along(arr, axis)
    size = arr.shape[axis]
    if np.ndim(obj) == 0 and not isinstance(obj, slice):
        values = np.reshape(values, (1,) * (arr.ndim - values.ndim) + values.shape)
        # One number: the values go there one after the other.
        values = np.moveaxis(values, 0, axis) if values.ndim == arr.ndim else values
        count = values.shape[axis]
    else:
        count = np.insert(np.zeros(size), obj, 0).size - size
    # NumPy says with numbers which element comes from where; those of new ones are negative.
    sources = np.insert(np.arange(size), obj, -1 - np.arange(count))
    empty = np.zeros((*arr.shape[:axis], sources.size, *arr.shape[axis + 1 :]), type_of(arr).dtype, order)
    made = constant_like(arr if type(arr) is TracedArray else values, empty)
    around = (slice(None),) * axis
    made[(*around, sources >= 0)] = arr
    made[(*around, np.argsort(-1 - sources)[size:])] = values
    return made


answer(np.resize, _resize)
answer(np.delete, _delete)
answer(np.insert, _insert)
