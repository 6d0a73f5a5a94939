"""Rules of operations that move elements and compute nothing: shapes, axes, joining and repeating."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.kinds import linear, linear_of_many
from ebbtide.arrays.primitive import constant_like, unbroadcast
from ebbtide.arrays.registry import register
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import linked
from ebbtide.errors import TraceError
from ebbtide.rules.reductions import axes_of

# Views: the result is linked to its base, so that writes into either are seen by the other.

_reshape = linear(
    lambda x, shape, order: np.reshape(x, shape, order=order),
    lambda g, kind, shape, order: np.reshape(g, kind.shape, order=order),
    infer=lambda kind, shape, order: ArrayType(shape, kind.dtype),
    aliases=True,
    put=lambda base, params, view: np.reshape(view, base.shape, order=params["order"]),
    name="reshape",
)
_transpose = linear(
    lambda x, axes: np.transpose(x, axes),
    lambda g, kind, axes: np.transpose(g, _inverse(axes)),
    infer=lambda kind, axes: ArrayType(tuple(kind.shape[a] for a in axes), kind.dtype),
    aliases=True,
    put=lambda base, params, view: np.transpose(view, _inverse(params["axes"])),
    name="transpose",
)


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(k) for k in range(len(axes)))


def _view(primitive: Any, x: Any, params: dict[str, Any]) -> Any:
    made = primitive.bind((x,), params)
    return linked(made, x, primitive, params) if type(x) is TracedArray and type(made) is TracedArray else made


def reshape(a: Any, /, shape: Any = None, order: Any = "C", *, newshape: Any = None, copy: Any = None) -> Any:
    """Return the elements in another shape."""
    shape = newshape if shape is None else shape
    shape = tuple(int(n) for n in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    size = math.prod(a.shape)
    known = math.prod(n for n in shape if n != -1)
    if -1 in shape:
        rest = size // known if known else 0
        shape = tuple(rest if n == -1 else n for n in shape)
    if math.prod(shape) != size:
        raise ValueError(f"cannot reshape array of size {size} into shape {shape}")
    if order == "A":
        raise TraceError("reshape with order='A' depends on the memory layout; write order='C' or order='F'.")
    return _view(_reshape, a, {"shape": shape, "order": order})


def transpose(a: Any, axes: Any = None) -> Any:
    """Return a view with permuted axes."""
    axes = tuple(range(a.ndim))[::-1] if axes is None else axes_of(axes, a.ndim)
    return _view(_transpose, a, {"axes": axes})


def _moveaxis(a: Any, source: Any, destination: Any) -> Any:
    sources, targets = axes_of(source, a.ndim), axes_of(destination, a.ndim)
    order = [k for k in range(a.ndim) if k not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return transpose(a, order)


def _swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    order = list(range(a.ndim))
    first, second = axes_of((axis1, axis2), a.ndim)
    order[first], order[second] = order[second], order[first]
    return transpose(a, order)


def _expand_dims(a: Any, axis: Any) -> Any:
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    ndim = a.ndim + len(axes)
    inserted = axes_of(axes, ndim)
    rest = iter(a.shape)
    return reshape(a, tuple(1 if k in inserted else next(rest) for k in range(ndim)))


def _squeeze(a: Any, axis: Any = None) -> Any:
    dropped = [k for k, n in enumerate(a.shape) if n == 1] if axis is None else axes_of(axis, a.ndim)
    for k in dropped:
        if a.shape[k] != 1:
            raise ValueError(f"cannot squeeze axis {k} of size {a.shape[k]}")
    return reshape(a, tuple(n for k, n in enumerate(a.shape) if k not in dropped))


register(np.reshape, reshape)
register(np.ravel, lambda a, order="C": reshape(a, -1, order="C" if order == "K" else order))
register(np.expand_dims, _expand_dims)
register(np.squeeze, _squeeze)
register(np.transpose, transpose)  # permute_dims is the same object
register(np.swapaxes, _swapaxes)
register(np.matrix_transpose, lambda x, /: _swapaxes(x, -1, -2))
register(np.moveaxis, _moveaxis)
register(np.rollaxis, lambda a, axis, start=0: transpose(a, _rolled_axes(a.ndim, axis, start)))


def _rolled_axes(ndim: int, axis: int, start: int) -> list[int]:
    axis = axes_of(axis, ndim)[0]
    start = start + ndim if start < 0 else start
    order = [k for k in range(ndim) if k != axis]
    order.insert(start - 1 if axis < start else start, axis)
    return order


def _diagonal_transpose(g: Any, kind: ArrayType, offset: int, axis1: int, axis2: int) -> Any:
    rows = np.arange(g.shape[-1]) - min(offset, 0)
    columns = np.arange(g.shape[-1]) + max(offset, 0)
    order = [k for k in range(len(kind.shape)) if k not in (axis1, axis2)] + [axis1, axis2]
    moved = tuple(kind.shape[k] for k in order)
    full = np.zeros(moved, kind.dtype, like=g) if type(g) is TracedArray else np.zeros(moved, kind.dtype)
    full[..., rows, columns] = g
    return np.transpose(full, _inverse(tuple(order)))


def _diagonal_type(kind: ArrayType, offset: int, axis1: int, axis2: int) -> ArrayType:
    rest = tuple(n for k, n in enumerate(kind.shape) if k not in (axis1, axis2))
    rows, columns = kind.shape[axis1] + min(offset, 0), kind.shape[axis2] - max(offset, 0)
    return ArrayType((*rest, max(0, min(rows, columns))), kind.dtype)


_diagonal = linear(np.diagonal, _diagonal_transpose, infer=_diagonal_type, aliases=True, name="diagonal")


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return a diagonal, a read-only view as in NumPy."""
    first, second = axes_of((axis1, axis2), a.ndim)
    return _view(_diagonal, a, {"offset": offset, "axis1": first, "axis2": second})


