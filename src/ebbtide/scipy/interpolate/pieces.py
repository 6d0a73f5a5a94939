"""The operations of interpolation: what SciPy computes, with the derivatives of piecewise polynomials."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import by_members
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.context import entered
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, constant_like, matched, promoted
from ebbtide.arrays.traced import TracedArray
from ebbtide.ledger import Ledger
from ebbtide.transforms.forward import jvp
from ebbtide.transforms.pullback import vjp


class Pieces(Protocol):
    """Piecewise polynomials through values."""

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """The plain arrays that it keeps, as knots, beside values and points."""
        ...

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
        at = values[0] if values else _beside(points, np.zeros(kind.shape, kind.dtype))
        return _pulled(lambda at: params["how"].pieces(at, points), at, g, kind)

    def pull_points(g: Any, kind: ArrayType, params: Any, points: Any, values: Any) -> Any:
        values = _beside(points, values)
        return _pulled(lambda points: params["how"].pieces(values, points), points, g, kind)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        moving = [k for k in range(1 + moves) if tangents[k] is not None]
        if not moving:
            return None

        values = (_beside(values[1], values[0]), values[1])

        def pieces(*some: Any) -> Any:
            given = dict(zip(moving, some, strict=True))
            return params["how"].pieces(*[given.get(k, value) for k, value in enumerate(values)])

        return promoted([jvp(pieces, [values[k] for k in moving], [tangents[k] for k in moving])[1]], out)

    pulls = (
        Pull(pull_values, ("points",) if is_linear else ("points", "values"), FRESH, temporaries=8),
        Pull(pull_points, ("points", "values"), FRESH, temporaries=8) if moves else None,
    )
    def of_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
        if mapped[0]:
            return by_members(name, primitive.bind, values, mapped, params, size)
        points = values[1]  # all of them are points of one interpolation
        flat = np.reshape(points, (size * points.shape[1], *points.shape[2:]))
        made = primitive.bind((values[0], flat), params)
        return np.reshape(made, (size, points.shape[1], *made.shape[1:]))

    primitive = Primitive(
        lambda values, points, how: how.plain(values, points),
        name=name,
        operands=("values", "points"),
        pull=pulls.__getitem__,
        push=push,
        infer=lambda values, points, how: how.infer(values, points),
        batch=of_members,
    )
    return primitive


LINEAR = _operation("interpolate")
NEAREST = _operation("interpolate_nearest", moves=False)
SHAPED = _operation("interpolate_shaped", is_linear=False)


def _pulled(pieces: Any, at: Any, g: Any, kind: ArrayType) -> Any:
    """Return the cotangent of an operand, in an account of no budget: what a pull takes is in the one around, whole."""
    with entered(ledger=Ledger(), budget=None):
        value, pullback = vjp(pieces, at)
        return matched(pullback(matched(g, value))[0], kind)


def _beside(points: Any, values: Any) -> Any:
    """Return values from which elements can be taken at places that come from the points."""
    is_plain = type(points) is TracedArray and type(values) is not TracedArray
    return constant_like(points, values) if is_plain else values


def inexact(value: Any) -> Any:
    """Return what a user gave as an array of numbers that have derivatives."""
    value = as_operand(value)
    return value if value.dtype.kind in "fc" else value.astype(np.float64)


def find_place(grid: Any, points: Any) -> Any:
    """Return the number of the interval of a grid in which each point is; beyond the ends that of the first or last."""
    return np.clip(np.searchsorted(grid, points, side="right") - 1, 0, len(grid) - 2)


def is_outside(points: Any, grid: Any) -> Any:
    """Return which points are beyond the ends of a grid."""
    return np.logical_or(points < grid[0], points > grid[-1])


def taken(table: Any, place: Any) -> Any:
    """Return elements of a plain array at numbers that in a program are not known."""
    return (constant_like(place, table) if type(place) is TracedArray else table)[place]
