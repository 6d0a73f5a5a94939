"""Interpolation on grids."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, final

import numpy as np
from scipy import interpolate

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.reach import arrays_of
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import refusal
from ebbtide.scipy.interpolate.bases import Basis, contracted
from ebbtide.scipy.interpolate.hermite import hermite, slopes_of_shape
from ebbtide.scipy.interpolate.pieces import (
    LINEAR,
    NEAREST,
    SHAPED,
    find_place,
    inexact,
    is_outside,
    taken,
)

# The degrees of the splines that the methods are.
_DEGREES = MappingProxyType({"linear": 1, "slinear": 1, "cubic": 3, "quintic": 5})
_SPLINES = ("slinear", "cubic", "quintic")


@final
@dataclass(frozen=True, slots=True)
class _Grid:
    """
    Interpolation on a grid: values, and points of shape (m, number of axes).

    Args:
        grid: The coordinates along each axis.
        method: SciPy's.
        bounds_error: Whether a point outside is an error.
        fill_value: The value there; None to extrapolate.
        solver: What finds the splines; None for SciPy's.
        options: What it takes.
        orders: Of the derivative, along each axis; None for the interpolation itself.
        known: SciPy's interpolation of the values that it holds, if these are plain.
    """

    grid: tuple[Any, ...]
    method: str
    bounds_error: bool
    fill_value: Any
    solver: Any
    options: Any
    orders: tuple[int, ...] | None = None
    known: tuple[Any, Any] | None = None

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """See `Pieces.held_arrays`."""
        return tuple(arrays_of([self.grid, self.known]))

    def built(self, values: Any) -> Any:
        """Return SciPy's interpolation of plain values."""
        return interpolate.RegularGridInterpolator(
            self.grid, values, self.method, self.bounds_error, self.fill_value,
            solver=self.solver, solver_args=self.options,
        )  # fmt: skip

    def plain(self, values: Any, points: Any) -> Any:
        """See `Pieces.plain`."""
        held, known = self.known or (None, None)
        return (known if known is not None and values is held else self.built(values))(points, nu=self.orders)

    def pieces(self, values: Any, points: Any) -> Any:
        """See `Pieces.pieces`."""
        turned = tuple([axis for axis, part in enumerate(self.grid) if part[0] > part[-1]])
        grid = [np.sort(part) for part in self.grid]
        values = np.flip(values, turned) if turned else values
        total = self._shaped(grid, values, points) if self.method == "pchip" else self._sum(grid, values, points)
        if self.bounds_error or self.fill_value is None:
            return total
        outside = np.zeros(points.shape[0], bool)
        for axis, part in enumerate(grid):
            outside = np.logical_or(outside, is_outside(points[:, axis], part))
        return np.where(np.reshape(outside, (-1, *(1,) * (values.ndim - len(grid)))), self.fill_value, total)

    def _sum(self, grid: list[Any], values: Any, points: Any) -> Any:
        """Return the interpolation by methods that are linear in the values: a weighted sum of those around."""
        orders = self.orders or (0,) * len(grid)
        first, weights = [], []
        for axis, (part, order) in enumerate(zip(grid, orders, strict=True)):
            if self.method == "nearest":
                place, beside = find_place(part, points[:, axis]), np.ones((points.shape[0], 1))
                low = taken(part, place)
                place = place + ((points[:, axis] - low) / (taken(part, place + 1) - low) > 0.5)
            else:
                basis = Basis.of(part, _DEGREES[self.method.removesuffix("_legacy")])
                values = basis.coefficients(values, axis)
                place, beside = basis.weights(points[:, axis], order)
            first.append(place)
            weights.append(beside)
        return contracted(values, first, weights)

    def _shaped(self, grid: list[Any], values: Any, points: Any) -> Any:
        """Return the interpolation that keeps the shape along one axis after the other, the last one first."""
        count = points.shape[0]
        index: tuple[Any, ...] = ()
        for axis in range(len(grid) - 1, -1, -1):
            x, at = grid[axis], points[:, axis]
            place = find_place(x, at)
            # From the second axis on, each point has values of its own, on an axis before those of the grid.
            moved = np.moveaxis(values, axis + len(index), 0)
            slopes = np.reshape(slopes_of_shape(x, np.reshape(moved, (len(x), -1))), moved.shape)
            low, high = (place, *index), (place + 1, *index)
            shape = (-1, *(1,) * (moved.ndim - 1 - len(index)))
            step = np.reshape(at - taken(x, place), shape)
            width = np.reshape(taken(np.diff(x), place), shape)
            values = hermite(step, width, (moved[low], moved[high]), (slopes[low], slopes[high]))
            index = (np.arange(count),)
        return values

    def infer(self, values: ArrayType, points: ArrayType) -> ArrayType:
        """See `Pieces.infer`."""
        kept = self.method in ("nearest", "pchip") or self.method.endswith("_legacy")
        dtype = values.dtype if kept else np.result_type(values.dtype, np.float64)
        return ArrayType((points.shape[0], *values.shape[len(self.grid) :]), dtype)