register(np.diagonal, diagonal)


def _diag(v: Any, k: int = 0) -> Any:
    if v.ndim == 2:
        return diagonal(v, k).copy()
    size = v.shape[0] + abs(k)
    full = np.zeros((size, size), v.dtype, like=v)
    rows = np.arange(v.shape[0])
    full[rows - min(k, 0), rows + max(k, 0)] = v
    return full


register(np.diag, _diag)

_broadcast = linear(
    lambda x, shape: np.broadcast_to(x, shape),
    lambda g, kind, shape: unbroadcast(g, kind),
    infer=lambda kind, shape: ArrayType(shape, kind.dtype),
    aliases=True,
    name="broadcast_to",
)


def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    """Return a read-only view of a larger shape."""
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (int(shape),)
    return _view(_broadcast, array, {"shape": shape})


register(np.broadcast_to, broadcast_to)
register(
    np.broadcast_arrays,
    lambda *args, subok=False: tuple(
        np.broadcast_to(a, np.broadcast_shapes(*[np.shape(b) for b in args])) for a in args
    ),
)

# Joining.


def _concatenate(*arrays: Any, axis: int, offsets: Any) -> Any:
    return np.concatenate(arrays, axis=axis)


def _concatenate_transpose(k: int, g: Any, kind: ArrayType, axis: int, offsets: Any) -> Any:
    index = (slice(None),) * axis + (slice(offsets[k], offsets[k + 1]),)
    return g[index]


def _concatenate_type(*kinds: ArrayType, axis: int, offsets: Any) -> ArrayType:
    shape = (*kinds[0].shape[:axis], offsets[-1], *kinds[0].shape[axis + 1 :])
    return ArrayType(shape, np.result_type(*[k.dtype for k in kinds]))


_joined = linear_of_many(_concatenate, _concatenate_transpose, infer=_concatenate_type, name="concatenate")


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


