"""Rules of interpolation between points on a line, and of phases without jumps."""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import by_members
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.primitive import FRESH, PASSED, Primitive, Pull, matched, promoted
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.rules.answers import answer
from ebbtide.rules.gathers import added
from ebbtide.rules.indexing import take
from ebbtide.rules.reductions import axis_of


def _interpolated(x: Any, xp: Any, fp: Any, left: Any, right: Any) -> Any:
    return np.interp(x, xp, fp, left, right)


def _segment(x: Any, xp: Any) -> tuple[Any, Any]:
    """Return the number of the points to the left and to the right; a point belongs to what is right of it."""
    last = xp.shape[0] - 1
    below = np.clip(np.searchsorted(xp, x, "right") - 1, 0, max(last - 1, 0))
    return below, np.minimum(below + 1, last)


def _widths(xp: Any, below: Any, above: Any) -> Any:
    """Return how far points are apart; where two are at one place, infinity, as there is no slope between them."""
    if xp.shape[0] == 1:
        return np.ones(())
    widths = take(xp, above) - take(xp, below)
    return np.where(widths == 0, np.inf, widths)


def _slope(x: Any, xp: Any, fp: Any) -> Any:
    """Return the slope at x, which is zero outside of the points."""
    below, above = _segment(x, xp)
    inside = np.logical_and(x >= xp[0], x <= xp[-1])
    return np.where(inside, (take(fp, above) - take(fp, below)) / _widths(xp, below, above), 0.0)


def _shares(x: Any, xp: Any, *, left: bool, right: bool) -> tuple[Any, Any, Any, Any]:
    """Return the numbers of the points on both sides, and how much each of them counts."""
    below, above = _segment(x, xp)
    inside = np.logical_and(x >= xp[0], x <= xp[-1])
    widths = _widths(xp, below, above)
    # Two points at one place are a segment of their own at the right end only, where the last one counts.
    t = np.where(inside, np.where(np.isinf(widths), 1.0, (x - take(xp, below)) / widths), 0.0)
    before, behind = np.logical_and(x < xp[0], not left), np.logical_and(x > xp[-1], not right)
    return below, above, np.where(inside, 1.0 - t, np.where(before, 1.0, 0.0)), np.where(behind, 1.0, t)


def _ends(params: Any) -> dict[str, bool]:
    """Return on which sides values outside of the points are given."""
    return {side: params[side] is not None for side in ("left", "right")}


def _spread(g: Any, kind: ArrayType, parts: tuple[Any, Any, Any, Any]) -> Any:
    """Return a cotangent given to the points on both sides by their shares."""
    below, above, lower, upper = parts
    return matched(added(g * lower, below, kind) + added(g * upper, above, kind), kind)


def _gathered(tangent: Any, parts: tuple[Any, Any, Any, Any]) -> Any:
    """Return what the points on both sides give by their shares."""
    below, above, lower, upper = parts
    return lower * take(tangent, below) + upper * take(tangent, above)


def _of_x(g: Any, kind: ArrayType, params: Any, x: Any, xp: Any, fp: Any) -> Any:
    return matched(g * _slope(x, xp, fp), kind)


def _of_points(g: Any, kind: ArrayType, params: Any, x: Any, xp: Any, fp: Any) -> Any:
    weighted = np.real(np.negative(g) * _slope(x, xp, fp))
    return _spread(weighted, kind, _shares(x, xp, left=True, right=True))


def _of_values(g: Any, kind: ArrayType, params: Any, x: Any, xp: Any) -> Any:
    return _spread(g, kind, _shares(x, xp, **_ends(params)))


_PULLS = (
    Pull(_of_x, ("x", "xp", "fp"), FRESH, temporaries=4),
    Pull(_of_points, ("x", "xp", "fp"), FRESH, temporaries=6),
    Pull(_of_values, ("x", "xp"), FRESH, temporaries=5),
)


def _push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    x, xp, fp = values
    terms = []
    if tangents[0] is not None:
        terms.append(tangents[0] * _slope(x, xp, fp))
    if tangents[1] is not None:
        moved = _gathered(tangents[1], _shares(x, xp, left=True, right=True))
        terms.append(np.negative(_slope(x, xp, fp)) * moved)
    if tangents[2] is not None:
        terms.append(_gathered(tangents[2], _shares(x, xp, **_ends(params))))
    return promoted(terms, out)


