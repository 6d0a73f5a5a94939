"""
Interpolation, with derivatives with respect to the values and to the points where they are asked for.

Values are SciPy's to the last bit. Derivatives are those of the same piecewise polynomials, written as operations that
have derivatives; where pieces meet they are those of the piece that SciPy takes the value from.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, Protocol, final

import numpy as np
from scipy import interpolate

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import by_members
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, constant_like, matched, promoted
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import refusal
from ebbtide.transforms.forward import jvp
from ebbtide.transforms.pullback import vjp

__all__ = ["CubicSpline", "PchipInterpolator", "RegularGridInterpolator"]


class Pieces(Protocol):
    """Piecewise polynomials through values."""

    def plain(self, values: Any, points: Any) -> Any:
        """Return SciPy's interpolation of plain arrays."""
        ...

    def pieces(self, values: Any, points: Any) -> Any:
        """Return the same to rounding, by operations that have derivatives."""
        ...

    def infer(self, values: ArrayType, points: ArrayType) -> ArrayType:
        """Return the type of the interpolation."""
        ...


def _operation(name: str, *, is_linear: bool = True, moves: bool = True) -> Primitive:
    """
    Return an operation of values and points.

    Args:
        name: Its name.
        is_linear: Whether it is linear in the values, and their derivative needs the points alone.
        moves: Whether there is a derivative with respect to the points.
    """

    def pull_values(g: Any, kind: ArrayType, params: Any, points: Any, *values: Any) -> Any:
        at = values[0] if values else np.zeros(kind.shape, kind.dtype)
        value, pullback = vjp(lambda at: params["how"].pieces(at, points), at)
        return matched(pullback(matched(g, value))[0], kind)

    def pull_points(g: Any, kind: ArrayType, params: Any, points: Any, values: Any) -> Any:
        value, pullback = vjp(lambda points: params["how"].pieces(values, points), points)
        return matched(pullback(matched(g, value))[0], kind)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        moving = [k for k in range(1 + moves) if tangents[k] is not None]
        if not moving:
            return None

        def pieces(*some: Any) -> Any:
            given = dict(zip(moving, some, strict=True))
            return params["how"].pieces(*[given.get(k, value) for k, value in enumerate(values)])

        return promoted([jvp(pieces, [values[k] for k in moving], [tangents[k] for k in moving])[1]], out)

    pulls = (
        Pull(pull_values, ("points",) if is_linear else ("points", "values"), FRESH, temporaries=8),
        Pull(pull_points, ("points", "values"), FRESH, temporaries=8) if moves else None,
    )
    return Primitive(
        lambda values, points, how: how.plain(values, points),
        name=name,
        operands=("values", "points"),
        pull=pulls.__getitem__,
        push=push,
        infer=lambda values, points, how: how.infer(values, points),
        batch=lambda values, mapped, params, size: by_members(
            name, lambda pair, params: made_of(name).bind(pair, params), values, mapped, params, size
        ),
    )


_LINEAR = _operation("interpolate")
_NEAREST = _operation("interpolate_nearest", moves=False)
_SHAPED = _operation("interpolate_shaped", is_linear=False)


def made_of(name: str) -> Primitive:
    """Return the operation of a name."""
    return next(one for one in (_LINEAR, _NEAREST, _SHAPED) if one.name == name)


def _array(value: Any) -> Any:
    return value if type(value) is TracedArray else np.asarray(value)


def _inexact(value: Any) -> Any:
    value = _array(value)
    return value if value.dtype.kind in "fc" else value.astype(np.float64)


def _place(grid: Any, points: Any) -> Any:
    """Return the number of the interval of a grid in which each point is; beyond the ends that of the first or last."""
    return np.clip(np.searchsorted(grid, points, side="right") - 1, 0, len(grid) - 2)


def _is_outside(points: Any, grid: Any) -> Any:
    return np.logical_or(points < grid[0], points > grid[-1])


