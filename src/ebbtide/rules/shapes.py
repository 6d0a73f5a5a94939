"""Rules of operations that move elements and compute nothing: shapes, axes, joining and repeating."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import widened
from ebbtide.arrays.kinds import linear
from ebbtide.arrays.primitive import constant_like, unbroadcast
from ebbtide.arrays.registry import register
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import laid, lies, linked, lying, settled
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.reductions import axes_of, axis_of

# Views: the result is linked to its base, so that writes into either are seen by the other.


def _reshape_members(x: Any, shape: tuple[int, ...], order: Any) -> Any:
    if order == "C":
        return np.reshape(x, (x.shape[0], *shape))
    # In Fortran order the axis that is not to be mixed with the others is the last one.
    return np.moveaxis(np.reshape(np.moveaxis(x, 0, -1), (*shape, x.shape[0]), order="F"), -1, 0)


def _put_reshaped(base: Any, params: dict[str, Any], view: Any) -> Any:
    """Return what an array becomes by a write into its elements in another shape: it lies as it did."""
    found, known = np.reshape(view, base.shape, order=params["order"]), laid(base)
    if known is None or known.flags.c_contiguous:
        return found
    # What is written by `x.flat` comes in C order, of which other shapes are views than of NumPy's array.
    outermost = tuple(sorted(range(known.ndim), key=lambda k: -abs(known.strides[k])))
    return np.transpose(lying(np.transpose(found, outermost)), _inverse(outermost))


_reshape = linear(
    lambda x, shape, order: np.reshape(x, shape, order=order),
    lambda g, kind, shape, order: np.reshape(g, kind.shape, order=order),
    infer=lambda kind, shape, order: ArrayType(shape, kind.dtype),
    aliases=True,
    put=_put_reshaped,
    batch=_reshape_members,
    name="reshape",
)
_transpose = linear(
    np.transpose,
    lambda g, kind, axes: np.transpose(g, _inverse(axes)),
    infer=lambda kind, axes: ArrayType(tuple([kind.shape[a] for a in axes]), kind.dtype),
    aliases=True,
    put=lambda base, params, view: np.transpose(view, _inverse(params["axes"])),
    batch=lambda x, axes: np.transpose(x, (0, *[a + 1 for a in axes])),
    name="transpose",
)


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([axes.index(k) for k in range(len(axes))])


def _view(primitive: Any, x: Any, params: dict[str, Any]) -> Any:
    made = primitive.bind((x,), params)
    return linked(made, x, primitive, params) if type(x) is TracedArray and type(made) is TracedArray else made


def reshape(a: Any, /, shape: Any = None, order: Any = "C", *, newshape: Any = None, copy: Any = None) -> Any:
    """Return the elements in another shape."""
    shape = newshape if shape is None else shape
    shape = tuple([int(n) for n in (shape if isinstance(shape, (tuple, list)) else (shape,))])
    size = math.prod(a.shape)
    known = math.prod(n for n in shape if n != -1)
    if -1 in shape:
        rest = size // known if known else 0
        shape = tuple([rest if n == -1 else n for n in shape])
    if math.prod(shape) != size:
        raise ValueError(f"cannot reshape array of size {size} into shape {shape}")
    if order not in ("C", "F"):
        raise refusal(f"reshape with order={order!r} depends on the memory layout; write order='C' or order='F'.")
    if copy:
        a = np.copy(a)
    return _view(_reshape, settled(a), {"shape": shape, "order": order})


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
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    ndim = a.ndim + len(axes)
    inserted = axes_of(axes, ndim)
    rest = iter(a.shape)
    return reshape(a, tuple([1 if k in inserted else next(rest) for k in range(ndim)]))


def _squeeze(a: Any, axis: Any = None) -> Any:
    dropped = [k for k, n in enumerate(a.shape) if n == 1] if axis is None else axes_of(axis, a.ndim)
    for k in dropped:
        if a.shape[k] != 1:
            raise ValueError(f"cannot squeeze axis {k} of size {a.shape[k]}")
    return reshape(a, tuple([n for k, n in enumerate(a.shape) if k not in dropped]))


def ravel(a: Any, order: Any = "C") -> Any:
    """Return the elements in one axis: a view of what lies so in memory already, else a copy, as NumPy has it."""
    order = "C" if a.ndim < 2 else order
    a = settled(a)
    if lies(a, order) is False:
        a = np.copy(a, order="F" if order == "F" else "C")
    return reshape(a, -1, order=order)


def _flat(a: Any) -> Any:
    """Return the elements in C order, through which the array can be written also where reshape copies them."""
    params = {"shape": (a.size,), "order": "C"}
    return linked(_reshape.bind((a,), params), a, _reshape, params, always=True)


answer(np.reshape, reshape)
register((np.flatiter,), _flat)
answer(np.ravel, ravel)
answer(np.expand_dims, _expand_dims)
answer(np.squeeze, _squeeze)
answer(np.transpose, transpose)  # permute_dims is the same object
answer(np.swapaxes, _swapaxes)
answer(np.matrix_transpose, lambda x, /: _swapaxes(x, -1, -2))
answer(np.moveaxis, _moveaxis)
answer(np.rollaxis, lambda a, axis, start=0: transpose(a, _rolled_axes(a.ndim, axis, start)))


def _rolled_axes(ndim: int, axis: int, start: int) -> list[int]:
    axis = axis_of(axis, ndim)
    start = start + ndim if start < 0 else start
    order = [k for k in range(ndim) if k != axis]
    order.insert(start - 1 if axis < start else start, axis)
    return order


def _diagonal_transpose(g: Any, kind: ArrayType, offset: int, axis1: int, axis2: int) -> Any:
    rows = np.arange(g.shape[-1]) - min(offset, 0)
    columns = np.arange(g.shape[-1]) + max(offset, 0)
    order = [k for k in range(len(kind.shape)) if k not in (axis1, axis2)] + [axis1, axis2]
    moved = tuple([kind.shape[k] for k in order])
    full = np.zeros(moved, kind.dtype)
    if type(g) is TracedArray:
        full = constant_like(g, full)
    full[..., rows, columns] = g
    return np.transpose(full, _inverse(tuple(order)))


def _diagonal_type(kind: ArrayType, offset: int, axis1: int, axis2: int) -> ArrayType:
    rest = tuple([n for k, n in enumerate(kind.shape) if k not in (axis1, axis2)])
    rows, columns = kind.shape[axis1] + min(offset, 0), kind.shape[axis2] - max(offset, 0)
    return ArrayType((*rest, max(0, min(rows, columns))), kind.dtype)


_diagonal = linear(
    np.diagonal,
    _diagonal_transpose,
    infer=_diagonal_type,
    batch=lambda x, offset, axis1, axis2: np.diagonal(x, offset, axis1 + 1, axis2 + 1),
    aliases=True,
    name="diagonal",
)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return a diagonal, a read-only view as in NumPy."""
    first, second = axes_of((axis1, axis2), a.ndim)
    return _view(_diagonal, a, {"offset": offset, "axis1": first, "axis2": second})