def _batch(values: Any, mapped: Any, params: Any, size: int) -> Any:
    """Return the values of all members: at once where the points are the same for all of them."""
    if any(mapped[1:]):
        kind = ArrayType(values[0].shape[mapped[0] :], type_of(values[2]).dtype)
        return by_members("interp", _interp.bind, values, mapped, params, size, kind)
    return _interp.bind(values, params)


_interp = Primitive(
    _interpolated,
    name="interp",
    operands=("x", "xp", "fp"),
    pull=_PULLS.__getitem__,
    push=_push,
    infer=lambda x, xp, fp, left, right: ArrayType(x.shape, fp.dtype),
    batch=_batch,
)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Return the piecewise linear function through points, in double precision as in NumPy."""
    x, xp, fp = map(as_operand, (x, xp, fp))
    values = np.complex128 if type_of(fp).dtype.kind == "c" else np.float64
    pairs = ((x, np.float64), (xp, np.float64), (fp, values))
    x, xp, fp = (_in(v, dtype, period is not None) for v, dtype in pairs)  # as NumPy has it
    if xp.ndim != 1 or fp.ndim != 1 or xp.shape != fp.shape or not xp.shape[0]:
        raise ValueError(f"interp: points of shapes {xp.shape} and {fp.shape} are not the same number on one axis.")
    if period is not None:
        known = bottom(period) if type(period) is TracedArray else period
        if type(known) is not ArrayType and known == 0:
            raise ValueError("period must be a non-zero value")
        period, left, right = abs(period), None, None
        x, xp = x % period, xp % period
        order = np.argsort(xp)
        xp, fp = np.take_along_axis(xp, order, 0), np.take_along_axis(fp, order, 0)
        xp = np.concatenate((xp[-1:] - period, xp, xp[0:1] + period))
        fp = np.concatenate((fp[-1:], fp, fp[0:1]))
    given = {side: None if type(v) is TracedArray else v for side, v in (("left", left), ("right", right))}
    made = _interp.bind((x, xp, fp), given)
    if type(left) is TracedArray:
        made = np.where(x < xp[0], left, made)
    return np.where(x > xp[-1], right, made) if type(right) is TracedArray else made


def _in(value: Any, dtype: Any, any_precision: bool) -> Any:
    found = type_of(value).dtype
    if not any_precision and not np.can_cast(found, dtype):
        raise TypeError(
            f"np.interp computes in {np.dtype(dtype)}, and there is {found} among its arguments: convert it by astype."
        )
    return value if found == dtype else np.astype(value, dtype)


answer(np.interp, interp)

# What unwrap adds to a phase is a multiple of the period, which does not change with the phase.


def _unwrapped(p: Any, axis: int, discont: Any, period: Any) -> Any:
    return np.unwrap(p, discont, axis, period=period)


def _unwrapped_type(kind: ArrayType, axis: int, discont: Any, period: Any) -> ArrayType:
    return ArrayType(kind.shape, np.unwrap(np.zeros(2, kind.dtype), period=period).dtype)


_unwrap = Primitive(
    _unwrapped,
    name="unwrap",
    operands=("p",),
    pull=lambda k: Pull(lambda g, kind, params: matched(g, kind), (), PASSED),
    push=lambda tangents, values, out, params, kept: matched(tangents[0], type_of(out)),
    infer=_unwrapped_type,
    batch=lambda values, mapped, params, size: _unwrap.bind(values, {**params, "axis": params["axis"] + 1}),
)


def _unwrapped_around(p: Any, discont: Any, axis: int, period: Any) -> Any:
    """Return phases without jumps of a period that is traced, whose multiples they are moved by."""
    half = period / 2
    steps = np.diff(p, axis=axis)
    around = np.mod(steps + half, period) - half
    around = np.where(np.logical_and(around == -half, steps > 0), half, around)
    moves = np.where(np.abs(steps) < (half if discont is None else discont), 0.0, around - steps)
    first, rest = np.split(p, [1], axis)
    return np.concatenate([first, rest + np.cumsum(moves, axis)], axis)


def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * pi) -> Any:
    """Return phases without jumps of a period along an axis."""
    axis = axis_of(axis, p.ndim)
    if type(discont) is TracedArray or type(period) is TracedArray:
        return _unwrapped_around(p, discont, axis, period)
    return _unwrap.bind((p,), {"axis": axis, "discont": discont, "period": period})


answer(np.unwrap, unwrap)
