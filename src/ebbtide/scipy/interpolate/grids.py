"""Interpolation on grids."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, final

import numpy as np
from scipy import interpolate

from ebbtide.arrays.array_type import ArrayType
from ebbtide.rules.answers import refusal
from ebbtide.scipy.interpolate.pieces import LINEAR, NEAREST, as_array, find_place, inexact, is_outside, taken


@final
class _Grid:
    """
    Interpolation on a grid: values, and points of shape (m, number of axes).

    Args:
        grid: The coordinates along each axis.
        method: "linear" or "nearest".
        bounds_error: Whether a point outside is an error.
        fill_value: The value there; None to extrapolate.
    """

    __slots__ = ("_bounds_error", "_fill_value", "_grid", "_method")

    def __init__(self, grid: tuple[Any, ...], method: str, bounds_error: bool, fill_value: Any) -> None:
        self._grid = grid
        self._method = method
        self._bounds_error = bounds_error
        self._fill_value = fill_value

    def plain(self, values: Any, points: Any) -> Any:
        """See `Pieces.plain`."""
        how = interpolate.RegularGridInterpolator(
            self._grid, values, self._method, self._bounds_error, self._fill_value
        )
        return how(points)

    def pieces(self, values: Any, points: Any) -> Any:
        """See `Pieces.pieces`."""
        first, weights, outside = [], [], np.zeros(points.shape[0], bool)
        for axis, given in enumerate(self._grid):
            turned = given[0] > given[-1]
            grid = given[::-1] if turned else given
            at = points[:, axis]
            place = find_place(grid, at)
            low = taken(grid, place)
            part = (at - low) / (taken(grid, place + 1) - low)
            outside = np.logical_or(outside, is_outside(at, grid))
            first.append((len(grid) - 1 - place, -1) if turned else (place, 1))
            weights.append(np.where(part <= 0.5, 0.0, 1.0) if self._method == "nearest" else part)
        total: Any = 0.0
        extra = (1,) * (values.ndim - len(self._grid))
        for corner in product((0, 1), repeat=len(self._grid)):
            index = tuple([place + k * step for (place, step), k in zip(first, corner, strict=True)])
            weight: Any = 1.0
            for part, k in zip(weights, corner, strict=True):
                weight = weight * (part if k else 1 - part)
            total = total + values[index] * np.reshape(weight, (-1, *extra))
        if self._bounds_error or self._fill_value is None:
            return total
        return np.where(np.reshape(outside, (-1, *extra)), self._fill_value, total)

    def infer(self, values: ArrayType, points: ArrayType) -> ArrayType:
        """See `Pieces.infer`."""
        dtype = values.dtype if self._method == "nearest" else np.result_type(values.dtype, np.float64)
        return ArrayType((points.shape[0], *values.shape[len(self._grid) :]), dtype)


@final
class RegularGridInterpolator:
    """
    Interpolation of values on a grid of any number of axes; see `scipy.interpolate.RegularGridInterpolator`.

    Args:
        points: The coordinates along each axis of the grid, plain.
        values: The values, of shape (number of coordinates along each axis, ...); they may be traced.
        method: "linear" or "nearest"; the others of SciPy have no derivative here.
        bounds_error: Whether a point outside of the grid is an error.
        fill_value: The value there if it is none; None to extrapolate.

    `f(xi)` with xi of shape (..., number of axes) has derivatives with respect to values and xi; that of "nearest" with
    respect to xi is zero.

    Memory:
        All arrays by reference. A record saves xi, and the values if xi is active.

    Example:
        >>> from ebbtide import grad
        >>> f = RegularGridInterpolator((np.arange(3.0), np.arange(2.0)), np.arange(6.0).reshape(3, 2))
        >>> grad(lambda x: f(x)[0])(np.array([0.5, 0.25]))
        array([2., 1.])
    """

    __slots__ = ("_how", "_operation", "grid", "method", "values")

    def __init__(
        self, points: Any, values: Any, method: str = "linear", bounds_error: bool = True, fill_value: Any = np.nan
    ) -> None:
        self.grid = tuple([np.asarray(part, np.float64) for part in points])
        self.values = inexact(values)
        self.method = method
        if method not in ("linear", "nearest"):
            raise refusal(f"RegularGridInterpolator with method={method!r} has no derivative rule; 'linear' has one.")
        if any(len(part) < 2 for part in self.grid):
            raise refusal("RegularGridInterpolator has no derivative rule for an axis of one coordinate: leave it out.")
        # SciPy's own checks, of what is not the values.
        interpolate.RegularGridInterpolator(self.grid, np.empty(self.values.shape), method, bounds_error, fill_value)
        self._how = _Grid(self.grid, method, bounds_error, fill_value)
        self._operation = LINEAR if method == "linear" else NEAREST

    def __call__(self, xi: Any) -> Any:
        """
        Return the interpolation.

        Args:
            xi: Points of shape (..., number of axes), or a tuple with an array for each axis.
        """
        if isinstance(xi, tuple):
            xi = np.stack(np.broadcast_arrays(*[as_array(part) for part in xi]), axis=-1)
        xi, count = inexact(xi), len(self.grid)
        xi = np.reshape(xi, (-1, count)) if xi.ndim == 1 else xi
        if xi.shape[-1] != count:
            raise ValueError(f"Points of {xi.shape[-1]} coordinates were asked for on a grid of {count} axes.")
        flat = np.reshape(xi, (prod(xi.shape[:-1]), count))
        found = self._operation.bind((self.values, flat), {"how": self._how})
        return np.reshape(found, (*xi.shape[:-1], *found.shape[1:]))