@final
class RegularGridInterpolator:
    """
    Interpolation of values on a grid of any number of axes; see `scipy.interpolate.RegularGridInterpolator`.

    Args:
        points: The coordinates along each axis of the grid, plain.
        values: The values, of shape (number of coordinates along each axis, ...); they may be traced.
        method: "linear", "nearest", "slinear", "cubic", "quintic", "pchip", or one of the splines with "_legacy".
        bounds_error: Whether a point outside of the grid is an error.
        fill_value: The value there if it is none; None to extrapolate.
        solver: What finds the splines of "slinear", "cubic" and "quintic". SciPy's own is iterative and stops at 1e-6,
            and so exact are values; `scipy.sparse.linalg.spsolve` is exact. Derivatives always are.
        solver_args: What it takes.

    `f(xi, method=None, *, nu=None)` with xi of shape (..., number of axes) has derivatives with respect to values and
    xi; that of "nearest" with respect to xi is zero. With nu it is the derivative of these orders along the axes.

    Memory:
        All arrays by reference. A record saves xi, and the values if xi is active or the method is "pchip". A
        derivative takes for a moment, for each point, (degree + 1) values along each axis; of "pchip" all values of the
        grid but along the last axis.

    Example:
        >>> from ebbtide import grad
        >>> f = RegularGridInterpolator((np.arange(3.0), np.arange(2.0)), np.arange(6.0).reshape(3, 2))
        >>> grad(lambda x: f(x)[0])(np.array([0.5, 0.25]))
        array([2., 1.])
    """

    __slots__ = ("_how", "bounds_error", "fill_value", "grid", "method", "values")

    def __init__(
        self, points: Any, values: Any, method: str = "linear", bounds_error: bool = True, fill_value: Any = np.nan, *,
        solver: Any = None, solver_args: Any = None,
    ) -> None:  # fmt: skip
        self.grid = tuple([np.asarray(part, np.float64) for part in points])
        self.values = inexact(values)
        self.method, self.bounds_error, self.fill_value = method, bounds_error, fill_value
        if any(len(part) < 2 for part in self.grid):
            raise refusal("RegularGridInterpolator has no derivative rule for an axis of one coordinate: leave it out.")
        self._how = self._of(method, solver, solver_args)

    def _of(self, method: str, solver: Any, options: Any) -> _Grid:
        """Return the interpolation by a method, after SciPy's own checks."""
        how = _Grid(self.grid, method, self.bounds_error, self.fill_value, solver, options)
        if type(self.values) is TracedArray:
            how.built(np.zeros(self.values.shape, self.values.dtype))
            return how
        return replace(how, known=(self.values, how.built(self.values)))

    def __call__(self, xi: Any, method: str | None = None, *, nu: Any = None) -> Any:
        """
        Return the interpolation.

        Args:
            xi: Points of shape (..., number of axes), or a tuple with an array for each axis.
            method: Another method than the one that was given before.
            nu: The derivative to return, by its orders along the axes: of "slinear", "cubic" and "quintic".
        """
        if isinstance(xi, tuple):
            xi = np.stack(np.broadcast_arrays(*[as_operand(part) for part in xi]), axis=-1)
        xi, count = inexact(xi), len(self.grid)
        xi = np.reshape(xi, (-1, count)) if xi.ndim == 1 else xi
        if xi.shape[-1] != count:
            raise ValueError(f"Points of {xi.shape[-1]} coordinates were asked for on a grid of {count} axes.")
        how = self._how if method in (None, self.method) else self._of(method, None, None)
        if nu is not None:
            if how.method not in _SPLINES:
                raise ValueError(f"There are derivatives nu={nu!r} for the methods {_SPLINES}, not for {how.method!r}.")
            orders = tuple([operator.index(order) for order in nu])
            if len(orders) != count or min(orders) < 0:
                raise ValueError(f"nu={nu!r} is not an order, 0 or more, for each of the {count} axes of the grid.")
            how = replace(how, orders=orders)
        operation = {"nearest": NEAREST, "pchip": SHAPED}.get(how.method, LINEAR)
        flat = np.reshape(xi, (prod(xi.shape[:-1]), count))
        found = operation.bind((self.values, flat), {"how": how})
        return np.reshape(found, (*xi.shape[:-1], *found.shape[1:]))