answer(np.diagonal, diagonal)


def _diag(v: Any, k: int = 0) -> Any:
    if v.ndim == 2:
        return diagonal(v, k).copy()
    if v.ndim != 1:
        raise ValueError(f"diag makes a matrix of a vector, or takes the diagonal of a matrix; this has {v.ndim} axes.")
    size = v.shape[0] + abs(k)
    full = constant_like(v, np.zeros((size, size), v.dtype))
    rows = np.arange(v.shape[0])
    full[rows - min(k, 0), rows + max(k, 0)] = v
    return full


answer(np.diag, _diag)
answer(np.diagflat, lambda v, k=0: _diag(np.ravel(v), k))

_broadcast = linear(
    np.broadcast_to,
    lambda g, kind, shape: unbroadcast(g, kind),
    infer=lambda kind, shape: ArrayType(shape, kind.dtype),
    batch=lambda x, shape: np.broadcast_to(widened(x, len(shape)), (x.shape[0], *shape)),
    aliases=True,
    name="broadcast_to",
)


def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    """Return a read-only view of a larger shape."""
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (int(shape),)
    return _view(_broadcast, array, {"shape": shape})


answer(np.broadcast_to, broadcast_to)
answer(
    np.broadcast_arrays,
    lambda *args, subok=False: tuple([
        np.broadcast_to(a, np.broadcast_shapes(*[np.shape(b) for b in args])) for a in args
    ]),
)
