"""Rules of joining and splitting: concatenate, stack, split and their kin."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.kinds import linear_of_many
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import answer
from ebbtide.rules.reductions import axes_of


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
    parts = [a if type(a) is TracedArray else np.asarray(a) for a in arrays]
    if axis is None:
        parts, axis = [np.reshape(a, -1) for a in parts], 0
    axis = axes_of(axis, parts[0].ndim)[0]
    offsets = [0]
    for part in parts:
        if part.ndim != parts[0].ndim:
            raise ValueError(f"concatenate: arrays of {part.ndim} and of {parts[0].ndim} axes do not join.")
        offsets.append(offsets[-1] + part.shape[axis])
    joined = _joined.bind(tuple(parts), {"axis": axis, "offsets": tuple(offsets)})
    return joined if dtype is None else np.astype(joined, dtype)


def stack(arrays: Any, axis: int = 0, **kwargs: Any) -> Any:
    """Return arrays joined along a new axis."""
    parts = [a if type(a) is TracedArray else np.asarray(a) for a in arrays]
    where = axes_of(axis, parts[0].ndim + 1)[0]
    for part in parts:
        if part.shape != parts[0].shape:
            raise ValueError(f"stack: arrays of shapes {parts[0].shape} and {part.shape} differ.")
    return concatenate([np.expand_dims(a, where) for a in parts], axis=where, **kwargs)


answer(np.concatenate, concatenate)
answer(np.stack, stack)
answer(np.vstack, lambda tup, **kwargs: concatenate([np.atleast_2d(a) for a in tup], 0, **kwargs))
answer(
    np.hstack, lambda tup, **kwargs: concatenate(ones := [np.atleast_1d(a) for a in tup], min(ones[0].ndim - 1, 1))
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
        a = a if type(a) is TracedArray else np.asarray(a)
        if a.ndim >= ndim:
            return a
        if ndim == 3:
            shape = {0: (1, 1, 1), 1: (1, *a.shape, 1), 2: (*a.shape, 1)}[a.ndim]
        else:
            shape = (1,) * (ndim - a.ndim) + a.shape
        return np.reshape(a, shape)

    return lambda *arys: one(arys[0]) if len(arys) == 1 else tuple(one(a) for a in arys)


answer(np.atleast_1d, _at_least(1))
answer(np.atleast_2d, _at_least(2))
answer(np.atleast_3d, _at_least(3))


def _split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    axis = axes_of(axis, ary.ndim)[0]
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
answer(np.vsplit, lambda ary, sections: _split_evenly(ary, sections, 0))
answer(np.hsplit, lambda ary, sections: _split_evenly(ary, sections, 1 if ary.ndim > 1 else 0))
answer(np.dsplit, lambda ary, sections: _split_evenly(ary, sections, 2))