def _taken(table: Any, place: Any) -> Any:
    """Return elements of a plain array at numbers that in a program are not known."""
    return (constant_like(place, table) if type(place) is TracedArray else table)[place]


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
            place = _place(grid, at)
            low = _taken(grid, place)
            part = (at - low) / (_taken(grid, place + 1) - low)
            outside = np.logical_or(outside, _is_outside(at, grid))
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
        self.values = _inexact(values)
        self.method = method
        if method not in ("linear", "nearest"):
            raise refusal(f"RegularGridInterpolator with method={method!r} has no derivative rule; 'linear' has one.")
        if any(len(part) < 2 for part in self.grid):
            raise refusal("RegularGridInterpolator has no derivative rule for an axis of one coordinate: leave it out.")
        # SciPy's own checks, of what is not the values.
        interpolate.RegularGridInterpolator(self.grid, np.empty(self.values.shape), method, bounds_error, fill_value)
        self._how = _Grid(self.grid, method, bounds_error, fill_value)
        self._operation = _LINEAR if method == "linear" else _NEAREST

    def __call__(self, xi: Any) -> Any:
        """
        Return the interpolation.

        Args:
            xi: Points of shape (..., number of axes), or a tuple with an array for each axis.
        """
        if isinstance(xi, tuple):
            xi = np.stack(np.broadcast_arrays(*[_array(part) for part in xi]), axis=-1)
        xi, count = _inexact(xi), len(self.grid)
        xi = np.reshape(xi, (-1, count)) if xi.ndim == 1 else xi
        if xi.shape[-1] != count:
            raise ValueError(f"Points of {xi.shape[-1]} coordinates were asked for on a grid of {count} axes.")
        flat = np.reshape(xi, (prod(xi.shape[:-1]), count))
        found = self._operation.bind((self.values, flat), {"how": self._how})
        return np.reshape(found, (*xi.shape[:-1], *found.shape[1:]))


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

    def plain(self, values: Any, points: Any) -> Any:
        """See `Pieces.plain`."""
        if self._form == "pchip":
            return interpolate.PchipInterpolator(self._x, values)(points, self._nu, self._extrapolate)
        return interpolate.CubicSpline(self._x, values, bc_type=self._bc_type)(points, self._nu, self._extrapolate)

    def pieces(self, values: Any, points: Any) -> Any:
        """See `Pieces.pieces`."""
        x, flat = self._x, np.reshape(values, (len(self._x), -1))
        place = _place(x, points)
        slopes = self._kept(flat) if self._form == "pchip" else self._smooth(flat, values.shape)
        width = np.reshape(_taken(np.diff(x), place), (-1, 1))
        step = np.reshape(points - _taken(x, place), (-1, 1))
        low, high = flat[place], flat[place + 1]
        before, after = slopes[place], slopes[place + 1]
        mean = (high - low) / width
        bend = (before + after - 2 * mean) / width
        coefficients = [bend / width, (mean - before) / width - bend, before, low]
        for _ in range(self._nu):
            degrees = range(len(coefficients) - 1, 0, -1)
            coefficients = [c * degree for c, degree in zip(coefficients, degrees, strict=False)] or [0 * low]
        total = coefficients[0] + 0 * step
        for coefficient in coefficients[1:]:
            total = total * step + coefficient
        if not self._extrapolate:
            total = np.where(np.reshape(_is_outside(points, x), (-1, 1)), 0.0, total)
        return np.reshape(total, (points.shape[0], *values.shape[1:]))

    def _smooth(self, flat: Any, shape: tuple[int, ...]) -> Any:
        """Return the slopes at the knots, which are linear in the values but for what boundary conditions add."""
        count = len(self._x)
        zeros = np.zeros(count)
        free = self._bc_type
        if not isinstance(free, str):
            free = tuple([one if isinstance(one, str) else (one[0], zeros) for one in free])
        matrix = interpolate.CubicSpline(self._x, np.eye(count), bc_type=free)(self._x, 1)
        slopes = matrix.astype(flat.dtype) @ flat
        if isinstance(self._bc_type, str):
            return slopes
        fixed = interpolate.CubicSpline(self._x, np.zeros(shape), bc_type=self._bc_type)(self._x, 1)
        return slopes + np.reshape(fixed, (count, -1))

    def _kept(self, flat: Any) -> Any:
        """Return the slopes at the knots that keep the shape: the harmonic means of those beside, where signs agree."""
        h = np.reshape(np.diff(self._x), (-1, 1))
        m = (flat[1:] - flat[:-1]) / h
        if len(self._x) == 2:
            return np.concatenate([m, m])
        w1, w2 = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
        agree = np.sign(m[1:]) * np.sign(m[:-1]) > 0
        left, right = np.where(agree, m[:-1], 1.0), np.where(agree, m[1:], 1.0)
        inner = np.where(agree, (w1 + w2) / (w1 / left + w2 / right), 0.0)
        return np.concatenate([_end(h[0], h[1], m[0], m[1]), inner, _end(h[-1], h[-2], m[-1], m[-2])])

    def infer(self, values: ArrayType, points: ArrayType) -> ArrayType:
        """See `Pieces.infer`."""
        return ArrayType((*points.shape, *values.shape[1:]), np.result_type(values.dtype, np.float64))


def _end(h0: Any, h1: Any, m0: Any, m1: Any) -> Any:
    """Return the slope at an end: of the parabola through three points, unless that would change the shape."""
    slope = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1)
    slope = np.where(np.logical_and(np.sign(m0) != np.sign(m1), np.abs(slope) > 3 * np.abs(m0)), 3 * m0, slope)
    return np.reshape(np.where(np.sign(slope) != np.sign(m0), 0.0, slope), (1, -1))


def _called(self: Any, x: Any, nu: int, extrapolate: Any, form: str, bc_type: Any) -> Any:
    """Return an interpolation along an axis of the values, at points of any shape."""
    extrapolate = self.extrapolate if extrapolate is None else extrapolate
    if extrapolate == "periodic" or bc_type == "periodic":
        raise refusal("periodic interpolation has no derivative rule. Repeat values beyond the period at both ends.")
    points = _inexact(x)
    values = np.moveaxis(self.y, self.axis, 0)
    how = _Cubic(self.x, form, bc_type, bool(extrapolate), nu)
    operation = _SHAPED if form == "pchip" else _LINEAR
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
        All arrays by reference. A record saves the points, and y if the points are active. A derivative makes, for a
        moment, the matrix of the slopes at the knots of n² numbers.

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
        self.x, self.y = np.asarray(x, np.float64), _inexact(y)
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
        self.x, self.y = np.asarray(x, np.float64), _inexact(y)
        self.axis = axis
        self.extrapolate = True if extrapolate is None else extrapolate

    def __call__(self, x: Any, nu: int = 0, extrapolate: Any = None) -> Any:
        """Return the interpolation at points x, or its derivative of order *nu*."""
        return _called(self, x, nu, extrapolate, "pchip", None)
