"""Rules of products of vectors: the cross product, and matrices times vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import aligned, ndim_of, widened
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.kinds import multilinear
from ebbtide.arrays.primitive import unbroadcast
from ebbtide.arrays.registry import register
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.reductions import axis_of

_cross = multilinear(
    np.cross,
    (
        lambda g, y, kind: unbroadcast(np.cross(y, g), kind),
        lambda g, x, kind: unbroadcast(np.cross(g, x), kind),
    ),
    infer=lambda x, y: ArrayType(np.broadcast_shapes(x.shape, y.shape), np.result_type(x.dtype, y.dtype)),
    batch=lambda x, y, *mapped: np.cross(*aligned((x, y), mapped)),
    name="cross",
    # A copy of each, and products of one element.
    scratch=lambda params, x, y: 7 / 3 * max(x.nbytes, y.nbytes),
)


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """Return the cross products of vectors of three elements along an axis."""
    if axis is not None:
        axisa = axisb = axisc = axis
    pairs: list[Any] = [(as_operand(v), k) for v, k in ((a, axisa), (b, axisb))]
    x, y = (np.moveaxis(v, axis_of(k, v.ndim), -1) for v, k in pairs)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise refusal("np.cross wants vectors of 3 elements; of 2 elements write x[0] * y[1] - x[1] * y[0].")
    return np.moveaxis(_cross.bind((x, y)), -1, axisc)


answer(np.cross, cross)


def _outer(x: Any, y: Any) -> Any:
    """Return the outer products of stacked vectors."""
    return np.expand_dims(x, -1) * np.expand_dims(y, -2)


def _of_members(function: Any, place: int) -> Any:
    """Return the batch rule of a product of which operand *place* is a vector and the other one a matrix."""

    def batch(x: Any, y: Any, *mapped: bool) -> Any:
        own = (1, 2) if place == 0 else (2, 1)
        pairs = list(zip((x, y), mapped, own, strict=True))
        loops = max([ndim_of(v, m) - n for v, m, n in pairs])
        return function(*[widened(v, loops + n) if m else v for v, m, n in pairs])

    return batch


def _product_type(x: ArrayType, y: ArrayType) -> ArrayType:
    return ArrayType(np.broadcast_shapes(x.shape[:-2], y.shape[:-1]) + x.shape[-2:-1], np.result_type(x.dtype, y.dtype))


def _vecmat_type(x: ArrayType, y: ArrayType) -> ArrayType:
    return ArrayType(np.broadcast_shapes(x.shape[:-1], y.shape[:-2]) + y.shape[-1:], np.result_type(x.dtype, y.dtype))


register(
    np.matvec,
    multilinear(
        np.matvec,
        (
            lambda g, y, kind: unbroadcast(_outer(g, y), kind),
            lambda g, x, kind: unbroadcast(np.matvec(np.swapaxes(x, -1, -2), g), kind),
        ),
        infer=_product_type,
        batch=_of_members(np.matvec, 1),
        name="matvec",
    ),
)
# vecmat takes the complex conjugate of the vector.
register(
    np.vecmat,
    multilinear(
        np.vecmat,
        (
            lambda g, y, kind: unbroadcast(np.conjugate(np.matvec(y, g)), kind),
            lambda g, x, kind: unbroadcast(_outer(np.conjugate(x), g), kind),
        ),
        infer=_vecmat_type,
        batch=_of_members(np.vecmat, 0),
        name="vecmat",
    ),
)