register(np.concatenate, concatenate)
register(np.stack, stack)
register(np.vstack, lambda tup, **kwargs: concatenate([np.atleast_2d(a) for a in tup], 0, **kwargs))
register(
    np.hstack, lambda tup, **kwargs: concatenate(ones := [np.atleast_1d(a) for a in tup], min(ones[0].ndim - 1, 1))
)
register(np.dstack, lambda tup, **kwargs: concatenate([np.atleast_3d(a) for a in tup], 2, **kwargs))
register(
    np.column_stack,
    lambda tup: concatenate([np.reshape(a, (-1, 1)) if np.ndim(a) < 2 else a for a in tup], 1),
)
register(
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


register(np.atleast_1d, _at_least(1))
register(np.atleast_2d, _at_least(2))
register(np.atleast_3d, _at_least(3))


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
    return [ary[(*index, slice(a, b))] for a, b in zip(cuts[:-1], cuts[1:], strict=True)]


def _split_evenly(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    if isinstance(indices_or_sections, (int, np.integer)) and ary.shape[axis] % indices_or_sections:
        raise ValueError("array split does not result in an equal division")
    return _split(ary, indices_or_sections, axis)


register(np.array_split, _split)
register(np.split, _split_evenly)
register(np.vsplit, lambda ary, sections: _split_evenly(ary, sections, 0))
register(np.hsplit, lambda ary, sections: _split_evenly(ary, sections, 1 if ary.ndim > 1 else 0))
register(np.dsplit, lambda ary, sections: _split_evenly(ary, sections, 2))

# Moving and repeating.

_roll = linear(
    lambda x, shift, axis: np.roll(x, shift, axis),
    lambda g, kind, shift, axis: np.roll(g, tuple(-s for s in shift), axis),
    infer=lambda kind, shift, axis: kind,
    name="roll",
)


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Return an array with elements moved around along axes, over all elements if *axis* is None."""
    if axis is None:
        return np.reshape(roll(np.reshape(a, -1), shift, 0), a.shape)
    axes = axes_of(axis, a.ndim)
    shifts = tuple(int(s) for s in np.broadcast_to(shift, len(axes)))
    return _roll.bind((a,), {"shift": shifts, "axis": axes})


register(np.roll, roll)


def flip(m: Any, axis: Any = None) -> Any:
    """Return a view with the order of elements reversed along axes."""
    axes = axes_of(axis, m.ndim)
    return m[tuple(slice(None, None, -1) if k in axes else slice(None) for k in range(m.ndim))]


register(np.flip, flip)
register(np.flipud, lambda m: flip(m, 0))
register(np.fliplr, lambda m: flip(m, 1))


def _rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    for _ in range(k % 4):
        m = np.swapaxes(flip(m, axes[1]), *axes)
    return m


register(np.rot90, _rot90)


def _repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    index = np.repeat(np.arange(a.shape[axis]), repeats)
    return np.take(a, index, axis)


def _tile(A: Any, reps: Any) -> Any:  # noqa: N803 - NumPy's name
    reps = (reps,) if isinstance(reps, int) else tuple(reps)
    ndim = max(A.ndim, len(reps))
    shape = (1,) * (ndim - A.ndim) + A.shape
    reps = (1,) * (ndim - len(reps)) + reps
    spread = np.reshape(A, tuple(n for size in shape for n in (1, size)))
    wide = np.broadcast_to(spread, tuple(n for pair in zip(reps, shape, strict=True) for n in pair))
    return np.reshape(wide, tuple(r * n for r, n in zip(reps, shape, strict=True)))


register(np.repeat, _repeat)
register(np.tile, _tile)

# Padding. Constant padding is linear up to its constant; other modes are a gather.


def _pad_transpose(g: Any, kind: ArrayType, widths: Any, values: Any) -> Any:
    return g[tuple(slice(before, before + n) for (before, _), n in zip(widths, kind.shape, strict=True))]


_pad_constant = linear(
    lambda x, widths, values: np.pad(x, widths, constant_values=values),
    _pad_transpose,
    infer=lambda kind, widths, values: ArrayType(
        tuple(a + n + b for (a, b), n in zip(widths, kind.shape, strict=True)), kind.dtype
    ),
    name="pad",
)
_INDEX_PADDINGS = ("edge", "reflect", "symmetric", "wrap")


def pad(array: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0, **kwargs: Any) -> Any:
    """Return an array with a border."""
    widths = tuple((int(a), int(b)) for a, b in np.broadcast_to(pad_width, (array.ndim, 2)))
    if mode == "constant":
        zero_padded = _pad_constant.bind((array,), {"widths": widths, "values": 0})
        if np.all(np.equal(constant_values, 0)):
            return zero_padded
        border = np.pad(np.zeros(array.shape, array.dtype), widths, constant_values=constant_values)
        return zero_padded + border
    if mode not in _INDEX_PADDINGS or kwargs.get("reflect_type", "even") != "even":
        raise TraceError(f"np.pad with mode={mode!r} has no derivative rule; there is one for {_INDEX_PADDINGS}.")
    for axis, (width, size) in enumerate(zip(widths, array.shape, strict=True)):
        if any(width):
            array = np.take(array, np.pad(np.arange(size), width, mode=mode), axis)
    return array


register(np.pad, pad)


def _triangle(function: Any) -> Any:

    def handler(m: Any, k: int = 0) -> Any:
        rows, columns = m.shape[-2:]
        if function is np.tril:
            kept = np.tri(rows, columns, k, dtype=bool)
        else:
            kept = ~np.tri(rows, columns, k - 1, dtype=bool)
        return np.where(kept, m, type_of(m).dtype.type(0))

    return handler


register(np.tril, _triangle(np.tril))
register(np.triu, _triangle(np.triu))

# Creation `like` a traced array gives arrays that take traced values.


def _created(function: Any) -> Any:
    """Return the handler of a creation function called with like=."""

    def handler(*args: Any, like: Any = None, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return made if like is None else constant_like(like, made)

    return handler


def _like(function: Any) -> Any:
    """Return the handler of zeros_like and its kin."""

    def handler(a: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None) -> Any:
        shape = a.shape if shape is None else shape
        return constant_like(a, function(shape, a.dtype if dtype is None else dtype))

    return handler


def _full_like(a: Any, fill_value: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None) -> Any:
    dtype = type_of(a).dtype if dtype is None else dtype
    shape = a.shape if shape is None else shape
    if type(fill_value) is TracedArray:
        return np.astype(np.broadcast_to(fill_value, shape), dtype)
    return constant_like(a, np.full(shape, fill_value, dtype))


register(np.zeros_like, _like(np.zeros))
register(np.ones_like, _like(np.ones))
register(np.empty_like, _like(np.empty))
register(np.full_like, _full_like)
for _function in (np.zeros, np.ones, np.empty, np.full, np.arange, np.eye, np.identity, np.linspace):
    register(_function, _created(_function))
