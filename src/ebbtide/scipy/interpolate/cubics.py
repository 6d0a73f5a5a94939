"""Interpolation by cubic polynomials along one axis."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from scipy import interpolate

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.reach import arrays_of
from ebbtide.rules.answers import refusal
from ebbtide.scipy.interpolate.hermite import hermite, slopes_of_shape
from ebbtide.scipy.interpolate.pieces import LINEAR, SHAPED, find_place, inexact, is_outside, taken
from ebbtide.scipy.linalg import solve_banded


@final
class _Cubic:
    """
    Cubic polynomials between knots: values of shape (n, ...), and points of one axis.

    Args:
        x: The knots.
        form: "spline" or "pchip".
        bc_type: The boundary conditions of a spline.
        extrapolate: Whether there are values beyond the ends.
        nu: Order of the derivative that is returned.
    """

    __slots__ = ("_bc_type", "_extrapolate", "_form", "_nu", "_x")

    def __init__(self, x: Any, form: str, bc_type: Any, extrapolate: Any, nu: int) -> None:
        self._x = x
        self._form = form
        self._bc_type = bc_type
        self._extrapolate = extrapolate
        self._nu = nu

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """See `Pieces.held_arrays`."""
        return tuple(arrays_of([self._x, self._bc_type]))

    def plain(self, values: Any, points: Any) -> Any:
        """See `Pieces.plain`."""
        if self._form == "pchip":
            return interpolate.PchipInterpolator(self._x, values)(points, self._nu, self._extrapolate)
        return interpolate.CubicSpline(self._x, values, bc_type=self._bc_type)(points, self._nu, self._extrapolate)

    def pieces(self, values: Any, points: Any) -> Any:
        """See `Pieces.pieces`."""
        x, flat = self._x, np.reshape(values, (len(self._x), -1))
        place = find_place(x, points)
        slopes = slopes_of_shape(x, flat) if self._form == "pchip" else self._smooth(flat, values.shape)
        width = np.reshape(taken(np.diff(x), place), (-1, 1))
        step = np.reshape(points - taken(x, place), (-1, 1))
        ends, beside = (flat[place], flat[place + 1]), (slopes[place], slopes[place + 1])
        total = hermite(step, width, ends, beside, self._nu)
        if not self._extrapolate:
            total = np.where(np.reshape(is_outside(points, x), (-1, 1)), 0.0, total)
        return np.reshape(total, (points.shape[0], *values.shape[1:]))

    def _smooth(self, flat: Any, shape: tuple[int, ...]) -> Any:
        """Return the slopes at the knots, which are linear in the values but for what boundary conditions add."""
        count = len(self._x)
        ends: Any = (self._bc_type,) * 2 if isinstance(self._bc_type, str) else self._bc_type
        kinds = [end if isinstance(end, str) else int(end[0]) for end in ends]
        if count > 3:
            slopes = solve_banded((1, 1), *_system(self._x, flat, kinds))
        else:
            free: Any = tuple([kind if isinstance(kind, str) else (kind, np.zeros(count)) for kind in kinds])
            matrix = interpolate.CubicSpline(self._x, np.eye(count), bc_type=free)(self._x, 1)
            slopes = matrix.astype(flat.dtype) @ flat
        if isinstance(self._bc_type, str):
            return slopes
        fixed = interpolate.CubicSpline(self._x, np.zeros(shape), bc_type=self._bc_type)(self._x, 1)
        return slopes + np.reshape(fixed, (count, -1))

    def infer(self, values: ArrayType, points: ArrayType) -> ArrayType:
        """See `Pieces.infer`."""
        return ArrayType((*points.shape, *values.shape[1:]), np.result_type(values.dtype, np.float64))


def _system(x: Any, values: Any, ends: list[Any]) -> tuple[Any, Any]:
    """
    Return the bands and the right-hand sides of the equations for the slopes of a spline at its knots.

    Args:
        x: The knots, more than three.
        values: The values there, of shape (n, k).
        ends: The condition at each end: its name, or the order of the derivative that is zero there.

    Source: C. de Boor, A Practical Guide to Splines (1978), chapter IV; the equations are scaled as SciPy's.
    """
    dx = np.diff(x)
    column = np.reshape(dx, (-1, 1))
    rises = np.diff(values, axis=0)
    secants = rises / column
    bands = np.zeros((3, len(x)))
    bands[1, 1:-1], bands[0, 2:], bands[2, :-2] = 2 * (dx[:-1] + dx[1:]), dx[:-1], dx[1:]
    bands[1, 0], bands[0, 1], first = _at_end(dx[:2], secants[:2], rises[0], ends[0])
    bands[1, -1], bands[2, -2], last = _at_end(dx[:-3:-1], secants[:-3:-1], rises[-1], ends[1])
    between = 3 * (column[1:] * secants[:-1] + column[:-1] * secants[1:])
    return bands, np.concatenate([np.reshape(first, (1, -1)), between, np.reshape(last, (1, -1))])


def _at_end(dx: Any, secants: Any, rise: Any, end: Any) -> tuple[Any, Any, Any]:
    """Return both coefficients of the equation at an end, and its right-hand side, from the last two intervals."""
    if end == "not-a-knot":
        both = dx[0] + dx[1]
        side = ((dx[0] + 2 * both) * dx[1] * secants[0] + dx[0] ** 2 * secants[1]) / both
        return dx[1], both, side
    if end in (1, "clamped"):
        return 1.0, 0.0, 0 * rise
    return 2 * dx[0], dx[0], 3 * rise


def _called(self: Any, x: Any, nu: int, extrapolate: Any, form: str, bc_type: Any) -> Any:
    """Return an interpolation along an axis of the values, at points of any shape."""
    extrapolate = self.extrapolate if extrapolate is None else extrapolate
    if extrapolate == "periodic" or bc_type == "periodic":
        raise refusal("periodic interpolation has no derivative rule. Repeat values beyond the period at both ends.")
    points = inexact(x)
    values = np.moveaxis(self.y, self.axis, 0)
    how = _Cubic(self.x, form, bc_type, bool(extrapolate), nu)
    operation = SHAPED if form == "pchip" else LINEAR
    found = operation.bind((values, np.reshape(points, -1)), {"how": how})
    found = np.reshape(found, (*points.shape, *values.shape[1:]))
    axes = tuple(range(points.ndim))
    return np.moveaxis(found, axes, tuple([self.axis % self.y.ndim + k for k in axes]))


@final
class CubicSpline:
    """
    The cubic spline through values; see `scipy.interpolate.CubicSpline`.

    Args:
        x: The knots, ascending, plain.
        y: The values, which may be traced.
        axis: The axis of y along which they are.
        bc_type: The boundary conditions, not "periodic".
        extrapolate: Whether there are values beyond the ends; None for yes.

    `f(x, nu)` is the spline, or its derivative of order nu, with derivatives with respect to y and x.

    Memory:
        All arrays by reference. A record saves the points, and y if the points are active. A derivative solves, for a
        moment, the equations of three bands for the slopes at the knots.

    Example:
        >>> from ebbtide import grad
        >>> f = CubicSpline(np.arange(5.0), np.arange(5.0) ** 3)
        >>> round(grad(f)(1.5), 6)
        np.float64(6.75)
    """

    __slots__ = ("axis", "bc_type", "extrapolate", "x", "y")

    def __init__(
        self, x: Any, y: Any, axis: int = 0, bc_type: Any = "not-a-knot", extrapolate: Any = None
    ) -> None:
        self.x, self.y = np.asarray(x, np.float64), inexact(y)
        self.axis, self.bc_type = axis, bc_type
        self.extrapolate = True if extrapolate is None else extrapolate

    def __call__(self, x: Any, nu: int = 0, extrapolate: Any = None) -> Any:
        """Return the spline at points x, or its derivative of order *nu*."""
        return _called(self, x, nu, extrapolate, "spline", self.bc_type)


@final
class PchipInterpolator:
    """
    The cubic interpolation that is monotonic where the values are; see `scipy.interpolate.PchipInterpolator`.

    Args:
        x: The knots, ascending, plain.
        y: The values, which may be traced.
        axis: The axis of y along which they are.
        extrapolate: Whether there are values beyond the ends; None for yes.

    `f(x, nu)` has derivatives with respect to y and x.

    Memory:
        All arrays by reference. A record saves the points and y.

    Example:
        >>> from ebbtide import grad
        >>> f = PchipInterpolator(np.arange(3.0), np.array([0.0, 1.0, 4.0]))
        >>> round(grad(f)(1.0), 6)
        np.float64(1.5)
    """

    __slots__ = ("axis", "extrapolate", "x", "y")

    def __init__(self, x: Any, y: Any, axis: int = 0, extrapolate: Any = None) -> None:
        self.x, self.y = np.asarray(x, np.float64), inexact(y)
        self.axis = axis
        self.extrapolate = True if extrapolate is None else extrapolate

    def __call__(self, x: Any, nu: int = 0, extrapolate: Any = None) -> Any:
        """Return the interpolation at points x, or its derivative of order *nu*."""
        return _called(self, x, nu, extrapolate, "pchip", None)
