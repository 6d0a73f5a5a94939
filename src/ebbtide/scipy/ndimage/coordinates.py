# ruff: noqa: A002 - the names of parameters are SciPy's
"""Arrays between their elements, and beyond their boundary: `map_coordinates` with splines of order 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, final

import numpy as np
from scipy import ndimage

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import as_operand
from ebbtide.rules.answers import refusal
from ebbtide.scipy.interpolate.pieces import LINEAR, NEAREST
from ebbtide.scipy.ndimage.borders import sources
from ebbtide.scipy.ndimage.filters import filters


@final
@dataclass(frozen=True, slots=True)
class _Between:
    """Values between the elements of an array, at points of shape (m, number of axes); arguments are SciPy's."""

    order: int
    mode: str
    cval: Any
    dtype: Any

    def plain(self, values: Any, points: Any) -> Any:
        """See `Pieces.plain`."""
        return ndimage.map_coordinates(values, points.T, self.dtype, self.order, self.mode, self.cval)

    def pieces(self, values: Any, points: Any) -> Any:
        """See `Pieces.pieces`."""
        first, parts, inside = [], [], True
        for axis, size in enumerate(values.shape):
            at = points[:, axis]
            beyond = np.logical_or(at < 0, at > size - 1)
            if self.mode == "constant":
                inside = np.logical_and(inside, np.logical_not(beyond))
            elif self.mode == "wrap":  # the last element is the first of the next period
                period = max(size - 1, 1)
                at = at - np.where(beyond, np.floor(at / period) * period, 0)
            whole = np.floor(at + 0.5 * (self.order == 0))
            first.append(np.astype(whole, np.int64))
            parts.append(at - whole)
        total: Any = 0.0
        for corner in product(range(1 + self.order), repeat=len(first)):
            known, weight, index = True, 1.0, []
            for place, part, k, size in zip(first, parts, corner, values.shape, strict=True):
                source = sources(place + k, size, self.mode)
                known = np.logical_and(known, source >= 0)
                index.append(np.maximum(source, 0))
                weight = weight * (part if k else 1 - part) if self.order else weight
            total = total + np.where(known, values[tuple(index)], self.cval) * weight
        return total if inside is True else np.where(inside, total, self.cval)

    def infer(self, values: ArrayType, points: ArrayType) -> ArrayType:
        """See `Pieces.infer`."""
        return ArrayType((points.shape[0],), values.dtype if self.dtype is None else self.dtype)


@filters(ndimage.map_coordinates)
def map_coordinates(
    input: Any, coordinates: Any, output: Any, order: int, mode: str, cval: Any, prefilter: bool
) -> Any:
    """
    Return an array at points between its elements, with derivatives with respect to the array and to the points.

    Args:
        input: The array.
        coordinates: The points: one array for each axis of *input*, in an array or a sequence.
        output: The dtype of the result, or an array that it is written into; None for the dtype of *input*.
        order: Of the spline: 1, or 0, whose derivative by the points is zero. Where two pieces meet, the derivative is
            that of the piece from which the value is taken.
        mode: How the array goes on beyond its boundary.
        cval: The value there with `constant` and `grid-constant`.
        prefilter: Without effect on these orders.

    Returns:
        An array of the shape of the points, of the dtype of *input* or *output*.

    Raises:
        TraceError: *order* is another one.

    Memory:
        A record saves the points, and the array if they are active.
    """
    if order not in (0, 1):
        raise refusal(
            f"map_coordinates with order={order} has no derivative rule, orders 0 and 1 have one. Take order=1, or "
            "ebbtide.scipy.interpolate.CubicSpline along an axis."
        )
    points = np.stack(coordinates) if isinstance(coordinates, (list, tuple)) else coordinates
    points = as_operand(points)
    if points.shape[:1] != (input.ndim,):
        raise ValueError(
            f"map_coordinates: points of shape {points.shape} for an array of {input.ndim} axes; their first axis has "
            "one entry for each of these."
        )
    shape = points.shape[1:]
    flat = np.transpose(np.reshape(points.astype(np.float64), (input.ndim, prod(shape))))
    how = _Between(int(order), mode, cval, output)
    return np.reshape((LINEAR if order else NEAREST).bind((input, flat), {"how": how}), shape)
