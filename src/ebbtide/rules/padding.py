"""
Rules of padding: an array with a border, one axis after the other, which is what NumPy makes of the corners.

A border of zeros is linear, and one of elements of the array takes them; others are joined to the array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.kinds import linear
from ebbtide.arrays.primitive import constant_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import lying, order_like
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.originals import is_traced


def _pad_transpose(g: Any, kind: ArrayType, widths: Any, values: Any) -> Any:
    return g[tuple([slice(before, before + n) for (before, _), n in zip(widths, kind.shape, strict=True)])]


_pad_constant = linear(
    lambda x, widths, values: np.pad(x, widths, constant_values=values),
    _pad_transpose,
    infer=lambda kind, widths, values: ArrayType(
        tuple([a + n + b for (a, b), n in zip(widths, kind.shape, strict=True)]), kind.dtype
    ),
    batch=lambda x, widths, values: np.pad(x, ((0, 0), *widths), constant_values=values),
    name="pad",
)
_TAKEN = ("edge", "reflect", "symmetric", "wrap")
_STATISTICS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"maximum": np.max, "minimum": np.min, "mean": np.mean, "median": np.median}
)
# The keyword that a mode takes, and its default.
_KEYWORDS: Mapping[str, tuple[str, Any]] = MappingProxyType({
    "constant": ("constant_values", 0), "linear_ramp": ("end_values", 0), "reflect": ("reflect_type", "even"),
    "symmetric": ("reflect_type", "even"), **dict.fromkeys(_STATISTICS, ("stat_length", None)),
})  # fmt: skip


def _numbers(values: Any) -> Any:
    """Return nested sequences of numbers, which may be traced, as an array."""
    if type(values) is TracedArray or not is_traced(values):
        return as_operand(values)
    return np.stack([_numbers(value) for value in values])


def _pairs(values: Any, ndim: int) -> Any:
    """Return what is given for both ends of all axes, of an axis or of each, as NumPy spreads it."""
    if values is None:
        return [(None, None)] * ndim
    values = _numbers(values)
    few = values.size == 1 or (values.size == 2 and values.shape != (2, 1))
    pairs = np.broadcast_to(np.reshape(values, (1, -1)) if few else values, (ndim, 2))
    # More than two are Python's numbers for NumPy, which have the precision of the array.
    return pairs if few or type(pairs) is TracedArray else pairs.tolist()


def _widths(given: Any, ndim: int) -> tuple[tuple[int, int], ...]:
    """Return the widths of the border."""
    if isinstance(given, dict):
        by_axis = {axis % ndim: (width, width) if np.ndim(width) == 0 else width for axis, width in given.items()}
        given = [by_axis.get(axis, (0, 0)) for axis in range(ndim)]
    return tuple([(int(before), int(after)) for before, after in _pairs(given, ndim)])


def _part(x: Any, axis: int, first: int | None, last: int | None, step: int = 1) -> Any:
    """Return a slice along an axis."""
    return x[(*(slice(None),) * axis, slice(first, last, step))]


def _joined(x: Any, axis: int, ends: tuple[Any, Any]) -> Any:
    """Return an array between two ends, in its own dtype."""
    made = np.concatenate([ends[0].astype(x.dtype), x, ends[1].astype(x.dtype)], axis)
    return made if made.dtype == x.dtype else made.astype(x.dtype)  # of another order of bytes


def _with_values(x: Any, axis: int, width: tuple[int, int], values: Any) -> Any:
    """Return an array between values, which are broadcast."""
    shapes = [(*x.shape[:axis], count, *x.shape[axis + 1 :]) for count in width]
    return _joined(x, axis, tuple([np.broadcast_to(v, shape) for v, shape in zip(values, shapes, strict=True)]))


def _ramps(x: Any, axis: int, width: tuple[int, int], values: Any) -> Any:
    """Return an array between straight lines to values at the ends."""
    edges = np.take(x, 0, axis), np.take(x, -1, axis)
    before, after = (
        np.linspace(value, edge, count, endpoint=False, dtype=x.dtype, axis=axis)
        for value, edge, count in zip(values, edges, width, strict=True)
    )
    return _joined(x, axis, (before, np.flip(after, axis)))


def _statistics(x: Any, axis: int, width: tuple[int, int], lengths: Any, function: Callable[..., Any]) -> Any:
    """Return an array between statistics of so many of its elements at each end."""
    size = x.shape[axis]
    first, last = (size if length is None else min(int(length), size) for length in lengths)
    if not (first and last) and function in (np.max, np.min):
        raise ValueError("np.pad with stat_length=0 has no largest and no smallest element. Give 1 or more.")
    before = function(_part(x, axis, 0, first), axis=axis, keepdims=True)
    after = before if first == last == size else function(_part(x, axis, size - last, None), axis=axis, keepdims=True)
    return _with_values(x, axis, width, (before, after))


def _turned(x: Any, axis: int, width: tuple[int, int], skipped: int) -> Any:
    """
    Return an array between its reflections by the points at its ends, done until the border is as wide as it is to be.

    Args:
        x: The array.
        axis: The axis.
        width: How wide the border is.
        skipped: 1 if the ends themselves are not repeated, 0 if they are.
    """
    before, after = width
    period = x.shape[axis] - skipped
    while before or after:
        size = x.shape[axis]
        most = (size - skipped) // period * period
        counts = min(most, before), min(most, after)
        head = np.flip(_part(x, axis, skipped, skipped + counts[0]), axis)
        tail = np.flip(_part(x, axis, size - skipped - counts[1], size - skipped), axis)
        x = _joined(x, axis, (2 * _part(x, axis, 0, 1) - head, 2 * _part(x, axis, size - 1, None) - tail))
        before, after = before - counts[0], after - counts[1]
    return x


def _constant(x: Any, widths: tuple[tuple[int, int], ...], values: Any) -> Any:
    """Return an array in a border of plain values."""
    if np.all(np.equal(values, 0)):
        return _pad_constant.bind((x,), {"widths": widths, "values": 0})
    padded = constant_like(x, np.pad(np.zeros(x.shape, x.dtype), widths, constant_values=values))
    padded[tuple([slice(before, before + n) for (before, _), n in zip(widths, x.shape, strict=True)])] = x
    return padded


def _along(x: Any, axis: int, width: tuple[int, int], mode: Any, given: Any) -> Any:
    """Return an array with a border along an axis."""
    size = x.shape[axis]
    if mode == "constant":
        return _with_values(x, axis, width, given[axis])
    if not size:
        raise ValueError(f"np.pad cannot extend axis {axis}, which is empty, with mode={mode!r}. Take 'constant'.")
    if mode == "linear_ramp":
        return _ramps(x, axis, width, given[axis])
    if mode in _STATISTICS:
        return _statistics(x, axis, width, given[axis], _STATISTICS[mode])
    if given == "odd" and size > 1:
        return _turned(x, axis, width, int(mode == "reflect"))
    mode = "edge" if given is not None and size == 1 else mode
    return np.take(x, np.pad(np.arange(size), width, mode=mode), axis)


def pad(array: Any, pad_width: Any, mode: Any = "constant", **keywords: Any) -> Any:
    """Return an array with a border."""
    if mode not in _KEYWORDS and mode not in _TAKEN:
        raise refusal(
            f"np.pad with mode={mode!r} has no derivative rule; there is one for {(*_TAKEN, *_STATISTICS)}, 'constant' "
            "and 'linear_ramp'."
        )
    name, given = _KEYWORDS.get(mode, ("", None))
    given = keywords.pop(name, given)
    if keywords:
        raise ValueError(f"np.pad with mode={mode!r} does not take {', '.join(keywords)}.")
    widths, order = _widths(pad_width, array.ndim), order_like(array)
    if mode == "constant" and not is_traced(given):
        return lying(_constant(array, widths, given), order)
    if name and name != "reflect_type":
        given = _pairs(given, array.ndim)
    padded = array
    for axis, width in enumerate(widths):
        if any(width):
            padded = _along(padded, axis, width, mode, given)
    return np.copy(array, order=order) if padded is array else lying(padded, order)


answer(np.pad, pad)
