"""B-splines on one axis, and what tensor products of them make of values on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import factorial
from typing import Any, Self, final

import numpy as np
from scipy import interpolate

from ebbtide.scipy.interpolate.pieces import find_place, taken
from ebbtide.scipy.linalg import solve_banded


@final
@dataclass(frozen=True, slots=True)
class Basis:
    """
    The B-splines of one degree that interpolate at given coordinates, with not-a-knot ends as SciPy has them.

    Args:
        breaks: Where pieces begin and end, ascending.
        table: For each piece the polynomials of the degree + 1 splines that are not zero there: an array of shape
            (pieces, powers of the distance from where the piece begins, splines).
        bands: The values of all splines at the coordinates, as a banded matrix; None if that is the identity.

    Memory:
        (degree + 1)² numbers for each coordinate.
    """

    breaks: Any
    table: Any
    bands: Any

    @classmethod
    def of(cls, grid: Any, degree: int) -> Self:
        """Return the splines of odd *degree* for ascending coordinates."""
        count = len(grid)
        knots = interpolate.make_interp_spline(grid, np.zeros(count), degree).t
        breaks = knots[degree : count + 1]
        each = np.arange(count - degree)[:, None] + np.arange(degree + 1)
        splines = interpolate.BSpline(knots, np.eye(count), degree)
        powers = [
            np.take_along_axis(splines(breaks[:-1], power), each, axis=1) / factorial(power)
            for power in range(degree + 1)
        ]
        bands = None
        if degree > 1:
            at = splines(grid)
            shifts = np.arange(degree, -degree - 1, -1)[:, None]
            rows = np.arange(count) - shifts
            bands = np.where((rows >= 0) & (rows < count), at[np.clip(rows, 0, count - 1), np.arange(count)], 0.0)
        return cls(breaks, np.stack(powers, axis=1), bands)

    def coefficients(self, values: Any, axis: int) -> Any:
        """Return by how much of each spline of an axis the values are made."""
        if self.bands is None:
            return values
        reach = len(self.bands) // 2
        moved = np.moveaxis(values, axis, 0)
        found = solve_banded((reach, reach), self.bands, np.reshape(moved, (moved.shape[0], -1)))
        return np.moveaxis(np.reshape(found, moved.shape), 0, axis)

    def weights(self, points: Any, order: int) -> tuple[Any, Any]:
        """
        Return which splines are not zero at points, and their derivatives of an order there.

        Returns:
            The number of the first of them, of shape (m,), and the weights of it and those that follow it, of shape
            (m, splines).
        """
        place = find_place(self.breaks, points)
        step = np.reshape(points - taken(self.breaks, place), (-1, 1))
        table = self.table
        for _ in range(order):
            table = table[:, 1:] * np.arange(1, table.shape[1])[:, None]
        total = taken(table[:, -1], place) + 0 * step if table.shape[1] else np.zeros((1, self.table.shape[2])) * step
        for power in range(table.shape[1] - 2, -1, -1):
            total = total * step + taken(table[:, power], place)
        return place, total


def contracted(values: Any, first: Sequence[Any], weights: Sequence[Any]) -> Any:
    """
    Return for each point the weighted sum of the values around it.

    Args:
        values: Of shape (one axis of the grid after the other, ...).
        first: For each axis the number of the first value that a point takes, of shape (m,).
        weights: For each axis the weights of it and of those that follow it, of shape (m, how many).

    Returns:
        An array of shape (m, ...).
    """
    count, index = len(first), []
    for axis, (place, weight) in enumerate(zip(first, weights, strict=True)):
        along = [-1 if k == axis else 1 for k in range(count)]
        index.append(np.reshape(place, (-1, *(1,) * count)) + np.reshape(np.arange(weight.shape[1]), along))
    found = values[tuple(index)]
    for weight in weights:
        found = np.einsum("mi...,mi->m...", found, weight)
    return found
